"""Places of a limit between processes, where the server fails and where the run ends while it waits."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tasks import limits, patience
from tasks.infer import InferSetup
from tasks.limits import lease
from tasks.models.config import ErrorBudget, ModelConfig, RunLimits, SampleParams
from tasks.models.control import Interrupted, controlled
from tasks.processes.endings import interrupted

GIVEN = {"lease_id": str(uuid4()), "limits": [{"id": str(uuid4()), "name": "gpu", "limit": 2}]}


def failing(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://server")
    return httpx.HTTPStatusError("told", request=request, response=httpx.Response(status, request=request))


class Client:
    """A Prefect server whose first answers of each kind are these failures."""

    def __init__(self, takes: list[int] = [], renewals: list[int] = [], free: int = 2) -> None:  # noqa: B006
        self.takes, self.renewals, self.free = list(takes), list(renewals), free
        self.renewed, self.asked, self.given_back = threading.Semaphore(0), threading.Semaphore(0), 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_global_concurrency_limit_by_name(self, _name: str) -> Any:
        self.asked.release()
        return SimpleNamespace(limit=2, active_slots=2 - self.free)

    def increment_concurrency_slots_with_lease(self, *_: Any) -> httpx.Response:
        if self.takes:
            raise failing(self.takes.pop(0))
        return httpx.Response(200, json=GIVEN)

    def renew_concurrency_lease(self, _lease: UUID, _seconds: float) -> None:
        self.renewed.release()
        if self.renewals:
            raise failing(self.renewals.pop(0))

    def release_concurrency_slots_with_lease(self, _lease: UUID) -> None:
        self.given_back += 1


Use = Callable[[Client], Client]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    monkeypatch.setattr(limits, "LEASE_SECONDS", 0.04)
    monkeypatch.setattr(limits, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(patience, "FIRST_WAIT", 0.01)

    def using(client: Client) -> Client:
        monkeypatch.setattr(limits, "get_client", lambda **_: client)
        return client

    return using


def nothing() -> None:
    """Nobody wants the waiting to end."""


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_a_renewal_that_fails_once_is_tried_again(use: Use, status: int) -> None:
    client = use(Client(renewals=[status]))
    with lease("gpu", 1, nothing):
        assert all(client.renewed.acquire(timeout=30) for _ in range(3))
    assert client.given_back == 1


@pytest.mark.parametrize("status", [404, 410])
def test_a_lease_that_the_server_knows_no_more_is_renewed_no_more(use: Use, status: int) -> None:
    client = use(Client(renewals=[status]))
    with lease("gpu", 1, nothing):
        assert client.renewed.acquire(timeout=30)
        (renewal,) = [thread for thread in threading.enumerate() if thread.name.startswith("lease ")] or [
            None
        ]
        if renewal is not None:
            renewal.join(timeout=30)
            assert not renewal.is_alive()
        assert not client.renewed.acquire(blocking=False)


@pytest.mark.parametrize("status", [500, 503, 429, 423])
def test_a_server_that_cannot_give_places_now_is_asked_again(use: Use, status: int) -> None:
    client = use(Client(takes=[status, status]))
    with lease("gpu", 1, nothing) as places:
        assert places == 1
    assert client.takes == []


def test_a_server_that_refuses_to_give_places_ends_the_waiting(use: Use) -> None:
    use(Client(takes=[403]))
    with pytest.raises(httpx.HTTPStatusError), lease("gpu", 1, nothing):
        pass


@pytest.fixture
def of_a_run(tmp_path: Path) -> Iterator[InferSetup]:
    model = ModelConfig.model_validate(
        {"name": "m", "config": {"model": "m", "base_url": "http://127.0.0.1:9/v1"}}
    )
    yield InferSetup(
        model=model, sampling=SampleParams(), errors=ErrorBudget(), limits=RunLimits(), prices={},
        base_dir=str(tmp_path), run_id="held-elsewhere",
    )  # fmt: skip
    interrupted.clear()


def waiting(setup: InferSetup, client: Client, end: Callable[[], None]) -> list[str]:
    """What ends a wait for places that others hold, once ``end`` was called."""
    ends: list[str] = []
    options = setup.options(SimpleNamespace(journal_dir=setup.base_dir, open=lambda: None))  # type: ignore[arg-type]

    def wait() -> None:
        assert options.lease is not None
        try:
            with options.lease("gpu", 1):
                ends.append("taken")
        except Interrupted as error:
            ends.append(str(error))

    waits = threading.Thread(target=wait, daemon=True)
    waits.start()
    assert client.asked.acquire(timeout=30)
    end()
    waits.join(timeout=30)
    client.free = 2  # a wait that goes on after all ends with the test
    return ends


def test_an_interruption_ends_the_wait_for_places(use: Use, of_a_run: InferSetup) -> None:
    (said,) = waiting(of_a_run, use(Client(free=0)), interrupted.set)
    assert said.startswith("inference was interrupted")


def test_a_run_that_is_stopped_waits_for_places_no_more(use: Use, of_a_run: InferSetup) -> None:
    with controlled(of_a_run.run_id or "") as control:
        client = use(Client(free=0))
        (said,) = waiting(of_a_run, client, lambda: control.stop("cancelled", "the run was cancelled"))
    assert said.startswith("the run was cancelled")
