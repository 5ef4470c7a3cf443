"""Recorded responses by group, item and sample: what ``--phase score`` and replayed models read.

A file is indexed once, in some 40 bytes a row; texts stay in the file until their item is asked for. So a
million rows are joined to requests in any order, partition by partition, without a second reading of the
whole.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrics.errors import NightjarError
from tasks.evaluation.recorded_files import RecordedRows, recorded_rows
from tasks.evaluation.recorded_rows import item_of, response_columns, sample_of
from tasks.store.schemas import RESPONSES

Row = dict[str, Any]
Numbers = NDArray[np.int64]

RECORDED = pa.schema(
    [
        pa.field("model_name", pa.string()),
        pa.field("prompt_template", pa.string()),
        *(field for field in RESPONSES if field.name not in ("doc_id", "request_key")),
    ]
)
"""RESPONSES without what only a run's requests decide, and with the group."""


@dataclass(frozen=True)
class RecordedGroup:
    """The rows of one model and prompt template; None where the file does not say."""

    model_name: str | None
    prompt_template: str | None
    rows: int


class Recorded:
    """A file of recorded responses; raises NightjarError naming the line of a row that it can't take."""

    def __init__(self, path: Path):
        self._rows = recorded_rows(path)
        self.path = path
        names, columns = _scan(self._rows)
        order = np.lexsort((columns.place, columns.sample, columns.item, columns.group))
        self._index = _Index(
            *(column[order] for column in (columns.group, columns.item, columns.sample, columns.place))
        )
        self._refuse_twice()
        counts = np.bincount(columns.group, minlength=len(names))
        self.groups = tuple(
            RecordedGroup(*name, int(count)) for name, count in zip(names, counts, strict=True)
        )

    def __len__(self) -> int:
        return len(self._index.place)

    def select(self, model_name: str, prompt_template: str) -> list[RecordedGroup]:
        """The groups that hold responses of this model and prompt template.

        A file that names no model speaks for every model, one that names no template for every template.
        """
        return [
            group
            for group in self.groups
            if group.model_name in (None, model_name) and group.prompt_template in (None, prompt_template)
        ]

    def samples(self, group: RecordedGroup, item_ids: Sequence[str]) -> list[dict[int, Row]]:
        """For each item its responses by sample index, as columns of RECORDED; empty where it has none."""
        number = self.groups.index(group)
        found = [self._index.of(number, item_id) for item_id in item_ids]
        places = (
            np.unique(np.concatenate([places for _, places in found])) if found else np.empty(0, np.int64)
        )
        rows = dict(zip(places.tolist(), self._rows.at(places.tolist()), strict=True))
        return [
            self._samples(group, item_id, samples, [rows[place] for place in held.tolist()], held)
            for item_id, (samples, held) in zip(item_ids, found, strict=True)
        ]

    def batches(self, size: int = 4096) -> Iterator[pa.RecordBatch]:
        """All rows as batches of RECORDED, by group and in the file's order within it."""
        for start in range(0, len(self), size):
            part = slice(start, start + size)
            groups = [self.groups[number] for number in self._index.group[part].tolist()]
            samples, places = self._index.sample[part].tolist(), self._index.place[part].tolist()
            order = np.argsort(self._index.place[part], kind="stable").tolist()
            rows: dict[int, Row] = dict(
                zip(
                    [places[at] for at in order],
                    map(dict, self._rows.at([places[at] for at in order])),
                    strict=True,
                )
            )
            made = [
                self._read(*row)
                for row in zip(groups, samples, places, (rows[p] for p in places), strict=True)
            ]
            yield pa.RecordBatch.from_pylist(made, schema=RECORDED)

    def _samples(
        self, group: RecordedGroup, item_id: str, samples: Numbers, rows: Sequence[Any], places: Numbers
    ) -> dict[int, Row]:
        """Rows of the item itself: another item may share the hash that the index keeps of its name."""
        made = [self._read(group, *row) for row in zip(samples.tolist(), places.tolist(), rows, strict=True)]
        return {row["sample_index"]: row for row in made if row["item_id"] == item_id}

    def _read(self, group: RecordedGroup, sample: int, place: int, row: Any) -> Row:
        where = f"{self.path}"
        try:
            columns = response_columns(row, item_of(row, where), sample, where)
        except NightjarError as error:
            raise NightjarError(str(error).replace(where, self._rows.where(place), 1)) from error
        return {"model_name": group.model_name, "prompt_template": group.prompt_template, **columns}

    def _refuse_twice(self) -> None:
        index = self._index
        same = (
            (index.group[1:] == index.group[:-1])
            & (index.item[1:] == index.item[:-1])
            & (index.sample[1:] == index.sample[:-1])
        )
        for at in np.flatnonzero(same).tolist():
            first, second = index.place[at], index.place[at + 1]
            one, other = self._rows.at([int(first), int(second)])
            if str(one["item_id"]) == str(other["item_id"]):
                sample = f"sample {index.sample[at]} of item {one['item_id']!r}"
                raise NightjarError(
                    f"{self._rows.where(int(second))}: {sample} was recorded already "
                    f"({self._rows.where(int(first))}); keep one of the two"
                )


@dataclass(frozen=True)
class _Index:
    """Rows by group, hash of the item, sample index; ``place`` is where the row is in the file."""

    group: Numbers
    item: Numbers
    sample: Numbers
    place: Numbers

    def of(self, group: int, item_id: str) -> tuple[Numbers, Numbers]:
        """Sample indices and places of one item's rows."""
        low, high = np.searchsorted(self.group, [group, group + 1])
        code = _hash(item_id)
        first = low + np.searchsorted(self.item[low:high], code)
        last = low + np.searchsorted(self.item[low:high], code, side="right")
        return self.sample[first:last], self.place[first:last]


def _scan(rows: RecordedRows) -> tuple[list[tuple[str | None, str | None]], _Index]:
    """The groups in order of appearance, and one entry a row. Samples without an index are counted."""
    groups: dict[tuple[str | None, str | None], int] = {}
    counted: dict[tuple[int, str], int] = {}
    columns = [array("q") for _ in range(4)]
    for number, (place, row) in enumerate(rows.scan(), start=1):
        where = f"{rows.path}:{number}"
        item_id = item_of(row, where)
        name = (_name(row.get("model_name")), _name(row.get("prompt_template")))
        group = groups.setdefault(name, len(groups))
        sample = sample_of(row, item_id, where)
        if sample is None:
            sample = counted.get((group, item_id), 0)
            counted[group, item_id] = sample + 1
        for column, entry in zip(columns, (group, _hash(item_id), sample, place), strict=True):
            column.append(entry)
    if not groups:
        raise NightjarError(f"{rows.path} holds no responses")
    return list(groups), _Index(*(np.frombuffer(column, dtype=np.int64) for column in columns))


def _name(value: Any) -> str | None:
    return None if value is None else str(value)


def _hash(item_id: str) -> int:
    return int.from_bytes(
        blake2b(item_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True
    )


def open_recorded(path: Path) -> Recorded:
    """The file, indexed once a process for each of its versions."""
    if not path.is_file():
        recorded_rows(path)  # says what is wrong with it
    stat = path.stat()
    return _opened(path.resolve(), stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _opened(path: Path, _modified: int, _size: int) -> Recorded:
    return Recorded(path)
