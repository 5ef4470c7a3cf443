"""``--model`` and ``--model_args`` as an entry of ``models:``: an address that is asked, or weights that a
server is started for.

Every argument is taken, told to need nothing, or refused: none is passed over.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from flows.lm_eval.arguments import HarnessArguments
from metrics.aliases import nearest
from metrics.errors import ConfigError

Entry = dict[str, Any]
NAMED_BY: Final = ("peft", "delta", "pretrained", "model", "path", "engine")
"""Arguments that name a model in results, the first that is given."""
MAX_LENGTH: Final = 2048
"""Tokens that an endpoint takes in there unless max_length says otherwise."""
OPENAI: Final = "https://api.openai.com/v1"
OPENAI_KEY: Final = "OPENAI_API_KEY"


@dataclass
class AskedModel:
    """A model of the command line: its entry, and what of it depends on the benchmark."""

    entry: Entry
    name: str
    """As results call it, and their folder."""
    chats: bool = False
    """Whether it takes messages alone, and gives no log-likelihoods."""
    max_tokens: int | None = None
    """Of an answer, where the benchmark says nothing."""
    end: str | None = None
    """One more stop sequence."""
    notes: list[str] = field(default_factory=list)

    def of_benchmark(self, stops: list[str], says_length: bool, generates: bool, extra: Entry) -> Entry:
        """The entry for one benchmark: what it stops at, whether it says how long an answer may be, and what
        is sent along with its requests."""
        entry = {**self.entry, "config": dict(self.entry.get("config", {}))}
        sampling = dict(entry.get("sample_params", {}))
        if generates:
            if self.max_tokens is not None and not says_length:
                sampling["max_tokens"] = self.max_tokens
            if self.end is not None and self.end not in stops:
                sampling["stop"] = [*stops, self.end]
            if extra:
                entry["config"]["extra_body"] = extra
        if sampling and generates:
            entry["sample_params"] = sampling
        else:
            entry.pop("sample_params", None)
        return entry


class _Given:
    """The arguments of a model; each is looked at once."""

    def __init__(self, model: str, arguments: Mapping[str, Any]) -> None:
        self.model = model
        self._left = dict(arguments)
        self._known: list[str] = []

    def take(self, name: str, default: Any = None) -> Any:
        """The argument's value, None and ``default`` where it is not given."""
        self._known.append(name)
        value = self._left.pop(name, None)
        return default if value is None else value

    def rest(self) -> Iterator[tuple[str, Any]]:
        """What was not taken."""
        left, self._left = self._left, {}
        yield from left.items()

    def refuse(self, name: str, remedy: str, but: tuple[Any, ...] = ()) -> None:
        """Refuses the argument, unless it has one of the values ``but`` or none."""
        value = self.take(name)
        if value and value not in but:
            raise ConfigError(f"--model_args {name}={value}: {remedy}")

    def finish(self) -> None:
        """Refuses what is left."""
        for name in self._left:
            raise ConfigError(
                f"--model_args {name}: --model {self.model} takes no such argument here"
                f"{nearest(name, self._known)} (it takes {', '.join(sorted(self._known))})"
            )


def asked_model(arguments: HarnessArguments) -> AskedModel:
    """The model; raises ConfigError for one that can't be asked here, with what to do instead."""
    make = MODELS.get(arguments.model)
    if make is None:
        raise ConfigError(_unknown(arguments.model))
    given = dict(arguments.model_args)
    if arguments.trust_remote_code:
        given["trust_remote_code"] = True
    asked = make(_Given(arguments.model, given), arguments)
    if asked.chats and not arguments.chat and arguments.model != "gguf":
        raise ConfigError(
            f"--model {arguments.model} takes messages: add --apply_chat_template, as is needed there, too"
        )
    return asked


def _unknown(model: str) -> str:
    if (sentence := NOT_HERE.get(model)) is not None:
        return f"--model {model}: {sentence}"
    return (
        f"--model {model} is not known here{nearest(model, MODELS)} (known: {', '.join(MODELS)}). Serve the "
        "model by a program that speaks OpenAI's protocol, and use --model local-completions --model_args "
        "model=NAME,base_url=http://localhost:8000/v1/completions"
    )


_SERVED: Final = (
    "start a server of the weights that speaks OpenAI's protocol, and use --model local-completions "
    "--model_args model=NAME,base_url=http://localhost:8000/v1/completions"
)
NOT_HERE: Final = {
    **dict.fromkeys(
        ("hf-multimodal", "hf-audiolm-qwen", "hf-mistral3", "vllm-vlm", "ipex", "mamba_ssm", "megatron_lm",
         "nemo_lm", "neuronx", "onnxruntime", "onnxruntime-genai", "openvino", "habana", "steered", "trtllm",
         "winml", "sglang-generate"),
        _SERVED,
    ),
    **dict.fromkeys(
        ("litellm", "litellm-chat", "litellm-chat-completions", "watsonx_llm", "textsynth"),
        "start a proxy such as litellm (litellm --model NAME --port 4000), and use --model "
        "local-chat-completions --model_args model=NAME,base_url=http://localhost:4000/v1/chat/completions",
    ),
    "anthropic-completions": "that interface is no longer offered; use --model anthropic-chat-completions",
    "azure-openai-chat-completions": "use --model local-chat-completions --model_args model=DEPLOYMENT,"
    "base_url=https://RESOURCE.openai.azure.com/openai/v1/chat/completions, with the key in OPENAI_API_KEY",
    "dummy": "its answers are drawn without a seed; --write_out with a --limit shows prompts, and "
    "python -m flows.eval … --dry-run asks nothing",
}  # fmt: skip


def _name_of(given: Mapping[str, Any]) -> str:
    for name in NAMED_BY:
        if name in given:
            return str(given[name])
    raise ConfigError("--model_args names no model: add model=NAME, or pretrained=NAME for weights")


def _openai_chats(given: _Given, arguments: HarnessArguments) -> AskedModel:
    asked = _endpoint(given, arguments, OPENAI, "chat")
    asked.end = asked.end or "<|endoftext|>"
    return asked


def _endpoint(given: _Given, arguments: HarnessArguments, address: str | None, api: str) -> AskedModel:
    """An address of OpenAI's protocol."""
    name = _name_of(arguments.model_args)
    served = given.take("model") or given.take("pretrained")
    given.take("pretrained"), given.take("engine")
    config: Entry = {"api": api, "base_url": _base_url(given, address, api), "model": str(served or name)}
    if os.environ.get(OPENAI_KEY) or address is not None:
        config["api_key_env"] = OPENAI_KEY
    asked = AskedModel({"name": name, "config": config}, name, chats=api == "chat")
    _speed(given, config, arguments, asked)
    _tokens(given, asked)
    asked.max_tokens = given.take("max_gen_toks")
    asked.end = given.take("eos_string")
    if (seed := given.take("seed")) is not None:
        asked.entry["sample_params"] = {"seed": int(seed)}
    if api == "chat":
        _thought(given, asked)
    given.refuse("header", "other headers can't be set here; put a proxy that adds them before the endpoint")
    given.refuse("auth_token", f"name the key in the environment variable {OPENAI_KEY}")
    given.refuse("ca_cert_path", "name the file in the environment variable SSL_CERT_FILE")
    if given.take("verify_certificate", True) is False:
        raise ConfigError(
            "--model_args verify_certificate=False: certificates are always checked here; name yours in the "
            "environment variable SSL_CERT_FILE"
        )
    given.refuse("truncate", "what is too long loses its beginning where a tokenizer is given; leave it out")
    given.refuse("max_images", "all images of a document are shown; leave it out", (1,))
    given.finish()
    if arguments.device is not None:
        asked.notes.append("--device needs nothing: the endpoint decides where its model is")
    if arguments.chat and api == "completions":
        raise ConfigError(
            "--apply_chat_template: --model local-completions would need the template of the tokenizer; use "
            "--model local-chat-completions with …/chat/completions, whose server applies it"
        )
    return asked


def _base_url(given: _Given, address: str | None, api: str) -> str:
    """The address up to ``/v1``: there it is that of the requests themselves."""
    url = given.take("base_url")
    path = "/chat/completions" if api == "chat" else "/completions"
    if url is None:
        if address is not None:
            return address
        raise ConfigError(
            f"--model {given.model} needs its address: --model_args model=NAME,base_url=http://localhost:8000"
            f"/v1{path}"
        )
    if not str(url).endswith(path):
        raise ConfigError(f"--model_args base_url={url}: expected an address that ends with {path}")
    return str(url).removesuffix(path)


def _speed(given: _Given, config: Entry, arguments: HarnessArguments, asked: AskedModel) -> None:
    size = given.take("batch_size", arguments.batch_size)
    if str(size).isdigit() and int(size) > 1 and config["api"] == "completions":
        config["batch_size"] = int(size)
    elif not str(size).isdigit():
        asked.notes.append(f"--batch_size {size} needs nothing: requests go side by side, one prompt in each")
    if arguments.max_batch_size is not None:
        asked.notes.append("--max_batch_size needs nothing: requests go side by side")
    for name, key in (("num_concurrent", "max_concurrency"), ("timeout", "timeout")):
        if (value := given.take(name)) is not None:
            config[key] = value
    if (attempts := given.take("max_retries")) is not None:
        config["max_retries"] = max(0, int(attempts) - 1)  # there the first attempt counts


def _tokens(given: _Given, asked: AskedModel) -> None:
    """The tokenizer, and how many tokens the model takes in where there is one."""
    tokenizer, backend = given.take("tokenizer"), str(given.take("tokenizer_backend", "auto")).lower()
    length = given.take("max_length")
    given.refuse("add_bos_token", "prompts are sent with nothing before them; leave it out")
    given.refuse("custom_prefix_token_id", "a text without context follows the tokenizer's BOS, else its EOS")
    given.refuse("revision", "download the tokenizer of that revision, and name its folder", ("main",))
    if given.take("use_fast_tokenizer", True) is False:
        raise ConfigError(
            "--model_args use_fast_tokenizer=False: a folder with tokenizer.json is needed here"
        )
    given.take("tokenized_requests")  # ids where the server takes them, else their text: the same answers
    given.take("trust_remote_code")  # no code of a tokenizer is run
    if tokenizer is not None and backend != "none" and not asked.chats:
        asked.entry |= {"tokenizer": str(tokenizer), "max_length": int(length or MAX_LENGTH)}
    elif length is not None:
        asked.notes.append("--model_args max_length needs a tokenizer to count with; the server refuses")
    if backend in ("remote", "tiktoken"):
        asked.notes.append(f"--model_args tokenizer_backend={backend}: texts are sent whole, without it")


def _thought(given: _Given, asked: AskedModel) -> None:
    """What ends a thought, and what the chat template is told of it."""
    reasoning: Entry = {}
    if (end := given.take("think_end_token")) is not None:
        if not isinstance(end, str):
            raise ConfigError(f"--model_args think_end_token={end}: expected its text, such as </think>")
        if end != "</think>":  # which is known without being named
            reasoning["marks"] = [end.replace("/", "", 1), end]
    template = dict(given.take("chat_template_args", {}))
    if (thinks := given.take("enable_thinking")) is not None:
        template["enable_thinking"] = thinks
    if template:
        reasoning["template_kwargs"] = template
    if reasoning:
        asked.entry["reasoning"] = reasoning


def _anthropic(given: _Given, arguments: HarnessArguments) -> AskedModel:
    name = str(given.take("model") or _name_of(arguments.model_args))
    config: Entry = {"model": name, "api_key_env": "ANTHROPIC_API_KEY"}
    asked = AskedModel({"name": name, "type": "anthropic", "config": config}, name, chats=True)
    asked.max_tokens = given.take("max_tokens") or given.take("max_gen_toks")
    given.refuse("system", "use --system_instruction")
    given.refuse("temperature", "use --gen_kwargs temperature=…")
    if (concurrent := given.take("num_concurrent")) is not None:
        config["max_concurrency"] = concurrent
    given.take("batch_size"), given.take("max_gen_toks")
    given.finish()
    return asked


def _weights(given: _Given, arguments: HarnessArguments, preset: str) -> tuple[AskedModel, Entry]:
    """Weights for which a server is started: what all of these take."""
    name = _name_of(arguments.model_args)
    path = given.take("pretrained") or given.take("model")
    if path is None:
        raise ConfigError(f"--model {arguments.model} needs pretrained=FOLDER or NAME in --model_args")
    revision = given.take("revision")
    named = f"{path}@{revision}" if revision not in (None, "main") else str(path)
    serve: Entry = {"preset": preset}
    config: Entry = {"api": "chat" if arguments.chat else "completions", "max_concurrency": 256}
    asked = AskedModel({"name": name, "path": named, "config": config, "serve": serve}, name, arguments.chat)
    if (dtype := given.take("dtype")) not in (None, "auto"):
        serve["dtype"] = "float32" if dtype == "float" else str(dtype)
    if (tokenizer := given.take("tokenizer")) is not None:
        asked.entry["tokenizer"] = str(tokenizer)
    if (quantization := given.take("quantization")) is not None:
        serve["quantization"] = str(quantization)
    _thought(given, asked)
    asked.max_tokens = given.take("max_gen_toks")
    given.refuse("add_bos_token", "prompts are sent with nothing before them; leave it out")
    given.refuse("batch_size", "use --batch_size", ("auto", 1))
    torch_seed = arguments.seed[2]
    if torch_seed is not None:
        asked.entry["sample_params"] = {"seed": torch_seed}
    if arguments.max_batch_size is not None or str(arguments.batch_size) != "1":
        asked.notes.append("--batch_size needs nothing: the server works on those together that wait")
    return asked, serve


def _hf(given: _Given, arguments: HarnessArguments) -> AskedModel:
    asked, serve = _weights(given, arguments, "transformers")
    if (adapter := given.take("peft")) is not None:
        asked.entry["peft"] = str(adapter)
    if (length := given.take("max_length")) is not None:
        asked.entry["max_length"] = int(length)
    given.refuse("backend", "the built-in server runs causal models", ("causal", "default"))
    if given.take("parallelize"):
        serve["device_map"] = "auto"
    if (layout := given.take("device_map_option") or given.take("device_map")) is not None:
        serve["device_map"] = str(layout)
    given.take("device_map")
    device = given.take("device", arguments.device)
    words = [] if device in (None, "cuda") else ["--device", str(device)]
    words += ["--trust-remote-code"] if given.take("trust_remote_code") else []
    if words:
        serve["args"] = words
    for name in ("delta", "autogptq", "gptqmodel", "load_in_4bit", "load_in_8bit", "tp_plan", "subfolder"):
        given.refuse(name, f"the built-in server has no such thing; {_SERVED}")
    given.refuse("gguf_file", "name the file itself, with --model gguf --model_args pretrained=FILE.gguf")
    given.take("logits_cache"), given.take("use_fast_tokenizer"), given.take("low_cpu_mem_usage")
    given.finish()
    return asked


def _engine(preset: str, gpus: str, length: str) -> "Callable[[_Given, HarnessArguments], AskedModel]":
    """A server that takes its engine's arguments as words of the same names."""

    def make(given: _Given, arguments: HarnessArguments) -> AskedModel:
        asked, serve = _weights(given, arguments, preset)
        if (number := given.take(gpus)) is not None:
            serve["gpus"] = int(number)
        if (tokens := given.take("max_length") or given.take(length)) is not None:
            asked.entry["max_length"] = int(tokens)
            serve["args"] = [f"--{length.replace('_', '-')}", str(int(tokens))]
        given.take(length)
        given.take("device", arguments.device)
        for name, value in given.rest():
            word = f"--{name.replace('_', '-')}"
            if value is True:
                serve["args"] = [*serve.get("args", ()), word]
            elif value not in (False, None):
                serve["args"] = [*serve.get("args", ()), word, str(value)]
        return asked

    return make


def _gguf(given: _Given, arguments: HarnessArguments) -> AskedModel:
    """llama.cpp's server: one that runs at an address, or one for a file."""
    url = given.take("base_url")
    if url is None:
        asked, serve = _weights(given, arguments, "llama.cpp")
        if (length := given.take("max_length")) is not None:
            asked.entry["max_length"] = int(length)
            serve["args"] = ["--ctx-size", str(int(length))]
        given.finish()
        return asked
    config = {"api": "completions", "base_url": f"{str(url).rstrip('/').removesuffix('/v1')}/v1"}
    asked = AskedModel({"name": "gguf", "config": config}, "gguf")
    _tokens(given, asked)
    given.finish()
    return asked


Make = Callable[[_Given, HarnessArguments], AskedModel]
MODELS: Final[Mapping[str, Make]] = {
    "local-completions": partial(_endpoint, address=None, api="completions"),
    "local-chat-completions": partial(_endpoint, address=None, api="chat"),
    "openai-completions": partial(_endpoint, address=OPENAI, api="completions"),
    "openai-chat-completions": _openai_chats,
    "anthropic-chat-completions": _anthropic,
    "anthropic-chat": _anthropic,
    "hf": _hf,
    "hf-auto": _hf,
    "huggingface": _hf,
    "vllm": _engine("vllm", "tensor_parallel_size", "max_model_len"),
    "sglang": _engine("sglang", "tp_size", "context_length"),
    "gguf": _gguf,
    "ggml": _gguf,
}
"""What ``--model`` names here."""
