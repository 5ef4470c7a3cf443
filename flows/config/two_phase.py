"""Configs of the two-phase framework (inference, then evaluation), read as native keys.

Everything that means something here is translated; what does not is named in a note. ``docs/two-phase.md``
has the table.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flows.config.source import Location, YamlSource, read_yaml, with_overrides
from metrics.aliases import nearest
from metrics.errors import ConfigError
from tasks.models.config import ModelConfig, SampleParams, merged_bodies
from tasks.models.providers.openai.config import EndpointConfig
from tasks.models.registry import PROVIDERS
from tasks.store.outputs import RESPONSES
from tasks.verdicts.config import METHOD_PARAMS

MODEL_TYPES: Final = ("openai", "vllm", "llama.cpp")
IN_CONTAINERS: Final = ("vllm", "llama.cpp")
METHOD_TYPES: Final = ("custom", "built_in")
_VARIABLE = re.compile(r"\$\{(\w+)\}$")
_SAMPLING: Final = frozenset(SampleParams.model_fields)
_ENDPOINT: Final = frozenset(EndpointConfig.model_fields)
_SAYS_NOTHING: Final = {
    "logging": "the terminal shows progress, and the run's page in Prefect has the log",
    "save_intermediate": "every answer is kept as it arrives",
    "batch_size": "requests are sent one by one, as many at a time as max_workers allows",
    "resume": "every run goes on from what is kept; --refresh infer asks again",
    "resume_from": "every run goes on from what is kept in its store",
    "env_vars": "set them where the command is run",
}
_PLACED: Final = ("workflow", "mode", "max_workers", "output_dir", "limit", "timeout", "max_retries")


@dataclass(frozen=True)
class TwoPhaseSettings:
    """What such a config says about the run and not about the evaluation, and the notes on the rest.

    ``phase`` is infer or score, ``output`` the folder of the run's files, ``limit`` a number of items.
    """

    phase: str | None = None
    output: str | None = None
    limit: int | None = None
    notes: tuple[str, ...] = ()


@dataclass
class _Translation:
    """The native keys, the notes, and where each place of the native config was written."""

    source: YamlSource
    base_dir: Path
    data: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    moved: list[tuple[Location, Location]] = field(default_factory=list)

    def note(self, location: Location, said: str) -> None:
        self.notes.append(f"{self.source.where(location)}: {_dotted(location)}: {said}")

    def refuse(self, location: Location, said: str) -> ConfigError:
        return ConfigError(f"{self.source.where(location)}: {_dotted(location)}: {said}")

    def move(self, old: Location, new: Location) -> None:
        """Remembers that what stands at ``new`` was written at ``old``."""
        self.moved.append((old, new))

    def origins(self) -> dict[Location, str]:
        origins = dict(self.source.origins)
        for old, new in self.moved:
            for place, origin in self.source.origins.items():
                if place[: len(old)] == old:
                    origins[(*new, *place[len(old) :])] = origin
        return origins


def _dotted(location: Location) -> str:
    return ".".join(map(str, location))


def is_two_phase(data: Mapping[str, Any]) -> bool:
    """Whether a config is written in that framework's keys."""
    dataset = data.get("dataset")
    entries = [
        entry
        for key in ("evaluation_methods", "metrics")
        for entry in (data[key] if isinstance(data.get(key), list) else ())
    ]
    return (
        "workflow" in data
        or "eval_prompt_template" in data
        or (isinstance(dataset, Mapping) and "type" in dataset)
        or any(isinstance(entry, Mapping) and entry.get("type") in METHOD_TYPES for entry in entries)
    )


def read_native(path: Path, overrides: Sequence[str] = ()) -> tuple[YamlSource, TwoPhaseSettings | None]:
    """A config's native keys with the overrides in place; what the two-phase framework wrote is translated.

    Beside a translated one stands what it says about the run.
    """
    source = with_overrides(read_yaml(path), overrides, path.parent)
    return translate_two_phase(source, path.parent) if is_two_phase(source.data) else (source, None)


def translate_two_phase(source: YamlSource, base_dir: Path) -> tuple[YamlSource, TwoPhaseSettings]:
    """The native config, and what it says about the run; raises ConfigError naming file, line and key.

    Native keys beside the framework's own stay as they are.
    """
    made = _Translation(source, base_dir)
    settings = _settings(made)
    for key, value in source.data.items():
        if key in _SAYS_NOTHING:
            made.note((key,), f"has no meaning here: {_SAYS_NOTHING[key]}")
        elif key == "inference_engine":
            raise made.refuse((key,), "engines of one's own are not called; name an endpoint in models")
        elif key not in (*_PLACED, "eval_prompt_template", "prompt_template"):
            made.data[key] = value
    _dataset(made)
    _prompts(made)
    _sampling(made)
    made.data["models"] = _models(made, settings)
    for key, kinds in (("evaluation_methods", True), ("metrics", False)):
        if isinstance(source.data.get(key), list):
            made.data[key] = [
                _function_or_built_in(made, (key, index), entry, kinds)
                for index, entry in enumerate(source.data[key])
            ]
    notes = tuple(dict.fromkeys(made.notes))
    translated = YamlSource(source.name, made.data, made.origins(), spellings=source.spellings)
    return translated, TwoPhaseSettings(settings.phase, settings.output, settings.limit, notes)


@dataclass(frozen=True)
class _RunKeys:
    phase: str | None
    output: str | None
    limit: int | None
    endpoint: Mapping[str, Any]
    recorded: Path | None


def _settings(made: _Translation) -> _RunKeys:
    """The keys about the run: those of ``workflow`` win over the same ones at the top."""
    data = made.source.data
    workflow = data.get("workflow") or {}
    if not isinstance(workflow, Mapping):
        raise made.refuse(("workflow",), "expected a mapping with mode, batch_size and max_workers")
    for key in workflow:
        if key not in ("mode", "max_workers"):
            said = _SAYS_NOTHING.get(key, "has no counterpart here")
            made.note(("workflow", key), f"has no meaning here: {said}")
    mode = workflow.get("mode", data.get("mode"))
    at: Location = ("workflow", "mode") if "mode" in workflow else ("mode",)
    phases = {"inference": "infer", "evaluation": "score", "full": "all", None: None}
    if not isinstance(mode, str | None) or mode not in phases:
        raise made.refuse(at, f"expected inference or evaluation, got '{mode}'")
    output = data.get("output_dir")
    recorded = Path(str(output)) / RESPONSES if output and mode == "evaluation" else None
    if recorded is not None and os.path.isfile(recorded):
        made.note(
            ("output_dir",), f"its {RESPONSES} is replayed and stays as it is; no model is asked ({recorded})"
        )
    endpoint = {
        "max_concurrency": workflow.get("max_workers", data.get("max_workers")),
        "timeout": data.get("timeout"),
        "max_retries": data.get("max_retries"),
    }
    given = {key: value for key, value in endpoint.items() if value is not None}
    found = recorded if recorded is not None and os.path.isfile(recorded) else None
    return _RunKeys(
        None if found is not None else phases[mode],
        None if output is None else str(output),
        _limit(made),
        given,
        found,
    )


def _limit(made: _Translation) -> int | None:
    """The number of items; a number may be a text, as in other keys."""
    limit = made.source.data.get("limit")
    if limit is None:
        return None
    if isinstance(limit, bool) or not str(limit).isdecimal() or int(limit) < 1:
        raise made.refuse(("limit",), f"expected a number of items from 1, or null for all, got '{limit}'")
    return int(limit)


def _dataset(made: _Translation) -> None:
    dataset = made.source.data.get("dataset")
    if not isinstance(dataset, Mapping) or "type" not in dataset:
        return
    kind = dataset["type"]
    rest = {key: value for key, value in dataset.items() if key not in ("type", "function_name", "module")}
    if kind == "custom":
        rest.pop("path", None)
        rest["function"] = _function(made, ("dataset",), dataset)
    elif kind in ("file", "built_in"):
        if rest.pop("params", None):
            made.note(("dataset", "params"), "has no meaning for a file")
    else:
        raise made.refuse(("dataset", "type"), f"expected file or custom, got '{kind}'")
    made.data["dataset"] = rest


def _function(made: _Translation, at: Location, entry: Mapping[str, Any]) -> str:
    """``path: eval.py, function_name: f`` as "eval.py:f"; without a name the entry's own."""
    home, name = entry.get("path") or entry.get("module"), entry.get("function_name") or entry.get("name")
    if not home or not name:
        raise made.refuse(at, "of type custom needs path (or module) and function_name")
    made.move((*at, "path" if entry.get("path") else "module"), (*at, "function"))
    return f"{home}:{name}"


def _prompts(made: _Translation) -> None:
    data = made.source.data
    key = "eval_prompt_template" if "eval_prompt_template" in data else "prompt_template"
    if key not in data:
        return
    if key != "prompt_template" and "prompt_template" in data:
        made.note(("prompt_template",), "is not used: eval_prompt_template stands beside it")
    value = data[key]
    if isinstance(value, str) and not _is_file(value, made.base_dir):
        made.data["prompt_template"] = value
        made.move((key,), ("prompt_template",))
        return
    entries = value if isinstance(value, list) else [value]
    made.data["prompt_templates"] = [
        _prompt(made, (key, index) if isinstance(value, list) else (key,), entry, index, len(entries))
        for index, entry in enumerate(entries)
    ]
    made.move((key,), ("prompt_templates",) if isinstance(value, list) else ("prompt_templates", 0))


def _is_file(text: str, base_dir: Path) -> bool:
    return "\n" not in text and "{{" not in text and len(text) < 1000 and os.path.isfile(base_dir / text)


def _prompt(made: _Translation, at: Location, entry: Any, index: int, count: int) -> dict[str, Any]:
    if isinstance(entry, str):
        entry = {"path" if _is_file(entry, made.base_dir) else "template": entry}
    if not isinstance(entry, Mapping):
        raise made.refuse(at, "expected a template, or a mapping with path")
    named = Path(str(entry["path"])).stem if entry.get("path") else f"prompt_{index + 1}"
    return {"name": named if count > 1 else "default", **entry}


def _sampling(made: _Translation) -> None:
    params = made.source.data.get("sample_params")
    if isinstance(params, Mapping):
        own, others = _sorted_sampling(made, ("sample_params",), params)
        made.data["sample_params"] = own
        for key in others:
            said = "is sent to endpoints as it is (config.extra_body)"
            made.note(("sample_params", key), said)


def _sorted_sampling(
    made: _Translation, at: Location, params: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sampling parameters by their names here, and what else is sent along with each request."""
    own: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for key, value in params.items():
        if key == "think":
            made.note((*at, key), "has no meaning here: that framework does not send it either")
        elif key == "max_tokens" and isinstance(value, int) and value <= 0:
            made.note((*at, key), "is left out: no limit is asked for")
        else:
            (own if key in _SAMPLING else others)[key] = value
    return own, others


def _models(made: _Translation, settings: _RunKeys) -> Any:
    entries = made.source.data.get("models")
    if not isinstance(entries, list):
        return entries
    common = made.source.data.get("sample_params")
    quiet = _Translation(made.source, made.base_dir)  # what is common was said once already
    extra = _sorted_sampling(quiet, (), common)[1] if isinstance(common, Mapping) else {}
    return [_model(made, ("models", index), entry, settings, extra) for index, entry in enumerate(entries)]


def _model(made: _Translation, at: Location, entry: Any, settings: _RunKeys, extra: Mapping[str, Any]) -> Any:
    named = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(named, Mapping) or _is_native(named.get("type")):
        return entry
    if settings.recorded is not None:
        place = str(settings.recorded.resolve())
        return {"name": named.get("name"), "type": "replay", "config": {"path": place}}
    kind = named.get("type", "openai")
    if kind not in MODEL_TYPES:
        types = [*MODEL_TYPES, *(name for name in PROVIDERS if name not in MODEL_TYPES)]
        known, hint = ", ".join(types), nearest(str(kind), types)
        raise made.refuse((*at, "type"), f"expected one of {known}, got '{kind}'{hint}")
    config, sampling = _endpoint(made, at, named, settings, extra)
    if kind in IN_CONTAINERS or named.get("docker") or named.get("model_path"):
        made.note(at, f"no container is started: '{named.get('name')}' is asked at {config['base_url']}")
    kept = {key: value for key, value in named.items() if key in ModelConfig.model_fields}
    return {**kept, "type": "openai", "config": config, **({"sample_params": sampling} if sampling else {})}


def _is_native(kind: Any) -> bool:
    """Whether it is a model type of ours that the two-phase files have no word for."""
    return isinstance(kind, str) and kind not in MODEL_TYPES and kind in PROVIDERS


_MODEL_KEYS: Final = ("endpoint", "api_key", "model_name", "model_path", "docker", "inference", "params")


def _endpoint(
    made: _Translation,
    at: Location,
    entry: Mapping[str, Any],
    settings: _RunKeys,
    extra: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The endpoint of a model and how it samples; the model's own keys win over those of the run."""
    given, sampling, others = dict[str, Any](), dict(entry.get("sample_params") or {}), dict(extra)
    for key in ("config", "params", "inference"):
        inner = entry.get(key) or {}
        if not isinstance(inner, Mapping):
            raise made.refuse((*at, key), "expected a mapping")
        endpoint = {name: value for name, value in inner.items() if name in _ENDPOINT}
        rest = {n: v for n, v in inner.items() if n not in _ENDPOINT and n not in ("api_key", "endpoint")}
        own, more = _sorted_sampling(made, (*at, key), rest)
        given, sampling, others = {**given, **endpoint}, {**sampling, **own}, {**others, **more}
        given |= _key(made, (*at, key), inner) | _address(inner)
    for key in entry:
        if key not in (*_MODEL_KEYS, *ModelConfig.model_fields) and key not in _ENDPOINT:
            made.note((*at, key), "has no counterpart here")
    docker = entry.get("docker") if isinstance(entry.get("docker"), Mapping) else {}
    port = docker.get("host_port") if docker else None
    default = {"base_url": f"http://localhost:{port or 1234}/v1"}
    top = {name: entry[name] for name in _ENDPOINT & entry.keys()}
    name = {"model": entry["model_name"]} if entry.get("model_name") else {}
    given = default | dict(settings.endpoint) | given | top | name | _key(made, at, entry) | _address(entry)
    if others:
        given["extra_body"] = merged_bodies(others, given.get("extra_body") or {})
    made.move((*at, "endpoint"), (*at, "config", "base_url"))
    return given, sampling


def _address(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"base_url": entry["endpoint"]} if entry.get("endpoint") else {}


def _key(made: _Translation, at: Location, entry: Mapping[str, Any]) -> dict[str, Any]:
    """The environment variable of a key; a key that is written out is refused, and not repeated."""
    key = entry.get("api_key")
    if key is None:
        return {}
    variable = _VARIABLE.match(key) if isinstance(key, str) else None
    if variable is None:
        raise made.refuse(
            (*at, "api_key"), "holds a key; put it into an environment variable and write ${NAME} here"
        )
    return {"api_key_env": variable[1]}


def _function_or_built_in(made: _Translation, at: Location, entry: Any, method: bool) -> Any:
    """An evaluation method or a metric by its native keys."""
    if not isinstance(entry, Mapping):
        return entry
    made_of = ("path", "module", "function_name", "type")
    rest = {key: value for key, value in entry.items() if key not in made_of}
    kind = entry.get("type") or ("built_in" if "function" not in entry else None)
    if kind == "custom":
        rest["function"] = _function(made, at, entry)
    elif kind is not None:
        rest["type"] = entry.get("name") if kind == "built_in" else kind
    if not method:
        given = entry.get("labels") or {}
        if not isinstance(given, Mapping):
            raise made.refuse((*at, "labels"), f"expected labels by key, got '{given}'")
        labels = {key: names for key, names in given.items() if names}
        rest = {key: value for key, value in rest.items() if key not in ("labels", "facets")}
        rest |= {"facets": entry.get("facets") or [], **({"labels": labels} if labels else {})}
    elif isinstance(rest.get("type"), str) and (native := METHOD_PARAMS.get(rest["type"])) is not None:
        params = rest.get("params") or {}
        rest["params"] = _built_in_params(made, at, str(rest["type"]), native.model_fields, params)
    return rest


_RENAMED: Final = {("exact_match", "strip_whitespace"): "strip"}
"""Arguments of the framework's built-in methods that have another name here; ``_changed`` has those that mean
something else."""
_FLAGS: Final = {"ignore_case": re.IGNORECASE, "multiline": re.MULTILINE, "dotall": re.DOTALL}


def _built_in_params(
    made: _Translation, at: Location, kind: str, native: Collection[str], params: Mapping[str, Any]
) -> dict[str, Any]:
    if not isinstance(params, Mapping):
        raise made.refuse((*at, "params"), f"expected arguments by name, got '{params}'")
    found: dict[str, Any] = {}
    for key, value in params.items():
        changed = _changed(kind, key, value)
        if changed is not None:
            found |= changed
        elif (name := _RENAMED.get((kind, key), key)) in native:
            found[name] = value
        else:
            made.note((*at, "params", key), f"has no counterpart in {kind} here")
    return found


def _changed(kind: str, key: str, value: Any) -> dict[str, Any] | None:
    """An argument that means something else by another name: case_sensitive: false is ignore_case: true."""
    if value is None:
        return {}
    match kind, key:
        case ("exact_match" | "contains", "case_sensitive"):
            return {"ignore_case": not value}
        case "contains", "expected_content":
            return {"values": [str(value)]}
        case "regex_match", "flags" if isinstance(value, int):
            return {name: True for name, flag in _FLAGS.items() if value & flag}
        case "json_match", "strict":
            return {"compare": "structure", "allow_extra_keys": not value}
        case "length_check", "expected_length":
            return {"min_length": value, "max_length": value}
    return None


def notes_of(settings: Sequence[TwoPhaseSettings]) -> tuple[str, ...]:
    """The notes of several configs, each once."""
    return tuple(dict.fromkeys(note for entry in settings for note in entry.notes))
