"""What a log of Inspect holds, as far as it is read here: a log that comes from elsewhere may hold anything.

Only types are checked, by ``checked_header`` and ``checked_sample``; what they give is what was read.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.datasets.config import DatasetError

MOST_EPOCHS: Final = 1_000_000
LARGEST: Final = 2**53
"""The largest count that every reader of JSON holds exactly."""


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


Document = dict[str, Any]


class _Config(_Shape):
    epochs: Annotated[int, Field(ge=1, le=MOST_EPOCHS)] | None = None
    epochs_reducer: str | list[str] | None = None


class _Dataset(_Shape):
    sample_ids: list[str | int | float] | None = None


class _Evaluation(_Shape):
    task: str | None = None
    model: str | None = None
    config: _Config | None = None
    dataset: _Dataset | None = None


class _Results(_Shape):
    scores: list[Document] | None = None


class _Header(_Shape):
    status: str | None = None
    eval: _Evaluation
    results: _Results | None = None
    samples: list[Document] | None = None


class _Text(_Shape):
    message: str | None = None


class _Message(_Shape):
    role: str | None = None
    content: str | list[str | Document] | None = None
    tool_calls: list[Document] | None = None
    tool_call_id: str | None = None
    error: _Text | None = None


class _Choice(_Shape):
    message: _Message | None = None
    stop_reason: str | None = None


class _Output(_Shape):
    model: str | None = None
    choices: list[_Choice] | None = None
    completion: str | None = None


class _Usage(_Shape):
    input_tokens: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    output_tokens: Annotated[int, Field(ge=0, le=LARGEST)] | None = None


class _Sample(_Shape):
    id: str | int | float | None = None
    epoch: Annotated[int, Field(ge=1, le=MOST_EPOCHS)] | None = None
    input: str | list[_Message] | None = None
    messages: list[_Message] | None = None
    output: _Output | None = None
    scores: dict[str, Document] | None = None
    model_usage: dict[str, _Usage] | None = None
    attachments: dict[str, str] | None = None
    total_time: float | None = None


Shape = TypeVar("Shape", bound=_Shape)


def checked_header(document: Mapping[str, Any], place: str) -> None:
    """Raises DatasetError, which names ``place`` and the key, for a header that is no log's."""
    _check(_Header, document, place)


def checked_sample(document: Any, place: str) -> dict[str, Any]:
    """The sample; raises DatasetError, which names ``place`` and the key, where it is none."""
    _check(_Sample, document, place)
    sample: dict[str, Any] = document
    return sample


def _check(shape: type[Shape], document: Any, place: str) -> None:
    try:
        shape.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(map(str, first["loc"])) or "it"
        raise DatasetError(
            f"{place}: is no log of Inspect: {key}: {first['msg']}, got {str(first['input'])[:80]!r}"
        ) from None
