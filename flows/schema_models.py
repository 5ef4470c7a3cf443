"""Which pydantic models may stand at a place of the config: what messages say is known there."""

from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from flows.yaml_source import Location


def keys(models: Iterable[type[BaseModel]]) -> list[str]:
    """The keys that any of the models has, in the order of their fields."""
    return list(dict.fromkeys(name for owner in models for name in owner.model_fields))


def fitting(models: list[type[BaseModel]], written: Any) -> list[type[BaseModel]]:
    """Of alternatives those that know the most of the keys that were written: the ones that were meant.

    Where a ``type`` was written, those of another type are out.
    """
    models = [owner for owner in models if _of_type(owner, written)] or models
    known = [sum(key in owner.model_fields for key in written or ()) for owner in models]
    return [owner for owner, count in zip(models, known, strict=True) if count == max(known)]


def _of_type(owner: type[BaseModel], written: Any) -> bool:
    field = owner.model_fields.get("type")
    if field is None or not isinstance(written, Mapping) or "type" not in written:
        return True
    return get_origin(field.annotation) is not Literal or written["type"] in get_args(field.annotation)


def models_at(model: type[BaseModel], location: Location) -> list[type[BaseModel]]:
    """The models that the value at ``location`` below ``model`` may be of; several where it is a union."""
    found: list[Any] = [model]
    for part in location:
        found = [inner for annotation in found for inner in _inside(annotation, part)]
    return [owner for annotation in found for owner in _models(annotation)]


def _inside(annotation: Any, part: str | int) -> Iterator[Any]:
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            if part in option.model_fields:
                yield option.model_fields[str(part)].annotation
        elif get_origin(option) in (list, tuple) and isinstance(part, int):
            yield get_args(option)[0]
        elif get_origin(option) is dict:
            yield get_args(option)[1]


def _models(annotation: Any) -> list[type[BaseModel]]:
    return [
        option
        for option in _options(annotation)
        if isinstance(option, type) and issubclass(option, BaseModel)
    ]


def _options(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation, without the wrappings of Annotated and unions."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _options(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for option in get_args(annotation):
            yield from _options(option)
    else:
        yield annotation
