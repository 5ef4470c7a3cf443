"""Reads which columns a definition's templates and functions use, and what each of them holds.

Templates and functions are followed as syntax trees, from the parameter that a document comes in through
assignments, loops and calls; functions are imported for that, so that constants are what they are. What
can't be followed is left out; ``trial`` finds out about it when it runs the functions.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2
from jinja2 import nodes

from metrics.types import Resolve
from tasks.benchmarks.lm_eval.functions import DATASET, ROW, FunctionReader
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
from tasks.benchmarks.lm_eval.yaml import FunctionName

TEXT_FILTERS: Final = frozenset(
    ["trim", "upper", "lower", "title", "capitalize", "replace", "regex_replace", "striptags"]
)
LIST_FILTERS: Final = frozenset(
    ["join", "first", "last", "list", "sort", "unique", "map", "select", "reject", "length"]
)

_environment = jinja2.Environment()


def read_template(text: str, row: Shape) -> None:
    """Adds what a template uses of the row; a text that is none uses nothing."""
    try:
        tree = _environment.parse(text)
    except jinja2.TemplateSyntaxError:
        return
    TemplateReader(row).statements(tree.body, {})


class TemplateReader:
    """Follows the names of one template; what an expression stands for is a Shape, a constant, or None."""

    def __init__(self, row: Shape) -> None:
        self._row = row

    def statements(self, body: Sequence[nodes.Node], names: Names) -> None:
        """Reads statements one after the other; ``names`` are those that the template binds."""
        for node in body:
            if isinstance(node, nodes.For):
                self._loop(node, names)
            elif isinstance(node, nodes.Assign):
                value = self.value(node.node, names)
                if isinstance(node.target, nodes.Name):
                    names[node.target.name] = value
            elif isinstance(node, nodes.If):
                self.value(node.test, names)
                self.statements([*node.body, *node.elif_, *node.else_], names)
            elif isinstance(node, nodes.Output):
                for part in node.nodes:
                    found = self.value(part, names)
                    if isinstance(found, Shape) and len(node.nodes) > 1 and not found.kinds:
                        found.kinds["text"] += 0
            elif isinstance(node, nodes.Expr):
                self.value(node, names)
            else:
                self.statements(list(node.iter_child_nodes()), names)

    def _loop(self, node: nodes.For, names: Names) -> None:
        over = self.value(node.iter, names)
        element = over.item() if isinstance(over, Shape) else None
        inner = {**names, "loop": None}
        if isinstance(node.target, nodes.Name):
            inner[node.target.name] = element
        elif isinstance(node.target, nodes.Tuple):
            inner |= {one.name: None for one in node.target.items if isinstance(one, nodes.Name)}
        self.statements([*node.body, *node.else_], inner)

    def value(self, node: nodes.Node, names: Names) -> Any:
        """What an expression stands for."""
        if isinstance(node, nodes.Const):
            return Constant(node.value)
        if isinstance(node, nodes.List | nodes.Tuple):
            return Constant([plain(self.value(item, names)) for item in node.items])
        if isinstance(node, nodes.Dict):
            pairs = [(self.value(pair.key, names), self.value(pair.value, names)) for pair in node.items]
            return Constant({plain(key): plain(value) for key, value in pairs})
        if isinstance(node, nodes.Name):
            if node.name in names:
                return names[node.name]
            return None if node.name in _environment.globals else self._row.key(node.name)
        if isinstance(node, nodes.Getattr):
            base = self.value(node.node, names)
            return base.key(node.attr) if isinstance(base, Shape) else None
        if isinstance(node, nodes.Getitem):
            if isinstance(node.arg, nodes.Slice):
                return self.value(node.node, names)
            return subscripted(self.value(node.node, names), self.value(node.arg, names))
        if isinstance(node, nodes.Filter) and node.node is not None:
            return self._filtered(node, names)
        if isinstance(node, nodes.Call):
            return self._called(node, names)
        if isinstance(node, nodes.Compare):
            left = self.value(node.expr, names)
            for operand in node.ops:
                compared(left, operand.op, self.value(operand.expr, names))
            return None
        if isinstance(node, nodes.CondExpr):
            self.value(node.test, names)
            values = [self.value(part, names) for part in (node.expr1, node.expr2) if part is not None]
            return next((value for value in values if isinstance(value, Shape)), None)
        if isinstance(node, nodes.BinExpr):
            return combined(
                self.value(node.left, names), self.value(node.right, names), isinstance(node, nodes.Concat)
            )
        for child in node.iter_child_nodes():
            self.value(child, names)
        return None

    def _filtered(self, node: nodes.Filter, names: Names) -> Any:
        assert node.node is not None
        base = self.value(node.node, names)
        for argument in node.args:
            self.value(argument, names)
        if not isinstance(base, Shape):
            return None
        if node.name in TEXT_FILTERS:
            base.note("text")
            return base
        attribute = next(
            (plain(self.value(one.value, names)) for one in node.kwargs if one.key == "attribute"), None
        )
        if node.name in LIST_FILTERS and isinstance(attribute, str):
            base.item().key(attribute)
        if node.name in LIST_FILTERS:
            if node.name != "length":
                base.note("list")
            return base.item() if node.name in ("first", "last") else base if node.name == "list" else None
        if node.name in ("int", "float"):
            base.note("number")
        return None

    def _called(self, node: nodes.Call, names: Names) -> Any:
        arguments = [self.value(argument, names) for argument in node.args]
        if isinstance(node.node, nodes.Getattr):
            return method(self.value(node.node.node, names), node.node.attr, arguments)
        return None


COLUMN: Final = re.compile(r"[^\W\d]\w*")


def columns_of(config: Mapping[str, Any], resolve: Resolve) -> Shape:
    """The row of a definition: what ``process_docs`` reads, and of all else what it leaves alone.

    ``resolve`` gives the functions by name.
    """
    raw, late = Shape(), Shape()
    process_docs = config.get("process_docs")
    if isinstance(process_docs, FunctionName):
        FunctionReader(resolve(process_docs)).read(DATASET, raw)
    for owner in (config, config.get("fewshot_config") or {}):
        if isinstance(owner, Mapping):
            _read_fields(owner, config, resolve, late)
    for name, shape in late.fields.items():
        raw.fields.setdefault(name, shape)
    if not raw.fields:
        raw.key("id")  # a row without columns is none
    return raw


def _read_fields(owner: Mapping[str, Any], config: Mapping[str, Any], resolve: Resolve, row: Shape) -> None:
    choices = owner.get("doc_to_choice", config.get("doc_to_choice"))
    for key in (
        "doc_to_text",
        "doc_to_target",
        "doc_to_choice",
        "process_results",
        "description",
        "gen_prefix",
    ):
        value = owner.get(key)
        if isinstance(value, FunctionName):
            FunctionReader(resolve(value)).read(ROW, row)
        elif isinstance(value, str) and COLUMN.fullmatch(value) and key in FIELDS:
            _note_column(row.key(value), key, choices, config)
        elif isinstance(value, str):
            read_template(value, row)
        elif isinstance(value, list):
            for entry in value:
                if isinstance(entry, str) and "{{" in entry:
                    read_template(entry, row)
    for pipeline in owner.get("filter_list") or ():
        steps = pipeline.get("filter") if isinstance(pipeline, Mapping) else None
        if any(
            isinstance(step, Mapping) and step.get("function") == "multi_choice_regex" for step in steps or ()
        ):
            row.key("choices").item().note("text")


FIELDS: Final = ("doc_to_text", "doc_to_target", "doc_to_choice")


def _note_column(column: Shape, key: str, choices: Any, config: Mapping[str, Any]) -> None:
    """What a column that is named alone holds."""
    if key == "doc_to_choice":
        column.item()
    elif key == "doc_to_target" and choices is not None:
        column.note("index")
        column.places = len(choices) if isinstance(choices, list | dict) else None
    elif key == "doc_to_text" and config.get("output_type") == "multiple_choice" and choices is not None:
        column.note("text")
    else:
        column.note("text")
