"""How many processes a run has, and a Dask cluster's address."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from flows.eval import flow, runners
from flows.eval.runners import MANY_RESPONSES, computing, processes_for, task_runner_named
from flows.plan.steps import Cell
from tasks.prefect_adapter import ClusterThreads
from tasks.store.storage import Store
from tests.waiting import until


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


@pytest.mark.parametrize(("store", "processes"), [("memory://x", 1), ("folder", 3)])
def test_a_store_in_memory_keeps_the_steps_in_its_process(
    store: str, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = SimpleNamespace(task_runner=task_runner_named("threads"))
    monkeypatch.setattr(runners.FlowRunContext, "get", lambda: run)
    with computing(3, [Cell("m", "p", 0, MANY_RESPONSES)], tmp_path, Store(store)) as workers:
        assert workers.count == processes


def test_a_run_that_is_stopped_waits_for_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    @contextmanager
    def cluster() -> Iterator[None]:
        yield
        ended.append("ended")

    monkeypatch.setattr(flow, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(flow, "get_client", lambda **_: nullcontext(SimpleNamespace(read_flow_run=_away)))
    with ClusterThreads(cluster, 1) as runner:
        monkeypatch.setattr(runners.FlowRunContext, "get", lambda: SimpleNamespace(task_runner=runner))
        with flow.under_control("run", "00000000-0000-0000-0000-000000000000") as control:
            control.stop("cancelled", "the run was cancelled")
            until(lambda: ended, "the cluster is ended")


def _away(_id: object) -> None:
    raise httpx.ConnectError("the server does not answer")


@pytest.mark.services
def test_a_dask_cluster_begins_beside_another_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    from tasks.processes.cluster import cluster_at

    with ExitStack() as stack:
        taken = stack.enter_context(socket.socket())
        with suppress(OSError):  # it is taken already
            taken.bind(("127.0.0.1", 8787))
            taken.listen()
        client = stack.enter_context(cluster_at("")())
        assert client.submit(sum, [1, 2]).result() == 3
    assert [str(warning.message) for warning in recwarn if "Port" in str(warning.message)] == []
