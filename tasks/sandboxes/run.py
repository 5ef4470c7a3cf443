"""Runs a program in a sandbox and reads what came of it; chooses the sandbox, and says which work here.

A program is judged from outside, by what any other process could see of it: its exit status, what it
printed, and for a program that tests itself that its last line was reached. A line added below the program
prints a word that was made up for this run. What the sandbox itself could not do is a ``sandbox_error`` and
says nothing about the program: only where nothing of the program ran.
"""

import base64
import json
import secrets
import shutil
from functools import cache
from typing import Any, Final

from scorers.config import Program, ProgramLimits, ProgramOutcome, ProgramRun, Verdict, outcome_of
from tasks.sandboxes.groups import group_for_programs, refuse_group
from tasks.sandboxes.interpreters import Interpreter, SandboxError, interpreter_at
from tasks.sandboxes.judges import JudgeLostError, judge, ourselves
from tasks.sandboxes.kinds import SANDBOXES, SHARED_MB, Invocation, Sandbox

VERSION: Final = 5
"""Enters the keys of kept outcomes: raise it when the same program may end otherwise."""
SHOWN: Final = 2_000
PATIENCE: Final = 120.0
"""Seconds beyond a program's own that a judge may take for a run: to start, to end and to answer."""
_VERDICTS: Final[dict[str, Verdict]] = {
    "done": "passed",
    "failed": "failed",
    "timeout": "timeout",
    "memory": "memory",
    "output": "output",
}
LAST_LINE: Final = """
while 1:
    import posix as __end__
    try: __end__.write(1, {mark!r}[::-1])
    except: pass
    try: __end__.write(2, {mark!r}[::-1])
    except: pass
    break
"""
"""Stands below a program that tests itself. ``while`` continues no statement that was left open. Written is
to the files, since a program may have put others in place of the streams, or closed one."""
EMPTY_NAMESPACE: Final = "exec(compile({text}, '<string>', 'exec', dont_inherit=True), {{}})\n"
LEAVE: Final = "__end__._exit(0)\n"
"""Threads that a program in an empty namespace leaves running are not waited for: nor does evaluate's
code_eval."""
TRIAL: Final = """
import os
hidden = [folder for folder in {folders!r} if not os.access(folder, os.R_OK | os.X_OK)]
if hidden:
    raise SystemExit(f"the interpreter's folder {{hidden[0]}} can't be read inside")
import ctypes, encodings.idna, hashlib, json, random, socket, subprocess, threading
threading.Thread(target=print).start()
subprocess.run([__import__("sys").executable, "-c", "assert 1 + 1 == 2"], check=True)
"""
TRIAL_LIMITS: Final = ProgramLimits(seconds=60)


def run_program(program: Program, sandbox: Sandbox) -> ProgramOutcome:
    """Runs the program; what went wrong with the sandbox is in the outcome, never raised.

    The first program of an interpreter is preceded by a trial: an interpreter that can't run inside says
    nothing about programs.
    """
    interpreter = interpreter_at(program.interpreter)
    if not program.interpreter or (reason := _trial(sandbox, interpreter)) is None:
        return _run(program, sandbox, interpreter)
    return _no_answer(sandbox, reason)


def _run(program: Program, sandbox: Sandbox, interpreter: Interpreter) -> ProgramOutcome:
    mark = secrets.token_hex(16) if program.inputs is None else ""
    text = program_file(program, mark)
    if len(text) > program.limits.disk_mb << 20:
        said = f"the program is larger than {program.limits.disk_mb} MB (limits.disk_mb)"
        return outcome_of(program, [ProgramRun("failed", stderr=said)], sandbox.name)
    invocation = sandbox.start(interpreter, program.limits, text)
    try:
        with judge(invocation.judge or ourselves()) as judging:
            out = judging.ask(_job(program, invocation, mark), _patience(program))
    except JudgeLostError as error:
        return _no_answer(sandbox, str(error))
    told = json.loads(out)
    if told["error"] is not None:
        return _no_answer(sandbox, told["error"])
    return outcome_of(program, tuple(map(_read, told["runs"])), sandbox.name)


def program_file(program: Program, mark: str = "") -> bytes:
    """The file that Python runs: the program's text, and below it the line that says ``mark``."""
    text = program.text
    if not program.script:
        text = EMPTY_NAMESPACE.format(text=ascii(text))
    if mark:
        text += LAST_LINE.format(mark=mark[::-1].encode())
    if not program.script:
        text += LEAVE if mark else ""
    return text.encode("utf-8", "surrogatepass")


def _job(program: Program, invocation: Invocation, mark: str) -> bytes:
    own = {"own_processes": invocation.own_processes, "shared_mb": SHARED_MB}
    job = {
        "command": list(invocation.command),
        "data": {name: base64.b64encode(value).decode() for name, value in invocation.data.items()},
        "stop": list(invocation.stop),
        "cgroup": invocation.group,
        "inputs": program.inputs,
        "limits": program.limits.model_dump() | own,
        "mark": mark,
    }
    return json.dumps(job).encode()


def _patience(program: Program) -> float:
    runs = len(program.inputs) if program.inputs is not None else 1
    return runs * (program.limits.seconds + PATIENCE)


def _read(entry: dict[str, Any]) -> ProgramRun:
    return ProgramRun(
        verdict=_VERDICTS[entry["ended"]],
        exit_code=entry["exit_code"],
        signal=entry["signal"],
        cpu_seconds=entry["cpu_seconds"],
        wall_seconds=entry["wall_seconds"],
        stdout=entry["stdout"],
        stderr=entry["stderr"],
    )


def _no_answer(sandbox: Sandbox, reason: str) -> ProgramOutcome:
    return ProgramOutcome("sandbox_error", sandbox=sandbox.name, error=f"sandbox {sandbox.name}: {reason}")


_tried: dict[tuple[Sandbox, str], str | None] = {}


def _trial(sandbox: Sandbox, interpreter: Interpreter) -> str | None:
    """Why programs can't run with the interpreter in the sandbox; None: they can. What worked is not tried
    again in this process."""
    key = sandbox, interpreter.about
    if key not in _tried:
        text = TRIAL.format(folders=() if interpreter.bare else interpreter.folders)
        outcome = _run(Program(text, TRIAL_LIMITS), sandbox, interpreter)
        if outcome.verdict != "passed":
            return (outcome.error or outcome.stderr.strip() or f"a trial ended {outcome.verdict}")[-SHOWN:]
        _tried[key] = None
    return _tried[key]


@cache
def trouble(name: str) -> str | None:
    """Why the sandbox of that name does not work here; None: it does, a program was run in it. Tried once a
    process."""
    sandbox = next(entry for entry in SANDBOXES if entry.name == name)
    reason = sandbox.missing() or _trial(sandbox, interpreter_at())
    if reason is not None and (group := group_for_programs()) is not None:
        refuse_group(group)  # the sandbox may work without
        reason = sandbox.missing() or _trial(sandbox, interpreter_at())
    return reason


def chosen_sandbox() -> Sandbox:
    """The strongest sandbox that works here.

    Raises SandboxError that says of each why not, and what to install: programs are never run without one.
    """
    for sandbox in SANDBOXES:
        if trouble(sandbox.name) is None:
            return sandbox
    reasons = "; ".join(f"{sandbox.name}: {trouble(sandbox.name)}" for sandbox in SANDBOXES)
    raise SandboxError(
        f"programs run in a sandbox only, and none works here ({reasons}). Install one: {install_command()}"
    )


INSTALLERS: Final = {
    "apt-get": "apt-get install bubblewrap",
    "dnf": "dnf install bubblewrap",
    "apk": "apk add bubblewrap",
    "pacman": "pacman -S bubblewrap",
    "zypper": "zypper install bubblewrap",
}


def install_command() -> str:
    """What installs bubblewrap here, by the package manager that is there."""
    found = (command for manager, command in INSTALLERS.items() if shutil.which(manager))
    return next(found, INSTALLERS["apt-get"])
