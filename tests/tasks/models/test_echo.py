"""How a server wants to be asked is found out with one known prompt, whatever it does with other ways."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tasks.models.errors import BadRequest, ConnectionFault, ModelError, RateLimited, ServerFault
from tasks.models.providers.openai import echo as echo
from tasks.models.providers.openai.echo import KNOWN, LAST, EchoMode, Likelihood, find_mode, takes_ids
from tasks.models.records import Call, Reply, Request
from tasks.models.tokenizers import ByteTokenizer

BYTES = ByteTokenizer()
WHOLE = KNOWN + LAST


class Server:
    """Answers with a function of the body; says back what it is sent, a token a byte."""

    def __init__(self, answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        self.answer = answer
        self.bodies: list[Mapping[str, Any]] = []

    async def send(self, call: Call, timeout: float) -> Reply:
        self.bodies.append(call.body)
        return Reply(self.answer(call.body), 0.1)

    async def close(self) -> None:
        pass


def said_back(body: Mapping[str, Any], before: int = 0) -> dict[str, Any]:
    """The lists of a prompt with one generated token, ``before`` tokens standing before it."""
    prompt = body["prompt"]
    size = len(prompt.encode()) if isinstance(prompt, str) else len(prompt[0])
    values = [None, *[-1.0] * (before + size - 1), -9.0]
    return {
        "choices": [{"index": 0, "text": "", "logprobs": {"token_logprobs": values, "tokens": None}}],
        "usage": {"prompt_tokens": before + size, "completion_tokens": 1},
    }


def asking(mode: EchoMode) -> Likelihood:
    return Likelihood("m", mode, {}, BYTES)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(echo, "_modes", {})
    monkeypatch.setattr(echo, "_takes_ids", {})
    monkeypatch.setattr(echo, "PAUSE", 0.0)


async def test_ids_are_asked_for_in_a_list_of_lists():
    server = Server(said_back)
    assert await find_mode(server, "http://a", asking) == EchoMode(1, "echo", ids=True)
    assert [list(ids) for ids in server.bodies[0]["prompt"]] == [BYTES.encode(WHOLE)]


@pytest.mark.parametrize("error", [ServerFault("HTTP 500: list has no encode"), BadRequest("text, please")])
async def test_a_server_that_fails_at_ids_is_asked_with_text(error):
    def answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body["prompt"], str):
            raise error
        return said_back(body)

    assert await find_mode(Server(answer), "http://a", asking) == EchoMode(1, "echo", begun=0)
    assert not await takes_ids(Server(answer), "http://a", "m", BYTES)


async def test_a_pause_longer_than_a_probe_may_take_is_not_waited_for(monkeypatch):
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    def answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise RateLimited("HTTP 429: slow down", retry_after=3600.0)

    monkeypatch.setattr(echo.asyncio, "sleep", sleep)
    with pytest.raises(RateLimited):
        await find_mode(Server(answer), "http://a", asking)
    assert await takes_ids(Server(answer), "http://a", "m", BYTES)
    assert slept == []


async def test_one_failure_says_nothing_about_what_a_server_takes():
    failures = [ServerFault("HTTP 500"), ConnectionFault("cut")]

    def answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
        if failures:
            raise failures.pop()
        return said_back(body)

    assert (await find_mode(Server(answer), "http://a", asking)).ids


async def test_what_a_server_puts_before_texts_is_remembered():
    def answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body["prompt"], str):
            raise BadRequest("text, please")
        return said_back(body, before=1)

    mode = await find_mode(Server(answer), "http://a", asking)
    assert mode.begun == 1
    # The server makes other tokens of this text than it was put together from; the count goes on behind the
    # context, as lm-evaluation-harness counts.
    likelihood = asking(mode)
    body = said_back({"prompt": "x" * 9}, before=1)
    request = Request(b"k", "loglikelihood", "abc", "defg")
    assert likelihood.answers([request], [Reply(body, 0.1)], 1)[0].ll == -6.0
    # So there may be tokens where the tokenizer has none.
    empty = Request(b"k", "loglikelihood", "abc", "")
    assert len(likelihood.calls([empty])) == 1
    assert likelihood.answers([empty], [Reply(body, 0.1)], 1)[0].ll == -6.0


async def test_a_server_that_cannot_be_asked_just_now_is_taken_to_take_ids():
    def answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ConnectionFault("refused")

    assert await takes_ids(Server(answer), "http://a", "m", BYTES)
    assert not echo._takes_ids


async def test_reasons_are_given_for_every_way_that_fails():
    def answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ServerFault("HTTP 500: no logits here")

    with pytest.raises(ModelError, match=r"no log-probabilities of prompts.*no logits here"):
        await find_mode(Server(answer), "http://a", asking)
