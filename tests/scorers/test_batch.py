"""A batch of samples, and the part of it that is one row."""

from dataclasses import fields

import numpy as np

from metrics.types import Answer
from scorers.base import Batch


def test_a_row_alone_has_every_column_of_its_batch() -> None:
    answers = [Answer(text, [], [], []) for text in ("one", "two")]
    batch = Batch(
        item_ids=["a", "b"], sample_index=np.array([0, 1], dtype=np.int32), scored=np.array([True, False]),
        predictions=["1", None], references=[["1"], ["2"]], docs=[{"n": 1}, {"n": 2}],
        responses=["one", None], answers=answers, gold=[[0], [1]], readings=[{"rule": "x"}, None],
        lacking=[None, "cut_off"],
    )  # fmt: skip
    for row in (0, 1):
        alone = batch.only(row)
        for column in fields(Batch):
            if column.name != "choices":  # belong to log-likelihoods, which are scored side by side
                assert list(getattr(alone, column.name)) == [getattr(batch, column.name)[row]], column.name
    assert batch.only(1).lacks_answer(0)
