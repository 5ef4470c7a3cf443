"""Whether a model's chat template opens the thought: settled before anything is asked, since it says what an
answer without marks is, and so is part of the model's identity.

Looked for, one after the other: the chat template of the model's ``tokenizer``; the prompt as the server
itself renders it (``/tokenize`` of vLLM and SGLang, ``/apply-template`` of llama.cpp); one answer to a
short question. What a server showed is remembered under the home folder, so that a run of which nothing
is missing contacts nobody.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import jinja2
import orjson
from jinja2.sandbox import ImmutableSandboxedEnvironment

from metrics.errors import ConfigError, NightjarError
from tasks.messages.endings import ending
from tasks.models.config import ModelConfig
from tasks.models.errors import RequestError
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.openai.generation import Chat, Marks, marks_of
from tasks.models.providers.provider import AskedProvider, Secret, ServedModel
from tasks.models.records import Call, Request, Transport
from tasks.models.usage import text_or_none
from tasks.serving.weights import weights_of
from tasks.store.home import home, named_path, write_json
from tasks.store.keys import digest

logger = logging.getLogger(__name__)
QUESTION: Final = "What is 17 + 26? Answer with the number alone."
SECONDS: Final = 120.0
_MESSAGES: Final = [{"role": "user", "content": QUESTION}]


@dataclass(frozen=True)
class Found:
    """Whether the template opens the thought (None: nothing tells), and what told it."""

    opened: bool | None
    by: str


Endpoint = AskedProvider[EndpointConfig]


def settled(provider: Endpoint, secret: Secret | None, ask: bool) -> ModelConfig:
    """The model with ``reasoning.opened`` decided where its template opens the thought; not ``ask``: only by
    what is known on this machine."""
    model = provider.model
    found = _of_tokenizer(model, provider.base_dir) or _remembered(provider)
    if found is None and ask and model.server is None:  # one that is served here has no server yet
        found = asyncio.run(_of_server(provider, secret))
    if found is None or not found.opened:
        return model
    logger.info("model %r: the thought is opened by the chat template (%s)", model.name, found.by)
    return model.model_copy(update={"reasoning": model.reasoning.model_copy(update={"opened": True})})


def opens(prompt: str, known: Sequence[Marks]) -> bool:
    """Whether a rendered prompt ends inside a thought that has just begun.

    >>> opens("<|assistant|><think>\\n", marks_of("auto")), opens("<think></think>", marks_of("auto"))
    (True, False)
    """
    return prompt.rstrip().endswith(tuple(marks.opening for marks in known))


def rendered(template: str, variables: Mapping[str, Any]) -> str | None:
    """The question as a chat template of transformers renders it; None where it can't be."""

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    environment.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda form: datetime.now(UTC).strftime(form),
    }
    try:
        return environment.from_string(template).render(
            messages=_MESSAGES, add_generation_prompt=True, **variables
        )
    except Exception as error:  # a template is somebody's program
        logger.warning("the chat template can't be rendered: %s: %s", type(error).__name__, error)
        return None


def _of_tokenizer(model: ModelConfig, base_dir: Path) -> Found | None:
    """What the chat template in the tokenizer's folder says."""
    folder = _tokenizer_folder(model, base_dir)
    if folder is None or not folder.is_dir():
        return None
    settings: dict[str, Any] = {}
    if (file := folder / "tokenizer_config.json").is_file():
        settings = orjson.loads(file.read_bytes())
    template: Any = settings.get("chat_template")
    if (file := folder / "chat_template.jinja").is_file():
        template = file.read_text()
    if isinstance(template, list):  # several by name
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        return None
    tokens = {name: _text_of(settings.get(name)) for name in ("bos_token", "eos_token")}
    effort = {} if model.reasoning.effort is None else {"reasoning_effort": model.reasoning.effort}
    prompt = rendered(template, {**tokens, **effort, **model.reasoning.template_kwargs})
    if prompt is None:
        return None
    return Found(opens(prompt, marks_of(model.reasoning.marks)), f"the template in {folder}")


def _tokenizer_folder(model: ModelConfig, base_dir: Path) -> Path | None:
    """The tokenizer that is named, else that of the weights that are served, or of the adapter over them."""
    if model.tokenizer is not None or model.path is None:
        return None if model.tokenizer is None else named_path(base_dir, model.tokenizer)
    with suppress(ConfigError):  # a step that needs the weights says what is wrong with them
        weights = weights_of(model.path, model.peft, base_dir)
        return weights.tokenizer or named_path(base_dir, weights.path)
    return None


def _text_of(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _memory(provider: Endpoint) -> Path:
    model, config = provider.model, provider.config
    address = model.identity or config.base_url
    reasoning = model.reasoning.identity(config.base_url) | model.reasoning.reading()
    name = digest({"address": address, "model": model.served_name, "reasoning": reasoning})
    return home() / "templates" / f"{name}.json"


def _remembered(provider: Endpoint) -> Found | None:
    try:
        return Found(**orjson.loads(_memory(provider).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


async def _of_server(provider: Endpoint, secret: Secret | None) -> Found | None:
    """What the server shows, remembered; None where it can't be asked."""
    model = provider.model
    known = marks_of(model.reasoning.marks)
    async with AsyncExitStack() as stack:
        served = stack.enter_context(provider.served(secret))
        root, endpoint = (
            provider.http(replace(served, base_url=address), 2)
            for address in (_root(served.base_url), served.base_url)
        )
        for transport in (root, endpoint):
            stack.push_async_callback(transport.close)
        try:
            found = await _rendered_there(model, root, known) or await _answered(
                model, served, endpoint, known
            )
        except RequestError as error:
            logger.warning(
                "model %r: whether its template opens the thought is not known: %s", model.name, error
            )
            return None
    if found.opened is None:
        logger.warning(
            "model %r: nothing tells whether its chat template opens the thought (%s); set reasoning.opened",
            model.name, found.by,
        )  # fmt: skip
    try:
        write_json(_memory(provider), {"opened": found.opened, "by": found.by})
    except NightjarError as error:
        logger.warning("%s", error)
    return found


def _root(base_url: str) -> str:
    """The server's address without its version: what is not OpenAI's stands there."""
    parts = urlsplit(base_url)
    return urlunsplit(parts._replace(path=parts.path.removesuffix("/v1")))


async def _rendered_there(model: ModelConfig, root: Transport, known: Sequence[Marks]) -> Found | None:
    """What the prompt ends with that the server makes of a message; None where it shows none."""
    variables = {"chat_template_kwargs": model.reasoning.template_kwargs}
    body = {"model": model.served_name, "messages": _MESSAGES, "add_generation_prompt": True, **variables}
    for path, more in (("apply-template", {}), ("tokenize", {"return_token_strs": True})):
        try:
            reply = (await root.send(Call(path, {**body, **more}), SECONDS)).body
        except RequestError:
            continue
        prompt = reply.get("prompt")
        tokens = reply.get("token_strs")
        if isinstance(tokens, list) and all(isinstance(token, str) for token in tokens):
            # Byte-level vocabularies write a line break and a blank as letters of their own.
            prompt = "".join(tokens).replace("Ċ", "\n").replace("Ġ", " ").replace("▁", " ")
        if isinstance(prompt, str):
            return Found(opens(prompt, known), f"/{path} of the server")
    return None


async def _answered(
    model: ModelConfig, served: ServedModel[EndpointConfig], transport: Transport, known: Sequence[Marks]
) -> Found:
    """What the text of one answer shows: the end of a thought that it never opened."""
    by_marks = model.reasoning.model_copy(update={"opened": "auto"})
    quiet = served.config.model_copy(update={"stream": False})
    asking = Chat(served.model, quiet, model.sample_params, by_marks)
    (call,) = asking.calls([Request(b"", "generate", QUESTION)])
    body = {name: value for name, value in call.body.items() if name != "stop"}
    reply = (await transport.send(Call(call.path, body), SECONDS)).body
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    message = choice.get("message")
    message = message if isinstance(message, dict) else {}
    text = message.get("content")
    by = "one answer of the server"
    if message.get("reasoning_content") or message.get("reasoning"):
        return Found(False, f"{by}: thoughts come apart")
    text = text if isinstance(text, str) else ""
    if any(text.lstrip().startswith(marks.opening) for marks in known):
        return Found(False, by)
    if any(marks.end_in(text) is not None for marks in known):
        return Found(True, by)
    whole = ending(text_or_none(choice.get("finish_reason"))) == "whole"
    return Found(False if whole else None, f"{by}: it holds no mark")
