"""``filter_list`` of the harness as native filter configs."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.functions import reference
from tasks.benchmarks.lm_eval.reading import FunctionName

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
COLLECT: Final = {"function": "tasks.benchmarks.lm_eval.filters:collect"}


def collect(resps: list[list[Any]], docs: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """All responses of an item as one prediction, a list: what the harness gives a function where no filter chose one."""
    return [[list(responses)] for responses in resps]


def translate_filters(filter_list: Any, base_dir: Path, where: str) -> list[dict[str, Any]]:
    """Filter configs without metrics; raises ConfigError for a pipeline or step that has not the harness's shape."""
    if filter_list is None:
        return [dict(DEFAULT_PIPELINE)]
    pipelines = []
    for entry in filter_list:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise ConfigError(
                f"{where}: an entry of filter_list is a mapping with 'name' and 'filter', got {entry!r:.80}"
            )
        unknown = sorted(set(entry) - {"name", "filter"})
        if unknown:
            raise ConfigError(
                f"{where}: filter '{entry['name']}' has no key '{unknown[0]}'; it has name and filter"
            )
        steps = entry.get("filter")
        if not isinstance(steps, list):
            raise ConfigError(f"{where}: filter '{entry['name']}' needs 'filter', a list of steps")
        pipelines.append(
            {"name": entry["name"], "filter": list(_steps(steps, entry["name"], base_dir, where))}
        )
    names = [pipeline["name"] for pipeline in pipelines]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}: two filters are named '{name}'; every name is there once")
    if not pipelines:
        raise ConfigError(f"{where}: filter_list is empty; leave it out for the default, take_first")
    return pipelines


def takes_one(pipeline: Mapping[str, Any]) -> bool:
    """Whether the pipeline leaves one prediction an item."""
    return any(step["function"] in ONE_PREDICTION for step in pipeline["filter"])


def _steps(steps: list[Any], pipeline: str, base_dir: Path, where: str) -> Iterator[dict[str, Any]]:
    for step in steps:
        if not isinstance(step, Mapping) or not isinstance(step.get("function"), str):
            raise ConfigError(
                f"{where}: a step of filter '{pipeline}' is a mapping with 'function', got {step!r:.80}"
            )
        function = step["function"]
        arguments = {key: value for key, value in step.items() if key != "function"}
        if function == "custom":
            custom = arguments.pop("filter_fn", None)
            if not isinstance(custom, FunctionName) or arguments:
                raise ConfigError(
                    f"{where}: step custom of filter '{pipeline}' takes 'filter_fn: !function …' alone"
                )
            function = custom
        named = reference(function, base_dir) if isinstance(function, FunctionName) else function
        yield {"function": named, **DEFAULTS.get(named, {}), **arguments}
