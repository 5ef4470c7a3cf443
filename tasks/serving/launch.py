"""From a model's ``serve:`` to the command, the environment and the places of its server, and what this
machine has for one: GPUs, their free memory, and the main memory's.

``server_identity`` says what of it can change answers, ``check_launch`` what would keep it from starting.
GPUs are counted through NVML (the package nvidia-ml-py) where it is installed, else by their device
files.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.serving.config import PRESETS, SERVER_SCRIPT, Preset, ServeConfig
from tasks.serving.records import MARK, Order, started
from tasks.serving.weights import (
    WEIGHTS,
    KnownWeights,
    Weights,
    hub_revision,
    local_path,
    one_file,
    readable_digest,
    weights_bytes,
    weights_of,
)
from tasks.store.home import variable
from tasks.store.keys import digest
from tasks.store.machine import process_space

_NAME: Final = re.compile(r"\d+|(GPU|MIG)-.+")
"""What CUDA takes for a GPU; -1, nothing and other texts end its list."""
CPU = "cpu"
"""The place that servers without a GPU take in turn: two of them would share its cores."""


@dataclass(frozen=True)
class Gpu:
    """A GPU: its number, or the name of a part of one (MIG), as CUDA_VISIBLE_DEVICES takes it, its free bytes
    (None: nobody told) and its UUID."""

    name: str
    free: int | None = None
    uuid: str = ""

    @property
    def place(self) -> str:
        """The name of its lock."""
        return f"gpu-{self.name}"


def locks_folder() -> Path:
    """Where the host's locks are, of all users and runs."""
    folder = Path(tempfile.gettempdir()) / "nightjar-places"
    folder.mkdir(mode=0o1777, exist_ok=True)
    with suppress(PermissionError):  # another user's; the mode given above is cut by the umask
        folder.chmod(0o1777)
    return folder


def visible_gpus() -> tuple[Gpu, ...]:
    """The GPUs that this process may use: all, or those in CUDA_VISIBLE_DEVICES, by their numbers or UUIDs up
    to the first name that is neither, as CUDA reads it."""
    found = _by_nvml()
    if found is None:
        found = tuple(Gpu(str(number)) for number in range(_device_files()))
    said = os.environ.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        return found
    names = takewhile(_NAME.fullmatch, map(str.strip, said.split(",")))
    return tuple(dict.fromkeys(_named(name, found) for name in names)) if found else ()


def _named(name: str, found: Sequence[Gpu]) -> Gpu:
    """The GPU that is meant; a UUID may be cut off where it is clear."""
    return next((gpu for gpu in found if name == gpu.name or gpu.uuid.startswith(name)), Gpu(name))


def _by_nvml() -> tuple[Gpu, ...] | None:
    """The GPUs as the driver tells; None where the package or the driver is not there."""
    try:
        import pynvml
    except ImportError:
        return None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
        return tuple(
            Gpu(str(number), int(nvml.nvmlDeviceGetMemoryInfo(handle).free), nvml.nvmlDeviceGetUUID(handle))
            for number, handle in enumerate(handles)
        )
    except nvml.NVMLError:
        return None
    finally:
        nvml.nvmlShutdown()


def _device_files() -> int:
    return sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def free_memory() -> int | None:
    """Bytes of main memory that programs can have; None where the system does not tell."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def lacking_memory(needed: int, held: Sequence[str]) -> str | None:
    """Why weights of ``needed`` bytes don't fit into the memory of the places that are held; None: they do,
    or nobody tells how much there is."""
    gpus = [gpu for gpu in visible_gpus() if gpu.place in held]
    free = [gpu.free for gpu in gpus if gpu.free is not None]
    if gpus:
        told, where = (sum(free) if len(free) == len(gpus) else None), ", ".join(gpu.place for gpu in gpus)
    else:
        told, where = free_memory(), "the main memory"
    if told is None or needed <= told:
        return None
    return (
        f"its weights take {needed / 1e9:.2f} GB, and {where} has {told / 1e9:.2f} GB free; end what holds "
        "it, or serve the model with more GPUs"
    )


def candidates(gpus: Sequence[Gpu], wanted: int) -> tuple[tuple[str, ...], int]:
    """The places of which a server with ``wanted`` GPUs holds some, and how many of them."""
    return (tuple(gpu.place for gpu in gpus), wanted) if wanted else ((CPU,), 1)


@lru_cache(maxsize=1)
def gpu_count() -> int:
    """How many GPUs this process may use; asked once."""
    return len(visible_gpus())


LOOPBACK: Final = "127.0.0.1"
ALLOWED: Final = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR", "HF_HOME", "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE",
        "TRANSFORMERS_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DOCKER_HOST", "CC",
        "CXX",
    )
)  # fmt: skip
OPTIONS: Final = ("VLLM_", "SGLANG_", "LLAMA_", "GGML_")
"""How variables begin that are options of a server, and decide answers as arguments do."""
ALLOWED_BEGINNINGS: Final = (
    "LC_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "OPENBLAS_", "TORCH", "PYTORCH_", "TRITON_", "ROCM_",
    "HIP_", *OPTIONS,
)  # fmt: skip
_PLACING: Final = re.compile(
    r"_(HOST|PORT|IP|PROXY|LOG|LOGGING|RPC_BASE_PATH|VISIBLE_DEVICES)(_|$)|_CACHE(_ROOT|_DIR|_PATH)?$"
)
"""Names of variables that say where a server runs, listens, logs and keeps its caches."""
_INTERPRETER: Final = re.compile(r"(python|pypy)[\d.]*")
_READ: Final = (*WEIGHTS, ".py", ".sh", ".jinja", ".yaml", ".yml", ".toml")
"""What a server reads; it may write a file of another kind, such as a log."""
_SECRETS: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD")
"""Words in names of variables that are handed on only where the config names them."""
INSIDE: Final = "/model"
ADAPTER_INSIDE: Final = "/adapter"
"""Where a container sees the weights, and the adapter over them."""
RANKS: Final = (8, 16, 32, 64, 128, 256, 320, 512)
"""The room for an adapter's rank that vLLM can be told to leave."""


@dataclass(frozen=True)
class Launch:
    """A server that is to be: of which model, by which name requests will know it, with which weights."""

    model: str
    served_name: str
    serve: ServeConfig
    path: str
    base_dir: str
    peft: str | None = None
    known: KnownWeights | None = None
    """The weights that the run's keys hold: no others may answer."""

    @cached_property
    def weights(self) -> Weights:
        """What it serves: the weights, and the adapter over them."""
        return weights_of(self.path, self.peft, Path(self.base_dir))

    @property
    def preset(self) -> Preset | None:
        """The preset that starts it; None where a command does."""
        return PRESETS[self.serve.preset_name] if self.serve.by_name else None

    @property
    def gpus(self) -> int:
        """How many GPUs it has."""
        said = self.serve.gpus
        return min(1, gpu_count()) if said is None else said

    def place(self) -> Path | None:
        """Where its weights are on this machine; None for a name of a hub."""
        found = local_path(self.weights.path, Path(self.base_dir))
        if found is None or self.preset is None or self.preset.file is None:
            return found
        return one_file(found, self.preset.file)


def server_identity(
    serve: ServeConfig, *, adapter: bool = False, surroundings: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """What of a server can change answers, for cache keys: preset or command, version, with an ``adapter``
    that of what puts it over the model, dtype, quantisation and arguments, and its ``surroundings``, by
    default as they are now; neither paths, ports nor GPUs."""
    told = {"dtype": serve.dtype, "quantization": serve.quantization, "container": serve.container}
    named = {name: value for name, value in told.items() if value is not None}
    if serve.args:
        named["args"] = " ".join(serve.args)
    named |= surroundings_of(serve) if surroundings is None else surroundings
    if not serve.by_name:
        command = " ".join(serve.command or ())
        return {"command": command, **named, **({"version": serve.version} if serve.version else {})}
    preset = PRESETS[serve.preset_name]
    version = serve.version
    if version is None and serve.container is None:
        version = installed_version(preset.name, interpreter(serve), adapter=adapter)
    return {"preset": preset.name, "version": version or "", **named}


def surroundings_of(serve: ServeConfig) -> dict[str, str]:
    """What decides a server's answers and is not in the config: a digest of the files that its command and
    arguments name, and one of the variables that are options of it or that ``env`` names. Secrets and what
    says where it runs are not in them."""
    contained = serve.container is not None
    reads_options = not contained and not (serve.by_name and _runs_ours(PRESETS[serve.preset_name]))
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in serve.env or (reads_options and name.startswith(OPTIONS))
        if not (name in ALLOWED or _PLACING.search(name.upper()) or _is_secret(name))
    }
    told = {name: _content(value) or value for name, value in variables.items()}
    program, *words = (*(serve.command or ("",)), *serve.args)
    contents = [] if contained else [_content(program, is_program=True), *map(_content, words)]
    files = [found for found in contents if found is not None]
    return ({"files": digest(files)} if files else {}) | ({"environment": digest(told)} if told else {})


def _content(word: str, is_program: bool = False) -> str | None:
    """The digest of the file that a word names, where a server reads it. Interpreters, and relative paths,
    which a server finds nothing at, name none."""
    path = Path(word.partition("=")[2] if word.startswith("-") else word)
    is_read = path.suffix in _READ or (is_program and not _INTERPRETER.fullmatch(path.name))
    return readable_digest(path) if is_read and path.is_absolute() and os.path.isfile(path) else None


def _is_secret(name: str) -> bool:
    return any(word in name.upper() for word in _SECRETS)


def interpreter(serve: ServeConfig) -> str:
    """The interpreter that Python servers run in."""
    return serve.python or variable("NIGHTJAR_SERVE_PYTHON") or sys.executable


@lru_cache(maxsize=32)
def installed_version(name: str, python: str, *, adapter: bool = False) -> str:
    """The version of a preset's server where it would run, with that of what an ``adapter`` takes; empty
    where it is not installed."""
    preset = PRESETS[name]
    packages = (*preset.packages, *(preset.adapter.packages if adapter and preset.adapter else ()))
    if not preset.packages:
        program = shutil.which(preset.command[0])
        version = _version_in(_printed([program, "--version"])) if program is not None else ""
        return ", ".join(filter(None, (preset.version, version)))
    code = "import sys; from importlib.metadata import version as v; print(*(v(n) for n in sys.argv[1:]))"
    found = _printed([python, "-c", code, *packages])[0].partition("\n")[0].split()
    if len(found) != len(packages):
        return ""
    versions = [f"{name} {version}" for name, version in zip(packages, found, strict=True)]
    return ", ".join([preset.version, *versions] if preset.version else versions)


def _printed(command: list[str]) -> tuple[str, str]:
    """What a command prints on stdout and on stderr; nothing where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return "", ""
    return (done.stdout.strip(), done.stderr.strip()) if done.returncode == 0 else ("", "")


def _version_in(printed: tuple[str, str]) -> str:
    """The line that says the version, else all of it: builds for GPUs print what they found before it."""
    lines = [line for text in printed for line in text.splitlines()]
    return next((line for line in lines if line.startswith("version")), "\n".join(lines))


def check_launch(launch: Launch) -> None:
    """Raises ConfigError for what keeps the server from starting here: program, weights, GPUs."""
    serve, preset, who = launch.serve, launch.preset, f"model '{launch.model}'"
    command = _command(launch)
    if serve.container is not None:
        _runtime(who)
    elif shutil.which(command[0]) is None:
        remedy = f"; install it: {preset.install}" if preset is not None else ""
        if command[0] == interpreter(serve):
            remedy = " (serve.python, else NIGHTJAR_SERVE_PYTHON)"
        raise ConfigError(f"{who}: serve: there is no program {command[0]}{remedy}")
    elif preset is not None and preset.packages:
        _check_packages(who, preset, interpreter(serve), adapter=launch.weights.adapter is not None)
    gpus = visible_gpus()
    if launch.gpus > len(gpus):
        raise ConfigError(
            f"{who}: serve.gpus is {launch.gpus}, and this machine has {len(gpus)} that may be used"
        )


def _check_packages(who: str, preset: Preset, python: str, *, adapter: bool) -> None:
    """Raises ConfigError where the server, or what puts an adapter over its model, is not installed."""
    packages, install = preset.packages, preset.install
    if installed_version(preset.name, python):
        if not adapter or preset.adapter is None or installed_version(preset.name, python, adapter=True):
            return
        packages, install = preset.adapter.packages, preset.adapter.install
    raise ConfigError(
        f"{who}: {' and '.join(packages)} is not installed for {python}; name the interpreter that has it in "
        f"NIGHTJAR_SERVE_PYTHON or serve.python, or: {install}"
    )


def order_for(launch: Launch, owner: int, run: str = "") -> Order:
    """The order of a supervisor for this server; ``owner`` is the process that it is for."""
    identifier = uuid.uuid4().hex
    command, host = _command(launch), LOOPBACK
    ending: list[str] = []
    environment = _environment(launch.serve)
    if launch.serve.container is not None:
        command, ending = _contained(launch, identifier, command)
    held, places = candidates(visible_gpus(), launch.gpus)
    weights = launch.place()
    return Order(
        id=identifier,
        command=tuple(command),
        environment={**environment, MARK: identifier, "PYTHONUNBUFFERED": "1"},
        owner=owner,
        owner_started=started(owner),
        host=host,
        ready=_ready(launch),
        start_seconds=launch.serve.start_timeout,
        restarts=launch.serve.restarts,
        locks=str(locks_folder()),
        candidates=held,
        places=places,
        container=tuple(ending),
        bytes_needed=sum(weights_bytes(one) for one in (weights, launch.weights.adapter) if one is not None),
        run=run,
        space=process_space(),
        weights=None if launch.known is None else asdict(launch.known),
    )


def _ready(launch: Launch) -> str:
    default = launch.preset.ready if launch.preset is not None else "/v1/models"
    return "/" + (launch.serve.ready or default).lstrip("/")


def _command(launch: Launch) -> list[str]:
    """The command with all but the port (and a container's devices) filled in."""
    serve, preset = launch.serve, launch.preset
    words = list(preset.command if preset is not None else serve.command or ())
    starter, flags = ("a command of yours", {}) if preset is None else (preset.name, preset.flags or {})
    for option in ("dtype", "quantization", "device_map"):
        value = getattr(serve, option)
        if value is not None and option not in flags:
            raise ConfigError(
                f"model '{launch.model}': serve.{option}: {starter} takes none; put what it takes into "
                "serve.args"
            )
        words += [flags[option], value] if value is not None else []
    if preset is not None:
        words += _revision(launch, flags.get("revision"))
        words += preset.many_gpus if launch.gpus > 1 else ()
    words += _adapter_words(launch, words)
    words += serve.args
    place, contained, adapter = launch.place(), serve.container is not None, launch.weights.adapter
    folder = ADAPTER_INSIDE if contained else str(adapter)
    values = {
        "{python}": "python3" if contained else interpreter(serve),
        "{server}": str(SERVER_SCRIPT),
        "{path}": _path_inside(launch) if contained else str(place or launch.weights.path.partition("@")[0]),
        "{adapter}": folder,
        "{rank}": str(next((room for room in RANKS if room >= launch.weights.rank), launch.weights.rank)),
        "{module}": json.dumps({"name": launch.served_name, "path": folder}),
        "{base}": launch.served_name if adapter is None else f"{launch.served_name}-base",
        "{name}": launch.served_name,
        "{host}": "0.0.0.0" if contained else LOOPBACK,  # inside its own network namespace
        "{gpus}": str(launch.gpus),
    }
    return [filled(word, values) for word in words]


def _revision(launch: Launch, flag: str | None) -> list[str]:
    """What has a server load the revision of a hub's name that the answers are kept under."""
    if flag is None or launch.place() is not None:
        return []
    path = launch.weights.path
    try:
        _, revision = hub_revision(path)
    except ConfigError:  # kept under an identity of the config's own
        revision = path.partition("@")[2]
    return [flag, revision] if revision else []


def _adapter_words(launch: Launch, words: Sequence[str]) -> tuple[str, ...]:
    """What a command is added for an adapter. Raises ConfigError where its server takes none."""
    weights, preset = launch.weights, launch.preset
    if weights.adapter is None or any("{adapter}" in word for word in words):
        return ()
    if preset is None:
        raise ConfigError(
            f"model '{launch.model}': peft: expected {{adapter}} in serve.command, for its folder"
        )
    if preset.adapter is None:
        able = ", ".join(name for name, one in PRESETS.items() if one.adapter is not None)
        raise ConfigError(
            f"model '{launch.model}': peft: {preset.name} takes no adapter's folder ({able} do); merge it "
            "into its base, or put what the server takes into serve.args"
        )
    return (*preset.adapter.command, *(preset.adapter.tokenizer if weights.tokenizer is not None else ()))


def _path_inside(launch: Launch) -> str:
    place = launch.place()
    if place is None:
        return launch.weights.path.partition("@")[0]
    return f"{INSIDE}/{place.name}" if place.is_file() else INSIDE


def filled(word: str, values: Mapping[str, str]) -> str:
    """A word of a command with values in the places of their names."""
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _environment(serve: ServeConfig) -> dict[str, str]:
    """The variables that a server is given: those that it needs to run, none that may hold a key, and those
    that the config names."""
    missing = [name for name in serve.env if name not in os.environ]
    if missing:
        raise ConfigError(f"serve.env: {', '.join(missing)} is not set")
    return {
        name: value
        for name, value in os.environ.items()
        if name in serve.env
        or name in ALLOWED
        or (name.startswith(ALLOWED_BEGINNINGS) and not _is_secret(name))
    }


def _runtime(who: str) -> str:
    found = shutil.which("podman") or shutil.which("docker")
    if found is None:
        raise ConfigError(f"{who}: serve.container needs podman or docker, and neither is on the PATH")
    return found


def _contained(launch: Launch, identifier: str, command: list[str]) -> tuple[list[str], list[str]]:
    """The command in a container that is gone when it ends, and what ends it."""
    runtime, name, place = _runtime(f"model '{launch.model}'"), f"nightjar-{identifier[:12]}", launch.place()
    words = [runtime, "run", "--rm", "--name", name, "--publish", f"{LOOPBACK}:{{port}}:{{port}}"]
    if place is not None:
        words += ["--volume", f"{place}:{_path_inside(launch)}:ro"]
    if launch.weights.adapter is not None:
        words += ["--volume", f"{launch.weights.adapter}:{ADAPTER_INSIDE}:ro"]
    if launch.preset is not None and _runs_ours(launch.preset):  # a container has to see our file
        words += ["--volume", f"{SERVER_SCRIPT}:{SERVER_SCRIPT}:ro"]
    if launch.gpus:
        is_podman = Path(runtime).name == "podman"  # which takes one name each
        each = [word for n in range(launch.gpus) for word in ("--device", f"nvidia.com/gpu={{device{n}}}")]
        words += each if is_podman else ["--gpus", '"device={devices}"']
    for name in launch.serve.env:
        words += ["--env", name]
    words += ["--entrypoint", command[0], str(launch.serve.container), *command[1:]]
    return words, [runtime, "kill", name]


def _runs_ours(preset: Preset) -> bool:
    return "{server}" in preset.command
