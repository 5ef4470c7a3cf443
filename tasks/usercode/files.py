"""Which files of a user's a function depends on by import statements, and what else it imports.

Every import statement of a file counts, in whatever form and wherever it stands, and every import statement
of the files that these lead to. What is found outside the standard library and the folders of installed
packages is a file of the user's: a neighbour, a module on PYTHONPATH, a package installed editable.
"""

import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec, PathFinder
from pathlib import Path

from tasks.store.digests import kept_digest
from tasks.store.fingerprint import module_file
from tasks.store.home import PROJECT
from tasks.store.imports import PACKAGES, Import, Imports, imports_of

SUFFIXES = (*SOURCE_SUFFIXES, *EXTENSION_SUFFIXES)


@dataclass(frozen=True)
class Reached:
    """What import statements lead to: files of the user's, modules of this program, and top-level modules of
    libraries, the standard one's included. ``unknown``: a file imports what only its run can say."""

    files: frozenset[Path]
    ours: frozenset[str]
    libraries: frozenset[str]
    unknown: bool


def reached_files(path: Path) -> Reached:
    """What the file and the files that it imports import, directly or indirectly."""
    start = path.resolve()
    follower = _Follower(start.parent)
    follower.follow(start)
    return Reached(
        frozenset(follower.files), frozenset(follower.ours), frozenset(follower.libraries), follower.unknown
    )


def imported_files(path: Path) -> frozenset[Path]:
    """The file and all files of the user's that it imports, directly or indirectly."""
    return reached_files(path).files


def module_place(module: str) -> Path | None:
    """The file of a module by its full name; None for one that is not found. Nothing is imported."""
    parts = module.split(".")
    found = list(_located(parts, None))
    names = [(path.name.partition(".")[0], path.parent.name) for path in found]
    named = [path for path, own in zip(found, names, strict=True) if parts[-1] in own or _is_archive(path)]
    return named[-1] if named else None


def library_of(path: str | Path) -> str | None:
    """The top-level module that a file belongs to where it was installed, or "python" for one of the standard
    library; None for a file that is neither."""
    return _library(os.path.realpath(path))


def is_installed(path: str) -> bool:
    """Whether a file is that of a library by its path as it stands, which takes no look at the disk."""
    return _library(path) is not None


@lru_cache(maxsize=16384)
def _library(path: str) -> str | None:
    for folder, standard in _library_folders():
        if path.startswith(folder):
            return "python" if standard else Path(path[len(folder) :]).parts[0].partition(".")[0]
    return None


@cache
def _library_folders() -> tuple[tuple[str, bool], ...]:
    """Folders of installed packages and of the standard library (True), the deeper ones first."""
    standard = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    installed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    found = {(os.path.join(os.path.realpath(folder), ""), True) for folder in standard if folder}
    found |= {(os.path.join(os.path.realpath(folder), ""), False) for folder in installed if folder}
    return tuple(sorted(found, key=lambda entry: -len(entry[0])))


def is_ours(path: str | Path) -> bool:
    """Whether a file is this program's."""
    return os.path.realpath(path).startswith(_OURS)


_OURS = tuple(f"{PROJECT / name}{os.sep}" for name in PACKAGES)


@dataclass
class _Follower:
    folder: Path
    files: set[Path] = field(default_factory=set)
    ours: set[str] = field(default_factory=set)
    libraries: set[str] = field(default_factory=set)
    unknown: bool = False

    def follow(self, start: Path) -> None:
        """Adds a file and all that it leads to."""
        waiting = [start]
        while waiting:
            path = waiting.pop()
            if path in self.files:
                continue
            self.files.add(path)
            imports = _imports(path)
            self.unknown |= imports.unknown
            for entry in imports.statements:
                waiting.extend(self._targets(path, entry))

    def _targets(self, path: Path, entry: Import) -> Iterator[Path]:
        if entry.level:
            if entry.level <= len(path.parents):
                yield from _beside(path.parents[entry.level - 1], entry)
            return
        parts = entry.module.split(".")
        if parts[0] in PACKAGES and module_file(parts[0]) is not None:
            named = (entry.module, *(f"{entry.module}.{name}" for name in entry.names))
            self.ours |= {name for name in named if module_file(name) is not None}
            return
        if has_module(self.folder, parts[0]):
            yield from _beside(self.folder, entry)
        elif parts[0] in sys.stdlib_module_names:
            self.libraries.add("python")
        else:
            yield from self._elsewhere(entry)

    def _elsewhere(self, entry: Import) -> Iterator[Path]:
        """Files of a module that the paths and finders of this process know."""
        top = entry.module.partition(".")[0]
        found = list(_located(entry.module.split("."), None))
        if not found and (self.folder / top).is_dir():  # a package without __init__ is the last resort
            yield from _beside(self.folder, entry)
            return
        if not found or any(library_of(path) is not None for path in found):
            self.libraries.add(top)  # one that is not installed is named, too
            return
        yield from found
        for name in entry.names:
            yield from _located([*entry.module.split("."), name], None)


def has_module(folder: Path, name: str) -> bool:
    """Whether a folder has a module of the name."""
    return any(
        (folder / entry).is_file() for entry in (f"{name}/__init__.py", *(name + end for end in SUFFIXES))
    )


def _beside(folder: Path, entry: Import) -> Iterator[Path]:
    """Files of a module below a folder, and of the packages that it is in."""
    parts = [part for part in entry.module.split(".") if part]
    own = folder / "__init__.py"
    if entry.level and own.is_file():
        yield own.resolve()
    if parts:
        yield from _located(parts, [str(folder)])
    for name in entry.names:
        yield from _located([*parts, name], [str(folder)])


def _located(parts: Sequence[str], path: Sequence[str] | None) -> Iterator[Path]:
    """The files of a dotted module, its packages first, as far as they are found; nothing is imported."""
    name = ""
    for part in parts:
        name = f"{name}.{part}" if name else part
        spec = _spec(name, path)
        if spec is None:
            return
        if spec.origin is not None and (file := file_of(spec.origin)) is not None:
            yield file
        path = list(spec.submodule_search_locations or ())
        if not path:
            return


def _spec(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    finders = [PathFinder] if path is not None else sys.meta_path
    for finder in finders:
        find = getattr(finder, "find_spec", None)
        try:
            spec = find(name, path) if find is not None else None
        except Exception:  # a finder of somebody else's: what it can't find is not there
            continue
        if spec is not None:
            found: ModuleSpec = spec
            return found
    return None


def file_of(origin: str) -> Path | None:
    """The file that a module's origin names, or the archive that it is in; None for another name."""
    place = Path(origin)
    if not place.is_absolute():
        return None  # "built-in", "frozen"
    return next((entry.resolve() for entry in (place, *place.parents) if entry.is_file()), None)


def _is_archive(path: Path) -> bool:
    return not path.name.endswith((*SUFFIXES, ".pyc"))


def _imports(path: Path) -> Imports:
    if path.suffix != ".py":
        return Imports(unknown=_is_archive(path))
    try:
        return _imports_of_version(path, kept_digest(path))
    except OSError:
        return Imports()


@lru_cache(maxsize=4096)
def _imports_of_version(path: Path, _digest: str) -> Imports:
    return imports_of(path.read_bytes())
