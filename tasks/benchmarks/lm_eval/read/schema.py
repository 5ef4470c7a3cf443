"""The schema of a definition of lm-evaluation-harness: every key, what it may hold, and which keys are
refused because they can't be honoured here.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from metrics.errors import ConfigError, nearest
from metrics.types import OUTPUT_TYPES
from tasks.benchmarks.lm_eval.read.yaml import FunctionName

Kinds = tuple[type, ...]
NOTHING: Final = type(None)
TEXT: Final[Kinds] = (str, NOTHING)
TEMPLATE: Final[Kinds] = (str, FunctionName, int, NOTHING)
TARGET: Final[Kinds] = (str, FunctionName, int, float, list, NOTHING)
CHOICES: Final[Kinds] = (str, FunctionName, list, dict, NOTHING)
MAPPING: Final[Kinds] = (dict, NOTHING)
LIST: Final[Kinds] = (list, NOTHING)
IMAGES: Final[Kinds] = (str, FunctionName, list, NOTHING)
FUNCTION: Final[Kinds] = (FunctionName, NOTHING)

TASK_KEYS: Final[dict[str, Kinds]] = {
    "task": (str,),
    "task_alias": TEXT,
    "tag": (str, list, NOTHING),
    "group": (str, list, NOTHING),
    "group_alias": (str, list, NOTHING),
    "custom_dataset": FUNCTION,
    "dataset_path": TEXT,
    "dataset_name": (str, int, float, NOTHING),
    "dataset_kwargs": MAPPING,
    "training_split": TEXT,
    "validation_split": TEXT,
    "test_split": TEXT,
    "fewshot_split": TEXT,
    "process_docs": FUNCTION,
    "doc_to_text": TEMPLATE,
    "doc_to_target": TARGET,
    "doc_to_choice": CHOICES,
    "doc_to_image": IMAGES,
    "process_results": FUNCTION,
    "description": TEXT,
    "target_delimiter": (str,),
    "fewshot_delimiter": (str,),
    "fewshot_config": MAPPING,
    "num_fewshot": (int, NOTHING),
    "metric_list": LIST,
    "output_type": (str,),
    "generation_kwargs": MAPPING,
    "repeats": (int,),
    "filter_list": LIST,
    "should_decontaminate": (bool, NOTHING),
    "doc_to_decontamination_query": TEMPLATE,
    "gen_prefix": TEXT,
    "unsafe_code": (bool, NOTHING),
    "metadata": MAPPING,
}
GROUP_KEYS: Final[dict[str, Kinds]] = {
    "group": (str,),
    "group_alias": TEXT,
    "task": (str, list, NOTHING),
    "aggregate_metric_list": (list, dict, NOTHING),
    "metadata": MAPPING,
    "tag": (str, list, NOTHING),
}
AGGREGATE_KEYS: Final = ("metric", "filter_list", "aggregation", "weight_by_size")
FEWSHOT_KEYS: Final[dict[str, Kinds]] = {
    "sampler": (str, NOTHING),
    "split": TEXT,
    "process_docs": FUNCTION,
    "fewshot_indices": LIST,
    "samples": (list, FunctionName, NOTHING),
    "doc_to_text": TEMPLATE,
    "doc_to_target": TARGET,
    "doc_to_choice": CHOICES,
    "gen_prefix": TEXT,
    "fewshot_delimiter": TEXT,
    "target_delimiter": TEXT,
}
SAMPLERS: Final = ("default", "first_n", "per_item")

# A score made without them would be another benchmark's.
UNSUPPORTED: Final = {
    "doc_to_audio": "plays the model audio, which the harness's chat messages have no place for; a native "
    "config has one: messages with a part {audio: …}",
    "use_prompt": "takes its prompts from the library promptsource, which is no longer maintained",
    "class": "is a Python class of the harness; only benchmarks defined by their YAML can run here",
}


def check_task(config: Mapping[str, Any], where: str) -> Iterator[str]:
    """Raises ConfigError for a key or value that can't be honoured; yields a warning for each unknown key."""
    for key, reason in UNSUPPORTED.items():
        if config.get(key) is not None:
            raise ConfigError(f"{where}: '{key}' {reason}")
    yield from _check_keys(config, TASK_KEYS, where)
    output_type = config.get("output_type", "generate_until")
    if output_type not in OUTPUT_TYPES:
        raise ConfigError(f"{where}: output_type '{output_type}' is not one of {', '.join(OUTPUT_TYPES)}")
    if config.get("dataset_path") is None and config.get("custom_dataset") is None:
        raise ConfigError(
            f"{where}: names no dataset; expected dataset_path (or custom_dataset: !function …)"
        )
    _check_fields(config, output_type, where)
    if config.get("doc_to_image") is not None and output_type != "generate_until":
        raise ConfigError(
            f"{where}: 'doc_to_image' shows images, which chat endpoints take; output_type {output_type} "
            "asks for log-likelihoods, which they don't give"
        )
    repeats = config.get("repeats", 1)
    if repeats < 1 or isinstance(repeats, bool):
        raise ConfigError(f"{where}: repeats is how often an item is asked, at least 1; got {repeats}")
    yield from check_fewshot(config.get("fewshot_config"), where)


def check_fewshot(config: Mapping[str, Any] | None, where: str) -> Iterator[str]:
    """The same for the mapping under ``fewshot_config``, where every key changes prompts: an unknown one is
    refused."""
    if config is None:
        return
    unknown = sorted(set(config) - set(FEWSHOT_KEYS))
    if unknown:
        raise ConfigError(
            f"{where}: fewshot_config has no key '{unknown[0]}'{nearest(unknown[0], FEWSHOT_KEYS)}"
        )
    yield from _check_keys(config, FEWSHOT_KEYS, f"{where}: fewshot_config")
    sampler = config.get("sampler") or "default"
    if sampler not in SAMPLERS:
        raise ConfigError(f"{where}: fewshot_config.sampler '{sampler}' is not one of {', '.join(SAMPLERS)}")
    if config.get("split") is not None and config.get("samples") is not None:
        yield f"{where}: fewshot_config has both split and samples; the split is taken, as the harness does"
    if config.get("fewshot_indices") is not None:
        yield f"{where}: fewshot_config.fewshot_indices has no effect, as in the harness; use samples instead"


def _check_fields(config: Mapping[str, Any], output_type: str, where: str) -> None:
    if config.get("doc_to_target") is None:
        raise ConfigError(
            f"{where}: 'doc_to_target' is missing: the right answer, as a column, template or function"
        )
    if output_type == "multiple_choice" and config.get("doc_to_choice") is None:
        raise ConfigError(f"{where}: output_type multiple_choice needs 'doc_to_choice'")
    if output_type != "loglikelihood_rolling" and config.get("doc_to_text") is None:
        raise ConfigError(f"{where}: 'doc_to_text' is missing: the prompt, as a column, template or function")
    if not any(config.get(f"{split}_split") for split in ("test", "validation")):
        raise ConfigError(f"{where}: names no split to evaluate; expected test_split or validation_split")


def _check_keys(config: Mapping[str, Any], known: Mapping[str, Kinds], where: str) -> Iterator[str]:
    for key, value in config.items():
        if key not in known:
            if key not in UNSUPPORTED:
                yield f"{where}: unknown key '{key}' has no effect{nearest(key, known)}"
        elif type(value) not in known[key]:
            expected = " or ".join(_NAMES[kind] for kind in known[key])
            raise ConfigError(f"{where}: '{key}' takes {expected}, got {type(value).__name__} {value!r:.60}")


_NAMES: Final = {
    str: "text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "a mapping",
    FunctionName: "!function module.name",
    NOTHING: "null",
}
