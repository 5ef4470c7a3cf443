"""Which model a folder of weights holds, said by content, whatever the folder is called and wherever it
lies: by the names and bytes of all files that decide what the model answers, weights, tokenizer, their
configs, code.

Digests of large files are kept, so that a folder is read once. A name of a hub counts by the commit of its
revision. An adapter (LoRA and its like) is a folder of its own: it counts beside the weights that it lies
over.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from metrics.errors import ConfigError
from tasks.store.digests import kept_digest
from tasks.store.home import named_path
from tasks.store.keys import digest

WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ggml", ".npz", ".msgpack", ".h5")
_DECIDING: Final = (*WEIGHTS, ".json", ".model", ".txt", ".jinja", ".tiktoken", ".vocab", ".py")
_TRAINING: Final = re.compile(
    r"optimizer.*|scheduler.*|rng_state.*|scaler.*|training_args.*|trainer_state\.json|train_results\.json|"
    r"all_results\.json|eval_results\.json|requirements.*\.txt|log.*\.txt|README.*|LICENSE.*"
)
"""What trainers leave beside a model, which no answer depends on."""
_TEMPLATES: Final = "additional_chat_templates/*.jinja"
"""Where transformers keeps the templates that a request chooses from, such as one for tools."""
_PART: Final = re.compile(r"(.+-)\d{5}(-of-\d{5})(\.\w+)")
"""One of several files that hold a model together."""
_HUB: Final = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_READERS: Final = 4
_ABOUT: Final = "__metadata__"
"""What a header of safetensors holds beside tensors."""
_ADAPTER: Final = "adapter_config.json"
"""What a folder of an adapter holds, in the form of the package peft."""


@dataclass(frozen=True)
class Weights:
    """The weights that a model is made of: a folder, a file or a hub's name, and the folder of the adapter
    over them, if any."""

    path: str
    adapter: Path | None = None

    @property
    def tokenizer(self) -> Path | None:
        """The adapter's folder where it holds a tokenizer, which then takes the place of the weights' own."""
        own = self.adapter is not None and (self.adapter / "tokenizer_config.json").is_file()
        return self.adapter if own else None

    @property
    def rank(self) -> int:
        """The highest rank that the adapter has in a layer; 0 where it has none or does not say."""
        told = _adapter_config(self.adapter) if self.adapter is not None else {}
        return max((rank for rank in (told.get("r"), *_values(told.get("rank_pattern"))) if rank), default=0)


def weights_of(path: str, peft: str | None, base_dir: Path) -> Weights:
    """The weights that ``path`` and the adapter ``peft`` name; a ``path`` to an adapter is it over the base
    that its config names. Raises ConfigError for what is not there.
    """
    place = local_path(path, base_dir)
    if peft is None:
        return Weights(path) if place is None or not _is_adapter(place) else _named_by(place, base_dir)
    folder = named_path(base_dir, peft).absolute()
    if not _is_adapter(folder):
        raise ConfigError(f"peft: {folder} is no adapter: expected a folder with {_ADAPTER}")
    if place is not None and _is_adapter(place):
        raise ConfigError(
            f"path: {place} is an adapter itself: name its base in path, and one adapter in peft"
        )
    return Weights(path, folder)


def _named_by(adapter: Path, base_dir: Path) -> Weights:
    """An adapter over the base that its config names."""
    told = _adapter_config(adapter)
    base = str(told.get("base_model_name_or_path") or "")
    if told.get("revision") and "@" not in base:
        base = f"{base}@{told['revision']}"
    try:
        if not base or local_path(base, base_dir) is None:
            hub_revision(base)
    except ConfigError as error:
        raise ConfigError(
            f"{adapter} is an adapter over '{base}', which is not here: name the folder of its base in path, "
            "and the adapter in peft"
        ) from error
    return Weights(base, adapter)


def _is_adapter(place: Path) -> bool:
    return (place / _ADAPTER).is_file()


def _adapter_config(folder: Path) -> Mapping[str, Any]:
    try:
        told = orjson.loads((folder / _ADAPTER).read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{folder / _ADAPTER}: can't be read: {error}") from error
    return told if isinstance(told, dict) else {}


def _values(told: Any) -> Iterable[int]:
    return told.values() if isinstance(told, dict) else ()


def weights_identity(path: str, base_dir: Path, peft: str | None = None) -> dict[str, Any]:
    """What of the weights can change answers, for cache keys; raises ConfigError where there are none.

    ``path`` is a folder or a file, relative to ``base_dir``, or a hub's NAME@REVISION; ``peft`` the folder of
    an adapter over it.
    """
    found = weights_of(path, peft, base_dir)
    place = local_path(found.path, base_dir)
    if place is None:
        name, revision = hub_revision(found.path)
        base = {"hub": name, "revision": revision}
    else:
        base = {"weights": weights_digest(place)}
    return base if found.adapter is None else {**base, "adapter": weights_digest(found.adapter)}


@dataclass(frozen=True)
class KnownWeights:
    """Weights as they were when a run began: ``told`` is their ``weights_identity``, which all keys of the
    run hold, ``files`` are the digests of those that are in ``places``, on this machine. Other weights may be
    there by the time that a server loads them."""

    told: dict[str, Any]
    path: str
    base_dir: str
    peft: str | None
    places: tuple[str, ...]
    files: dict[str, str]

    def replaced(self) -> str | None:
        """Why what is loaded from there by now may be other weights; None where it can't."""
        try:
            now = weights_identity(self.path, Path(self.base_dir), self.peft)
        except (ConfigError, OSError) as error:
            return f"its weights are not there as they were when the run began: {error}"
        return None if now == self.told else self._sentence

    def overwritten(self) -> str | None:
        """Why weights that were loaded from there may have changed since; None where they can't. Those that
        are removed, or just being removed, have not."""
        for place in self.places:
            now = _digests(Path(place))
            if any(self.files.get(name) != found for name, found in now.items()):
                return self._sentence
        return None

    @property
    def _sentence(self) -> str:
        return f"its weights at {self.path} were replaced after the run had begun; run it again"


def known_weights(path: str, base_dir: Path, peft: str | None = None) -> KnownWeights:
    """The weights as they are now; raises ConfigError where there are none."""
    told, found = weights_identity(path, base_dir, peft), weights_of(path, peft, base_dir)
    here = [place for place in (local_path(found.path, base_dir), found.adapter) if place is not None]
    places = [place.resolve() for place in here]  # a link may name another folder by the time
    files = {name: made for place in places for name, made in _digests(place).items()}
    return KnownWeights(told, path, str(base_dir.absolute()), peft, tuple(map(str, places)), files)


def _digests(place: Path) -> dict[str, str]:
    """Digests of the files there that decide answers, as far as they can be read."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for file in list(deciding_files(place)):
            with suppress(OSError):
                found[str(file)] = kept_digest(file)
    return found


def hub_revision(path: str) -> tuple[str, str]:
    """A hub's name and its revision, a commit: the one it is written with, else the one that its branch or
    tag, ``main`` by default, has on this machine.

    A branch moves, and the same name would stand for other weights. Raises ConfigError where no commit is
    known.
    """
    name, _, revision = path.partition("@")
    return name, revision if _COMMIT.fullmatch(revision) else _cached_commit(name, revision)


def local_path(path: str, base_dir: Path) -> Path | None:
    """The folder or file on this machine; None for a name of a hub. Raises ConfigError for neither."""
    place = named_path(base_dir, path).absolute()
    if place.exists():
        return place
    if _HUB.fullmatch(path):
        return None
    raise ConfigError(f"no weights at {place}: expected a folder, a .gguf file, or a hub's NAME@REVISION")


def weights_digest(place: Path) -> str:
    """SHA-256 over names and bytes of what decides the model's answers, 64 hexadecimal digits; a file may
    have any name."""
    if said := unfinished(place):
        raise ConfigError(said)
    files = sorted(deciding_files(place))
    with ThreadPoolExecutor(_READERS) as pool:
        digests = list(pool.map(readable_digest, files))
    names = [file.suffix if place.is_file() else file.relative_to(place).as_posix() for file in files]
    return digest([list(pair) for pair in zip(names, digests, strict=True)])


def lacking(place: Path, base_dir: Path) -> str | None:
    """Why a checkpoint can't be served: it is not whole, or an adapter without its base; None: it can."""
    if said := unfinished(place):
        return said
    try:
        weights_of(str(place), None, base_dir)
    except ConfigError as error:
        return str(error)
    return None


def unfinished(place: Path) -> str | None:
    """Why a folder or a file holds no whole model, as one that is still being written; None: names and
    lengths say that it does."""
    try:
        deciding = list(deciding_files(place))
        weights = deciding if place.is_file() else [file for file in deciding if file.suffix in WEIGHTS]
        if not weights:
            return f"{place} holds no weights: expected files such as *.safetensors or *.gguf"
        there = {file.name for file in weights}
        indexed = _indexed(place, there)
        named = indexed or {part for file in weights for part in _numbered(file.name)}
        lacking = sorted(named - there)
        cut = sorted(file.name for file in weights if _is_cut(file))
    except OSError as error:  # it is being removed
        return f"{place}: can't be read: {error.strerror or error}"
    if lacking:
        counted = f"({len(lacking)} of {len(named)} files)"
        said = (
            f", which its index names {counted}" if indexed else f" {counted}, as the names of the others say"
        )
        return f"{place} lacks {lacking[0]}{said}"
    return f"{place}: {cut[0]} ends before its weights do" if cut else None


def _indexed(place: Path, there: set[str]) -> set[str]:
    """The files that the fullest index names; none where no index is of a form that is there. A hub's model
    has weights in several forms, of which one is downloaded, with the indexes of all."""
    forms = {Path(name).suffix for name in there}
    indexes = [_parts(index) for index in sorted(place.glob("*.index.json"))]
    counting = [parts for parts in indexes if any(Path(part).suffix in forms for part in parts)]
    return max(counting, key=lambda parts: len(parts & there) / len(parts), default=set())


def _parts(index: Path) -> set[str]:
    """The files that an index of weights names; none where it can't be read (yet)."""
    try:
        return set(orjson.loads(index.read_bytes())["weight_map"].values())
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return set()


def _numbered(name: str) -> set[str]:
    """The files that one of several numbered parts says there are; none for another name. Trainers write an
    index after its parts, and GGUF has none."""
    if (found := _PART.fullmatch(name)) is None:
        return set()
    begins, of, ends = found.groups()
    return {f"{begins}{number:05d}{of}{ends}" for number in range(1, int(of[-5:]) + 1)}


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


def deciding_files(place: Path) -> Iterator[Path]:
    """The files that decide answers: a file's are it and the parts beside it; what a trainer left in a folder
    is not among them."""
    if place.is_file():
        parts = (place.with_name(name) for name in _numbered(place.name) or {place.name})
        yield from (part for part in parts if part.is_file())
        return
    for file in place.iterdir():
        if file.suffix in _DECIDING and file.is_file() and not _TRAINING.fullmatch(file.name):
            yield file
    yield from (file for file in place.glob(_TEMPLATES) if file.is_file())


def weights_bytes(place: Path) -> int:
    """Bytes of the weights alone."""
    return sum(file.stat().st_size for file in deciding_files(place) if file.suffix in WEIGHTS)


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


def readable_digest(file: Path) -> str:
    """The digest of a file that has to be there (``kept_digest``). Raises ConfigError."""
    try:
        return kept_digest(file)
    except OSError as error:
        raise ConfigError(f"{file}: can't be read: {error.strerror or error}") from error


def _hub_cache() -> Path:
    """Where the hub's client keeps what it has downloaded, by the same variables."""
    told = os.environ.get
    caches = told("XDG_CACHE_HOME") or "~/.cache"
    own = f"{told('HF_HOME') or f'{caches}/huggingface'}/hub"
    root = told("HF_HUB_CACHE") or told("HUGGINGFACE_HUB_CACHE") or own
    return Path(os.path.expandvars(root)).expanduser()


def _cached_commit(name: str, revision: str) -> str:
    """The commit that a branch or a tag of a hub's model has on this machine."""
    refs = _hub_cache() / f"models--{name.replace('/', '--')}" / "refs"
    with suppress(OSError, UnicodeDecodeError):
        commit = refs.joinpath(revision or "main").read_text().strip()
        if ".." not in revision.split("/") and _COMMIT.fullmatch(commit):
            return commit
    told = (
        f"the hub's cache here does not say which commit '{revision}' is; download it, or write the commit"
        if revision
        else "no such folder here, and a hub's name needs its revision: write"
    )
    raise ConfigError(f"{name}: {told} {name}@REVISION (40 hexadecimal digits)")
