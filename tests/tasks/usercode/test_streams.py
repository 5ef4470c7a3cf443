"""What users' code does to standard output ends with it."""

import gc
import io
import sys

import pytest

from tasks.usercode.surroundings import kept_streams


def shown(monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """What a standard output that is put there for the test shows in the end."""
    behind = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(behind, write_through=True))
    return behind


def test_a_wrapper_around_the_stream_neither_closes_it_nor_keeps_its_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = shown(monkeypatch)
    with kept_streams():
        sys.stdout = io.TextIOWrapper(sys.stdout.buffer)
        print("theirs")
    gc.collect()
    print("ours")
    assert behind.getvalue() == b"theirs\nours\n"


def test_a_stream_that_was_detached_stays_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    behind = shown(monkeypatch)
    with kept_streams():
        sys.stdout = io.TextIOWrapper(sys.stdout.detach(), write_through=True)
    print("ours")
    assert behind.getvalue() == b"ours\n"
