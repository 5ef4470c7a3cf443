"""Reads the columns of one part that a reduction needs, batch by batch, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from metrics.errors import NightjarError
from tasks.reduction.facets import Vocabulary, integers
from tasks.reduction.paths import locate, resolve_json
from tasks.reduction.records import Part
from tasks.reduction.table import Table, concatenate, empty_table
from tasks.store.values import text_value

_NUMBERS = ("doc_id", "sample_index", "label", "scored", "code")


@dataclass(frozen=True)
class Layout:
    """What is read of the statistics: the facets' paths, the kind of statistics, the column of the scores.

    ``passed`` as score makes 0 and 1 of verdicts, for metrics over evaluation results; a sample that has no
    number in that column is unscored for the metric.
    """

    facets: Sequence[str]
    kind: Literal["sums", "values", "score"] = "score"
    score: Literal["score", "passed"] = "score"
    references: bool = False  # a user's reduction looks at them


def read_statistics(
    part: Part, number: int, layout: Layout, labels: Vocabulary, vocabularies: Mapping[str, Vocabulary]
) -> Table:
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


def _score_columns(layout: Layout) -> list[str]:
    extra = {"sums": ["statistics"], "values": ["value_json"], "score": []}[layout.kind]
    return [layout.score, *extra]


def _numbers(batch: pa.RecordBatch, number: int, layout: Layout, labels: Vocabulary) -> Table:
    score = batch.column(layout.score).cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    scored = batch.column("scored").to_numpy(zero_copy_only=False)
    if layout.kind == "score":
        scored = scored & np.isfinite(score)
    values = batch.column("value_json") if layout.kind == "values" else None
    return Table(
        doc_id=integers(batch, "doc_id"),
        part=np.full(len(batch), number),
        sample_index=integers(batch, "sample_index"),
        label=labels.encode_known(batch.column("label")),
        scored=scored,
        score=score,
        code=integers(batch, "code"),
        statistics=_vectors(batch.column("statistics")) if layout.kind == "sums" else None,
        values=None if values is None or values.null_count == len(values) else _objects(values, score),
    )


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
