"""Calls that outlast a server that is away."""

import httpx
import pytest

from tasks import server as patience
from tasks.server import if_possible, retry_until_up


class Server:
    """Away for the first calls."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.away:
            raise httpx.ConnectError("refused")
        return "answer"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_WAIT", 0.001)


def test_a_server_that_comes_back_is_waited_for() -> None:
    server = Server(away=3)
    assert retry_until_up(server) == "answer"
    assert server.calls == 4


def test_patience_ends() -> None:
    with pytest.raises(httpx.ConnectError):
        retry_until_up(Server(away=10**9), patience=0.01)


def test_what_is_only_shown_fails_nothing() -> None:
    if_possible(Server(away=10**9), patience=0.01)


def test_another_error_is_raised_at_once() -> None:
    def broken() -> None:
        calls.append(1)
        raise ValueError("mine")

    calls: list[int] = []
    with pytest.raises(ValueError, match="mine"):
        retry_until_up(broken)
    assert calls == [1]
