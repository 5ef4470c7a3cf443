"""What pydantic refuses, as sentences that name the file, the line, what was expected and the nearest known name."""

import typing
from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from flows.yaml_source import Location, Source
from metrics.errors import ConfigError, nearest

_EXPECTED = {
    "string_type": "text",
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}
SHOWN = 60  # characters of a value that a message repeats


class Problem(NamedTuple):
    """One thing that is wrong, and where in the config."""

    location: Location
    message: str


def refusal(source: Source, problems: Iterable[Problem]) -> ConfigError:
    """The error for a config's problems, one line each: "gsm8k.yaml:12: models.0.type: …"."""
    return ConfigError("\n".join(sentence(source, problem) for problem in dict.fromkeys(problems)))


def sentence(source: Source, problem: Problem) -> str:
    """A problem with its place before it."""
    name = ".".join(map(str, problem.location))
    return ": ".join(part for part in (source.where(problem.location), name, problem.message) if part)


def schema_problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """What ``model`` refused in ``data``; alternatives of one place are one problem."""
    found: dict[Location, list[tuple[Mapping[str, Any], Any]]] = {}
    for entry in _entries(error, (), model, data):
        found.setdefault(entry[0], []).append(entry[1:])
    wrong_types = {at[:-1] for at in found if at and at[-1] == "type"}
    return [
        Problem(location, _message(location, entries, model))
        for location, entries in found.items()
        # Where the type of a model or scorer is unknown, nothing can be said about the keys that belong to a type.
        if not any(at != location[:-1] and location[: len(at)] == at for at in wrong_types)
        or not any("config" in location[len(at) :] for at in wrong_types if location[: len(at)] == at)
    ]


def _entries(
    error: ValidationError, prefix: Location, model: type[BaseModel], data: Any
) -> Iterator[tuple[Location, Mapping[str, Any], Any]]:
    for entry in error.errors(include_url=False):
        location, value = _place(prefix, entry, data)
        nested = entry.get("ctx", {}).get("error")
        if isinstance(nested, ValidationError):
            field = _field_of(nested.title, model, location)
            yield from _entries(nested, (*location, field) if field else location, model, data)
        else:
            yield location, entry, value


def _place(prefix: Location, entry: Mapping[str, Any], data: Any) -> tuple[Location, Any]:
    """The place in the written config: pydantic's own also names the alternatives of a union it tried."""
    value = data
    for part in prefix:
        value = _step(value, part)
    location = prefix
    parts = entry["loc"]
    for index, part in enumerate(parts):
        inside = _step(value, part, _ABSENT)
        if inside is not _ABSENT:
            location, value = (*location, part), inside
        elif index == len(parts) - 1 and entry["type"] == "missing":
            location = (*location, part)
    return location, value


_ABSENT = object()


def _step(value: Any, part: str | int, default: Any = None) -> Any:
    if isinstance(value, Mapping) and part in value:
        return value[part]
    if isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
        return value[part]
    return default


def _message(location: Location, entries: list[tuple[Mapping[str, Any], Any]], model: type[BaseModel]) -> str:
    kinds = {entry["type"] for entry, _ in entries}
    first, value = entries[0]
    if "extra_forbidden" in kinds:
        known = _keys(model, location[:-1])
        return f"'{location[-1]}' is not a key here{nearest(str(location[-1]), known)} (known: {', '.join(known)})"
    if kinds == {"missing"}:
        return f"'{location[-1]}' is missing{_purpose(model, location)}"
    own = [entry for entry, _ in entries if entry["type"] in ("value_error", "assertion_error")]
    if own:
        return str(own[0]["ctx"]["error"])
    expected = " or ".join(dict.fromkeys(_expectation(entry) for entry, _ in entries))
    hint = nearest(value, _literals(first)) if isinstance(value, str) and first["type"] == "literal_error" else ""
    return f"expected {expected}, got {shown(value)}{hint}"


def _expectation(entry: Mapping[str, Any]) -> str:
    if entry["type"] == "literal_error":
        return f"one of {', '.join(_literals(entry))}"
    message: str = entry["msg"]
    return _EXPECTED.get(entry["type"]) or message.removeprefix("Input should be ").removeprefix("Value error, ")


def _literals(entry: Mapping[str, Any]) -> list[str]:
    return [part.strip("'") for part in entry["ctx"]["expected"].replace(" or ", ", ").split(", ")]


def shown(value: Any) -> str:
    """A value as a message repeats it, cut where it is long."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, value)) or 'no keys'}"[:SHOWN]
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _purpose(model: type[BaseModel], location: Location) -> str:
    for owner in _models_at(model, location[:-1]):
        info = owner.model_fields.get(str(location[-1]))
        if info is not None and info.description:
            return f": {info.description[0].lower()}{info.description[1:]}"
    return ""


def _keys(model: type[BaseModel], location: Location) -> list[str]:
    return list(dict.fromkeys(name for owner in _models_at(model, location) for name in owner.model_fields))


def _field_of(title: str, model: type[BaseModel], location: Location) -> str | None:
    """The field of the model at ``location`` whose value is of the class ``title``."""
    for owner in _models_at(model, location):
        for name, info in owner.model_fields.items():
            if any(inner.__name__ == title for inner in _models(info.annotation)):
                return name
    return None


def _models_at(model: type[BaseModel], location: Location) -> list[type[BaseModel]]:
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
    return [option for option in _options(annotation) if isinstance(option, type) and issubclass(option, BaseModel)]


def _options(annotation: Any) -> Iterator[Any]:
    """The alternatives of an annotation, without the wrappings of Annotated and unions."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _options(get_args(annotation)[0])
    elif origin in (Union, UnionType, typing.Union):
        for option in get_args(annotation):
            yield from _options(option)
    else:
        yield annotation
