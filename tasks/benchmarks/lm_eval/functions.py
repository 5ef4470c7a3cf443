"""Reads what a user's function uses of a row, or of the dataset.

Functions are followed as syntax trees through assignments, loops and calls. They are imported for that, so
that constants, partials and functions of other files are what they are.
"""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

from tasks.benchmarks.lm_eval.shapes import (
    Constant,
    Names,
    Shape,
    combined,
    compared,
    method,
    plain,
    subscripted,
)
from tasks.store.imports import syntax_tree

DEPTH: Final = 6
"""Calls within a file that are followed."""

ROW, DATASET = "row", "dataset"
OWN: Final = ("nightjar_user_", "lm_eval.tasks.")
"""Modules whose functions are followed into."""


def _definition(function: Callable[..., Any]) -> ast.AST | None:
    """Where a function is defined, in its file's syntax tree."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_filename.endswith(".py"):
        return None
    for node in ast.walk(_module(Path(code.co_filename))):
        if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == code.co_firstlineno:
                return node
        elif (
            isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
        ):
            return node
    return None


@lru_cache(maxsize=512)
def _module(path: Path) -> ast.Module:
    try:
        return syntax_tree(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


class _Rows:
    """The dataset that ``process_docs`` is given."""

    def __init__(self, row: Shape) -> None:
        self.row = row


@dataclass(frozen=True)
class _Call:
    """What a function is called with."""

    arguments: Sequence[Any]
    keywords: Names

    def then(self, other: "_Call") -> "_Call":
        """A partial's arguments, and those that it is called with."""
        return _Call([*self.arguments, *other.arguments], {**self.keywords, **other.keywords})


@dataclass(frozen=True)
class _Partial:
    """A function with some of its arguments, and the names around it."""

    function: ast.expr
    call: _Call
    names: Names


class FunctionReader:
    """Follows a user's function from its first parameter. The function is imported, and so are the constants
    and the other functions that it mentions."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._bound = _Call([], {})
        while isinstance(function, functools.partial):
            keywords = {name: Constant(value) for name, value in function.keywords.items()}
            self._bound = _Call([Constant(value) for value in function.args], keywords).then(self._bound)
            function = function.func
        function = inspect.unwrap(function)
        self._node = _definition(function)
        self._globals: Mapping[str, Any] = getattr(function, "__globals__", {})
        self._cells: Names = {}
        for name, cell in zip(
            getattr(getattr(function, "__code__", None), "co_freevars", ()),
            getattr(function, "__closure__", None) or (),
            strict=True,
        ):
            with suppress(ValueError):  # a cell that is empty still
                self._cells[name] = cell.cell_contents

    def read(self, given: str, row: Shape) -> None:
        """Adds what the function uses of the row, being given a row or the dataset."""
        self.call(_Call([_Rows(row) if given == DATASET else row], {}), 0)

    def call(self, call: "_Call", depth: int) -> Any:
        """What the function returns for a call."""
        return None if self._node is None else self._run(self._node, self._bound.then(call), {}, depth)

    def _outside(self, name: str) -> Any:
        """What a name of the module, or of a function around this one, stands for."""
        found = self._cells.get(name, self._globals.get(name))
        if (constant := _constant(found)) is not None:
            return constant
        return found if isinstance(found, FunctionType | functools.partial | ModuleType) else None

    def _run(self, node: ast.AST, call: "_Call", names: Names, depth: int) -> Any:
        """Reads a function's body with its parameters bound."""
        if depth > DEPTH or not isinstance(node, ast.FunctionDef | ast.Lambda):
            return None
        given = node.args
        parameters = [argument.arg for argument in (*given.posonlyargs, *given.args)]
        values = {one.arg: None for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        for name, default in zip(reversed(parameters), reversed(given.defaults), strict=False):
            values[name] = self.value(default, names, depth)
        scope = {**names, **values, **call.keywords, **dict(zip(parameters, call.arguments, strict=False))}
        if isinstance(node, ast.Lambda):
            return self.value(node.body, scope, depth)
        return self._body(node.body, scope, depth)

    def _apply(self, function: ast.expr, call: "_Call", names: Names, depth: int) -> Any:
        """Calls what an expression names: a function, a lambda, a partial of one, or what a call returns."""
        if depth > DEPTH:
            return None
        if isinstance(function, ast.Lambda):
            return self._run(function, call, names, depth + 1)
        if isinstance(function, ast.Name):
            inner = names.get(function.id)
            if isinstance(inner, ast.FunctionDef):
                return self._run(inner, call, names, depth + 1)
            if isinstance(inner, _Partial):
                return self._apply(inner.function, inner.call.then(call), inner.names, depth + 1)
            outside = self._outside(function.id)
            if function.id not in names and isinstance(outside, FunctionType | functools.partial):
                return FunctionReader(outside).call(call, depth + 1)
        if isinstance(function, ast.Call):
            partial = self._partial(function, names, depth)
            if partial is not None:
                return self._apply(partial.function, partial.call.then(call), names, depth + 1)
            made = self.value(function, names, depth)
            if isinstance(made, _Partial):
                return self._apply(made.function, made.call.then(call), made.names, depth + 1)
        return None

    def _partial(self, node: ast.Call, names: Names, depth: int) -> "_Partial | None":
        called = node.func
        named = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
        if named != "partial" or not node.args:
            return None
        return _Partial(node.args[0], self._call_of(node, names, depth, 1), names)

    def _call_of(self, node: ast.Call, names: Names, depth: int, skip: int = 0) -> "_Call":
        return _Call(
            [self.value(one, names, depth) for one in node.args[skip:]],
            {one.arg: self.value(one.value, names, depth) for one in node.keywords if one.arg is not None},
        )

    def _body(self, body: Sequence[ast.stmt], names: Names, depth: int) -> Any:
        returned: Any = None
        for node in body:
            if isinstance(node, ast.FunctionDef):
                names[node.name] = node
            elif isinstance(node, ast.Assign):
                value = self.value(node.value, names, depth)
                for target in node.targets:
                    self._bind(target, value, names, depth)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign):
                value = self.value(node.value, names, depth) if node.value is not None else None
                if isinstance(node, ast.AnnAssign):
                    self._bind(node.target, value, names, depth)
            elif isinstance(node, ast.For):
                self._bind(node.target, element_of(self.value(node.iter, names, depth)), names, depth)
                returned = self._body([*node.body, *node.orelse], names, depth) or returned
            elif isinstance(node, ast.If | ast.While):
                self.value(node.test, names, depth)
                returned = self._body([*node.body, *node.orelse], names, depth) or returned
            elif isinstance(node, ast.With):
                returned = self._body(node.body, names, depth) or returned
            elif isinstance(node, ast.Try):
                inner = [
                    *node.body,
                    *(one for handler in node.handlers for one in handler.body),
                    *node.orelse,
                ]
                returned = self._body([*inner, *node.finalbody], names, depth) or returned
            elif isinstance(node, ast.Return):
                value = self.value(node.value, names, depth) if node.value is not None else None
                returned = value if value is not None else returned
            elif isinstance(node, ast.Expr):
                self.value(node.value, names, depth)
            elif isinstance(node, ast.Assert):
                self.value(node.test, names, depth)
        return returned

    def _bind(self, target: ast.expr, value: Any, names: Names, depth: int) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, tuple) else ()
            for at, one in enumerate(target.elts):
                self._bind(one, parts[at] if at < len(parts) else None, names, depth)
        elif isinstance(target, ast.Subscript):
            self.value(target.slice, names, depth)

    def value(self, node: ast.expr, names: Names, depth: int) -> Any:
        """What an expression stands for."""
        if isinstance(node, ast.Constant):
            return Constant(node.value)
        if isinstance(node, ast.Name):
            found = names[node.id] if node.id in names else self._outside(node.id)
            if isinstance(found, FunctionType | functools.partial):
                return _Partial(node, _Call([], {}), {})
            if isinstance(found, ast.FunctionDef):
                return _Partial(node, _Call([], {}), names)
            return found
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            parts = [self.value(one, names, depth) for one in node.elts]
            return Constant([plain(one) for one in parts]) if parts else None
        if isinstance(node, ast.Dict):
            keys = [self.value(key, names, depth) for key in node.keys if key is not None]
            for value in node.values:
                self.value(value, names, depth)
            hashable = [plain(key) for key in keys if isinstance(plain(key), str | int | float)]
            return Constant(dict.fromkeys(hashable))
        if isinstance(node, ast.Subscript):
            base = self.value(node.value, names, depth)
            if isinstance(node.slice, ast.Slice):
                return base
            key = self.value(node.slice, names, depth)
            if isinstance(base, _Rows):
                return base.row.key(key.value) if isinstance(plain(key), str) else base.row
            return subscripted(base, key)
        if isinstance(node, ast.Call):
            return self._called(node, names, depth)
        if isinstance(node, ast.Attribute):
            base = self.value(node.value, names, depth)
            return _constant(getattr(base, node.attr, None)) if isinstance(base, ModuleType) else None
        if isinstance(node, ast.Compare):
            left = self.value(node.left, names, depth)
            for operator, other in zip(node.ops, node.comparators, strict=True):
                compared(left, type(operator).__name__.lower(), self.value(other, names, depth))
            return None
        if isinstance(node, ast.JoinedStr):
            return self._joined(node, names, depth)
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left, names, depth), self.value(node.right, names, depth)
            if isinstance(plain(left), str) and isinstance(plain(right), str):
                return Constant(left.value + right.value)
            return combined(left, right, isinstance(left, Constant) and isinstance(left.value, str))
        if isinstance(node, ast.IfExp | ast.BoolOp):
            parts = [node.test, node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
            values = [self.value(one, names, depth) for one in parts]
            shown = values[1:] if isinstance(node, ast.IfExp) else values
            return next((value for value in shown if isinstance(value, Shape)), None)
        if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
            return self._comprehension(node, names, depth)
        if isinstance(node, ast.Lambda):
            return None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child, names, depth)
        return None

    def _joined(self, node: ast.JoinedStr, names: Names, depth: int) -> Any:
        parts = [
            self.value(part.value if isinstance(part, ast.FormattedValue) else part, names, depth)
            for part in node.values
        ]
        if all(isinstance(part, Constant) for part in parts):
            return Constant("".join(str(part.value) for part in parts))
        return None

    def _comprehension(self, node: Any, names: Names, depth: int) -> Any:
        scope = dict(names)
        over: Any = None
        for generator in node.generators:
            over = self.value(generator.iter, scope, depth)
            self._bind(generator.target, element_of(over), scope, depth)
            for test in generator.ifs:
                self.value(test, scope, depth)
        if isinstance(node, ast.DictComp):
            self.value(node.key, scope, depth)
            self.value(node.value, scope, depth)
            return None
        made = self.value(node.elt, scope, depth)
        return over if made is not None and made is element_of(over) else None

    def _called(self, node: ast.Call, names: Names, depth: int) -> Any:
        if (partial := self._partial(node, names, depth)) is not None:
            return partial
        call = self._call_of(node, names, depth)
        arguments = call.arguments
        first = arguments[0] if arguments else None
        if isinstance(node.func, ast.Attribute):
            base = self.value(node.func.value, names, depth)
            if isinstance(base, _Rows):
                function = node.args[0] if node.args else _keyword(node, "function")
                if node.func.attr in ("map", "filter") and function is not None:
                    self._apply(
                        function, _Call([base.row], _fn_kwargs(node, self, names, depth)), names, depth
                    )
                return base
            if node.func.attr in ("loads", "literal_eval") and isinstance(first, Shape):
                return first.read()
            if node.func.attr in ("sub", "findall", "search", "match", "split") and len(arguments) > 1:
                last = arguments[-1]
                if isinstance(last, Shape) and not isinstance(base, Shape):
                    last.note("text")
            if node.func.attr == "join" and isinstance(first, Shape):
                first.item().note("text")
            if isinstance(base, ModuleType):
                function = getattr(base, node.func.attr, None)
                if isinstance(function, FunctionType) and base.__name__.startswith(OWN):
                    return FunctionReader(function).call(call, depth + 1)
            return method(base, node.func.attr, arguments)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("eval", "literal_eval") and isinstance(first, Shape):
            return first.read()
        if name in ("int", "float") and isinstance(first, Shape):
            first.note("number")
            return None
        if name == "str":
            return None
        if name in ("list", "sorted", "tuple", "reversed", "iter", "dict", "set"):
            if isinstance(first, Shape) and name in ("list", "sorted", "reversed"):
                first.note("list")
            return first
        if name == "enumerate":
            return ("enumerated", first)
        if name == "zip":
            return ("zipped", *arguments)
        if name == "chr" or name == "range":
            return None
        if name in ("len", "print", "isinstance"):
            return None
        return self._apply(node.func, call, names, depth)


PLAIN: Final = (str, int, float, list, tuple, dict, set, frozenset)


def _constant(value: Any) -> Constant | None:
    return Constant(value) if isinstance(value, PLAIN) else None


def _keyword(node: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in node.keywords if one.arg == name), None)


def _fn_kwargs(node: ast.Call, reader: FunctionReader, names: Names, depth: int) -> Names:
    given = _keyword(node, "fn_kwargs")
    if not isinstance(given, ast.Dict):
        return {}
    pairs = zip(given.keys, given.values, strict=True)
    return {
        key.value: reader.value(value, names, depth)
        for key, value in pairs
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def element_of(value: Any) -> Any:
    """What a loop over a value binds."""
    if isinstance(value, _Rows):
        return value.row
    if isinstance(value, Shape):
        return value.item()
    if isinstance(value, tuple) and value and value[0] == "enumerated":
        return (None, element_of(value[1]))
    if isinstance(value, tuple) and value and value[0] == "zipped":
        return tuple(element_of(one) for one in value[1:])
    return None
