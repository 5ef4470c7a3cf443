"""What holds a program: the system call filter, and control groups where the machine gives one."""

import os
import resource
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from scorers.config import Program, ProgramLimits
from tasks.sandboxes import kinds
from tasks.sandboxes.filter import OF_OTHERS, REFUSED, UnknownMachineError, system_call_filter
from tasks.sandboxes.groups import divisible_group
from tasks.sandboxes.interpreters import Interpreter
from tasks.sandboxes.judge import Cgroup, limit_process, memory_of
from tasks.sandboxes.judges import JUDGE
from tasks.sandboxes.kinds import COUNTED, SUMMED, Bubblewrap, Container, Invocation
from tasks.sandboxes.run import run_program, trouble

MACHINES = [("x86_64", 0, 0xC000003E), ("aarch64", 1, 0xC00000B7)]
ALLOWED, NOT_PERMITTED, NOT_THERE = 0x7FFF0000, 0x00050001, 0x00050026


def verdict_of(code: bytes, number: int, architecture: int, *arguments: int) -> int:
    """What the kernel would answer: the filter run over a call."""
    called = struct.pack("=IIQ6Q", number, architecture, 0, *arguments, *[0] * (6 - len(arguments)))
    place = loaded = 0
    while True:
        kind, yes, no, value = struct.unpack_from("HBBI", code, 8 * place)
        place += 1
        match kind:
            case 0x06:
                return int(value)
            case 0x20:
                (loaded,) = struct.unpack_from("=I", called, value)
            case 0x15:
                place += yes if loaded == value else no
            case 0x35:
                place += yes if loaded >= value else no
            case 0x45:
                place += yes if loaded & value else no
            case _:
                raise AssertionError(f"no instruction: {kind:#x}")


@pytest.mark.parametrize(("machine", "column", "architecture"), MACHINES)
def test_calls_that_no_answer_needs_are_refused_and_all_others_allowed(
    machine: str, column: int, architecture: int
) -> None:
    code = system_call_filter(machine)
    refused = {numbers[column] for numbers in REFUSED.values()}
    looked_at = {numbers[column] for numbers, _ in OF_OTHERS.values()}
    looked_at |= {pair[column] for pair in ((41, 198), (56, 220), (435, 435), (302, 261))}
    for number in range(512):
        if number not in looked_at:
            expected = NOT_PERMITTED if number in refused else ALLOWED
            assert verdict_of(code, number, architecture) == expected, number
    assert verdict_of(code, 0, 0x40000003) == NOT_PERMITTED, "calls of another architecture"
    if machine == "x86_64":
        assert verdict_of(code, 0x40000000, architecture) == NOT_PERMITTED, "its x32 numbers"


@pytest.mark.parametrize(("machine", "column", "architecture"), MACHINES)
def test_what_a_call_may_do_depends_on_its_arguments(machine: str, column: int, architecture: int) -> None:
    code = system_call_filter(machine)

    def verdict(numbers: tuple[int, int], *arguments: int) -> int:
        return verdict_of(code, numbers[column], architecture, *arguments)

    for numbers, own in OF_OTHERS.values():
        assert verdict(numbers, *[0 if place in own else 7 for place in range(3)]) == ALLOWED
        for place in own:
            assert verdict(numbers, *[1 if at == place else 0 for at in range(3)]) == NOT_PERMITTED
    prlimit, fork, with_namespace = (302, 261), 0x1200011, 0x10000011
    assert verdict(prlimit, 0, 6, 0x7F0000001000) == ALLOWED, "its own limits"
    assert verdict(prlimit, 1, 6, 0) == ALLOWED, "another's are read"
    for new in (0x1000, 0x7F0000000000):
        assert verdict(prlimit, 1, 6, new) == NOT_PERMITTED, "another's are changed"
    assert verdict((41, 198), socket.AF_UNIX, 1) == ALLOWED
    assert verdict((41, 198), socket.AF_INET, 1) == NOT_PERMITTED
    assert verdict((56, 220), fork) == ALLOWED
    assert verdict((56, 220), with_namespace) == NOT_PERMITTED
    assert verdict((435, 435)) == NOT_THERE


def test_a_machine_whose_calls_are_not_known_has_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownMachineError, match="no system call filter for mips"):
        system_call_filter("mips")
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr("tasks.sandboxes.filter._ARCHITECTURES", {})
    system_call_filter.cache_clear()
    assert "no system call filter for" in str(Bubblewrap().missing())
    system_call_filter.cache_clear()


@dataclass(frozen=True)
class Tree:
    """A made tree of control groups, and what the kernel would say of it."""

    root: Path

    def group(self, path: str, controlled: str = "", procs: bool = True) -> Path:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(controlled, encoding="utf-8")
        if procs:
            (folder / "cgroup.procs").touch()
        return folder

    def told(self, own: str, kind: str = "cgroup2") -> tuple[Path, Path]:
        mounts, groups = self.root.parent / "mountinfo", self.root.parent / "cgroup"
        mounts.write_text(
            f"20 1 0:5 / /proc rw shared:1 - proc proc rw\n30 1 0:26 / {self.root} rw - {kind} cgroup2 rw\n",
            encoding="utf-8",
        )
        groups.write_text(f"1:name=systemd:/init\n{own}\n", encoding="utf-8")
        divisible_group.cache_clear()
        return mounts, groups


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "groups")


def test_the_nearest_group_that_limits_what_is_below_it_is_divided(tree: Tree) -> None:
    tree.group("", "cpu memory pids")
    delegated = tree.group("user/1000/app", "memory pids")
    tree.group("user/1000/app/shell.scope")
    assert divisible_group(*tree.told("0::/user/1000/app/shell.scope")) == str(delegated)
    assert divisible_group(*tree.told("0::/elsewhere")) == str(tree.root)


@pytest.mark.parametrize(
    ("controlled", "procs", "own", "kind"),
    [
        ("cpu pids", True, "0::/", "cgroup2"),
        ("memory pids", False, "0::/", "cgroup2"),
        ("memory pids", True, "0::/", "tmpfs"),
        ("memory pids", True, "4:memory:/", "cgroup2"),
    ],
)
def test_without_a_group_that_can_be_divided_there_is_none(
    tree: Tree, controlled: str, procs: bool, own: str, kind: str
) -> None:
    tree.group("", controlled, procs)
    assert divisible_group(*tree.told(own, kind)) is None


def test_a_machine_that_says_nothing_of_groups_has_none(tmp_path: Path) -> None:
    divisible_group.cache_clear()
    assert divisible_group(tmp_path / "missing", tmp_path / "missing, too") is None


LIMITS = ProgramLimits(seconds=60, memory_mb=256, disk_mb=32, processes=9)


class Grouped:
    """bubblewrap, with control groups below a folder."""

    name = "bubblewrap"

    def __init__(self, group: Path, real: Bubblewrap) -> None:
        self._group, self._real = str(group), real

    def missing(self) -> str | None:
        return self._real.missing()

    def not_enforced(self) -> str | None:
        return self._real.not_enforced()

    def start(self, interpreter: Interpreter, limits: ProgramLimits, text: bytes) -> Invocation:
        return replace(self._real.start(interpreter, limits, text), group=self._group)


@pytest.mark.usefixtures("readable")
def test_a_program_runs_in_a_group_of_its_own_whose_limits_are_the_sum(tree: Tree) -> None:
    if (reason := trouble("bubblewrap")) is not None:
        pytest.skip(f"bubblewrap: {reason}")
    parent = tree.group("", "memory pids")
    outcome = run_program(Program("assert 1 + 1 == 2", LIMITS), Grouped(parent, Bubblewrap()))
    assert outcome.verdict == "passed", outcome
    (made,) = (path for path in parent.iterdir() if path.is_dir())
    written = {path.name: path.read_text(encoding="utf-8") for path in made.iterdir()}
    assert written["memory.max"] == str((256 + 32 + kinds.SHARED_MB) << 20)
    assert written["memory.swap.max"] == "0"
    assert written["pids.max"] == str(9 + (os.getuid() != 0))
    assert int(written["cgroup.procs"]) > 1, "the first process of the sandbox, before it begins"


def test_a_group_that_ran_out_of_memory_says_so_and_one_that_is_empty_is_removed(tmp_path: Path) -> None:
    limits: dict[str, Any] = {**LIMITS.model_dump(), "own_processes": 1, "shared_mb": 16}
    group = Cgroup(str(tmp_path), limits, os.getpid())
    events = Path(group.path, "memory.events")
    assert not group.out_of_memory(), "it says nothing"
    for count, out in ((0, False), (2, True)):
        events.write_text(f"low 0\noom {count}\noom_kill {count}\n", encoding="utf-8")
        assert group.out_of_memory() == out
    group.kill()
    assert Path(group.path, "cgroup.kill").read_text(encoding="utf-8") == "1"
    for file in Path(group.path).iterdir():  # the kernel's are no hindrance to it
        file.unlink()
    group.remove()
    assert not Path(group.path).exists()


def test_what_is_not_enforced_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "group_for_programs", lambda: None)
    assert Bubblewrap().not_enforced() == f"{SUMMED}; {COUNTED}"
    monkeypatch.setattr(kinds, "group_for_programs", lambda: "/sys/fs/cgroup")
    assert Bubblewrap().not_enforced() == COUNTED
    assert Container("docker").not_enforced() is None


def test_a_hard_limit_of_the_machine_below_a_sandboxs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def prlimit(pid: int, kind: int, new: tuple[int, int] | None = None) -> tuple[int, int]:
        if new is not None and kind == resource.RLIMIT_NOFILE:
            raise PermissionError(1, os.strerror(1))
        return 64, 64

    monkeypatch.setattr(resource, "prlimit", prlimit)
    with pytest.raises(OSError, match=r"RLIMIT_NOFILE.* 512.* 64\b.*ulimit"):
        limit_process(os.getpid(), ProgramLimits().model_dump() | {"own_processes": 1})


def test_the_catalog_says_how_files_are_limited_where_bubblewrap_works() -> None:
    if (reason := trouble("bubblewrap")) is not None:
        pytest.skip(f"bubblewrap: {reason}")
    command = [sys.executable, "-m", "flows.catalog", "sandboxes", "--json"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert "files and folders are counted every 50 ms: bubblewrap can't limit inodes" in said
    assert "--inode" not in subprocess.run(["bwrap", "--help"], capture_output=True, text=True).stdout


GREEDY = """
import os, time
for _ in range(7):
    if os.fork() == 0:
        break
held = []
while sum(map(len, held)) < 110 << 20:
    held.append(b"x" * (2 << 20))
    time.sleep(0.1)
time.sleep(60)
"""
"""Eight processes, each within what one may have, that take 160 MB a second and 880 MB together."""


def test_the_hosts_memory_stays_within_the_sum_of_the_limits() -> None:
    """And what can be taken until the judge looks again: two seconds of it here, on a busy machine."""
    if (reason := trouble("bubblewrap")) is not None:
        pytest.skip(f"bubblewrap: {reason}")
    limits = ProgramLimits(seconds=50, memory_mb=128, disk_mb=16, processes=9)
    allowed, judge_itself = limits.memory_mb + limits.disk_mb + kinds.SHARED_MB + 2 * 160, 48
    peaks, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for judge in _judges():
                peaks.append(memory_of(judge, exactly=True) >> 20)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        outcome = run_program(Program(GREEDY, limits, script=True), Bubblewrap())
    finally:
        ended.set()
        watching.join()
    assert outcome.verdict == "memory", outcome
    assert max(peaks) > limits.memory_mb / 2, "nothing was seen of it"
    assert max(peaks) <= allowed + judge_itself


def _judges() -> list[int]:
    """The judges' processes that this process has started."""
    found = []
    for thread in Path("/proc/self/task").iterdir():
        for child in thread.joinpath("children").read_text().split():
            with suppress(OSError):
                if JUDGE.name in Path(f"/proc/{child}/cmdline").read_text():
                    found.append(int(child))
    return found
