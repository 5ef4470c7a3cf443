"""Steps on a Dask cluster, whose one worker is a thread of the test's own process."""

import re
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from metrics.errors import ConfigError
from tasks.processes.workers import WorkerDied, workers, working_in
from tests.waiting import until

pytestmark = pytest.mark.services
cluster = pytest.importorskip("tasks.processes.cluster", reason="the extra dask is not installed")


def spelled(word: str, *, upper: bool = False) -> str:
    if not word:
        raise ConfigError("no word")
    return word.upper() if upper else word


def same(value: object) -> object:
    return value


@contextmanager
def one_worker(count: int = 1) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    places: dict[str, Any] = {"n_workers": count, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address="127.0.0.1:0", **places) as own,  # type: ignore[no-untyped-call]
        Client(own, set_as_default=False) as client,  # type: ignore[no-untyped-call]
    ):
        yield client


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Any]:
    with cluster.Cluster(one_worker) as opened:
        yield cluster.ClusterWorkers(opened, tmp_path / "out")


def test_a_call_comes_back_with_what_it_returned_or_raised(there: Any) -> None:
    with working_in(there):
        assert workers() is there
        assert workers().compute(spelled, "a", upper=True) == "A"
        with pytest.raises(ConfigError, match="no word"):
            workers().compute(spelled, "")
    assert workers() is not there


def test_what_can_not_be_sent_is_computed_here(there: Any) -> None:
    unsendable = Lock()
    assert there.compute(same, unsendable) is unsendable


def test_a_worker_of_other_code_refuses(there: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    there.start()
    replies = iter(["of the run", "of the worker"])
    monkeypatch.setattr(cluster, "whole_code", partial(next, replies))
    with pytest.raises(cluster.OtherCode, match=r"than the run .*: bring it to the same version"):
        there.compute(spelled, "a")


def test_a_step_that_is_lost_with_the_cluster_is_one_of_a_process_that_died(
    there: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: Future[bytes] = Future()
    lost.set_exception(CancelledError("its scheduler is away"))
    monkeypatch.setattr(cluster.Cluster, "compute", lambda *_: lost)
    with pytest.raises(WorkerDied, match="a step was lost in Dask's cluster: its scheduler is away"):
        there.compute(spelled, "a")


def test_a_cluster_that_ends_before_a_worker_came_waits_for_none(tmp_path: Path) -> None:
    with cluster.Cluster(partial(one_worker, 0)) as opened:
        waiting = cluster.ClusterWorkers(opened, tmp_path).submit(spelled, "a")
        assert not waiting.done()
    with pytest.raises(WorkerDied, match="a step was lost in Dask's cluster"):
        waiting.result(10)


def test_people_are_told_that_no_worker_has_come(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster, "NOTICE_SECONDS", 0.01)
    with cluster.Cluster(partial(one_worker, 0)):
        until(lambda: "no worker is at Dask's scheduler" in caplog.text, "the sentence is there")


def test_workers_that_were_lost_of_a_cluster_that_was_started_here_are_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that is slow to start again is given up by Dask, and so is one that is killed as it starts: a run
    that had lost both waited for ever, without a word."""
    monkeypatch.setattr(cluster, "NOTICE_SECONDS", 0.2)
    with cluster.Cluster(partial(one_worker, 2)) as opened:
        steps = cluster.ClusterWorkers(opened, tmp_path)
        steps.start()
        local = opened._client.result().cluster
        for name, worker in list(local.workers.items()):
            local.sync(worker.close)
            local.workers.pop(name, None)
        assert steps.submit(spelled, "a", upper=True).result(60) == "A"
        until(lambda: len(local.workers) == 2, "both are there again")


def test_a_step_for_a_scheduler_that_is_gone_is_one_of_a_process_that_died(there: Any) -> None:
    there.start()
    there._cluster._client.result().close()
    with pytest.raises(WorkerDied, match="a step was lost in Dask's cluster"):
        there.submit(spelled, "a").result()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A word for each call that a worker has computed."""
    words: list[str] = []
    monkeypatch.setattr(cluster, "reply_to", lambda call: words.append("sent") or _replied(call))
    return words


def test_files_of_results_are_written_there_only_by_workers_that_see_the_folder(
    there: Any, tmp_path: Path, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert there.offer(spelled, "a").result() == "a"
    assert sent == ["sent"]
    monkeypatch.setattr(cluster.os, "access", lambda *_: False)  # as a worker elsewhere, which came since
    assert there.offer(spelled, "a").result() == "a"
    assert sent == ["sent"]
    assert [*(tmp_path / "out").iterdir()] == []


def test_files_of_results_are_written_here_where_the_scheduler_is_gone(there: Any, sent: list[str]) -> None:
    there.start()
    there._cluster._client.result().close()
    assert there.offer(spelled, "a").result() == "a"
    assert sent == []


def test_files_of_results_that_are_lost_with_the_cluster_are_written_here(
    there: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: Future[bytes] = Future()
    lost.set_exception(CancelledError("its scheduler is away"))
    monkeypatch.setattr(cluster.Cluster, "compute", lambda *_: lost)
    assert there.offer(spelled, "a").result() == "a"


def test_files_of_results_wait_for_no_worker(tmp_path: Path) -> None:
    with cluster.Cluster(partial(one_worker, 0)) as opened:
        assert cluster.ClusterWorkers(opened, tmp_path).offer(spelled, "a").result() == "a"


def _replied(call: bytes) -> bytes:
    from tasks.processes.workers import reply_to

    return reply_to(call)


def watched(dask_worker: Any) -> bool:
    return "profile" in dask_worker.periodic_callbacks


def test_workers_of_a_cluster_that_is_started_here_do_not_watch_what_they_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "cores", lambda: 1)
    with cluster.cluster_at("")() as client:
        assert list(client.run(watched).values()) == [False]


def test_a_cluster_that_is_not_there_is_told_where_it_is_wanted() -> None:
    @contextmanager
    def nowhere() -> Iterator[Any]:
        raise OSError("Timed out trying to connect to tcp://127.0.0.1:9")
        yield

    with (
        cluster.Cluster(nowhere) as opened,
        pytest.raises(ConfigError, match="--task-runner dask: Timed out trying to connect to tcp://"),
    ):
        cluster.ClusterWorkers(opened, Path()).start()


def test_workers_here_that_do_not_start_are_told_with_what_ended_them() -> None:
    @contextmanager
    def nowhere() -> Iterator[Any]:
        raise RuntimeError("Nanny failed to start.") from ModuleNotFoundError("No module named 'mine'")
        yield

    with cluster.Cluster(nowhere) as opened, pytest.raises(ConfigError) as refused:
        opened.wait()
    assert str(refused.value) == "--task-runner dask: Nanny failed to start: No module named 'mine'"


@pytest.mark.parametrize(
    "address",
    [
        "LocalCluster",
        "8786",
        " ",
        "tcp:/x",
        "tcp://",
        "tcp://localhost",
        "tcp://localhost:abc",
        "tcp://h:99999",
    ],
)
def test_an_address_that_can_not_be_a_schedulers_is_refused_before_a_run_begins(address: str) -> None:
    with pytest.raises(ConfigError, match=f"{re.escape(address)}: expected .* such as tcp://host:8786"):
        cluster.cluster_at(address)


def test_an_address_with_tls_needs_certificates() -> None:
    with pytest.raises(ConfigError, match=r"dask:tls://host:8786: .*distributed\.comm\.tls"):
        cluster.cluster_at("tls://host:8786")


def test_whatever_opening_a_cluster_raises_names_its_address() -> None:
    @contextmanager
    def nowhere() -> Iterator[Any]:
        raise TypeError("expected `ssl_context`")
        yield

    with (
        cluster.Cluster(nowhere, "dask:tls://host:8786") as opened,
        pytest.raises(ConfigError, match="--task-runner dask:tls://host:8786: expected `ssl_context`"),
    ):
        cluster.ClusterWorkers(opened, Path()).start()
