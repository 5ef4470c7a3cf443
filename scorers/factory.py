"""From a benchmark's config to its scorer and its filter pipelines.

The scorer is the one that ``scorer:`` names, else ``process_results``, else the output type's default. Every
function, class and prompt of the config is checked here, before a response exists.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from metrics.aliases import nearest
from metrics.build import build_column
from metrics.config import MetricConfig
from metrics.errors import ConfigError, described, named, users_code
from metrics.metric import Metric
from metrics.registry import METRICS
from metrics.types import Resolve
from scorers.agreement import FILTER_AGREEMENT, AgreementScorer
from scorers.arena import WIN_RATE, ArenaScorer, is_arena
from scorers.base import ALL_FILTERS, Scorer
from scorers.config import (
    AgreementConfig,
    ArenaConfig,
    DefaultScorerConfig,
    EnsembleConfig,
    EnsembleMember,
    ExecutionConfig,
    FilterConfig,
    RecordedConfig,
    RewardModelConfig,
    ScoringConfig,
    UserScorerConfig,
    split_result_name,
)
from scorers.ensemble import ENSEMBLE, EnsembleScorer, WeightedScorer
from scorers.execution import TESTS_PASSED, ExecutionScorer, is_executed
from scorers.filters.pipeline import FilterPipeline
from scorers.generation import GenerationScorer
from scorers.grading import GradingPrompt, compiled
from scorers.judge.calibration import Calibration, Labelled
from scorers.judge.config import JudgeConfig
from scorers.judge.scorer import LLMJudgeScorer, calibration_of, judge_metric, judge_metrics
from scorers.letters import ACC_LETTER, LetterScorer
from scorers.loglikelihood import LoglikelihoodScorer
from scorers.metric_lists import (
    DEFAULT_METRICS,
    MetricsByFilter,
    build_listed_column,
    build_listed_metric,
    metric_list_of,
    metrics_by_filter,
    refuse_arguments,
    unique_metrics,
    with_scorer_metrics,
)
from scorers.process_results import ProcessResultsScorer
from scorers.recorded import RECORDED, SCORE, RecordedScorer
from scorers.reward import REWARD, RewardModelScorer
from scorers.user import UserScorer
from scorers.user_functions import check_call


def build_scorer(config: ScoringConfig, resolve: Resolve) -> Scorer:
    """The scorer of a benchmark; ``resolve`` turns ``file.py:fn`` into the function.

    Raises ConfigError for anything that cannot work: unknown names and arguments, a metric that is not made
    for the output type, two results under one name, a scorer without what it needs.
    """
    _refuse_names(config.filters)
    chosen = config.scorer
    if config.letters:
        return _letter_scorer(config, resolve)
    if chosen is None or isinstance(chosen, DefaultScorerConfig):
        return _default_scorer(config, resolve, None if chosen is None else chosen.type)
    if isinstance(chosen, JudgeConfig):
        return judge_scorer(config, chosen, resolve)
    if isinstance(chosen, RewardModelConfig):
        return reward_scorer(config, chosen, resolve)
    if isinstance(chosen, RecordedConfig):
        return recorded_scorer(config, resolve)
    if isinstance(chosen, EnsembleConfig):
        return ensemble_scorer(config, chosen, resolve)
    if isinstance(chosen, ExecutionConfig):
        return execution_scorer(config, chosen, resolve)
    if isinstance(chosen, ArenaConfig):
        return arena_scorer(config, chosen, resolve)
    if isinstance(chosen, AgreementConfig):
        return agreement_scorer(config, chosen, resolve)
    return user_scorer(config, chosen, resolve)


def build_pipelines(config: ScoringConfig, resolve: Resolve) -> tuple[FilterPipeline, ...]:
    """The filter pipelines of a benchmark, in the config's order."""
    return tuple(FilterPipeline.build(one, resolve, config.output_type) for one in config.filters)


def _default_scorer(config: ScoringConfig, resolve: Resolve, kind: str | None) -> Scorer:
    generates = config.output_type == "generate_until"
    if kind is None:
        kind = (
            "process_results" if config.process_results else ("generation" if generates else "loglikelihood")
        )
    if kind == "process_results":
        return _process_results_scorer(config, resolve)
    if (kind == "generation") != generates:
        raise ConfigError(f"scorer {kind!r} is not made for output_type {config.output_type}")
    metrics = metrics_by_filter(
        config,
        lambda one: build_listed_metric(config, one, resolve),
        DEFAULT_METRICS[config.output_type],
    )
    if generates:
        return GenerationScorer(metrics)
    return LoglikelihoodScorer(metrics)


def _letter_scorer(config: ScoringConfig, resolve: Resolve) -> Scorer:
    """Choices asked for by their letters have one metric; likelihoods, which others are made of, are not
    there."""
    if config.scorer is not None or config.process_results is not None:
        what = "process_results" if config.process_results is not None else "scorer"
        raise ConfigError(
            f"{what}: choices asked for by their letters have the metric {ACC_LETTER} alone; leave it out"
        )
    for one in (one for own in config.filters for one in metric_list_of(config, own) or ()):
        if one.metric != ACC_LETTER:
            raise ConfigError(
                f"metric {one.metric!r}: choices asked for by their letters have the metric {ACC_LETTER}; "
                "another number than those of likelihoods"
            )
    metrics = metrics_by_filter(config, lambda one: _letter_metric(config, one, resolve), (ACC_LETTER,))
    return LetterScorer(metrics)


def _letter_metric(config: ScoringConfig, one: MetricConfig, resolve: Resolve) -> Metric:
    """The metric with how letters are asked for among its arguments, by which results are distinguished."""
    refuse_arguments(one, ())
    metric = build_column(one, resolve).within((0.0, 1.0))
    return replace(metric, arguments={**metric.arguments, "choices_by": config.letters})


def _process_results_scorer(config: ScoringConfig, resolve: Resolve) -> Scorer:
    if config.process_results is None:
        raise ConfigError("scorer 'process_results' needs process_results: file.py:fn")
    function = resolve(config.process_results)
    check_call(config.process_results, function, ("doc", "results"))
    metrics = metrics_by_filter(config, lambda one: build_listed_column(one, resolve))
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
            key = split_result_name(metric.name, filter_name)
            if key[1] != filter_name and key[1] in metrics:
                continue
            if key in seen:
                raise ConfigError(
                    f"process_results: '{key[0]},{key[1]}' would come from the filters {seen[key]!r} and "
                    f"{filter_name!r}; name it in one of them"
                )
            seen[key] = filter_name


ANY_FILTER = "none"
"""Members of an ensemble are built for one filter, and score the predictions of all of them."""


def ensemble_scorer(config: ScoringConfig, chosen: EnsembleConfig, resolve: Resolve) -> Scorer:
    """An ensemble of members that are scorers by themselves."""
    members = [_member(config, member, place, resolve) for place, member in enumerate(chosen.members)]
    names = [member.metric.name for member in members]
    apart = tuple(
        replace(member, metric=replace(member.metric, name=f"{name}[{place}]"))
        if names.count(name) > 1
        else member
        for place, (name, member) in enumerate(zip(names, members, strict=True))
    )
    own = MetricConfig(metric=ENSEMBLE, higher_is_better=_direction(members))
    bounds = _range(members, chosen.normalize)
    metrics = {
        name: tuple(metric.within(bounds) if metric.entry == ENSEMBLE else metric for metric in found)
        for name, found in with_scorer_metrics(config, resolve, (own,)).items()
    }
    generates = config.output_type == "generate_until"
    base = GenerationScorer(metrics) if generates else LoglikelihoodScorer(metrics)
    return EnsembleScorer(base, apart, chosen.normalize)


def _direction(members: Sequence[WeightedScorer]) -> bool | None:
    """``higher_is_better`` of the members together: False where each one's numbers of answers are better when
    lower. Raises ConfigError where some are and some are not."""
    sides: dict[bool, str] = {}
    for metric in (member.metric for member in members):
        sides.setdefault(metric.aggregation.items_better_up(metric.higher_is_better), metric.name)
    if len(sides) > 1:
        raise ConfigError(
            f"ensemble: {sides[True]!r} is better when higher, and {sides[False]!r} when lower: their mean "
            "has no direction; choose members of one direction, or set higher_is_better of a member's metric"
        )
    return False if False in sides else None


def _range(members: Sequence[WeightedScorer], normalize: bool) -> tuple[float, float]:
    """The ends of what the members' numbers come to together, as far as theirs are known."""
    ends = [
        (member.weight * low, member.weight * high)
        for member in members
        for low, high in [_range_of_answers(member.metric)]
    ]
    total = sum(member.weight for member in members) if normalize else 1.0
    return sum(low for low, _ in ends) / total, sum(high for _, high in ends) / total


def _range_of_answers(metric: Metric) -> tuple[float, float]:
    """Of a mean, the range of its answers' numbers is known where its own is."""
    aggregation = metric.aggregation
    return aggregation.bounds if aggregation.name == "mean" else (-math.inf, math.inf)


def agreement_scorer(config: ScoringConfig, chosen: AgreementConfig, resolve: Resolve) -> Scorer:
    """Agreement beside the scorer that the benchmark has anyway."""
    names = tuple(one.name for one in config.filters)
    for name in chosen.filters or ():
        if name not in names:
            raise ConfigError(f"scorer 'agreement': filter {name!r} is not there{nearest(name, names)}")
    lists = (config.metric_list, *(one.metric_list for one in config.filter_list))
    entries = [one for own in lists for one in own or ()]
    rest = {
        "scorer": None,
        "metric_list": _without_agreement(config.metric_list) or (),
        "filter_list": tuple(
            one.model_copy(update={"metric_list": _without_agreement(one.metric_list)})
            for one in config.filter_list
        ),
    }
    base = build_scorer(config.model_copy(update=rest), resolve)
    listed = (one for one in entries if one.metric == FILTER_AGREEMENT)
    own = next(listed, MetricConfig(metric=FILTER_AGREEMENT))
    refuse_arguments(own, ())
    metric = build_column(own, resolve).within((0.0, 1.0))
    return AgreementScorer(base, tuple(dict.fromkeys(chosen.filters or names)), metric)


def _without_agreement(entries: Sequence[MetricConfig] | None) -> tuple[MetricConfig, ...] | None:
    """A metric list without what all filters have together; None stays None."""
    return None if entries is None else tuple(one for one in entries if one.metric != FILTER_AGREEMENT)


def user_scorer(config: ScoringConfig, chosen: UserScorerConfig, resolve: Resolve) -> Scorer:
    """A user's class, constructed with the config's other keys."""
    user_class = resolve(chosen.type)
    if not inspect.isclass(user_class):
        raise ConfigError(f"scorer {chosen.type!r} is not a class")
    arguments = dict(chosen.kwargs)
    by_instances = callable(getattr(user_class, "score_instances", None))
    if by_instances and "task_config" in inspect.signature(user_class).parameters:
        arguments.setdefault("task_config", config.model_dump())
    check_call(chosen.type, user_class, (), tuple(arguments))
    try:
        with users_code():
            instance = user_class(**arguments)
    except Exception as error:
        raise ConfigError(f"scorer {chosen.type!r} could not be constructed: {named(error)}") from error
    metrics_of_class = getattr(instance, "get_metrics", None)
    if by_instances:
        if getattr(user_class, "get_metrics", None) is getattr(Scorer, "get_metrics", None):
            metrics_of_class = None  # the protocol's own says nothing
        vars(instance)["metrics"] = _metrics_of_instances(config, resolve)

    def entries_of(one: FilterConfig) -> Sequence[MetricConfig]:
        entries: Sequence[MetricConfig | str] = metric_list_of(config, one) or ("score",)
        if callable(metrics_of_class):
            try:
                with users_code():
                    entries = list(metrics_of_class(one.name))
            except Exception as error:
                raise ConfigError(f"scorer {chosen.type!r}: get_metrics raised {described(error)}") from error
        return [
            item if isinstance(item, MetricConfig) else MetricConfig.model_validate(item) for item in entries
        ]

    def column(item: MetricConfig) -> Metric:
        if by_instances:  # what it gives for each answer is averaged; arguments are those of its metrics
            item = item.model_copy(update={"aggregation": item.aggregation or "mean", "kwargs": {}})
        return by_class(item)

    def by_class(item: MetricConfig) -> Metric:
        """The metric with who scores it among its arguments, by which results are distinguished."""
        metric = build_listed_column(item, resolve)
        scorer = {"scorer": user_class.__name__}
        return replace(metric, arguments={**chosen.kwargs, **metric.arguments, **scorer})

    metrics = {one.name: unique_metrics(entries_of(one), column, one.name) for one in config.filters}
    if getattr(instance, "across_filters", False):
        if not callable(metrics_of_class):
            raise ConfigError(
                f"scorer {chosen.type!r} looks across filters and has no method get_metrics(filter_name), "
                'which names the metrics of "*"'
            )
        everything = FilterConfig.model_construct(name=ALL_FILTERS, filter=(), metric_list=())
        metrics[ALL_FILTERS] = unique_metrics(entries_of(everything), by_class, ALL_FILTERS)
    return UserScorer(chosen.type, instance, metrics)


def _metrics_of_instances(config: ScoringConfig, resolve: Resolve) -> MetricsByFilter:
    """The metrics of each filter that ``score_instances`` may compute: those that have a function."""
    known = {
        one.name: [
            item for item in metric_list_of(config, one) or () if item.function or item.metric in METRICS
        ]
        for one in config.filters
    }
    return {
        name: unique_metrics(items, lambda item: build_listed_metric(config, item, resolve), name)
        for name, items in known.items()
    }


_NO_MEMBERS: Final[Mapping[type, str]] = {
    ArenaConfig: "an arena compares models and scores no answer by itself",
    AgreementConfig: "agreement compares filters, and a member sees one",
    ExecutionConfig: "programs are run for the benchmark's own scorer; make execution that",
}
"""Scorers whose numbers need more than an answer and its filter."""


def _member(config: ScoringConfig, member: EnsembleMember, place: int, resolve: Resolve) -> WeightedScorer:
    """A member sees the benchmark's output type and its own metric, under a filter of its own."""
    entries = () if member.metric is None else (member.metric,)
    own_metric_only = member.metric is None and member.scorer is not None
    for kind, why in _NO_MEMBERS.items():
        if isinstance(member.scorer, kind):
            raise ConfigError(f"ensemble member {place}: {why}")
    if isinstance(member.scorer, JudgeConfig) and member.scorer.calibration is not None:
        raise ConfigError(
            f"ensemble member {place}: a calibration corrects a rate over all items, and an ensemble "
            "combines the numbers of each answer; leave calibration out"
        )
    scorer = build_scorer(
        config.model_copy(
            update={
                "scorer": member.scorer,
                "filter_list": (),
                "metric_list": entries if entries or own_metric_only else None,
                "process_results": None,
            }
        ),
        resolve,
    )
    offered = scorer.get_metrics(ANY_FILTER)
    if not offered:
        raise ConfigError(f"ensemble member {place}: its scorer has no metric; name one")
    return WeightedScorer(scorer, offered[0], member.weight)


def reward_scorer(config: ScoringConfig, chosen: RewardModelConfig, resolve: Resolve) -> Scorer:
    """A reward model: the user's function, checked for its keywords, or the endpoint's name and prompt."""
    _only_text(config, "reward_model")
    function = None if chosen.function is None else resolve(chosen.function)
    if function is not None and chosen.function is not None:
        check_call(chosen.function, function, ("responses", "docs"), tuple(chosen.params))
    metrics = with_scorer_metrics(config, resolve, (MetricConfig(metric=REWARD),))
    return RewardModelScorer(
        metrics,
        function,
        chosen.params,
        chosen.model_name,
        GradingPrompt(chosen.prompt),
        chosen.sample_params,
    )


def recorded_scorer(config: ScoringConfig, resolve: Resolve) -> Scorer:
    """Scores of another program, read from what came with each response; ``range`` bounds them."""
    _only_text(config, RECORDED)
    own = MetricConfig(metric=RECORDED, kwargs={"field": SCORE, "range": None})
    return RecordedScorer(
        {
            name: tuple(_within_its_range(metric) if metric.entry == RECORDED else metric for metric in found)
            for name, found in with_scorer_metrics(config, resolve, (own,)).items()
        }
    )


def _within_its_range(metric: Metric) -> Metric:
    bounds = metric.arguments.get("range")
    if bounds is None:
        return metric
    if not isinstance(bounds, (list, tuple)) or len(bounds) != 2 or not bounds[0] < bounds[1]:
        raise ConfigError(f"metric {metric.name!r}: range is two numbers, the smaller first; got {bounds!r}")
    return metric.within((float(bounds[0]), float(bounds[1])))


def execution_scorer(config: ScoringConfig, chosen: ExecutionConfig, resolve: Resolve) -> Scorer:
    """A scorer that runs answers: its template compiled, and for each ``tests_passed`` what it counts."""
    _only_text(config, "execution")
    compiled(chosen.program)
    own = MetricConfig(metric=TESTS_PASSED, kwargs={"count": "all"})
    metrics = {
        name: tuple(metric.within((0.0, 1.0)) if is_executed(metric) else metric for metric in found)
        for name, found in with_scorer_metrics(config, resolve, (own,)).items()
    }
    for metric in (metric for found in metrics.values() for metric in found if is_executed(metric)):
        if metric.arguments.get("count") not in ("all", "share"):
            raise ConfigError(
                f"metric {metric.name!r}: count is all (every case has to pass) or share, "
                f"got {metric.arguments.get('count')!r}"
            )
    return ExecutionScorer(
        metrics, chosen.program, chosen.cases, chosen.compare, chosen.limits, chosen.python or ""
    )


def judge_scorer(config: ScoringConfig, chosen: JudgeConfig, resolve: Resolve) -> Scorer:
    """A judge: its templates compiled, its calibration counted where the judge's verdicts are given with
    it."""
    _only_text(config, "llm_judge")
    messages = None if chosen.messages is None else tuple(turn.model_dump() for turn in chosen.messages)
    prompt = GradingPrompt(chosen.prompt, messages, chosen.system_prompt)
    if chosen.pairwise is not None:
        compiled(chosen.pairwise.baseline)
    calibration = _calibration(chosen)
    metrics = {
        name: tuple(judge_metric(metric, calibration, chosen) for metric in own)
        for name, own in with_scorer_metrics(config, resolve, judge_metrics(chosen)).items()
    }
    return LLMJudgeScorer(metrics, chosen, prompt, calibration)


def arena_scorer(config: ScoringConfig, chosen: ArenaConfig, resolve: Resolve) -> Scorer:
    """An arena: its templates compiled, and among its metric's arguments the models that are played against,
    by which results are distinguished."""
    _only_text(config, "arena")
    if len(config.players) < 2:
        raise ConfigError(
            f"scorer 'arena' compares models, and models has {', '.join(config.players) or 'none'}: name two "
            "or more"
        )
    if chosen.baseline is not None and chosen.baseline not in config.players:
        raise ConfigError(
            f"scorer 'arena': baseline '{chosen.baseline}' is no entry of models"
            f"{nearest(chosen.baseline, config.players)} (there: {', '.join(config.players)})"
        )
    opponents = chosen.baseline or ", ".join(sorted(config.players))
    messages = None if chosen.messages is None else tuple(turn.model_dump() for turn in chosen.messages)
    metrics = {
        name: tuple(
            replace(metric.within((0.0, 1.0)), arguments={**metric.arguments, "opponents": opponents})
            if is_arena(metric)
            else metric
            for metric in own
        )
        for name, own in with_scorer_metrics(config, resolve, (MetricConfig(metric=WIN_RATE),)).items()
    }
    return ArenaScorer(metrics, chosen, GradingPrompt(chosen.prompt, messages, chosen.system_prompt))


def _calibration(chosen: JudgeConfig) -> Calibration | Labelled | None:
    rows = chosen.calibration if isinstance(chosen.calibration, tuple) else ()
    judged = [row for row in rows if row.judge is not None]
    if not judged:
        return None
    if len(judged) < len(rows):
        raise ConfigError(
            f"calibration: {len(judged)} of {len(rows)} rows have a verdict of the judge; give it in all "
            "rows or in none"
        )
    human, judge = (
        [float(grade or 0) for grade in column]
        for column in zip(*((row.human, row.judge) for row in judged), strict=True)
    )
    return calibration_of(chosen, human, judge)


def _only_text(config: ScoringConfig, kind: str) -> None:
    if config.output_type != "generate_until":
        raise ConfigError(f"scorer {kind!r} looks at text, and output_type is {config.output_type}")
