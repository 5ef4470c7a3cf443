"""Rows of conversations."""

from typing import Any

import pyarrow as pa

from tasks.models.usage import SUMMED
from tasks.rows.turns import last_answers
from tasks.store.schemas import RESPONSES, row_batch


def turn(*rows: dict[str, Any]) -> list[pa.RecordBatch]:
    place = {"sample_index": 0, "item_id": "1"}
    return [row_batch([{**place, "doc_id": at, **row} for at, row in enumerate(rows)], RESPONSES)]


def test_a_conversation_that_failed_has_the_tokens_of_the_turns_before() -> None:
    """What they used was paid: the sums of a page's rows are those of its run."""
    answer = {"status": "ok", **dict.fromkeys(SUMMED, 10)}
    failed = {"status": "infra_error", "error": "HTTP 500"}
    first, second = turn(answer, answer, answer), turn(answer, failed, {"status": "ok"})
    (batch,) = last_answers([first, second])
    tokens = [[row[name] for name in SUMMED] for row in batch.to_pylist()]
    # Of a reply that counts nothing it is not known what it used.
    assert tokens == [[20] * len(SUMMED), [10] * len(SUMMED), [None] * len(SUMMED)]
    assert batch.column("status").to_pylist() == ["ok", "infra_error", "ok"]
