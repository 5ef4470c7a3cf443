"""What a config says about the server of a model's weights, and the servers that are known by name: how
each is started, and when it is ready.

A preset is data. In a command, ``{python}`` is the interpreter of Python servers, ``{path}`` the folder
or file of weights, ``{name}`` the name that requests will bear, ``{host}`` and ``{port}`` where to
listen, ``{gpus}`` how many GPUs it has. With an adapter, ``{adapter}`` is its folder, ``{rank}`` room for
its rank, ``{module}`` its name and folder as JSON, and ``{base}`` the name of the model below it, which
nobody asks; without one ``{base}`` is ``{name}``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from metrics.aliases import nearest
from metrics.config import RunsProgram, Strict
from metrics.errors import ConfigError
from metrics.registry import load_plugin, plugin_origin, plugins
from tasks.store.durations import Seconds

SERVER_SCRIPT: Final = Path(__file__).with_name("transformers_server")


@dataclass(frozen=True)
class AdapterWay:
    """How a server puts an adapter over its model.

    ``command`` is added to the preset's, and ``tokenizer`` where the adapter's folder holds a tokenizer;
    ``body`` is in every request; ``packages`` are what it needs besides, and ``install`` brings them.
    """

    command: tuple[str, ...]
    tokenizer: tuple[str, ...] = ()
    body: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    install: str = ""


@dataclass(frozen=True)
class Preset:
    """A server known by name.

    ``packages`` are the distributions whose versions are its version; ``flags`` the options that ``dtype``,
    ``quantization``, ``device_map`` and a hub's ``revision`` go by; ``many_gpus`` is added for more GPUs than
    one; ``file`` is the suffix of a model's one file, for servers that take no folder; ``adapter`` is None
    for those that take none.
    """

    name: str
    about: str
    command: tuple[str, ...]
    ready: str
    packages: tuple[str, ...] = ()
    version: str = ""
    many_gpus: tuple[str, ...] = ()
    flags: Mapping[str, str] | None = None
    file: str | None = None
    install: str = ""
    adapter: AdapterWay | None = None


_WHERE: Final = ("--host", "{host}", "--port", "{port}")


class Presets(Mapping[str, Preset]):
    """The servers by name: those of this program, and plugins of "nightjar.servers", each a ``Preset``."""

    def __init__(self, own: Iterable[Preset]) -> None:
        self._own = {preset.name: preset for preset in own}

    def __getitem__(self, name: str) -> Preset:
        if name in self._own:
            return self._own[name]
        entry = plugins("nightjar.servers")[name]
        preset = load_plugin(entry)
        if not isinstance(preset, Preset) or preset.name != name:
            raise ConfigError(
                f"plugin {name!r} ({entry.value}): expected a tasks.serving.config.Preset of that name, got "
                f"{preset!r}"
            )
        # Its command is in no key: the distribution's version stands for it.
        return replace(preset, version=", ".join(filter(None, (preset.version, plugin_origin(entry)))))

    def __iter__(self) -> Iterator[str]:
        return iter({**self._own, **plugins("nightjar.servers")})

    def __len__(self) -> int:
        return len(list(iter(self)))


PRESETS: Final = Presets(
    preset
    for preset in (
        Preset(
            "transformers",
            "The built-in server: Hugging Face folders on CPU, CUDA or MPS, exact log-likelihoods.",
            ("{python}", "{server}", "--model", "{path}", "--name", "{name}", *_WHERE),
            "/health",
            packages=("transformers", "torch"),
            version="3",
            flags={"dtype": "--dtype", "device_map": "--device-map", "revision": "--revision"},
            install="pip install torch transformers",
            adapter=AdapterWay(("--peft", "{adapter}"), packages=("peft",), install="pip install peft"),
        ),
        Preset(
            "vllm",
            "vLLM: high throughput on GPUs.",
            ("{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{path}",
             "--served-model-name", "{base}", *_WHERE),
            "/health",
            packages=("vllm",),
            many_gpus=("--tensor-parallel-size", "{gpus}"),
            flags={"dtype": "--dtype", "quantization": "--quantization", "revision": "--revision"},
            install="pip install vllm",
            adapter=AdapterWay(
                ("--enable-lora", "--max-lora-rank", "{rank}", "--lora-modules", "{module}"),
                tokenizer=("--tokenizer", "{adapter}"),
            ),
        ),
        Preset(
            "sglang",
            "SGLang: high throughput on GPUs.",
            ("{python}", "-m", "sglang.launch_server", "--model-path", "{path}", "--served-model-name",
             "{base}", *_WHERE),
            "/health",
            packages=("sglang",),
            many_gpus=("--tp", "{gpus}"),
            flags={"dtype": "--dtype", "quantization": "--quantization", "revision": "--revision"},
            install="pip install sglang",
            adapter=AdapterWay(
                ("--enable-lora", "--lora-paths", "lora={adapter}"),
                tokenizer=("--tokenizer-path", "{adapter}"),
                body={"lora_path": "lora"},
            ),
        ),
        Preset(
            "llama.cpp",
            "llama.cpp's llama-server: GGUF files on CPU and GPUs.",
            ("llama-server", "--model", "{path}", "--alias", "{name}", *_WHERE),
            "/health",
            file=".gguf",
            install="llama.cpp's programs, with llama-server on the PATH",
        ),
        Preset(
            "llama-cpp-python",
            "llama-cpp-python's server: GGUF files, installed by pip.",
            ("{python}", "-m", "llama_cpp.server", "--model", "{path}", "--model_alias", "{name}",
             "--logits_all", "true", *_WHERE),
            "/v1/models",
            packages=("llama_cpp_python",),
            file=".gguf",
            install="pip install 'llama-cpp-python[server]'",
        ),
    )
)  # fmt: skip


DEFAULT_PRESET = "transformers"
LAST_NUMBER = r"(?P<step>\d+)\D*$"
"""Where a checkpoint's name tells its step unless the config says otherwise."""


def _words(value: Any) -> Any:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class ServeConfig(Strict):
    """How a model's weights are served on this machine: by a preset, or by a command."""

    ALONE = "preset"

    preset: str | None = Field(None, description="a server known by name: `catalog servers` lists them")
    command: Annotated[Words | None, RunsProgram()] = Field(
        None,
        description="what starts the server, with {path}, {port}, {host}, {name} and {gpus} in it, and "
        "{adapter} for peft",
    )
    ready: str | None = Field(
        None, description="what answers 200 once the server is ready; default: the preset's, else /v1/models"
    )
    args: Annotated[Words, RunsProgram()] = Field((), description="further arguments of the preset's command")
    gpus: int | None = Field(
        None, ge=0, description="GPUs of a server; default: 1 where the machine has one, else 0"
    )
    concurrency_limit: str | None = Field(
        None, description="Prefect global concurrency limit: one place for each GPU, or server without one"
    )
    container: Annotated[str | None, RunsProgram()] = Field(
        None, min_length=1, description="image that the command runs in, by Podman or Docker"
    )
    python: Annotated[str | None, RunsProgram()] = Field(
        None, description="interpreter of Python servers; default: NIGHTJAR_SERVE_PYTHON, else this one"
    )
    version: str | None = Field(
        None, description="the server's version in cache keys; default: the one that is installed"
    )
    dtype: str | None = Field(None, description="such as float32 or bfloat16; default: the server's choice")
    quantization: str | None = Field(None, description="as the server names it")
    device_map: str | None = Field(
        None,
        description="the built-in server: auto, balanced or sequential lays a model over several GPUs (needs "
        "the package accelerate)",
    )
    env: Words = Field(
        (), description="names of further environment variables that the server is given; few are by itself"
    )
    start_timeout: Seconds = Field(900.0, description="how long it may take to be ready, such as 15m")
    restarts: int = Field(3, ge=0, description="how often a server that died is started again")

    @field_validator("preset")
    @classmethod
    def _is_known(cls, value: str | None) -> str | None:
        if value is not None and value not in PRESETS:
            raise ValueError(f"server '{value}' is not known{nearest(value, PRESETS)}")
        return value

    @field_validator("command")
    @classmethod
    def _takes_a_port(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if value is not None and not any("{port}" in word for word in value):
            raise ValueError("expected {port} in the command: a server is told which port is free")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.preset is not None and self.command is not None:
            raise ValueError("names a preset and a command; give one of them")
        return self

    @property
    def preset_name(self) -> str:
        """The preset; the built-in server where neither a preset nor a command is named."""
        return self.preset or DEFAULT_PRESET

    @property
    def by_name(self) -> bool:
        """Whether a preset starts the server."""
        return self.command is None


class CheckpointsConfig(Strict):
    """Several folders of weights, each a model of its own."""

    ALONE = "glob"

    glob: str = Field(min_length=1, description="pattern of their paths, relative to the config's folder")
    pattern: str = Field(
        LAST_NUMBER,
        description="regex over a path whose named groups become metadata; default: the last number of what"
        " the glob leaves open is step, and the folders above that are training",
    )
    new_only: bool = Field(
        False, description="only those that no earlier run of this benchmark has evaluated completely"
    )

    @field_validator("pattern")
    @classmethod
    def _has_names(cls, value: str) -> str:
        try:
            compiled = re.compile(value)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        if not compiled.groupindex:
            raise ValueError(r"expected a named group, such as step-(?P<step>\d+)")
        return value

    def metadata_of(self, path: str, name: str) -> Mapping[str, int | float | str]:
        """What the path says: the pattern's groups by name, numbers as numbers; empty: it does not match.

        The default looks at ``name`` alone, what the glob left open of the path: a number of a folder above,
        such as a date, is no step. The folders in it, above that of the step, are the training.
        """
        is_default = self.pattern == LAST_NUMBER
        found = re.search(self.pattern, name if is_default else path)
        named = found.groupdict() if found is not None else {}
        known = {name: _number(text) for name, text in named.items() if text is not None}
        above = name[: found.start()].rpartition("/")[0] if found is not None and is_default else ""
        return {**known, "training": above} if above else known


def _number(text: str) -> int | float | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
