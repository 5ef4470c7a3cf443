"""Single calls to the API of the server in Prefect's settings, without the patience of Prefect's client.

That client tries again for a minute; whoever ends, or only wants to look, can't wait for it.
"""

import json
import urllib.error
import urllib.request
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from flows.server.credential import authorization


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
