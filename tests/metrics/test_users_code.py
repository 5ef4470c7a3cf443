"""What users' code may raise, and what becomes of it."""

import asyncio
from typing import Any

import pytest

from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.errors import MetricError


class Outcome(BaseException):
    """As pytest's own."""


class Unsayable(ValueError):
    """One that fails to say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError


def called(raised: BaseException) -> None:
    def mine(references: Any, predictions: Any) -> float:
        raise raised

    build_metric(MetricConfig(metric="own.py:mine"), lambda _: mine).evaluate([["1"]], ["1"])


@pytest.mark.parametrize(
    ("raised", "named"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(), "SystemExit"),
        (GeneratorExit(), "GeneratorExit"),
        (Outcome("skipped"), "Outcome: skipped"),
        (Unsayable(), "Unsayable"),
        (ValueError("no"), "ValueError: no"),
    ],
)
def test_whatever_a_metric_raises_names_the_metric_and_the_row(raised: BaseException, named: str) -> None:
    with pytest.raises(
        MetricError, match=rf"'mine' failed on row 0: {named} \(test_users_code.py:\d+\)$"
    ) as error:
        called(raised)
    assert error.value.index == 0


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_interruption_stays_one(raised: BaseException) -> None:
    with pytest.raises(type(raised)):
        called(raised)
