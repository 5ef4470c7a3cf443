"""The Parquet form of kept answers: one row an answer, under its request key."""

import io
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.models.records import Answer
from tasks.store.schemas import TEXT

ROW_GROUP = 4_096

ANSWERS: Final = pa.schema(
    [
        pa.field("key", pa.binary(32), nullable=False),  # the request key
        pa.field(
            "arrived", pa.float64(), nullable=False
        ),  # seconds since 1970; of two answers the later counts
        pa.field("status", TEXT, nullable=False),  # ok | model_error; other failures are not kept
        pa.field("response", pa.string()),
        pa.field("reasoning", pa.string()),
        pa.field("error", pa.string()),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("finish_reason", TEXT),
        pa.field("response_id", pa.string()),
        pa.field("served_model", TEXT),
        pa.field("system_fingerprint", TEXT),
        pa.field("inference_time", pa.float64()),
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("total_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("reasoning_tokens", pa.int64()),
        pa.field("logprobs_json", pa.string()),  # as the server gave them
        pa.field("ll", pa.float64()),
        pa.field("is_greedy", pa.bool_()),
    ]
)
PLAIN: Final = tuple(field.name for field in fields(Answer) if field.name != "logprobs")


def table_of(answers: Sequence[Answer]) -> pa.Table:
    """Answers as a table of the ANSWERS schema."""
    columns: dict[str, list[Any]] = {name: [getattr(answer, name) for answer in answers] for name in PLAIN}
    columns["logprobs_json"] = [
        None if answer.logprobs is None else orjson.dumps(answer.logprobs).decode() for answer in answers
    ]
    return pa.table(
        {name: pa.array(columns[name], type=ANSWERS.field(name).type) for name in ANSWERS.names},
        schema=ANSWERS,
    )


def packed(tables: Sequence[pa.Table]) -> bytes:
    """One Parquet file of the tables' rows, with checksums on its pages."""
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, ANSWERS, compression="zstd", write_page_checksum=True, use_dictionary=_REPEATED
    ) as writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROW_GROUP)
    return sink.getvalue()


_REPEATED = ["status", "finish_reason", "served_model", "system_fingerprint", "attempts"]
