"""What users' code may raise, and what becomes of it."""

import asyncio
import signal
from typing import Any

import pytest
from prefect._internal.concurrency.cancellation import CancelledError as WatchedOut
from prefect.exceptions import Abort, TerminationSignal

from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.errors import MetricError
from tasks.benchmarks.lm_eval.trial import EndlessError


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
        (asyncio.CancelledError(), "CancelledError"),
        (Abort("no"), "Abort: no"),
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


@pytest.mark.parametrize(
    "raised", [KeyboardInterrupt(), TerminationSignal(signal.SIGTERM), WatchedOut(), EndlessError()]
)
def test_what_is_sent_to_a_thread_ends_what_it_does(raised: BaseException) -> None:
    with pytest.raises(type(raised)):
        called(raised)


def test_a_task_that_a_metric_waits_for_and_that_is_cancelled_fails_the_metric() -> None:
    async def waits() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    def mine(references: Any, predictions: Any) -> float:
        asyncio.run(waits())
        return 1.0

    metric = build_metric(MetricConfig(metric="own.py:mine"), lambda _: mine)
    with pytest.raises(MetricError, match="CancelledError"):
        metric.evaluate([["1"]], ["1"])
