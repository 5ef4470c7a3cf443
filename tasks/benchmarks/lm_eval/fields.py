"""The fields of a definition that say what is asked about a document, and what is right.

``doc_to_text``, ``doc_to_target``, ``doc_to_choice`` and the like: each is a column, a template, a
function or the value itself; ``Fields`` reads them for one document. ``references_of`` and
``gold_indices`` make acceptable answers and right choices of a target.

Templates are the harness's Jinja2: strict about undefined names, trailing newlines kept, and the filter
``regex_replace``.
"""

import ast
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from metrics.errors import ConfigError
from metrics.types import IGNORED_TARGET
from tasks.benchmarks.lm_eval.documents import Document, json_value
from tasks.benchmarks.lm_eval.yaml import FunctionName
from tasks.datasets.config import DatasetError
from tasks.usercode.load import UserModules
from tasks.usercode.surroundings import stand_ins


def regex_replace(text: str, pattern: str, replacement: str, count: int = 0) -> str:
    """``re.sub`` as a filter: ``{{ text | regex_replace('\\\\s+', ' ') }}``."""
    return re.sub(pattern, replacement, text, count=count)


# As strict as for native templates: a benchmark's YAML is data, its functions lie in files of their own.
_environment = SandboxedEnvironment(
    undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False
)
_environment.filters["regex_replace"] = regex_replace


def render_template(text: str, doc: Mapping[str, Any]) -> str:
    """The template with the document's fields by name; raises DataError naming what is undefined."""
    try:
        return _compiled(text).render(**doc)
    except jinja2.UndefinedError as error:
        fields = ", ".join(map(str, doc))
        raise DatasetError(f"template {text!r:.120}: {error}; the document has {fields}") from error
    except jinja2.TemplateError as error:
        raise ConfigError(f"template {text!r:.120}: {error}") from error
    except Exception as error:  # what a filter or an operator says about a value it does not take
        raise DatasetError(f"template {text!r:.120}: {type(error).__name__}: {error}") from error


def check_template(text: str, where: str) -> None:
    """Raises ConfigError for a text that is no template; most column names and plain texts are one."""
    if "{" not in text:
        return
    try:
        _environment.parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"{where}: not a Jinja2 template: {error.message} (line {error.lineno} of it)"
        ) from error


@lru_cache(maxsize=4096)
def _compiled(text: str) -> jinja2.Template:
    return _environment.from_string(text)


class Fields:
    """What a definition says about a document, for one set of columns.

    A text that is the name of a column stands for the column; any other text is a template. ``where`` begins
    messages; functions are those of ``modules``, by default a set that nobody else has.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        columns: Collection[str],
        base_dir: Path,
        where: str,
        modules: UserModules | None = None,
    ) -> None:
        self.config = config
        self.columns = frozenset(columns)
        self.where = where
        self._base_dir = base_dir
        self._modules = modules or UserModules(own=True)
        self._functions: dict[str, Callable[..., Any]] = {}

    def text(self, doc: Document, source: Any = None) -> str | int:
        """The question; an integer is the index of the right choice where the choices are the questions."""
        value = self._value(doc, self.config.get("doc_to_text") if source is None else source, "doc_to_text")
        if isinstance(value, _Rendered) and value.isdigit() and self.config.get("doc_to_choice") is not None:
            return int(value)
        if isinstance(value, str | int):
            return str(value) if isinstance(value, str) else value
        raise DatasetError(
            f"{self.where}: doc_to_text gave {type(value).__name__} {value!r:.80}; a prompt is text"
        )

    def target(self, doc: Document, source: Any = None) -> Any:
        """The right answer: text, the index of a choice, or a list of either."""
        source = self.config.get("doc_to_target") if source is None else source
        if isinstance(source, int | float | list):
            return source
        value = self._value(doc, source, "doc_to_target")
        if not isinstance(value, _Rendered):
            return value
        text = str(value)
        if text.isdigit() and self.config.get("doc_to_choice") is not None:
            return int(text)
        if len(text) >= 2 and text[0] == "[" and text[-1] == "]":
            try:
                return ast.literal_eval(text)
            except (SyntaxError, ValueError):
                return text
        return text

    def choices(self, doc: Document, source: Any = None) -> list[Any]:
        """The choices, a list of texts; raises DataError where a template does not give one."""
        source = self.config.get("doc_to_choice") if source is None else source
        if isinstance(source, Mapping):
            return list(source.values())
        if isinstance(source, list):
            return source
        value = self._value(doc, source, "doc_to_choice")
        if isinstance(value, _Rendered):
            try:
                value = ast.literal_eval(str(value))
            except (SyntaxError, ValueError) as error:
                raise DatasetError(
                    f"{self.where}: doc_to_choice gave {str(value)!r:.120}, which is no list: {error}"
                ) from error
        if not isinstance(value, list | tuple) or not value:
            raise DatasetError(
                f"{self.where}: doc_to_choice gave {value!r:.120}; a list of at least one choice is due"
            )
        return list(value)

    def images(self, doc: Document, source: Any = None) -> list[Any]:
        """The images of a document, in the harness's order: a column, a list of them, a template of a list or
        a function."""
        source = self.config.get("doc_to_image") if source is None else source
        if isinstance(source, list):
            return [image for one in source for image in self.images(doc, one)]
        if isinstance(source, FunctionName):
            value = self.call(source, dict(doc))
        elif source in self.columns:
            value = doc.get(source)
        else:
            value = self._literal(render_template(source, doc))
        return [one for one in (value if isinstance(value, list | tuple) else [value]) if one is not None]

    def _literal(self, text: str) -> Any:
        try:
            return ast.literal_eval(text)
        except (SyntaxError, ValueError) as error:
            raise DatasetError(
                f"{self.where}: doc_to_image gave {text!r:.120}, which is no list: {error}"
            ) from error

    def named(self, doc: Document, source: str | None) -> str | None:
        """A description or few-shot prefix: a field of the document or a template; None and "" stay as they
        are."""
        if not source:
            return source
        return str(doc[source]) if source in doc else render_template(source, doc)

    def prefix(self, doc: Document) -> str | None:
        """``gen_prefix`` of the document to evaluate."""
        source = self.config.get("gen_prefix")
        if source is None:
            return None
        return str(doc[source]) if source in self.columns else render_template(source, doc)

    def call(self, name: FunctionName, *arguments: Any) -> Any:
        """The function's value; raises DataError naming it where it raises."""
        if name not in self._functions:
            self._functions[name] = self._modules.function(name, self._base_dir)
        try:
            with stand_ins():
                return self._functions[name](*arguments)
        except ConfigError:
            raise
        except Exception as error:
            raise DatasetError(f"{self.where}: {name} failed: {type(error).__name__}: {error}") from error

    def _value(self, doc: Document, source: Any, key: str) -> Any:
        if isinstance(source, FunctionName):
            return json_value(self.call(source, dict(doc)))
        if isinstance(source, str):
            if source in self.columns:
                if source not in doc:
                    raise DatasetError(
                        f"{self.where}: {key} is the column '{source}', which a document lacks"
                    )
                return doc[source]
            try:
                return _Rendered(render_template(source, doc))
            except (DatasetError, ConfigError) as error:
                raise type(error)(f"{self.where}: {key}: {error}") from error
        if isinstance(source, int):
            return source
        raise ConfigError(f"{self.where}: '{key}' is missing")


class _Rendered(str):
    """A template's text, which may stand for an index or a list; a column's text never does."""

    __slots__ = ()


def references_of(target: Any, choices: Sequence[Any] | None, many: bool, processed: bool) -> list[Any]:
    """Acceptable answers as texts. With choices the target is an index; ``processed`` ones stay what they
    are.

    >>> references_of(1, ["yes", "no"], many=False, processed=False)
    ['no']
    """
    if processed:
        return list(target) if isinstance(target, list) else [target]
    if choices is not None:
        try:
            return [str(choices[target])]
        except (TypeError, IndexError) as error:
            raise DatasetError(
                f"the target {target!r:.80} is no index of the {len(choices)} choices"
            ) from error
    if many:
        return [str(answer) for answer in target] if isinstance(target, list) else [str(target)]
    return [str(target)]


def gold_indices(gold: Any, choices: Sequence[str]) -> list[int]:
    """Right choices: an index, a choice's text, or a list of indices. -100 for one that is not there, as in
    the harness."""
    if isinstance(gold, list):
        return [_index(entry, choices) for entry in gold]
    return [_index(gold, choices)]


def _index(gold: Any, choices: Sequence[str]) -> int:
    if isinstance(gold, str):
        return choices.index(gold) if gold in choices else IGNORED_TARGET
    if isinstance(gold, int | float) and gold == int(gold):
        return int(gold) if gold < len(choices) else IGNORED_TARGET
    return IGNORED_TARGET


def asks_unconditional(config: Mapping[str, Any]) -> bool:
    """Whether the choices are also asked without context, which mutual information needs."""
    return any(entry.get("metric") == "acc_mutual_info" for entry in config.get("metric_list") or ())
