"""Where and how often the project's processes look for garbage in cycles."""

import gc

ALLOCATIONS = 50_000


def collect_rarely() -> None:
    """Makes this process look for garbage after every 50,000 new objects, and not after every 700.

    Nearly all that an evaluation makes is imported once and stays, or is freed by its last reference. Looking
    through it again and again takes a tenth of a start and a third of the time that a busy inference has.
    """
    if gc.get_threshold()[0] < ALLOCATIONS:
        gc.set_threshold(ALLOCATIONS)


def freeze_imports() -> None:
    """Hides what is imported so far from the search for garbage: at the end of the process alone that saves
    half a second, a tenth of a short run.

    Not where a library made with nanobind is loaded (duckdb, or what a user's metric imports): it lists on
    stderr all of its objects that nobody takes apart before Python ends.
    """
    if not any(metaclass.__module__ == "nanobind" for metaclass in type.__subclasses__(type)):
        gc.freeze()
