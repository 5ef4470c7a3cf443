"""The project's own Prefect server as a process: started, found again, ended.

There is one for each home (``NIGHTJAR_HOME``), and never a second beside it: two would write to one SQLite.
Whatever runs is ended before another is started, one that never came up included.
"""

import fcntl
import json
import os
import secrets
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

from flows.server.boundary import HOST, credential, known_credential, proof, server_folder
from metrics.errors import NightjarError
from tasks.store.home import PROJECT, home

PREFERRED_PORT = 4210
START_SECONDS = 600.0
"""How long a server may take to come up: seconds on an idle machine, minutes on a loaded one."""
SECONDS_TO_SAY_SO = 20.0
SECONDS_TO_END = 10.0
_RECORD = "server.json"
_PORT = "port"


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


def start() -> Server:
    """The project's own server, started if it is not there; one start at a time.

    A server that does not ask for the credential, as those of earlier versions did not, or that is of
    another Prefect, is replaced. Raises ServerError with the log's place when it does not start.
    """
    running = status()
    if running is not None:
        return running
    folder = server_folder()
    with _exclusive(folder / "lock"):
        running = status()
        if running is not None:
            return running
        stop()
        port = _free_port(folder)
        try:
            return _launch(folder, port)
        except ServerError:
            if _bound(port):
                raise
        # Another home's server, which started at the same time, took the port before this one could.
        return _launch(folder, _free_port(folder))


def status() -> Server | None:
    """The project's own server if it answers, knows the credential and is of the Prefect version installed
    here."""
    recorded = _recorded()
    # The process must live, too: somebody else's server may have taken the port since.
    if recorded is None or recorded.prefect != version("prefect") or not _is_own(recorded.pid):
        return None
    return recorded if knows_credential(recorded.port) else None


def stop() -> bool:
    """Ends the project's own server, and any other on its database; whether there was one."""
    recorded = _recorded()
    found = {recorded.pid} if recorded is not None and _is_own(recorded.pid) else set()
    found |= set(_running_here())
    if recorded is not None:
        with open(home() / "server" / _PORT, "w", opener=_private) as file:
            file.write(str(recorded.port))
    (home() / "server" / _RECORD).unlink(missing_ok=True)
    for pid in sorted(found):
        _end(pid)
    return bool(found)


def start_again() -> bool:
    """Starts the own server anew where its process died under those that use it; whether it did.

    One that was stopped by hand has no record any more, and stays stopped. Raises ServerError.
    """
    recorded = _recorded()
    if recorded is None or _is_own(recorded.pid):
        return False
    start()
    return True


def _launch(folder: Path, port: int) -> Server:
    log = folder / "server.log"
    credential()
    with open(log, "ab", opener=_private) as output:
        # A session of its own and no pipes of ours: Ctrl-C ends the run and not the server, and whoever
        # captures the run's output does not wait for it. The working folder is the project's: its
        # pyproject.toml tunes the server.
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.server.app"],
            env=_environment(folder, port), cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True,
        )  # fmt: skip
    server = Server(pid=process.pid, port=port, prefect=version("prefect"))
    try:
        # Before it answers: what is recorded can be ended by ``stop``, whatever becomes of this process.
        with open(folder / _RECORD, "w", opener=_private) as file:
            json.dump(asdict(server), file)
        _wait_until_it_answers(server, process, log)
    except BaseException:
        _end(process.pid)
        (folder / _RECORD).unlink(missing_ok=True)
        raise
    return server


def _wait_until_it_answers(server: Server, process: "subprocess.Popen[bytes]", log: Path) -> None:
    begun = time.monotonic()
    said = False
    while not knows_credential(server.port):
        took = time.monotonic() - begun
        if process.poll() is not None:
            raise ServerError(f"the Prefect server ended before it answered; its log is {log}")
        if took > START_SECONDS:
            raise ServerError(f"the Prefect server did not answer within {took:.0f} s; its log is {log}")
        if took > SECONDS_TO_SAY_SO and not said:
            print(f"waiting for the Prefect server to start; its log is {log}", file=sys.stderr)
            said = True
        time.sleep(0.1)


def _environment(folder: Path, port: int) -> dict[str, str]:
    """Of the server's process: what it is told, and nothing of what a client would be."""
    client_only = ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_API_KEY", "PREFECT_PROFILE")
    inherited = {name: value for name, value in os.environ.items() if name not in client_only}
    return inherited | {
        "NIGHTJAR_HOME": str(home()),
        "PREFECT_HOME": str(folder),
        "PREFECT_SERVER_API_PORT": str(port),
    }


def _recorded() -> Server | None:
    try:
        return Server(**json.loads((home() / "server" / _RECORD).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def knows_credential(port: int) -> bool:
    """Whether a server answers at this port of loopback that has the credential. Nothing of it is sent to
    find out."""
    secret, nonce = known_credential(), secrets.token_hex(16)
    address = f"http://{HOST}:{port}/nightjar/proof?nonce={nonce}"
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            said = json.load(answer)["proof"]
    except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError):
        return False
    if secret is None or not isinstance(said, str):
        return False
    return secrets.compare_digest(said.encode(), proof(secret, port, nonce).encode())


def _is_own(pid: int) -> bool:
    """Whether the process is a Prefect server on this home's database: a process id is used again after a
    restart of the machine."""
    if not Path("/proc").is_dir():
        return _answers_signal(pid)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    if b"flows.server.app" not in command and not {b"prefect", b"server", b"start"} <= set(command):
        return False
    return f"PREFECT_HOME={home() / 'server'}".encode() in environment


def _running_here() -> list[int]:
    """Servers on this home's database, recorded or not; none where the system does not list processes."""
    folder = Path("/proc")
    pids = [int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()] if folder.is_dir() else []
    return [pid for pid in pids if _is_own(pid)]


def _end(pid: int) -> None:
    """Ends a server with all that it started: asked first, then not."""
    for number, patience in ((signal.SIGTERM, SECONDS_TO_END), (signal.SIGKILL, SECONDS_TO_END)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number) if os.getpgid(pid) == pid else os.kill(pid, number)
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if not _is_own(pid):
                return
            time.sleep(0.1)


def _answers_signal(pid: int) -> bool:
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _free_port(folder: Path) -> int:
    """The port that this home's server had before, stopped by hand or not, so that workers, whoever holds a
    lease and links of before find the next one there; else another."""
    before: list[int] = []
    with suppress(OSError, ValueError):
        before.append(int((folder / _PORT).read_text()))
    for port in (*before, PREFERRED_PORT, 0):
        if found := _bound(port):
            return found
    raise ServerError("no free port on loopback")


def _bound(port: int) -> int | None:
    """The port that can be listened at (0: any); None where somebody else has it, or there is none such."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            return None
        return int(probe.getsockname()[1])


@contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    with open(lock, "w", opener=_private) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
