"""The reference of every key that a config may hold, read off the pydantic models that check it.

``sections`` lists the keys with type, default and meaning; ``as_markdown`` makes the page docs/config.md of
them, ``json_schema`` what editors complete and check a YAML file with. A name alone in the place of a mapping
is found by trying (``short_forms``); what else a model takes besides its own fields is told in ``_widen``.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.fields import FieldInfo

from flows.config.errors import NOT_WRITTEN
from flows.config.schema import EvalConfig
from flows.config.source import Location
from metrics.config import Gathering, MetricConfig, OneOrMany, marks_of
from scorers.config import DefaultScorerConfig, UserScorerConfig
from scorers.judge.config import JudgeConfig
from tasks.models.config import ModelConfig
from tasks.models.registry import DEFAULT, schemas
from tasks.verdicts.config import (
    METHOD_PARAMS,
    METRIC_PARAMS,
    EvaluationMethodConfig,
    EvaluationMetricConfig,
)

Model = type[BaseModel]

_TEXT: Final = {"type": "string"}
_OBJECT: Final = {"type": "object"}
_ALONE: Final[Mapping[str, Any]] = {"string": "x", "integer": 1}
"""What may stand in the place of a whole mapping, such as its name, its path or its number: a value of each
type, which a model is tried with."""
_OTHER_SHAPE: Final = frozenset(
    {"model_type", "model_attributes_type", "dict_type", "list_type", "tuple_type", "union_tag_not_found"}
)
"""What pydantic calls it where a value has another shape; any other error is about what it was read as."""
_BY_TYPE: Final[Mapping[Model, Callable[[], Mapping[str, Model]]]] = {
    EvaluationMethodConfig: lambda: METHOD_PARAMS,
    EvaluationMetricConfig: lambda: METRIC_PARAMS,
    ModelConfig: schemas,
}
"""Models whose ``params`` or ``config`` depend on their ``type``."""
_PLAIN: Final = {
    str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "", Any: "anything",
    JsonValue: "anything",
}  # fmt: skip


@dataclass(frozen=True)
class Key:
    """One key: its dotted path, what it takes, what holds without it, and its meaning."""

    path: str
    value: str
    default: str
    meaning: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Section:
    """The keys of one mapping. ``condition`` tells it from others of the same path, as "type demo"."""

    path: str
    condition: str
    about: str
    keys: tuple[Key, ...]

    @property
    def title(self) -> str:
        """Path and condition, the heading of the section."""
        return f"{self.path} ({self.condition})" if self.condition else self.path


def sections() -> list[Section]:
    """Every mapping of an evaluation's config with its keys, outermost first."""
    return list(_sections(EvalConfig, "", "", _places()))


def keys_named(name: str) -> list[Section]:
    """The sections of a key: what is below it, and the entries of that path or that last part alone."""
    wanted = re.sub(r"(\.\d+)+(?=\.|$)", "", name)
    found = []
    for section in sections():
        own = tuple(key for key in section.keys if wanted in (key.path, key.name))
        if wanted == section.path:
            found.append(section)
        elif own:
            found.append(Section(section.path, section.condition, "", own))
    return found


def known_paths() -> list[str]:
    """Every path that ``keys_named`` knows."""
    found = sections()
    return list(
        dict.fromkeys(
            [section.path for section in found] + [key.path for section in found for key in section.keys]
        )
    )


def _sections(model: Model, path: str, condition: str, at: Mapping[Model, str]) -> Iterator[Section]:
    """The section of a model and those of the models inside it, each at the place where ``at`` tells it."""
    fields = {name: info for name, info in model.model_fields.items() if name not in NOT_WRITTEN}
    keys = tuple(_key(model, name, info, path, at) for name, info in fields.items())
    yield Section(path, condition, _paragraph(model), keys)
    for inner, below, told in _inside(model, path):
        if at.get(inner) == below:
            yield from _sections(inner, below, told, at)


def _inside(model: Model, path: str) -> Iterator[tuple[Model, str, str]]:
    """The models of a model's fields, each with its path and what tells it from others of that path."""
    for name, info in model.model_fields.items():
        below = f"{path}.{name}" if path else name
        if name in NOT_WRITTEN:
            continue
        if model in _BY_TYPE and name in ("params", "config"):
            kinds = _BY_TYPE[model]()
            for inner in dict.fromkeys(kinds.values()):
                told = ", ".join(kind for kind, other in kinds.items() if other is inner)
                if inner.model_fields:
                    yield inner, below, f"type {told}"
            continue
        inside = _models(info.annotation)
        for inner in inside:
            yield inner, below, _kind(inner) if len(inside) > 1 else ""
    if (named := _named_model(model)) is not None:
        yield named, f"{path}.NAME", ""


def _places() -> dict[Model, str]:
    """Where each model is told: at its shortest path, the first of those."""
    at: dict[Model, str] = {EvalConfig: ""}
    waiting: list[tuple[Model, str]] = [(EvalConfig, "")]
    while waiting:
        model, path = waiting.pop(0)
        for inner, below, _ in _inside(model, path):
            if inner not in at:
                at[inner] = below
                waiting.append((inner, below))
    return at


def _key(model: Model, name: str, info: FieldInfo, path: str, at: Mapping[Model, str]) -> Key:
    value = " or ".join([*map(_short, short_forms_of_field(model, name)), _value(info)])
    if model is ModelConfig and name == "type":
        value = " | ".join([*schemas(), "file.py:Class"])
    if OneOrMany in marks_of(info):
        value = f"{value}, or one alone"
    below = f"{path}.{name}" if path else name
    told = [at[inner] for inner in _models(info.annotation) if inner in at]
    elsewhere = [place for place in told if place != below and model not in _BY_TYPE]
    meaning = (info.description or "") + (f"; as {elsewhere[0]}" if elsewhere else "")
    return Key(below, value, _default(model, name, info), _sentence(meaning))


def _sentence(text: str) -> str:
    """With a capital, unless it begins with a value that it explains."""
    return text if re.match(r"\w+:|[\w./:]+\.py", text) else text[:1].upper() + text[1:]


def _default(model: Model, name: str, info: FieldInfo) -> str:
    if info.is_required():
        return "the file's name" if model is EvalConfig else "required"
    value = info.get_default(call_default_factory=True, validated_data={})
    if value in (None, (), {}, []):
        return ""
    if isinstance(value, BaseModel):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {entry:g}" for key, entry in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:g}"
    return repr(value) if isinstance(value, str) and not value.strip() else str(value)


def _value(info: FieldInfo) -> str:
    bounds = {type(entry).__name__.lower(): entry for entry in info.metadata}
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {getattr(bounds[name], name):g}"
        for name, sign in signs.items()
        if name in bounds and abs(getattr(bounds[name], name)) < 2**62
    ]
    return " ".join([_type(info.annotation), *([", ".join(limits)] if limits else [])])


def _type(annotation: Any) -> str:
    origin = get_origin(annotation)
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    if origin is Annotated:
        return _type(get_args(annotation)[0])
    if origin is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if origin in (Union, UnionType):
        parts = dict.fromkeys(part for part in map(_type, get_args(annotation)) if part)
        return " or ".join(parts)
    if origin in (list, tuple):
        return f"list of {_plural(_type(get_args(annotation)[0]))}"
    if origin is dict:
        inner = _type(get_args(annotation)[1])
        return "mapping" if inner == "anything" else f"mapping of {_plural(inner)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return " or ".join([*map(_short, short_forms(annotation)), "mapping"])
    return "anything"


def _short(kind: str) -> str:
    return _PLAIN[type(_ALONE[kind])]


@cache
def short_forms(model: Model) -> tuple[str, ...]:
    """JSON types of which a value alone may stand for the whole mapping, as its name or its path."""
    return tuple(kind for kind, value in _ALONE.items() if _is_read(model, value, ()))


@cache
def short_forms_of_field(model: Model, name: str) -> tuple[str, ...]:
    """As ``short_forms``, where not the inner model reads such a value but the one whose field it is."""
    annotation = model.model_fields[name].annotation
    inner = _models(annotation)
    told = {kind for one in inner for kind in short_forms(one)} | set(map(_json_type, _plain_in(annotation)))
    return tuple(
        kind
        for kind, value in _ALONE.items()
        if inner and kind not in told and _is_read(model, {name: value}, (name,))
    )


def _is_read(model: Model, value: Any, at: Location) -> bool:
    """Whether a model makes something of the value at that place, be it that it is refused later."""
    try:
        model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        return not any(one["loc"][: len(at)] == at and one["type"] in _OTHER_SHAPE for one in found)
    return True


def _plain_in(annotation: Any) -> Iterator[type]:
    """The plain types in an annotation, outside of its models."""
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for inner in get_args(annotation):
        yield from _plain_in(inner)


def _json_type(plain: type) -> str:
    return next((kind for kind, value in _ALONE.items() if type(value) is plain), "")


def _plural(text: str) -> str:
    return re.sub(r"\b(text|integer|number|mapping)\b", r"\1s", text)


def _models(annotation: Any) -> list[Model]:
    """The models inside an annotation, through lists, mappings and alternatives."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return list(dict.fromkeys(found for inner in get_args(annotation) for found in _models(inner)))


def _named_model(model: Model) -> Model | None:
    """What the entries under names of the user's own are, of a model that takes such."""
    annotation = (
        get_type_hints(model).get("__pydantic_extra__")
        if model.model_config.get("extra") == "allow"
        else None
    )
    found = _models(annotation)
    return found[0] if found else None


def _kind(model: Model) -> str:
    """What tells an alternative from the others."""
    if model is UserScorerConfig:
        return "a class of your own"
    field = model.model_fields.get("type")
    return "type " + _type(field.annotation).replace(" | ", ", ") if field is not None else ""


def _paragraph(model: Model) -> str:
    """The docstring without its examples, in one line."""
    text = (model.__doc__ or "").partition(">>>")[0]
    return " ".join(text.replace("``", "`").split())


def as_markdown() -> str:
    """The page docs/config.md."""
    lines = [
        "# Every key of a config",
        "",
        "Written by `make reference` from the code that reads configs. In a terminal: "
        "`python -m flows.catalog config`,",
        "or one key's part by `python -m flows.catalog config models.config`. A key of a list's entries is "
        "written without its",
        "number here; `--set models.0.config.timeout=300` names the first. [scorers.md](scorers.md) has "
        "examples of scorers,",
        "the folder `deployments/benchmarks` whole configs.",
        "",
        "Editors with a YAML language server complete and check a file that begins with",
        "`# yaml-language-server: $schema=config.schema.json` (the path or address of "
        "[config.schema.json](config.schema.json),",
        "which `python -m flows.catalog config --schema` prints).",
        "",
        "A number may also be a text that holds one, as `1e-5` is to YAML (`1.0e-5` is a number); the schema "
        "refuses it in quotes.",
        "What is true or false is `true` or `false`, no number and no text.",
        "",
        "`benchmark: {lm_eval: NAME}` takes the place of dataset and prompts: "
        "[lm-evaluation-harness.md](lm-evaluation-harness.md).",
    ]
    for section in sections():
        heading = section.title or "The top level"
        lines += ["", f"## {heading}", "", section.about]
        if section.keys:
            lines += ["", "| key | takes | default | meaning |", "|---|---|---|---|"]
        for key in section.keys:
            default = (
                f"`{key.default}`" if key.default not in ("", "required", "the file's name") else key.default
            )
            lines.append(f"| `{key.name}` | {_cell(key.value)} | {default} | {_cell(key.meaning)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of an evaluation's file. It takes all that the config's reader takes, and refuses
    unknown keys and values of a wrong type; what only shows when names are looked up it cannot know.

    It is that of a deployment's form (``declare_short_forms``), with what a file may leave to the reader.
    """
    declare_short_forms()
    schema = EvalConfig.model_json_schema()
    properties = schema["properties"]
    for name in NOT_WRITTEN - {"mutual_information"}:
        del properties[name]
    # The reader takes a key of the top level without a value for one that is not there.
    properties |= {name: _or_null(entry) for name, entry in properties.items()}
    for model in _all_models(EvalConfig):
        if (definition := schema["$defs"].get(model.__name__)) is not None:
            _constrain(definition["anyOf"][-1] if short_forms(model) else definition, model)
    # None of them in a benchmark of lm-evaluation-harness or of Inspect, which brings its prompts.
    alone = [_given(name) for name in EvalConfig.PROMPTS]
    schema["oneOf"] = [*alone, {"not": {"anyOf": alone}}]
    properties["benchmark"] = {
        **_OBJECT,
        "description": "{lm_eval: NAME}: a benchmark of lm-evaluation-harness instead of dataset and prompts",
        "properties": {"lm_eval": dict(_TEXT), "include_path": dict(_TEXT)},
        "required": ["lm_eval"],
    }
    del schema["required"]  # a name comes from the file, models may come from the command line
    schema["title"] = "Nightjar: an evaluation"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _constrain(definition: dict[str, Any], model: Model) -> None:
    """Says which keys of a model have to be there; editors are told, a form shows all of them anyway."""
    if (keys := getattr(model, "ONE_OF", None)) is not None:
        definition["oneOf"] = [_given(name) for name in keys]
    required = [name for name, info in model.model_fields.items() if info.is_required()]
    others = [name for name in model.model_fields if name not in required] if required else []
    if instead := [name for name in others if _is_enough(model, name)]:
        definition["anyOf"] = [{"required": [name]} for name in (*required, *instead)]
    elif required:
        definition["required"] = required


def _given(name: str) -> dict[str, Any]:
    """The schema of a mapping that has a value under this key."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _is_enough(model: Model, name: str) -> bool:
    """Whether a model tells the key that it requires from this one, a text."""
    if str not in _plain_in(model.model_fields[name].annotation):
        return False
    try:
        model.model_validate({name: "own.py:name"})
    except ValidationError as error:
        return all(one["type"] != "missing" for one in error.errors(include_url=False))
    return True


def declare_short_forms() -> None:
    """Has pydantic tell of every model of a config what its validators take, too: for editors, and for the
    form of a deployment, which Prefect makes of the flow's parameters."""
    for model in _all_models(EvalConfig):
        model.model_config["json_schema_extra"] = _as_taken


def _as_taken(schema: dict[str, Any], model: Model) -> None:
    """Changes the schema that pydantic made of a model's fields into that of all that the model takes."""
    _widen(schema, model)
    if short := short_forms(model):
        whole = {key: schema.pop(key) for key in list(schema) if key not in ("title", "description")}
        schema["anyOf"] = [*({"type": kind} for kind in short), whole]


def _all_models(model: Model, seen: frozenset[Model] = frozenset()) -> frozenset[Model]:
    """The model and every one inside it."""
    if model in seen:
        return seen
    seen |= {model}
    for info in model.model_fields.values():
        for inner in _models(info.annotation):
            seen = _all_models(inner, seen)
    return seen


def _widen(definition: dict[str, Any], model: Model) -> None:
    """Lets the schema of one model pass what the model's validators take besides the fields' own types."""
    properties = definition["properties"]
    for name, info in model.model_fields.items():
        if OneOrMany in marks_of(info):
            properties[name] = _or_one(properties[name])
    if issubclass(model, Gathering):
        definition["additionalProperties"] = True
    if model in (MetricConfig, EvaluationMethodConfig, EvaluationMetricConfig, DefaultScorerConfig):
        definition.pop("required", None)  # each may be told from the others: function without a metric
    if model is UserScorerConfig:
        properties["type"]["pattern"] = ":"
    if model is JudgeConfig:
        options = properties["calibration"]["anyOf"]
        options.append({**_OBJECT, "required": ["path"], "properties": {"path": _TEXT, "method": _TEXT}})
    for name in model.model_fields:
        for kind in short_forms_of_field(model, name):
            properties[name]["anyOf"].insert(0, {"type": kind})
    if model is ModelConfig:
        properties["config"].pop("default", None)
        types = [{"enum": list(schemas())}, {"pattern": ":", **_TEXT}]
        properties["type"] = {**properties["type"], "anyOf": types}
        del properties["type"]["type"]
        definition["allOf"] = [_config_of(kind, config) for kind, config in schemas().items()]
        properties["config"] = {"description": "What the model's type needs", **_OBJECT}
    for entry in properties.values():
        entry.pop("title", None)


def _config_of(kind: str, config: Model) -> dict[str, Any]:
    """A model of this type has a config of that schema; without a type it is an endpoint."""
    chosen: dict[str, Any] = {"properties": {"type": {"const": kind}}}
    if kind != DEFAULT:
        chosen["required"] = ["type"]
    return {
        "if": chosen,
        "then": {"properties": {"config": {"anyOf": [_without_references(config), {"type": "null"}]}}},
    }


def _without_references(config: Model) -> dict[str, Any]:
    """The schema of a provider's config, whole: what refers to it names its definitions as it likes."""
    schema = config.model_json_schema()
    definitions = schema.pop("$defs", {})

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        inner = {key: whole(entry) for key, entry in value.items() if key not in ("$ref", "title")}
        if "$ref" in value:
            inner = {**whole(definitions[value["$ref"].rpartition("/")[2]]), **inner}
        return inner

    found: dict[str, Any] = whole(schema)
    return found


def _or_null(entry: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {name: entry[name] for name in ("description", "default") if name in entry}
    own = {name: value for name, value in entry.items() if name not in about}
    null = {"type": "null"}
    return entry if null in own.get("anyOf", ()) else {**about, "anyOf": [*_options(own), null]}


def _options(entry: dict[str, Any]) -> list[dict[str, Any]]:
    options: list[dict[str, Any]] = entry["anyOf"] if set(entry) == {"anyOf"} else [entry]
    return options


def _or_one(entry: dict[str, Any]) -> dict[str, Any]:
    about: dict[str, Any] = {name: entry.pop(name) for name in ("description", "default") if name in entry}
    options = entry.pop("anyOf", [entry])
    single = [option["items"] for option in options if option.get("type") == "array" and "items" in option]
    return {**about, "anyOf": [*options, *single]}
