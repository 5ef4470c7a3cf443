"""How a refusal of a config is worded: the file, the line, what was expected, what came, and the nearest
known name.

``validated`` turns pydantic's errors into such sentences for configs, gates and suites; ``refusal`` does it
for problems that other checks find.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from flows.config.source import FUNCTION_TAG, OVERRIDE, Location, YamlSource, put
from metrics.aliases import nearest
from metrics.config import WEB, AsWritten, TakesFunction, marks_of
from metrics.errors import ConfigError, NightjarError
from tasks.models.registry import DEFAULT, schemas

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
_KNOWN = " (known: "
FEW = 14
"""So many known keys are listed beside the one that was meant; of more the nearest is enough."""
SHOWN = 60  # characters of a value that a message repeats


class Problem(NamedTuple):
    """One thing that is wrong, and where in the config."""

    location: Location
    message: str


Checked = TypeVar("Checked", bound=BaseModel)


def validated(model: type[Checked], source: YamlSource, data: dict[str, Any]) -> Checked:
    """``data`` of the file ``source`` as the model; raises ConfigError naming file and line of what it
    refuses."""
    try:
        checked = model.model_validate(data)
    except ValidationError as error:
        raise refusal(source, schema_problems(error, model, data)) from error
    if problems := list(misread(checked, data)):
        raise refusal(source, problems)
    return checked


def revalidated(value: Checked, at: Location = ()) -> Checked:
    """A config with every key and value looked at once more, each model in it by itself: pydantic's
    ``model_copy`` looks at none of them. What is as it should be stays the same object.

    Raises ConfigError naming the keys.
    """
    set_here = {name: entry for name, entry in vars(value).items() if name in value.model_fields_set}
    given = {
        name: _revalidated_in(entry, (*at, name))
        for name, entry in (set_here | (value.__pydantic_extra__ or {})).items()
    }
    try:
        again = type(value).model_validate(given)
    except ValidationError as error:
        problems = schema_problems(error, type(value), given)
        raise refusal(
            YamlSource("config", {}), [Problem((*at, *place), said) for place, said in problems]
        ) from error
    same = vars(again) == vars(value) and again.__pydantic_extra__ == value.__pydantic_extra__
    return value if same else again


def _revalidated_in(value: Any, at: Location) -> Any:
    if isinstance(value, BaseModel):
        return revalidated(value, at)
    if isinstance(value, dict):
        return {key: _revalidated_in(entry, (*at, str(key))) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_revalidated_in(entry, (*at, index)) for index, entry in enumerate(value))
    return value


def misread(checked: BaseModel, data: Any) -> Iterator[Problem]:
    """Booleans of ``data`` that the model took for numbers, as pydantic does: ``no`` in YAML is one; and
    numbers and texts that it took for booleans."""
    for location, value in _taken_for_another(checked, data, ()):
        if isinstance(value, bool):
            found = quoted(value_at(data, location))
            yield Problem(location, f"expected {_EXPECTED['bool_type']}, got {found}")
            continue
        options = _annotations(type(checked), location)
        number = "a number" if isinstance(value, float) else "an integer"
        expected = _EXPECTED["string_type"] if str in options else number
        yield Problem(location, _instead_of_boolean(expected, value_at(data, location)))


def _taken_for_another(checked: Any, data: Any, at: Location) -> Iterator[tuple[Location, Any]]:
    if isinstance(data, bool) or isinstance(checked, bool):
        if type(checked) is not type(data) and isinstance(checked, int | float) and data is not None:
            yield at, checked
    elif isinstance(data, Mapping):
        for key, value in data.items():
            inner = getattr(checked, key, None) if isinstance(checked, BaseModel) else _step(checked, key)
            yield from _taken_for_another(inner, value, (*at, key))
    elif isinstance(data, list | tuple) and isinstance(checked, list | tuple) and len(data) == len(checked):
        for index, (inner, value) in enumerate(zip(checked, data, strict=True)):
            yield from _taken_for_another(inner, value, (*at, index))


def _instead_of_boolean(expected: str, value: Any) -> str:
    remedy = f"; quote it: YAML reads yes, no, on and off as {quoted(True)} and {quoted(False)}"
    return f"expected {expected}, got {quoted(value)}{remedy if _EXPECTED['string_type'] in expected else ''}"


def misplaced_functions(model: type[BaseModel], source: YamlSource) -> Iterator[Problem]:
    """Each ``!function`` where a key takes none: its name would be taken for the text or the template."""
    for location in sorted(source.functions, key=str):
        fields = _fields_at(model, location)
        if fields and not any(map(takes_function, fields)):
            name = quoted(value_at(source.data, location))
            yield Problem(location, f"takes no function, got {FUNCTION_TAG} {name}; write the value itself")


def _fields_at(model: type[BaseModel], location: Location) -> list[FieldInfo]:
    """The fields that a place may belong to: those of its last key."""
    end = max((index for index, part in enumerate(location) if isinstance(part, str)), default=0)
    key = str(location[end])
    return [one.model_fields[key] for one in models_at(model, location[:end]) if key in one.model_fields]


def as_written(model: type[BaseModel], source: YamlSource, data: dict[str, Any]) -> dict[str, Any]:
    """``data`` of the file ``source`` with the file's own texts of numbers where a model reads them."""
    kept = deepcopy(data)
    for location, text in source.spellings.items():
        number = value_at(kept, location)
        marks = (mark for info in _fields_at(model, location) for mark in marks_of(info))
        if any(isinstance(mark, AsWritten) and _is_text(number, mark) for mark in marks):
            put(kept, location, text, source.where(location))
    return kept


def _is_text(number: Any, mark: AsWritten) -> bool:
    return isinstance(number, float if mark.indices else int | float)


def takes_function(info: FieldInfo) -> bool:
    """Whether a function may stand under a config's key."""
    return any(isinstance(mark, TakesFunction) for mark in marks_of(info))


def refusal(source: YamlSource, problems: Iterable[Problem]) -> ConfigError:
    """The error for a config's problems, one line each: "gsm8k.yaml:12: models.0.type: …"."""
    return ConfigError("\n".join(located_message(source, problem) for problem in dict.fromkeys(problems)))


def problem_of(location: Location, check: Callable[[], object]) -> Iterator[Problem]:
    """The problem that ``check`` raises as a NightjarError, if it does."""
    try:
        check()
    except NightjarError as error:
        yield Problem(location, str(error))


def located_message(source: YamlSource, problem: Problem) -> str:
    """A problem with its place before it."""
    name = ".".join(map(str, problem.location))
    origin = source.where(problem.location)
    return ": ".join(
        part for part in (origin, "" if origin == f"{OVERRIDE} {name}" else name, problem.message) if part
    )


def schema_problems(error: ValidationError, model: type[BaseModel], data: Any) -> list[Problem]:
    """What ``model`` refused in ``data``; alternatives of one place are one problem."""
    found: dict[Location, list[Mapping[str, Any]]] = {}
    for entry in map(_entry_of, error.errors(include_url=False)):
        own = getattr(entry.get("ctx", {}).get("error"), "location", ())
        found.setdefault((*_place(entry, data), *own), []).append(entry)
    problems = [
        Problem(location, _message(location, entries, model, data))
        for location, entries in found.items()
        if not _follows_from_another(location, entries, found)
    ]
    return _each_list_once(problems)


def _entry_of(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """The library's entry; that a list has no such place is one about the list."""
    place = entry["loc"][-1] if entry["loc"] else None
    if entry["type"] != "missing" or not isinstance(place, int):
        return entry
    return {**entry, "type": "length", "loc": entry["loc"][:-1], "ctx": {"length": place + 1}}


def _each_list_once(problems: Iterable[Problem]) -> list[Problem]:
    """The problems without lists of known keys that one before them ends with."""
    said: set[str] = set()
    shortened = []
    for location, message in problems:
        text, _, listed = message.partition(_KNOWN)
        shortened.append(Problem(location, text if listed and listed in said else message))
        said.add(listed)
    return shortened


def _follows_from_another(
    location: Location, entries: list[Mapping[str, Any]], found: Iterable[Location]
) -> bool:
    """Whether the problem only follows from another one.

    Where the type of a model is unknown, nothing can be said about the keys that belong to a type; where an
    entry of a list is wrong, that the list is not one of the other things it may be is no news.
    """
    if any(at and at[-1] == "type" and location[: len(at)] == (*at[:-1], "config") for at in found):
        return True
    deeper = any(len(at) > len(location) and at[: len(location)] == location for at in found)
    return deeper and all(entry["type"] in _EXPECTED or entry["type"] == "too_short" for entry in entries)


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
        key = str(location[-1])
        options = models_at(model, location[:-1])
        parent = value_at(data, location[:-2])
        elsewhere = ""
        if options and location[-2:-1] == ("config",) and isinstance(parent, Mapping):
            known_types = schemas()
            options = [known_types.get(str(parent.get("type", DEFAULT)), options[0])]
            others = [
                kind
                for kind, other in known_types.items()
                if other not in options and key in known_keys([other])
            ]
            beside = key in known_keys(models_at(model, location[:-2]))
            elsewhere = f" but of type: {others[0]}" if others else " but beside config" if beside else ""
        known = known_keys(meant_models(options, value_at(data, location[:-1])))
        hint = elsewhere or nearest(key, known)
        listed = f"{_KNOWN}{', '.join(known)})" if not hint or len(known) <= FEW else ""
        return f"'{key}' is not a key here{hint}{listed}"
    if kinds == {"missing"}:
        return f"'{location[-1]}' is missing{_purpose(model, location)}"
    if "union_tag_invalid" in kinds:
        context = entries[0]["ctx"]
        known = [tag.strip("'") for tag in context["expected_tags"].split(", ")]
        tag = context["tag"]
        return f"expected type to be one of {', '.join(known)}, got '{tag}'{nearest(tag, known)}"
    if "union_tag_not_found" in kinds:
        tag = entries[0]["ctx"]["discriminator"].strip("'")
        fields = [
            owner.model_fields[tag] for owner in models_at(model, location) if tag in owner.model_fields
        ]
        known = list(dict.fromkeys(str(name) for info in fields for name in get_args(info.annotation)))
        return f"'{tag}' is missing: expected one of {', '.join(known)}"
    own = [entry for entry in entries if entry["type"] in ("value_error", "assertion_error")]
    if own:
        error = own[0]["ctx"]["error"]
        return str(getattr(error, "message", error))
    value = value_at(data, location)
    longest = max((entry["ctx"]["length"] for entry in entries if entry["type"] == "length"), default=0)
    entries = [entry for entry in entries if entry["type"] != "length" or entry["ctx"]["length"] == longest]
    expected = " or ".join(dict.fromkeys(_expectation(entry) for entry in entries))
    literals = [name for entry in entries if entry["type"] == "literal_error" for name in _literals(entry)]
    hint = nearest(value, literals) if isinstance(value, str) else ""
    if isinstance(value, bool):
        return _instead_of_boolean(expected, value)
    return f"expected {expected}, got {quoted(value)}{hint}"


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
    if entry["type"] == "too_long":
        return f"a list of at most {entry['ctx']['max_length']} entries"
    if entry["type"] == "length":
        return f"a list of {entry['ctx']['length']} entries"
    if entry["type"] == "string_too_long":
        return f"text of {entry['ctx']['max_length']} characters at most"
    if entry.get("ctx", {}).get("pattern") == WEB:
        return "an http:// or https:// address"
    message: str = entry["msg"]
    return _EXPECTED.get(entry["type"]) or message.removeprefix("Input should be ").removeprefix(
        "Value error, "
    )


def _literals(entry: Mapping[str, Any]) -> list[str]:
    return [part.strip("'") for part in entry["ctx"]["expected"].replace(" or ", ", ").split(", ")]


def quoted(value: Any) -> str:
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


NOT_WRITTEN: Final = frozenset({"harness", "inspected", "base_dir", "config_file", "mutual_information"})
"""Fields that a config gets where it is read, and that nobody writes."""


def known_keys(models: Iterable[type[BaseModel]]) -> list[str]:
    """The keys that any of the models has and that people write, in the order of their fields."""
    names = (name for owner in models for name in owner.model_fields if name not in NOT_WRITTEN)
    return list(dict.fromkeys(names))


def meant_models(models: list[type[BaseModel]], written: Any) -> list[type[BaseModel]]:
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
    return [option for option in _annotations(model, location) if _is_model(option)]


def _annotations(model: type[BaseModel], location: Location) -> list[Any]:
    """The types that the value at ``location`` below ``model`` may be of."""
    found: list[Any] = [model]
    for part in location:
        found = [inner for annotation in found for inner in _inside(annotation, part)]
    return [option for annotation in found for option in _options(annotation)]


def _inside(annotation: Any, part: str | int) -> Iterator[Any]:
    for option in _options(annotation):
        if isinstance(option, type) and issubclass(option, BaseModel):
            if part in option.model_fields:
                yield option.model_fields[str(part)].annotation
            elif option.model_config.get("extra") == "allow":  # entries under names of the user's own
                yield from get_args(get_type_hints(option).get("__pydantic_extra__"))[1:]
        elif get_origin(option) in (list, tuple) and isinstance(part, int):
            yield get_args(option)[0]
        elif get_origin(option) is dict:
            yield get_args(option)[1]


def _is_model(option: Any) -> bool:
    return isinstance(option, type) and issubclass(option, BaseModel)


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
