"""How a process gets to its Prefect server: address, credential, single calls, and the links it shows to
people.

The own server's credential is set together with the own server's address and never without it: whoever
names another server by ``PREFECT_API_URL`` sends that one nothing of ours. ``ask`` and ``send`` do
without the patience of Prefect's client, which tries again for a minute: whoever ends, or only wants to
look, can't wait for it.
"""

import json
import os
import shlex
import sys
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from flows.server.boundary import HOST, authorization, credential, known_credential, server_folder
from flows.server.own import ServerError, knows_credential, start, start_again
from tasks.reporting.progress import in_notebook
from tasks.store.files import whole_file

if TYPE_CHECKING:
    from prefect.context import SettingsContext


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
    """As ``ask``, where an answer would be welcome but nothing hangs on it."""
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
    os.environ.setdefault("DO_NOT_TRACK", "1")
    if in_notebook():  # cells show progress and results; the run's page has the log
        os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "WARNING")
    configured = os.environ.get(ADDRESS) or _profile_url()
    own = _own_url(configured) if configured else start().url
    if own is not None:
        os.environ[ADDRESS] = f"{own}/api"
        os.environ[CREDENTIAL] = credential()
        return own
    if os.environ.get(CREDENTIAL) in (known_credential(), ""):
        os.environ.pop(CREDENTIAL, None)
    return _ui_of(str(configured))


@contextmanager
def serving() -> Iterator[str]:
    """A block that talks to the server of ``use_server``; gives the address of its UI.

    Raises ServerError where the server that the user's settings name does not answer.
    """
    import prefect.context
    from prefect.context import SettingsContext
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    named = os.environ.get(ADDRESS) or PREFECT_API_URL.value()
    ui = use_server()
    api = os.environ.get(ADDRESS, f"{ui}/api")
    # Prefect may have read its settings before the environment was what it is now.
    secret = os.environ.get(CREDENTIAL)
    before = prefect.context.GLOBAL_SETTINGS_CONTEXT
    settings: AbstractContextManager[Any]
    if own := secret is not None and secret == known_credential():
        settings = _own_settings(ui, api, str(secret))
    else:
        stale = PREFECT_API_AUTH_STRING.value() in (known_credential(), "")
        forgotten = {PREFECT_API_AUTH_STRING} if stale and not secret else set()
        updates = {PREFECT_API_URL: api} | ({PREFECT_API_AUTH_STRING: secret} if secret else {})
        settings = temporary_settings(updates, restore_defaults=forgotten)
    with settings:
        # Threads that Prefect starts for itself have no context of ours: they, too, would start a server.
        prefect.context.GLOBAL_SETTINGS_CONTEXT = SettingsContext.get() or before
        try:
            if named:
                _check_answers(api)
            with _kept_running() if own else nullcontext():
                yield ui
        finally:
            prefect.context.GLOBAL_SETTINGS_CONTEXT = before


def _own_settings(ui: str, api: str, secret: str) -> "SettingsContext":
    """The current settings but for what leads to the own server.

    ``temporary_settings`` reads every setting anew from the environment, a fifth of what a small run takes.
    """
    from prefect.context import SettingsContext, get_settings_context
    from pydantic import SecretStr

    context = get_settings_context()
    connection = {"url": api, "auth_string": SecretStr(secret), "ssl_cert_file": str(_one_authority())}
    own = {"api": context.settings.api.model_copy(update=connection), "ui_url": ui}
    return SettingsContext(profile=context.profile, settings=context.settings.model_copy(update=own))


def _one_authority() -> Path:
    """A file with one of the certificate authorities that Prefect's clients trust.

    Each of its clients reads all of them anew, 45 ms a time and four times a run, though the own server is
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
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            _start_again()

    watcher = threading.Thread(target=watch, name="nightjar-server-watch", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
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


def _ui_of(api: str) -> str:
    return api.removesuffix("/").removesuffix("/api")


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
