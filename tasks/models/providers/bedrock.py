"""The type ``bedrock``: Converse, the one form in which AWS Bedrock asks the models of many makers.

It is asked by the own engine. Requests are signed with an access key, or bear a Bedrock API key. What
Converse has no field for is refused before anything is asked; fields of one maker's models go into
``extra_body.additionalModelRequestFields``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final
from urllib.parse import quote

import orjson
from pydantic import Field, field_validator, model_validator

from tasks.messages.calls import calls_text
from tasks.messages.chat import THOUGHTS, Message, content_text
from tasks.messages.endings import ending, openai_word
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.errors import (
    FILTERED,
    AccessDenied,
    BadRequest,
    MalformedBody,
    ModelError,
    NotServed,
    RateLimited,
    RequestError,
    ServerFault,
    shortened,
)
from tasks.models.extra import PLACE, with_extra, with_own
from tasks.models.http import HttpTransport
from tasks.models.providers.native import (
    Chat,
    NativeCodec,
    NativeConfig,
    NativeProvider,
    alternating,
    answer_of,
    arguments_object,
    described,
    function_call,
    joined,
    json_schema,
    said_parts,
    thought_counted,
)
from tasks.models.providers.openai.generation import ParsedChoice
from tasks.models.providers.provider import PROBE_SECONDS, ServedModel
from tasks.models.records import Answer, Request
from tasks.models.registry import provider
from tasks.models.signing import Credentials, SignatureV4, need_botocore
from tasks.models.usage import text_or_none
from tasks.models.wire import ModelListing, Wire, event_object, mended, status_error

TAKEN: Final = frozenset(
    {"temperature", "max_tokens", "max_completion_tokens", "top_p", "stop", "response_format", "tool_choice"}
    | {"reasoning_effort"}
)
"""Sampling parameters that Converse has a field for."""
FIELDS: Final[Mapping[str, str]] = {
    "max_tokens": "maxTokens",
    "max_completion_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
    "stop": "stopSequences",
}
"""Those of ``inferenceConfig`` by what Converse calls them."""
CACHE_POINT: Final[Mapping[str, Any]] = {"cachePoint": {"type": "default"}}


class BedrockConfig(NativeConfig):
    """Converse of AWS Bedrock and how hard it may be driven."""

    region: str = Field(description="AWS region that is asked, such as us-east-1")
    base_url: str = Field("", description="address of the runtime; default: that of the region")
    api_key_env: str | None = Field(
        None, description="environment variable that holds a Bedrock API key; default: requests are signed"
    )
    access_key_env: str = Field("AWS_ACCESS_KEY_ID", description="variable with the id of an access key")
    secret_key_env: str = Field("AWS_SECRET_ACCESS_KEY", description="variable with the secret access key")
    session_token_env: str = Field(
        "AWS_SESSION_TOKEN", description="variable with the token of a temporary access key"
    )
    prompt_caching: bool = Field(
        False, description="mark all that stands before the last message to be cached by the provider"
    )

    @field_validator("region")
    @classmethod
    def _is_a_region(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z]{2,}(-[a-z]+)+-\d+", value):
            raise ValueError(f"expected an AWS region such as us-east-1, not {value!r}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _addressed_by_region(cls, said: Any) -> Any:
        if not isinstance(said, Mapping) or said.get("base_url") or not isinstance(said.get("region"), str):
            return said
        ending = ".cn" if said["region"].startswith("cn-") else ""
        return {**said, "base_url": f"https://bedrock-runtime.{said['region']}.amazonaws.com{ending}"}


@provider("bedrock")
class Bedrock(NativeProvider[BedrockConfig]):
    """Models that AWS serves, by Converse."""

    schema = BedrockConfig
    takes = TAKEN
    unreachable = "check config.region: Bedrock is not in all regions"

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Refuses a budget, too, for which each maker has a field of its own."""
        if model.reasoning.budget_tokens is not None:
            raise ValueError(
                "reasoning.budget_tokens: Converse has no field for it; say it in config.extra_body, as "
                "additionalModelRequestFields: {thinking: {type: enabled, budget_tokens: 2048}} for Claude"
            )
        super().check(model)

    def http(self, served: ServedModel[Any], connections: int) -> HttpTransport:
        """Signed, where there is no API key; raises ModelError where there is no access key either."""
        config, name = self.config, self.model.name
        if config.stream:
            need_botocore(name, "streams of Bedrock need")
        if served.key is not None:
            return super().http(served, connections)
        keys = Credentials.of(name, config.access_key_env, config.secret_key_env, config.session_token_env)
        sign = SignatureV4(name, keys, "bedrock", config.region)
        return HttpTransport(served.base_url, {}, connections, keys.token, self.wire(), sign)

    def key_remedy(self) -> str:
        """Names the variables of the access key, where there is no API key."""
        config = self.config
        if config.api_key_env is not None or config.api_key_secret is not None:
            return super().key_remedy()
        return (
            f"check the access key in {config.access_key_env} and {config.secret_key_env}, and that it may "
            f"invoke the model in {config.region}"
        )

    def wire(self) -> Wire:
        """Errors as AWS gives them, and frames of events in place of lines."""
        return Wire(failure=_failure, stream=StreamedConverse, events=EventFrames)

    def encoder(self, sampling: SampleParams, media: ReadMedia) -> NativeCodec:
        """Converse."""
        return Converse(self.model.served_name, self.config, converse_fields(self.model, sampling), media)

    async def listing(self, served: ServedModel[Any]) -> ModelListing:
        """The model alone, as the control plane of the region knows it; nothing where the key may not look
        it up, or where it is an ARN that can't be."""
        transport = self.http(replace(served, base_url=control_address(served.base_url)), 1)
        unknown: NotServed | None = None
        try:
            for place in _lookups(served.model):
                try:
                    entry, headers = await transport.get(place, PROBE_SECONDS)
                    return ModelListing({served.model: entry}, headers)
                except NotServed as error:
                    unknown = error
        except AccessDenied as error:
            if "not authorized to perform" not in str(error):
                raise
            unknown = None
        finally:
            await transport.close()
        if unknown is None:
            return ModelListing({}, {})
        raise ModelError(
            f"model {self.model.name!r}: Bedrock knows no model {served.model!r} in {self.config.region} "
            f"({unknown}); set config.model to the id of a model or an inference profile there, or "
            "config.region to where it is"
        )


def control_address(base_url: str) -> str:
    """The address of the control plane beside a runtime's; another's is asked itself.

    >>> control_address("https://bedrock-runtime.us-east-1.amazonaws.com")
    'https://bedrock.us-east-1.amazonaws.com'
    """
    scheme, rest = base_url.split("://", 1)
    return f"{scheme}://{re.sub(r'^bedrock-runtime', 'bedrock', rest)}"


def _lookups(model: str) -> list[str]:
    name, profile = quote(model, safe=""), ":application-inference-profile/" in model
    models, profiles = f"foundation-models/{name}", f"inference-profiles/{name}"
    if not model.startswith("arn:"):
        return [models, profiles]
    if profile or ":inference-profile/" in model:
        return [profiles]
    return [models] if ":foundation-model/" in model else []


def converse_fields(model: ModelConfig, sampling: SampleParams) -> dict[str, Any]:
    """The fields that all requests of a model have, beside the messages; raises ModelError."""
    sent = sampling.sent()
    drawn = {FIELDS[name]: sent[name] for name in FIELDS if name in sent}
    fields: dict[str, Any] = {"inferenceConfig": drawn} if drawn else {}
    output: dict[str, Any] = {}
    if effort := sent.get("reasoning_effort") or model.reasoning.effort:
        output["effort"] = effort
    if (wanted := sent.get("response_format")) is not None:
        output["textFormat"] = _format(model, wanted)
    if (choice := sent.get("tool_choice")) is not None:
        fields["toolConfig"] = {"toolChoice": _tool_choice(model, choice)}
    return fields | ({"outputConfig": output} if output else {})


def _format(model: ModelConfig, wanted: Mapping[str, Any]) -> dict[str, Any]:
    schema = json_schema(model, wanted)
    about = {name: schema[name] for name in ("name", "description") if "schema" in schema and name in schema}
    text = orjson.dumps(schema.get("schema", schema)).decode()
    return {"type": "json_schema", "structure": {"jsonSchema": {"schema": text, **about}}}


def _tool_choice(model: ModelConfig, choice: Any) -> dict[str, Any]:
    if isinstance(choice, Mapping):
        return {"tool": {"name": choice["function"]["name"]}}
    if choice == "none":
        raise ModelError(
            f"model {model.name!r}: sample_params.tool_choice: type bedrock takes auto, required or a "
            "function, not 'none'; leave the tools out"
        )
    return {"any" if choice == "required" else str(choice): {}}


class Converse(NativeCodec):
    """A system prompt and turns of blocks."""

    def __init__(
        self, model: str, config: BedrockConfig, fields: Mapping[str, Any], media: ReadMedia = refuse_media
    ) -> None:
        method = "converse-stream" if config.stream else "converse"
        super().__init__(f"model/{quote(model, safe='')}/{method}", media)
        self._fields = with_extra(fields, config.extra_body)
        self._marks_prefix = config.prompt_caching

    def body(self, chat: Chat) -> dict[str, Any]:
        """Results of tools are said by the user. A choice of tools goes with tools alone."""
        fields, own = dict(self._fields), dict[str, Any](messages=alternating(chat.messages, _blocks))
        choice = fields.pop("toolConfig", {})
        if chat.system:
            own["system"] = [{"text": chat.system}]
        if chat.functions:
            tools = [{"toolSpec": _tool(function)} for function in chat.functions]
            own["toolConfig"] = with_own(choice, {"tools": tools}, f"{PLACE}.toolConfig")
        elif "tools" in choice:  # the provider's own, of extra_body
            own["toolConfig"] = choice
        body = with_own(fields, own)
        if self._marks_prefix:
            before = [turn["content"] for turn in body["messages"][:-1] if turn["content"]]
            if before:
                before[-1].append(CACHE_POINT)
            elif system := body.get("system"):  # of extra_body it is every request's
                body["system"] = [*system, CACHE_POINT]
        return body

    def counts(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Makers differ in whether cached tokens are in ``inputTokens``; they are in the total."""
        prompt, said, total = usage.get("inputTokens"), usage.get("outputTokens"), usage.get("totalTokens")
        if isinstance(total, int) and isinstance(said, int):
            prompt = total - said
        return {
            "prompt_tokens": prompt,
            "completion_tokens": said,
            "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": usage.get("cacheReadInputTokens")},
        }

    def read(self, request: Request, part: Mapping[str, Any]) -> Answer:
        """What the blocks of the message say; raises MalformedBody."""
        blocks, stop = _message_blocks(part), text_or_none(part.get("stopReason"))
        facts: dict[str, Any] = {**self.usage(part), "finish_reason": openai_word(stop)}
        if ending(stop) == "filtered":
            return Answer("refused", error=f"{FILTERED}: the answer was stopped ({stop})", **facts)
        text = joined(block["text"] for block in blocks if "text" in block)
        signed = [block for block in blocks if "reasoningContent" in block]
        thoughts = [block["reasoningContent"].get("reasoningText") for block in signed]
        thought = joined(one.get("text") for one in thoughts if isinstance(one, Mapping))
        uses = (block["toolUse"] for block in blocks if "toolUse" in block)
        calls = calls_text([function_call(use, "input", "a toolUse") for use in uses])
        said = ParsedChoice(text, thought, calls)
        return answer_of(said, signed, thought_counted(said, facts), f"stop reason {stop!r}")


def _message_blocks(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    output = part.get("output")
    message = output.get("message") if isinstance(output, Mapping) else None
    blocks = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
        raise MalformedBody("the answer has no message with a list of content blocks")
    if not all(isinstance(b["reasoningContent"], Mapping) for b in blocks if "reasoningContent" in b):
        raise MalformedBody("a reasoningContent of the answer is no object")
    return blocks


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        said = [{"text": content_text(message.get("content"))}]
        yield {"toolResult": {"toolUseId": message["tool_call_id"], "content": said}}
        return
    yield from message.get(THOUGHTS) or ()
    yield from map(_block, said_parts(message))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        given = arguments_object(function["arguments"])
        yield {"toolUse": {"toolUseId": call["id"], "name": function["name"], "input": given}}


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"text": part["text"]}
    if part["type"] == "input_audio":
        sound = part["input_audio"]
        return {"audio": {"format": sound.get("format", "wav"), "source": {"bytes": sound["data"]}}}
    url = part["image_url"]["url"]
    if not url.startswith("data:image/"):
        raise BadRequest(f"type bedrock takes images as files, and not by an address as {url:.60}")
    kind, _, data = url.removeprefix("data:image/").partition(";base64,")
    return {"image": {"format": kind, "source": {"bytes": data}}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {**described(function), "inputSchema": {"json": schema}}


_no_such_model = re.compile(r"model identifier is invalid|on-demand throughput isn.t supported")


def _failure(status: int, content: bytes, headers: Mapping[str, str]) -> RequestError:
    """A model that is not there comes with status 400; what went wrong in a model with 424."""
    error = status_error(status, content, headers)
    if status == 400 and _no_such_model.search(str(error)):
        return NotServed(str(error))
    if status == 400 and headers.get("x-amzn-ErrorType", "").startswith("ServiceQuotaExceeded"):
        return AccessDenied(str(error))
    return ServerFault(str(error)) if status == 424 else error


class EventFrames:
    """The events of an AWS stream, each as a JSON object with the event's type as its one key."""

    media_type: ClassVar[str] = "application/vnd.amazon.eventstream"

    def __init__(self) -> None:
        from botocore.eventstream import EventStreamBuffer

        self._frames: Any = EventStreamBuffer()

    def add(self, piece: bytes) -> Iterator[bytes]:
        """The events that this piece of the stream ends; raises what botocore does of a broken frame."""
        self._frames.add_data(piece)
        for frame in self._frames:
            if frame.headers.get(":message-type") == "error":  # all that it says is in its headers
                told = {name: frame.headers.get(f":error-{name}") for name in ("code", "message")}
                yield orjson.dumps({"error": told}, default=str)
                continue
            kind = frame.headers.get(":event-type") or frame.headers.get(":exception-type")
            yield b'{"%s":%s}' % (str(kind).encode(), frame.payload or b"{}")

    def rest(self) -> Iterator[bytes]:
        """Nothing: a frame says how long it is."""
        return iter(())


class StreamedConverse:
    """Collects the events of one streamed answer."""

    def __init__(self) -> None:
        self._reply: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}

    def add(self, data: bytes) -> None:
        """Takes one event; raises MalformedBody, or the error that an event stands for."""
        ((kind, event),) = event_object(data).items()
        match kind:
            case "contentBlockStart":
                use = event["start"].get("toolUse")
                self._blocks[event["contentBlockIndex"]] = {} if use is None else {"toolUse": {**use}}
            case "contentBlockDelta":
                self._extend(self._blocks.setdefault(event["contentBlockIndex"], {}), event["delta"])
            case "messageStop":
                self._reply["stopReason"] = event["stopReason"]
            case "metadata":
                self._reply["usage"] = event.get("usage")
            case "error":
                raise ServerFault(f"an error in the stream: {event['code']}: {_said(event)}")
            case "throttlingException":
                raise RateLimited(f"an error in the stream: {_said(event)}")
            case "validationException":
                raise BadRequest(f"an error in the stream: {_said(event)}")
            case _ if kind.endswith("Exception"):
                raise ServerFault(f"an error in the stream: {kind}: {_said(event)}")

    def _extend(self, block: dict[str, Any], delta: Mapping[str, Any]) -> None:
        if "text" in delta:
            block["text"] = block.get("text", "") + delta["text"]
        elif "toolUse" in delta:
            use = block.setdefault("toolUse", {})
            use["input"] = use.get("input", "") + delta["toolUse"]["input"]
        elif "redactedContent" in (thought := delta.get("reasoningContent") or {}):
            block.setdefault("reasoningContent", {})["redactedContent"] = thought["redactedContent"]
        elif thought:
            text = block.setdefault("reasoningContent", {}).setdefault("reasoningText", {"text": ""})
            for name in ("text", "signature"):
                if name in thought:
                    text[name] = text.get(name, "") + thought[name]

    def body(self) -> dict[str, Any]:
        """The whole reply; raises MalformedBody when the stream ended before it did."""
        if "stopReason" not in self._reply:
            raise MalformedBody("the stream ended before the answer did")
        blocks = [block for _, block in sorted(self._blocks.items()) if block]
        return mended({**self._reply, "output": {"message": {"role": "assistant", "content": blocks}}})


def _said(event: Mapping[str, Any]) -> str:
    return shortened(str(mended(event).get("message") or event))
