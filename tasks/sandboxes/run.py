"""Runs one program in a sandbox and reads what came of it; chooses the sandbox.

What the sandbox itself could not do is a ``sandbox_error`` and says nothing about the program.
"""

import json
import os
import signal
import subprocess
from contextlib import suppress
from functools import cache
from typing import Any, Final

from scorers.programs import Program, ProgramLimits, ProgramOutcome, ProgramRun, Verdict, outcome_of
from tasks.sandboxes.kinds import SANDBOXES, Sandbox, SandboxError, interpreter_at

PATIENCE: Final = 30.0
"""Seconds beyond a program's own that a sandbox may take to start, end and answer."""
SHOWN: Final = 2_000
_VERDICTS: Final[dict[str, Verdict]] = {
    "done": "passed",
    "failed": "failed",
    "timeout": "timeout",
    "memory": "memory",
    "output": "output",
}
TRIAL: Final = Program("import os\nassert os.getpid() > 1", ProgramLimits(seconds=30))


def run_program(program: Program, sandbox: Sandbox) -> ProgramOutcome:
    """Runs the program; what went wrong with the sandbox is in the outcome, never raised."""
    interpreter = interpreter_at(program.interpreter)
    invocation = sandbox.start(interpreter, program.limits)
    job = {
        "program": program.text,
        "inputs": program.inputs,
        "limits": program.limits.model_dump(),
        "path": list(interpreter.path),
        "uid": invocation.uid,
        "landlock": invocation.landlock,
    }
    runs = len(program.inputs) if program.inputs is not None else 1
    try:
        process = subprocess.Popen(
            invocation.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd="/", env={"PATH": os.environ.get("PATH", os.defpath)}, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return _no_answer(sandbox, f"it could not be started: {error}")
    try:
        out, err = process.communicate(json.dumps(job).encode(), runs * program.limits.seconds + PATIENCE)
    except subprocess.TimeoutExpired:
        _end(process)
        return _no_answer(sandbox, "it did not answer in time")
    except BaseException:
        _end(process)
        raise
    return _read(program, sandbox, process.returncode, out, err)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _read(program: Program, sandbox: Sandbox, code: int, out: bytes, err: bytes) -> ProgramOutcome:
    try:
        runs = tuple(_run(entry) for entry in json.loads(out)["runs"])
    except (ValueError, KeyError, TypeError):
        said = err.decode("utf-8", "replace").strip()[-SHOWN:]
        return _no_answer(sandbox, f"it ended with exit code {code}: {said or 'no word'}")
    broken = next((run for run in runs if run.verdict == "sandbox_error"), None)
    if broken is not None:
        return _no_answer(sandbox, broken.stderr[-SHOWN:] or "the program never began")
    return outcome_of(program, runs, sandbox.name)


def _run(entry: dict[str, Any]) -> ProgramRun:
    # What never began was not the program's doing, unless a limit was: nothing of it ran.
    begun = entry["begun"] or entry["ended"] in ("memory", "timeout")
    return ProgramRun(
        verdict=_VERDICTS[entry["ended"]] if begun else "sandbox_error",
        exit_code=entry["exit_code"],
        signal=entry["signal"],
        cpu_seconds=entry["cpu_seconds"],
        wall_seconds=entry["wall_seconds"],
        stdout=entry["stdout"],
        stderr=entry["stderr"],
    )


def _no_answer(sandbox: Sandbox, reason: str) -> ProgramOutcome:
    return ProgramOutcome("sandbox_error", sandbox=sandbox.name, error=f"sandbox {sandbox.name}: {reason}")


@cache
def trouble(name: str) -> str | None:
    """Why the sandbox of that name does not work here; None: it does, a program was run in it. Tried once a
    process."""
    sandbox = next(entry for entry in SANDBOXES if entry.name == name)
    missing = sandbox.missing()
    if missing is not None:
        return missing
    outcome = run_program(TRIAL, sandbox)
    if outcome.error is not None:
        return outcome.error
    if outcome.verdict == "passed":
        return None
    return f"a trial ended {outcome.verdict}: {outcome.stderr[-SHOWN:]}"


def chosen_sandbox(name: str | None = None) -> Sandbox:
    """The strongest sandbox that works here, or the one of that name.

    Raises SandboxError that says of each why not, and what to install: programs are never run without one.
    """
    wanted = [sandbox for sandbox in SANDBOXES if name in (None, sandbox.name)]
    if not wanted:
        known = ", ".join(sandbox.name for sandbox in SANDBOXES)
        raise SandboxError(f"sandbox {name!r} is not known (known: {known})")
    for sandbox in wanted:
        if trouble(sandbox.name) is None:
            return sandbox
    reasons = "; ".join(f"{sandbox.name}: {trouble(sandbox.name)}" for sandbox in wanted)
    raise SandboxError(
        f"programs are run in a sandbox only, and none works here ({reasons}). Install one: "
        "apt-get install bubblewrap"
    )
