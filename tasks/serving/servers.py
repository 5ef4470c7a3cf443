"""Starts a server and ends it, in whatever process that happens, and ends what runs left that were killed.

Each server has a folder in the home; all that is known of it is there, so that the process that ends it need
not be the one that started it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from metrics.errors import NightjarError
from tasks.serving import records
from tasks.serving.launch import Launch, check_launch, order_for
from tasks.serving.records import Order, State, end_marked, lives, marked, signal_group
from tasks.serving.supervisor import STOP_SECONDS, end_container
from tasks.store.home import PROJECT, home, private_folder
from tasks.store.machine import process_space

PATIENCE = 0.1
"""Seconds between two looks at a server's state."""
GONE_SECONDS = 10.0
"""How long a supervisor may take beyond its server's own end."""


_children: "dict[str, subprocess.Popen[bytes]]" = {}
"""Supervisors that this process started, by the ids of their servers."""


class ServerFailed(NightjarError):
    """A model's server could not be had; ``folder`` is where its log is."""

    def __init__(self, message: str, folder: Path | None = None) -> None:
        super().__init__(message)
        self.folder = folder


@dataclass(frozen=True)
class RunningServer:
    """A server that is ready: its address, its folder, and the places that it holds."""

    model: str
    base_url: str
    folder: str
    held: tuple[str, ...] = ()


def start_server(
    launch: Launch,
    owner: int | None = None,
    still_wanted: Callable[[], None] = lambda: None,
    run: str = "",
    admit: Callable[[Path], None] = lambda _folder: None,
) -> RunningServer:
    """Starts the server and returns once it is ready; waits for a free place as long as that takes.

    It ends with the process ``owner`` (this one). ``still_wanted`` is called all the while; what it raises
    ends the server. ``admit`` is called before it may start, with its folder, which is there as long as the
    server counts. Raises ConfigError for what can't work here, ServerFailed with the log's last lines.
    """
    check_launch(launch)
    order = order_for(launch, os.getpid() if owner is None else owner, run)
    folder = private_folder(servers_folder() / order.id)
    try:
        records.write(folder / records.ORDER, order)
        admit(folder)
        supervisor = _children[order.id] = _supervise(folder)
        while (state := records.read_state(folder)) is None or state.phase not in (
            records.READY,
            *records.OVER,
        ):
            still_wanted()
            if supervisor.poll() is not None and (state := records.read_state(folder)) is None:
                raise _failed(launch.model, folder, "its supervisor did not start")
            if supervisor.poll() is not None and state is not None and state.phase not in records.OVER:
                raise _failed(launch.model, folder, "its supervisor was ended")
            time.sleep(PATIENCE)
        if state.phase != records.READY:
            raise _failed(launch.model, folder, state.reason or "it was ended")
    except BaseException:
        stop_server(folder)
        raise
    return RunningServer(launch.model, f"http://{order.host}:{state.port}/v1", str(folder), state.held)


def _supervise(folder: Path) -> "subprocess.Popen[bytes]":
    """Starts the supervisor: a session of its own, so that no signal of a terminal reaches it first."""
    return subprocess.Popen(
        [sys.executable, "-m", "tasks.serving.supervisor", str(folder)], cwd=PROJECT,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True, env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )  # fmt: skip


def stop_server(folder: Path) -> None:
    """Ends a server and everything it started, and returns when that is done; its log stays.

    Whatever hangs is killed after ``STOP_SECONDS`` and ``GONE_SECONDS``: this returns in any case.
    """
    order = records.read_order(folder)
    records.withdraw(folder)
    if not _is_gone_within(folder, STOP_SECONDS + GONE_SECONDS):
        for pid in _supervisors(folder):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _is_gone_within(folder, GONE_SECONDS)
    if order is not None:  # else another thread has ended it and removed its folder
        _end_what_is_left(order, records.read_state(folder))


def _is_gone_within(folder: Path, seconds: float) -> bool:
    """Whether the server's supervisor ends within that time."""
    until = time.monotonic() + seconds
    while _supervisors(folder):
        if time.monotonic() > until:
            return False
        time.sleep(PATIENCE / 2)
    return True


def _supervisors(folder: Path) -> set[int]:
    """The process of a server's supervisor while it lives: the one that its state names, and the child that
    has not written a state yet. One that is neither finds its order withdrawn before it starts a server."""
    child, state = _children.get(folder.name), records.read_state(folder)
    found = set()
    if child is not None:
        if child.poll() is None:
            found.add(child.pid)
        else:
            _children.pop(folder.name, None)
    if state is not None and lives(state.supervisor, state.supervisor_started):
        found.add(state.supervisor)
    return found


def _end_what_is_left(order: Order, state: State | None) -> None:
    left = marked(order.id)
    if state is not None and state.group in left:
        signal_group(state.group, signal.SIGKILL)
    if left:
        end_marked(order.id)
    if left or (state is not None and state.phase not in records.OVER):
        end_container(order)


def failure_of(folder: Path) -> str | None:
    """Why a server is not there any more, with its log's last lines; None while it is ready or on its way."""
    state = records.read_state(folder)
    if state is None or state.phase == records.ENDED:
        return "its server was ended"
    if state.phase == records.FAILED:
        return _with_log(state.reason, folder)
    if not lives(state.supervisor, state.supervisor_started):
        return _with_log("its supervisor was killed", folder)
    return None


def is_ready(folder: Path) -> bool:
    """Whether a server answers, as far as its supervisor knows."""
    state = records.read_state(folder)
    return state is not None and state.phase == records.READY


def version_of_state(folder: Path) -> tuple[int, int] | None:
    """What tells a server's state from one that was written before or after it; None where there is none."""
    try:
        found = (folder / records.STATE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def end_leftovers() -> list[str]:
    """Ends the servers whose run was here and is gone, and removes what they left; names of their folders."""
    ended = []
    for folder in _folders():
        order = records.read_order(folder)
        if order is None:
            if time.time() - folder.stat().st_mtime > 60:  # one that is just being made has no order yet
                shutil.rmtree(folder, ignore_errors=True)
            continue
        # The home is one machine's, but containers may share it, which see no processes of each other.
        if order.space != process_space():
            continue
        if lives(order.owner, order.owner_started):
            continue
        stop_server(folder)
        shutil.rmtree(folder, ignore_errors=True)
        ended.append(folder.name)
    return ended


def end_servers(run: str) -> None:
    """Ends the servers of a run that it did not end itself, those on their way too."""
    for folder in _folders():
        order = records.read_order(folder)
        if order is not None and order.run == run:
            stop_server(folder)
            forget_server(folder)


def forget_server(folder: Path) -> None:
    """Removes what is kept of a server that has ended."""
    shutil.rmtree(folder, ignore_errors=True)


def servers_folder() -> Path:
    """Where the servers of this home have their folders."""
    return home() / "servers"


def _folders() -> Iterator[Path]:
    if servers_folder().is_dir():
        yield from sorted(folder for folder in servers_folder().iterdir() if folder.is_dir())


def _failed(model: str, folder: Path, reason: str) -> ServerFailed:
    return ServerFailed(f"model '{model}': its server is not available: {_with_log(reason, folder)}", folder)


def _with_log(reason: str, folder: Path) -> str:
    lines = records.last_lines(folder)
    return (
        f"{reason}. The end of its log:\n  " + "\n  ".join(lines) if lines else f"{reason}; it said nothing"
    )
