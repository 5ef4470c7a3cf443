"""A document as an item, with values as JSON holds them and an id that holds whatever the order and the
source; and the fields of a definition that say what is asked about it, and what is right.

What is stored, hashed, and shown to filters and ``process_results`` is what ``json_document`` gives. An
id is derived from a document's content.

``doc_to_text``, ``doc_to_target``, ``doc_to_choice`` and the like: each is a column, a template, a
function or the value itself; ``Fields`` reads them for one document. ``references_of`` and
``gold_indices`` make acceptable answers and right choices of a target. Templates are the harness's
Jinja2: strict about undefined names, trailing newlines kept, and the filter ``regex_replace``.
"""

import ast
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2.sandbox import SandboxedEnvironment

from metrics.errors import ConfigError, named, users_code
from metrics.types import IGNORED_TARGET
from tasks.benchmarks.lm_eval.yaml import FunctionName
from tasks.datasets.config import DatasetError, field_at
from tasks.datasets.item import Item
from tasks.datasets.items import Cluster, content_digest
from tasks.messages.media import MediaError, MediaReader, opened_image
from tasks.store.schemas import cluster_text
from tasks.usercode.load import UserModules
from tasks.usercode.surroundings import stand_ins

ID_DIGITS: Final = 16

Document = Mapping[str, Any]
"""A row of a split after ``process_docs``: its fields by name."""


def json_value(value: Any) -> Any:
    """``value`` with tuples as lists, numpy values as Python's, and what JSON lacks as the text a template
    would show."""
    if value is None or isinstance(value, str | bool):
        return str(value) if isinstance(value, str) and type(value) is not str else value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if is_picture(value):
        return picture_reference(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    return str(value)


def is_picture(value: Any) -> bool:
    """Whether a value is an image as datasets hold it: a Pillow image, or its bytes beside a path."""
    held = value.get("bytes") if isinstance(value, Mapping) else None
    return isinstance(held, bytes) or (hasattr(value, "save") and hasattr(value, "mode"))


def picture_reference(value: Any) -> str:
    """How a document names an image: by the digest of its bytes; raises DataError for a broken one."""
    try:
        part = MediaReader().part("image", value)
    except MediaError as error:
        raise DatasetError(f"an image of a document can't be shown: {error}") from error
    return str(part["image_url"]["url"])


def with_pictures(row: Mapping[str, Any]) -> dict[str, Any]:
    """A document for functions: images that come as bytes are Pillow images, as the datasets library gives
    them."""
    return {
        key: opened_image(value["bytes"]) if is_picture(value) and isinstance(value, Mapping) else value
        for key, value in row.items()
    }


def json_document(row: Any, where: str) -> dict[str, Any]:
    """A document; raises ConfigError where ``process_docs`` gave something else than a mapping."""
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: a document is a mapping of fields, got {type(row).__name__} {row!r:.80}")
    return {str(key): json_value(value) for key, value in row.items()}


def document_items(rows: Iterable[Mapping[str, Any]], cluster: Cluster, where: str) -> Iterator[Item]:
    """Documents as items in order; a number distinguishes equal documents. Raises DataError without
    ``cluster``."""
    seen: Counter[str] = Counter()
    for doc_id, row in enumerate(rows):
        item = Item(item_id="", doc_id=doc_id, data=row)
        try:
            base = content_digest(item)[:ID_DIGITS]
        except TypeError as error:  # half of a character, or nested deeper than JSON's writer goes
            raise DatasetError(f"{where}: document {doc_id + 1} can't be kept as JSON: {error}") from None
        seen[base] += 1
        item_id = base if seen[base] == 1 else f"{base}-{seen[base]}"
        yield replace(item, item_id=item_id, cluster=_cluster_of(row, cluster, where))


def _cluster_of(row: Mapping[str, Any], cluster: Cluster, where: str) -> str | None:
    if cluster is None:
        return None
    texts = []
    for field in [cluster] if isinstance(cluster, str) else cluster:
        try:
            texts.append(str(field_at(row, field)))
        except KeyError:
            raise DatasetError(
                f"{where}: no field '{field}' (cluster); documents have {', '.join(row)}"
            ) from None
    return cluster_text(texts)


def regex_replace(text: str, pattern: str, replacement: str, count: int = 0) -> str:
    """``re.sub`` as a filter: ``{{ text | regex_replace('\\\\s+', ' ') }}``."""
    return re.sub(pattern, replacement, text, count=count)


# As strict as for native templates: a benchmark's YAML is data, its functions are in files of their own.
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
                f"{self.where}: doc_to_choice gave {value!r:.120}; expected a list of at least one choice"
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
        are, those of a field, too."""
        if not source:
            return source
        return self._text_of(doc[source]) if source in doc else render_template(source, doc)

    def prefix(self, doc: Document) -> str | None:
        """``gen_prefix`` of the document to evaluate."""
        source = self.config.get("gen_prefix")
        if source is None:
            return None
        return self._text_of(doc[source]) if source in self.columns else render_template(source, doc)

    def _text_of(self, value: Any) -> str | None:
        return None if value is None else str(value)

    def call(self, name: FunctionName, *arguments: Any) -> Any:
        """The function's value; raises DataError naming it where it raises."""
        if name not in self._functions:
            self._functions[name] = self._modules.function(name, self._base_dir)
        try:
            with stand_ins(), users_code():
                return self._functions[name](*arguments)
        except ConfigError:
            raise
        except Exception as error:
            raise DatasetError(f"{self.where}: {name} failed: {named(error)}") from error

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
