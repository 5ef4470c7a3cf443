"""What a function of a definition takes, read from its source: validation must not import what may not be
installed."""

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.reading import FunctionName

MAKES_NAMES = frozenset({"globals", "locals", "vars", "setattr", "exec", "__getattr__"})


def check_function(name: FunctionName, where: str) -> None:
    """Raises ConfigError where the function's file has no such name; an installed module is not looked
    into."""
    source, _, function = name.rpartition(":")
    names = _names(Path(source)) if source.endswith(".py") else None
    if names is not None and function not in names:
        raise ConfigError(f"{where}: !function names '{function}', which {source} does not define")


def is_passthrough(name: FunctionName) -> bool:
    """Whether the function gives back its only argument: a metric whose work is all in its aggregation."""
    source, _, function = name.rpartition(":")
    definition = _functions(Path(source)).get(function) if source.endswith(".py") else None
    if definition is None or len(definition.args.args) != 1:
        return False
    body = [
        line
        for line in definition.body
        if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
    ]
    last = body[-1] if body else None
    return (
        len(body) == 1
        and isinstance(last, ast.Return)
        and isinstance(last.value, ast.Name)
        and last.value.id == definition.args.args[0].arg
    )


def registered_filter(name: str, sources: Iterable[Path]) -> FunctionName | None:
    """The class that one of the files enters into the harness's registry under ``name``:
    ``@register_filter("name")``."""
    for path in sources:
        for node in _tree(path).body:
            if isinstance(node, ast.ClassDef) and name in _registered_as(node):
                return FunctionName(f"{path}:{node.name}")
    return None


def _registered_as(node: ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else None
        named = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
        if isinstance(decorator, ast.Call) and named == "register_filter":
            yield from (str(arg.value) for arg in decorator.args if isinstance(arg, ast.Constant))


@lru_cache(maxsize=2048)
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{path} can't be read as Python: {error}") from error


@lru_cache(maxsize=2048)
def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in _tree(path).body if isinstance(node, ast.FunctionDef)}


@lru_cache(maxsize=2048)
def _names(path: Path) -> frozenset[str] | None:
    """Every name the module may hold; None where that shows only when it runs (names made in a loop, star
    imports)."""
    found: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Name) and node.id in MAKES_NAMES:
            return None
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            return None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return frozenset(found)
