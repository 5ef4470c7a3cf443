"""From a benchmark's config to its scorer: ``scorer:`` if given, else ``process_results``, else by output
type."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from metrics.config import MetricConfig
from metrics.errors import ConfigError, nearest
from metrics.metric import Metric
from scorers.base import Scorer
from scorers.config import (
    AgreementConfig,
    EnsembleConfig,
    EnsembleMember,
    FilterConfig,
    JudgeConfig,
    PlainScorerConfig,
    RewardModelConfig,
    ScoringConfig,
    UserScorerConfig,
)
from scorers.filters.pipeline import FilterPipeline, Resolve
from scorers.generation import GenerationScorer
from scorers.naming import unique_metrics

DEFAULT_METRICS = {
    "generate_until": ("exact_match",),
    "multiple_choice": ("acc", "acc_norm"),
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
}
"""Metrics of a benchmark that names none: lm-evaluation-harness's."""

Metrics = dict[str, tuple[Metric, ...]]


def build_scorer(config: ScoringConfig, resolve: Resolve) -> Scorer:
    """The scorer of a benchmark; ``resolve`` turns ``file.py:fn`` into the function.

    Raises ConfigError for anything that cannot work: unknown names and arguments, a metric that is not made
    for the output type, two results under one name, a scorer without what it needs.
    """
    _refuse_duplicates(config.filters)
    chosen = config.scorer
    if chosen is None or isinstance(chosen, PlainScorerConfig):
        return _plain(config, resolve, chosen.type if chosen is not None else None)
    if isinstance(chosen, RewardModelConfig):
        return _reward(config, chosen, resolve)
    if isinstance(chosen, JudgeConfig):
        return _judge(config, chosen, resolve)
    if isinstance(chosen, EnsembleConfig):
        return _ensemble(config, chosen, resolve)
    if isinstance(chosen, AgreementConfig):
        return _agreement(config, chosen, resolve)
    return _user(config, chosen, resolve)


def build_pipelines(config: ScoringConfig, resolve: Resolve) -> tuple[FilterPipeline, ...]:
    """The filter pipelines of a benchmark, in the config's order."""
    return tuple(FilterPipeline.build(one, resolve, config.output_type) for one in config.filters)


def _plain(config: ScoringConfig, resolve: Resolve, kind: str | None) -> Scorer:
    if kind is None:
        kind = "process_results" if config.process_results else "loglikelihood"
        kind = "generation" if kind == "loglikelihood" and config.output_type == "generate_until" else kind
    if kind == "process_results":
        return _process_results(config, resolve)
    if (kind == "generation") != (config.output_type == "generate_until"):
        raise ConfigError(f"scorer {kind!r} is not made for output_type {config.output_type}")
    metrics = _metrics(config, _builder(config, resolve), DEFAULT_METRICS[config.output_type])
    if kind == "generation":
        return GenerationScorer(metrics)
    from scorers.loglikelihood import LoglikelihoodScorer

    return LoglikelihoodScorer(metrics)


def _process_results(config: ScoringConfig, resolve: Resolve) -> Scorer:
    from scorers.process_results import ProcessResultsScorer

    if config.process_results is None:
        raise ConfigError("scorer 'process_results' needs process_results: file.py:fn")
    function = resolve(config.process_results)
    _check_call(config.process_results, function, ("doc", "results"))
    metrics = _metrics(config, lambda one: Metric.column(one, resolve), ())
    if not any(metrics.values()):
        raise ConfigError("process_results needs a metric_list that names the metrics it returns")
    _refuse_shared_results(metrics)
    return ProcessResultsScorer(function, metrics, config.output_type == "loglikelihood_rolling")


def _reward(config: ScoringConfig, chosen: RewardModelConfig, resolve: Resolve) -> Scorer:
    from scorers.prompts import Prompt
    from scorers.reward import REWARD, RewardModelScorer

    _only_text(config, "reward_model")
    function = None if chosen.function is None else resolve(chosen.function)
    if function is not None and chosen.function is not None:
        _check_call(chosen.function, function, ("responses", "docs"), tuple(chosen.params))
    model = chosen.model if isinstance(chosen.model, str) else str((chosen.model or {}).get("name", REWARD))
    metrics = _with_own(config, resolve, (MetricConfig(metric=REWARD),))
    return RewardModelScorer(
        metrics, function, chosen.params, model, Prompt(chosen.prompt), chosen.sample_params
    )


def _judge(config: ScoringConfig, chosen: JudgeConfig, resolve: Resolve) -> Scorer:
    from scorers.judge.calibration import Calibration
    from scorers.judge.scorer import LLMJudgeScorer, judge_metrics, with_calibration
    from scorers.prompts import Prompt, compiled

    _only_text(config, "llm_judge")
    prompt = Prompt(chosen.prompt, chosen.messages, chosen.system_prompt)  # type: ignore[arg-type]
    if chosen.pairwise is not None:
        compiled(chosen.pairwise.baseline)
    rows = chosen.calibration if isinstance(chosen.calibration, tuple) else ()
    judged = [row for row in rows if row.judge is not None]
    if judged and len(judged) < len(rows):
        raise ConfigError(
            f"calibration: {len(judged)} of {len(rows)} rows have a verdict of the judge; give all or none"
        )
    calibration = (
        Calibration.of([row.human for row in judged], [bool(row.judge) for row in judged]) if judged else None
    )
    own = _with_own(config, resolve, judge_metrics(chosen))
    metrics = {
        name: tuple(with_calibration(metric, calibration) for metric in of) for name, of in own.items()
    }
    return LLMJudgeScorer(metrics, chosen, prompt, calibration)


def _ensemble(config: ScoringConfig, chosen: EnsembleConfig, resolve: Resolve) -> Scorer:
    from scorers.ensemble import ENSEMBLE, EnsembleScorer, Member

    members = []
    for place, member in enumerate(chosen.members):
        scorer = build_scorer(_member_config(config, member), resolve)
        offered = scorer.get_metrics("none")
        if not offered:
            raise ConfigError(f"ensemble member {place}: its scorer has no metric; name one")
        metric = offered[0] if member.metric is None else _named(offered, member.metric, place)
        members.append(Member(scorer, metric, member.weight))
    names = [member.metric.name for member in members]
    apart = [replace(m, metric=replace(m.metric, name=f"{m.metric.name}[{i}]")) if names.count(m.metric.name) > 1 else m
             for i, m in enumerate(members)]  # fmt: skip
    own = _named_config(config.metric_list or (), ENSEMBLE)
    filters = tuple(one.name for one in config.filters)
    return EnsembleScorer(tuple(apart), Metric.column(own, resolve), filters, chosen.normalize)


def _agreement(config: ScoringConfig, chosen: AgreementConfig, resolve: Resolve) -> Scorer:
    from scorers.agreement import FILTER_AGREEMENT, AgreementScorer

    names = tuple(one.name for one in config.filters)
    for name in chosen.filters or ():
        if name not in names:
            raise ConfigError(f"scorer 'agreement': filter {name!r} is not there{nearest(name, names)}")
    listed = config.metric_list or ()
    rest = tuple(one for one in listed if one.metric != FILTER_AGREEMENT)
    base = build_scorer(config.model_copy(update={"scorer": None, "metric_list": rest}), resolve)
    metric = Metric.column(_named_config(listed, FILTER_AGREEMENT), resolve)
    return AgreementScorer(base, chosen.filters or names, metric)


def _user(config: ScoringConfig, chosen: UserScorerConfig, resolve: Resolve) -> Scorer:
    from scorers.user import UserScorer

    made = resolve(chosen.type)
    if not inspect.isclass(made):
        raise ConfigError(f"scorer {chosen.type!r} is not a class")
    _check_call(chosen.type, made, (), tuple(chosen.kwargs))
    try:
        instance = made(**chosen.kwargs)
    except Exception as error:
        raise ConfigError(f"scorer {chosen.type!r} could not be constructed: {error}") from error
    own = getattr(instance, "get_metrics", None)

    def named(one: FilterConfig) -> Sequence[MetricConfig]:
        listed = (
            own(one.name)
            if callable(own)
            else (one.metric_list or config.metric_list or ({"metric": "score"},))
        )
        return [
            item if isinstance(item, MetricConfig) else MetricConfig.model_validate(item) for item in listed
        ]

    metrics = {
        one.name: unique_metrics([Metric.column(item, resolve) for item in named(one)], one.name)
        for one in config.filters
    }
    return UserScorer(chosen.type, instance, metrics)


def _metrics(
    config: ScoringConfig, build: Callable[[MetricConfig], Metric], default: Sequence[str]
) -> Metrics:
    """Each filter's metrics: its own list, else the benchmark's, else the default."""
    found: Metrics = {}
    for one in config.filters:
        listed: Sequence[MetricConfig] | None = (
            one.metric_list if one.metric_list is not None else config.metric_list
        )
        listed = [MetricConfig(metric=name) for name in default] if listed is None else listed
        found[one.name] = unique_metrics([build(item) for item in listed], one.name)
    return found


def _builder(config: ScoringConfig, resolve: Resolve) -> Callable[[MetricConfig], Metric]:
    return lambda one: Metric.build(one, resolve, config.output_type)


def _with_own(config: ScoringConfig, resolve: Resolve, own: Sequence[MetricConfig]) -> Metrics:
    """The filters' metrics and a scorer's own, which a metric list may name to give them an alias or a
    reduction."""
    names = {one.metric: one for one in own}

    def build(one: MetricConfig) -> Metric:
        if one.metric not in names:
            return Metric.build(one, resolve, config.output_type)
        default = names[one.metric]
        filled = {
            "aggregation": one.aggregation or default.aggregation,
            "kwargs": {**default.kwargs, **one.kwargs},
        }
        return Metric.column(one.model_copy(update=filled), resolve)

    found: Metrics = {}
    for one in config.filters:
        listed = list((one.metric_list if one.metric_list is not None else config.metric_list) or ())
        listed += [extra for extra in own if extra.metric not in {item.metric for item in listed}]
        found[one.name] = unique_metrics([build(item) for item in listed], one.name)
    return found


def _member_config(config: ScoringConfig, member: EnsembleMember) -> ScoringConfig:
    """A member sees the benchmark's output type and its own metric, under a filter of its own."""
    listed = None if member.metric is None else (member.metric,)
    if member.metric is None and member.scorer is not None:
        listed = ()
    return config.model_copy(update={"scorer": member.scorer, "filter_list": (), "metric_list": listed})


def _named(offered: Sequence[Metric], config: MetricConfig, place: int) -> Metric:
    wanted = config.alias or config.metric
    for metric in offered:
        if metric.name == wanted or metric.entry == config.metric:
            return metric
    if len(offered) == 1:
        return offered[0]
    raise ConfigError(f"ensemble member {place}: its scorer has no metric {wanted!r}")


def _named_config(listed: Sequence[MetricConfig], name: str) -> MetricConfig:
    """The entry of a metric list that gives a scorer's own metric an alias or a reduction, or a plain one."""
    return next((one for one in listed if one.metric == name), MetricConfig(metric=name))


def _only_text(config: ScoringConfig, kind: str) -> None:
    if config.output_type != "generate_until":
        raise ConfigError(f"scorer {kind!r} looks at text, and output_type is {config.output_type}")


def _refuse_duplicates(filters: Sequence[FilterConfig]) -> None:
    seen: set[str] = set()
    for one in filters:
        if one.name in seen:
            raise ConfigError(
                f"filter {one.name!r} is listed twice; its results would overwrite each other: rename one"
            )
        seen.add(one.name)


def _refuse_shared_results(metrics: Metrics) -> None:
    """A name with a filter of its own that no filter has would be every filter's result."""
    from scorers.naming import split_name

    seen: dict[tuple[str, str], str] = {}
    for filter_name, own in metrics.items():
        for metric in own:
            key = split_name(metric.name, filter_name)
            if key[1] != filter_name and key[1] in metrics:
                continue
            if key in seen:
                raise ConfigError(
                    f"process_results: '{key[0]},{key[1]}' would come from the filters {seen[key]!r} and "
                    f"{filter_name!r}; "
                    "name it in one of them"
                )
            seen[key] = filter_name


def _check_call(
    name: str, function: Callable[..., Any], data: Sequence[str], keywords: Sequence[str] = ()
) -> None:
    """Raises ConfigError where ``function`` takes fewer arguments than it will be given, or not these
    keywords."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # a builtin: it cannot be asked
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(data) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ConfigError(f"{name} is called with ({', '.join(data)}), and takes {len(positional)} arguments")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters[len(data) :] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in keywords:
        if key not in known:
            raise ConfigError(
                f"{name} has no argument {key!r}{nearest(key, known)} (its arguments: "
                f"{', '.join(known) or 'none'})"
            )
