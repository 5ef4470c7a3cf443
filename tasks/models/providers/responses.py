"""The type ``openai_responses``: OpenAI's Responses API.

A chat of OpenAI's older form becomes instructions and items of input; the items of the output become answer,
thought and calls. Nothing is stored by the provider. What the API has no field for is refused before anything
is asked.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import Field

from tasks.messages.calls import calls_text
from tasks.messages.chat import THOUGHTS, Message, content_text
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.batches.openai import OpenAIBatches
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.errors import (
    FILTERED,
    REFUSED,
    BadRequest,
    EmptyAnswer,
    MalformedBody,
    ServerFault,
    shortened,
)
from tasks.models.extra import with_extra, with_own
from tasks.models.providers.native import (
    Chat,
    NativeCodec,
    NativeConfig,
    NativeProvider,
    answer_of,
    joined,
)
from tasks.models.providers.openai.config import is_openai
from tasks.models.providers.openai.generation import ParsedChoice
from tasks.models.records import Answer, Request
from tasks.models.registry import provider
from tasks.models.usage import text_or_none
from tasks.models.wire import Wire, body_error, json_object

TAKEN: Final = frozenset(
    {"temperature", "max_tokens", "max_completion_tokens", "top_p", "response_format", "tool_choice"}
    | {"reasoning_effort"}
)
"""Sampling parameters that the API has a field for."""
ENCRYPTED: Final = "encrypted_content"
"""Field of an item of reasoning that can be sent back, since nothing is stored by the provider."""
FINAL: Final = "final_answer"
"""The phase of messages that are the answer; those of another phase say what the model is about to do."""
ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
"""Events of a stream that hold the whole response."""
UNFINISHED: Final = frozenset({"failed", "cancelled", "queued", "in_progress"})
"""Statuses of a response that is no answer, whatever stands in its output."""


class ResponsesConfig(NativeConfig):
    """OpenAI's Responses API and how hard it may be driven."""

    base_url: str = Field("https://api.openai.com/v1", description="address of the API, up to /v1")


@provider("openai_responses")
class OpenAIResponses(NativeProvider[ResponsesConfig]):
    """Models of OpenAI by their newer API."""

    schema = ResponsesConfig
    takes = TAKEN
    batches = OpenAIBatches()

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Refuses a budget, too, which the API has no field for."""
        if model.reasoning.budget_tokens is not None:
            raise ValueError("reasoning.budget_tokens: type openai_responses takes reasoning.effort alone")
        super().check(model)

    def wire(self) -> Wire:
        """Its own events; the rest is as in OpenAI's older protocol."""
        return Wire(stream=StreamedResponse)

    def lists_all(self, base_url: str) -> bool:
        """OpenAI's own address does."""
        return is_openai(base_url)

    def encoder(self, sampling: SampleParams, media: ReadMedia) -> NativeCodec:
        """Items."""
        fields = response_fields(sampling, self.model.reasoning.effort)
        return Items(self.model.served_name, self.config, fields, media)


def response_fields(sampling: SampleParams, effort: str | None) -> dict[str, Any]:
    """The fields that all requests of a model have, beside the input."""
    sent = sampling.sent()
    fields: dict[str, Any] = {name: sent[name] for name in ("temperature", "top_p") if name in sent}
    if limit := sent.get("max_tokens") or sent.get("max_completion_tokens"):
        fields["max_output_tokens"] = limit
    if effort := sent.get("reasoning_effort") or effort:
        fields["reasoning"] = {"effort": effort, "summary": "auto"}
        fields["include"] = [f"reasoning.{ENCRYPTED}"]
    if (wanted := sent.get("response_format")) is not None:
        schema = wanted.get("json_schema")
        flat = {"type": wanted["type"], **schema} if isinstance(schema, Mapping) else wanted
        fields["text"] = {"format": flat}
    if (choice := sent.get("tool_choice")) is not None:
        named = isinstance(choice, Mapping) and isinstance(choice.get("function"), Mapping)
        fields["tool_choice"] = {"type": "function", **choice["function"]} if named else choice
    return fields


class Items(NativeCodec):
    """Instructions and items of input."""

    def __init__(
        self,
        model: str,
        config: ResponsesConfig,
        fields: Mapping[str, Any],
        media: ReadMedia = refuse_media,
    ) -> None:
        super().__init__("responses", media)
        streaming = {"stream": True} if config.stream else {}
        extra = {"store": False, **config.extra_body}
        self._body = with_extra({"model": model, **fields, **streaming}, extra)

    def body(self, chat: Chat) -> dict[str, Any]:
        """What is said, item by item."""
        own: dict[str, Any] = {"input": [item for message in chat.messages for item in _items(message)]}
        if chat.system:
            own["instructions"] = chat.system
        if chat.functions:
            own["tools"] = [{"type": "function", **function} for function in chat.functions]
        return with_own(self._body, own)

    def counts(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The same by other names."""
        return {
            "prompt_tokens": usage.get("input_tokens"),
            "completion_tokens": usage.get("output_tokens"),
            "total_tokens": usage.get("total_tokens"),
            "prompt_tokens_details": usage.get("input_tokens_details"),
            "completion_tokens_details": usage.get("output_tokens_details"),
        }

    def read(self, request: Request, part: Mapping[str, Any]) -> Answer:
        """What the items of the output say; raises MalformedBody, EmptyAnswer, ServerFault."""
        if part.get("status") in UNFINISHED:
            raise ServerFault(f"the API broke the answer off (status {part['status']!r})")
        output = part.get("output")
        if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
            raise MalformedBody("the answer has no list of output items")
        why = part.get("incomplete_details")
        reason = text_or_none(why.get("reason")) if isinstance(why, Mapping) else None
        calls = calls_text([_call(item) for item in output if item.get("type") == "function_call"])
        finish = {"max_output_tokens": "length"}.get(reason or "", reason)
        ended = "tool_calls" if calls is not None else "stop"
        facts: dict[str, Any] = {**self.usage(part), "finish_reason": finish or ended}
        messages = [item for item in output if item.get("type") == "message"]
        said = [one for message in messages for one in _listed(message, "content")]
        refusals = [str(one.get("refusal")) for one in said if one.get("type") == "refusal"]
        if refusals:
            return Answer("refused", error=f"{REFUSED}: {shortened(' '.join(refusals))}", **facts)
        if reason == "content_filter":
            return Answer("refused", error=f"{FILTERED}: its content filter cut the answer", **facts)
        final = [message for message in messages if message.get("phase") == FINAL]
        text = "\n\n".join(map(_text, final or messages))
        thoughts = [one for item in output if _is_thought(item, bool(final)) for one in _thoughts(item)]
        has_phases = any(message.get("phase") for message in messages)
        signed = [item for item in output if _goes_back(item, has_phases)]
        if not output and finish != "length":
            raise EmptyAnswer(f"the answer has no output (status {part.get('status')!r})")
        parsed = ParsedChoice(text, "\n\n".join(thoughts), calls)
        return answer_of(parsed, signed, facts, "max_output_tokens")


def _listed(item: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries = item.get(name)
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise MalformedBody(f"an item of the answer's output has no list of {name}")
    return entries


def _text(message: Mapping[str, Any]) -> str:
    parts = (one for one in _listed(message, "content") if one.get("type") == "output_text")
    return joined(one.get("text") for one in parts)


def _is_thought(item: Mapping[str, Any], has_final: bool) -> bool:
    """Whether an item of the output stands before the answer: what is said before a final answer does."""
    if item.get("type") == "message":
        return has_final and item.get("phase") != FINAL
    return item.get("type") == "reasoning"


def _goes_back(item: Mapping[str, Any], has_phases: bool) -> bool:
    """Whether an item of the output is sent with the next turn as it came; messages have their phase so."""
    if item.get("type") == "message":
        return has_phases
    return item.get("type") == "reasoning" and bool(item.get(ENCRYPTED))


def _thoughts(item: Mapping[str, Any]) -> list[str]:
    if item.get("type") == "message":
        return [_text(item)]
    entries = [entry for name in ("content", "summary") if item.get(name) for entry in _listed(item, name)]
    return [str(entry["text"]) for entry in entries if isinstance(entry.get("text"), str)]


def _call(item: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str) or not name or not isinstance(arguments, str | None):
        raise MalformedBody("a function_call of the answer names no function, or its arguments are no text")
    return {"name": name, "arguments": arguments or ""}


def _items(message: Message) -> Iterator[dict[str, Any]]:
    content, role = message.get("content"), message["role"]
    if role == "tool":
        output = content_text(content)
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}
        return
    if role == "assistant":
        came = message.get(THOUGHTS) or ()
        yield from came
        is_there = any(item.get("type") == "message" for item in came)
        if (text := content_text(content)) and not is_there:
            yield {"role": role, "content": [{"type": "output_text", "text": text}]}
    else:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        yield {"role": role, "content": [_part(part) for part in parts]}
    for call in message.get("tool_calls") or ():
        yield {"type": "function_call", "call_id": call["id"], **call["function"]}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if part["type"] != "image_url":
        raise BadRequest(
            f"type openai_responses takes text and images, and this chat has a part of {part['type']}"
        )
    image = part["image_url"]
    detail = {"detail": image["detail"]} if image.get("detail") else {}
    return {"type": "input_image", "image_url": image["url"], **detail}


class StreamedResponse:
    """Waits for the event of a stream that holds the whole response."""

    def __init__(self) -> None:
        self._response: dict[str, Any] | None = None

    def add(self, data: bytes) -> None:
        """Takes the data of one event; raises MalformedBody, or the error that an event stands for."""
        if not data or data == b"[DONE]":
            return
        event = json_object(data, "an event of the stream")
        if event.get("type") == "error" and "error" not in event:
            event = {"error": event}
        if fault := body_error(event):
            raise fault
        if event.get("type") in ENDS and isinstance(event.get("response"), dict):
            if fault := body_error(event["response"]):
                raise fault
            self._response = event["response"]

    def body(self) -> dict[str, Any]:
        """The whole response; raises MalformedBody when the stream ended before it did."""
        if self._response is None:
            raise MalformedBody("the stream ended before the answer did")
        return self._response
