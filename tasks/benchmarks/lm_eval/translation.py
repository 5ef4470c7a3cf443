"""Translates a definition into the keys of a native config, and checks everything that needs no data.

Filters, sampling parameters and the ``metric_list`` are translated. ``pair`` is the metric of definitions
whose work is all in an aggregation over (reference, prediction) pairs. ``resolve_many`` validates many
files in one process, for ``--dry-run --no-data --json``.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError, NightjarError
from tasks.benchmarks.lm_eval.documents import check_template
from tasks.benchmarks.lm_eval.select import Definition, DefinitionIndex, select_file
from tasks.benchmarks.lm_eval.yaml import (
    FunctionName,
    asks_about_programs,
    check_function,
    check_task,
    encoded,
    functions_in,
    is_passthrough,
    reference,
    registered_filter,
)

OWN_KEYS: Final = ("metric", "aggregation", "higher_is_better", "hf_evaluate")
METRIC_DEFAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "multiple_choice": ("acc", "acc_norm"),
    "generate_until": ("exact_match",),
}
# Metric → aggregation where a definition leaves it out; the direction is the aggregation's.
AGGREGATIONS: Final[Mapping[str, str]] = {
    "perplexity": "perplexity",
    "word_perplexity": "weighted_perplexity",
    "byte_perplexity": "weighted_perplexity",
    "bits_per_byte": "bits_per_byte",
    "mcc": "matthews_corrcoef",
    "f1": "f1",
    "bleu": "bleu",
    "chrf": "chrf",
    "chrf++": "chrf++",
    "ter": "ter",
    "wer": "wer",
    "brier_score": "brier_score",
    "bypass": "bypass",
}
# What the harness computes from log-likelihoods; any other name there yields nothing, without a word. Here it
# may be a metric of this program, such as bpb.
OF_LIKELIHOODS: Final[Mapping[str, tuple[str, ...]]] = {
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "multiple_choice": (
        "acc", "acc_norm", "acc_bytes", "acc_mutual_info", "f1", "mcc", "exact_match", "brier_score",
        "likelihood",
    ),
}  # fmt: skip
# Corpus metrics, which the harness scores as (reference, prediction) pairs by their aggregation alone.
CORPUS: Final = frozenset({"bleu", "chrf", "chrf++", "ter"})
PAIRS: Final = frozenset(
    {"acc", "acc_norm", "acc_bytes", "f1", "mcc", "brier_score", "likelihood", "perplexity"}
)
PAIR_METRIC: Final = "tasks.benchmarks.lm_eval.translation:pair"


def translate_metrics(
    config: Mapping[str, Any], base_dir: Path, where: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Native metric configs and warnings; raises ConfigError for a metric that the harness's rules give no
    value for."""
    listed = config.get("metric_list")
    if listed is None:
        listed = [{"metric": name} for name in METRIC_DEFAULTS[config.get("output_type", "generate_until")]]
    if not listed:
        raise ConfigError(
            f"{where}: metric_list is empty; leave it out for the default metrics of the output type"
        )
    metrics: list[dict[str, Any]] = []
    warnings: list[str] = []
    for entry in listed:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("metric"), str):
            raise ConfigError(
                f"{where}: an entry of metric_list is a mapping with 'metric', got {entry!r:.80}"
            )
        read = _Entry(entry, config, base_dir, where)
        metrics += _levels(read, _metric(read, warnings))
    return [metric for index, metric in enumerate(metrics) if metric not in metrics[:index]], warnings


class _Entry:
    """One entry of the list with what is around it."""

    def __init__(
        self, entry: Mapping[str, Any], config: Mapping[str, Any], base_dir: Path, where: str
    ) -> None:
        self.metric: str = entry["metric"]
        self.name = self.metric.rpartition(":")[2] if isinstance(self.metric, FunctionName) else self.metric
        self.where = f"{where}: metric '{self.name}'"
        self.base_dir = base_dir
        self.entry = entry
        self.output_type: str = config.get("output_type", "generate_until")
        self.processed = config.get("process_results") is not None
        self.arguments = {key: value for key, value in entry.items() if key not in OWN_KEYS}
        self.repeats: int = config.get("repeats") or 1

    @property
    def asks_about_programs(self) -> bool:
        """Whether it is a function whose file loads ``code_eval``."""
        return isinstance(self.metric, FunctionName) and asks_about_programs(self.metric, self.base_dir)

    def aggregation(self) -> str | None:
        """The aggregation as native configs write it; None: the metric's own."""
        value = self.entry.get("aggregation")
        if isinstance(value, FunctionName):
            return reference(value, self.base_dir)
        if value is None or value == AGGREGATIONS.get(self.name, "mean"):
            return None
        if not isinstance(value, str):
            raise ConfigError(
                f"{self.where}: aggregation takes a name or !function module.name, got {value!r}"
            )
        return value

    def settings(self) -> dict[str, Any]:
        """What every kind of metric may set."""
        found: dict[str, Any] = {}
        if (aggregation := self.aggregation()) is not None:
            found["aggregation"] = aggregation
        better = self.entry.get("higher_is_better")
        if better is not None:
            found["higher_is_better"] = bool(better)
        return found


def _levels(entry: _Entry, metric: dict[str, Any]) -> list[dict[str, Any]]:
    """One metric a result: a function that asks ``code_eval`` for ``k: [1, 10]`` returns pass@1 and pass@10,
    those for which there are enough repeats."""
    if not entry.asks_about_programs or not isinstance(metric.get("k"), list):
        return [metric]
    levels = [k for k in metric["k"] if isinstance(k, int) and k <= entry.repeats]
    return [{**metric, "metric": f"pass@{k}"} for k in levels] or [metric]


def _metric(entry: _Entry, warnings: list[str]) -> dict[str, Any]:
    if entry.processed:
        warnings += _ignored(entry)
        settings = entry.settings()
        settings.setdefault("aggregation", AGGREGATIONS.get(entry.name, "mean"))
        settings.setdefault("higher_is_better", _better_up(entry.name, settings["aggregation"]))
        return {"metric": entry.name, **settings}
    if entry.output_type != "generate_until":
        return _of_likelihoods(entry, warnings)
    if isinstance(entry.metric, FunctionName):
        return _of_function(entry, warnings)
    return _of_text(entry, warnings)


def _of_likelihoods(entry: _Entry, warnings: list[str]) -> dict[str, Any]:
    known = OF_LIKELIHOODS[entry.output_type]
    named = entry.name == "bypass" or _is_own(entry.name, entry.output_type)
    if entry.name not in known and not named:
        raise ConfigError(
            f"{entry.where} has no value for output_type {entry.output_type}; it has {', '.join(known)}"
        )
    warnings += _ignored(entry)
    return {"metric": entry.name, **entry.settings()}


def _of_text(entry: _Entry, warnings: list[str]) -> dict[str, Any]:
    if entry.name in CORPUS | PAIRS:
        warnings += _ignored(entry)
        if entry.entry.get("hf_evaluate"):
            raise ConfigError(
                f"{entry.where} of the 'evaluate' library is not supported; name a metric of this program"
            )
        own = entry.name in CORPUS and not isinstance(entry.entry.get("aggregation"), FunctionName)
        if own:
            return {"metric": entry.name, **entry.settings()}
        return {"metric": entry.name, "function": PAIR_METRIC, **_pair_settings(entry)}
    _check_known(entry)
    return {"metric": entry.name, **entry.settings(), **entry.arguments}


def _of_function(entry: _Entry, warnings: list[str]) -> dict[str, Any]:
    name = FunctionName(entry.metric)
    if is_passthrough(name):
        warnings += _ignored(entry)
        return {"metric": entry.name, "function": PAIR_METRIC, **_pair_settings(entry)}
    settings = entry.settings()
    settings.setdefault("higher_is_better", _better_up(entry.name, settings.get("aggregation", "mean")))
    return {"metric": entry.name, "function": reference(name, entry.base_dir), **settings, **entry.arguments}


def _pair_settings(entry: _Entry) -> dict[str, Any]:
    settings = entry.settings()
    settings.setdefault("aggregation", AGGREGATIONS.get(entry.name, "mean"))
    if settings["aggregation"] in ("mean", "median", "nanmean"):
        raise ConfigError(
            f"{entry.where} has no value for a generated text: the harness averages pairs of reference and "
            "prediction; use exact_match, or an aggregation over pairs"
        )
    settings.setdefault("higher_is_better", _better_up(entry.name, settings["aggregation"]))
    return settings


def _better_up(name: str, aggregation: str) -> bool:
    """The direction where a definition leaves it out: that of the metric's usual aggregation, as the harness
    has it, else that of its own."""
    from metrics.aggregation import build_aggregation
    from metrics.registry import AGGREGATIONS as REGISTERED

    known = [one for one in (AGGREGATIONS.get(name, "mean"), aggregation) if one in REGISTERED]
    return all(build_aggregation(one).higher_is_better is not False for one in known)


def _ignored(entry: _Entry) -> Iterator[str]:
    if entry.arguments:
        names = ", ".join(sorted(map(str, entry.arguments)))
        yield f"{entry.where}: {names} has no effect here, as in the harness"


def _is_own(name: str, output_type: str) -> bool:
    """Whether this program has that metric of log-likelihoods, as later versions of the harness do."""
    from metrics.registry import METRICS

    return name in METRICS and METRICS[name].style == "choices" and output_type in METRICS[name].output_types


def _check_known(entry: _Entry) -> None:
    from metrics.registry import METRICS

    if entry.name not in METRICS:
        METRICS[entry.name]


def pair(references: Sequence[Any], predictions: Sequence[Any]) -> tuple[Any, Any]:
    """The pair itself; several references stay together as a list.

    >>> pair(references=["4"], predictions=["5"])
    ('4', '5')
    """
    return (references[0] if len(references) == 1 else list(references)), predictions[0]


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


def translate(definition: Definition) -> dict[str, Any]:
    """Native config keys of one benchmark; warnings are logged. Raises ConfigError naming the file and the
    key."""
    translation = translate_definition(definition)
    for warning in translation.warnings:
        logger.warning(warning)
    return translation.config


def translate_definition(definition: Definition) -> Translation:
    """The same with warnings returned; opens no dataset and imports no function."""
    config, where = definition.config, definition.where
    base_dir = definition.path.parent
    warnings = list(check_task(config, where))
    for name in functions_in(config):
        check_function(name, where)
    _check_templates(config, where)
    filters = translate_filters(config, base_dir, where)
    metrics, found = translate_metrics(config, base_dir, where)
    warnings += found
    native: dict[str, Any] = {
        "name": definition.name.replace("/", "_").replace("\\", "_"),
        "output_type": config.get("output_type", "generate_until"),
        "base_dir": str(base_dir),
        "filter_list": [_collecting(pipeline, config, metrics) for pipeline in filters],
        "metric_list": metrics,
        "harness": _harness_keys(definition),
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


def _harness_keys(definition: Definition) -> dict[str, Any]:
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


def _collecting(
    pipeline: Mapping[str, Any], config: Mapping[str, Any], metrics: list[dict[str, Any]]
) -> dict[str, Any]:
    """A pipeline that leaves several predictions gives a user's function all of them at once, as the harness
    does."""
    if config.get("output_type", "generate_until") != "generate_until" or takes_one(pipeline):
        return dict(pipeline)
    by_function = config.get("process_results") is not None or any("function" in metric for metric in metrics)
    return {**pipeline, "filter": [*pipeline["filter"], *([COLLECT] if by_function else [])]}


def _check_templates(config: Mapping[str, Any], where: str) -> None:
    fewshot = config.get("fewshot_config")
    for owner, prefix in ((config, ""), (fewshot if isinstance(fewshot, Mapping) else {}, "fewshot_config.")):
        for key in TEMPLATES:
            value = owner.get(key)
            if isinstance(value, str) and not isinstance(value, FunctionName):
                check_template(value, f"{where}: {prefix}{key}")


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
        chain = [_filter_step(step, config, base_dir, f"{where}: filter '{name}'") for step in steps]
        pipelines[name] = {"name": name, "filter": chain}
    return list(pipelines.values())


def takes_one(pipeline: Mapping[str, Any]) -> bool:
    """Whether the pipeline leaves one prediction an item."""
    return any(step["function"] in ONE_PREDICTION for step in pipeline["filter"])


def _filter_step(step: Any, config: Mapping[str, Any], base_dir: Path, where: str) -> dict[str, Any]:
    if not isinstance(step, Mapping) or not isinstance(step.get("function"), str):
        raise ConfigError(f"{where}: a step is a mapping with 'function', got {step!r:.80}")
    function: str | None = step["function"]
    arguments = {key: value for key, value in step.items() if key != "function"}
    if function == "custom":
        function = arguments.pop("filter_fn", None)
        if not isinstance(function, FunctionName) or arguments:
            raise ConfigError(f"{where}: step custom takes 'filter_fn: !function module.name' alone")
    assert function is not None
    found = function if isinstance(function, FunctionName) else _registered_filter(function, config, where)
    if isinstance(found, FunctionName):
        return {"function": reference(found, base_dir), **encoded(arguments, base_dir)}
    return {"function": found, **DEFAULTS.get(found, {}), **arguments}


def _registered_filter(name: str, config: Mapping[str, Any], where: str) -> str:
    """A filter of this program, else one that the definition's own files register under the name."""
    from scorers.filters.pipeline import FILTERS

    if name in FILTERS:
        return name
    files = dict.fromkeys(function.rpartition(":")[0] for function in functions_in(config))
    own = registered_filter(name, [Path(file) for file in files if file.endswith(".py")])
    if own is None:
        raise ConfigError(f"{where}: {FILTERS.unknown(name)}")
    return own


MAX_TOKENS: Final = 256  # what the harness asks an endpoint for where a benchmark says nothing
SEED: Final = 1234  # what it sends with every request
# In the order of precedence that endpoints have in the harness.
LENGTH_KEYS: Final = ("max_tokens", "max_gen_toks")
# Its other models take these for the same; to an endpoint it says MAX_TOKENS nevertheless.
OTHER_LENGTH_KEYS: Final = ("max_new_tokens", "max_completion_tokens")
PASSED_ON: Final = ("top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")


def known_generation_arguments() -> tuple[str, ...]:
    """What ``generation_kwargs`` may hold here."""
    return (
        "until", "stop", "do_sample", "temperature", "seed", "num_beams", *LENGTH_KEYS, *OTHER_LENGTH_KEYS,
        *PASSED_ON,
    )  # fmt: skip


def generation_arguments(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The mapping that the harness logs and sends: its defaults in place, a missing ``until`` the few-shot
    delimiter."""
    delimiter = config.get("fewshot_delimiter", "\n\n")
    given = config.get("generation_kwargs")
    if given is None:
        return {"temperature": 0.0, "do_sample": False, "max_gen_toks": MAX_TOKENS, "until": [delimiter]}
    arguments = dict(given)
    if "temperature" in arguments:
        try:
            arguments["temperature"] = float(arguments["temperature"])
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: generation_kwargs.temperature is not a number: {error}") from error
    arguments.setdefault("until", [delimiter])
    return arguments


def translate_sampling(config: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """``sample_params`` and warnings; raises ConfigError for an argument that no endpoint here would be
    sent."""
    arguments = generation_arguments(config, where)
    warnings: list[str] = []
    until = arguments.pop("until")
    if arguments.get("stop") is not None:
        until = arguments.pop("stop")  # a field of the request itself, which lies over what until makes
    stops = [until] if isinstance(until, str) else until or []
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ConfigError(f"{where}: generation_kwargs.until takes a text or a list of texts, got {until!r}")
    lengths = {key: arguments.pop(key) for key in LENGTH_KEYS if key in arguments}
    length = next((value for value in lengths.values() if value is not None), MAX_TOKENS)
    ignored = [key for key in OTHER_LENGTH_KEYS if arguments.pop(key, None) is not None]
    if ignored and length == MAX_TOKENS:
        warnings.append(
            f"{where}: generation_kwargs.{ignored[0]} has no effect on endpoints, as in the harness: "
            f"{MAX_TOKENS} tokens are asked for; use max_gen_toks"
        )
    parameters: dict[str, Any] = {
        "max_tokens": _token_count(length, where),
        "seed": arguments.pop("seed", SEED),
        "num_samples": config.get("repeats", 1),
    }
    parameters["temperature"] = arguments.pop("temperature", 0.0)
    if stops:
        # Repeating a stop sequence changes nothing, and an empty one would stop before the first letter.
        parameters["stop"] = list(dict.fromkeys(stop for stop in stops if stop))
    sampled = arguments.pop("do_sample", None)
    if sampled is False and parameters["temperature"] > 0:
        warnings.append(
            f"{where}: do_sample is false and temperature {parameters['temperature']}; endpoints "
            "are sent the temperature, as the harness does"
        )
    parameters |= {key: arguments.pop(key) for key in PASSED_ON if arguments.get(key) is not None}
    if arguments.pop("num_beams", 1) not in (1, None):
        warnings.append(f"{where}: num_beams has no effect: endpoints offer no beam search")
    unknown = sorted(key for key, value in arguments.items() if value is not None)
    if unknown:
        known = ", ".join(("until", "do_sample", "temperature", "seed", *LENGTH_KEYS, *PASSED_ON))
        raise ConfigError(f"{where}: generation_kwargs.{unknown[0]} is not supported; supported are {known}")
    return parameters, warnings


def _token_count(value: Any, where: str) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if count < 1:
        raise ConfigError(f"{where}: the most tokens to generate is an integer of at least 1, got {value!r}")
    return count


def resolve_many(paths: Sequence[str | Path], folders: Iterable[Path] = ()) -> dict[str, Any]:
    """``{"configs": [{"path", "status": "ok" | "refused", "reason", "warnings"}]}``, one entry a path, in
    order.

    A group's members are looked up among the paths, in ``folders`` (``--include-path``), then in the folder
    tree that the group's file belongs to. ``reason`` is None for "ok".
    """
    index = DefinitionIndex(folders)
    for path in paths:
        if Path(path).is_file():
            index.add_file(Path(path).resolve())
    return {"configs": [_resolution(Path(path), index) for path in paths]}


def _resolution(path: Path, index: DefinitionIndex) -> dict[str, Any]:
    try:
        selection = select_file(path, index)
        translations = [translate_definition(definition) for definition in selection.benchmarks.values()]
    except NightjarError as error:
        return {"path": str(path), "status": "refused", "reason": str(error), "warnings": []}
    warnings = [*selection.warnings, *(warning for one in translations for warning in one.warnings)]
    return {"path": str(path), "status": "ok", "reason": None, "warnings": list(dict.fromkeys(warnings))}
