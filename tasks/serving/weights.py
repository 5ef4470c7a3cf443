"""Which model a folder of weights holds: by content, whatever the folder is called and wherever it lies.

A folder counts by the names and bytes of all files that decide what the model answers: weights, tokenizer,
their configs, code. A file's digest is kept in the home under its path, size, time and inode, so that a
folder is read once. A name of a hub counts by its revision.
"""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.store.home import home, private_folder
from tasks.store.keys import digest, file_digest

WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".ggml", ".npz", ".msgpack", ".h5")
_DECIDING: Final = (*WEIGHTS, ".json", ".model", ".txt", ".jinja", ".tiktoken", ".vocab", ".py")
_TRAINING: Final = re.compile(
    r"optimizer.*|scheduler.*|rng_state.*|scaler.*|training_args.*|trainer_state\.json|train_results\.json|"
    r"all_results\.json|eval_results\.json|requirements.*\.txt|log.*\.txt|README.*|LICENSE.*"
)
"""What trainers leave beside a model, which no answer hangs on."""
_HUB: Final = re.compile(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?")
_READERS: Final = 4


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
    files = sorted(deciding_files(place))
    if not any(file.suffix in WEIGHTS for file in files):
        raise ConfigError(f"{place} holds no weights: expected files such as *.safetensors or *.gguf")
    with ThreadPoolExecutor(_READERS) as pool:
        digests = list(pool.map(_kept_digest, files))
    return digest([[file.name, found] for file, found in zip(files, digests, strict=True)])


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
