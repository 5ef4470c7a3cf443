"""From an HTTP status and body to the error tree."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from tasks.models.errors import (
    AccessDenied,
    BadRequest,
    ContentFiltered,
    ContextTooLong,
    NotServed,
    Overloaded,
    RateLimited,
    RequestError,
    RequestTimeout,
    ServerFault,
)
from tasks.models.retrying import retry_after

LONGEST_MESSAGE = 500

_too_long = re.compile(
    r"context.{0,20}(?:length|window)|too (?:long|many tokens)|maximum.{0,20}tokens|max_model_len",
    re.IGNORECASE,
)
_filtered = re.compile(r"content.{0,12}(?:filter|policy|management)|safety|moderation", re.IGNORECASE)
_no_quota = re.compile(r"insufficient_quota|billing|exceeded your current quota", re.IGNORECASE)


def fault_of(status: int, content: bytes, headers: Mapping[str, str]) -> RequestError:
    """The error that an answer with this status is."""
    message, code = _said(content)
    text = f"HTTP {status}: {message}"
    told = f"{code} {message}"
    if status == 429:
        return AccessDenied(text) if _no_quota.search(told) else RateLimited(text, retry_after(headers))
    if status in (401, 402, 403):
        return ContentFiltered(text) if status == 403 and _filtered.search(told) else AccessDenied(text)
    if 300 <= status < 400:
        target = headers.get("Location", "nowhere")
        return NotServed(f"HTTP {status}: redirected to {target}; name that address as base_url")
    if status in (404, 405):
        return NotServed(text)
    if status == 408:
        return RequestTimeout(text, retry_after(headers))
    if status in (503, 529):
        return Overloaded(text, retry_after(headers))
    if status in (409, 425) or status >= 500:
        return ServerFault(text, retry_after(headers))
    if status == 413 or _too_long.search(told):
        return ContextTooLong(text)
    return ContentFiltered(text) if _filtered.search(told) else BadRequest(text)


def _said(content: bytes) -> tuple[str, str]:
    """The message and the code in an error body; the body's own text where it is not of OpenAI's form."""
    try:
        body: Any = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if isinstance(body, dict):
        error = body.get("error", body)
        if isinstance(error, dict):
            message = error.get("message") or error.get("detail") or error
            return shortened(str(message)), str(error.get("code") or error.get("type") or "")
        return shortened(str(error)), ""
    return shortened(content.decode("utf-8", "replace")) or "no message", ""


def shortened(text: str) -> str:
    """A server's words on one line, of a length that an error has room for."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"
