"""The servers that are known by name: how each is started, and when it is ready.

A preset is data. In a command, ``{python}`` is the interpreter of Python servers, ``{path}`` the folder or
file of weights, ``{name}`` the name that requests will bear, ``{host}`` and ``{port}`` where to listen,
``{gpus}`` how many GPUs it has.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SERVER_SCRIPT: Final = Path(__file__).with_name("transformers_server.py")


@dataclass(frozen=True)
class Preset:
    """A server known by name.

    ``packages`` are the distributions whose versions are its version; ``flags`` the options that ``dtype``
    and ``quantization`` go by; ``many_gpus`` is added for more GPUs than one; ``file`` is the suffix of a
    model's one file, for servers that take no folder.
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

PRESETS: Final[Mapping[str, Preset]] = {
    preset.name: preset
    for preset in (
        Preset(
            "transformers",
            "The built-in server: Hugging Face folders on CPU, CUDA or MPS, exact log-likelihoods.",
            ("{python}", "{server}", "--model", "{path}", "--name", "{name}", *_WHERE),
            "/health",
            packages=("transformers", "torch"),
            version="2",
            flags={"dtype": "--dtype"},
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
}  # fmt: skip
