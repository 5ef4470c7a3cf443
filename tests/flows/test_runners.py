"""Futures that know their state without a server; there is none in these tests."""

import socket
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import State
from prefect.exceptions import UpstreamTaskError
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Failed

from flows.eval import runners
from flows.eval.runners import (
    MANY_RESPONSES,
    EndedFuture,
    LocalFuture,
    ProcessFuture,
    processes_for,
    task_runner_named,
)
from flows.plan.steps import Cell


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


def test_a_task_of_another_process_behind_a_failed_one_is_not_ready() -> None:
    running: Future[State[int]] = Future()
    running.set_exception(UpstreamTaskError("serve did not reach a 'COMPLETED' state"))
    future: ProcessFuture[Any] = ProcessFuture(uuid4(), running)  # type: ignore[arg-type]
    future.wait()
    assert (future.state.name, future.state.message) == (
        "NotReady",
        "serve did not reach a 'COMPLETED' state",
    )


def test_a_task_that_may_fail_is_waited_for_and_no_more() -> None:
    running: Future[State[int]] = Future()
    running.set_result(Failed())
    assert EndedFuture(uuid4(), running).state.is_completed()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("runner", "asked", "responses", "processes"),
    [
        ("threads", None, MANY_RESPONSES - 1, 1),
        ("threads", None, MANY_RESPONSES, 4),
        ("threads", 1, MANY_RESPONSES, 1),
        ("threads", 3, 10, 3),
        ("processes", None, MANY_RESPONSES, 1),
        ("processes", 3, MANY_RESPONSES, 1),
    ],
)
def test_large_runs_have_a_process_a_core(
    runner: str, asked: int | None, responses: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SimpleNamespace(task_runner=task_runner_named(runner))
    monkeypatch.setattr(runners.FlowRunContext, "get", lambda: run)
    monkeypatch.setattr(runners, "cores", lambda: 4)
    cells = [Cell("m", "p", start, min(start + 6_000, responses)) for start in range(0, responses, 6_000)]
    assert processes_for(asked, cells) == processes


def test_processes_are_neither_more_than_partitions_nor_than_memory_bears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = SimpleNamespace(task_runner=task_runner_named("threads"))
    monkeypatch.setattr(runners.FlowRunContext, "get", lambda: run)
    monkeypatch.setattr(runners, "cores", lambda: 64)
    for cells, processes in ((2, 2), (64, 8)):
        grid = [Cell("m", "p", n * MANY_RESPONSES, (n + 1) * MANY_RESPONSES) for n in range(cells)]
        assert processes_for(None, grid) == processes


@pytest.mark.services
def test_a_dask_cluster_begins_beside_another_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    from distributed import LocalCluster

    runner = task_runner_named("dask")
    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        with suppress(OSError):  # it is taken already
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        own = runner.cluster_kwargs  # type: ignore[attr-defined]
        stack.enter_context(LocalCluster(n_workers=0, processes=False, **own))
    assert [str(warning.message) for warning in recwarn if "Port" in str(warning.message)] == []
