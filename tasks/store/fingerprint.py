"""Fingerprints of code: a step is computed again when code that decides its rows has changed, and only then.

A fingerprint names sources and their digests, so that a change can be named too. Of this project's code it
holds whole files: the module of a class or function and all that it imports, up to *seams*. A seam is a
module that only chooses or carries, and whose choice is named in the step's identity by the chosen class's
own fingerprint; the closure stops there. Users' code counts function by function
(``tasks.store.definitions``). Installed packages and the standard library count by version and are never
followed.
"""

import ast
import atexit
import functools
import hashlib
import inspect
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tasks.store.definitions import reached_definitions, syntax_tree, without_docstrings
from tasks.store.home import PROJECT, home, private_folder
from tasks.store.keys import digest

Code = Callable[..., Any] | ModuleType | str
Sources = dict[str, str]
"""Name of a source (a file, a definition in a user's file, an installed package) → its digest or version."""

PACKAGES: Final = ("flows", "tasks", "scorers", "metrics")
SEAMS: Final = (
    # What was chosen behind these is in the step's identity, by its own class or function.
    "tasks/benchmarks/open.py",
    "tasks/models/connection.py",
    "tasks/models/replay.py",
    "tasks/models/demo/",
    "tasks/usercode/",
    "scorers/factory.py",
    "scorers/agreement.py",
    "scorers/arena.py",
    "scorers/ensemble.py",
    "scorers/execution.py",
    "scorers/judge/scorer.py",
    "scorers/process_results.py",
    "scorers/reward.py",
    "scorers/user.py",
    # How fast is asked, where a function runs that may never end, how artifacts are kept and how a run is
    # watched changes no row.
    "metrics/patterns.py",
    "tasks/caching.py",
    "tasks/rows/execution.py",
    "tasks/models/answers/first.py",
    "tasks/models/limits.py",
    "tasks/workers.py",
    "tasks/reporting/",
    "tasks/running.py",
    "tasks/sandboxes/",
    "tasks/server.py",
    "tasks/serving/",
    "tasks/store/claims.py",
    "tasks/store/definitions.py",
    "tasks/store/fingerprint.py",
    "tasks/store/home.py",
    "tasks/store/storage.py",
)
"""Modules (folders end in a slash) where the closure of a stage or of a chosen class stops, unless it starts
there."""
DIGITS: Final = 16
"""Hexadecimal digits of a source's digest: a name for a change, not a protection against forgery."""

_new: set[str] = set()
_DEFINITIONS: dict[str, Mapping[str, str]] = {}
_OURS = tuple(f"{PROJECT / name}{os.sep}" for name in PACKAGES)


def fingerprint(*code: Code) -> str:
    """Digest of the sources behind functions, classes, modules or names of the project's own modules.

    64 hexadecimal digits, whatever the order of the arguments.
    """
    return digest(sources_of(*code))


def sources_of(*code: Code) -> Sources:
    """The sources behind functions, classes, modules or names of the project's own modules, sorted by name.

    A ``functools.partial`` counts by its function and its arguments, a wrapped function by what it wraps. A
    callable without a source file (a builtin, an interactive definition) counts by its qualified name.
    """
    found: Sources = {}
    for entry in code:
        found.update(_sources(entry))
    return dict(sorted(found.items()))


def _sources(entry: Any) -> Mapping[str, str]:
    if isinstance(entry, functools.partial):
        keywords = {name: _argument(value) for name, value in entry.keywords.items()}
        given = {"args": [_argument(value) for value in entry.args], "keywords": keywords}
        name = getattr(inspect.unwrap(entry.func), "__name__", "function")
        return {**_sources(entry.func), f"arguments of {name}": digest(given)[:DIGITS]}
    path = _source_path(entry)
    if path is None:
        name = f"{getattr(entry, '__module__', '')}.{getattr(entry, '__qualname__', entry)}"
        return {name: _python()}
    if str(path).startswith(_OURS):
        return {_label(file): _source(file).digest for file in closure(path)}
    if package := _installed(path):
        return {package: _version(package)}
    return _of_user(entry, path)


def _argument(value: Any) -> Any:
    """An argument of a partial as a key sees it: a function by its sources, what JSON can't hold by its
    text."""
    if callable(value):
        return dict(_sources(value))
    try:
        digest(value)
    except (TypeError, ValueError):
        return repr(value)
    return value


def _of_user(entry: Any, path: Path) -> Sources:
    target = entry if isinstance(entry, ModuleType | type) or inspect.isroutine(entry) else type(entry)
    unwrapped = inspect.unwrap(target) if callable(target) else target
    name = None if isinstance(unwrapped, ModuleType) else unwrapped.__qualname__.partition(".")[0]
    found: Sources = {}
    for source, text in reached_definitions(path, name).items():
        if text is not None:
            found[source] = hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
        elif source.partition(".")[0] in PACKAGES:
            ours = _find_in_project(source)
            found |= {} if ours is None else {_label(file): _source(file).digest for file in closure(ours)}
        else:
            package = source.partition(".")[0]
            found["python" if package in sys.stdlib_module_names else package] = _version(package)
    return found


@lru_cache(maxsize=256)
def closure(path: Path) -> frozenset[Path]:
    """The file of this project and every file that it imports, directly or indirectly, short of seams."""
    found: set[Path] = set()
    start = path.resolve()
    waiting = [start]
    while waiting:
        file = waiting.pop()
        if file not in found and (file == start or not is_seam(file)):
            found.add(file)
            waiting.extend(_imported_files(file))
    return frozenset(found)


def is_seam(path: Path) -> bool:
    """Whether closures stop at a file of the project."""
    label = _label(path)
    return any(label == seam or (seam.endswith("/") and label.startswith(seam)) for seam in SEAMS)


@cache
def _imported_files(path: Path) -> tuple[Path, ...]:
    """Our modules name each other in full. A package's ``__init__`` is not followed for its submodules: it
    would tie every module to all its siblings."""
    return tuple(file for name in _source(path).names if (file := _find_in_project(name)))


@dataclass(frozen=True)
class _Source:
    """Digest of a Python file's syntax tree without docstrings (of its bytes if it does not parse), and the
    names that it imports."""

    digest: str
    names: tuple[str, ...]
    definitions: Mapping[str, str]
    """Top-level definition → digest: names what changed inside the file."""


@cache
def _source(path: Path) -> _Source:
    """Of a file of ours: what it runs, a process has imported before, so it is read once."""
    text = path.read_bytes()
    package = "/".join(path.relative_to(PROJECT).parts[:-1])
    content = hashlib.sha256(f"{package}\0".encode() + text).hexdigest()
    found = _remembered(content)
    if found is None:
        found = _parse(text, path)
        _parsed_before()[content] = [found.digest, list(found.names), dict(found.definitions)]
        _new.add(content)
    _DEFINITIONS[found.digest] = found.definitions
    return found


def _remembered(content: str) -> _Source | None:
    """What an earlier process found in a file of this content; None where the memory has nothing usable."""
    match _parsed_before().get(content):
        case [str(whole), list(names), dict(definitions)]:
            return _Source(whole, tuple(names), definitions)
    return None


def _parse(text: bytes, path: Path) -> _Source:
    try:
        tree = syntax_tree(text)
    except SyntaxError:
        return _Source(hashlib.sha256(text).hexdigest()[:DIGITS], (), {})
    names: dict[str, None] = {}
    for node in _at_run_time(tree):
        names.update(dict.fromkeys(_imported_names(node, path)))
    without_docstrings(tree)
    whole = hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:DIGITS]
    return _Source(whole, tuple(names), _definitions(tree))


def _at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below ``if TYPE_CHECKING:``, which never run."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
            yield from _at_run_time(node)


def definitions_by_digest(file_digest: str) -> Mapping[str, str] | None:
    """The digests of the definitions in a file of ours with that digest; None for one not read in this
    process."""
    return _DEFINITIONS.get(file_digest)


def _definitions(tree: ast.Module) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        else:
            names = ["a statement of the module"]
        text = hashlib.sha256(ast.dump(node).encode()).hexdigest()
        found |= {
            name: hashlib.sha256(f"{found.get(name)}{text}".encode()).hexdigest()[:DIGITS] for name in names
        }
    return found


@cache
def _parsed_before() -> dict[str, Any]:
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
        private_folder(target.parent)
        temporary.write_text(json.dumps(_parsed_before()), encoding="utf-8")
        temporary.replace(target)


def _memory() -> Path:
    # Another Python draws another tree from the same text; the name changes with what is kept.
    return home() / f"parsed-{sys.version_info.major}.{sys.version_info.minor}.json"


def _imported_names(node: ast.AST, path: Path) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in PACKAGES)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            inside = path.resolve().parents[node.level - 1].relative_to(PROJECT).parts
            base = ".".join([*inside, base] if base else inside)
        if base.partition(".")[0] in PACKAGES:
            yield base
            # ``from package import module`` names a module, ``from module import name`` does not: both are
            # looked for.
            yield from (f"{base}.{alias.name}" for alias in node.names)


@lru_cache(maxsize=8192)
def _find_in_project(name: str) -> Path | None:
    relative = Path(*name.split("."))
    for candidate in (PROJECT / relative.with_suffix(".py"), PROJECT / relative / "__init__.py"):
        if candidate.is_file():
            return candidate.resolve()
    return None


def _source_path(entry: Code) -> Path | None:
    if isinstance(entry, str):
        found = _find_in_project(entry)
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


@cache
def _library_folders() -> tuple[tuple[str, bool], ...]:
    """Folders of installed packages and of the standard library (True), the deeper ones first."""
    paths = sysconfig.get_paths()
    found = {
        (str(Path(paths[name]).resolve()) + os.sep, name == "stdlib")
        for name in ("purelib", "platlib", "stdlib")
    }
    return tuple(sorted(found, key=lambda entry: -len(entry[0])))


def _installed(path: Path) -> str | None:
    """The package that a file outside the project belongs to, where it was installed; "python" for the
    standard library."""
    for folder, standard in _library_folders():
        if str(path).startswith(folder):
            return "python" if standard else Path(str(path)[len(folder) :]).parts[0].removesuffix(".py")
    return None


@cache
def _version(package: str) -> str:
    """The version of an importable package; of the standard library it is Python's."""
    if package == "python" or package in sys.stdlib_module_names:
        return _python()
    from importlib.metadata import PackageNotFoundError, packages_distributions, version

    try:
        return version(package)
    except PackageNotFoundError:
        names = packages_distributions().get(package, [])
    return " ".join(f"{name} {version(name)}" for name in sorted(set(names))) or _uninstalled(package)


def _uninstalled(package: str) -> str:
    """Digest of an importable package that no installer knows (a folder on PYTHONPATH)."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return "not installed"
    origin = Path(spec.origin)
    files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    total = hashlib.sha256()
    for file in files:
        total.update(file.relative_to(origin.parent).as_posix().encode() + b"\0" + file.read_bytes())
    return total.hexdigest()[:DIGITS]


def _python() -> str:
    return f"Python {sys.version_info.major}.{sys.version_info.minor}"


def _label(path: Path) -> str:
    """A name that does not depend on where the project lies."""
    return path.relative_to(PROJECT).as_posix()
