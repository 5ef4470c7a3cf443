"""From a definition of the harness to the keys of a native config, with everything checked that needs no
data."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.definitions import Definition, Index
from tasks.benchmarks.lm_eval.filters import COLLECT, DEFAULT_PIPELINE, takes_one, translate_filters
from tasks.benchmarks.lm_eval.functions import encoded, functions_in, reference
from tasks.benchmarks.lm_eval.metric_lists import translate_metrics
from tasks.benchmarks.lm_eval.reading import FunctionName
from tasks.benchmarks.lm_eval.sampling import generation_arguments, translate_sampling
from tasks.benchmarks.lm_eval.schema import check_task
from tasks.benchmarks.lm_eval.selection import select_file
from tasks.benchmarks.lm_eval.signatures import check_function
from tasks.benchmarks.lm_eval.templates import check_template

logger = logging.getLogger(__name__)

FEWSHOT_SEED: Final = 1234
TEMPLATES: Final = ("doc_to_text", "doc_to_target", "doc_to_choice", "description", "gen_prefix")


@dataclass(frozen=True)
class Translation:
    """A benchmark as a native config's keys (JSON values only), and what a person should know about it."""

    config: dict[str, Any]
    warnings: tuple[str, ...]


def is_harness(config: Mapping[str, Any]) -> bool:
    """Whether a parsed YAML mapping is the harness's rather than native: it has a ``task`` key, or is a
    group."""
    return "task" in config or ("group" in config and "name" not in config)


def translate(source: Definition | Path | str, overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Native config keys of one benchmark, from a definition or from the YAML file that holds it alone.

    ``overrides`` are harness keys laid over the definition's (``{"num_fewshot": 5}``). Warnings are logged.
    Raises ConfigError naming the file and the key; several benchmarks in the file are refused,
    ``select_file`` gives them.
    """
    if not isinstance(source, Definition):
        chosen = select_file(Path(source), Index())
        if len(chosen.benchmarks) != 1:
            names = ", ".join(chosen.benchmarks)
            raise ConfigError(
                f"{source}: holds several benchmarks ({names}); name one with --tasks and --include-path"
            )
        source = next(iter(chosen.benchmarks.values()))
    if overrides:
        source = Definition(source.name, source.path, {**source.config, **overrides})
    translation = translate_definition(source)
    for warning in translation.warnings:
        logger.warning(warning)
    return translation.config


def translate_definition(definition: Definition) -> Translation:
    """The same with warnings returned; opens no dataset and imports no function."""
    config, where = definition.config, definition.where
    base_dir = definition.path.parent
    warnings = list(check_task(config, where))
    _check_functions(config, where)
    _check_templates(config, where)
    filters = translate_filters(config, base_dir, where)
    metrics, found = translate_metrics(config, base_dir, where)
    warnings += found
    native: dict[str, Any] = {
        "name": definition.name.replace("/", "_").replace("\\", "_"),
        "output_type": config.get("output_type", "generate_until"),
        "base_dir": str(base_dir),
        "filter_list": [_whole(pipeline, config, metrics) for pipeline in filters],
        "metric_list": metrics,
        "harness": _resolved(definition),
    }
    if native["output_type"] == "generate_until":
        native["sample_params"], found = translate_sampling(config, where)
        warnings += found
    else:
        native["filter_list"] = (
            [dict(DEFAULT_PIPELINE)] if config.get("filter_list") is None else native["filter_list"]
        )
    if any(metric["metric"] == "acc_mutual_info" for metric in metrics):
        native["mutual_information"] = True
    process_results = config.get("process_results")
    if isinstance(process_results, FunctionName):
        native["process_results"] = reference(process_results, base_dir)
    return Translation(native, tuple(dict.fromkeys(warnings)))


def _resolved(definition: Definition) -> dict[str, Any]:
    """What rendering needs, under ``harness``: the definition's keys, functions as names, and the knobs of a
    run."""
    config = dict(definition.config)
    if config.get("output_type", "generate_until") == "generate_until":
        config["generation_kwargs"] = generation_arguments(config, definition.where)
    return {
        "task": definition.name,
        "source": definition.path.name,
        "config": encoded(config, definition.path.parent),
        "apply_chat_template": False,
        "fewshot_as_multiturn": True,
        "system_instruction": None,
        "fewshot_seed": FEWSHOT_SEED,
        "allow_unsafe_code": False,
    }


def _whole(
    pipeline: Mapping[str, Any], config: Mapping[str, Any], metrics: list[dict[str, Any]]
) -> dict[str, Any]:
    """A pipeline that leaves several predictions gives a user's function all of them at once, as the harness
    does."""
    if config.get("output_type", "generate_until") != "generate_until" or takes_one(pipeline):
        return dict(pipeline)
    by_function = config.get("process_results") is not None or any("function" in metric for metric in metrics)
    return {**pipeline, "filter": [*pipeline["filter"], *([COLLECT] if by_function else [])]}


def _check_functions(config: Mapping[str, Any], where: str) -> None:
    for name in functions_in(config):
        check_function(name, where)


def _check_templates(config: Mapping[str, Any], where: str) -> None:
    fewshot = config.get("fewshot_config")
    for owner, prefix in ((config, ""), (fewshot if isinstance(fewshot, Mapping) else {}, "fewshot_config.")):
        for key in TEMPLATES:
            value = owner.get(key)
            if isinstance(value, str) and not isinstance(value, FunctionName):
                check_template(value, f"{where}: {prefix}{key}")
