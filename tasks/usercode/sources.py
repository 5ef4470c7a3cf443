"""What users' functions depend on: what is known of it before they run, which is in keys, and what was seen
when they ran, which is beside results.

A user's file counts whole, and with it every file that its import statements lead to (``files``). What it
opens, or imports by a name that only its run knows, is known after the first run (``observed``): the list is
kept with digests, and the result serves as long as all of it is as it was.
"""

import functools
import inspect
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

from metrics.errors import ConfigError
from tasks.store.digests import kept_digest
from tasks.store.fingerprint import library_version, package_digest, packages_behind, python_version
from tasks.store.home import named_path
from tasks.store.imports import DIGITS
from tasks.store.keys import digest
from tasks.usercode.files import Reached, file_of, is_ours, library_of, reached_files
from tasks.usercode.load import PREFIX, Resolver, is_shared, resolver
from tasks.usercode.observed import Unknown, digest_now, loaded_files, read_files, working_folder

K = TypeVar("K")
USED: Final = "used"
"""What stands for a name of a file: the file has a digest."""


OWN_FOLDER: Final = "the functions' folder/"
WORKING_FOLDER: Final = "the working folder/"
"""What stands for folders among files that were read: no file's name ends so."""


class Sources(dict[str, str]):
    """Name of a source (a file, a library) → its digest or version. ``entries`` are the files of the
    functions, where they lie on this machine: no part of a key."""

    entries: tuple[str, ...] = ()


class NamedFiles(dict[str, str]):
    """File that ``depends_on`` names, or that is in a folder which it names → its digest. ``names`` below
    ``base_dir`` are no part of a key."""

    names: tuple[str, ...] = ()
    base_dir: str = ""


def sources_of(*code: Callable[..., Any], resolve: Resolver | None = None) -> Sources:
    """The sources behind users' functions and classes, sorted by name; the program's own are behind its
    stages.

    A ``functools.partial`` counts by its function and its arguments, a wrapped function by what it wraps, and
    a function of an installed package by the package's version. ``resolve`` is what the config's functions
    come from: the file that the config names counts, wherever the function was made.
    """
    return _together([_sources(entry, resolve) for entry in code])


def sources_named(references: Iterable[str], base_dir: str | Path) -> Sources:
    """The sources behind the functions and classes that a config of the folder calls by these names."""
    resolve = resolver(base_dir)
    return sources_of(*map(resolve, references), resolve=resolve)


def _together(parts: Iterable[Sources]) -> Sources:
    parts = list(parts)
    found: dict[str, list[str]] = {}
    for part in parts:
        for name, value in part.items():
            found[name] = [*found.get(name, ()), *([value] if value not in found.get(name, ()) else [])]
    sources = Sources({name: "+".join(sorted(found[name])) for name in sorted(found)})
    sources.entries = tuple(dict.fromkeys(entry for part in parts for entry in part.entries))
    return sources


def _sources(entry: Any, resolve: Resolver | None, within: bool = False) -> Sources:
    """``within``: it is an argument of something whose file counts."""
    places = () if resolve is None else resolve.places(entry)
    if isinstance(entry, functools.partial):
        made = _of_partial(entry, resolve, within or bool(places))
    else:
        made = _where_made(entry)
    return _together([made, *(_where_named(path, name, entry, made) for path, name in places)])


def _of_partial(entry: "functools.partial[Any]", resolve: Resolver | None, within: bool) -> Sources:
    inner = _sources(entry.func, resolve, within)
    behind = [_sources(value, resolve, within) for value in _arguments(entry) if callable(value)]
    given = {"args": [_argument(value, within) for value in entry.args]} | {
        "keywords": {name: _argument(value, within) for name, value in entry.keywords.items()}
    }
    name = getattr(inspect.unwrap(entry.func), "__name__", "function")
    return _together([inner, *behind, Sources({f"arguments of {name}": digest(given)[:DIGITS]})])


def _where_made(entry: Any) -> Sources:
    """By the file that a callable, or its class, is defined in."""
    target = _target(entry)
    path = _source_file(target)
    if path is not None and is_ours(path):
        return Sources()
    if path is None:
        module = getattr(target, "__module__", None) or "builtins"
        return Sources({f"{module}.{target.__qualname__}": python_version()})
    return _from(path, _names(entry, target))


def _where_named(path: Path, name: str, entry: Any, made: Sources) -> Sources:
    """By the file that a config names. The name counts where the callable has not told it: by one function
    several may be made, each with what it was given."""
    if is_ours(path):
        return Sources()
    told = [source.rpartition(":")[2] for source, value in made.items() if value == USED]
    known = any(one == name or one.startswith(f"{name}.") for one in told)
    if isinstance(entry, functools.partial):
        known = known or (str(path) in made.entries and all(map(_is_told, _arguments(entry))))
    found = _from(path, () if known else (name,))
    if library_of(path) is not None:
        found.entries = ()  # it counts by its version
    return found


def _from(path: Path, names: Iterable[str]) -> Sources:
    library = library_of(path)
    found = Sources({f"{path.name}:{name}": USED for name in names})
    found |= _of_library(library) if library else _of_file(path)
    found.entries = (str(path),)
    return found


def _arguments(entry: "functools.partial[Any]") -> list[Any]:
    return [*entry.args, *entry.keywords.values()]


def _is_told(value: Any) -> bool:
    """Whether a key tells an argument of a partial from any other: a value, or a function by its name."""
    if not callable(value):
        return _has_digest(value)
    plain = inspect.isroutine(value) or isinstance(value, type)
    owner = getattr(value, "__self__", None)
    bound = owner is not None and not isinstance(owner, ModuleType | type)
    return plain and not bound and not hasattr(value, "__wrapped__") and "<" not in value.__qualname__


_THIS_TIME = re.compile(rf" at 0x[0-9a-fA-F]+|{PREFIX}\w+(?:\.\w+)*\.")
"""What an object says of itself that another process, or another checkout, says otherwise: its address, and
the module that a user's file is here."""


def _argument(value: Any, within: bool) -> Any:
    """An argument of a partial as a key sees it; of a function its name, since its sources stand beside. An
    object that says where it is in memory counts by the file that makes it, where that counts."""
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)
    if _has_digest(value):
        return value
    return _THIS_TIME.sub("", repr(value)) if within else repr(value)


def _has_digest(value: Any) -> bool:
    try:
        digest(value)
    except (TypeError, ValueError):
        return False
    return True


def _target(entry: Any) -> Any:
    """The function or class that a callable is made of."""
    target = inspect.unwrap(entry)
    return target if isinstance(target, type) or inspect.isroutine(target) else type(target)


def _source_file(target: Any) -> Path | None:
    try:
        file = inspect.getsourcefile(target)
    except TypeError:
        return None  # a builtin
    if file is None or not (os.path.isabs(file) and os.path.isfile(file)):  # it was made of a text
        file = getattr(target, "__globals__", {}).get("__file__")
    return (file_of(file) or Path(file).resolve()) if file else None


def _names(entry: Any, target: Any) -> list[str]:
    """The names that the callable has in its module: two of a file may be made by one function."""
    module = sys.modules.get(getattr(target, "__module__", "") or "")
    named = sorted(name for name, value in vars(module).items() if value is entry) if module else []
    return named or [target.__qualname__]


def _of_file(path: Path) -> dict[str, str]:
    reached = reached_files(path)
    found: dict[str, str] = {}
    for file in sorted(reached.files):
        label = os.path.relpath(file, path.parent) if _is_near(file, path.parent) else str(file)
        found[label] = kept_digest(file)[:DIGITS]
    for library in reached.libraries:
        found |= _of_library(library)
    packages = packages_behind(*sorted(reached.ours)) if reached.ours else ()
    return found | {name: package_digest(name) for name in packages}


def _is_near(file: Path, folder: Path) -> bool:
    """Whether a file lies so that it moves with the folder: below it, or below one of the two above it."""
    above = [folder, *folder.parents][:3]
    return any(file.is_relative_to(entry) for entry in above if entry != Path(entry.anchor))


def _of_library(name: str) -> dict[str, str]:
    return {"python": python_version()} if name == "python" else library_version(name)


def entries_in(identity: Any) -> tuple[str, ...]:
    """The files of all users' functions in a step's identity."""
    return tuple(dict.fromkeys(entry for known in _within(identity, Sources) for entry in known.entries))


def edited_since(identity: Any) -> str | None:
    """The first source of users' functions in a step's identity that is not as it was when the identity was
    made; None where all are. What is gone is told by who loads it."""
    with suppress(OSError):
        for known in _within(identity, Sources):
            now = _together([_from(Path(entry), ()) for entry in known.entries])
            for name, value in now.items():
                if known.get(name, value) != value:
                    return name
    return named_edited_since(identity)


def named_edited_since(identity: Any) -> str | None:
    """As ``edited_since``, of what ``depends_on`` names alone: this may be read at any time until a function
    returns."""
    with suppress(OSError, ConfigError):
        for known in _within(identity, NamedFiles):
            now = named_files(known.names, known.base_dir)
            for name in {**known, **now}:
                if known.get(name) != now.get(name):
                    return name
    return None


def _within(value: Any, kind: type[K]) -> Iterator[K]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _within(entry, kind)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _within(entry, kind)


def observed_files(entries: Iterable[str], since: float = math.inf) -> dict[str, str] | None:
    """What users' code in these files and behind them was seen to read in this process, by path; those below
    the files' own folder relative to it. None where that can't be said. The code has run since a time of the
    monotonic clock; by default, it has ended."""
    paths = [Path(entry) for entry in entries]
    found: dict[str, str] = {}
    try:
        for path in paths:
            found |= read_files(path, connected_files(path), since)
    except (Unknown, OSError):
        return None
    return _labelled(found, _root(paths))


def _labelled(found: Mapping[str, str], root: str) -> dict[str, str] | None:
    """What was read, by names: relative to the functions' own folder below that. Beside them stand the
    folders that the other names depend on, which must be the same another time."""
    working = [path for path in found if path.endswith(os.sep)]
    files = {_label(path, root): value for path, value in sorted(found.items()) if path not in working}
    if any(map(os.path.isabs, files)):
        files[OWN_FOLDER] = root
    if working:
        files[WORKING_FOLDER] = os.path.normpath(working[0])
    return files if len(working) < 2 else None


def first_difference(entries: Iterable[str], files: Mapping[str, str]) -> str | None:
    """The first of these files, and of the folders that their names depend on, that is not as it was; None
    where all are."""
    root = _root([Path(entry) for entry in entries])
    folders = {OWN_FOLDER: root, WORKING_FOLDER: working_folder()}
    return next(
        (
            name
            for name, value in files.items()
            if (folders[name] if name in folders else digest_now(os.path.join(root, name))) != value
        ),
        None,
    )


def connected_files(path: Path) -> frozenset[Path]:
    """Files whose code a function of this one may have to do with: those that it imports, of packages all
    that this process has loaded, and, where its imports are known by its run alone, whatever this process has
    loaded."""
    if library_of(path) is not None:
        return frozenset({path})
    reached = reached_files(path)
    loaded = loaded_files()
    if reached.unknown:
        return reached.files | loaded
    return reached.files | _siblings(reached, loaded)


def _siblings(reached: Reached, loaded: frozenset[Path]) -> frozenset[Path]:
    """Modules of the same packages: one may have changed what another holds, a registry."""
    packages: dict[Path, set[str]] = {}
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        top, dot, _ = name.partition(".")
        if isinstance(file, str) and dot and not is_shared(top):
            packages.setdefault(Path(os.path.realpath(file)), set()).add(top)
    own = {top for file in reached.files for top in packages.get(file, ())}
    return frozenset(file for file in loaded if not own.isdisjoint(packages.get(file, ())))


def _root(paths: list[Path]) -> str:
    return os.path.commonpath([path.parent for path in paths]) if paths else ""


def _label(path: str, root: str) -> str:
    inside = path.startswith(os.path.join(root, "")) and root != os.path.sep
    return os.path.relpath(path, root) if inside else path


def named_files(names: Iterable[str], base_dir: str | Path) -> NamedFiles:
    """Digests of what ``depends_on`` names: files, and all files in folders. Raises ConfigError for what is
    not there."""
    found = NamedFiles()
    found.names, found.base_dir = tuple(names), str(base_dir)
    for name in found.names:
        place = named_path(base_dir, name)
        if not place.exists():
            raise ConfigError(f"depends_on: '{name}' is not there: expected a file or a folder at {place}")
        files = [place] if place.is_file() else sorted(entry for entry in place.rglob("*") if entry.is_file())
        for file in files:
            label = name if place.is_file() else f"{name.rstrip('/')}/{file.relative_to(place).as_posix()}"
            found[label] = kept_digest(file)[:DIGITS]
    return found
