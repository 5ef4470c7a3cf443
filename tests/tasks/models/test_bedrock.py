"""Bedrock's Converse against scripted endpoints: signatures as AWS checks them, the form of requests and
replies, streams of frames, and what AWS says of wrong keys, models and regions."""

import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tasks.benchmarks.prompts import Template
from tasks.models.config import ModelConfig, Price, SampleParams
from tasks.models.connection import probe
from tasks.models.errors import (
    AccessDenied,
    BadRequest,
    ContextTooLong,
    MalformedBody,
    ModelError,
    NotServed,
    RateLimited,
    RequestTimeout,
    ServerFault,
)
from tasks.models.providers.bedrock import StreamedConverse, control_address
from tasks.models.providers.provider import provider_of
from tasks.models.records import Codec, Reply, Request
from tasks.models.respond import respond
from tasks.rows.turns import Continuation, next_requests

REPLIES = json.loads((Path(__file__).parents[2] / "fixtures/providers/bedrock.json").read_text())
NAME = "us.anthropic.claude-x-v1:0"
needs_botocore = pytest.mark.skipif(find_spec("botocore") is None, reason="botocore is not installed")
ACCESS, SECRET, TOKEN = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "IQoJb3JpZ2lu//token=="
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object"}}
SCHEMA = {"type": "object"}
MARK = {"cachePoint": {"type": "default"}}
CALLS = [{"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SAID: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "", "tool_calls": CALLS},
    {"role": "tool", "tool_call_id": "call_0", "content": "one"},
    {"role": "user", "content": [{"type": "text", "text": "and this?"}, IMAGE]},
]
CHAT = {"messages": SAID, "tools": [{"type": "function", "function": FUNCTION}]}


@pytest.fixture(autouse=True)
def access_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)


def model(config: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    settings = {"model": NAME, "region": "us-east-1", **(config or {})}
    return ModelConfig.model_validate({"name": "a", "type": "bedrock", "config": settings, **fields})


def codec(config: dict[str, Any] | None = None, params: Any = None, **fields: Any) -> Codec:
    made = provider_of(model(config, **fields))
    return made.codec("generate", SampleParams.model_validate(params or {}))  # type: ignore[union-attr]


def call(prompt: Any, **options: Any) -> tuple[str, dict[str, Any]]:
    chat = not isinstance(prompt, str)
    text = json.dumps(prompt) if chat else prompt
    (made,) = codec(**options).calls([Request(b"k", "generate", text, chat=chat)])
    return made.path, json.loads(made.content)


def read(reply: Any) -> Any:
    given = REPLIES[reply] if isinstance(reply, str) else reply
    (answer,) = codec().answers([Request(bytes(32), "generate", "q")], [Reply(given, 0.1)], 1)
    return answer


def test_a_request_is_asked_by_turns_of_blocks():
    assert call("q") == (
        "model/us.anthropic.claude-x-v1%3A0/converse",
        {"messages": [{"role": "user", "content": [{"text": "q"}]}]},
    )
    arn = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.x.y-v1:0"
    assert call("q", config={"model": arn, "stream": True})[0] == (
        "model/arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Ainference-profile%2Fus.x.y-v1%3A0/converse-stream"
    )
    _, asked = call(CHAT)
    assert asked == {
        "system": [{"text": "be brief"}],
        "toolConfig": {
            "tools": [
                {"toolSpec": {"name": "f", "description": "d", "inputSchema": {"json": {"type": "object"}}}}
            ]
        },
        "messages": [
            {"role": "user", "content": [{"text": "q"}]},
            {
                "role": "assistant",
                "content": [{"toolUse": {"toolUseId": "call_0", "name": "f", "input": {"x": 1}}}],
            },
            {
                "role": "user",
                "content": [
                    {"toolResult": {"toolUseId": "call_0", "content": [{"text": "one"}]}},
                    {"text": "and this?"},
                    {"image": {"format": "png", "source": {"bytes": "AAAA"}}},
                ],
            },
        ],
    }


def test_converse_has_fields_of_its_own_for_sampling_efforts_and_schemas():
    params = {
        "temperature": 0.5,
        "max_tokens": 9,
        "top_p": 0.9,
        "stop": ["x"],
        "tool_choice": "required",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": SCHEMA},
        },
    }
    own = {"additionalModelRequestFields": {"top_k": 3}}
    _, asked = call(CHAT, params=params, reasoning={"effort": "low"}, config={"extra_body": own})
    assert asked["inferenceConfig"] == {
        "temperature": 0.5,
        "maxTokens": 9,
        "topP": 0.9,
        "stopSequences": ["x"],
    }
    assert asked["toolConfig"]["toolChoice"] == {"any": {}}
    schema = {"schema": '{"type":"object"}', "name": "n"}
    assert asked["outputConfig"] == {
        "effort": "low",
        "textFormat": {"type": "json_schema", "structure": {"jsonSchema": schema}},
    }
    assert asked["additionalModelRequestFields"] == {"top_k": 3}
    assert "toolConfig" not in call("q", params=params)[1], "it takes no choice without tools"
    named = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
    assert call(CHAT, params=named)[1]["toolConfig"]["toolChoice"] == {"tool": {"name": "f"}}


@needs_botocore
def test_what_botocore_takes_is_what_is_sent():
    """Its model of the service knows every field, and its parser gives the same of our body as of its own."""
    from botocore import loaders
    from botocore.model import ServiceModel
    from botocore.validate import ParamValidator

    service = ServiceModel(loaders.Loader().load_service_model("bedrock-runtime", "service-2"))
    shape = service.operation_model("Converse").input_shape
    params = {"temperature": 0.5, "max_tokens": 9, "top_p": 0.9, "stop": ["x"], "tool_choice": "auto"}
    _, asked = call(CHAT, params=params, config={"prompt_caching": True})
    report = ParamValidator().validate({"modelId": NAME, **asked}, shape)
    assert report.generate_report() == ""


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"seed": 1}, "sample_params.seed"),
        ({"n": 2}, "sample_params.n"),
        ({"top_k": 3}, "sample_params.top_k"),
        ({"logprobs": True}, "sample_params.logprobs"),
        ({"tool_choice": "none"}, "sample_params.tool_choice"),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
    ],
)
def test_what_converse_has_no_field_for_is_refused(params: dict[str, Any], said: str):
    with pytest.raises(ModelError, match=said) as refused:
        codec(params=params)
    assert "type bedrock" in str(refused.value)


def test_what_cannot_be_had_is_refused_naming_what_can():
    with pytest.raises(ModelError, match=r"no log-likelihoods of a text; ask one of type .*openai"):
        probe(model(), "loglikelihood")
    far = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    with pytest.raises(BadRequest, match="images as files"):
        call([{"role": "user", "content": [far]}])
    with pytest.raises(ValueError, match="additionalModelRequestFields"):
        model(reasoning={"budget_tokens": 64})
    for region in ("nowhere", "us-east-1/x", ""):
        with pytest.raises(ValueError, match=r"region\n.*expected an AWS region such as us-east-1"):
            model({"region": region})
    with pytest.raises(ValueError, match="type bedrock has no batches"):
        model({"batch": {"wait": "24h"}})


def test_a_reply_gives_answer_thought_calls_and_counts():
    answer = read("text")
    assert (answer.status, answer.response, answer.finish_reason) == ("ok", "Four.", "stop")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.total_tokens) == (23, 3, 26)
    assert answer.cached_tokens == 11
    thought = read("thought")
    assert (thought.status, thought.response, thought.reasoning) == ("ok", "4", "2 + 2")
    assert thought.reasoning_tokens
    assert [*json.loads(thought.thoughts_json)[1].values()] == [{"redactedContent": "Emwk"}]
    calls = read("calls")
    assert (calls.response, calls.finish_reason) == ("Let me look.", "tool_calls")
    assert json.loads(calls.tool_calls_json) == [{"name": "f", "arguments": '{"x":1}'}]
    assert (read("cut_off").status, read("cut_off").response) == ("cut_off", None)
    assert (read("empty").status, read("empty").response) == ("ok", "")


def test_tokens_of_a_maker_that_counts_cached_ones_in_are_counted_once():
    usage = {"inputTokens": 23, "outputTokens": 3, "totalTokens": 26, "cacheReadInputTokens": 11}
    answer = read({**REPLIES["text"], "usage": usage})
    assert (answer.prompt_tokens, answer.cached_tokens, answer.total_tokens) == (23, 11, 26)


@pytest.mark.parametrize("name", ["guardrail", "filtered"])
def test_an_answer_that_a_filter_ended_is_a_refusal(name: str):
    answer = read(name)
    assert (answer.status, answer.response) == ("refused", None)
    assert answer.error.startswith("filtered by the provider")


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"output": {"message": {"content": "x"}}},
        {"output": {"message": {"content": [{"text": 1}]}}},
        {"output": {"message": {"content": [{"toolUse": {}}]}}},
        {"output": {"message": {"content": [{"reasoningContent": "x"}]}}},
    ],
)
def test_a_reply_of_another_shape_is_malformed(odd: dict[str, Any]):
    with pytest.raises(MalformedBody):
        read({"stopReason": "end_turn", **odd})


def test_the_prefix_is_marked_to_be_cached():
    _, asked = call(CHAT, config={"prompt_caching": True})
    assert asked["messages"][-2]["content"][-1] == MARK
    alone = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    assert call(alone, config={"prompt_caching": True})[1]["system"][-1] == {
        "cachePoint": {"type": "default"}
    }


def test_a_system_prompt_of_extra_body_is_marked_once_for_each_request():
    config = {"prompt_caching": True, "extra_body": {"system": [{"text": "Be brief."}]}}
    asked = codec(config)
    for key in (b"k", b"l"):
        (made,) = asked.calls([Request(key, "generate", "q")])
        assert json.loads(made.content)["system"] == [{"text": "Be brief."}, MARK]


def verified(asked: Any, host: str, token: str | None = None) -> bool:
    """Whether the signature of what came is the one that botocore gives to it at the time that it bears."""
    from botocore import auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    given = asked.headers["authorization"]
    names = re.search("SignedHeaders=([^,]+)", given)[1].split(";")  # type: ignore[index]
    signer = auth.SigV4Auth(Credentials(ACCESS, SECRET, token), "bedrock", "us-east-1")
    request = AWSRequest(
        asked.method,
        f"http://{host}{asked.path}",
        headers={name: asked.headers[name] for name in names if name != "host"},
        data=asked.content,
    )
    request.context["timestamp"] = asked.headers["x-amz-date"]
    text = signer.string_to_sign(request, signer.canonical_request(request))
    scope = f"{ACCESS}/{asked.headers['x-amz-date'][:8]}/us-east-1/bedrock/aws4_request"
    return given == (
        f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders={';'.join(names)}, "
        f"Signature={signer.signature(text, request)}"
    ) and {"host", "x-amz-date"} <= set(names)


@needs_botocore
@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("name", [NAME, "arn:aws:bedrock:us-east-1:123456789012:inference-profile/a.b"])
def test_a_request_is_signed_as_it_is_sent(
    bench: Any, problems: Any, script: Any, monkeypatch: pytest.MonkeyPatch, token: str | None, name: str
):
    if token is not None:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    seen: list[Any] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(asked)
        return 200, {}, REPLIES["text"] if asked.method == "POST" else {"modelDetails": {}}

    address = script(answer)
    host = urlsplit(address).netloc
    probe(model({"base_url": address, "model": name}))
    assert bench.ask(model({"base_url": address, "model": name}), problems(2)).column("status") == ["ok"] * 2
    assert [asked.method for asked in seen] == ["GET", "POST", "POST"]
    assert all(verified(asked, host, token) for asked in seen)
    assert [asked.headers.get("x-amz-security-token") for asked in seen] == [token] * 3
    assert SECRET not in str(seen)
    changed = replace(seen[1], path=seen[1].path + "x")
    assert not verified(changed, host, token), "of another path"


@needs_botocore
def test_botocores_own_client_sends_the_same(bench: Any, problems: Any, script: Any):
    from botocore import session

    seen: list[Any] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(asked)
        return 200, {}, REPLIES["text"]

    address = script(answer)
    bench.ask(model({"base_url": address}), problems(1))
    own = session.get_session().create_client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=address,
        aws_access_key_id=ACCESS, aws_secret_access_key=SECRET,
    )  # fmt: skip
    try:
        own.converse(modelId=NAME, **seen[0].body)
    finally:
        own.close()
    assert seen[1].path == seen[0].path
    assert seen[1].body == seen[0].body
    assert seen[1].headers["content-type"] == seen[0].headers["content-type"]
    assert [verified(asked, urlsplit(address).netloc) for asked in seen] == [True, True]


def test_an_api_key_of_bedrock_goes_as_it_is(bench: Any, problems: Any, script: Any, monkeypatch: Any):
    monkeypatch.setenv("A_KEY", "bedrock-api-key-x")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    seen: list[Any] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(asked)
        return 200, {}, REPLIES["text"]

    config = {"base_url": script(answer), "api_key_env": "A_KEY"}
    assert bench.ask(model(config), problems(1)).column("status") == ["ok"]
    assert seen[0].headers["authorization"] == "Bearer bedrock-api-key-x"


@needs_botocore
def test_the_same_benchmark_gives_the_same_predictions(bench: Any, problems: Any, script: Any):
    attempts = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        attempts.append(asked)
        if len(attempts) == 1:
            return 429, {"x-amzn-ErrorType": "ThrottlingException"}, {"message": "Too many requests"}
        return 200, {}, REPLIES["text"]

    config = {"base_url": script(answer), "max_concurrency": 1}
    price = Price(prompt=10.0, completion=20.0, cached=1.0)
    outcome = bench.ask(model(config), problems(2), price=price)
    assert outcome.tally.cost == pytest.approx(2 * (12 * 10 + 11 * 1 + 3 * 20) / 1e6)
    assert outcome.column("response") == ["Four."] * 2
    assert outcome.tally.attempts == 3
    assert bench.ask(model(config), problems(2)).tally.sent == 0


def frame(kind: str, payload: Any, what: str = "event") -> bytes:
    """An event as AWS frames it."""
    named = {":message-type": what, f":{what}-type": kind, ":content-type": "application/json"}
    return framed(named, json.dumps(payload).encode())


def framed(named: dict[str, str], body: bytes) -> bytes:
    """A message of these headers."""
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
        for name, value in named.items()
    )
    prelude = struct.pack("!II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack("!I", zlib.crc32(prelude)) + headers + body
    return message + struct.pack("!I", zlib.crc32(message))


def frames(reply: dict[str, Any]) -> Iterator[bytes]:
    """What Bedrock streams in place of a reply: texts in two pieces."""
    yield frame("messageStart", {"role": "assistant"})
    for index, block in enumerate(reply["output"]["message"]["content"]):
        at = {"contentBlockIndex": index}
        if use := block.get("toolUse"):
            begun = {name: use[name] for name in ("toolUseId", "name")}
            yield frame("contentBlockStart", {"start": {"toolUse": begun}, **at})
            yield frame(
                "contentBlockDelta", {"delta": {"toolUse": {"input": json.dumps(use["input"])}}, **at}
            )
        elif "text" in block:
            for piece in (block["text"][:1], block["text"][1:]):
                yield frame("contentBlockDelta", {"delta": {"text": piece}, **at})
        else:
            thought = block["reasoningContent"]
            for name, value in thought.get("reasoningText", thought).items():
                yield frame("contentBlockDelta", {"delta": {"reasoningContent": {name: value}}, **at})
        yield frame("contentBlockStop", at)
    yield frame("messageStop", {"stopReason": reply["stopReason"]})
    yield frame("metadata", {"usage": reply["usage"], "metrics": {"latencyMs": 1}})


@needs_botocore
@pytest.mark.parametrize("name", REPLIES)
def test_a_streamed_answer_is_the_same_answer(bench: Any, problems: Any, script: Any, name: str):
    seen: list[Any] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(asked)
        return 200, {"Content-Type": "application/vnd.amazon.eventstream"}, b"".join(frames(REPLIES[name]))

    config = {"base_url": script(answer), "stream": True}
    (row,) = bench.ask(model(config), problems(1)).rows
    whole = read(name)
    assert seen[0].path.endswith("/converse-stream")
    assert (row["status"], row["response"], row["reasoning"]) == (
        whole.status,
        whole.response,
        whole.reasoning,
    )
    for field in ("finish_reason", "total_tokens", "cached_tokens"):
        assert row[field] == getattr(whole, field), field
    assert (row["tool_calls_json"] is None) == (whole.tool_calls_json is None)


@needs_botocore
@pytest.mark.parametrize(
    ("pieces", "attempts"),
    [
        ([frame("messageStart", {"role": "assistant"})], 3),
        ([frame("throttlingException", {"message": "slow down"}, "exception")], 3),
        ([frame("internalServerException", {"message": "oops"}, "exception")], 3),
        ([b"\x00\x00\x00\x20nothing like a frame" + bytes(64)], 3),
        ([frame("validationException", {"message": "no"}, "exception")], 1),
    ],
    ids=["cut off", "throttled", "server fault", "broken", "refused"],
)
def test_a_stream_that_goes_wrong_is_no_answer(
    bench: Any, problems: Any, script: Any, pieces: list[bytes], attempts: int
):
    content = b"".join(pieces)
    address = script(lambda _: (200, {"Content-Type": "application/vnd.amazon.eventstream"}, content))
    config = {"base_url": address, "stream": True, "max_retries": 2, "deadline": 20, "max_concurrency": 1}
    outcome = bench.ask(model(config), problems(1))
    assert outcome.column("status") == ["infra_error"]
    assert outcome.tally.attempts == attempts


@needs_botocore
def test_the_reason_of_an_error_that_is_no_event_is_told(bench: Any, problems: Any, script: Any):
    told = {":message-type": "error", ":error-code": "InternalError", ":error-message": "the model is gone"}
    content = frame("messageStart", {"role": "assistant"}) + framed(told, b"")
    address = script(lambda _: (200, {"Content-Type": "application/vnd.amazon.eventstream"}, content))
    outcome = bench.ask(model({"base_url": address, "stream": True, "max_retries": 0}), problems(1))
    assert "InternalError: the model is gone" in outcome.rows[0]["error"]


@needs_botocore
def test_signed_thoughts_go_back_with_the_next_turn(bench: Any, batch_of: Any, script: Any):
    seen: list[Any] = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(asked.body)
        reply = json.loads(json.dumps(REPLIES["calls"]))
        thought = {"reasoningText": {"text": "hm", "signature": f"s{len(seen)}"}}
        reply["output"]["message"]["content"].insert(0, {"reasoningContent": thought})
        return 200, {}, reply

    asked_model = model({"base_url": script(answer)})
    requests = batch_of([{"chat": True, "prompts": [json.dumps({**CHAT, "messages": SAID[:2]})]}])
    tool = Continuation("tool", Template("Rain", "turns"))
    for turn in (1, 2):
        responded = respond(asked_model, requests, bench.answers, bench.options())
        batches = list(responded.batches)
        assert [row["status"] for batch in batches for row in batch.to_pylist()] == ["ok"]
        requests = list(next_requests(tool, turn, requests, batches))
    assert [next(iter(block)) for block in seen[1]["messages"][1]["content"]] == [
        "reasoningContent",
        "text",
        "toolUse",
    ]
    assert seen[1]["messages"][1]["content"][0] == {
        "reasoningContent": {"reasoningText": {"text": "hm", "signature": "s1"}}
    }


@pytest.mark.parametrize(
    ("status", "kind", "message", "error"),
    [
        (400, "ValidationException", "The provided model identifier is invalid.", NotServed),
        (
            400,
            "ValidationException",
            "Invocation of model ID x with on-demand throughput isn’t supported. Retry your request with the "
            "ID or ARN of an inference profile that contains this model.",
            NotServed,
        ),
        (400, "ValidationException", "Input is too long for requested model.", ContextTooLong),
        (400, "ValidationException", "Malformed input request", BadRequest),
        (400, "ServiceQuotaExceededException", "over your quota", AccessDenied),
        (403, "UnrecognizedClientException", "The security token is invalid.", AccessDenied),
        (404, "ResourceNotFoundException", "no such model", NotServed),
        (408, "ModelTimeoutException", "took too long", RequestTimeout),
        (424, "ModelErrorException", "the model failed", ServerFault),
        (429, "ThrottlingException", "Too many tokens, please wait", RateLimited),
        (500, "InternalServerException", "oops", ServerFault),
    ],
)
def test_each_error_of_aws_is_one_of_ours(status: int, kind: str, message: str, error: type[Exception]):
    wire = provider_of(model()).wire()  # type: ignore[union-attr]
    found = wire.failure(status, json.dumps({"message": message}).encode(), {"x-amzn-ErrorType": kind})
    assert type(found) is error
    assert message[:30] in str(found)


@needs_botocore
def test_a_key_a_model_or_a_region_that_is_wrong_is_one_sentence(script: Any, monkeypatch: Any):
    def failing(status: int, message: str) -> str:
        return script(lambda _: (status, {}, {"message": message}))

    key = failing(403, "The security token included in the request is invalid.")
    with pytest.raises(ModelError, match=r"refused access .*token .* is invalid.*AWS_SECRET_ACCESS_KEY"):
        probe(model({"base_url": key}))
    for status in (400, 404):
        unknown = failing(status, "The provided model identifier is invalid.")
        with pytest.raises(ModelError, match=r"knows no model 'us\.anth.*us-east-1.*set config\.model"):
            probe(model({"base_url": unknown}))
    region = "http://127.0.0.1:9"
    with pytest.raises(ModelError, match=r"nothing usable answers .*config\.region"):
        probe(model({"base_url": region}))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(ModelError, match=r"variable AWS_SECRET_ACCESS_KEY is not set; .*api_key_env"):
        probe(model({"base_url": key}))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a\nb")
    with pytest.raises(ModelError, match="AWS_SECRET_ACCESS_KEY holds characters that no key has"):
        probe(model({"base_url": key}))


@needs_botocore
def test_a_key_that_may_not_look_models_up_is_no_wrong_key(script: Any):
    """A key that may only invoke models can't ask the control plane for them."""
    said = "User: arn:aws:iam::1:user/x is not authorized to perform: bedrock:GetFoundationModel"
    found = probe(model({"base_url": script(lambda _: (403, {}, {"message": said}))}))
    assert (found.model, found.warning) == (NAME, None)
    provisioned = "arn:aws:bedrock:us-east-1:123456789012:provisioned-model/abc"
    assert probe(model({"base_url": "http://127.0.0.1:9", "model": provisioned})).warning is None


@needs_botocore
def test_an_inference_profile_is_looked_up_where_the_models_do_not_have_it(script: Any):
    seen = []

    def answer(asked: Any) -> tuple[int, dict[str, str], Any]:
        seen.append(unquote(asked.path))
        if "foundation-models" in asked.path:
            return 400, {}, {"message": "The provided model identifier is invalid."}
        return 200, {}, {"inferenceProfileId": NAME, "status": "ACTIVE"}

    probe(model({"base_url": script(answer)}))
    assert seen == [f"/v1/foundation-models/{NAME}", f"/v1/inference-profiles/{NAME}"]


def test_the_address_is_that_of_the_region():
    assert provider_of(model({"region": "eu-west-3"})).config.base_url == (  # type: ignore[union-attr]
        "https://bedrock-runtime.eu-west-3.amazonaws.com"
    )
    assert provider_of(model({"region": "cn-north-1"})).config.base_url == (  # type: ignore[union-attr]
        "https://bedrock-runtime.cn-north-1.amazonaws.com.cn"
    )
    assert control_address("https://proxy.example/v1") == "https://proxy.example/v1"
    assert provider_of(model({"base_url": "http://localhost:1/"})).config.base_url == "http://localhost:1"  # type: ignore[union-attr]


def test_without_botocore_it_says_what_to_install(monkeypatch: Any):
    monkeypatch.setattr("tasks.models.signing.find_spec", lambda name: None)
    for config in ({}, {"stream": True}):
        with pytest.raises(ModelError, match=r"need the extra 'bedrock': pip install -e '\.\[bedrock\]'"):
            probe(model(config))


def test_events_that_nobody_knows_are_passed_over():
    stream = StreamedConverse()
    stream.add(b'{"somethingNew":{"x":1}}')
    stream.add(b'{"messageStop":{"stopReason":"end_turn"}}')
    assert stream.body()["output"]["message"]["content"] == []
