"""What is beside a step's record: why it was computed, and which files users' code was seen to read for it.

A key is the digest of its *ingredients*: the stage, the code behind it, the step's identity, the contents of
its inputs. They are kept flat, one name and one short value each. A value that is no number, switch or short
word is kept as a digest, so that neither a secret nor a dataset is ever in the file or in a message.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from hashlib import blake2b
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.store.errors import StoreError
from tasks.store.fingerprint import files_by_digest
from tasks.store.keys import digest
from tasks.store.schemas import ANSWERS
from tasks.store.storage import Store

LONGEST: Final = 24
"""Characters of a text that is kept as it is."""
SECRETIVE: Final = frozenset(
    {"auth", "authorization", "body", "credential", "credentials", "header", "headers", "key", "keys"}
    | {"password", "secret", "token"}
)
"""Words of names whose values are never kept: what stands below them may be a secret."""
FIRST_TIME: Final = "computed for the first time"

RowsThatDiffer = Callable[[str, str], str | None]
"""The earlier artifact's file and the present one's → how many rows differ, in words."""


@dataclass(frozen=True)
class Subject:
    """Which step it is, whatever its key: the last record of the same subject is what a new one is compared
    with."""

    benchmark: str
    stage: str
    step: str
    about: Mapping[str, str] = field(default_factory=dict)

    @property
    def pointer(self) -> str:
        """Name of the file in the store that says which record is the subject's last."""
        return f"records/last/{digest(asdict(self))[:32]}.json"


@dataclass(frozen=True)
class Reason:
    """Why a step was computed, as it is kept beside the step's record.

    ``ingredients`` are flat; ``inputs`` maps inputs to their artifacts' files. ``previous`` is the key of the
    subject's record before this one, ``because`` the first difference from it in words.
    """

    subject: Subject
    key: str
    run_id: str
    made: str
    ingredients: Mapping[str, Any]
    inputs: Mapping[str, str]
    previous: str | None = None
    because: str = FIRST_TIME

    def as_bytes(self) -> bytes:
        """JSON text."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2)

    @classmethod
    def from_bytes(cls, content: bytes) -> "Reason":
        """Reads ``as_bytes``; raises ValueError, KeyError or TypeError for anything else."""
        document = orjson.loads(content)
        return cls(**{**document, "subject": Subject(**document["subject"])})


@dataclass(frozen=True)
class Observed:
    """The files that users' code was seen to read for a result, by name, with their digests; ``result`` is
    the digest of what the step returned."""

    result: str
    files: Mapping[str, str]

    def ingredients(self) -> dict[str, str]:
        """The files as a reason names them."""
        return {f"{SEEN}{name}": found for name, found in self.files.items()}


SEEN: Final = "seen."
"""Beginning of the names of files that no key holds."""


def keep_observed(store: Store, record: str, observed: Observed) -> None:
    """Keeps it beside the record of that name; raises StoreError."""
    store.put_document(f"records/{record}.files.json", orjson.dumps(asdict(observed)))


def read_observed(store: Store, record: str, result: str | None = None) -> Observed | None:
    """What is kept beside a record; None where there is nothing, or not about this ``result``."""
    try:
        document = orjson.loads(store.document(f"records/{record}.files.json"))
        found = Observed(str(document["result"]), {str(k): str(v) for k, v in document["files"].items()})
    except (StoreError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if result in (None, found.result) else None


def place_of(stage: str, key: str) -> str:
    """Name of the file that holds the reason of a record."""
    return f"records/{stage}-{key}.why.json"


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """Nested ingredients as dotted names with short values.

    >>> flat({"sampling": {"temperature": 0.5, "stop": ["Question:"]}})
    {'sampling.temperature': 0.5, 'sampling.stop.0': 'Question:'}
    >>> flat({"headers": {"x-name": "me"}})["headers.x-name"][0]
    '#'
    """
    if is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    if isinstance(value, Mapping) and value:
        inner = (flat(entry, f"{name}.{key}" if name else str(key)) for key, entry in value.items())
        return {key: entry for part in inner for key, entry in part.items()}
    if isinstance(value, list | tuple) and value and len(value) <= LONGEST:
        inner = (flat(entry, f"{name}.{place}") for place, entry in enumerate(value))
        return {key: entry for part in inner for key, entry in part.items()}
    hidden = not SECRETIVE.isdisjoint(name.lower().replace("_", ".").replace("-", ".").split("."))
    plain = isinstance(value, bool | int | float | None) or (isinstance(value, str) and len(value) <= LONGEST)
    return {name: value if plain and not hidden else f"#{digest(value)[:8]}"}


def read_reason(store: Store, stage: str, key: str) -> Reason | None:
    """The reason kept beside a record; None where there is none that can be read."""
    try:
        return Reason.from_bytes(store.document(place_of(stage, key)))
    except (StoreError, ValueError, KeyError, TypeError):
        return None


AGAIN = "computed again: the record was gone, damaged, refreshed, or its answers no longer count"


def keep_reason(store: Store, reason: Reason) -> Reason:
    """Compares a new record with its subject's last, and keeps what came of it; returns it.

    A reason is for people: where the store can't be read or written the step goes on without.
    """
    subject, previous = reason.subject, None
    try:
        last = orjson.loads(store.document(subject.pointer))["key"]
        previous = read_reason(store, subject.stage, str(last))
    except (StoreError, ValueError, KeyError, TypeError):
        pass
    if previous is not None:
        found = differences(store, previous, reason)
        # Of a record in the place of one under the same key all is said now: nobody can compare later.
        told = found if previous.key == reason.key else found[:1]
        because = "; ".join(told) or AGAIN
        reason = Reason(**{**vars(reason), "previous": previous.key, "because": because})
    try:
        keep_files(store, reason.ingredients)
        store.put_document(place_of(subject.stage, reason.key), reason.as_bytes())
        store.put_document(subject.pointer, orjson.dumps({"key": reason.key}))
    except StoreError:
        pass
    return reason


def differences(
    store: Store, before: Reason, after: Reason, count: RowsThatDiffer | None = None
) -> list[str]:
    """Every ingredient that differs, in words, what a person changed first: settings, code, then inputs.

    ``count`` reads the two artifacts of an input that changed; without it only its name is said.
    """
    old, new = before.ingredients, after.ingredients
    names = [
        name for name in {**old, **new} if old.get(name) != new.get(name) or (name in old) != (name in new)
    ]
    code = [name for name in names if _OF_CODE.search(name) is not None]
    inputs = [name for name in names if name.startswith("input.")]
    settings = [name for name in names if name not in code and name not in inputs]
    said = [_setting(name, old, new) for name in settings]
    said += [sentence for name in code if (sentence := _code(store, name, old.get(name), new.get(name)))]
    said += [_input(name, before, after, count) for name in inputs]
    return list(dict.fromkeys(said))


def _input(name: str, before: Reason, after: Reason, count: RowsThatDiffer | None) -> str:
    """An artifact by what its rows are, a value by its name: ``input.predictions.artifact``,
    ``input.statistics.3.artifact``, ``input.origins.0.model_name``."""
    source, _, place = name.removeprefix("input.").partition(".")
    number = place.partition(".")[0]
    label = f"{source} {int(number) + 1}" if number.isdigit() else source
    files = [
        found for entry in (before, after) if (found := entry.inputs.get(label, entry.inputs.get(source)))
    ]
    counted = count(*files) if count is not None and len(files) == 2 else None
    if counted or files:
        return counted or f"{_noun(files[-1], source)} changed"
    if name not in before.ingredients or name not in after.ingredients:
        return f"{_noun(source, source)} changed"
    shown = place.partition(".")[2] if number.isdigit() else name.removeprefix("input.")
    return _setting(name, before.ingredients, after.ingredients, shown)


def _noun(made: str, otherwise: str = "rows") -> str:
    """What the rows of a stage's artifact are called."""
    return _NOUNS.get(made.partition("/")[0], otherwise)


def _setting(name: str, old: Mapping[str, Any], new: Mapping[str, Any], named: str | None = None) -> str:
    shown = named or name.removeprefix("step.")
    if name not in old:
        return f"{shown} is new"
    if name not in new:
        return f"{shown} is gone"
    was, now = old[name], new[name]
    if any(isinstance(value, str) and value.startswith("#") for value in (was, now)):
        return f"{shown} changed"
    return f"{shown} changed from {was!r} to {now!r}"


_OF_CODE = re.compile(rf"^(?:{re.escape(SEEN)}|code\.|libraries\.)|\.code\.|(?:^|\.)depends_on\.")
"""What stands before the name of a file, a package or a library, which may have dots of its own."""


def _code(store: Store, name: str, was: Any, now: Any) -> str:
    """A changed file, library or package, of a package with its files that differ where they are known."""
    found_at = _OF_CODE.search(name)
    label = name[found_at.end() :] if found_at is not None else name
    if was is None:
        return f"{label} is needed now"
    if now is None:
        return f"{label} is not needed any more"
    if name.startswith("code."):
        old, new = _files(store, str(was)), _files(store, str(now))
        found = (
            sorted(file for file in {**old, **new} if old.get(file) != new.get(file)) if old and new else []
        )
        return (
            f"{', '.join(found[:3])}{' …' if len(found) > 3 else ''} in {label} changed"
            if found
            else f"{label} changed"
        )
    plain = name.startswith("libraries.") or not _is_digest(now)
    return f"{label} changed from {was} to {now}" if plain else f"{label} changed"


def _is_digest(value: Any) -> bool:
    return re.fullmatch(r"#?[0-9a-f]{8,}(\+[0-9a-f]+)*|no file|edited .*", str(value)) is not None


def keep_files(store: Store, ingredients: Mapping[str, Any]) -> None:
    """Keeps, for every package of ours that is in the key, the digests of its files: one small file a
    version."""
    for found in ingredients.values():
        files = files_by_digest(found) if isinstance(found, str) else None
        if files is not None and found not in _kept(store.uri):
            name = f"code/{found}.json"
            if not store.exists(name):
                store.put_document(name, orjson.dumps(files))
            _kept(store.uri).add(found)


_KEPT: dict[str, set[str]] = {}


def _kept(uri: str) -> set[str]:
    return _KEPT.setdefault(uri, set())


def _files(store: Store, found: str) -> Mapping[str, str]:
    known = files_by_digest(found)
    if known is not None:
        return known
    try:
        document = orjson.loads(store.document(f"code/{found}.json"))
    except (StoreError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


MOST_ROWS: Final = 500_000
"""Rows up to which two artifacts are compared row by row."""
_NOUNS: Final = {
    "load": "items",
    "render": "requests",
    "infer": "responses",
    "filter": "predictions",
    "score": "scores",
    "reduce": "item rows",
    "ask": "requests to the judge",
    "origins": "models and prompts",
}


def rows_that_differ(store: Store, before: str, after: str) -> str | None:
    """How many rows of an artifact differ from an earlier one, in words.

    None where one of them is gone, too large to compare, or nothing differs.
    """
    try:
        old, new = _row_digests(store, before), _row_digests(store, after)
    except (StoreError, pa.ArrowException):
        return None
    if old is None or new is None:
        return None
    noun = _noun(before)
    differing = sum(old.get(key) != value for key, value in new.items())
    gone = len(old.keys() - new.keys())
    said = [f"{differing:,} of {len(new):,} {noun} differ"] if differing else []
    return ", ".join([*said, *([f"{gone:,} {noun} are gone"] if gone else [])]) or None


def _row_digests(store: Store, file: str) -> dict[tuple[Any, ...], bytes] | None:
    """Digest of each row in the columns that keys hold, by what identifies it; None for too many rows."""
    found: dict[tuple[Any, ...], bytes] = {}
    with store.open(store.checked(file)) as source, pq.ParquetFile(source, pre_buffer=False) as parquet:
        if parquet.metadata.num_rows > MOST_ROWS:
            return None
        names = parquet.schema_arrow.names
        read = [name for name in names if name in ANSWERS] if "response_id" in names else names
        for batch in parquet.iter_batches(columns=read):
            for row in batch.to_pylist():
                key = tuple(row.get(name) for name in ("item_id", "sample_index", "label", "reduction"))
                found[key] = blake2b(orjson.dumps(row, default=str), digest_size=16).digest()
    return found
