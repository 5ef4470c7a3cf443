"""Programs in a sandbox: those that mean harm, those that mean to deceive, and those that are right."""

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from scorers.config import Program, ProgramLimits
from tasks.sandboxes.interpreters import SandboxError, interpreter_at
from tasks.sandboxes.judge import BEGUN
from tasks.sandboxes.judges import end_free_judges
from tasks.sandboxes.kinds import Container, Invocation
from tasks.sandboxes.run import chosen_sandbox, install_command, run_program, trouble
from tests.tasks.sandboxes.conftest import Place, at_once

HOSTILE = yaml.safe_load(Path(__file__).with_name("hostile.yaml").read_text(encoding="utf-8"))
LIMITS = ProgramLimits(seconds=2, memory_mb=192, processes=16, output_kb=64, disk_mb=16)
PATIENT = ProgramLimits(seconds=60, memory_mb=512)

pytestmark = pytest.mark.usefixtures("readable")


def left_over(patience: float = 30) -> set[int]:
    """Processes that programs left: those of users that no account has, of which other tests may be running
    some just now, which end by themselves."""
    deadline, found = time.monotonic() + patience, _of_programs()
    while found and time.monotonic() < deadline:
        time.sleep(0.1)
        found &= _of_programs()
    return found


def _of_programs() -> set[int]:
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            found |= {int(name)} if os.stat(f"/proc/{name}").st_uid >= 1 << 30 else set()
        except OSError:
            continue
    return found


@pytest.mark.services
def test_hostile_programs_never_pass_and_are_never_unscored(place: Place) -> None:
    """Each ends with a verdict that is right for it, and with the reason, and leaves nothing."""
    assert len({entry["name"] for entry in HOSTILE}) == len(HOSTILE) >= 100
    before = set(os.listdir("/tmp"))

    def wrong(entry: Any) -> str | None:
        endless = "timeout" in entry["verdicts"]
        limits = LIMITS if endless else LIMITS.model_copy(update={"seconds": 60})
        outcome = run_program(Program(entry["program"], limits, interpreter=place.interpreter), place.sandbox)
        assert outcome.sandbox == place.sandbox.name
        assert len(outcome.stdout) + len(outcome.stderr) < 2 * (64 << 10)
        limit = {"timeout": "limits.seconds", "output": "limits.output_kb"}.get(outcome.verdict, "")
        reason = entry.get("reason", limit)
        right = outcome.verdict in entry["verdicts"] and reason in outcome.stderr
        return None if right else f"{entry['name']}: {outcome}"

    assert at_once(wrong, HOSTILE) == []
    assert left_over() == set()
    assert not {name for name in set(os.listdir("/tmp")) - before if name in ("link", "up", "large", "1")}
    after = run_program(Program("assert 1 + 1 == 2", PATIENT, interpreter=place.interpreter), place.sandbox)
    assert after.verdict == "passed", after


def test_what_a_program_sees(place: Place) -> None:
    text = """
import os, sys, json
assert os.getcwd() == "/tmp" and os.listdir("/tmp") == ["program.py"]
assert set(os.environ) == {"PATH", "HOME", "TMPDIR", "LANG", "OMP_NUM_THREADS", "PWD"}, os.environ
assert os.getuid() != 0 and os.getgid() != 0
assert __name__ == "__main__" and sys.argv == ["program.py"]
assert sys.stdin.read() == ""
open("note.txt", "w").write("ä")
assert open("/tmp/note.txt").read() == "ä"
import decimal, re, collections, itertools, heapq, bisect, math, random, datetime, unittest, typing
import multiprocessing.pool, threading, subprocess, asyncio
with multiprocessing.pool.ThreadPool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
assert asyncio.run(asyncio.sleep(0, "slept")) == "slept"
assert subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True).stdout in (b"1\\n", b"")
from dataclasses import dataclass
@dataclass
class Point:
    x: int
import pickle
assert pickle.loads(pickle.dumps(Point(1))) == Point(1)
"""
    outcome = run_program(Program(text, PATIENT, interpreter=place.interpreter), place.sandbox)
    assert outcome.verdict == "passed", outcome


LEAVES_A_SOCKET = """
import os, socket, time
listening = socket.socket(socket.AF_UNIX)
listening.bind("\\0left")
listening.listen()
if os.fork() == 0:
    time.sleep(60)
"""
FINDS_NONE = """
import os, socket
assert os.readlink("/proc/self/ns/net") != {host!r}
assert [line.split(":")[0].strip() for line in open("/proc/net/dev") if ":" in line] == ["lo"]
assert "@left" not in open("/proc/net/unix").read()
try:
    socket.socket(socket.AF_UNIX).connect("\\0left")
except ConnectionRefusedError:
    pass
else:
    raise SystemExit("somebody listens")
"""


def test_no_network_and_nothing_of_one_program_is_there_for_the_next(place: Place) -> None:
    host = os.readlink("/proc/self/ns/net")
    for text in (LEAVES_A_SOCKET, FINDS_NONE.format(host=host)) * 2:
        outcome = run_program(Program(text, PATIENT, interpreter=place.interpreter), place.sandbox)
        assert outcome.verdict == "passed", outcome


def test_cases_are_fed_and_compared_outside(place: Place) -> None:
    text = "import sys\nfor line in sys.stdin:\n    print(int(line) * 2, end=' \\n')"
    program = Program(
        text, PATIENT, ("1\n2", "3", "x", "4"), ("2\n4\n", "7", "0", "8"), interpreter=place.interpreter
    )
    outcome = run_program(program, place.sandbox)
    assert outcome.cases == ("passed", "failed", "failed", "passed")
    assert (outcome.verdict, outcome.share) == ("failed", 0.5)
    assert outcome.stdout == "6 \n"  # of the case that decided
    text = "print(input()); raise SystemExit"
    exit_is_fine = Program(text, PATIENT, ("a",), ("a",), interpreter=place.interpreter)
    assert run_program(exit_is_fine, place.sandbox).verdict == "passed"


def test_expected_outputs_are_nowhere_near_the_program(place: Place) -> None:
    # Sought in another form, so that what seeks it is not found.
    sought = bytes(byte ^ 1 for byte in b"EXPECTED-TEXT-OF-CASE")
    text = f"""
other = bytes(byte ^ 1 for byte in range(256))
for line in open("/proc/self/maps"):
    if " rw" in line:
        start, stop = (int(part, 16) for part in line.split()[0].split("-"))
        with open("/proc/self/mem", "rb") as memory:
            memory.seek(start)
            try:
                data = memory.read(stop - start)
            except OSError:
                continue
        if {sought!r} in data.translate(other):
            print("found in memory")
print("looked through")
"""
    program = Program(text, PATIENT, ("",), ("EXPECTED-TEXT-OF-CASE",), interpreter=place.interpreter)
    outcome = run_program(program, place.sandbox)
    assert outcome.stdout == "looked through\n", outcome


def test_after_a_case_that_took_too_much_the_others_are_not_run(place: Place) -> None:
    text = "text = input()\nwhile text == 'loop':\n    pass\nprint(text)"
    inputs = ("a", "loop", "b")
    outcome = run_program(Program(text, LIMITS, inputs, inputs, interpreter=place.interpreter), place.sandbox)
    assert outcome.cases == ("passed", "timeout", "timeout")
    assert (outcome.verdict, outcome.share) == ("timeout", pytest.approx(1 / 3))


def test_time_is_that_of_all_processes(place: Place) -> None:
    """A child works until it has used half a second, however fast the machine is."""
    text = """
import os, resource
if os.fork() == 0:
    while sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) < 0.5:
        pass
    os._exit(0)
os.wait()
"""
    outcome = run_program(Program(text, PATIENT, interpreter=place.interpreter), place.sandbox)
    assert outcome.verdict == "passed", outcome
    assert outcome.cpu_seconds >= 0.5


class Scripted:
    """A sandbox whose command is a shell's."""

    name = "scripted"

    def __init__(self, script: str, status: bool = True) -> None:
        self._command = ["sh", "-c", script, "sh", *(["@status", "@block"] if status else [])]

    def missing(self) -> str | None:
        return None

    def not_enforced(self) -> str | None:
        return None

    def start(self, interpreter: Any, limits: Any, text: bytes) -> Invocation:
        return Invocation(self._command)


def test_a_sandbox_that_does_not_start_says_nothing_about_the_program() -> None:
    outcome = run_program(Program("assert True", LIMITS), Scripted("echo no such namespace >&2; exit 7"))
    assert outcome.verdict == "sandbox_error"
    assert outcome.error == "sandbox scripted: it ended with exit code 7: no such namespace"


@pytest.mark.parametrize(
    ("script", "ended"),
    [
        ("echo broken >&2; exit 0", "it ended with exit code 0: broken"),
        ("kill -9 $$", "it ended with exit code -9: no word"),
        ("exit 1", "it ended with exit code 1: no word"),
    ],
)
def test_a_program_that_never_began_is_not_judged(script: str, ended: str) -> None:
    """Whatever else happened: bubblewrap says of each whether the program was begun."""
    outcome = run_program(Program("assert True", LIMITS), Scripted(script))
    assert (outcome.verdict, outcome.error) == ("sandbox_error", f"sandbox scripted: {ended}")


def test_what_a_container_engine_fails_at_before_the_program_is_not_judged() -> None:
    assert BEGUN == b"\0begun\n"
    begun = "printf '\\000begun\\n' >&2;"
    for code, first, verdict in ((125, "", "sandbox_error"), (1, "", "sandbox_error"), (1, begun, "failed")):
        script = f"{first} exit {code}"
        assert run_program(Program("assert True", LIMITS), Scripted(script, False)).verdict == verdict


def test_a_program_that_is_larger_than_its_room_is_wrong(place: Place) -> None:
    limits = PATIENT.model_copy(update={"disk_mb": 1})
    text = f"x = '{'x' * (1 << 20)}'"
    outcome = run_program(Program(text, limits, interpreter=place.interpreter), place.sandbox)
    assert (outcome.verdict, outcome.error) == ("failed", None)
    assert "limits.disk_mb" in outcome.stderr


def test_no_process_is_left_and_no_file_is_open_but_the_three(place: Place) -> None:
    text = """
import os
assert sorted(name for name in os.listdir("/proc") if name.isdigit()) == sorted(["1", str(os.getpid())])
held = []
for fd in range(3, 4096):
    try:
        held.append((fd, os.readlink(f"/proc/self/fd/{fd}")))
    except OSError:
        pass
assert not held, held
"""
    outcome = run_program(Program(text, PATIENT, interpreter=place.interpreter), place.sandbox)
    assert outcome.verdict == "passed", outcome


def test_without_a_sandbox_nothing_runs_and_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sandboxes.run.trouble", lambda name: "not on this machine")
    with pytest.raises(SandboxError, match=r"none works here .*Install one: .* bubblewrap$"):
        chosen_sandbox()


@pytest.mark.parametrize(
    ("manager", "command"),
    [("apt-get", "apt-get install bubblewrap"), ("dnf", "dnf install bubblewrap"),
     ("apk", "apk add bubblewrap"), ("", "apt-get install bubblewrap")],
)  # fmt: skip
def test_the_command_that_installs_a_sandbox_is_this_machines(
    monkeypatch: pytest.MonkeyPatch, manager: str, command: str
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}" if name == manager else None)
    assert install_command() == command


def test_an_engine_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    trouble.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    assert trouble("bubblewrap") == "bwrap is not on the PATH"
    assert trouble("docker") == "docker is not on the PATH"
    trouble.cache_clear()


# Its path may have a blank, which no first line can hold: the shell reads the second, to Python it is a text.
ENGINE = """#!/bin/sh
"exec" "{python}" "$0" "$@"
import json, os, sys
with open({log!r}, "a") as log:
    log.write(json.dumps(sys.argv[1:]) + "\\n")
if sys.argv[1] == "run":
    inside = sys.argv[sys.argv.index("--entrypoint") + 3:]
    command = {command!r} + [{image!r}, *inside]
    os.execvp(command[0], command)
"""


def test_a_container_engine_is_told_to_isolate_and_its_verdicts_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that runs what it is told in bubblewrap, where there is no real one."""
    if os.getuid() or (reason := trouble("bubblewrap")) is not None:
        pytest.skip("the stand-in is bubblewrap, as root" if os.getuid() else f"bubblewrap: {reason}")
    # The image's Python is another one than ours, where this machine has another.
    image = interpreter_at(shutil.which("python3", path="/usr/bin:/usr/local/bin") or "").base
    command = ["bwrap", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    command += ["--unshare-pid", "--die-with-parent", "--chdir", "/tmp", "--"]
    engine, log = tmp_path / "docker", tmp_path / "asked"
    engine.write_text(
        ENGINE.format(python=sys.executable, log=str(log), command=command, image=image), encoding="utf-8"
    )
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    end_free_judges()
    docker = Container("docker")
    assert docker.missing() is None
    programs = {
        "assert 1 + 1 == 2": "passed",
        "import fractions, decimal, csv": "passed",
        "import sys; assert sys.stdin.read() == ''": "passed",
        "raise SystemExit": "failed",
        "while True: pass": "timeout",
        "held = bytearray(1 << 30)": "memory",
        "while True: print('x' * 1000)": "output",
    }
    limits = ProgramLimits(seconds=3, memory_mb=300, processes=7, disk_mb=21)
    for text, verdict in programs.items():
        outcome = run_program(Program(text, limits), docker)
        assert (outcome.verdict, outcome.sandbox) == (verdict, "docker"), outcome
    doubled = Program("print(2 * int(input()))", limits, ("2", "3"), ("4", "6"))
    assert run_program(doubled, docker).cases == ("passed", "passed")
    asked = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    started = [told for told in asked if told[0] == "run"][-1]
    said = " ".join(started)
    for option in (
        "--network none", "--read-only", "--cap-drop ALL", "--security-opt no-new-privileges", "--rm",
        "--init", "--memory 337m", "--pids-limit 8", "mode=1777,nr_inodes=5376,size=21m",
        "--entrypoint python3",
    ):  # fmt: skip
        assert option in said, option
    assert "--volume" not in started, "nothing of this machine is inside"
    named = {told[told.index("--name") + 1] for told in asked if told[0] == "run"}
    stopped = [told[-1] for told in asked if told[:2] == ["rm", "--force"]]
    assert len(stopped) == 2, "what took too much time or room"
    assert set(stopped) <= named
    end_free_judges()
