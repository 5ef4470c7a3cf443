"""What the tests of the metrics share: building metrics from configs, and batches of choices from lists."""

import fcntl
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.metric import Metric
from metrics.registry import AGGREGATIONS, METRICS, REDUCTIONS
from metrics.text.ter import edit_counter
from metrics.types import ChoiceBatch

# The same examples in every run, and no clock: a busy machine is no failure.
settings.register_profile("nightjar", deadline=None, derandomize=True)
settings.load_profile("nightjar")


def _no_user_code(reference: str) -> Any:
    raise AssertionError(f"nothing to resolve here: {reference}")


@pytest.fixture(autouse=True)
def names_registered_by_a_test_go_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (METRICS, AGGREGATIONS, REDUCTIONS):
        assert len(registry), "loads the package first"
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.fixture(scope="session", autouse=True)
def one_worker_compiles_what_the_others_load(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Numba takes seven seconds, and keeps what it made beside the module."""
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with (shared / "compiles-ter").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert edit_counter()(["a"], ["b"]) == (1, 1)


@pytest.fixture(scope="session")
def build() -> Callable[..., Metric]:
    """A metric from what a YAML entry would hold."""

    def make(entry: Any, output_type: Any = None, resolve: Callable[[str], Any] = _no_user_code) -> Metric:
        return build_metric(MetricConfig.model_validate(entry), resolve, output_type)

    return make


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., ChoiceBatch]:
    """A ``ChoiceBatch`` from one list an item."""

    def make(
        lls: Sequence[Sequence[float]],
        gold: Sequence[Sequence[int]],
        choices: Sequence[Sequence[str]] | None = None,
        greedy: Sequence[Sequence[bool]] | None = None,
        unconditional: Sequence[Sequence[float]] | None = None,
    ) -> ChoiceBatch:
        choices = choices or [["x"] * len(own) for own in lls]
        greedy = greedy or [[False] * len(own) for own in lls]
        texts = [text for own in choices for text in own]

        def lengths(measure: Callable[[str], int]) -> Any:
            return np.array([measure(text) for text in texts], dtype=np.int32)

        def flat(rows: Sequence[Sequence[Any]], dtype: Any) -> Any:
            return np.array([value for row in rows for value in row], dtype=dtype)

        def offsets(rows: Sequence[Sequence[Any]]) -> Any:
            return np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])

        return ChoiceBatch(
            lls=flat(lls, np.float64),
            is_greedy=flat(greedy, np.bool_),
            offsets=offsets(lls),
            gold=flat(gold, np.int32),
            gold_offsets=offsets(gold),
            chars=lengths(len),
            bytes=lengths(lambda text: len(text.encode())),
            words=lengths(lambda text: len(text.split())),
            unconditional=None if unconditional is None else flat(unconditional, np.float64),
        )

    return make
