"""From a benchmark's config to its scorer: ``scorer:`` if given, else ``process_results``, else by output
type."""

from collections.abc import Sequence

from metrics.errors import ConfigError
from scorers.base import ALL_FILTERS, Scorer
from scorers.calls import check_call
from scorers.config import (
    AgreementConfig,
    EnsembleConfig,
    FilterConfig,
    JudgeConfig,
    PlainScorerConfig,
    RewardModelConfig,
    ScoringConfig,
)
from scorers.filters.pipeline import FilterPipeline, Resolve
from scorers.generation import GenerationScorer
from scorers.metric_lists import (
    DEFAULT_METRICS,
    MetricsByFilter,
    build_column,
    build_metric,
    metrics_by_filter,
)
from scorers.naming import split_name


def build_scorer(config: ScoringConfig, resolve: Resolve) -> Scorer:
    """The scorer of a benchmark; ``resolve`` turns ``file.py:fn`` into the function.

    Raises ConfigError for anything that cannot work: unknown names and arguments, a metric that is not made
    for the output type, two results under one name, a scorer without what it needs.
    """
    _refuse_names(config.filters)
    chosen = config.scorer
    if chosen is None or isinstance(chosen, PlainScorerConfig):
        return _plain(config, resolve, None if chosen is None else chosen.type)
    # Imported when needed: judges bring templates, and most benchmarks have none.
    if isinstance(chosen, RewardModelConfig | JudgeConfig):
        from scorers.factory_models import judge_scorer, reward_scorer

        if isinstance(chosen, JudgeConfig):
            return judge_scorer(config, chosen, resolve)
        return reward_scorer(config, chosen, resolve)
    from scorers.factory_composed import agreement_scorer, ensemble_scorer, user_scorer

    if isinstance(chosen, EnsembleConfig):
        return ensemble_scorer(config, chosen, resolve)
    if isinstance(chosen, AgreementConfig):
        return agreement_scorer(config, chosen, resolve)
    return user_scorer(config, chosen, resolve)


def build_pipelines(config: ScoringConfig, resolve: Resolve) -> tuple[FilterPipeline, ...]:
    """The filter pipelines of a benchmark, in the config's order."""
    return tuple(FilterPipeline.build(one, resolve, config.output_type) for one in config.filters)


def _plain(config: ScoringConfig, resolve: Resolve, kind: str | None) -> Scorer:
    generates = config.output_type == "generate_until"
    if kind is None:
        kind = (
            "process_results" if config.process_results else ("generation" if generates else "loglikelihood")
        )
    if kind == "process_results":
        return _process_results(config, resolve)
    if (kind == "generation") != generates:
        raise ConfigError(f"scorer {kind!r} is not made for output_type {config.output_type}")
    metrics = metrics_by_filter(
        config,
        lambda one: build_metric(config, one, resolve),
        DEFAULT_METRICS[config.output_type],
    )
    if generates:
        return GenerationScorer(metrics)
    from scorers.loglikelihood import LoglikelihoodScorer

    return LoglikelihoodScorer(metrics)


def _process_results(config: ScoringConfig, resolve: Resolve) -> Scorer:
    from scorers.process_results import ProcessResultsScorer

    if config.process_results is None:
        raise ConfigError("scorer 'process_results' needs process_results: file.py:fn")
    function = resolve(config.process_results)
    check_call(config.process_results, function, ("doc", "results"))
    metrics = metrics_by_filter(config, lambda one: build_column(one, resolve))
    if not any(metrics.values()):
        raise ConfigError("process_results needs a metric_list that names the metrics it returns")
    _refuse_shared_results(metrics)
    return ProcessResultsScorer(function, metrics, config.output_type == "loglikelihood_rolling")


def _refuse_names(filters: Sequence[FilterConfig]) -> None:
    if any(one.name == ALL_FILTERS for one in filters):
        raise ConfigError(f"filter name {ALL_FILTERS!r} stands for all filters; choose another")
    seen: set[str] = set()
    for one in filters:
        if one.name in seen:
            raise ConfigError(
                f"filter {one.name!r} is listed twice; its results would overwrite each other: rename one"
            )
        seen.add(one.name)


def _refuse_shared_results(metrics: MetricsByFilter) -> None:
    """A name with a filter of its own that no filter has would be every filter's result."""
    seen: dict[tuple[str, str], str] = {}
    for filter_name, own in metrics.items():
        for metric in own:
            key = split_name(metric.name, filter_name)
            if key[1] != filter_name and key[1] in metrics:
                continue
            if key in seen:
                raise ConfigError(
                    f"process_results: '{key[0]},{key[1]}' would come from the filters {seen[key]!r} and "
                    f"{filter_name!r}; name it in one of them"
                )
            seen[key] = filter_name
