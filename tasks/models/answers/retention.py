"""When kept answers were last used, segment by segment, and which of them nobody needs any more.

A *mark* beside the segments, ``answers/<identity>/used/<segment>.json``, holds the day on which a run last
took an answer from one. Segments without a mark, those of stores from before marks, count as used when the
store came to have its present format.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from tasks.store.storage import Store, StoreError

FOLDER: Final = "answers"
_noted: set[tuple[str, str, str]] = set()


@dataclass(frozen=True)
class AnswerFile:
    """A segment of answers that is not needed: its name and its mark's below the store's root, and its
    size."""

    name: str
    mark: str
    bytes: int


def note_use(store: Store, identity: str, segment: str) -> None:
    """Keeps that answers of a segment were used today; once a day and process.

    Serves retention alone: where the store can't be written, the run goes on without.
    """
    today = datetime.now(UTC).date().isoformat()
    if (note := (store.uri, f"{identity}/{segment}", today)) not in _noted:
        _noted.add(note)
        with suppress(StoreError, OSError):
            store.put_bytes(_mark(identity, segment), json.dumps({"used": today}).encode())


def unneeded_answers(
    store: Store, now: datetime, unused: timedelta | None, age: timedelta | None
) -> Iterator[AnswerFile]:
    """Segments that no run has used for ``unused``, or whose newest answer is older than ``age``; None: no
    such limit."""
    since = store.format()[1] or now
    for path, entry in sorted(_segments(store).items()):
        identity, segment = path.split("/")[1:]
        written = _written(segment)
        if written is None:
            continue
        mark = _mark(identity, segment)
        used = max(written, _used(store, mark) or since)
        if (unused is not None and now - used > unused) or (age is not None and now - written > age):
            yield AnswerFile(path, mark, entry)


def _mark(identity: str, segment: str) -> str:
    return f"{FOLDER}/{identity}/used/{segment.partition('.')[0]}.json"


def _segments(store: Store) -> dict[str, int]:
    """Name and size of every segment, those set aside as damaged included."""
    try:
        store.fs.invalidate_cache()
        found = store.fs.find(store.path(FOLDER), maxdepth=2, detail=True)
    except FileNotFoundError:
        return {}
    names = {str(path)[len(store.root) + 1 :]: int(entry["size"] or 0) for path, entry in found.items()}
    return {
        name: size
        for name, size in names.items()
        if name.count("/") == 2 and name.endswith((".parquet", ".parquet.damaged"))
    }


def _written(segment: str) -> datetime | None:
    """When a segment was written, as its name says: none of its answers arrived later."""
    milliseconds = segment[:13]
    return datetime.fromtimestamp(int(milliseconds) / 1000, UTC) if milliseconds.isdigit() else None


def _used(store: Store, mark: str) -> datetime | None:
    """The end of the day on which a segment was last used; None where no mark says it."""
    try:
        day = datetime.fromisoformat(json.loads(store.fs.cat_file(store.path(mark)))["used"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return day.replace(tzinfo=UTC) + timedelta(days=1)
