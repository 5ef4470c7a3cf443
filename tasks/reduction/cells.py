"""Item rows as flat arrays, cut into cells: one a reduction × label × facet group."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.reduction.facets import Codes, Vocabulary, integers
from tasks.store.values import text_value

_KEYS = ("reduction", "label", "facets")
COLUMNS = (*_KEYS, "item_id", "cluster", "value", "statistics", "value_json", "n_samples", "n_scored")
"""The columns of ITEM_ROWS that cells are made of."""
_NAMED = 3


@dataclass(frozen=True)
class Cell:
    """The n scored items of one result, and the counts of all items that belong to it.

    ``statistics`` (n, k) or ``values`` (n) are what the aggregation takes, ``clusters`` (n,) numbers the
    clusters; ``unscored`` names the first few items without an outcome under this reduction.
    """

    reduction: str
    label: str | None
    facets: str
    statistics: NDArray[np.float64] | None
    values: Sequence[Any] | None
    clusters: Codes | None
    n_items: int
    n_samples: int
    n_scored: int
    unscored: Sequence[str]

    @property
    def n_valid(self) -> int:
        """Items that have an outcome."""
        return len(self.statistics if self.statistics is not None else self.values or ())

    @property
    def n_lost(self) -> int:
        """Items that have none."""
        return self.n_items - self.n_valid


@dataclass
class _Columns:
    """What the batches gave, column by column."""

    cell: list[Codes] = field(default_factory=list)
    cluster: list[Codes] = field(default_factory=list)
    valid: list[NDArray[np.bool_]] = field(default_factory=list)
    value: list[NDArray[np.float64]] = field(default_factory=list)
    statistics: list[NDArray[np.float64]] = field(default_factory=list)
    n_samples: list[Codes] = field(default_factory=list)
    n_scored: list[Codes] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    unscored: dict[int, list[str]] = field(default_factory=dict)


def cells(item_rows: Iterable[pa.RecordBatch]) -> Iterator[Cell]:
    """The cells in order of appearance, from batches that hold ``COLUMNS`` of ITEM_ROWS."""
    names, clusters, columns = Vocabulary(), Vocabulary(), _Columns()
    for batch in item_rows:
        if len(batch):
            _take(batch, names, clusters, columns)
    if not columns.cell:
        return
    cell = np.concatenate(columns.cell)
    order = np.argsort(cell, kind="stable")
    bounds = np.searchsorted(cell[order], np.arange(len(names.values) + 1))
    whole = _Joined.of(columns)
    for number, (reduction, label, facets) in enumerate(names.values):
        rows = order[bounds[number] : bounds[number + 1]]
        yield whole.cell((reduction, label, facets), rows, columns.unscored.get(number, []))


def _take(batch: pa.RecordBatch, names: Vocabulary, clusters: Vocabulary, columns: _Columns) -> None:
    cell = _cell_codes(batch, names)
    value_null = batch.column("value").is_null().to_numpy(zero_copy_only=False)
    statistics, texts = batch.column("statistics"), batch.column("value_json")
    valid = ~value_null
    if statistics.null_count < len(batch):
        valid = statistics.is_valid().to_numpy(zero_copy_only=False)
        flat = statistics.drop_null().flatten().to_numpy(zero_copy_only=False)
        columns.statistics.append(flat.reshape(int(valid.sum()), -1))
    elif texts.null_count < len(batch):
        valid = texts.is_valid().to_numpy(zero_copy_only=False)
        columns.objects.extend(text_value(text) for text in texts.drop_null().to_pylist())
    columns.cell.append(cell)
    columns.valid.append(valid)
    columns.cluster.append(clusters.encode_known(batch.column("cluster")))
    columns.value.append(batch.column("value").fill_null(np.nan).to_numpy(zero_copy_only=False))
    columns.n_samples.append(integers(batch, "n_samples"))
    columns.n_scored.append(integers(batch, "n_scored"))
    _name_unscored(batch, cell, valid, columns.unscored)


def _cell_codes(batch: pa.RecordBatch, names: Vocabulary) -> Codes:
    """The number of each row's (reduction, label, facets)."""
    encoded = [batch.column(name).dictionary_encode() for name in _KEYS]
    tables = [[*column.dictionary.to_pylist(), None] for column in encoded]
    indices = [
        column.indices.fill_null(len(table) - 1).to_numpy(zero_copy_only=False)
        for column, table in zip(encoded, tables, strict=True)
    ]
    keys = np.stack(indices, axis=1)
    distinct, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    codes = np.empty(len(distinct), dtype=np.int64)
    for row in np.argsort(first).tolist():
        codes[row] = names.code([table[index] for table, index in zip(tables, distinct[row], strict=True)])
    return codes[inverse.ravel()]


def _name_unscored(
    batch: pa.RecordBatch, cell: Codes, valid: NDArray[np.bool_], named: dict[int, list[str]]
) -> None:
    lost = np.flatnonzero(~valid)
    fresh = lost[[len(named.get(code, ())) < _NAMED for code in cell[lost].tolist()]] if len(lost) else lost
    for row in fresh.tolist():
        names = named.setdefault(int(cell[row]), [])
        if len(names) < _NAMED:
            names.append(batch.column("item_id")[row].as_py())


@dataclass(frozen=True)
class _Joined:
    """All batches' columns end to end; ``place`` says where a valid row's statistics or object stand."""

    valid: NDArray[np.bool_]
    place: Codes
    value: NDArray[np.float64]
    cluster: Codes
    statistics: NDArray[np.float64] | None
    objects: list[Any] | None
    n_samples: Codes
    n_scored: Codes

    @classmethod
    def of(cls, columns: _Columns) -> "_Joined":
        valid = np.concatenate(columns.valid)
        return cls(
            valid=valid,
            place=np.cumsum(valid) - 1,
            value=np.concatenate(columns.value),
            cluster=np.concatenate(columns.cluster),
            statistics=np.concatenate(columns.statistics) if columns.statistics else None,
            objects=columns.objects or None,
            n_samples=np.concatenate(columns.n_samples),
            n_scored=np.concatenate(columns.n_scored),
        )

    def cell(self, name: tuple[str, str | None, str], rows: Codes, unscored: Sequence[str]) -> Cell:
        valid = rows[self.valid[rows]]
        reduction, label, facets = name
        return Cell(
            reduction=reduction,
            label=label,
            facets=facets,
            statistics=None if self.statistics is None else self.statistics[self.place[valid]],
            values=self._values(valid) if self.statistics is None else None,
            clusters=_own_cluster(self.cluster[valid]),
            n_items=len(rows),
            n_samples=int(self.n_samples[rows].sum()),
            n_scored=int(self.n_scored[rows].sum()),
            unscored=unscored,
        )

    def _values(self, rows: Codes) -> list[Any]:
        if self.objects is None:
            return list(self.value[rows].tolist())
        return [self.objects[place] for place in self.place[rows].tolist()]


def _own_cluster(clusters: Codes) -> Codes | None:
    """None where no item has a cluster; an item without one beside others that have is its own cluster."""
    alone = clusters < 0
    if alone.all():
        return None
    top = int(clusters.max()) + 1
    return np.where(alone, top + np.arange(len(clusters)), clusters)
