"""Tokenizers, and the BOS and EOS of a tokenizer's folder as transformers finds them.

They are needed only where a server reports no text offsets or a text has to be cut into windows. The
libraries are imported when a tokenizer is loaded.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from metrics.errors import ConfigError
from tasks.serving.weights import WEIGHTS, deciding_files, hub_revision, readable_digest
from tasks.store.home import named_path
from tasks.store.keys import digest

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


BYTES = "bytes"
"""The tokenizer of byte-level models: ids are the bytes' values, 256 stands before a text."""


class Tokenizer(Protocol):
    """Turns text into token ids; ``prefix`` stands before a text without context (BOS, else EOS), ``end`` is
    the text of EOS.
    """

    prefix: int | None
    end: str | None

    def encode(self, text: str) -> list[int]:
        """The ids of a text, no special token added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        ...


class ByteTokenizer:
    """UTF-8 bytes."""

    prefix: int | None = 256
    end: str | None = None

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode("utf-8", "surrogatepass"))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of bytes; what stands before it has none."""
        return bytes(token for token in ids if token < 256).decode("utf-8", "replace")


class LoadedTokenizer:
    """A ``tokenizer.json``, with the special tokens that the files beside it name."""

    def __init__(self, tokenizer: Any, special: SpecialTokens) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        ids = (tokenizer.token_to_id(text) for text in (special.begin, special.end) if text is not None)
        self.prefix = next((token for token in ids if token is not None), None)
        self.end = special.end

    def encode(self, text: str) -> list[int]:
        """The ids of a text, no special token added."""
        with self._lock:
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


class PretrainedTokenizer:
    """A tokenizer of ``transformers``, for the kinds that have no ``tokenizer.json``."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.prefix = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        self.end: str | None = tokenizer.eos_token

    def encode(self, text: str) -> list[int]:
        """The ids of a text, no special token added."""
        return list(self._tokenizer(text, add_special_tokens=False, return_attention_mask=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self._tokenizer.decode(list(ids)))


_KEPT: Final = 8
_loaded: dict[str, tuple[str | None, Tokenizer]] = {}
"""The tokenizers that were loaded last, each with its content, by their places."""
_lock = threading.Lock()


def tokenizer_content(name: str, base_dir: Path) -> str | None:
    """What of a tokenizer decides token ids, for keys: a digest of its files, or a hub's commit. None where
    its name says it, or nothing on this machine does. Raises ConfigError for files that can't be read.
    """
    if name == BYTES:
        return None
    place = _place(name, base_dir)
    if place.exists():
        files = sorted(file for file in _files(place) if file.is_file())
        return digest([[file.name, readable_digest(file)] for file in files])
    with suppress(ConfigError):
        return hub_revision(name)[1]
    return None


def load_tokenizer(name: str, base_dir: Path = Path()) -> Tokenizer:
    """The tokenizer in a folder or file, relative to ``base_dir``, or of a model hub's name; raises
    ConfigError saying what to install or give.

    The prefix token is BOS, else EOS, as lm-evaluation-harness takes it.
    """
    if name == BYTES:
        return ByteTokenizer()
    place, content = _place(name, base_dir), tokenizer_content(name, base_dir)
    with _lock:
        known = _loaded.get(str(place))
    if known is not None and content in (known[0], None):  # None: the folder was removed since
        return known[1]
    tokenizer = _load(name, place, content)
    with _lock:
        _loaded.pop(str(place), None)
        _loaded[str(place)] = content, tokenizer
        while len(_loaded) > _KEPT:
            del _loaded[next(iter(_loaded))]
    return tokenizer


def _place(name: str, base_dir: Path) -> Path:
    """Where the tokenizer is, unless it is a hub's."""
    return named_path(base_dir, name).absolute()


def _files(place: Path) -> list[Path]:
    """The files that a tokenizer is made of, some of which may not be there."""
    file = place / "tokenizer.json" if place.is_dir() else place
    if file.is_file():
        return [file, *(file.parent / name for name in (*NAMING, "config.json"))]
    return [file for file in deciding_files(place) if file.suffix not in WEIGHTS]


def _load(name: str, place: Path, content: str | None) -> Tokenizer:
    file = place / "tokenizer.json" if place.is_dir() else place
    if file.is_file() and file.suffix == ".json":
        return _from_file(file)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            f"tokenizer {name!r}: there is no tokenizer.json at {place}; give a folder that has one, or "
            "install transformers to load the tokenizer by name"
        ) from error
    hub, _, revision = name.partition("@")
    revision = content or revision  # no other than the one that keys hold
    try:
        if place.exists():
            return PretrainedTokenizer(AutoTokenizer.from_pretrained(str(place)))
        chosen = {"revision": revision} if revision else {}
        return PretrainedTokenizer(AutoTokenizer.from_pretrained(hub, **chosen))
    except Exception as error:
        raise ConfigError(f"tokenizer {name!r} can't be loaded: {error}") from error


def _from_file(file: Path) -> Tokenizer:
    try:
        import tokenizers
    except ImportError as error:
        raise ConfigError(
            f"tokenizer {file} needs the package tokenizers (pip install 'nightjar[tokenizer]')"
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        raise ConfigError(f"tokenizer {file} can't be read: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return LoadedTokenizer(tokenizer, special_tokens(file.parent))
