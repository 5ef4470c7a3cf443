"""One benchmark on every provider, each behind a server of its wire form: by single requests, streams,
batches and the official client. An answer, a thought before one, one that was cut off, a refusal and a call
of a tool come to the same predictions and scores."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tasks.models.batch_servers import SERVERS, Answer, Asked, BatchServer, prompt_of, said, serving
from tests.tasks.models.test_anthropic import events
from tests.tasks.models.test_bedrock import REPLIES as BEDROCK
from tests.tasks.models.test_bedrock import frames
from tests.tasks.models.test_native_providers import REPLIES as NATIVE
from tests.tasks.models.test_native_providers import chunks

Document = dict[str, Any]
ITEMS = ("text", "markup", "thought", "cut_off", "refusal", "calls")
MARKUP = "  Zwölf 😀 <b>12</b>\n\nor 12?"
TEXTS = {"text": "Four.", "markup": MARKUP, "thought": "4", "calls": "Let me look."}
BATCHED = tuple(SERVERS)


def openai_reply(item: str) -> Document:
    """Of chat completions."""
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    messages: dict[str, tuple[Document, str]] = {
        "text": ({"content": "Four."}, "stop"),
        "thought": ({"reasoning_content": "2 + 2", "content": "4"}, "stop"),
        "cut_off": ({"reasoning_content": "hm", "content": None}, "length"),
        "refusal": ({"content": None, "refusal": "I can't help with that."}, "stop"),
        "calls": ({"content": "Let me look.", "tool_calls": [call]}, "tool_calls"),
    }
    message, finish = messages[item]
    reply = said("openai", "")
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    return {**reply, "choices": [choice]}


def bedrock_text(text: str) -> Document:
    return {**BEDROCK["text"], "output": {"message": {"role": "assistant", "content": [{"text": text}]}}}


def reply_of(kind: str, item: str) -> Document:
    """What a provider says to an item, in its own form."""
    if item == "markup":
        return bedrock_text(MARKUP) if kind == "bedrock" else said(kind, MARKUP)
    if kind == "openai":
        return openai_reply(item)
    if kind == "bedrock":
        return dict(BEDROCK["filtered" if item == "refusal" else item])
    found: Document = NATIVE[kind]["blocked" if (kind, item) == ("gemini", "refusal") else item]
    return found


def openai_chunks(reply: Document) -> Iterator[Document]:
    """What chat completions stream in place of a reply: texts letter by letter, a call in two pieces."""
    (choice,) = reply["choices"]
    message, head = choice["message"], {"id": "c", "model": "m"}

    def chunk(delta: Document, finish: str | None = None) -> Document:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": None})
    for name in ("reasoning_content", "content", "refusal"):
        for letter in message.get(name) or "":
            yield chunk({name: letter})
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        begun = {**call, "index": index, "function": {"name": name, "arguments": ""}}
        yield chunk({"tool_calls": [begun]})
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]})
    yield chunk({}, choice["finish_reason"])
    yield {**head, "choices": [], "usage": reply["usage"]}


def responses_events(reply: Document) -> Iterator[Document]:
    yield {"type": "response.created", "response": {**reply, "output": [], "status": "in_progress"}}
    for item in reply["output"]:
        for part in item.get("content") or ():
            yield {"type": "response.output_text.delta", "delta": part.get("text", "")}
    yield {"type": f"response.{reply['status']}", "response": reply}


STREAMS: dict[str, Callable[[Document], Any]] = {
    "openai": openai_chunks,
    "openai_responses": responses_events,
    "anthropic": lambda reply: events({"stop_sequence": None, **reply}),
    "gemini": chunks,
}


def streamed(kind: str, reply: Document) -> Answer:
    """A reply as the provider streams it."""
    if kind == "bedrock":
        return 200, {"Content-Type": "application/vnd.amazon.eventstream"}, b"".join(frames(reply))
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in STREAMS[kind](reply))
    ended = "data: [DONE]\n\n" if kind == "openai" else ""
    return 200, {"Content-Type": "text/event-stream"}, (lines + ended).encode()


class BedrockServer(BatchServer):
    """``/model/…/converse``, and the control plane beside it."""

    root = ""

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            return 200, {}, {"modelDetails": {"modelId": "m"}}
        return 200, {}, self.reply(asked.body)


@dataclass(frozen=True)
class Streaming:
    """A server of a kind that streams where it is asked to."""

    kind: str
    server: BatchServer

    def answer(self, asked: Asked) -> Answer:
        status, told, reply = type(self.server).answer(self.server, asked)
        wanted = "tream" in asked.path or b'"stream":true' in asked.content
        return streamed(self.kind, reply) if wanted else (status, told, reply)


def server_of(kind: str) -> BatchServer:
    def reply(body: Document) -> Document:
        prompt = body["messages"][-1]["content"][-1]["text"] if kind == "bedrock" else prompt_of(kind, body)
        return reply_of(kind, prompt.split()[-1])

    server: Any = SERVERS.get(kind, BedrockServer)(reply=reply)
    server.answer = Streaming(kind, server).answer
    return server


def entries(kind: str, url: str) -> dict[str, Document]:
    """Every way of asking models of a kind."""
    told: Document = {"model": "m", "base_url": url}
    if kind == "bedrock":
        told |= {"region": "us-east-1", "api_key_env": "A_KEY"}
    ways: dict[str, Document] = {"alone": {}, "streamed": {"stream": True}}
    if kind == "bedrock" and find_spec("botocore") is None:
        del ways["streamed"]  # its frames are read by botocore
    if kind == "openai":
        ways |= {"official": {"client": "openai"}, "official streamed": {"client": "openai", "stream": True}}
    if kind in BATCHED:
        ways["batched"] = {"batch": {"wait": "1h"}}
    return {f"{kind} {way}": {**told, **more} for way, more in ways.items()}


def test_the_same_benchmark_gives_the_same_predictions_on_every_provider(
    evaluate: Callable[..., Any], tmp_path: Path
):
    rows = [{"id": item, "question": f"item {item}", "answer": TEXTS.get(item, "none")} for item in ITEMS]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = []
    with ExitStack() as stack:
        servers = {kind: server_of(kind) for kind in (*SERVERS, "bedrock")}
        for kind, server in servers.items():
            for name, config in entries(kind, stack.enter_context(serving(server))).items():
                models.append({"name": name, "identity": name, "type": kind, "config": config})
        document = {
            "name": "same", "dataset": "items.jsonl", "prompt_template": "{{question}}",
            "target": "{{answer}}", "output_type": "generate_until", "models": models,
            "metric_list": ["exact_match", "refusal"],
        }  # fmt: skip
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(document))
        ran = evaluate(tmp_path / "config.yaml", "--json", env={"A_KEY": "a-key-of-bedrock"})
    assert ran.code == 0, ran.err
    assert all(len(servers[kind].jobs) == 1 for kind in BATCHED)
    answers: dict[str, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    for line in (tmp_path / "out" / "responses.jsonl").read_text().splitlines():
        row = json.loads(line)
        calls = row.get("tool_calls")
        seen = row["item_id"], row["status"], row["response"], json.dumps(calls, sort_keys=True)
        answers[row["item_id"]][seen].append(row["model_name"])
    names = sorted(model["name"] for model in models)
    assert {item: [sorted(by) for by in told.values()] for item, told in answers.items()} == {
        item: [names] for item in ITEMS
    }, dict(answers)
    (_, status, response, _) = next(iter(answers["markup"]))
    assert (status, response) == ("ok", MARKUP)
    assert [next(iter(answers[item]))[1] for item in ("cut_off", "refusal")] == ["cut_off", "refused"]
    assert '"f"' in next(iter(answers["calls"]))[3]
    for name in names:
        assert ran.value("exact_match,none", name) == pytest.approx(4 / 6)
        # What was cut off has the worst value, too.
        assert ran.value("refusal,none", name) == pytest.approx(2 / 6)
