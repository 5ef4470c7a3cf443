"""What a Python file imports: every import statement in it, wherever it stands, and every module named by
text.

A file is parsed once for each content that it has had: what was found is remembered in the project's home,
since parsing all files of the program takes half a second at every start.
"""

import ast
import atexit
import hashlib
import json
import re
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from tasks.store.home import FileUnwritable, home, whole_text

PACKAGES: Final = ("flows", "tasks", "scorers", "metrics")
"""The program's own packages."""
DIGITS: Final = 16
"""Hexadecimal digits of a file's digest: a name for a change, not a protection against forgery."""
_NAMED = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+(?::\w+)?")
_BY_NAME: Final = frozenset({"import_module", "__import__"})
_LISTING: Final = frozenset({"walk_packages", "iter_modules"})
_RUNNING: Final = frozenset({"exec_module", "run_path", "run_module", "exec", "eval"})

_parsing = threading.Lock()
_new: set[str] = set()


@dataclass(frozen=True)
class Import:
    """An import: the module, what is taken from it (it may be modules too), and the dots before it."""

    module: str
    names: tuple[str, ...] = ()
    level: int = 0


@dataclass(frozen=True)
class Imports:
    """All imports of a file. ``named`` are modules of this program that a text of it names, ``lists`` says
    that it imports all modules of a package, ``unknown`` that it imports or runs what only its run can
    say."""

    statements: tuple[Import, ...] = ()
    named: tuple[str, ...] = ()
    lists: bool = False
    unknown: bool = False


def imports_of(text: bytes) -> Imports:
    """The imports of a Python file of this content; none of one that is no Python."""
    content = hashlib.sha256(text).hexdigest()
    found = _known(content)
    if found is None:
        found = _parse(text)
        statements = [[entry.module, list(entry.names), entry.level] for entry in found.statements]
        _parsed_before()[content] = [statements, list(found.named), found.lists, found.unknown]
        _new.add(content)
    return found


def syntax_tree(text: bytes) -> ast.Module:
    """The parsed text of a Python file. Raises what ``ast.parse`` raises for text that is no Python.

    CPython before 3.12 counts the depth of all threads' parsers in one place: of two that parse side by side,
    one may raise SystemError over a tree that is fine. Ours wait for each other; other libraries' do not.
    """
    for _ in range(20):
        with suppress(SystemError), _parsing:
            return ast.parse(text)
    return ast.parse(text)


def _parse(text: bytes) -> Imports:
    try:
        tree = syntax_tree(text)
    except (SyntaxError, ValueError):
        return Imports()
    statements: dict[Import, None] = {}
    named: dict[str, None] = {}
    lists = unknown = False
    for node in _at_run_time(tree):
        if isinstance(node, ast.Import):
            statements |= {Import(alias.name): None for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            statements[Import(node.module or "", names, node.level)] = None
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.fullmatch(node.value):
            named[node.value.partition(":")[0]] = None
        elif isinstance(node, ast.Call):
            literal = _literal_import(node)
            statements |= {literal: None} if literal else {}
            called = _called(node)
            lists |= called in _LISTING
            unknown |= called in _RUNNING | _LISTING or (called in _BY_NAME and literal is None)
    return Imports(tuple(statements), tuple(named), lists, unknown)


def _at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below ``if TYPE_CHECKING:``, which never run."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        unseen = node.orelse if isinstance(node, ast.If) and _type_checking(node.test) else None
        for child in ast.iter_child_nodes(node) if unseen is None else unseen:
            yield child
            waiting.append(child)


def _type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _literal_import(node: ast.Call) -> Import | None:
    """The module of ``import_module("…")`` and of ``__import__("…")``."""
    first = node.args[0] if node.args else None
    if (
        _called(node) not in _BY_NAME
        or not isinstance(first, ast.Constant)
        or not isinstance(first.value, str)
    ):
        return None
    module = first.value.lstrip(".")
    return Import(module, (), len(first.value) - len(module))


def _known(content: str) -> Imports | None:
    """What an earlier process found in a file of this content; None where the memory has nothing usable."""
    match _parsed_before().get(content):
        case [list(statements), list(named), bool(lists), bool(unknown)]:
            with suppress(TypeError, ValueError):
                found = tuple(Import(module, tuple(names), level) for module, names, level in statements)
                return Imports(found, tuple(named), lists, unknown)
    return None


def remembered(name: str) -> Any:
    """What ``remember`` kept under a name, in this process or an earlier one; None where there is nothing."""
    return _parsed_before().get(name)


def remember(name: str, value: Any) -> None:
    """Keeps a JSON value, whose name says what it holds for, for later processes."""
    _parsed_before()[name] = value
    _new.add(name)


@cache
def _parsed_before() -> dict[str, Any]:
    """What earlier processes found. Keyed by content, so that nothing in it can be out of date; a file that
    can't be read is as good as none."""
    atexit.register(_write)
    try:
        found = json.loads(_memory().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write() -> None:
    if not _new:
        return
    with suppress(FileUnwritable), whole_text(_memory()) as file:
        file.write(json.dumps(_parsed_before()))


def _memory() -> Path:
    # Another Python draws another tree from the same text; the name changes with what is kept.
    return home() / f"imports-{sys.version_info.major}.{sys.version_info.minor}.json"
