"""Futures that know their state without a server; there is none in these tests."""

from concurrent.futures import Future
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed

from flows.eval.runners import LocalFuture


@pytest.fixture(autouse=True)
def no_server() -> Any:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        yield


def test_a_future_is_pending_until_its_thread_has_returned() -> None:
    running: Future[State[int]] = Future()
    future: LocalFuture[Any] = LocalFuture(uuid4(), running)  # type: ignore[arg-type]
    assert future.state.is_pending()
    running.set_result(Completed(data=3))
    assert future.state.is_completed()


def test_a_cancelled_future_stays_pending() -> None:
    running: Future[State[int]] = Future()
    running.cancel()
    assert LocalFuture(uuid4(), running).state.is_pending()  # type: ignore[arg-type]
