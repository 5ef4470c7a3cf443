"""A function that may never return ends at its limit, and the items beside it have their values."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metrics.errors import ConfigError
from tasks.sandboxes.killable import ItemTimeout, KillableProcess


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


RUNAWAY = "a" * 40 + "!"


def test_what_runs_away_is_given_up_and_the_items_around_it_have_their_values() -> None:
    with KillableProcess("called:matching", [r"(a+)+$"], 0.3) as process:
        found = process.map(["aa", RUNAWAY, "b", "caa", RUNAWAY])
    assert found[0] is True
    assert (found[2], found[3]) == (False, True)
    assert found[1] == found[4] == ItemTimeout("took more than 0.3 s (item_timeout)")


@pytest.mark.parametrize(
    ("what", "item", "reason"),
    [
        ("memory", "big", "took more than 4 GiB of memory"),
        ("sleep", "long", "took more than 2 s by the clock"),
        ("fork", "long", "took more than 2 s by the clock"),
        ("die", "now", "signal 11"),
    ],
)
def test_whatever_an_item_does_to_the_process_costs_that_item(what: str, item: str, reason: str) -> None:
    with KillableProcess("called:chosen", [what], 0.1) as process:
        first, lost, last = process.map(["a", item, "b"])
    assert (first, last) == ("a", "b")
    assert isinstance(lost, ItemTimeout)
    assert reason in lost.reason


def test_an_exception_is_the_callers_and_the_next_call_works() -> None:
    with KillableProcess("called:chosen", ["raise"], 5.0) as process:
        with pytest.raises(ConfigError, match="item 'bad' is bad"):
            process.map(["a", "bad", "b"])
        assert process.map(["c"]) == ["c"]


def test_a_value_that_cannot_be_sent_is_an_error() -> None:
    with KillableProcess("called:chosen", ["unpicklable"], 5.0) as process, pytest.raises(RuntimeError):
        process.map(["a"])


def test_what_is_printed_is_no_reply() -> None:
    with KillableProcess("called:chosen", ["print"], 5.0) as process:
        assert process.map(["a", "b"]) == ["a", "b"]


def test_a_function_that_cannot_be_made_says_why() -> None:
    with KillableProcess("called:failing", [], 5.0) as process, pytest.raises(ConfigError, match="made"):
        process.map(["a"])
    with KillableProcess("nowhere:at_all", [], 5.0) as process, pytest.raises(ModuleNotFoundError):
        process.map(["a"])


def test_a_process_starts_with_the_first_item_and_ends_with_the_block() -> None:
    with KillableProcess("called:matching", ["a"], 5.0) as process:
        assert process._process is None
        assert process("a") is True
        child = process._process
    assert child is not None
    assert child.poll() is not None


def test_large_items_do_not_stand_in_each_others_way() -> None:
    texts = ["x" * 300_000 + str(number) for number in range(20)]
    with KillableProcess("called:chosen", ["echo"], 5.0) as process:
        assert process.map(texts) == texts


def test_no_process_outlives_who_was_killed_while_it_ran_away(tmp_path: Path) -> None:
    """The clock is the kernel's: nobody is left who could end it."""
    waiting = (
        "from tasks.sandboxes.killable import KillableProcess\n"
        "process = KillableProcess('called:matching', ['(a+)+$'], 1.0)\n"
        "process('aa')\n"
        "print(process._process.pid, flush=True)\n"
        "process('a' * 60 + '!')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", waiting], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 60
    while _lives(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _lives(child)


def test_no_child_outlives_an_item_that_was_given_up() -> None:
    with KillableProcess("called:chosen", ["fork"], 0.1) as process:
        process("a")
        assert process._process is not None
        group = process._process.pid
        assert isinstance(process("long"), ItemTimeout)
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("a child is still there")


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
