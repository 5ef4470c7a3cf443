"""The type ``vllm_offline``: vLLM in this process, by ``vllm.LLM``, on a machine with a GPU.

Requests that are under way together go to ``LLM.chat`` or ``LLM.generate`` as one list. They are encoded and
read as those of ``openai`` are, so a server of the same weights gives the same answers. One model is loaded
at a time: the next one waits until no request of the former is left.
"""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal, cast

from pydantic import Field

from metrics.config import RunsProgram, Strict
from tasks.datasets.item import RequestKind
from tasks.messages.media import ReadMedia, refuse_media
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.control import check_interrupted
from tasks.models.errors import (
    BadRequest,
    ContextTooLong,
    EndpointDead,
    ModelError,
    RequestError,
    RequestTimeout,
    shortened,
)
from tasks.models.providers.in_process import InProcess
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.providers.provider import Secret, ServedIdentity, ServedModel
from tasks.models.records import Call, Codec, Reply, Transport
from tasks.models.registry import provider
from tasks.models.wire import ModelListing
from tasks.serving.weights import KnownWeights, hub_revision, known_weights, local_path
from tasks.store.keys import canonical_json

PLACE: Final = "this process"
DIRECT: Final = frozenset(
    {"n", "seed", "temperature", "top_p", "top_k", "min_p", "stop", "presence_penalty", "frequency_penalty"}
    | {"repetition_penalty", "thinking_token_budget"}
)
"""Fields of a request that ``SamplingParams`` has by the same names."""
LENGTHS: Final = ("max_tokens", "max_completion_tokens")
DEFAULTS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""What a model's ``generation_config.json`` says, and a server of vLLM takes where a request does not."""
TAKEN: Final = frozenset({*DIRECT, *LENGTHS, "logit_bias", "logprobs", "top_logprobs", "response_format"})
LOOK_SECONDS: Final = 0.1


class VllmConfig(Strict):
    """vLLM in this process."""

    model: str | None = Field(
        None, description="folder of weights, or a hub's NAME@REVISION; default: the entry's own name"
    )
    api: Literal["chat", "completions"] = Field(
        "chat", description="chat: LLM.chat, by the model's template; completions: LLM.generate"
    )
    engine: Annotated[dict[str, Any], RunsProgram()] = Field(
        default_factory=dict, description="further arguments of vllm.LLM, such as {tensor_parallel_size: 2}"
    )
    max_concurrency: int = Field(1_024, ge=1, description="requests that are given to vLLM together, at most")
    timeout: float = Field(3_600, gt=0, description="seconds for one attempt")
    max_retries: int = Field(1, ge=0, description="attempts after the first that failed")


@provider("vllm_offline")
class VllmOffline(InProcess):
    """Weights in this process."""

    schema = VllmConfig  # type: ignore[assignment]  # it makes an endpoint's of it
    kinds = frozenset({"generate"})

    @classmethod
    def check(cls, model: ModelConfig) -> None:
        """Refuses an effort, which ``LLM.chat`` has no argument for, and weights that are named twice."""
        super().check(model)
        if model.reasoning.effort is not None:
            raise ValueError(
                "reasoning.effort: type vllm_offline has no field for it; say it in reasoning.template_kwargs"
            )

    def facts(self) -> dict[str, Any]:
        """The weights, vLLM's version and what it is loaded with."""
        config, known = self._options, self._known
        weights = {"identity": self.model.identity} if known is None else known.told
        return {"api": config.api, **weights, "vllm": _version(), "engine": config.engine}

    def known_weights(self) -> KnownWeights | None:
        """Those that are loaded here."""
        return None if self.model.identity else known_weights(self.model.served_name, self.base_dir)

    @property
    def _known(self) -> KnownWeights | None:
        return self.model.weights or self.known_weights()

    def tokenizer_for(self, _kind: RequestKind) -> str | None:
        """None: vLLM has that of the weights."""
        return None

    @property
    def _options(self) -> VllmConfig:
        return cast(VllmConfig, self.config)

    def codec(self, kind: RequestKind, sampling: SampleParams, media: ReadMedia = refuse_media) -> Codec:
        """Raises ModelError for a sampling parameter that vLLM has no field for."""
        if refused := sorted(sampling.sent().keys() - TAKEN):
            raise ModelError(
                f"model {self.model.name!r}: sample_params.{refused[0]}: type vllm_offline can't be told it; "
                "leave it out, or ask a server of vLLM by type openai"
            )
        return super().codec(kind, sampling, media)

    async def adapted(self, codec: Codec, _transport: Transport, _served: ServedModel[Any]) -> Codec:
        """As the config says: vLLM takes all that is sent."""
        return codec

    def probe(self, kind: RequestKind, secret: Secret | None) -> ServedIdentity:
        """Whether vLLM is installed; nothing is loaded for that."""
        self.version(kind)
        need_vllm(self.model.name)
        return ServedIdentity(None, self.model.served_name)

    async def listing(self, served: ServedModel[Any]) -> ModelListing:
        """Itself."""
        return ModelListing({served.model: {}}, {})

    def headers(self, _key: str | None) -> dict[str, str]:
        """None: nothing is sent."""
        return {}

    @contextmanager
    def served(self, _secret: Secret | None) -> Iterator[ServedModel[EndpointConfig]]:
        """Loads the weights, once a process; raises ModelError where that fails."""
        need_vllm(self.model.name)
        with loaded(self.model.name, self._arguments(), self._known):
            yield ServedModel(PLACE, self.model.served_name, self.endpoint)

    def transport(self, _served: ServedModel[EndpointConfig], _connections: int) -> Transport:
        """The weights that are loaded."""
        return OfflineTransport(_key(self._arguments(), self._known), self._options.api)

    def _arguments(self) -> dict[str, Any]:
        """Those of ``vllm.LLM``."""
        path = self.model.served_name
        place = local_path(path, self.base_dir)
        if place is not None:
            return {"model": str(place), **self._options.engine}
        name, revision = hub_revision(path)
        return {"model": name, "revision": revision, "tokenizer_revision": revision, **self._options.engine}


def need_vllm(name: str) -> None:
    """Raises ModelError, which names the model, where vLLM is not installed."""
    if find_spec("vllm") is None:
        raise ModelError(
            f"model {name!r}: type vllm_offline needs vLLM in this environment, on a machine with a GPU: "
            "pip install -e '.[vllm]'; or ask a server of vLLM by type openai"
        )


def _version() -> str | None:
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        return None


def _key(arguments: Mapping[str, Any], known: KnownWeights | None) -> bytes:
    """What tells loaded models apart: other weights may be in the place of those that were loaded."""
    return canonical_json([arguments, None if known is None else known.told])


@dataclass
class Waiter:
    """A call that waits for its reply, on an event loop; ``api`` is how its model entry asks."""

    call: Call
    api: Literal["chat", "completions"]
    loop: asyncio.AbstractEventLoop
    reply: "asyncio.Future[Mapping[str, Any]]"

    @property
    def way(self) -> tuple[str, bytes]:
        """What is the same for all calls of one list."""
        return self.api, canonical_json(self.call.body.get("chat_template_kwargs"))

    def give(self, outcome: Mapping[str, Any] | RequestError) -> None:
        """Ends the wait, from any thread; one that was given up hears nothing."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._give, outcome)

    def _give(self, outcome: Mapping[str, Any] | RequestError) -> None:
        if self.reply.done():
            return
        if isinstance(outcome, RequestError):
            self.reply.set_exception(outcome)
        else:
            self.reply.set_result(outcome)


@dataclass
class Loaded:
    """The model that this process has loaded; ``users`` are the inferences that ask it."""

    key: bytes
    llm: Any
    users: int = 0
    waiting: list[Waiter] = field(default_factory=list)
    busy: bool = False


_state = threading.Condition()
_loaded: Loaded | None = None


@contextmanager
def loaded(name: str, arguments: Mapping[str, Any], known: KnownWeights | None) -> Iterator[None]:
    """A block in which a model is loaded. It stays until another one is wanted. Raises ModelError, also
    where what was loaded may be other weights than those that are ``known``."""
    global _loaded
    key = _key(arguments, known)
    with _state:
        while _loaded is not None and _loaded.key != key and _loaded.users:
            _state.wait(LOOK_SECONDS)
            check_interrupted()
        if _loaded is None or _loaded.key != key:
            _unload()
            _loaded = Loaded(key, _load(name, arguments, known))
        mine = _loaded
        mine.users += 1
    try:
        yield
    finally:
        with _state:
            mine.users -= 1
            _state.notify_all()


def _load(name: str, arguments: Mapping[str, Any], known: KnownWeights | None) -> Any:
    import vllm

    try:
        llm = vllm.LLM(**arguments)
    except Exception as error:
        said = shortened(f"{type(error).__name__}: {error}")
        raise ModelError(f"model {name!r}: vLLM can't load {arguments['model']} ({said})") from error
    if known is not None and (reason := known.replaced()) is not None:
        raise ModelError(f"model {name!r}: {reason}")
    return llm


def _unload() -> None:
    """Frees the GPU for another model."""
    global _loaded
    _loaded = None
    gc.collect()
    if (torch := sys.modules.get("torch")) is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


class OfflineTransport:
    """Calls to the model that is loaded: those that wait go together, from a thread of its own."""

    def __init__(self, key: bytes, api: Literal["chat", "completions"]) -> None:
        assert _loaded is not None, "served() has loaded it"
        assert _loaded.key == key, "no other is loaded while this one has users"
        self._model = _loaded
        self._api = api

    async def send(self, call: Call, timeout: float) -> Reply:
        """See ``Transport.send``."""
        start = time.perf_counter()
        loop = asyncio.get_running_loop()
        waiter = Waiter(call, self._api, loop, loop.create_future())
        with _state:
            self._model.waiting.append(waiter)
            if not self._model.busy:
                self._model.busy = True
                threading.Thread(target=self._work, name="vllm", daemon=True).start()
        try:
            body = await asyncio.wait_for(waiter.reply, timeout)
        except TimeoutError as error:
            raise RequestTimeout(f"no answer within {timeout:g} s") from error
        return Reply(body, time.perf_counter() - start)

    async def close(self) -> None:
        """The model stays."""

    def _work(self) -> None:
        """Asks for all that waits, until nothing does; entries of the same weights each in their own way."""
        while True:
            with _state:
                waiting = [one for one in self._model.waiting if not one.reply.done()]
                together = [one for one in waiting if one.way == waiting[0].way]
                self._model.waiting[:] = [one for one in waiting if one.way != waiting[0].way]
                if not together:
                    self._model.busy = False
                    return
            self._answer(together)

    def _answer(self, waiting: Sequence[Waiter]) -> None:
        try:
            bodies = ask(self._model.llm, waiting[0].api, [one.call.body for one in waiting])
        except Exception as error:
            if len(waiting) > 1 and isinstance(error, ValueError | RequestError):
                for one in waiting:  # one of them spoils the list
                    self._answer([one])
                return
            for one in waiting:
                one.give(_fault(error))
            return
        for one, body in zip(waiting, bodies, strict=True):
            one.give(body)


def _fault(error: Exception) -> RequestError:
    """What vLLM raises for a request is a ValueError; all else ends its engine."""
    if isinstance(error, RequestError):
        return error
    said = shortened(str(error))
    if not isinstance(error, ValueError):
        return EndpointDead(f"vLLM failed ({type(error).__name__}: {said})")
    too_long = "max_model_len" in said or "longer than the maximum model length" in said
    return ContextTooLong(said) if too_long else BadRequest(said)


def ask(llm: Any, api: str, bodies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Replies to requests in OpenAI's form and of one way, by one call of vLLM."""
    defaults = llm.get_default_sampling_params()
    params = [sampling_params(body, defaults) for body in bodies]
    if api == "completions":
        outputs = llm.generate([body["prompt"] for body in bodies], params, use_tqdm=False)
    else:
        if any(body.get("tools") for body in bodies):
            raise BadRequest("type vllm_offline reads no calls of tools; ask a server of vLLM by type openai")
        kwargs = bodies[0].get("chat_template_kwargs")
        told = {"chat_template_kwargs": kwargs} if kwargs else {}
        outputs = llm.chat([body["messages"] for body in bodies], params, use_tqdm=False, **told)
    return [reply_body(output, api, str(body["model"])) for output, body in zip(outputs, bodies, strict=True)]


def sampling_params(body: Mapping[str, Any], defaults: Any) -> Any:
    """``vllm.SamplingParams`` of a request's fields; without a limit an answer has the room that is left."""
    import vllm

    told: dict[str, Any] = {name: getattr(defaults, name) for name in DEFAULTS}
    told |= {name: body[name] for name in DIRECT if name in body}
    told["max_tokens"] = next((body[name] for name in LENGTHS if name in body), None)
    if bias := body.get("logit_bias"):
        told["logit_bias"] = {int(token): value for token, value in bias.items()}
    wanted = body.get("logprobs")
    if wanted is True:
        told["logprobs"] = body.get("top_logprobs", 0)
    elif wanted:
        told["logprobs"] = wanted
    if (form := body.get("response_format")) is not None:
        told["structured_outputs"] = _structured(form)
    return vllm.SamplingParams(**told)


def _structured(form: Mapping[str, Any]) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    schema = form.get("json_schema")
    if form.get("type") == "json_object":
        return StructuredOutputsParams(json_object=True)
    if form.get("type") != "json_schema" or not isinstance(schema, Mapping):
        raise BadRequest("response_format: type vllm_offline takes json_object and json_schema")
    return StructuredOutputsParams(json=dict(schema.get("schema", schema)))


def reply_body(output: Any, api: str, model: str) -> dict[str, Any]:
    """A ``RequestOutput`` as the body that a server of vLLM gives."""
    prompt = len(output.prompt_token_ids or ())
    said = sum(len(one.token_ids) for one in output.outputs)
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
    }
    return {"model": model, "choices": [_choice(one, api) for one in output.outputs], "usage": usage}


def _choice(one: Any, api: str) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": one.index, "finish_reason": one.finish_reason}
    if api == "completions":
        choice["text"] = one.text
    else:
        choice["message"] = {"role": "assistant", "content": one.text}
    if one.logprobs is not None:
        tokens = [_token(token, found) for token, found in zip(one.token_ids, one.logprobs, strict=True)]
        choice["logprobs"] = {"content": tokens} if api == "chat" else _listed(tokens)
    return choice


def _token(token: int, found: Mapping[int, Any]) -> dict[str, Any]:
    """A token with its alternatives, the likeliest first."""
    ordered = sorted(found.values(), key=lambda one: -one.logprob)
    top = [{"token": one.decoded_token, "logprob": one.logprob} for one in ordered]
    return {"token": found[token].decoded_token, "logprob": found[token].logprob, "top_logprobs": top}


def _listed(tokens: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Log-probabilities as completions have them."""
    return {
        "tokens": [one["token"] for one in tokens],
        "token_logprobs": [one["logprob"] for one in tokens],
        "top_logprobs": [{top["token"]: top["logprob"] for top in one["top_logprobs"]} for one in tokens],
    }
