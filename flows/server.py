"""Which Prefect server a local run talks to: the one PREFECT_API_URL names, else one of the project's own.

``use_server`` decides and starts it, ``serving`` is a block that talks to it. The own server listens on
loopback and keeps running after the run, so that the next one starts in seconds and there is something to
look at. ``python -m flows.server start|stop|status`` (``make ui``, ``make stop``) work on the same one.
"""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from metrics.errors import NightjarError
from tasks.store.home import PROJECT, home

PREFERRED_PORT = 4210
START_SECONDS = 120
HOST = "127.0.0.1"


class ServerError(NightjarError):
    """The Prefect server could not be started or reached."""


@dataclass(frozen=True)
class Server:
    """A Prefect server that answers at ``url`` (its API is at ``url``/api)."""

    pid: int
    port: int
    prefect: str

    @property
    def url(self) -> str:
        """Address of the UI."""
        return f"http://{HOST}:{self.port}"

    @property
    def api(self) -> str:
        """Value for PREFECT_API_URL."""
        return f"{self.url}/api"


def use_server() -> str:
    """Makes this process, and those it starts, talk to a running server; returns the address of its UI.

    Must be called before Prefect is imported. Raises ServerError with the log's place when the server does
    not start.
    """
    os.environ.setdefault("DO_NOT_TRACK", "1")
    configured = os.environ.get("PREFECT_API_URL") or _profile_url()
    if configured:
        return configured.removesuffix("/").removesuffix("/api")
    server = start()
    os.environ["PREFECT_API_URL"] = server.api
    return server.url


@contextmanager
def serving() -> Iterator[str]:
    """A block that talks to the server of ``use_server``; gives the address of its UI.

    Raises ServerError where the server that the user's settings name does not answer.
    """
    from prefect.settings import PREFECT_API_URL, temporary_settings

    named = os.environ.get("PREFECT_API_URL") or PREFECT_API_URL.value()
    ui = use_server()
    api = os.environ.get("PREFECT_API_URL", f"{ui}/api")
    with temporary_settings({PREFECT_API_URL: api}):
        if named:
            _check_answers(api)
        yield ui


def start() -> Server:
    """The project's own server, started if it is not there; one start at a time."""
    running = status()
    if running is not None:
        return running
    folder = home() / "server"
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder / "lock"):
        running = status()
        if running is not None:
            return running
        stop()
        return _launch(folder)


def status() -> Server | None:
    """The project's own server if it answers and is of the Prefect version installed here."""
    try:
        recorded = Server(**json.loads((home() / "server" / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    # The process must live, too: another home's server may have taken the port since.
    ours = recorded.prefect == version("prefect") and _is_server(recorded.pid)
    return recorded if ours and _healthy(recorded) else None


def stop() -> bool:
    """Ends the project's own server; whether there was one to end."""
    record = home() / "server" / "server.json"
    try:
        pid = int(json.loads(record.read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return False
    record.unlink(missing_ok=True)
    if not _is_server(pid):
        return False
    os.killpg(pid, signal.SIGTERM)
    for _ in range(100):
        if not _is_server(pid):
            return True
        time.sleep(0.1)
    os.killpg(pid, signal.SIGKILL)
    return True


def main() -> None:
    """``python -m flows.server start|stop|status``."""
    command = sys.argv[1] if len(sys.argv) == 2 else ""
    if command == "start":
        server = start()
        print(f"Prefect UI at {server.url} (PREFECT_API_URL={server.api}; make stop ends it)")
    elif command == "stop":
        print("stopped" if stop() else "no server of this project was running")
    elif command == "status":
        running = status()
        print(f"running at {running.url}" if running else "not running")
    else:
        print("usage: python -m flows.server start|stop|status", file=sys.stderr)
        raise SystemExit(2)


def _launch(folder: Path) -> Server:
    port = _free_port()
    log = folder / "server.log"
    environment = os.environ | {
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_API_HOST": HOST,
        # The port as a setting and not as --port: the UI asks the API at the address the settings hold.
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_UI_URL": f"http://{HOST}:{port}",  # links in notifications
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    environment.pop("PREFECT_API_URL", None)
    with log.open("ab") as output:
        # A session of its own and no pipes of ours: Ctrl-C ends the run and not the server, and whoever
        # captures the run's output does not wait for it. The working folder is the project's: its
        # pyproject.toml tunes the server.
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", "server", "start", "--host", HOST],
            env=environment, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    server = Server(pid=process.pid, port=port, prefect=version("prefect"))
    deadline = time.monotonic() + START_SECONDS
    while not _healthy(server):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ServerError(f"the Prefect server did not start; its log is {log}")
        time.sleep(0.1)
    (folder / "server.json").write_text(json.dumps(asdict(server)))
    return server


def _healthy(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"{server.api}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _is_server(pid: int) -> bool:
    """Whether the process is a Prefect server of ours: a process id is used again after a restart of the
    machine."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return _answers_signal(pid) if not Path("/proc").is_dir() else False
    return b"prefect" in command and b"server" in command


def _answers_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _free_port() -> int:
    for port in (PREFERRED_PORT, 0):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ServerError("no free port on loopback")


def _profile_url() -> str | None:
    """The API address of the active Prefect profile, if the user has one."""
    profiles = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect") / "profiles.toml"
    if not profiles.is_file():
        return None
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value() or None


@contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_answers(api: str) -> None:
    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.api_version()
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ServerError(
            f"no Prefect server can be used at {api} ({reason}); start it, or unset PREFECT_API_URL and the "
            "project's own is used"
        ) from error


if __name__ == "__main__":
    main()
