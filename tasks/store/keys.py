"""Cache keys, one canonical text for equal values, one digest for equal texts; and what a stage's task is
given: a step, and the artifacts it works on.

A step keeps apart what decides the answer (its identity, which is in the cache key) and what is needed to
compute it or to name it (which is not): display names, folders, time-outs, limits.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict

from metrics.errors import ASCII
from metrics.json_values import MOST_LEVELS
from tasks.store.storage import ArtifactRef


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


def sample_hashes(doc: str, prompt: str, target: str) -> dict[str, str]:
    """SHA-256 of a document's JSON, a prompt and a target: by these, which are lm-evaluation-harness's own,
    sample logs are joined."""
    texts = {"doc_hash": doc, "prompt_hash": prompt, "target_hash": target}
    return {
        name: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        for name, text in texts.items()
    }


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=canonical_json)
    if isinstance(value, Path):
        return value.as_posix()
    raise TypeError(f"a value of type {type(value).__name__} can't be part of a cache key")


_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def value_text(value: Any) -> str:
    """``value`` as JSON; numbers that are not finite are written as Python writes them.

    >>> value_text([1.5, float("nan"), float("-inf"), None])
    '[1.5,NaN,-Infinity,null]'
    """
    try:
        text = orjson.dumps(value, default=_plain_value, option=_OPTIONS)
    except TypeError:  # integers beyond 64 bits, half of a surrogate pair
        return _with_python(value)
    # orjson writes null for what is not finite, too.
    return _with_python(value) if b"null" in text else text.decode()


def json_bytes(value: Any) -> bytes:
    """JSON for people and other programs, in UTF-8: NaN and infinities become null, lone surrogates a
    question mark, what JSON can't hold its text."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(value, default=str, option=options)
    except TypeError:  # a lone surrogate, an integer beyond 64 bits, a key or an object of another kind
        return orjson.dumps(_representable(value), default=_said, option=options)


def _representable(value: Any, above: tuple[int, ...] = ()) -> Any:
    """``above`` are the objects that the value is in: one that is in itself is its text."""
    if isinstance(value, Mapping | list | tuple) and id(value) not in above and len(above) < MOST_LEVELS:
        within = (*above, id(value))
        if isinstance(value, Mapping):
            return {_key(key): _representable(entry, within) for key, entry in value.items()}
        return [_representable(entry, within) for entry in value]
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    return _said(value) if isinstance(value, str | int | Mapping | list | tuple) else value


def _key(key: Any) -> Any:
    return key if type(key) in (bool, float, type(None)) else _said(key)


def _said(value: Any) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception:  # an object that can't say what it is, an integer too long to be written
        return f"a value of type {type(value).__name__}"


def text_value(text: str) -> Any:
    """What ``value_text`` wrote; integers beyond 64 bits may come back as floats."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def _with_python(value: Any) -> str:
    return json.dumps(value, default=_plain_value, separators=(",", ":"))


def _plain_value(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def unix_seconds(timestamp: str | None) -> float | None:
    """An ISO 8601 time as seconds since 1970; a time without a zone is UTC.

    >>> unix_seconds("1970-01-01T00:16:40Z"), unix_seconds("1970-01-01T00:00:01.5")
    (1000.0, 1.5)
    """
    if timestamp is None:
        return None
    moment = datetime.fromisoformat(timestamp)
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def iso_time(seconds: float | None) -> str | None:
    """Seconds since 1970 as an ISO 8601 time in UTC.

    >>> iso_time(1000)
    '1970-01-01T00:16:40Z'
    """
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


T = TypeVar("T")


class Unkeyed(BaseModel):
    """Base of everything a task is given that can't change its answer, and so is in no cache key."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)


class Step(BaseModel, Generic[T]):
    """One task run to be.

    Of a step only ``identity`` enters the cache key: all that can change the rows, beside the artifacts
    they are made from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str
    identity: dict[str, Any]
    setup: T
    about: dict[str, str] = {}
    """Whose rows it makes, by names that people know (model_name, prompt_template): for the manifest."""
    whole: tuple[str, ...] = ()
    """Names of the inputs of which the step reads all columns, times and ids too: their bytes are in its
    key."""

    if not TYPE_CHECKING:

        def __class_getitem__(cls, _parameters: Any) -> type:
            """The class itself: the setup's type is for those who read and check the code. Pydantic would
            make a class of its own in the module that asks for it first, which is another one in a process
            that imported stages in another order, and there a step could not be read."""
            return cls

    @property
    def run_name(self) -> str:
        """Name of the task run, in ASCII: the graph in Prefect's UI leaves other signs out."""
        return self.name.translate(ASCII)

    def at(self, place: str, **about: str) -> "Step[T]":
        """The same step at one place of the grid of models, prompts and partitions, named so."""
        return self.model_copy(update={"name": f"{self.name}{place}", "about": {**self.about, **about}})


class Accounts(Unkeyed):
    """What an inference took when it was computed, the fields of a ``RequestTally``; served from a cache it
    took nothing.

    ``given`` is the digest of which answers it gave, ``night`` the night that it was computed in.
    """

    tally: dict[str, Any]
    given: str = ""
    night: str | None = None


class Answered(BaseModel):
    """The responses of one model to one partition, and what they took."""

    model_config = ConfigDict(frozen=True)

    responses: ArtifactRef
    accounts: Accounts
