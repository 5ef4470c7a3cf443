"""The interpreter that has inspect_ai, and a process of it for each thing that is asked of it."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError, NightjarError
from tasks.store.home import private_folder

VARIABLE: Final = "NIGHTJAR_INSPECT_PYTHON"
SIDE: Final = Path(__file__).with_name("inspect_side.py")
LOOK_SECONDS: Final = 0.1
SHOWN: Final = 2_000


class InspectFailed(NightjarError):
    """A process of Inspect ended without what was asked of it."""


def interpreter() -> str:
    """The Python that has inspect_ai; raises ConfigError with the command where there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise ConfigError(f"{VARIABLE}={named}: expected the Python of an environment with inspect_ai")
        return named
    if importlib.util.find_spec("inspect_ai") is None:
        raise ConfigError(
            "inspect: inspect_ai is not installed; run pip install 'nightjar[inspect]', or set "
            f"{VARIABLE} to the Python of an environment that has it"
        )
    return sys.executable


def call_inspect(
    action: str,
    request: Mapping[str, Any],
    place: Path,
    cwd: Path,
    secrets: Mapping[str, str] | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """What a process of Inspect replies, run in ``cwd``; its output goes into a file of the folder ``place``.

    ``check`` is called now and then, and ends the process by what it raises. Raises InspectFailed.
    """
    private_folder(place)
    asked, reply, output = (place / f"{action}.{end}" for end in ("request.json", "reply.json", "log"))
    asked.write_text(json.dumps(request), encoding="utf-8")
    reply.unlink(missing_ok=True)
    # The server of Prefect is none of a task's business.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with output.open("wb") as said:
        process = subprocess.Popen(
            [interpreter(), str(SIDE), action, str(asked), str(reply)],
            stdin=subprocess.PIPE, stdout=said, stderr=said, cwd=cwd, start_new_session=True,
            env={**environment, **(secrets or {})},
        )  # fmt: skip
        try:
            while process.poll() is None:
                check()
                time.sleep(LOOK_SECONDS)
        finally:
            _end(process)
    return _read(action, reply, output, process.returncode)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process with all that it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _read(action: str, reply: Path, output: Path, code: int) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(reply.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        tail = output.read_text(encoding="utf-8", errors="replace")[-SHOWN:].strip()
        last = tail.splitlines()[-1] if tail else "it said nothing"
        raise InspectFailed(f"Inspect ended with code {code} ({action}): {last}; see {output}") from None
    if "No module named 'inspect_ai" in said.get("error", ""):
        raise ConfigError(
            f"inspect: {interpreter()} has no inspect_ai; run {interpreter()} -m pip install inspect-ai"
        )
    if "error" in said:
        raise InspectFailed(f"Inspect: {said['error']}")
    found: dict[str, Any] = said["ok"]
    return found
