"""What is ended, too, where a run's process is ended in the middle of it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.processes.endings import ended_with_process, ending_all


@contextmanager
def noted(seen: list[str]) -> Iterator[str]:
    seen.append("begun")
    try:
        yield "given"
    finally:
        seen.append("ended")


def test_a_block_is_ended_with_the_process_and_only_once() -> None:
    seen: list[str] = []
    with ended_with_process(noted(seen)) as given, ending_all(60):
        pass
    assert (given, seen) == ("given", ["begun", "ended"])


def test_a_block_that_has_ended_is_not_ended_with_the_process() -> None:
    seen: list[str] = []
    with ended_with_process(noted(seen)):
        pass
    assert seen == ["begun", "ended"]
    with ending_all(60):
        pass
    assert seen == ["begun", "ended"]


def test_a_block_that_fails_to_end_keeps_no_other_from_it() -> None:
    seen: list[str] = []

    @contextmanager
    def failing() -> Iterator[None]:
        yield
        raise OSError("scancel is not there")

    with ended_with_process(noted(seen)), ended_with_process(failing()), ending_all(60):
        pass
    assert seen == ["begun", "ended"]


def test_a_block_that_does_not_end_is_not_waited_for() -> None:
    released = threading.Event()

    @contextmanager
    def stuck() -> Iterator[None]:
        try:
            yield
        finally:
            released.wait()

    with ended_with_process(stuck()):
        with ending_all(0.01):
            pass
        assert not released.is_set()
        released.set()
