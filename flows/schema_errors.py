"""What pydantic refuses, as sentences that name the file, the line, what was expected and the nearest known
name.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from flows.schema_models import fitting, keys, models_at
from flows.yaml_source import OVERRIDE, Location, Source
from metrics.errors import ConfigError, NightjarError, nearest

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
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": "text without slashes and control characters",
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
    origin = source.where(problem.location)
    return ": ".join(
        part for part in (origin, "" if origin == f"{OVERRIDE} {name}" else name, problem.message) if part
    )


def schema_problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """What ``model`` refused in ``data``; alternatives of one place are one problem."""
    found: dict[Location, list[Mapping[str, Any]]] = {}
    for entry in error.errors(include_url=False):
        own = getattr(entry.get("ctx", {}).get("error"), "location", ())
        found.setdefault((*_place(entry, data), *own), []).append(entry)
    return [
        Problem(location, _message(location, entries, model, data))
        for location, entries in found.items()
        if not _said_elsewhere(location, entries, found)
    ]


def _said_elsewhere(location: Location, entries: list[Mapping[str, Any]], found: Iterable[Location]) -> bool:
    """Whether the problem only follows from another one.

    Where the type of a model is unknown, nothing can be said about the keys that belong to a type; where an
    entry of a list is wrong, that the list is not one of the other things it may be is no news.
    """
    if any(at and at[-1] == "type" and location[: len(at)] == (*at[:-1], "config") for at in found):
        return True
    deeper = any(len(at) > len(location) and at[: len(location)] == location for at in found)
    return deeper and all(entry["type"] in _EXPECTED for entry in entries)


def _place(entry: Mapping[str, Any], data: Any) -> Location:
    """The place in the written config. Pydantic's own also names the alternatives of a union that it tried,
    and leaves out a mapping that a validator took apart.
    """
    value = data
    location: Location = ()
    parts = entry["loc"]
    for index, part in enumerate(parts):
        inside = _step(value, part)
        if inside is _ABSENT and isinstance(value, Mapping):
            wrapping = next((key for key, inner in value.items() if _step(inner, part) is not _ABSENT), None)
            if wrapping is not None:
                location, inside = (*location, wrapping), _step(value[wrapping], part)
        if inside is not _ABSENT:
            location, value = (*location, part), inside
        elif index == len(parts) - 1 and entry["type"] == "missing":
            location = (*location, part)
    return location


_ABSENT = object()


def _step(value: Any, part: str | int) -> Any:
    if isinstance(value, Mapping) and part in value:
        return value[part]
    if isinstance(value, list | tuple) and isinstance(part, int) and part < len(value):
        return value[part]
    return _ABSENT


def _message(location: Location, entries: list[Mapping[str, Any]], model: type[BaseModel], data: Any) -> str:
    kinds = {entry["type"] for entry in entries}
    if "extra_forbidden" in kinds:
        known = keys(fitting(models_at(model, location[:-1]), value_at(data, location[:-1])))
        key = str(location[-1])
        return f"'{key}' is not a key here{nearest(key, known)} (known: {', '.join(known)})"
    if kinds == {"missing"}:
        return f"'{location[-1]}' is missing{_purpose(model, location)}"
    if "union_tag_invalid" in kinds:
        context = entries[0]["ctx"]
        known = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
        tag = context["tag"]
        return f"expected type to be one of {', '.join(known)}, got '{tag}'{nearest(tag, known)}"
    own = [entry for entry in entries if entry["type"] in ("value_error", "assertion_error")]
    if own:
        error = own[0]["ctx"]["error"]
        return str(getattr(error, "message", error))
    value = value_at(data, location)
    expected = " or ".join(dict.fromkeys(_expectation(entry) for entry in entries))
    literals = [name for entry in entries if entry["type"] == "literal_error" for name in _literals(entry)]
    return (
        f"expected {expected}, got {shown(value)}{nearest(value, literals) if isinstance(value, str) else ''}"
    )


def value_at(data: Any, location: Location) -> Any:
    """The value at a place of the written config; None where there is none."""
    for part in location:
        data = _step(data, part)
    return None if data is _ABSENT else data


def _expectation(entry: Mapping[str, Any]) -> str:
    if entry["type"] == "literal_error":
        return f"one of {', '.join(_literals(entry))}"
    if entry["type"] == "too_short":
        return f"at least {entry['ctx']['min_length']} entries"
    message: str = entry["msg"]
    return _EXPECTED.get(entry["type"]) or message.removeprefix("Input should be ").removeprefix(
        "Value error, "
    )


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
    for owner in models_at(model, location[:-1]):
        info = owner.model_fields.get(str(location[-1]))
        if info is not None and info.description:
            return f": {info.description[0].lower()}{info.description[1:]}"
    return ""


def refused(location: Location, check: Callable[[], object]) -> Iterator[Problem]:
    """The problem that ``check`` raises as a NightjarError, if it does."""
    try:
        check()
    except NightjarError as error:
        yield Problem(location, str(error))
