"""Which definitions of a user's files decide what one function does.

A user keeps several metrics and filters in one file. From the one that is used this module follows the names
that it mentions, through the file and through the files beside it that it imports. Where names can't be
followed (star imports, ``globals()``, ``exec``, state of the module that functions change) the whole file
counts, and with it all that it imports.
"""

import ast
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

_DYNAMIC = frozenset({"eval", "exec", "globals", "locals", "vars", "__import__", "import_module"})
_CHANGING = frozenset(
    {
        "add",
        "append",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "seed",
        "setdefault",
    }
    | {"shuffle", "update"}
)

_parsing = threading.Lock()

Reached = Mapping[str, str | None]
"""``file.py:name`` → normalised source, ``file.py`` for a whole file; an imported module's name → None."""


def reached_definitions(path: Path, name: str | None) -> Reached:
    """All that the definition ``name`` of the file reaches within the file's folder; None: the whole file.

    Modules from elsewhere are named with None for the caller to look up.
    """
    follower = _Follower(path.resolve().parent, {})
    follower.follow(path.resolve(), name)
    return dict(sorted(follower.found.items()))


def imported_files(path: Path) -> frozenset[Path]:
    """The file and all files of its folder that it imports, directly or indirectly."""
    follower = _Follower(path.resolve().parent, {})
    follower.follow(path.resolve(), None)
    return frozenset(follower.files)


def syntax_tree(text: bytes) -> ast.Module:
    """The parsed text of a Python file. Raises what ``ast.parse`` raises for text that is no Python.

    CPython before 3.12 counts the depth of all threads' parsers in one place: of two that parse side by side,
    one may raise SystemError over a tree that is fine. Ours wait for each other; other libraries' do not.
    """
    for _ in range(20):
        with suppress(SystemError), _parsing:
            return ast.parse(text)
    return ast.parse(text)


@dataclass(frozen=True)
class _Imported:
    """What a name stands for that an import binds: a module (``attribute`` None) or something in it."""

    module: str
    attribute: str | None
    level: int


@dataclass
class _File:
    """A parsed file: definitions by name, what imports bind, and statements that always run."""

    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, _Imported] = field(default_factory=dict)
    inner_imports: list[_Imported] = field(default_factory=list)
    statements: list[ast.stmt] = field(default_factory=list)
    whole: bool = False
    text: str = ""
    changed: frozenset[str] = frozenset()
    """Module-level names whose value functions of the file change."""


@dataclass
class _Follower:
    folder: Path
    found: dict[str, str | None]
    files: set[Path] = field(default_factory=set)

    def follow(self, path: Path, name: str | None) -> None:
        """Adds the definition and all that it reaches."""
        self.files.add(path)
        stat = path.stat()
        file = _read(path, stat.st_mtime_ns, stat.st_size)
        label = self._label(path)
        if file.whole or name is None or (name not in file.definitions and name not in file.imports):
            self._whole(path, file)
            return
        waiting = [name, ""]  # "": the statements that run whenever the file is imported
        while waiting:
            current = waiting.pop()
            place = f"{label}:{current}" if current else f"{label}:the module's statements"
            if place in self.found or label in self.found:
                continue
            if current in file.imports and current not in file.definitions:
                self._imported(path, file.imports[current], None)
                continue
            if current in file.changed:
                self._whole(path, file)
                return
            nodes = file.statements if not current else file.definitions[current]
            if any(_is_dynamic(node, file.imports) for node in nodes):
                self._whole(path, file)
                return
            if nodes:
                self.found[place] = "\n".join(_normalised(node) for node in nodes)
            for node in nodes:
                for mentioned, attribute in _names_in(node):
                    if mentioned in file.definitions:
                        waiting.append(mentioned)
                    elif mentioned in file.imports:
                        self._imported(path, file.imports[mentioned], attribute)
                for imported in _imports_inside(node):
                    self._imported(path, imported, None)

    def _whole(self, path: Path, file: _File) -> None:
        label = self._label(path)
        if label in self.found:
            return
        self.found[label] = file.text
        for imported in [*file.imports.values(), *file.inner_imports]:
            self._imported(path, imported, None)

    def _imported(self, path: Path, imported: _Imported, attribute: str | None) -> None:
        """Follows an import into the folder; of a module that is used as ``module.attribute`` that alone."""
        target = self._file_of(path, imported)
        if target is None:
            if not imported.level:
                self.found[imported.module] = None
            return
        module, inside = target
        wanted = attribute if inside is None else inside
        # A name that a submodule bears is a module, not a definition.
        self.follow(module, wanted)

    def _file_of(self, path: Path, imported: _Imported) -> tuple[Path, str | None] | None:
        """The file that an import names, and the definition in it (None: the module itself)."""
        base = path.parents[imported.level - 1] if imported.level else self.folder
        dotted = [part for part in imported.module.split(".") if part]
        if imported.attribute is not None:
            if found := _module_file(base, [*dotted, imported.attribute]):
                return found, None
            found = _module_file(base, dotted)
            return None if found is None else (found, imported.attribute)
        found = _module_file(base, dotted)
        return None if found is None else (found, None)

    def _label(self, path: Path) -> str:
        inside = path.is_relative_to(self.folder)
        return path.relative_to(self.folder).as_posix() if inside else path.name


def _module_file(base: Path, parts: list[str]) -> Path | None:
    if not parts:
        return base / "__init__.py" if (base / "__init__.py").is_file() else None
    relative = base.joinpath(*parts)
    for candidate in (relative.with_suffix(".py"), relative / "__init__.py"):
        if candidate.is_file():
            return candidate.resolve()
    return None


@lru_cache(maxsize=256)
def _read(path: Path, _mtime_ns: int, _size: int) -> _File:
    """A user's file may be edited while the process lives: time and size tell one version from another."""
    raw = path.read_bytes()
    try:
        tree = syntax_tree(raw)
    except (SyntaxError, ValueError):
        return _File(whole=True, text=raw.decode("utf-8", "replace"))
    file = _File(text=_normalised(without_docstrings(tree)))
    for node in tree.body:
        _place(file, node)
    file.changed = frozenset(_changed_names(tree, set(file.definitions)))
    file.inner_imports = [imported for node in tree.body for imported in _imports_inside(node)]
    file.whole = any(imported.attribute == "*" for imported in [*file.imports.values(), *file.inner_imports])
    return file


def _place(file: _File, node: ast.stmt) -> None:
    """Notes what a top-level statement defines, imports, or does."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        file.imports.update(_bound_by(node))
    elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        file.definitions.setdefault(node.name, []).append(node)
    elif isinstance(node, ast.Assign | ast.AnnAssign) and (names := _assigned(node)):
        for name in names:
            file.definitions.setdefault(name, []).append(node)
    elif isinstance(node, ast.If | ast.Try | ast.With):
        if _is_main(node):
            return
        # Either branch may define a name: all of it counts wherever one of its names is used.
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                _place(file, inner)
        file.statements.append(node)
        for inner in ast.walk(node):
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                file.definitions.setdefault(inner.name, []).append(node)
            elif isinstance(inner, ast.Assign | ast.AnnAssign):
                for name in _assigned(inner):
                    file.definitions.setdefault(name, []).append(node)
    else:
        file.statements.append(node)


def _assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """Names that a plain assignment binds; none where it changes something (``x.y = …``, ``x[0] = …``)."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [leaf for target in targets for leaf in _leaves(target)]
    return (
        [leaf.id for leaf in flat if isinstance(leaf, ast.Name)]
        if all(isinstance(leaf, ast.Name) for leaf in flat)
        else []
    )


def _leaves(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _leaves(element)
    else:
        yield target


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def _changed_names(tree: ast.Module, known: set[str]) -> Iterator[str]:
    """Module-level names that a function assigns, or whose value it changes in place."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        inside = list(ast.walk(function))
        own = {node.arg for node in inside if isinstance(node, ast.arg)}
        own |= {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        declared = {name for node in inside if isinstance(node, ast.Global) for name in node.names}
        yield from declared & known
        for node in inside:
            target = _changed_object(node)
            while isinstance(target, ast.Attribute | ast.Subscript):
                target = target.value
            if isinstance(target, ast.Name) and target.id in known and target.id not in own - declared:
                yield target.id


def _changed_object(node: ast.AST) -> ast.expr | None:
    """The object that an assignment to a part of it, or a call such as ``append``, changes in place."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        return node.func.value
    return None


def _names_in(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Names that a definition mentions, with the attribute taken of each (None: the name itself).

    A dotted module (``import a.b``) is named in full where it is used so.
    """
    taken: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute):
            if isinstance(inner.value, ast.Name):
                taken.add(id(inner.value))
                yield inner.value.id, inner.attr
                yield f"{inner.value.id}.{inner.attr}", None
        elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load) and id(inner) not in taken:
            yield inner.id, None


def _bound_by(node: ast.Import | ast.ImportFrom) -> dict[str, _Imported]:
    """What an import binds, by name; ``import a.b`` binds ``a``, and is found as ``a.b`` too."""
    if isinstance(node, ast.ImportFrom):
        return {
            alias.asname or alias.name: _Imported(node.module or "", alias.name, node.level)
            for alias in node.names
        }
    found = {}
    for alias in node.names:
        first = alias.name.partition(".")[0]
        found[alias.asname or first] = _Imported(alias.name if alias.asname else first, None, 0)
        if not alias.asname:
            found[alias.name] = _Imported(alias.name, None, 0)
    return found


def _imports_inside(node: ast.stmt) -> Iterator[_Imported]:
    """What a function or class imports in its body."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import | ast.ImportFrom):
            yield from _bound_by(inner).values()


def _is_dynamic(node: ast.stmt, imports: Mapping[str, _Imported]) -> bool:
    """Whether a statement looks names up by text: what it reaches can't be said."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call):
            called = inner.func.id if isinstance(inner.func, ast.Name) else getattr(inner.func, "attr", "")
            first = inner.args[0] if inner.args else None
            of_module = isinstance(first, ast.Name) and first.id in imports
            if called in _DYNAMIC or (called in ("getattr", "setattr") and of_module):
                return True
    return False


def without_docstrings(tree: ast.AST) -> ast.AST:
    """The tree, its docstrings taken out of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            constant = first.value if isinstance(first, ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                node.body = node.body[1:]
    return tree


def _normalised(node: ast.AST) -> str:
    return ast.dump(node)
