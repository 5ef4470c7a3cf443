"""How often Python looks for garbage in cycles."""

import gc

ALLOCATIONS = 50_000


def collect_rarely() -> None:
    """Makes this process look for garbage after every 50,000 new objects, and not after every 700.

    Nearly all that an evaluation makes is imported once and stays, or is freed by its last reference. Looking
    through it again and again takes a tenth of a start and a third of the time that a busy inference has.
    """
    if gc.get_threshold()[0] < ALLOCATIONS:
        gc.set_threshold(ALLOCATIONS)
