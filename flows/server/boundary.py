"""Who may talk to the own Prefect server: its credential, and an ASGI application around Prefect's that
stands between a browser and the server.

The credential is what the own server and its user's programs know and nobody else does: one line in a
file of mode 600. It is never sent to a server that has not proven that it knows it (``proof``): the port
of a server that has ended may be somebody else's by now.

Prefect asks for the credential itself. It does not ask which site a request comes from or which name it
was sent to, and its UI has to be told the credential: that is here. A request is refused unless its Host
is the server's own (a foreign name that resolves to loopback is not) and its Origin, where it has one,
too.

A person is shown a link to ``/nightjar/open`` with a one-time code in its fragment, which no server and
no log sees; that page exchanges the code for the password that the UI keeps in the browser.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import tempfile
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tasks.store.home import home, private_folder

USER = "nightjar"


def server_folder() -> Path:
    """Where the own server keeps its database, log, record and credential; for the user alone."""
    return private_folder(home() / "server")


def credential() -> str:
    """``user:password`` of the own server, made when it is first asked for."""
    path = server_folder() / "credential"
    try:
        return _read_credential(path)
    except FileNotFoundError:
        _create_credential(path)
        return _read_credential(path)


def known_credential() -> str | None:
    """As ``credential``; None where none was made yet."""
    with suppress(OSError):
        return _read_credential(home() / "server" / "credential")
    return None


def authorization(secret: str) -> str:
    """Value of the header Authorization."""
    return f"Basic {password(secret)}"


def password(secret: str) -> str:
    """The credential as Prefect's UI keeps it."""
    return base64.b64encode(secret.encode()).decode()


def proof(secret: str, port: int, nonce: str) -> str:
    """What only a holder of the credential can say about ``nonce``; for one port, so that it can't be passed
    on from another server's."""
    return hmac.new(secret.encode(), f"nightjar server {port} {nonce}".encode(), hashlib.sha256).hexdigest()


def _read_credential(path: Path) -> str:
    with path.open(encoding="ascii") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            os.chmod(path, 0o600)
        return file.read().strip()


def _create_credential(path: Path) -> None:
    """Whole or not at all, and the first of two that come at once stays."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".credential.")  # of mode 600
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{USER}:{secrets.token_urlsafe(32)}\n")
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

OWN_PATHS = "/nightjar/"
CODE_SECONDS = 24 * 3600.0
"""How long a code that nobody used stays valid: a link is often clicked the morning after."""
CODES_AT_ONCE = 1_000
BODY_LIMIT = 1_000
HOST = "127.0.0.1"
LOOPBACK = (HOST, "localhost", "[::1]")


@dataclass(frozen=True)
class Address:
    """Names and origins that are the server's own."""

    hosts: frozenset[str]
    origins: frozenset[str]

    @classmethod
    def of(cls, port: int, ui_url: str | None = None) -> "Address":
        """Of a server on loopback, and of the address it is reached at through a proxy, if there is one."""
        hosts = set(LOOPBACK)
        origins = {f"http://{host}:{port}" for host in LOOPBACK}
        outside = urlsplit(ui_url or "")
        if outside.scheme and outside.hostname:
            hosts.add(_name_of(outside.netloc.rpartition("@")[2]))
            origins.add(f"{outside.scheme}://{outside.netloc.rpartition('@')[2]}".lower())
        return cls(frozenset(hosts), frozenset(origins))

    def refusal(self, headers: list[tuple[bytes, bytes]]) -> str | None:
        """Why a request with these headers is refused; None if it may pass."""
        hosts = [value.decode("latin-1") for name, value in headers if name.lower() == b"host"]
        if len(hosts) != 1 or _name_of(hosts[0]) not in self.hosts:
            return "unknown host name"
        origins = [value.decode("latin-1").lower() for name, value in headers if name.lower() == b"origin"]
        if any(origin not in self.origins for origin in origins):
            return "requests of other sites are refused"
        return None


@dataclass
class Codes:
    """Codes that were given out and not yet used."""

    now: Callable[[], float] = time.monotonic
    _until: dict[str, float] = field(default_factory=dict)

    def new(self) -> str:
        """A code that is good once."""
        code = secrets.token_urlsafe(24)
        self._until = {kept: until for kept, until in self._until.items() if until > self.now()}
        while len(self._until) >= CODES_AT_ONCE:
            self._until.pop(next(iter(self._until)))
        self._until[code] = self.now() + CODE_SECONDS
        return code

    def use(self, code: str) -> bool:
        """Whether the code was good; it no longer is."""
        return self._until.pop(code, 0.0) > self.now()


class Boundary:
    """The own server's application: checks every request, answers for ``/nightjar/``, passes the rest on."""

    def __init__(self, inner: Application, secret: str, port: int, ui_url: str | None = None) -> None:
        self._inner, self._secret, self._port = inner, secret, port
        self._address = Address.of(port, ui_url)
        self._codes = Codes()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One connection, by the protocol of ASGI."""
        if scope["type"] not in ("http", "websocket"):
            await self._inner(scope, receive, send)
            return
        reason = self._address.refusal(scope["headers"])
        if reason is not None:
            await _refuse(scope, send, reason)
        elif scope["type"] == "http" and scope["path"].startswith(OWN_PATHS):
            await self._answer(scope, receive, send)
        else:
            await self._inner(scope, receive, _guarded(send, self._address))

    async def _answer(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"].removeprefix(OWN_PATHS):
            case "GET", "open":
                await _respond(send, 200, PAGE.encode(), "text/html; charset=utf-8", PAGE_POLICY)
            case "GET", "proof":
                nonce = parse_qs(scope["query_string"].decode("latin-1")).get("nonce", [""])[0]
                await _json(send, 200, {"proof": proof(self._secret, self._port, nonce)})
            case "POST", "codes":
                given = dict(scope["headers"]).get(b"authorization", b"")
                if hmac.compare_digest(given, authorization(self._secret).encode()):
                    await _json(send, 200, {"code": self._codes.new()})
                else:
                    await _json(send, 401, {"error": "the server's credential is needed"})
            case "POST", "exchange":
                if self._codes.use((await _body(receive)).decode("latin-1")):
                    await _json(send, 200, {"password": password(self._secret)})
                else:
                    await _json(send, 403, {"error": "the code was used, or is not one of this server"})
            case _:
                await _json(send, 404, {"error": "not found"})


def _name_of(host: str) -> str:
    """The name in ``name:port``, brackets of an IPv6 address kept.

    >>> [_name_of(host) for host in ("LOCALHOST:4210", "[::1]:4210", "127.0.0.1")]
    ['localhost', '[::1]', '127.0.0.1']
    """
    name = host.lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]


def _guarded(send: Send, address: Address) -> Send:
    """As ``send``; no answer may be framed, or name another origin as one that may read it."""

    async def checked(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [
                (name, value)
                for name, value in message.get("headers", ())
                if name.lower() != b"access-control-allow-origin" or value.decode() in address.origins
            ]
            message = {**message, "headers": [*headers, *PROTECTION]}
        await send(message)

    return checked


async def _refuse(scope: MutableMapping[str, Any], send: Send, reason: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})  # before it is accepted: status 403
    else:
        await _json(send, 403, {"exception_message": reason})


async def _body(receive: Receive) -> bytes:
    """The body of a short request; empty where it is longer than any that is expected."""
    body = b""
    while len(body) <= BODY_LIMIT:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body
    return b""


async def _json(send: Send, status: int, document: dict[str, str]) -> None:
    await _respond(send, status, json.dumps(document).encode(), "application/json")


async def _respond(
    send: Send, status: int, body: bytes, kind: str, more: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(b"cache-control", b"no-store"), *PROTECTION, *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


PROTECTION = (
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_NONCE = "nightjar-open"  # the page is the same for everybody, and nothing of the request is written into it
PAGE_POLICY = (
    (
        b"content-security-policy",
        f"default-src 'none'; script-src 'nonce-{_NONCE}'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'".encode(),
    ),
)
PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Prefect</title>
<p id="said">Opening …</p>
<noscript>This page needs JavaScript, as Prefect's UI does.</noscript>
<script nonce="{_NONCE}">
"use strict";
const asked = new URLSearchParams(location.hash.slice(1));
history.replaceState(null, "", location.pathname);
async function accepted(password) {{
  const headers = {{Authorization: "Basic " + password}};
  return Boolean(password) && (await fetch("/api/admin/version", {{headers}})).ok;
}}
async function enter() {{
  const wanted = new URL(asked.get("to") || "/", location.origin);
  const place = wanted.origin === location.origin ? wanted.pathname + wanted.search : "/";
  const answer = await fetch("/nightjar/exchange", {{method: "POST", body: asked.get("code") || ""}});
  if (answer.ok) localStorage.setItem("prefect-password", (await answer.json()).password);
  if (answer.ok || await accepted(localStorage.getItem("prefect-password"))) location.replace(place);
  else document.getElementById("said").textContent =
    "This link was used already, or is of another server. A new one: python -m flows.server link";
}}
enter().catch(error => {{ document.getElementById("said").textContent = String(error); }});
</script>
</html>
"""
