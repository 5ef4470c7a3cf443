"""The Prefect server that a process talks to: address, credential, single calls, the links it shows to
people; and the project's own one as a process: started, found again, ended.

There is one of the project's own for each home (``NIGHTJAR_HOME``), and never a second beside it: two
would write to one SQLite. Whatever runs is ended before another is started, one that never came up
included.

Its credential is set together with its address and never without it: another server that
``PREFECT_API_URL`` names is sent nothing of ours. ``ask`` and ``send`` do without the patience of Prefect's
client, which tries again for a minute: a process that ends, or only wants to look, can't wait for it.
"""

import fcntl
import json
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar
from urllib.parse import urlencode, urlsplit

from flows.server.boundary import HOST, authorization, credential, known_credential, proof, server_folder
from metrics.config import WEB
from metrics.errors import NightjarError
from tasks.reporting.progress import in_notebook
from tasks.store.beside import beating
from tasks.store.home import PROJECT, home, variable, whole_file
from tasks.store.machine import has_variable, processes_with

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.context import SettingsContext

P = ParamSpec("P")
R = TypeVar("R")

PREFERRED_PORT = 4210
START_SECONDS = 600.0
"""How long a server may take to come up: seconds on an idle machine, minutes on a loaded one."""
SLOW_START_NOTICE = 20.0
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
    """Starts the own server again where its process died under those that use it; whether it did.

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
        # A session of its own and no pipes of ours: Ctrl-C ends the run and not the server, and a program
        # that captures the run's output does not wait for it. The working folder is the project's: its
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
        if took > SLOW_START_NOTICE and not said:
            print(f"waiting for the Prefect server to start; its log is {log}", file=sys.stderr)
            said = True
        time.sleep(0.1)


def _environment(folder: Path, port: int) -> dict[str, str]:
    """Of the server's process: what it is told, and nothing of what a client would be. Raises ServerError for
    an address of the UI that is none: no request would pass by it."""
    if (ui := variable("PREFECT_UI_URL")) and not re.match(WEB, ui):
        raise ServerError(f"PREFECT_UI_URL: expected an address such as https://host, got '{ui}'; correct it")
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
    except OSError:
        return False
    if b"flows.server.app" not in command and not {b"prefect", b"server", b"start"} <= set(command):
        return False
    return has_variable(pid, *_on_this_home())


def _running_here() -> list[int]:
    """Servers on this home's database, recorded or not; none where the system does not list processes."""
    return [pid for pid in processes_with(*_on_this_home()) if _is_own(pid)]


def _on_this_home() -> tuple[str, str]:
    """The environment variable by which a server knows its database."""
    return "PREFECT_HOME", str(home() / "server")


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
    """The port that this home's server had before, stopped by hand or not, so that workers, holders of a
    lease and older links find the next one there; else another."""
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


def ask(path: str, body: Any = None, seconds: float = 30.0) -> Any:
    """What the server answers to a POST of ``body``, or to a GET without one; raises OSError."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL

    api = str(PREFECT_API_URL.value()).rstrip("/")
    secret = PREFECT_API_AUTH_STRING.value()
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": authorization(secret)} if secret else {}
    )
    if body is not None:
        headers |= _csrf_headers(api, headers, seconds)
    return _call(f"{api}{path}", headers, body, seconds)


def send(path: str, body: Any, seconds: float) -> None:
    """As ``ask``, where an answer would be welcome but nothing depends on it."""
    with suppress(OSError, ValueError):
        ask(path, body, seconds)


def _csrf_headers(api: str, headers: dict[str, str], seconds: float) -> dict[str, str]:
    client = str(uuid.uuid4())
    try:
        token = _call(f"{api}/csrf-token?{urlencode({'client': client})}", headers, None, seconds)["token"]
    except urllib.error.HTTPError as error:
        if error.code == 422:  # the server has no such protection
            return {}
        raise
    return {"Prefect-Csrf-Token": str(token), "Prefect-Csrf-Client": client}


def _call(url: str, headers: dict[str, str], body: Any, seconds: float) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(
        urllib.request.Request(url, data=data, headers=headers), timeout=seconds
    ) as answer:
        content = answer.read()
    return json.loads(content) if content else None


ADDRESS: Final = "PREFECT_API_URL"
CREDENTIAL: Final = "PREFECT_API_AUTH_STRING"
WATCH_SECONDS: Final = 2.0
"""How often it is looked whether the own server lives."""


def use_server() -> str:
    """Makes this process, and those it starts, talk to a running server; returns the address of its UI.

    Must be called before Prefect is imported. Raises ServerError with the log's place when the server does
    not start.
    """
    quiet_in_notebook()
    configured = os.environ.get(ADDRESS) or _profile_url()
    own = _own_url(configured) if configured else start().url
    if own is not None:
        os.environ[ADDRESS] = f"{own}/api"
        os.environ[CREDENTIAL] = credential()
        return own
    if os.environ.get(CREDENTIAL) in (known_credential(), ""):
        os.environ.pop(CREDENTIAL, None)
    return str(configured).removesuffix("/").removesuffix("/api")


def quiet_in_notebook() -> None:
    """Keeps Prefect's lines about every task out of a notebook's cells, if Prefect is not imported yet: cells
    show progress and results, the run's page has the log."""
    if in_notebook():
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "WARNING")


def own_flow(**options: Any) -> "Callable[[Callable[P, R]], Flow[P, R]]":
    """A decorator as Prefect's ``flow`` with these options. Where such a flow is called from a script or a
    notebook that names no server, it finds the project's own, or starts it."""
    from tasks.prefect_adapter import served_flow

    return served_flow(serving, use_server, **options)


@contextmanager
def serving() -> Iterator[str]:
    """A block that talks to the server of ``use_server``; gives the address of its UI.

    Raises ServerError where the server that the user's settings name does not answer.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from tasks.prefect_adapter import settings_of_all_threads

    named = os.environ.get(ADDRESS) or PREFECT_API_URL.value()
    ui = use_server()
    api = os.environ.get(ADDRESS, f"{ui}/api")
    # Prefect may have read its settings before the environment was what it is now.
    secret = os.environ.get(CREDENTIAL)
    settings: AbstractContextManager[Any]
    if own := secret is not None and secret == known_credential():
        settings = _own_settings(ui, api, str(secret))
    else:
        stale = PREFECT_API_AUTH_STRING.value() in (known_credential(), "")
        forgotten = {PREFECT_API_AUTH_STRING} if stale and not secret else set()
        updates = {PREFECT_API_URL: api} | ({PREFECT_API_AUTH_STRING: secret} if secret else {})
        settings = temporary_settings(updates, restore_defaults=forgotten)
    with settings, settings_of_all_threads():
        if named:
            _check_answers(api)
        with _kept_running() if own else nullcontext():
            yield ui


def _own_settings(ui: str, api: str, secret: str) -> "SettingsContext":
    """The current settings but for what leads to the own server.

    ``temporary_settings`` reads every setting again from the environment, a fifth of what a small run takes.
    """
    from prefect.context import SettingsContext, get_settings_context
    from pydantic import SecretStr

    context = get_settings_context()
    connection = {"url": api, "auth_string": SecretStr(secret), "ssl_cert_file": str(_one_authority())}
    own = {"api": context.settings.api.model_copy(update=connection), "ui_url": ui}
    return SettingsContext(profile=context.profile, settings=context.settings.model_copy(update=own))


def _one_authority() -> Path:
    """A file with one of the certificate authorities that Prefect's clients trust.

    Each of its clients reads all of them again, 45 ms a time and four times a run, though the own server is
    asked over plain HTTP on loopback, where none is needed.
    """
    file = server_folder() / "authority.pem"
    if not file.is_file():
        import certifi

        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----\n"
        first = Path(certifi.where()).read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
        with whole_file(file) as temporary:
            temporary.write_text(begin + first + end)
    return file


@contextmanager
def _kept_running() -> Iterator[None]:
    """A block in which the own server is started again whenever its process dies.

    Whatever the block leaves to be sent would be tried for minutes otherwise, and the run's page would never
    say how it ended.
    """
    try:
        with beating(_start_again, WATCH_SECONDS, "nightjar-server-watch"):
            yield
    finally:
        _start_again()


def _start_again() -> None:
    try:
        if start_again():
            print("warning: the Prefect server had died; it was started again", file=sys.stderr)
    except (ServerError, OSError) as error:
        print(f"warning: the Prefect server has died: {error}", file=sys.stderr)


def shell_exports() -> str:
    """What a shell evaluates so that ``prefect …`` talks to the server of ``use_server``, with its
    credential if it is the own one: ``eval "$(python -m flows.server env)"``."""
    use_server()
    lines = [
        f"export {name}={shlex.quote(os.environ[name])}" if os.environ.get(name) else f"unset {name}"
        for name in (ADDRESS, CREDENTIAL)
    ]
    return "\n".join(["export DO_NOT_TRACK=1", *lines])


def link(address: str, always: bool = False) -> str:
    """``address`` as a person can click it: with a code that opens the own server's UI once.

    Without one where nobody reads it on a terminal (unless ``always``), and of other servers: reports, logs
    and files must not hold what lets their readers in.
    """
    if not (always or sys.stdout.isatty()):
        return address
    parts = urlsplit(address)
    own = _own_url(address)
    code = _new_code(own) if own is not None else None
    if own is None or code is None:
        return address
    place = parts.path or "/"
    return f"{own}/nightjar/open#{urlencode({'code': code, 'to': place}, safe='/')}"


def _new_code(own: str) -> str | None:
    request = urllib.request.Request(
        f"{own}/nightjar/codes", method="POST", headers={"Authorization": authorization(credential())}
    )
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return str(json.load(answer)["code"])
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return None


def _own_url(address: str) -> str | None:
    """The own server's address if that is what answers at this one: it proves that it has the credential."""
    parts = urlsplit(address)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost") and parts.port
    return f"http://{HOST}:{parts.port}" if local and knows_credential(int(local)) else None


def _profile_url() -> str | None:
    """The API address of the active Prefect profile, if the user has one."""
    profiles = Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect") / "profiles.toml"
    if not profiles.is_file():
        return None
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value() or None


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
