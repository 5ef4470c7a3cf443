"""The dataset's part of a config, the error of datasets, and dotted paths by which configs name fields."""

import codecs
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import orjson
from pydantic import Field, model_validator

from metrics.config import BelongsTo, FunctionRef, NamesFile, Strict
from metrics.errors import ConfigError


class TextForm(NamedTuple):
    """How a file's text is written; None: UTF-8, and a comma between the fields of CSV."""

    encoding: str | None = None
    delimiter: str | None = None


AS_USUAL: Final = TextForm()


class DatasetConfig(Strict):
    """Where a benchmark's items come from: a file, a function of the user's, or a model hub.

    A text alone is a path, or, as ``loader.py:load``, a function.
    """

    ONE_OF: ClassVar[tuple[str, ...]] = ("path", "function", "hub")

    path: Annotated[str | None, NamesFile()] = Field(
        default=None, description="File of items, relative to the config: .jsonl, .json, .csv or .parquet"
    )
    encoding: Annotated[str | None, BelongsTo("path")] = Field(
        default=None, description="Encoding of a text file that is not UTF-8, such as cp1252 or utf-16"
    )
    delimiter: Annotated[str | None, BelongsTo("path")] = Field(
        default=None,
        min_length=1,
        max_length=1,
        description='What stands between the fields of a .csv file instead of a comma, such as ";" or "\\t"',
    )
    function: FunctionRef | None = Field(
        default=None, description="Loader 'file.py:function' that returns an iterable of items"
    )
    params: Annotated[dict[str, Any], BelongsTo("function")] = Field(
        default_factory=dict, description="Keyword arguments of the loader function"
    )
    hub: str | None = Field(
        default=None, description="Dataset of a model hub, such as openai/gsm8k (extra: hub)"
    )
    name: Annotated[str | None, BelongsTo("hub")] = Field(
        default=None, description="Configuration of the hub's dataset, such as main"
    )
    split: Annotated[str | None, BelongsTo("hub")] = Field(
        default=None, description="Split of the hub's dataset, such as test"
    )
    revision: Annotated[str | None, BelongsTo("hub")] = Field(
        default=None, description="Commit, tag or branch of the hub's dataset"
    )
    id: str | None = Field(
        default=None,
        description="Field that identifies an item; without it 'id', else derived from the content",
    )
    ground_truth: str | None = Field(
        default=None,
        description="Field that holds the right answer; without it 'ground_truth' where there is one",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_path(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"function" if ".py:" in value else "path": value}
        return value

    @model_validator(mode="after")
    def _is_one_source(self) -> "DatasetConfig":
        sources = [key for key in self.ONE_OF if getattr(self, key) is not None]
        if len(sources) != 1:
            found = " and ".join(sources) if sources else "none of them"
            raise ValueError(f"a dataset is one of path, function or hub; found {found}")
        if self.hub is not None and self.split is None:
            raise ValueError(f"dataset '{self.hub}' of the hub needs a split, such as split: test")
        if self.delimiter is not None and not str(self.path).lower().endswith(".csv"):
            raise ValueError("'delimiter' belongs to a .csv file")
        if self.encoding is not None:
            if str(self.path).lower().endswith(".parquet"):
                raise ValueError("'encoding' belongs to a file of text")
            _check_encoding(self.encoding)
        return self

    @property
    def form(self) -> TextForm:
        """How the file's text is written."""
        return TextForm(self.encoding, self.delimiter)

    def describe(self) -> str:
        """The source in a few words, for messages."""
        if self.hub is not None:
            return "/".join(part for part in (self.hub, self.name, self.split) if part)
        return self.path or self.function or ""


def _check_encoding(name: str) -> None:
    """Raises ValueError for what is no encoding of text."""
    try:
        b"".decode(codecs.lookup(name).name)
    except LookupError:
        message = (
            f"encoding '{name}' is not known; expected utf-8, cp1252, latin-1, utf-16 or another of Python's"
        )
        raise ValueError(message) from None


class DatasetError(ConfigError):
    """A dataset, a template file or an item that can't be used; names the file and line, or the item."""


class UnfitItem(DatasetError):
    """An item that can't be asked about. ``item``: which, until its line is named; ``template``: the text of
    the template that does not fit it, by which its key in the config is found."""

    def __init__(self, message: str, item: object = None, template: str | None = None) -> None:
        super().__init__(message)
        self.item = item
        self.template = template


def parsed_json(text: bytes, where: str) -> Any:
    """JSON as Python writes it, NaN and Infinity included; raises DatasetError naming ``where``."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text, parse_int=_integer)
    except ValueError as error:
        raise DatasetError(f"{where}: malformed JSON: {error}") from error
    except RecursionError:
        raise DatasetError(f"{where}: malformed JSON: it is nested too deeply") from None


def _integer(text: str) -> int | float:
    """As the quick reader has it: what 64 bits don't hold is a float, and can be written again."""
    value = int(text)
    return value if -(2**63) <= value < 2**64 else float(text)


def field_at(data: Mapping[str, Any], path: str) -> Any:
    """The value at a dotted path, list positions as numbers (a field whose name holds dots wins); raises
    KeyError with the part not there.

    >>> field_at({"a": [{"b": 1}]}, "a.0.b")
    1
    """
    if path in data:
        return data[path]
    value: Any = data
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise KeyError(part)
    return value
