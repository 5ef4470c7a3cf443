"""The type ``gemini``: Google's Gemini API, ``generateContent``.

A chat of OpenAI's form becomes a system instruction and contents of parts; the parts of a candidate become
answer, thought and calls. A prompt or candidate that Google's filters block is a refusal. What the API has no
field for is refused before anything is asked.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from tasks.messages.calls import calls_text
from tasks.messages.chat import THOUGHTS, Message, content_text
from tasks.messages.endings import ending, openai_word
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.batches.gemini import GeminiBatches
from tasks.models.config import ModelConfig, ReasoningConfig, SampleParams
from tasks.models.errors import (
    FILTERED,
    AccessDenied,
    BadRequest,
    EmptyAnswer,
    MalformedBody,
    RequestError,
    ServerFault,
)
from tasks.models.extra import PLACE, with_extra, with_own
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
)
from tasks.models.providers.openai.generation import ParsedChoice
from tasks.models.providers.provider import ServedModel
from tasks.models.records import Answer, Request
from tasks.models.registry import provider
from tasks.models.usage import text_or_none
from tasks.models.wire import ModelListing, Wire, answer_body, body_error, event_object, mended, status_error

FIELDS: Final[Mapping[str, str]] = {
    "temperature": "temperature",
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "top_p": "topP",
    "top_k": "topK",
    "stop": "stopSequences",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
}
"""Sampling parameters by what the API calls them."""
TAKEN: Final = frozenset({*FIELDS, "response_format", "tool_choice", "reasoning_effort", "seed"})
BROKEN_OFF: Final = frozenset({"OTHER", "MALFORMED_RESPONSE", "FINISH_REASON_UNSPECIFIED"})
"""Finish reasons of a candidate that the API broke off without a reason of the item's."""
SIGNATURE: Final = "thoughtSignature"
"""Field of a part that signs the thought before it; of several calls side by side the first has it."""
UNSIGNED: Final = "skip_thought_signature_validator"
"""What the API takes, by its documentation, in place of the signature of a call that it did not just make."""


class GeminiConfig(NativeConfig):
    """Google's Gemini API and how hard it may be driven."""

    base_url: str = Field(
        "https://generativelanguage.googleapis.com/v1beta", description="address of the API, up to /v1beta"
    )
    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="sent along with every request as it is, such as safetySettings"
    )


@provider("gemini")
class Gemini(NativeProvider[GeminiConfig]):
    """Models of Google by their own API."""

    schema = GeminiConfig
    takes = TAKEN
    batches = GeminiBatches()

    def headers(self, key: str | None) -> dict[str, str]:
        """The key."""
        return {} if key is None else {"x-goog-api-key": key}

    def wire(self) -> Wire:
        """Errors as the API gives them, and chunks that are replies themselves."""
        return Wire(failure=_failure, body=lambda content: _named(answer_body(content)), stream=StreamedParts)

    def encoder(self, sampling: SampleParams, media: ReadMedia) -> NativeCodec:
        """Contents."""
        return Contents(self.model.served_name, self.config, content_fields(self.model, sampling), media)

    async def listing(self, served: ServedModel[Any]) -> ModelListing:
        """The model alone, by its name."""
        return await self.entry(served, _place(served.model))


def _place(model: str) -> str:
    """Where the API has a model; its own lists name it so."""
    return model if "/" in model else f"models/{model}"


def content_fields(model: ModelConfig, sampling: SampleParams) -> dict[str, Any]:
    """The fields that all requests of a model have, beside the contents; raises ModelError."""
    sent = sampling.sent()
    drawn = {FIELDS[name]: sent[name] for name in FIELDS if name in sent}
    if (wanted := sent.get("response_format")) is not None:
        drawn |= _format(model, wanted)
    drawn |= _thinking(model.reasoning, sent.get("reasoning_effort") or model.reasoning.effort)
    fields: dict[str, Any] = {"generationConfig": drawn} if drawn else {}
    if (choice := sent.get("tool_choice")) is not None:
        fields["toolConfig"] = {"functionCallingConfig": _tool_choice(choice)}
    return fields


def _thinking(reasoning: ReasoningConfig, effort: str | None) -> dict[str, Any]:
    thinking: dict[str, Any] = {} if effort is None else {"thinkingLevel": effort}
    if reasoning.budget_tokens is not None:
        thinking["thinkingBudget"] = reasoning.budget_tokens
    return {"thinkingConfig": {**thinking, "includeThoughts": True}} if thinking else {}


def _format(model: ModelConfig, wanted: Mapping[str, Any]) -> dict[str, Any]:
    json_type = {"responseMimeType": "application/json"}
    if wanted.get("type") == "json_object":
        return json_type
    schema = json_schema(model, wanted, "{type: json_object} or ")
    return {**json_type, "responseJsonSchema": schema.get("schema", schema)}


def _tool_choice(choice: Any) -> dict[str, Any]:
    if isinstance(choice, Mapping):
        return {"mode": "ANY", "allowedFunctionNames": [choice["function"]["name"]]}
    return {"mode": {"required": "ANY"}.get(choice, str(choice).upper())}


class Contents(NativeCodec):
    """A system instruction and contents of parts."""

    counted = "usageMetadata"

    def __init__(
        self, model: str, config: GeminiConfig, fields: Mapping[str, Any], media: ReadMedia = refuse_media
    ) -> None:
        method = "streamGenerateContent?alt=sse" if config.stream else "generateContent"
        super().__init__(f"{_place(model)}:{method}", media)
        self._fields = with_extra(fields, config.extra_body)

    def body(self, chat: Chat) -> dict[str, Any]:
        """Results of tools are said by the user."""
        own: dict[str, Any] = {"contents": _contents(chat.messages)}
        if chat.system:
            own["systemInstruction"] = {"parts": [{"text": chat.system}]}
        if chat.functions:
            own["tools"] = [{"functionDeclarations": [_tool(function) for function in chat.functions]}]
        body = with_own(self._fields, own)
        if chat.seed is not None:
            drawn = body.get("generationConfig", {})
            body["generationConfig"] = with_own(drawn, {"seed": chat.seed}, f"{PLACE}.generationConfig")
        return body

    def counts(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Thoughts are counted beside the candidate's other tokens."""
        thoughts, said = usage.get("thoughtsTokenCount"), usage.get("candidatesTokenCount")
        written = [count for count in (thoughts, said) if isinstance(count, int)]
        return {
            "prompt_tokens": usage.get("promptTokenCount"),
            "completion_tokens": sum(written) if written else None,
            "total_tokens": usage.get("totalTokenCount"),
            "prompt_tokens_details": {"cached_tokens": usage.get("cachedContentTokenCount")},
            "completion_tokens_details": {"reasoning_tokens": thoughts},
        }

    def read(self, request: Request, part: Mapping[str, Any]) -> Answer:
        """What the candidate's parts say; raises MalformedBody, EmptyAnswer, ServerFault."""
        facts: dict[str, Any] = self.usage(part)
        if block := _block_reason(part):
            return Answer("refused", error=f"{FILTERED}: the prompt was blocked ({block})", **facts)
        candidates = part.get("candidates")
        if not isinstance(candidates, list) or len(candidates) != 1 or not isinstance(candidates[0], Mapping):
            raise MalformedBody("the answer does not have the one candidate that was asked for")
        finish = text_or_none(candidates[0].get("finishReason"))
        facts["finish_reason"] = openai_word(finish)
        if ending(finish) == "filtered":
            return Answer("refused", error=f"{FILTERED}: the answer was blocked ({finish})", **facts)
        if finish in BROKEN_OFF:
            raise ServerFault(f"the API broke the answer off (finish reason {finish})")
        parts = _parts(candidates[0])
        text, thought = (
            joined(one["text"] for one in parts if "text" in one and bool(one.get("thought")) is thinks)
            for thinks in (False, True)
        )
        made = (one["functionCall"] for one in parts if "functionCall" in one)
        calls = calls_text([function_call(call, "args", "a functionCall") for call in made])
        if calls is not None and finish == "STOP":
            facts["finish_reason"] = "tool_calls"
        signatures = [one.get(SIGNATURE) for one in parts if "functionCall" in one]
        is_odd = ending(finish) not in ("whole", "limit") and not text.strip() and calls is None
        if is_odd or (finish == "STOP" and not parts):
            raise EmptyAnswer(f"the answer has no content (finish reason {finish!r})")
        signed, limit = signatures if any(signatures) else (), "finish reason MAX_TOKENS"
        return answer_of(ParsedChoice(text, thought, calls), signed, facts, limit)


def _block_reason(reply: Mapping[str, Any]) -> str | None:
    """Why the prompt was blocked; None: it was not."""
    feedback = reply.get("promptFeedback")
    reason = feedback.get("blockReason") if isinstance(feedback, Mapping) else None
    return None if not reason or reason == "BLOCK_REASON_UNSPECIFIED" else str(reason)


def _parts(candidate: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = candidate.get("content")
    parts = content.get("parts", []) if isinstance(content, Mapping) else []
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise MalformedBody("the answer's candidate has no list of parts")
    # A field that is null is not there, as in all JSON of protocol buffers.
    told = ({name: value for name, value in part.items() if value is not None} for part in parts)
    return [part for part in told if part]


def _contents(messages: Sequence[Message]) -> list[dict[str, Any]]:
    names = {call["id"]: call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()}
    return alternating(messages, lambda message: _said(message, names), "model", "parts")


def _said(message: Message, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    if message["role"] == "tool":
        name = names.get(message["tool_call_id"])
        if name is None:
            raise BadRequest(f"the result of the call {message['tool_call_id']!r} follows no such call")
        said = content_text(message.get("content"))
        yield {"functionResponse": {"name": name, "response": {"result": said}}}
        return
    yield from map(_part, said_parts(message))
    calls = message.get("tool_calls") or ()
    for call, signature in zip(calls, message.get(THOUGHTS) or [UNSIGNED] * len(calls), strict=True):
        given = arguments_object(call["function"]["arguments"])
        yield {
            "functionCall": {"name": call["function"]["name"], "args": given},
            **({} if signature is None else {SIGNATURE: signature}),
        }


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"text": part["text"]}
    if part["type"] == "input_audio":
        sound = part["input_audio"]
        return {"inlineData": {"mimeType": f"audio/{sound.get('format', 'wav')}", "data": sound["data"]}}
    url = part["image_url"]["url"]
    if not url.startswith("data:"):
        raise BadRequest(f"type gemini takes images as files, and not by an address as {url:.60}")
    kind, _, data = url.removeprefix("data:").partition(";base64,")
    return {"inlineData": {"mimeType": kind, "data": data}}


def _tool(function: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"parametersJsonSchema": function["parameters"]} if function.get("parameters") else {}
    return {**described(function), **schema}


def _failure(status: int, content: bytes, headers: Mapping[str, str]) -> RequestError:
    """A key that is wrong and a region that is not served come with status 400."""
    error, text = status_error(status, content, headers), content.decode("utf-8", "replace")
    if status == 400 and re.search("API_KEY_INVALID|API key not valid|location is not supported", text):
        return AccessDenied(str(error))
    return error


def _named(body: dict[str, Any]) -> dict[str, Any]:
    """The reply with its id and model by the names that all replies have them."""
    return {**body, "id": body.get("responseId"), "model": body.get("modelVersion")}


class StreamedParts:
    """Collects the chunks of one streamed reply: each is a reply with some parts of the one candidate."""

    def __init__(self) -> None:
        self._reply: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []

    def add(self, data: bytes) -> None:
        """Takes one chunk; raises MalformedBody, or the error that it stands for."""
        if not data:
            return
        chunk = event_object(data)
        if fault := body_error(chunk):
            raise fault
        for candidate in chunk.pop("candidates", None) or ():
            for part in _parts(candidate):
                self._extend(dict(part))
            self._candidate |= {name: value for name, value in candidate.items() if name != "content"}
        self._reply |= chunk

    def _extend(self, part: dict[str, Any]) -> None:
        last = self._parts[-1] if self._parts else {}
        alike = "text" in part and "text" in last and bool(part.get("thought")) is bool(last.get("thought"))
        if alike:
            last |= {**part, "text": last["text"] + part["text"]}
        else:
            self._parts.append(part)

    def body(self) -> dict[str, Any]:
        """The whole reply; raises MalformedBody when the stream ended before it did."""
        if not self._candidate.get("finishReason") and _block_reason(self._reply) is None:
            raise MalformedBody("the stream ended before the answer did")
        content = {"content": {"role": "model", "parts": self._parts}} if self._parts else {}
        candidates = {"candidates": [{**content, **self._candidate}]} if self._candidate else {}
        return _named(mended({**self._reply, **candidates}))
