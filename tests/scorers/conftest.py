"""Batches and user code for the tests of scorers."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from metrics.errors import ConfigError
from metrics.types import Answer
from scorers.base import Batch
from scorers.choices import ChoiceColumns, choice_batch
from scorers.filters.pipeline import FILTERS


@pytest.fixture(autouse=True)
def names_registered_by_a_test_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(FILTERS), "loads the package first"
    monkeypatch.setattr(FILTERS, "_entries", dict(FILTERS._entries))


def load_user_code() -> Any:
    spec = importlib.util.spec_from_file_location(
        "scorer_cases_user_code", Path(__file__).with_name("user_code.py")
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


USER_CODE = load_user_code()


@pytest.fixture
def resolve() -> Callable[[str], Any]:
    """``file.py:name`` → what the tests' user file has under that name."""

    def find(reference: str) -> Any:
        found = getattr(USER_CODE, reference.rpartition(":")[2], None)
        if found is None:
            raise ConfigError(f"{reference} is not there")
        return found

    return find


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    """A batch of one sample per item from a few columns; ``failed`` lists the rows whose request failed."""
    return build_batch


def build_batch(
    predictions=None, references=None, docs=None, failed=(), lls=None, gold=None, choices=None, **columns
):
    n = len(predictions if predictions is not None else lls)
    scored = np.ones(n, dtype=bool)
    scored[list(failed)] = False
    return Batch(
        item_ids=columns.get("item_ids", [f"item-{row}" for row in range(n)]),
        sample_index=np.asarray(columns.get("sample_index", np.zeros(n)), dtype=np.int32),
        scored=scored,
        predictions=predictions if predictions is not None else [None] * n,
        references=references if references is not None else [[] for _ in range(n)],
        docs=docs if docs is not None else [{} for _ in range(n)],
        responses=columns.get("responses", predictions if predictions is not None else [None] * n),
        choices=None
        if lls is None
        else build_choices(lls, gold, choices, scored, alone=columns.get("alone")),
        answers=[Answer(None, [], [], [], one) for one in columns["metadata"]]
        if "metadata" in columns
        else None,
    )


def build_choices(lls, gold, choices, scored, alone=None):
    """``alone`` are the pairs (log-likelihood, greedy) of the same choices without context."""
    flags = [[False] * len(row) for row in lls]
    texts = [[" " + text for text in row] for row in choices]
    return choice_batch(
        ChoiceColumns(
            item_ids=[f"item-{row}" for row in range(len(lls))],
            scored=scored,
            lls=pa.array(lls, pa.list_(pa.float64())),
            is_greedy=pa.array(flags, pa.list_(pa.bool_())),
            gold=pa.array(gold, pa.list_(pa.int32())),
            continuations=pa.array(texts, pa.list_(pa.string())),
            choices=pa.array(choices, pa.list_(pa.string())),
            unconditional_lls=alone and pa.array([[ll for ll, _ in row] for row in alone]),
            unconditional_greedy=alone
            and pa.array(
                [None if (None in dict(row).values()) else [flag for _, flag in row] for row in alone],
                pa.list_(pa.bool_()),
            ),
        )
    )
