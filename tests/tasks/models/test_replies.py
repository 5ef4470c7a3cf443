"""Replies are kept as they came, and read when they are used: a mended reading reaches kept answers."""

import math
import time
from typing import Any

import orjson
import pytest

from tasks.models.config import ModelConfig
from tasks.models.demo.options import Faults
from tasks.models.errors import MalformedBody
from tasks.models.providers.openai import generation, spans
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.openai.echo import EchoMode, Likelihood
from tasks.models.providers.openai.generation import Chat, Completions, ParsedChoice
from tasks.models.records import Reply, Request
from tasks.models.tokenizers import ByteTokenizer

STREAMED = {"stream": True}


def shouting(self: Any, choice: Any, own: Any = Chat.message) -> ParsedChoice:
    said = own(self, choice)
    return ParsedChoice(said.text.upper(), said.thought, said.calls)


@pytest.mark.parametrize("config", [{}, STREAMED, {"client": "openai"}], ids=["http", "stream", "official"])
def test_a_mended_reading_of_chats_reaches_kept_answers(
    bench: Any, served: Any, endpoint: Any, problems: Any, monkeypatch: Any, config: dict[str, Any]
) -> None:
    model = endpoint(served(), **config)
    before = bench.ask(model, problems(3))
    monkeypatch.setattr(Chat, "message", shouting)
    after = bench.ask(model, problems(3))
    assert (after.tally.sent, after.tally.cached) == (0, 3)
    assert after.column("response") == [text.upper() for text in before.column("response")]
    assert after.column("response") != before.column("response")
    assert after.column("total_tokens") == before.column("total_tokens")


def test_a_mended_reading_of_likelihoods_reaches_kept_answers(
    bench: Any, served: Any, endpoint: Any, pairs: Any, monkeypatch: Any
) -> None:
    model, asked = endpoint(served()), pairs(["The sky over the harbour is"], [" blue", " red"])
    before = bench.ask(model, asked)
    own = spans.sum_of
    monkeypatch.setattr(spans, "sum_of", lambda tokens, begin, end: own(tokens, begin - 1, end))
    after = bench.ask(model, asked)
    assert (after.tally.sent, after.tally.cached) == (0, 2)
    assert all(new < old for new, old in zip(after.rows[0]["lls"], before.rows[0]["lls"], strict=True))


def test_a_mended_status_counts_as_what_it_is_now(
    bench: Any, served: Any, endpoint: Any, problems: Any, monkeypatch: Any
) -> None:
    model = endpoint(served())
    assert bench.ask(model, problems(2)).tally.refused == 0

    def refuses(*_: Any) -> ParsedChoice:
        raise generation.Refused("the model refused: no")

    monkeypatch.setattr(Chat, "message", refuses)
    refused = bench.ask(model, problems(2))
    assert (refused.tally.sent, refused.tally.refused) == (0, 2)
    assert refused.column("status") == ["refused"] * 2

    def breaks(*_: Any) -> ParsedChoice:
        raise MalformedBody("of another shape")

    monkeypatch.setattr(Chat, "message", breaks)
    broken = bench.ask(model, problems(2))
    assert (broken.tally.sent, broken.tally.failed, broken.tally.retryable) == (0, 2, 2)
    assert broken.column("error")[0] == (
        "the kept reply can't be read: of another shape; --refresh infer asks again"
    )


def test_nothing_of_a_reply_is_kept_twice_and_its_choice_as_it_came(
    bench: Any, served: Any, endpoint: Any, problems: Any
) -> None:
    model = endpoint(served())
    outcome = bench.ask(model, problems(1), sampling={"logprobs": True, "max_tokens": 3})
    (folder,) = (bench.folder / "store" / "answers").iterdir()
    table = bench.answers.of_model(folder.name).read(next(folder.glob("*.parquet")).name)
    (kept,) = table.to_pylist()
    assert {kept[name] for name in ("response", "logprobs_json", "prompt_tokens", "finish_reason")} == {None}
    reply = orjson.loads(kept["reply_json"])
    assert reply["choice"]["message"] == {"role": "assistant", "content": outcome.rows[0]["response"]}
    assert reply["choice"]["logprobs"] == orjson.loads(outcome.rows[0]["logprobs_json"])
    assert reply["usage"]["prompt_tokens"] == outcome.rows[0]["prompt_tokens"]


def test_answers_that_were_read_when_they_were_kept_stay_beside_those_that_are_read_now(
    bench: Any, served: Any, endpoint: Any, problems: Any
) -> None:
    from dataclasses import replace

    from tasks.models.answers.segments import AnswerSnapshot
    from tasks.models.records import KeptAnswer

    model = endpoint(served())
    before = bench.ask(model, problems(2)).rows
    (folder,) = (bench.folder / "store" / "answers").iterdir()
    answers = bench.answers.of_model(folder.name)
    first = bytes.fromhex(before[0]["request_key"])
    old = KeptAnswer(
        status="ok", key=first, response="as it was read then", arrived=time.time() + 60, prompt_tokens=7
    )
    answers.write([replace(old, asked_at=old.arrived)])
    assert len(AnswerSnapshot(answers, bench.options().lookup)) == 2
    after = bench.ask(model, problems(2))
    assert after.tally.sent == 0
    assert after.column("response") == ["as it was read then", before[1]["response"]]
    assert after.column("prompt_tokens") == [7, before[1]["prompt_tokens"]]
    assert after.rows[1] == before[1]


TEXT = "".join(chr(97 + n % 26) for n in range(300))


def said_back(prompt: Any, source: str = "echo") -> dict[str, Any]:
    """A choice with the prompt's tokens, one a byte, and a generated one."""
    ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    values = [None, *[-0.5 - n / 1000 for n in range(len(ids))]]
    if source == "prompt_logprobs":
        positions = [None] + [
            {str(token): {"logprob": value, "rank": 1, "decoded_token": chr(token)}}
            for token, value in zip(ids[1:], values[1:], strict=False)
        ]
        return {"index": 0, "text": "", "prompt_logprobs": positions}
    texts = [chr(token) for token in ids] + ["!"]
    lists = {
        "token_logprobs": values,
        "tokens": texts,
        "text_offset": list(range(len(texts))),
        "top_logprobs": [None if value is None else {"x": value} for value in values],
    }
    return {"index": 0, "text": "".join(texts), "logprobs": lists}


@pytest.mark.parametrize("source", ["echo", "prompt_logprobs"])
@pytest.mark.parametrize("ids", [True, False], ids=["ids", "text"])
def test_a_likelihood_keeps_its_own_tokens_and_not_the_whole_echo(ids: bool, source: Any) -> None:
    codec = Likelihood("m", EchoMode(1, source, ids=ids), {}, ByteTokenizer() if ids else None)
    request = Request(b"k", "loglikelihood", TEXT, " and so on")
    (call,) = codec.calls([request])
    prompt = call.body["prompt"][0] if ids else call.body["prompt"]
    reply = Reply({"choices": [said_back(prompt, source)], "usage": {"completion_tokens": 1}}, 0.1)
    (part,) = codec.parts([request], [reply])
    text = codec.text(part)
    assert len(text) < 3_000 < len(str(reply.body))
    assert TEXT[:200] not in text
    whole = sum(value for value in [-0.5 - n / 1000 for n in range(310)][299:309])
    again = codec.read(request, orjson.loads(text))
    assert again.ll == pytest.approx(whole)
    assert (again.ll_tokens, again.is_greedy) == (10, True)
    assert codec.answers([request], [reply], 1)[0].ll == again.ll


def test_an_impossible_token_is_kept_as_one() -> None:
    codec = Likelihood("m", EchoMode(1, "echo", ids=True), {}, ByteTokenizer())
    request = Request(b"k", "loglikelihood", "ab", "c")
    choice = {"index": 0, "logprobs": {"token_logprobs": [None, -1.0, -math.inf, -1.0]}}
    (part,) = codec.parts([request], [Reply({"choices": [choice]}, 0.1)])
    from tasks.store.keys import text_value

    assert codec.read(request, text_value(codec.text(part))).ll == -math.inf


def test_text_is_read_again_with_the_stop_sequences_that_the_endpoint_did_not_take(
    bench: Any, served: Any, endpoint: Any
) -> None:
    codec = Completions("m", ModelConfig(name="m").config, bench.options().sampling)
    part = {
        "choice": {"text": "one two three", "finish_reason": "length"},
        "usage": None,
        "cut": [" three", "two"],
    }
    read = codec.read(Request(b"k", "generate", "p"), part)
    assert (read.response, read.finish_reason) == ("one ", "stop")


def test_a_reply_with_numbers_beyond_64_bits_is_kept(
    bench: Any, served: Any, endpoint: Any, problems: Any
) -> None:
    codec = Chat("m", ModelConfig(name="m").config, bench.options().sampling)
    choice = {"message": {"content": "x", "odd": 10**40}, "finish_reason": "stop"}
    (answer,) = codec.answers([Request(b"k" * 32, "generate", "p")], [Reply({"choices": [choice]}, 0.1)], 1)
    assert str(10**40) in str(answer.reply_json)


def test_settled_answers_without_a_reply_stay_settled(
    bench: Any, served: Any, endpoint: Any, problems: Any
) -> None:
    serving = served(Faults(filter_prompts="Tom"))
    first = bench.ask(endpoint(serving), problems(2))
    again = bench.ask(endpoint(serving), problems(2))
    assert first.column("status") == again.column("status") == ["refused"] * 2
    assert (again.tally.sent, again.column("error")) == (0, first.column("error"))


@pytest.mark.parametrize(
    ("settings", "client"),
    [
        ({"base_url": "https://api.openai.com/v1"}, "openai"),
        ({"base_url": "https://eu.api.openai.com/v1"}, "openai"),
        ({"base_url": "https://api.openai.com/v1", "client": "http"}, "http"),
        ({"base_url": "https://api.openai.com.example.org/v1"}, "http"),
        ({"base_url": "http://localhost:8000/v1"}, "http"),
        ({"base_url": "http://localhost:8000/v1", "client": "openai"}, "openai"),
    ],
)
def test_the_official_client_asks_at_openais_own_address(settings: dict[str, str], client: str) -> None:
    assert EndpointConfig.model_validate(settings).through == client


def test_the_official_client_and_ours_give_the_same_answers_under_the_same_keys(
    bench: Any, script: Any, problems: Any, monkeypatch: Any
) -> None:
    agents: list[str] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        agents.append(asked.headers.get("user-agent", ""))
        said = asked.body["messages"][-1]["content"].split()[2]
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5}
        return 200, {"x-request-id": "r"}, {"id": "c", "model": "m-1", "choices": [choice], "usage": usage}

    monkeypatch.setattr("tasks.models.providers.openai.config.OFFICIAL_HOSTS", {"127.0.0.1"})
    model = ModelConfig.model_validate({"name": "m", "config": {"base_url": script(answer)}})
    official = bench.ask(model, problems(3))
    assert [agent.startswith("AsyncOpenAI/Python") for agent in agents] == [True] * 3
    monkeypatch.setattr("tasks.models.providers.openai.config.OFFICIAL_HOSTS", frozenset())
    kept = bench.ask(model, problems(3))
    assert (kept.tally.sent, kept.tally.cached) == (0, 3)
    ours = bench.ask(model, problems(3), refresh=True)
    assert [agent.startswith("AsyncOpenAI/Python") for agent in agents[3:]] == [False] * 3
    asked_at = ("timestamp", "inference_time")
    assert [{name: row[name] for name in row if name not in asked_at} for row in official.rows] == [
        {name: row[name] for name in row if name not in asked_at} for row in ours.rows
    ]
