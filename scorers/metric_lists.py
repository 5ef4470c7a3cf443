"""Which metrics each filter of a benchmark has, under which names.

A filter's own list counts before the benchmark's and the default. Entries that share a name are distinguished
by their arguments; two results under one name are refused. The factory builds every scorer's metrics with it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from metrics.aliases import nearest
from metrics.build import build_column, build_metric, named_apart
from metrics.config import MetricConfig
from metrics.errors import ConfigError
from metrics.metric import Metric
from metrics.reductions.reduction import reduction_key
from metrics.registry import AGGREGATIONS, METRICS, parameters
from metrics.types import Resolve
from scorers.config import FilterConfig, ScoringConfig

DEFAULT_METRICS = {
    "generate_until": ("exact_match",),
    "multiple_choice": ("acc", "acc_norm"),
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
}
"""Metrics of a benchmark that names none: lm-evaluation-harness's."""

MetricsByFilter = dict[str, tuple[Metric, ...]]


def metric_list_of(config: ScoringConfig, one: FilterConfig) -> tuple[MetricConfig, ...] | None:
    """The filter's own metric list, else the benchmark's; None if neither says anything."""
    return one.metric_list if one.metric_list is not None else config.metric_list


def metrics_by_filter(
    config: ScoringConfig, build: Callable[[MetricConfig], Metric], default: Sequence[str] = ()
) -> MetricsByFilter:
    """Each filter's metrics: its own list, else the benchmark's, else the default."""
    found: MetricsByFilter = {}
    for one in config.filters:
        entries = metric_list_of(config, one)
        if entries is None:
            entries = tuple(MetricConfig(metric=name) for name in default)
        found[one.name] = unique_metrics(entries, build, one.name)
    return found


def build_listed_metric(config: ScoringConfig, one: MetricConfig, resolve: Resolve) -> Metric:
    """A metric of references and predictions, or of log-likelihoods; ConfigError for one that a scorer
    brings."""
    if ":" not in one.metric and one.function is None and one.metric not in METRICS:
        refuse_without_scorer(one.metric)
    metric = build_metric(one, resolve, config.output_type)
    if "," in metric.name:
        raise ConfigError(f"metric name {metric.name!r} can't hold a comma: results are keyed metric,filter")
    return metric


def build_listed_column(one: MetricConfig, resolve: Resolve) -> Metric:
    """A metric whose values the user's code computes; ConfigError for an argument, since nothing takes it."""
    metric = build_column(one, resolve)
    definition = METRICS.get(one.metric)
    aggregation = AGGREGATIONS.get(one.aggregation or (definition.aggregation if definition else "mean"))
    accepted = parameters(aggregation.function) if aggregation is not None and aggregation.builds else None
    for key in one.kwargs:
        if key not in (accepted or ()):
            hint = nearest(key, [*(accepted or ()), *MetricConfig.model_fields])
            raise ConfigError(f"metric {metric.name!r}: nothing takes the argument {key!r}{hint}")
    return metric


def with_scorer_metrics(
    config: ScoringConfig, resolve: Resolve, own: Sequence[MetricConfig]
) -> MetricsByFilter:
    """The filters' metrics and a scorer's own, which a metric list may name to give them an alias or a
    reduction."""
    by_name = {one.metric: one for one in own}

    def build(one: MetricConfig) -> Metric:
        default = by_name.get(one.metric)
        if default is None:
            return build_listed_metric(config, one, resolve)
        refuse_arguments(one, default.kwargs)
        higher = default.higher_is_better if one.higher_is_better is None else one.higher_is_better
        update = {"kwargs": {**default.kwargs, **one.kwargs}, "higher_is_better": higher}
        return build_column(one.model_copy(update=update), resolve)

    found: MetricsByFilter = {}
    for one in config.filters:
        entries = metric_list_of(config, one) or ()
        named = {item.metric for item in entries}
        complete = (*entries, *(extra for extra in own if extra.metric not in named))
        found[one.name] = unique_metrics(complete, build, one.name)
    return found


def refuse_arguments(one: MetricConfig, known: Collection[str]) -> None:
    """Raises ConfigError for an argument that a scorer's own metric does not take; an aggregation of the
    config's choice may have arguments of its own."""
    for key in one.kwargs:
        if key not in known and one.aggregation is None:
            takes = ", ".join(known) or "none"
            raise ConfigError(
                f"metric {one.metric!r} takes no argument {key!r}{nearest(key, known)} (it takes {takes})"
            )


def unique_metrics(
    entries: Sequence[MetricConfig], build: Callable[[MetricConfig], Metric], filter_name: str
) -> tuple[Metric, ...]:
    """The metrics of one filter under names that differ.

    Entries that differ in an argument have it in their names. Raises ConfigError naming the filter where
    nothing tells two entries apart, or where two have the same alias.
    """
    aliases = [one.alias for one in entries if one.alias is not None]
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise ConfigError(
                f"filter {filter_name!r}: metric alias {alias!r} is given twice; choose another"
            )
    try:
        metrics = [build(one) for one in entries]
        _refuse_alias_of_another(aliases, metrics)
        apart = named_apart(metrics)
        _refuse_shared_keys(apart)
    except ConfigError as error:
        raise ConfigError(f"filter {filter_name!r}: {error}") from None
    return tuple(_without_comma(new, old.name) for new, old in zip(apart, metrics, strict=True))


def _refuse_alias_of_another(aliases: Sequence[str], metrics: Sequence[Metric]) -> None:
    """An alias is what its result is called, so that no other metric may have that name."""
    names = [metric.name for metric in metrics]
    for alias in aliases:
        if names.count(alias) > 1:
            raise ConfigError(f"metric alias {alias!r} is another metric's name, too; choose another")


def _refuse_shared_keys(metrics: Sequence[Metric]) -> None:
    """``max(exact_match)`` and ``exact_match_stderr`` as names would be other results' keys."""
    seen: set[str] = set()
    for metric in metrics:
        for key in (reduction_key(metric.name, reduction.name) for reduction in metric.reductions):
            for taken in (key, f"{key}_stderr"):
                if taken in seen:
                    raise ConfigError(f"two results would be called {taken!r}; choose another alias")
                seen.add(taken)


def _without_comma(metric: Metric, given: str) -> Metric:
    """The metric, no comma in what was added to its given name: the name of a result is ``metric,filter``."""
    added = metric.name.removeprefix(given)
    return replace(metric, name=given + added.replace(",", ";")) if "," in added else metric


@dataclass(frozen=True)
class ScorerMetric:
    """A metric that a type of ``scorer`` brings along, as the catalogue tells it."""

    scorer: str
    meaning: str
    span: str = "0 to 1"
    source: str = ""
    default: str = "aggregation mean"


SCORER_METRICS: Final[Mapping[str, ScorerMetric]] = {
    "reward": ScorerMetric("reward_model", "The reward model's number.", "the model's"),
    "recorded": ScorerMetric("recorded", "The number that came with a recorded response.", "its range"),
    "llm_judge": ScorerMetric("llm_judge", "The judges' grades of a response, combined.", "the grades'"),
    "llm_judge_agreement": ScorerMetric(
        "llm_judge",
        "Krippendorff's alpha of the verdicts.",
        "-1 to 1",
        source="Krippendorff 2004",
        default="",
    ),
    "llm_judge_corrected": ScorerMetric(
        "llm_judge",
        "Rate of positive verdicts without the judge's bias, from a calibration that people judged.",
        source="Lee et al. 2025, arXiv:2511.21140",
        default="",
    ),
    "ensemble": ScorerMetric("ensemble", "Weighted combination of the members' numbers.", "the members'"),
    "filter_agreement": ScorerMetric(
        "agreement", "Share of pairs of filters with the same prediction; of the filter *."
    ),
    "tests_passed": ScorerMetric(
        "execution", "Did the program pass its tests; with count: share, the share of them."
    ),
    "win_rate": ScorerMetric(
        "arena", "Share of its games against other models that a model won, ties counting half."
    ),
    "acc_letter": ScorerMetric("letters", "Was the letter of a right choice given, with choices_by letter."),
}


def refuse_without_scorer(metric: str) -> None:
    """Raises ConfigError where a metric list asks for a number that only another scorer has."""
    known = SCORER_METRICS.get(metric)
    if metric == "acc_letter":
        raise ConfigError(
            "metric 'acc_letter' is of choices asked for by their letters; add choices_by: letter to a "
            "benchmark of output_type multiple_choice"
        )
    if known is not None:
        raise ConfigError(
            f"metric {metric!r} comes from a scorer; add scorer: {{type: {known.scorer}, …}} to the benchmark"
        )
