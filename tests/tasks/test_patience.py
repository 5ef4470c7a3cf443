"""Calls that outlast a server that is away."""

import httpx
import pytest

from tasks import patience
from tasks.patience import if_possible, retry_until_up

REQUEST = httpx.Request("GET", "http://server")
LOCKED = httpx.HTTPStatusError(
    "database is locked", request=REQUEST, response=httpx.Response(500, request=REQUEST)
)


class Server:
    """Away for the first calls, or at fault."""

    def __init__(self, away: int, error: httpx.HTTPError = httpx.ConnectError("refused")) -> None:  # noqa: B008
        self.away, self.error = away, error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.calls <= self.away:
            raise self.error
        return "answer"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_WAIT", 0.001)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), LOCKED], ids=["away", "locked"])
def test_a_server_that_comes_back_is_waited_for(error: httpx.HTTPError) -> None:
    server = Server(away=3, error=error)
    assert retry_until_up(server) == "answer"
    assert server.calls == 4


def test_patience_ends() -> None:
    with pytest.raises(httpx.ConnectError):
        retry_until_up(Server(away=10**9), patience=0.01)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), LOCKED], ids=["away", "locked"])
def test_what_is_only_shown_fails_nothing(error: httpx.HTTPError) -> None:
    if_possible(Server(away=10**9, error=error), patience=0.01)


def test_who_wants_the_waiting_to_end_is_asked_meanwhile() -> None:
    def ended() -> None:
        raise KeyboardInterrupt

    server = Server(away=10**9)
    with pytest.raises(KeyboardInterrupt):
        retry_until_up(server, check=ended)
    assert server.calls == 1


def test_another_error_is_raised_at_once() -> None:
    def broken() -> None:
        calls.append(1)
        raise ValueError("mine")

    calls: list[int] = []
    with pytest.raises(ValueError, match="mine"):
        retry_until_up(broken)
    assert calls == [1]
