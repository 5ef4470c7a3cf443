"""Translates a definition's ``metric_list`` into native metric configs.

``pair`` is the metric of definitions whose work is all in an aggregation over (reference, prediction) pairs.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.read.yaml import (
    FunctionName,
    asks_about_programs,
    is_passthrough,
    reference,
)

OWN_KEYS: Final = ("metric", "aggregation", "higher_is_better", "hf_evaluate")
DEFAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "multiple_choice": ("acc", "acc_norm"),
    "generate_until": ("exact_match",),
}
# Metric → aggregation and direction where a definition leaves them out.
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
LOWER_IS_BETTER: Final = frozenset(
    {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte", "brier_score", "ter", "wer"}
)
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
PAIR_METRIC: Final = "tasks.benchmarks.lm_eval.metric_lists:pair"


def translate_metrics(
    config: Mapping[str, Any], base_dir: Path, where: str
) -> tuple[list[dict[str, Any]], list[str]]:
    """Native metric configs and warnings; raises ConfigError for a metric that the harness's rules give no
    value for."""
    listed = config.get("metric_list")
    if listed is None:
        listed = [{"metric": name} for name in DEFAULTS[config.get("output_type", "generate_until")]]
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
        settings.setdefault("higher_is_better", entry.name not in LOWER_IS_BETTER)
        return {"metric": entry.name, **settings}
    if entry.output_type != "generate_until":
        return _of_likelihoods(entry, warnings)
    if isinstance(entry.metric, FunctionName):
        return _of_function(entry, warnings)
    return _of_text(entry, warnings)


def _of_likelihoods(entry: _Entry, warnings: list[str]) -> dict[str, Any]:
    known = OF_LIKELIHOODS[entry.output_type]
    if entry.name not in known and not _is_own(entry.name, entry.output_type):
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
    settings.setdefault("higher_is_better", True)
    return {"metric": entry.name, "function": reference(name, entry.base_dir), **settings, **entry.arguments}


def _pair_settings(entry: _Entry) -> dict[str, Any]:
    settings = entry.settings()
    settings.setdefault("aggregation", AGGREGATIONS.get(entry.name, "mean"))
    if settings["aggregation"] in ("mean", "median", "nanmean"):
        raise ConfigError(
            f"{entry.where} has no value for a generated text: the harness averages pairs of reference and "
            "prediction; use exact_match, or an aggregation over pairs"
        )
    settings.setdefault("higher_is_better", entry.name not in LOWER_IS_BETTER)
    return settings


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
