"""Native templates: Jinja2 over an item's fields, where a name that the item has not is an error.

``Template`` renders; the config's checks ask which names a template needs before anything starts.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import jinja2
from jinja2 import meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment

from metrics.errors import ConfigError
from tasks.benchmarks.config import PromptTemplate
from tasks.datasets.config import DatasetError
from tasks.datasets.item import Item

# A config is data: its templates reach an item's fields, and nothing of Python's behind them.
ENVIRONMENT = SandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
)
_ONE_EXPRESSION = re.compile(r"\s*\{\{-?((?:(?!\{\{|\}\}|\{%|%\}).)*?)-?\}\}\s*", re.DOTALL)
_OPTIONAL_TESTS = frozenset({"defined", "undefined"})
_OPTIONAL_FILTERS = frozenset({"default", "d"})


def row(item: Item) -> dict[str, Any]:
    """The item as filters, metrics and user functions see it: its data, beside ``id`` and ``ground_truth``.

    A data field of the same name wins.
    """
    return {"id": item.item_id, "ground_truth": item.ground_truth, **item.data}


def scope(item: Item) -> dict[str, Any]:
    """The names a template may use: those of ``row``, and ``item``, the whole row."""
    names = row(item)
    return {**names, "item": {"data": item.data, **names}}


class Template:
    """A compiled template. ``label`` is what messages call it, such as "prompt_template"."""

    def __init__(self, source: str, label: str) -> None:
        self.source = source
        self._label = label
        self._template = _compiled(source, label)
        self._expression = _expression(source)
        self._pieces = _pieces(source)
        self._field = next(iter(self._pieces)).field if _is_one_field(self._pieces) else None

    def text(self, item: Item, names: Mapping[str, Any] | None = None) -> str:
        """The template filled with an item's fields, and ``names`` before them; raises DataError naming the
        item and what it lacks."""
        if self._pieces is not None and names is None:
            fields = row(item)
            with suppress(KeyError):  # Jinja then says what is missing
                return "".join(
                    [
                        piece.text if piece.field is None else str(fields[piece.field])
                        for piece in self._pieces
                    ]
                )
        try:
            return self._template.render({**scope(item), **(names or {})})
        except Exception as error:
            raise self._failure(item, error) from error

    def value(self, item: Item) -> Any:
        """What a single ``{{ expression }}`` stands for (a list stays a list, a number a number), else the
        text.
        """
        if self._expression is None:
            return self.text(item)
        if self._field is not None:
            with suppress(KeyError):
                return row(item)[self._field]
        try:
            found = self._expression(scope(item))
            if isinstance(found, jinja2.Undefined):
                str(found)  # StrictUndefined raises here, naming what is not there
        except Exception as error:
            raise self._failure(item, error) from error
        return found

    def _failure(self, item: Item, error: Exception) -> DatasetError:
        if isinstance(error, jinja2.UndefinedError):
            has = ", ".join(item.data)
            return DatasetError(
                f"{self._label}: {error.message} in item '{item.item_id}'; its fields are {has}"
            )
        if isinstance(error, SecurityError):
            return DatasetError(f"{self._label}: {error}: a template is no program; write a function instead")
        return DatasetError(f"{self._label} fails on item '{item.item_id}': {type(error).__name__}: {error}")


def required_names(source: str) -> set[str]:
    """Names that a template uses without asking first (``is defined``, ``| default(…)``) whether they are
    there.
    """
    tree = ENVIRONMENT.parse(source)
    optional = {
        node.node.name
        for node in tree.find_all((nodes.Test, nodes.Filter))
        if isinstance(node.node, nodes.Name) and node.name in (_OPTIONAL_TESTS | _OPTIONAL_FILTERS)
    }
    return meta.find_undeclared_variables(tree) - optional - set(ENVIRONMENT.globals)


def check_syntax(source: str) -> None:
    """Raises ConfigError saying what is wrong in a template, and in which of its lines."""
    _compiled(source, "template")


def missing_names(source: str, names: Collection[str]) -> list[str]:
    """Names that the template needs and ``names`` has not, sorted."""
    return sorted(required_names(source) - set(names))


def template_source(prompt: PromptTemplate, base_dir: str | Path) -> str:
    """The text of a prompt's template: its own, or its file's without the line break at the end of every
    file.
    """
    if prompt.path is None:
        return prompt.template or ""
    path = Path(base_dir) / Path(prompt.path).expanduser()
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except FileNotFoundError:
        raise DatasetError(
            f"prompt template file '{prompt.path}' is not there: expected it at {path}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(f"prompt template file '{prompt.path}' can't be read: {error}") from error


@lru_cache(maxsize=256)
def _compiled(source: str, label: str) -> jinja2.Template:
    try:
        return ENVIRONMENT.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"{label} is not a Jinja2 template: line {error.lineno}: {error.message}"
        ) from error


class Piece(NamedTuple):
    """A part of a template that asks for nothing but fields: a text as it stands, or a field's name."""

    text: str = ""
    field: str | None = None


def _pieces(source: str) -> tuple[Piece, ...] | None:
    """The pieces of a template of texts and ``{{ field }}`` alone, which are joined many times faster than
    Jinja renders; None for any other.
    """
    pieces = []
    for output in ENVIRONMENT.parse(source).body:
        if not isinstance(output, nodes.Output):
            return None
        for node in output.nodes:
            if isinstance(node, nodes.TemplateData):
                pieces.append(Piece(text=node.data))
            elif isinstance(node, nodes.Name) and node.name != "item":
                pieces.append(Piece(field=node.name))
            else:
                return None
    return tuple(pieces)


def _is_one_field(pieces: tuple[Piece, ...] | None) -> TypeGuard[tuple[Piece, ...]]:
    return pieces is not None and len(pieces) == 1 and pieces[0].field is not None


def _expression(source: str) -> Any:
    match = _ONE_EXPRESSION.fullmatch(source)
    return ENVIRONMENT.compile_expression(match[1].strip(), undefined_to_none=False) if match else None
