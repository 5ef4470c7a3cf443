"""``filter_list`` of the harness as native filter configs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.functions import encoded, functions_in, reference
from tasks.benchmarks.lm_eval.reading import FunctionName
from tasks.benchmarks.lm_eval.signatures import registered_filter

# What a filter of the harness does with an answer it finds nothing in; natively that is "no prediction".
DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "regex": {"regex_pattern": r"#### (\-?[0-9\.\,]+)", "group_select": 0, "fallback": "[invalid]"},
    "multi_choice_regex": {
        "regex_pattern": r"#### (\-?[0-9\.\,]+)",
        "group_select": 0,
        "fallback": "[invalid]",
    },
    "regex_pos": {"fallback": ["invalid"]},
}
DEFAULT_PIPELINE: Final = {"name": "none", "filter": [{"function": "take_first"}]}
# After one of these an item has one prediction; without, the harness scores the list of all of them as one.
ONE_PREDICTION: Final = ("take_first",)
COLLECT: Final = {"function": "collect"}


def translate_filters(config: Mapping[str, Any], base_dir: Path, where: str) -> list[dict[str, Any]]:
    """Filter configs without metrics; raises ConfigError for a pipeline or step that the harness would not
    take."""
    if config.get("filter_list") is None:
        return [dict(DEFAULT_PIPELINE)]
    if not config["filter_list"]:
        raise ConfigError(f"{where}: filter_list is empty; leave it out for the default, take_first")
    pipelines: dict[str, dict[str, Any]] = {}
    for entry in config["filter_list"]:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ConfigError(
                f"{where}: an entry of filter_list is a mapping with 'name' and 'filter', got {entry!r:.80}"
            )
        name, steps = entry["name"], entry.get("filter")
        unknown = sorted(set(entry) - {"name", "filter"})
        if unknown or not isinstance(steps, list):
            problem = f"has no key '{unknown[0]}'" if unknown else "needs 'filter', a list of steps"
            raise ConfigError(f"{where}: filter '{name}' {problem}")
        if name in pipelines:
            raise ConfigError(f"{where}: two filters are named '{name}'; every name is there once")
        chain = [_step(step, config, base_dir, f"{where}: filter '{name}'") for step in steps]
        pipelines[name] = {"name": name, "filter": chain}
    return list(pipelines.values())


def takes_one(pipeline: Mapping[str, Any]) -> bool:
    """Whether the pipeline leaves one prediction an item."""
    return any(step["function"] in ONE_PREDICTION for step in pipeline["filter"])


def _step(step: Any, config: Mapping[str, Any], base_dir: Path, where: str) -> dict[str, Any]:
    if not isinstance(step, Mapping) or not isinstance(step.get("function"), str):
        raise ConfigError(f"{where}: a step is a mapping with 'function', got {step!r:.80}")
    function: str | None = step["function"]
    arguments = {key: value for key, value in step.items() if key != "function"}
    if function == "custom":
        function = arguments.pop("filter_fn", None)
        if not isinstance(function, FunctionName) or arguments:
            raise ConfigError(f"{where}: step custom takes 'filter_fn: !function module.name' alone")
    assert function is not None
    found = function if isinstance(function, FunctionName) else _registered(function, config, where)
    if isinstance(found, FunctionName):
        return {"function": reference(found, base_dir), **encoded(arguments, base_dir)}
    return {"function": found, **DEFAULTS.get(found, {}), **arguments}


def _registered(name: str, config: Mapping[str, Any], where: str) -> str:
    """A filter of this program, else one that the definition's own files register under the name."""
    from scorers.filters.registry import FILTERS

    if name in FILTERS:
        return name
    files = dict.fromkeys(function.rpartition(":")[0] for function in functions_in(config))
    own = registered_filter(name, [Path(file) for file in files if file.endswith(".py")])
    if own is None:
        raise ConfigError(f"{where}: {FILTERS.unknown(name)}")
    return own
