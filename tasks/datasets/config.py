"""The dataset's part of a config, the error of datasets, and dotted paths by which configs name fields."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from metrics.config import NamesFile
from metrics.errors import ConfigError


class DatasetConfig(BaseModel):
    """Where a benchmark's items come from: a file, a function of the user's, or a model hub.

    A text alone is a path, or, as ``loader.py:load``, a function.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Annotated[str | None, NamesFile()] = Field(
        default=None, description="File of items, relative to the config: .jsonl, .json, .csv or .parquet"
    )
    function: str | None = Field(
        default=None, description="Loader 'file.py:function' that returns an iterable of items"
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of the loader function"
    )
    hub: str | None = Field(
        default=None, description="Dataset of a model hub, such as openai/gsm8k (extra: hub)"
    )
    name: str | None = Field(default=None, description="Configuration of the hub's dataset, such as main")
    split: str | None = Field(default=None, description="Split of the hub's dataset, such as test")
    revision: str | None = Field(default=None, description="Commit, tag or branch of the hub's dataset")
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
        sources = [key for key in ("path", "function", "hub") if getattr(self, key) is not None]
        if len(sources) != 1:
            found = " and ".join(sources) if sources else "none of them"
            raise ValueError(f"a dataset is one of path, function or hub; found {found}")
        for key, owner in (("params", "function"), ("name", "hub"), ("split", "hub"), ("revision", "hub")):
            if getattr(self, key) and sources != [owner]:
                raise ValueError(f"'{key}' belongs to a dataset with '{owner}', this one has '{sources[0]}'")
        if self.hub is not None and self.split is None:
            raise ValueError(f"dataset '{self.hub}' of the hub needs a split, such as split: test")
        return self

    def describe(self) -> str:
        """The source in a few words, for messages."""
        if self.hub is not None:
            return "/".join(part for part in (self.hub, self.name, self.split) if part)
        return self.path or self.function or ""


class DatasetError(ConfigError):
    """A dataset, a template file or an item that can't be used; names the file and line, or the item."""


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
