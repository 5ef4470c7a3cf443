"""How samples are held in memory: as flat arrays of the columns needed, read batch by batch.

``read_statistics`` gives ``samples`` one table for each part; ``concatenate`` makes one of all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrics.errors import NightjarError
from tasks.reduction.facets import Codes, Vocabulary, integers
from tasks.rows.parts import Part, locate, resolve_json
from tasks.store.keys import text_value
from tasks.store.schemas import OUTCOMES

_ARRAYS = ("doc_id", "part", "sample_index", "label", "scored", "outcome", "score", "code")
_NUMBERS = ("doc_id", "sample_index", "label", "scored", "outcome", "code")


@dataclass(frozen=True)
class SampleTable:
    """m samples: arrays (m,), statistics (m, k), JSON values of kind "values", and codes (m,) of facets.

    ``part`` numbers the part a sample is from, which orders the repeats of an item that come from several
    models; ``label`` numbers the label, −1 for none; ``outcome`` is the place in OUTCOMES, −1 for
    none.
    """

    doc_id: Codes
    part: Codes
    sample_index: Codes
    label: Codes
    scored: NDArray[np.bool_]
    outcome: Codes
    score: NDArray[np.float64]
    code: Codes
    statistics: NDArray[np.float64] | None = None
    values: list[Any] | None = None
    facets: Mapping[str, Codes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.doc_id)

    def take(self, rows: Codes) -> "SampleTable":
        """The samples at ``rows``, in that order, without their facets."""
        arrays = {
            entry.name: value[rows]
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), np.ndarray)
        }
        values = None if self.values is None else [self.values[row] for row in rows.tolist()]
        return replace(self, **arrays, values=values, facets={})


@dataclass(frozen=True)
class StatisticsLayout:
    """What is read of the statistics: the facets' paths, the kind of statistics, the column of the scores.

    ``passed`` as score makes 0 and 1 of verdicts, for metrics over evaluation results; a sample that has no
    number in that column is unscored for the metric.
    """

    facets: Sequence[str]
    kind: Literal["sums", "values", "score"] = "score"
    score: Literal["score", "passed"] = "score"
    references: bool = False  # a user's reduction looks at them


def read_statistics(
    part: Part,
    number: int,
    layout: StatisticsLayout,
    labels: Vocabulary,
    vocabularies: Mapping[str, Vocabulary],
) -> SampleTable:
    """The statistics of part ``number``, with the codes of the facets that are read from them."""
    located = {facet: locate(facet) for facet in layout.facets}
    own = {facet: name for facet, (source, name) in located.items() if source == "statistic"}
    details = {facet: name for facet, (source, name) in located.items() if source == "details"}
    columns = [*_NUMBERS, *_score_columns(layout), *own.values(), *(["details_json"] if details else [])]
    tables = []
    for batch in part.statistics(list(dict.fromkeys(columns))):
        codes = {facet: vocabularies[facet].encode(batch.column(name)) for facet, name in own.items()}
        for facet, path in details.items():
            codes[facet] = vocabularies[facet].encode(
                batch.column("details_json"), partial(resolve_json, path=path)
            )
        tables.append(replace(_numbers(batch, number, layout, labels), facets=codes))
    return concatenate(tables) if tables else empty_table([*own, *details])


def concatenate(tables: Sequence[SampleTable]) -> SampleTable:
    """All samples of several tables (at least one), which carry the same facets."""
    arrays = {name: np.concatenate([getattr(table, name) for table in tables]) for name in _ARRAYS}
    facets = {facet: np.concatenate([table.facets[facet] for table in tables]) for facet in tables[0].facets}
    return SampleTable(**arrays, statistics=_statistics(tables), values=_values(tables), facets=facets)


def empty_table(facets: Sequence[str]) -> SampleTable:
    """No samples."""
    none = np.empty(0, dtype=np.int64)
    return SampleTable(
        doc_id=none,
        part=none,
        sample_index=none,
        label=none,
        scored=none.astype(bool),
        outcome=none,
        score=none.astype(float),
        code=none,
        facets=dict.fromkeys(facets, none),
    )


def _statistics(tables: Sequence[SampleTable]) -> NDArray[np.float64] | None:
    """One matrix; zeros for a table without any scored sample, which has none."""
    widths = {table.statistics.shape[1] for table in tables if table.statistics is not None}
    if not widths:
        return None
    width = max(widths)
    return np.concatenate(
        [np.zeros((len(table), width)) if table.statistics is None else table.statistics for table in tables]
    )


def _values(tables: Sequence[SampleTable]) -> list[Any] | None:
    """One list; the scores stand in for the values of a table that has none."""
    if all(table.values is None for table in tables):
        return None
    return [value for table in tables for value in (table.values or table.score.tolist())]


def _score_columns(layout: StatisticsLayout) -> list[str]:
    extra = {"sums": ["statistics"], "values": ["value_json"], "score": []}[layout.kind]
    return [layout.score, *extra]


def _numbers(batch: pa.RecordBatch, number: int, layout: StatisticsLayout, labels: Vocabulary) -> SampleTable:
    score = batch.column(layout.score).cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    scored = batch.column("scored").to_numpy(zero_copy_only=False)
    if layout.kind == "score":
        scored = scored & np.isfinite(score)
    values = batch.column("value_json") if layout.kind == "values" else None
    return SampleTable(
        doc_id=integers(batch, "doc_id"),
        part=np.full(len(batch), number),
        sample_index=integers(batch, "sample_index"),
        label=labels.encode_known(batch.column("label")),
        scored=scored,
        outcome=_outcomes(batch.column("outcome")),
        score=score,
        code=integers(batch, "code"),
        statistics=_vectors(batch.column("statistics")) if layout.kind == "sums" else None,
        values=None if values is None or values.null_count == len(values) else _objects(values, score),
    )


def _outcomes(column: pa.Array) -> Codes:
    places = pc.index_in(column.cast(pa.string()), value_set=pa.array(OUTCOMES, pa.string()))
    return np.asarray(places.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _vectors(column: pa.Array) -> NDArray[np.float64] | None:
    """A column of lists of one length as a matrix (rows, k), zeros where it is null; None where all are."""
    present = column.is_valid().to_numpy(zero_copy_only=False)
    if not present.any():
        return None
    flat = column.drop_null().flatten().to_numpy(zero_copy_only=False)
    width, rest = divmod(len(flat), int(present.sum()))
    if rest:
        raise NightjarError("the statistics of a pair differ in width; run again with --refresh score")
    matrix = np.zeros((len(column), width))
    matrix[present] = flat.reshape(-1, width)
    return matrix


def _objects(column: pa.Array, score: NDArray[np.float64]) -> list[Any]:
    texts = column.to_pylist()
    return [
        number if text is None else text_value(text)
        for text, number in zip(texts, score.tolist(), strict=True)
    ]
