"""What the own server and its user's programs know and nobody else does: one line in a file of mode 600.

It is never sent to a server that has not proven that it knows it (``proof``): the port of a server that has
ended may be somebody else's by now.
"""

import base64
import hashlib
import hmac
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from tasks.store.home import home, private_folder

USER = "nightjar"


def server_folder() -> Path:
    """Where the own server keeps its database, log, record and credential; for the user alone."""
    return private_folder(home() / "server")


def credential() -> str:
    """``user:password`` of the own server, made when it is first asked for."""
    path = server_folder() / "credential"
    try:
        return _read(path)
    except FileNotFoundError:
        _create(path)
        return _read(path)


def known_credential() -> str | None:
    """As ``credential``; None where none was made yet."""
    with suppress(OSError):
        return _read(home() / "server" / "credential")
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


def _read(path: Path) -> str:
    with path.open(encoding="ascii") as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            os.chmod(path, 0o600)
        return file.read().strip()


def _create(path: Path) -> None:
    """Whole or not at all, and the first of two that come at once stays."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".credential.")  # of mode 600
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(f"{USER}:{secrets.token_urlsafe(32)}\n")
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
