"""Samples as flat arrays: numbers only, so that a million samples need no more than their numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.reduction.facets import Codes


@dataclass(frozen=True)
class Table:
    """m samples: arrays (m,), statistics (m, k), JSON values of kind "values", and codes (m,) of facets.

    ``part`` numbers the part a sample is from, which orders the repeats of an item that come from several
    models; ``label`` numbers the label, −1 for none.
    """

    doc_id: Codes
    part: Codes
    sample_index: Codes
    label: Codes
    scored: NDArray[np.bool_]
    score: NDArray[np.float64]
    code: Codes
    statistics: NDArray[np.float64] | None = None
    values: list[Any] | None = None
    facets: Mapping[str, Codes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.doc_id)

    def take(self, rows: Codes) -> "Table":
        """The samples at ``rows``, in that order, without their facets."""
        arrays = {
            entry.name: value[rows]
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), np.ndarray)
        }
        values = None if self.values is None else [self.values[row] for row in rows.tolist()]
        return replace(self, **arrays, values=values, facets={})


_ARRAYS = ("doc_id", "part", "sample_index", "label", "scored", "score", "code")


def concatenate(tables: Sequence[Table]) -> Table:
    """All samples of several tables (at least one), which carry the same facets."""
    arrays = {name: np.concatenate([getattr(table, name) for table in tables]) for name in _ARRAYS}
    facets = {facet: np.concatenate([table.facets[facet] for table in tables]) for facet in tables[0].facets}
    return Table(**arrays, statistics=_statistics(tables), values=_values(tables), facets=facets)


def _statistics(tables: Sequence[Table]) -> NDArray[np.float64] | None:
    """One matrix; zeros for a table without any scored sample, which has none."""
    widths = {table.statistics.shape[1] for table in tables if table.statistics is not None}
    if not widths:
        return None
    width = max(widths)
    return np.concatenate(
        [np.zeros((len(table), width)) if table.statistics is None else table.statistics for table in tables]
    )


def _values(tables: Sequence[Table]) -> list[Any] | None:
    """One list; the scores stand in for the values of a table that has none."""
    if all(table.values is None for table in tables):
        return None
    return [value for table in tables for value in (table.values or table.score.tolist())]


def empty_table(facets: Sequence[str]) -> Table:
    """No samples."""
    none = np.empty(0, dtype=np.int64)
    return Table(
        doc_id=none,
        part=none,
        sample_index=none,
        label=none,
        scored=none.astype(bool),
        score=none.astype(float),
        code=none,
        facets=dict.fromkeys(facets, none),
    )
