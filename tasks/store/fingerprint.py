"""Fingerprints of code: a step is computed again when what it runs has changed, and only then.

A fingerprint covers the normalised source (syntax tree without comments, docstrings and positions) of a
module and of everything it imports, statically, from the project or from the folder of the user's file.
Installed libraries are not followed: metrics declare the versions that matter to them.
"""

import ast
import atexit
import hashlib
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tasks.store.home import PROJECT, home

_parsing = threading.Lock()
_new: set[str] = set()
PACKAGES = ("flows", "tasks", "scorers", "metrics")
_OURS = tuple(f"{PROJECT / name}{os.sep}" for name in PACKAGES)


def fingerprint(*code: Callable[..., Any] | ModuleType | str) -> str:
    """Digest of the source behind functions, classes, modules or names of the project's own modules.

    64 hexadecimal digits, whatever the order of the arguments. A callable without a source file (a builtin,
    an interactive definition) counts by its qualified name.
    """
    parts: set[str] = set()
    for entry in code:
        path = _source_path(entry)
        if path is None:
            parts.add(f"{getattr(entry, '__module__', '')}.{getattr(entry, '__qualname__', entry)}")
        else:
            parts.update(f"{_label(file)} {_source(file).digest}" for file in closure(path))
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()


def closure(path: Path) -> frozenset[Path]:
    """The file and every file of the project, or of the file's own folder, that it imports directly or
    indirectly."""
    found: set[Path] = set()
    waiting = [path.resolve()]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting.extend(_imported_files(file))
    return frozenset(found)


def _imported_files(path: Path) -> tuple[Path, ...]:
    if str(path).startswith(_OURS):
        return _imported_by_ours(path)
    return tuple(file for name in _source(path).names if (file := _find(name, path.parent)))


@cache
def _imported_by_ours(path: Path) -> tuple[Path, ...]:
    """As ``_imported_files``; our modules name each other in full."""
    ours = (name for name in _source(path).names if name.partition(".")[0] in PACKAGES)
    return tuple(file for name in ours if (file := _find_in_project(name)))


@dataclass(frozen=True)
class _Source:
    """Digest of a Python file's syntax tree without docstrings (of its bytes if it does not parse), and the
    names that it imports."""

    digest: str
    names: tuple[str, ...]


def _source(path: Path) -> _Source:
    """A user's file may be edited while the process lives; what it runs of ours it has imported before."""
    return _source_of_ours(path) if str(path).startswith(_OURS) else _source_now(path)


@cache
def _source_of_ours(path: Path) -> _Source:
    return _source_now(path)


def _source_now(path: Path) -> _Source:
    stat = path.stat()
    # One parse at a time: CPython's parser loses count of its recursion when threads parse side by side,
    # and raises.
    with _parsing:
        return _read_source(path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4096)
def _read_source(path: Path, _mtime_ns: int, _size: int) -> _Source:
    text = path.read_bytes()
    package = "/".join(path.relative_to(PROJECT).parts[:-1]) if path.is_relative_to(PROJECT) else ""
    known = _parsed_before()
    content = hashlib.sha256(f"{package}\0".encode() + text).hexdigest()
    if content not in known:
        parsed = _parse(text, path)
        known[content] = [parsed.digest, *parsed.names]
        _new.add(content)
    digest, *names = known[content]
    return _Source(digest, tuple(names))


def _parse(text: bytes, path: Path) -> _Source:
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return _Source(hashlib.sha256(text).hexdigest(), ())
    names: dict[str, None] = {}
    for node in ast.walk(tree):
        names.update(dict.fromkeys(_imported_names(node, path)))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = _without_docstrings(node.body)
    return _Source(hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(names))


@cache
def _parsed_before() -> dict[str, list[str]]:
    """What earlier processes found in files of the same content: half a second of parsing at every start.

    Keyed by content, so that nothing in it can be out of date; a file that can't be read is as good as none.
    """
    atexit.register(_remember)
    try:
        found = json.loads(_memory().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember() -> None:
    if not _new:
        return
    target = _memory()
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    with suppress(OSError):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(_parsed_before()), encoding="utf-8")
        temporary.replace(target)


def _memory() -> Path:
    # Another Python draws another tree from the same text.
    return home() / f"sources-{sys.version_info.major}.{sys.version_info.minor}.json"


def _imported_names(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = path.resolve().parents[node.level - 1]
            inside = package.relative_to(PROJECT).parts if package.is_relative_to(PROJECT) else ()
            base = ".".join([*inside, base] if base else inside)
        yield base
        # ``from package import module`` names a module, ``from module import name`` does not: both are
        # looked for.
        yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)


def _find(name: str, folder: Path) -> Path | None:
    """The file of a module of the project or of the user's folder; None for anything installed.

    A package's ``__init__`` is not followed for its submodules: it would tie every module to all its
    siblings.
    """
    if name.partition(".")[0] in PACKAGES:
        return _find_in_project(name)
    return _module_file(name, folder)


@lru_cache(maxsize=8192)
def _find_in_project(name: str) -> Path | None:
    return _module_file(name, PROJECT)


def _module_file(name: str, folder: Path) -> Path | None:
    relative = Path(*name.split(".")) if name else Path()
    for candidate in (folder / relative.with_suffix(".py"), folder / relative / "__init__.py"):
        if name and candidate.is_file():
            return candidate.resolve()
    return None


def _without_docstrings(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    if (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Constant)
        and isinstance(first.value.value, str)
    ):
        return body[1:]
    return body


def _source_path(entry: Callable[..., Any] | ModuleType | str) -> Path | None:
    if isinstance(entry, str):
        found = _find(entry, PROJECT)
        if found is None:
            raise LookupError(f"{entry} is not a module of this project")
        return found
    try:
        target = inspect.unwrap(entry) if callable(entry) else entry
        if not isinstance(target, ModuleType | type) and not inspect.isroutine(target):
            target = type(target)
        return Path(inspect.getsourcefile(target) or "").resolve() if inspect.getsourcefile(target) else None
    except TypeError:
        return None


def _label(path: Path) -> str:
    """A name that does not depend on where the project or the user's folder lies."""
    return path.relative_to(PROJECT).as_posix() if path.is_relative_to(PROJECT) else path.name
