"""What a config says about the server of a model's weights, and the servers that are known by name: how
each is started, and when it is ready.

A preset is data. In a command, ``{python}`` is the interpreter of Python servers, ``{path}`` the folder
or file of weights, ``{name}`` the name that requests will bear, ``{host}`` and ``{port}`` where to
listen, ``{gpus}`` how many GPUs it has.

Which model a folder of weights holds is said by content, whatever the folder is called and wherever it
lies: by the names and bytes of all files that decide what the model answers, weights, tokenizer, their
configs, code. A file's digest is kept in the home under its path, size, time and inode, so that a folder
is read once. A name of a hub counts by its revision.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from metrics.config import RunsProgram
from metrics.errors import ConfigError, nearest
from metrics.registry import load_plugin, plugin_origin, plugins
from tasks.store.durations import Seconds
from tasks.store.home import home, private_folder
from tasks.store.keys import digest, file_digest

SERVER_SCRIPT: Final = Path(__file__).with_name("transformers_server")


@dataclass(frozen=True)
class Preset:
    """A server known by name.

    ``packages`` are the distributions whose versions are its version; ``flags`` the options that ``dtype``,
    ``quantization`` and ``device_map`` go by; ``many_gpus`` is added for more GPUs than one; ``file`` is the
    suffix of a model's one file, for servers that take no folder.
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
            flags={"dtype": "--dtype", "device_map": "--device-map"},
            install="pip install torch transformers",
        ),
        Preset(
            "vllm",
            "vLLM: high throughput on GPUs.",
            ("{python}", "-m", "vllm.entrypoints.openai.api_server", "--model", "{path}",
             "--served-model-name", "{name}", *_WHERE),
            "/health",
            packages=("vllm",),
            many_gpus=("--tensor-parallel-size", "{gpus}"),
            flags={"dtype": "--dtype", "quantization": "--quantization"},
            install="pip install vllm",
        ),
        Preset(
            "sglang",
            "SGLang: high throughput on GPUs.",
            ("{python}", "-m", "sglang.launch_server", "--model-path", "{path}", "--served-model-name",
             "{name}", *_WHERE),
            "/health",
            packages=("sglang",),
            many_gpus=("--tp", "{gpus}"),
            flags={"dtype": "--dtype", "quantization": "--quantization"},
            install="pip install sglang",
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


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def _words(value: Any) -> Any:
    return tuple(value.split()) if isinstance(value, str) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class ServeConfig(_Frozen):
    """How a model's weights are served on this machine: by a preset, or by a command."""

    preset: str | None = Field(None, description="a server known by name: `catalog servers` lists them")
    command: Annotated[Words | None, RunsProgram()] = Field(
        None, description="what starts the server, with {path}, {port}, {host}, {name} and {gpus} in it"
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

    @model_validator(mode="before")
    @classmethod
    def _preset_alone(cls, value: Any) -> Any:
        return {"preset": value} if isinstance(value, str) else value

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


class CheckpointsConfig(_Frozen):
    """Several folders of weights, each a model of its own."""

    glob: str = Field(min_length=1, description="pattern of their paths, relative to the config's folder")
    pattern: str = Field(
        LAST_NUMBER,
        description="regex over a path whose named groups become metadata; default: the last number is step",
    )
    new_only: bool = Field(
        False, description="only those that no earlier run of this benchmark has evaluated completely"
    )

    @model_validator(mode="before")
    @classmethod
    def _glob_alone(cls, value: Any) -> Any:
        return {"glob": value} if isinstance(value, str) else value

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

    def metadata_of(self, path: str) -> Mapping[str, int | float | str]:
        """What the path says: the pattern's groups by name, numbers as numbers; empty where it does not
        match."""
        found = re.search(self.pattern, path)
        named = found.groupdict() if found is not None else {}
        return {name: _number(text) for name, text in named.items() if text is not None}


def _number(text: str) -> int | float | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ggml", ".npz", ".msgpack", ".h5")
_DECIDING: Final = (*WEIGHTS, ".json", ".model", ".txt", ".jinja", ".tiktoken", ".vocab", ".py")
_TRAINING: Final = re.compile(
    r"optimizer.*|scheduler.*|rng_state.*|scaler.*|training_args.*|trainer_state\.json|train_results\.json|"
    r"all_results\.json|eval_results\.json|requirements.*\.txt|log.*\.txt|README.*|LICENSE.*"
)
"""What trainers leave beside a model, which no answer hangs on."""
_HUB: Final = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?")
_READERS: Final = 4
_ABOUT: Final = "__metadata__"
"""What a header of safetensors holds beside tensors."""


def weights_identity(path: str, base_dir: Path) -> dict[str, Any]:
    """What of the weights can change answers, for cache keys; raises ConfigError where there are none.

    ``path`` is a folder or a file, relative to ``base_dir``, or a hub's NAME@REVISION.
    """
    place = local_path(path, base_dir)
    if place is None:
        name, _, revision = path.partition("@")
        return {"hub": name, "revision": revision or _cached_revision(name)}
    return {"weights": weights_digest(place)}


def local_path(path: str, base_dir: Path) -> Path | None:
    """The folder or file on this machine; None for a name of a hub. Raises ConfigError for neither."""
    place = (base_dir / Path(path).expanduser()).absolute()
    if place.exists():
        return place
    if _HUB.fullmatch(path):
        return None
    raise ConfigError(f"no weights at {place}: expected a folder, a .gguf file, or a hub's NAME@REVISION")


def weights_digest(place: Path) -> str:
    """SHA-256 over names and bytes of what decides the model's answers, 64 hexadecimal digits."""
    if place.is_file():
        return digest([[place.suffix, _kept_digest(place)]])
    if said := unfinished(place):
        raise ConfigError(said)
    files = sorted(deciding_files(place))
    with ThreadPoolExecutor(_READERS) as pool:
        digests = list(pool.map(_kept_digest, files))
    return digest([[file.name, found] for file, found in zip(files, digests, strict=True)])


def unfinished(place: Path) -> str | None:
    """Why a folder holds no whole model, as one that is still being written; None: names and lengths say
    that it does."""
    if place.is_file():
        return None
    try:
        weights = [file for file in deciding_files(place) if file.suffix in WEIGHTS]
        if not weights:
            return f"{place} holds no weights: expected files such as *.safetensors or *.gguf"
        named = {part for index in place.glob("*.index.json") for part in _parts(index)}
        lacking = sorted(named - {file.name for file in weights})
        cut = sorted(file.name for file in weights if _is_cut(file))
    except OSError as error:  # it is being removed
        return f"{place}: can't be read: {error.strerror or error}"
    if lacking:
        return f"{place} lacks {lacking[0]}, which its index names ({len(lacking)} of {len(named)} files)"
    return f"{place}: {cut[0]} ends before its weights do" if cut else None


def _parts(index: Path) -> set[str]:
    """The files that an index of weights names; none where it can't be read (yet)."""
    try:
        return set(orjson.loads(index.read_bytes())["weight_map"].values())
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return set()


def _is_cut(file: Path) -> bool:
    """Whether a file of weights is shorter than its own header says; empty ones are."""
    size = file.stat().st_size
    if not size or file.suffix != ".safetensors":
        return not size
    with file.open("rb") as opened:
        length, begins = int.from_bytes(opened.read(8), "little"), opened.read(1)
        if begins != b"{":
            return False  # no header that can be read
        if 8 + length > size:
            return True
        header = b"{" + opened.read(length - 1)
    try:
        ends = [entry["data_offsets"][1] for name, entry in orjson.loads(header).items() if name != _ABOUT]
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return False
    return 8 + length + max(ends, default=0) > size


def deciding_files(folder: Path) -> Iterator[Path]:
    """The files of a folder that decide answers; what a trainer left beside them is not among them."""
    for file in folder.iterdir():
        if file.suffix in _DECIDING and file.is_file() and not _TRAINING.fullmatch(file.name):
            yield file


def weights_bytes(place: Path) -> int:
    """Bytes of the weights alone."""
    files = [place] if place.is_file() else list(deciding_files(place))
    return sum(file.stat().st_size for file in files if file.suffix in WEIGHTS)


def one_file(place: Path, suffix: str) -> Path:
    """The model's one file, for servers that take no folder; of several the first part, ``-00001-of-``.
    Raises ConfigError."""
    if place.is_file():
        return place
    found = sorted(place.glob(f"*{suffix}"))
    first = [file for file in found if "-00001-of-" in file.name]
    if len(found) == 1 or len(first) == 1:
        return (first or found)[0]
    raise ConfigError(f"{place}: expected one {suffix} file, found {len(found)}; name the file itself")


def _kept_digest(file: Path) -> str:
    try:
        known = file.stat()
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror or error}") from error
    key = digest([str(file.resolve()), known.st_size, known.st_mtime_ns, known.st_ino])
    kept = home() / "digests" / key[:2] / key
    with suppress(OSError):
        found = kept.read_text()
        if len(found) == 64:
            return found
    try:
        made = file_digest(file)
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror or error}") from error
    with suppress(OSError):  # a cache: without it the file is read again
        private_folder(kept.parent)
        part = kept.with_name(f"{key}.{os.getpid()}")
        part.write_text(made)
        part.replace(kept)
    return made


def _cached_revision(name: str) -> str:
    """The revision of a hub's model that is on this machine."""
    root = os.environ.get("HF_HUB_CACHE") or str(
        Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"
    )
    main = Path(root) / f"models--{name.replace('/', '--')}" / "refs" / "main"
    try:
        return main.read_text().strip()
    except OSError:
        raise ConfigError(
            f"{name}: no such folder here, and a hub's name needs its revision: write {name}@REVISION"
        ) from None
