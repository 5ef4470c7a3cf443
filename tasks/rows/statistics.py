"""Scores of samples as STATISTICS rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from scorers.base import SampleScores
from tasks.store.keys import value_text
from tasks.store.schemas import STATISTICS, TEXT


def statistics_batch(samples: pa.Table, scored: SampleScores) -> pa.RecordBatch:
    """STATISTICS rows of a batch; ``samples`` has its item_id, doc_id and sample_index, row for row."""
    scores, n = scored.scores, len(scored)
    absent = pa.nulls(n, pa.string())
    columns = {
        "item_id": samples.column("item_id").combine_chunks(),
        "doc_id": samples.column("doc_id").combine_chunks(),
        "sample_index": samples.column("sample_index").combine_chunks(),
        "label": pa.nulls(n, pa.string()).dictionary_encode().cast(TEXT),
        "scored": pa.array(scored.scored),
        "score": pa.array(scores.score, mask=~scored.scored | np.isnan(scores.score)),
        "statistics": _vectors(scored),
        "value_json": absent
        if scores.values is None
        else pa.array(_texts(scores.values, scored, value_text), pa.string()),
        "code": pa.array(scored.codes, pa.int64()),
        "passed": pa.nulls(n, pa.bool_()),
        "details_json": absent
        if scores.details is None
        else pa.array(_texts(scores.details, scored, _detail_text), pa.string()),
        "error": pa.array(list(scored.errors), pa.string()),
        "evaluation_time": pa.nulls(n, pa.float64()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in STATISTICS.names], schema=STATISTICS)


def _vectors(scored: SampleScores) -> pa.Array:
    """The statistics as lists; null where a sample is unscored or the metric keeps values."""
    statistics, n = scored.scores.statistics, len(scored)
    if statistics is None:
        return pa.nulls(n, pa.list_(pa.float64()))
    width = statistics.shape[1]
    present = np.asarray(scored.scored, dtype=bool)
    offsets = np.concatenate([[0], np.cumsum(present * width)]).astype(np.int32)
    flat = pa.array(np.ascontiguousarray(statistics[present]).ravel(), pa.float64())
    mask = None if present.all() else pa.array(~present)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=mask)


def _texts(values: Any, scored: SampleScores, write: Callable[[Any], str]) -> list[str | None]:
    return [
        write(value) if value is not None and kept else None
        for value, kept in zip(values, scored.scored, strict=True)
    ]


def _detail_text(value: Any) -> str:
    """Details are for people and for other programs: JSON as everyone reads it."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, option=options, default=str).decode()
