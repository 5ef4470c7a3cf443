"""BOS and EOS of a tokenizer's folder, as transformers finds them: named in its files, else by its class."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

NAMING: Final = ("tokenizer_config.json", "special_tokens_map.json")
_END: Final = "<|endoftext|>"
_GPT2: Final = (_END, _END)
OF_CLASS: Final[Mapping[str, tuple[str | None, str]]] = {
    "GPT2Tokenizer": _GPT2,
    "GPTNeoXTokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "Qwen2Tokenizer": (None, _END),
    "LlamaTokenizer": ("<s>", "</s>"),
    "CodeLlamaTokenizer": ("<s>", "</s>"),
    "GemmaTokenizer": ("<bos>", "<eos>"),
}
"""BOS and EOS that a class of transformers has where no file names them."""
OF_MODEL: Final = {
    "gpt2": "GPT2Tokenizer",
    "gpt_neo": "GPT2Tokenizer",
    "gpt_neox": "GPTNeoXTokenizer",
    "codegen": "CodeGenTokenizer",
    "qwen2": "Qwen2Tokenizer",
}
"""The class of a model's tokenizer where no file names that."""


@dataclass(frozen=True)
class SpecialTokens:
    """The texts of BOS and EOS; None: there is none."""

    begin: str | None
    end: str | None


def special_tokens(folder: Path) -> SpecialTokens:
    """The special tokens of the tokenizer in a folder; none where nothing there tells them."""
    files = [_read(folder / name) for name in NAMING]
    begin, end = OF_CLASS.get(_class_of(files[0], _read(folder / "config.json")), (None, None))
    return SpecialTokens(_named("bos_token", files, begin), _named("eos_token", files, end))


def _class_of(settings: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    named = settings.get("tokenizer_class") or model.get("tokenizer_class")
    return str(named).removesuffix("Fast") if named else OF_MODEL.get(str(model.get("model_type")), "")


def _named(role: str, files: list[Mapping[str, Any]], otherwise: str | None) -> str | None:
    """The first file that has the role decides, be it with null."""
    token = next((file[role] for file in files if role in file), otherwise)
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _read(path: Path) -> Mapping[str, Any]:
    document = orjson.loads(path.read_bytes()) if path.is_file() else {}
    return document if isinstance(document, dict) else {}
