"""Cache keys: one canonical text for equal values, one digest for equal texts."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel

CHUNK_BYTES = 1 << 20


def canonical_json(value: Any) -> bytes:
    """JSON text that is the same for equal values, in every process and on every machine.

    Keys are sorted and nothing depends on hash order. Pydantic models, dataclasses, tuples, sets, paths and
    numpy scalars are accepted; anything else raises TypeError, because a key must not depend on a ``repr``.

    >>> canonical_json({"b": (1, 2), "a": None})
    b'{"a":null,"b":[1,2]}'
    """
    options = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, default=_plain, option=options)


def digest(value: Any) -> str:
    """SHA-256 over the canonical JSON of ``value``, 64 hexadecimal digits."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def file_digest(path: Path) -> str:
    """SHA-256 over a file's bytes, 64 hexadecimal digits; raises OSError."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            total.update(chunk)
    return total.hexdigest()


def stage_key(stage: str, version: str, parameters: Mapping[str, Any]) -> str:
    """The key of a stage's artifact: the stage, its code's version, and all it is given, artifacts by their
    digest."""
    return digest({"stage": stage, "version": version, "parameters": parameters})


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=canonical_json)
    if isinstance(value, Path):
        return value.as_posix()
    raise TypeError(f"a value of type {type(value).__name__} can't be part of a cache key")
