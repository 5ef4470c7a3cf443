"""What a model is asked beside a benchmark's requests: whether its chat template opens the thought, and a
few kept requests once more.

Whether a model's chat template opens the thought: settled before anything is asked, since it says what an
answer without marks is, and so is part of the model's identity.

Looked for, one after the other: the chat template of the model's ``tokenizer``; the prompt as the server
itself renders it (``/tokenize`` of vLLM and SGLang, ``/apply-template`` of llama.cpp); one answer to a
short question. What a server showed is remembered under the home folder, so that a run of which nothing
is missing contacts nobody. Flows enter by ``settled``; the connection takes what that gives.

Canaries: a few kept requests are asked again before kept answers are reused, so that a model that was
exchanged behind its address is noticed.

Only requests whose answer is settled will do: log-likelihoods, which have to be equal within
``TOLERANCE``, and greedy generations (temperature 0). What a canary is answered is kept nowhere. What the
endpoint says of itself is compared whatever there is to ask.
"""

import asyncio
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit, urlunsplit

import jinja2
import orjson
import pyarrow as pa
from jinja2.sandbox import ImmutableSandboxedEnvironment

from metrics.errors import NightjarError
from tasks.models.answers.journal import AnswerWriter
from tasks.models.answers.segments import AnswerStore
from tasks.models.config import EndpointConfig, ModelConfig, RunLimits, said_to_think
from tasks.models.connection import (
    Statement,
    api_key,
    contradictions,
    keep_statement,
    kept_statements,
    open_connection,
    said_at,
    statement_of,
)
from tasks.models.engine import Engine, InferenceState
from tasks.models.errors import RequestError
from tasks.models.generation import Generation, Marks, marks_of
from tasks.models.http import HttpProvider
from tasks.models.records import Call, InferenceOptions, KeptAnswer, Request, RequestTally, Spending
from tasks.models.respond import Inference
from tasks.store.home import home, write_json
from tasks.store.keys import digest

TOLERANCE = 1e-3
"""Log-likelihoods that are closer are equal: servers batch, and sums of floats depend on it."""
FEWEST = 2
"""So many canaries have to differ: one may, since greedy decoding is not quite the same in every batch."""
LOOKED_AT = 2_048
"""Rows among which canaries are looked for."""


@dataclass(frozen=True)
class CanaryReport:
    """How many kept requests were asked again, how many came out different, and what else the answers and
    the endpoint say of who gives them; ``failure`` is why they could not be asked, ``says`` what the endpoint
    says of itself now."""

    asked: int = 0
    differing: int = 0
    identity: tuple[str, ...] = field(default=())
    failure: str | None = None
    says: Statement = field(default_factory=dict)

    @property
    def is_another(self) -> bool:
        """Whether another model seems to answer now."""
        return bool(self.identity) or (self.asked > 0 and self.differing >= min(FEWEST, self.asked))

    @property
    def sentence(self) -> str | None:
        """What is worth telling; None: all is as it was."""
        if self.failure is not None:
            return f"no canary could be asked: {self.failure}"
        said = [*self.identity]
        if self.asked and self.differing >= min(FEWEST, self.asked):
            said.append(f"{self.differing} of {self.asked} canaries were answered otherwise than before")
        return "; ".join(said) or None


def ask_canaries(
    model: ModelConfig,
    requests: Iterable[pa.RecordBatch],
    answers: AnswerStore,
    options: InferenceOptions,
    count: int,
) -> CanaryReport:
    """Asks up to ``count`` requests again whose kept answers would serve, and compares; also what the
    endpoint says of itself, with what it said when these answers were asked for.

    Models without an address of their own are not asked: the embedded server is known by its version.
    """
    if not isinstance(model.config, EndpointConfig) or count < 1:
        return CanaryReport()
    inference = Inference.of(model, answers, options)
    chosen, asked_at = _looked_at(inference, requests, options, count)
    if not asked_at:
        return CanaryReport()
    try:
        said = said_at(kept_statements(answers.store, inference.kept.folder), asked_at)
        says = statement_of(model, options.secret)
        given = asyncio.run(_ask(model, options, inference, chosen)) if chosen else {}
    except (NightjarError, OSError) as error:
        return CanaryReport(failure=str(error))
    doubts = dict.fromkeys(doubt for before in said if says for doubt in contradictions(before, says))
    if not chosen:
        return CanaryReport(identity=tuple(doubts), says=says)
    if not given:
        return CanaryReport(identity=tuple(doubts), failure="the endpoint answered none of them", says=says)
    table, position = inference.snapshot().rows([request.key for request in chosen])
    rows = table.to_pylist()
    pairs = [
        (rows[at], given[request.key])
        for request, at in zip(chosen, position.tolist(), strict=True)
        if at >= 0 and request.key in given
    ]
    differing = sum(not _same(kept, now) for kept, now in pairs)
    return CanaryReport(len(pairs), differing, (*doubts, *_identities(pairs)), says=says)


def _looked_at(
    inference: Inference, requests: Iterable[pa.RecordBatch], options: InferenceOptions, count: int
) -> tuple[list[Request], set[float]]:
    """Kept requests whose answers are settled, log-likelihoods first, spread by their keys; and when the
    answers to these and others were asked for, in seconds since 1970."""
    snapshot, found, asked_at = inference.snapshot(), list[Request](), set[float]()
    for rows in islice(inference.expanded(requests), LOOKED_AT // 1_024):
        wanted = [request for row in rows for request in row]
        times = snapshot.asked_at([request.key for request in wanted]).tolist()
        kept = [(request, at) for request, at in zip(wanted, times, strict=True) if not math.isnan(at)]
        found += [request for request, _ in kept if _is_settled(request, options)]
        asked_at.update(at for _, at in kept)
    found.sort(key=lambda request: (request.kind == "generate", request.key))
    return list({request.key: request for request in found}.values())[:count], asked_at


def note_statement(
    model: ModelConfig, answers: AnswerStore, options: InferenceOptions, says: Statement
) -> None:
    """Keeps beside a model's answers what its endpoint says of itself, before it is asked for more."""
    if isinstance(model.config, EndpointConfig):
        folder = Inference.of(model, answers, options).kept.folder
        keep_statement(answers.store, folder, says)


def _is_settled(request: Request, options: InferenceOptions) -> bool:
    return request.kind != "generate" or options.sampling.temperature == 0


async def _ask(
    model: ModelConfig, options: InferenceOptions, inference: Inference, chosen: Sequence[Request]
) -> dict[bytes, KeptAnswer]:
    writer = _Collected(inference, options.journal_dir)
    state = InferenceState(writer, RequestTally(), Spending(RunLimits()))
    # Requests that go together are given together; each kind by itself.
    groups: Iterator[Sequence[Request]] = ([request] for request in chosen)
    async with open_connection(model, options) as connection:
        await Engine(connection.endpoint, state).run(await connection.prepare(groups), lambda: None)
    return writer.answers


class _Collected(AnswerWriter):
    """Keeps answers in memory only."""

    def __init__(self, inference: Inference, journal_dir: Path) -> None:
        super().__init__(inference.kept, journal_dir)
        self.answers: dict[bytes, KeptAnswer] = {}

    def append(self, answer: KeptAnswer) -> None:
        """Notes an answer."""
        self.answers[answer.key] = answer


def _same(kept: dict[str, Any], now: KeptAnswer) -> bool:
    if kept["status"] != now.status:
        return False
    if kept["ll"] is None or now.ll is None:
        return bool(kept["response"] == now.response)
    return kept["ll"] == now.ll or math.isclose(kept["ll"], now.ll, rel_tol=0.0, abs_tol=TOLERANCE)


def _identities(pairs: Sequence[tuple[dict[str, Any], KeptAnswer]]) -> Iterator[str]:
    """What all answers now say of who gave them, where it is not what any of the kept ones said."""
    for name in ("served_model", "system_fingerprint"):
        before = {kept[name] for kept, _ in pairs} - {None}
        now = {getattr(answer, name) for _, answer in pairs} - {None}
        if before and now and before.isdisjoint(now):
            yield f"{name} was {', '.join(sorted(before))} and is {', '.join(sorted(now))}"


logger = logging.getLogger(__name__)
QUESTION: Final = "What is 17 + 26? Answer with the number alone."
SECONDS: Final = 120.0
_MESSAGES: Final = [{"role": "user", "content": QUESTION}]


@dataclass(frozen=True)
class Found:
    """Whether the template opens the thought (None: nothing tells), and what told it."""

    opened: bool | None
    by: str


def settled(model: ModelConfig, secret: Callable[[str], str] | None = None, ask: bool = True) -> ModelConfig:
    """The model with ``reasoning.opened`` decided where it is "auto" and the template opens the thought; not
    ``ask``: only by what is known on this machine.

    A model whose config says nothing of reasoning stays as it is, and so do its keys.
    """
    config = model.config
    if not said_to_think(model) or not isinstance(config, EndpointConfig):
        return model
    found = _of_tokenizer(model) or _remembered(model)
    if found is None and ask and model.server is None:  # one that is served here has no server yet
        found = asyncio.run(_of_server(model, config, api_key(model.name, config, secret)))
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


def _of_tokenizer(model: ModelConfig) -> Found | None:
    """What the chat template in the tokenizer's folder says."""
    weights = model.tokenizer or model.path  # weights that are served bring their own
    folder = Path(weights) if weights is not None else None
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


def _text_of(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _memory(model: ModelConfig) -> Path:
    config = cast(EndpointConfig, model.config)
    address = model.identity or config.base_url
    reasoning = model.reasoning.identity(config.base_url)
    name = digest({"address": address, "model": model.served_name, "reasoning": reasoning})
    return home() / "templates" / f"{name}.json"


def _remembered(model: ModelConfig) -> Found | None:
    try:
        return Found(**orjson.loads(_memory(model).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


async def _of_server(model: ModelConfig, config: EndpointConfig, key: str | None) -> Found | None:
    """What the server shows, remembered; None where it can't be asked."""
    root = HttpProvider(_root(config.base_url), key, 2)
    provider = HttpProvider(config.base_url, key, 2)
    known = marks_of(model.reasoning.marks)
    try:
        found = await _rendered_there(model, root, known) or await _answered(model, config, provider, known)
    except RequestError as error:
        logger.warning("model %r: whether its template opens the thought is not known: %s", model.name, error)
        return None
    finally:
        await root.close()
        await provider.close()
    if found.opened is None:
        logger.warning(
            "model %r: nothing tells whether its chat template opens the thought (%s); set reasoning.opened",
            model.name, found.by,
        )  # fmt: skip
    try:
        write_json(_memory(model), {"opened": found.opened, "by": found.by})
    except NightjarError as error:
        logger.warning("%s", error)
    return found


def _root(base_url: str) -> str:
    """The server's address without its version: what is not OpenAI's stands there."""
    parts = urlsplit(base_url)
    return urlunsplit(parts._replace(path=parts.path.removesuffix("/v1")))


async def _rendered_there(model: ModelConfig, root: HttpProvider, known: Sequence[Marks]) -> Found | None:
    """What the prompt ends with that the server makes of a message; None where it shows none."""
    variables = {"chat_template_kwargs": model.reasoning.template_kwargs}
    body = {"model": model.served_name, "messages": _MESSAGES, "add_generation_prompt": True, **variables}
    for path, more in (("apply-template", {}), ("tokenize", {"return_token_strs": True})):
        try:
            reply = (await root.send(Call(cast(Any, path), {**body, **more}), SECONDS)).body
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
    model: ModelConfig, config: EndpointConfig, provider: HttpProvider, known: Sequence[Marks]
) -> Found:
    """What the text of one answer shows: the end of a thought that it never opened."""
    by_marks = model.reasoning.model_copy(update={"opened": "auto"})
    asking = Generation(
        model.served_name,
        config.model_copy(update={"stream": False}),
        model.sample_params,
        reasoning=by_marks,
    )
    (call,) = asking.calls([Request(b"", "generate", QUESTION)])
    body = {name: value for name, value in call.body.items() if name != "stop"}
    reply = (await provider.send(Call(call.path, body), SECONDS)).body
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
    if any(marks.closing in text for marks in known):
        return Found(True, by)
    return Found(False if choice.get("finish_reason") == "stop" else None, f"{by}: it holds no mark")
