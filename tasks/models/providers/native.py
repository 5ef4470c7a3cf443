"""What providers with an API of their own share: one question a request, put as a chat in their own form.

A new one names the sampling parameters that its API ``takes``, and makes a ``NativeCodec``: the body of a
chat and the answer in a reply. What the API has no field for is refused before anything is asked.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

import orjson
from pydantic import Field

from tasks.messages.calls import call_arguments, distinct_ids
from tasks.messages.chat import SYSTEM_ROLES, Message, chat_body, content_text
from tasks.messages.media import ReadMedia, media_size, refuse_media, sent_messages
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.errors import MalformedBody, ModelError, NotServed
from tasks.models.providers.openai.fields import FittingTransport, refused_by
from tasks.models.providers.openai.generation import ParsedChoice, thought_tokens
from tasks.models.providers.provider import PROBE_SECONDS, AddressedConfig, AskedProvider, ServedModel
from tasks.models.records import Answer, Call, Codec, Request, Transport
from tasks.models.usage import usage_of
from tasks.models.wire import ModelListing


class NativeConfig(AddressedConfig):
    """A provider's own API and how hard it may be driven."""

    extra_body: dict[str, Any] = Field(
        default_factory=dict, description="sent along with every request as it is"
    )
    stream: bool = Field(False, description="receive answers piece by piece")


N = TypeVar("N", bound=NativeConfig)


class NativeProvider(AskedProvider[N]):
    """Models behind an API that is not OpenAI's chat completions."""

    takes: ClassVar[frozenset[str]]
    """Sampling parameters that the API has a field for, ``seed`` and ``n`` among them if it does."""

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Refuses what is for a chat template, and a budget of thoughts in the field of another API."""
        super().check(model)
        reasoning, kind = model.reasoning, model.type
        if reasoning.template_kwargs:
            raise ValueError(f"reasoning.template_kwargs: type {kind} has no chat template")
        if reasoning.budget_as not in (None, kind):
            raise ValueError(f"reasoning.budget_as: type {kind} takes a budget as {kind} alone")

    def facts(self) -> dict[str, Any]:
        """Name, address or ``identity``, and ``extra_body``."""
        model, config = self.model, self.config
        extra = {"extra_body": config.extra_body} if config.extra_body else {}
        place = {"base_url": config.base_url} if model.identity is None else {"identity": model.identity}
        return {"model": model.served_name, **place, **extra}

    def codec(self, _kind: Any, sampling: SampleParams, media: ReadMedia = refuse_media) -> "NativeCodec":
        """Raises ModelError for a sampling parameter that the API does not have."""
        asked = [*sampling.sent(), *(name for name in ("seed", "n") if getattr(sampling, name) is not None)]
        refused = [name for name in asked if name not in self.takes]
        if refused:
            kind, taken = self.model.type, ", ".join(sorted(self.takes))
            raise ModelError(
                f"model {self.model.name!r}: sample_params.{refused[0]}: type {kind} can't be told it; leave "
                f"it out, or ask a model of type openai ({kind} takes {taken})"
            )
        return self.encoder(sampling, media)

    @abstractmethod
    def encoder(self, sampling: SampleParams, media: ReadMedia) -> "NativeCodec":
        """The codec for parameters that the API takes; raises ModelError for a value that it does not."""

    def transport(self, served: ServedModel[Any], connections: int) -> Transport:
        """Plain HTTP that asks again without what a model refuses: newer ones take no temperature."""
        return FittingTransport(self.http(served, connections), refused_by(served.base_url, served.model))

    async def entry(self, served: ServedModel[Any], path: str) -> ModelListing:
        """The model alone, which an API looks up by its name at ``path``; raises ModelError where it is not
        known."""
        transport = self.http(served, 1)
        try:
            entry, headers = await transport.get(path, PROBE_SECONDS)
            return ModelListing({served.model: entry}, headers)
        except NotServed as error:
            raise ModelError(
                f"model {self.model.name!r}: {served.base_url} knows no model {served.model!r} ({error}); "
                "set config.model to one that the provider's page of models names"
            ) from error
        finally:
            await transport.close()


@dataclass(frozen=True)
class Chat:
    """A request's chat in the parts that these APIs take apart: what system messages say together, the other
    messages, the functions that may be called, and the request's own seed."""

    system: str
    messages: list[Message]
    functions: list[dict[str, Any]]
    seed: int | None


class NativeCodec(Codec, ABC):
    """One request a call, at one ``path``."""

    counted: ClassVar[str] = "usage"
    """The field of a reply that holds its token counts."""

    def __init__(self, path: str, media: ReadMedia) -> None:
        self._path = path
        self._media = media

    def calls(self, requests: Sequence[Request]) -> list[Call]:
        """A prompt that is no chat is what a user says."""
        (request,) = requests
        chat = chat_body(request.prompt, request.chat)
        messages = sent_messages(chat["messages"], self._media)
        said = [message for message in distinct_ids(messages) if message["role"] not in SYSTEM_ROLES]
        system = "\n\n".join(content_text(m["content"]) for m in messages if m["role"] in SYSTEM_ROLES)
        functions = [tool["function"] for tool in chat.get("tools") or ()]
        body = self.body(Chat(system, said, functions, request.seed))
        return [Call(self._path, body, media_size(messages))]

    @abstractmethod
    def body(self, chat: Chat) -> Mapping[str, Any]:
        """What is sent for a chat; raises BadRequest for a part that the API does not take."""

    def usage(self, body: Mapping[str, Any]) -> dict[str, int | None]:
        """Token counts, as the API gives them."""
        usage = body.get(self.counted)
        return usage_of({"usage": self.counts(usage if isinstance(usage, Mapping) else {})}, 1)[0]

    @abstractmethod
    def counts(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """The API's counts under the names that OpenAI's chat completions have for them."""


def alternating(
    messages: Sequence[Message],
    blocks: Callable[[Message], Iterable[dict[str, Any]]],
    assistant: str = "assistant",
    field: str = "content",
) -> list[dict[str, Any]]:
    """Turns of the user and of the assistant, one after the other: results of tools are said by the user."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = assistant if message["role"] == "assistant" else "user"
        said = list(blocks(message))
        if turns and turns[-1]["role"] == role:
            turns[-1][field] += said
        else:
            turns.append({"role": role, field: said})
    return turns


def answer_of(said: ParsedChoice, signed: Sequence[Any], facts: Mapping[str, Any], limit: str) -> Answer:
    """The answer in what was said, with ``signed`` thoughts and all other ``facts``; cut off where the tokens
    were used up before it began, as ``limit`` tells."""
    text, told = said.text or "", {"reasoning": said.thought or None, "tool_calls_json": said.calls}
    facts = {**facts, **told, "thoughts_json": orjson.dumps(list(signed)).decode() if signed else None}
    if not text.strip() and said.calls is None and facts["finish_reason"] == "length":
        error = f"the tokens were used up before the answer began ({limit})"
        return Answer("cut_off", error=error, **facts)
    return Answer("ok", text, **facts)


def thought_counted(said: ParsedChoice, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with the thought's share of the tokens, where an API counts it and the answer together."""
    if not said.thought or facts["reasoning_tokens"] is not None:
        return dict(facts)
    return {**facts, "reasoning_tokens": thought_tokens(said, facts["completion_tokens"])}


def said_parts(message: Message) -> list[Mapping[str, Any]]:
    """The parts of what a message says, without empty texts, which these APIs do not take."""
    content = message.get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return [part for part in parts if part["type"] != "text" or part["text"]]


def function_call(call: Any, arguments: str, where: str) -> dict[str, Any]:
    """A call as our answers have it, with its ``arguments``, a field of it, as text. Raises MalformedBody,
    which says ``where`` it stands, for one that names no function."""
    name, given = (call.get(field) if isinstance(call, Mapping) else None for field in ("name", arguments))
    if not isinstance(name, str) or not name:
        raise MalformedBody(f"{where} of the answer names no function")
    return {
        "name": name,
        "arguments": given if isinstance(given, str) else orjson.dumps(given or {}).decode(),
    }


def joined(texts: Iterable[Any]) -> str:
    """Texts of blocks as one; raises MalformedBody where one is none."""
    found = list(texts)
    if not all(isinstance(text, str) for text in found):
        raise MalformedBody("a block of the answer holds no text")
    return "".join(found)


def json_schema(model: ModelConfig, wanted: Mapping[str, Any], others: str = "") -> Mapping[str, Any]:
    """The ``json_schema`` of a ``response_format``; raises ModelError for another format. ``others`` are
    those that an API takes beside it."""
    schema = wanted.get("json_schema")
    if wanted.get("type") != "json_schema" or not isinstance(schema, Mapping):
        raise ModelError(
            f"model {model.name!r}: sample_params.response_format: type {model.type} takes {others}"
            f"{{type: json_schema, json_schema: {{schema: …}}}}, not {wanted.get('type')!r}"
        )
    return schema


def described(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function's name, and its description where it has one."""
    about = {"description": function["description"]} if function.get("description") else {}
    return {"name": function["name"], **about}


NO_OBJECT: Final = "INVALID_JSON"
"""Names the text of arguments that are no JSON object, as Anthropic's documentation advises."""


def arguments_object(text: str) -> dict[str, Any]:
    """A call's arguments for an API that takes objects alone; models write others, and are cut off.

    >>> arguments_object('{"x": 1}'), arguments_object('{"x":')
    ({'x': 1}, {'INVALID_JSON': '{"x":'})
    """
    value = call_arguments(text)
    return value if isinstance(value, dict) else {NO_OBJECT: text}
