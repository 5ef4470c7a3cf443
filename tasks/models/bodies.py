"""JSON that came over the network."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tasks.models.errors import MalformedBody


def json_object(content: bytes, what: str = "the answer's body") -> dict[str, Any]:
    """The JSON object in ``content``; raises MalformedBody where there is none.

    Lone surrogates, left of an emoji that was cut in two, become question marks: UTF-8 can't hold them. NaN
    and infinities, which Python's servers write for an impossible token, are read.
    """
    if not content.strip():
        raise MalformedBody(f"{what} is empty")
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        value = _as_python_writes(content)
        if value is None:
            raise MalformedBody(f"{what} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise MalformedBody(f"{what} is not a JSON object")
    return value


def _as_python_writes(content: bytes) -> Any:
    try:
        text = json.dumps(json.loads(content), ensure_ascii=False)
        return json.loads(text.encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def joined(parts: Sequence[Any]) -> str:
    """The text of a message whose content is a list of parts; those that hold no text are left out."""
    texts = (part.get("text") if isinstance(part, Mapping) else part for part in parts)
    return "".join(text for text in texts if isinstance(text, str))
