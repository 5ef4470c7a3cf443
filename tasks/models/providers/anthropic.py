"""The type ``anthropic``: Anthropic's Messages API.

It is asked by the own engine, as other endpoints are: limits, retries and kept replies are the same. A chat
of OpenAI's form becomes a system prompt and turns of blocks; the blocks of a reply become answer, thought and
calls. What the API has no field for is refused before anything is asked.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pydantic import Field

from tasks.messages.calls import calls_text
from tasks.messages.chat import THOUGHTS, Message, content_text
from tasks.messages.endings import openai_word
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.batches.anthropic import AnthropicBatches
from tasks.models.config import ModelConfig, ReasoningConfig, SampleParams
from tasks.models.errors import (
    REFUSED,
    AccessDenied,
    BadRequest,
    MalformedBody,
    RequestError,
)
from tasks.models.extra import with_extra, with_own
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
from tasks.models.providers.provider import ServedModel
from tasks.models.records import Answer, Request
from tasks.models.registry import provider
from tasks.models.usage import text_or_none
from tasks.models.wire import ModelListing, Wire, body_error, event_object, mended, status_error

SIGNED: Final = ("thinking", "redacted_thinking")
"""Types of the blocks that are sent back as they came: the API checks that the last turn's are there."""
API_VERSION: Final = "2023-06-01"
MAX_TOKENS: Final = 4_096
"""The API takes no request without a limit: this one where ``max_tokens`` does not say."""
TAKEN: Final = frozenset(
    {"temperature", "max_tokens", "max_completion_tokens", "top_p", "top_k", "stop", "response_format"}
    | {"tool_choice", "reasoning_effort"}
)
"""Sampling parameters that the API has a field for."""


class AnthropicConfig(NativeConfig):
    """Anthropic's Messages API and how hard it may be driven."""

    base_url: str = Field("https://api.anthropic.com/v1", description="address of the API, up to /v1")
    prompt_caching: bool = Field(
        False, description="mark all that stands before the last message to be cached by the provider"
    )


@provider("anthropic")
class Anthropic(NativeProvider[AnthropicConfig]):
    """Models of Anthropic by their own API."""

    schema = AnthropicConfig
    takes = TAKEN
    batches = AnthropicBatches()

    def headers(self, key: str | None) -> dict[str, str]:
        """The API's version, and the key where there is one."""
        return {"anthropic-version": API_VERSION, **({} if key is None else {"x-api-key": key})}

    def wire(self) -> Wire:
        """Errors as the API gives them, and its own events."""
        return Wire(failure=_failure, stream=StreamedMessage)

    def encoder(self, sampling: SampleParams, media: ReadMedia) -> NativeCodec:
        """Messages."""
        return Messages(self.model.served_name, self.config, message_fields(self.model, sampling), media)

    def longest_answer(self, sampling: SampleParams) -> int:
        """As every request says it."""
        return super().longest_answer(sampling) or MAX_TOKENS

    async def listing(self, served: ServedModel[Any]) -> ModelListing:
        """The model alone, by its name or alias."""
        return await self.entry(served, f"models/{served.model}")


def message_fields(model: ModelConfig, sampling: SampleParams) -> dict[str, Any]:
    """The fields that all requests of a model have, beside the messages; raises ModelError."""
    sent = sampling.sent()
    limit = sent.pop("max_tokens", None) or sent.pop("max_completion_tokens", None) or MAX_TOKENS
    sent.pop("max_completion_tokens", None)
    fields: dict[str, Any] = {"max_tokens": limit}
    if "stop" in sent:
        fields["stop_sequences"] = sent.pop("stop")
    output: dict[str, Any] = {}
    if effort := sent.pop("reasoning_effort", None) or model.reasoning.effort:
        output["effort"] = effort
    if (wanted := sent.pop("response_format", None)) is not None:
        output["format"] = _format(model, wanted)
    if (choice := sent.pop("tool_choice", None)) is not None:
        fields["tool_choice"] = _tool_choice(choice)
    return fields | sent | _thinking(model.reasoning) | ({"output_config": output} if output else {})


def _thinking(reasoning: ReasoningConfig) -> dict[str, Any]:
    if reasoning.budget_tokens is None:
        return {}
    if reasoning.budget_tokens == 0:
        return {"thinking": {"type": "disabled"}}
    return {"thinking": {"type": "enabled", "budget_tokens": reasoning.budget_tokens}}


def _format(model: ModelConfig, wanted: Mapping[str, Any]) -> dict[str, Any]:
    schema = json_schema(model, wanted)
    return {"type": "json_schema", "schema": schema.get("schema", schema)}


def _tool_choice(choice: Any) -> dict[str, Any]:
    if isinstance(choice, Mapping):
        function = choice.get("function")
        return {"type": "tool", "name": function["name"]} if isinstance(function, Mapping) else dict(choice)
    return {"type": "any" if choice == "required" else choice}


class Messages(NativeCodec):
    """A system prompt and turns of blocks."""

    def __init__(
        self, model: str, config: AnthropicConfig, fields: Mapping[str, Any], media: ReadMedia = refuse_media
    ) -> None:
        super().__init__("messages", media)
        streaming = {"stream": True} if config.stream else {}
        self._body = with_extra({"model": model, **fields, **streaming}, config.extra_body)
        self._marks_prefix = config.prompt_caching

    def body(self, chat: Chat) -> dict[str, Any]:
        """Results of tools are said by the user."""
        own: dict[str, Any] = {"messages": alternating(chat.messages, _blocks)}
        if chat.system:
            own["system"] = [{"type": "text", "text": chat.system}]
        if chat.functions:
            own["tools"] = [_tool(function) for function in chat.functions]
        body = with_own(self._body, own)
        if self._marks_prefix:
            _mark_prefix(body)
        return body

    def counts(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Those read from and written to the cache are tokens of the prompt, and counted apart by the API."""
        cached, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
        counts = [count for count in (usage.get("input_tokens"), cached, written) if isinstance(count, int)]
        prompt, completion = sum(counts) if counts else None, usage.get("output_tokens")
        total = prompt + completion if isinstance(prompt, int) and isinstance(completion, int) else None
        details = usage.get("output_tokens_details")
        thought = details.get("thinking_tokens") if isinstance(details, Mapping) else None
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": thought},
        }

    def read(self, request: Request, part: Mapping[str, Any]) -> Answer:
        """What the blocks say; raises MalformedBody."""
        blocks, stop = part.get("content"), text_or_none(part.get("stop_reason"))
        if not isinstance(blocks, list) or not all(isinstance(block, Mapping) for block in blocks):
            raise MalformedBody("the answer has no list of content blocks")
        facts: dict[str, Any] = {**self.usage(part), "finish_reason": openai_word(stop)}
        if stop == "refusal":
            why = part.get("stop_details")
            reason = text_or_none(why.get("explanation")) if isinstance(why, Mapping) else None
            told = reason or _joined(blocks, "text") or "the stop reason is refusal"
            return Answer("refused", error=f"{REFUSED}: {told}", **facts)
        calls = calls_text(
            [
                function_call(block, "input", "a tool_use block")
                for block in blocks
                if block.get("type") == "tool_use"
            ]
        )
        said = ParsedChoice(_joined(blocks, "text"), _joined(blocks, "thinking"), calls)
        signed = [block for block in blocks if block.get("type") in SIGNED]
        # Older models count the thought and the answer together.
        return answer_of(said, signed, thought_counted(said, facts), f"stop reason {stop!r}")


def _joined(blocks: Sequence[Mapping[str, Any]], kind: str) -> str:
    return joined(block.get(kind) for block in blocks if block.get("type") == kind)


def _blocks(message: Message) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        said = content_text(message.get("content"))
        yield {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": said}
        return
    yield from message.get(THOUGHTS) or ()
    yield from map(_block, said_parts(message))
    for call in message.get("tool_calls") or ():
        function = call["function"]
        given = arguments_object(function["arguments"])
        yield {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}


def _block(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    if part["type"] != "image_url":
        raise BadRequest(f"type anthropic takes text and images, and this chat has a part of {part['type']}")
    url = part["image_url"]["url"]
    if not url.startswith("data:"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {**described(function), "input_schema": schema}


def _mark_prefix(body: dict[str, Any]) -> None:
    """Marks the end of all that stands before the last message: what many requests begin with."""
    before = [turn["content"] for turn in body["messages"][:-1] if turn["content"]]
    mark = {"cache_control": {"type": "ephemeral"}}
    if before:
        before[-1][-1] = {**before[-1][-1], **mark}
    elif system := body.get("system"):  # of extra_body it is every request's, and may be a text
        blocks = [{"type": "text", "text": system}] if isinstance(system, str) else list(system)
        body["system"] = [*blocks[:-1], {**blocks[-1], **mark}]


def _failure(status: int, content: bytes, headers: Mapping[str, str]) -> RequestError:
    """A balance that is used up comes with status 400."""
    error = status_error(status, content, headers)
    if status == 400 and "credit balance" in str(error):
        return AccessDenied(str(error))
    return error


@dataclass
class _Open:
    """A block of a stream that has not ended: what it began with, and the pieces of its text or input."""

    block: dict[str, Any]
    pieces: list[str]

    def whole(self) -> dict[str, Any]:
        text = mended("".join(self.pieces))
        if self.block.get("type") != "tool_use":
            name = "thinking" if self.block.get("type") == "thinking" else "text"
            return {**self.block, name: self.block.get(name, "") + text} if text else self.block
        try:
            return {**self.block, "input": orjson.loads(text)} if text else self.block
        except orjson.JSONDecodeError:
            return {**self.block, "input": text}


class StreamedMessage:
    """Collects the events of one streamed message."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, _Open] = {}
        self._done = False

    def add(self, data: bytes) -> None:
        """Takes the data of one event; raises MalformedBody, or the error that an event stands for."""
        if not data:
            return
        event = event_object(data)
        if fault := body_error(event):
            raise fault
        match event.get("type"):
            case "message_start":
                self._message = dict(event["message"])
            case "content_block_start":
                self._blocks[event["index"]] = _Open(dict(event["content_block"]), [])
            case "content_block_delta":
                self._extend(event["index"], event["delta"])
            case "message_delta":
                usage = {**(self._message.get("usage") or {}), **(event.get("usage") or {})}
                self._message |= {**event["delta"], "usage": usage}
            case "message_stop":
                self._done = True

    def _extend(self, index: int, delta: Mapping[str, Any]) -> None:
        if "signature" in delta:
            self._blocks[index].block["signature"] = delta["signature"]
            return
        for name in ("text", "thinking", "partial_json"):
            if isinstance(delta.get(name), str):
                self._blocks[index].pieces.append(delta[name])

    def body(self) -> dict[str, Any]:
        """The whole message; raises MalformedBody when the stream ended before it did."""
        if not self._done or not self._message:
            raise MalformedBody("the stream ended before the answer did")
        blocks = [self._blocks[index].whole() for index in sorted(self._blocks)]
        return mended({**self._message, "content": blocks})
