"""Building the scorers that are made of others or of user code: ensembles, agreement, a user's class."""

import inspect
from collections.abc import Sequence
from dataclasses import replace

from metrics.config import MetricConfig
from metrics.errors import ConfigError, nearest
from metrics.metric import Metric
from scorers.agreement import FILTER_AGREEMENT, AgreementScorer
from scorers.base import Scorer
from scorers.calls import check_call
from scorers.config import (
    AgreementConfig,
    EnsembleConfig,
    EnsembleMember,
    FilterConfig,
    ScoringConfig,
    UserScorerConfig,
)
from scorers.ensemble import ENSEMBLE, EnsembleScorer, Member
from scorers.factory import build_scorer
from scorers.filters.pipeline import Resolve
from scorers.generation import GenerationScorer
from scorers.loglikelihood import LoglikelihoodScorer
from scorers.metric_lists import build_column, listed_for, named_or_plain, with_own_metrics
from scorers.naming import unique_metrics
from scorers.user import UserScorer

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
    metrics = with_own_metrics(config, resolve, (MetricConfig(metric=ENSEMBLE),))
    generates = config.output_type == "generate_until"
    base = GenerationScorer(metrics) if generates else LoglikelihoodScorer(metrics)
    return EnsembleScorer(base, apart, chosen.normalize)


def agreement_scorer(config: ScoringConfig, chosen: AgreementConfig, resolve: Resolve) -> Scorer:
    """Agreement beside the scorer that the benchmark has anyway."""
    names = tuple(one.name for one in config.filters)
    for name in chosen.filters or ():
        if name not in names:
            raise ConfigError(f"scorer 'agreement': filter {name!r} is not there{nearest(name, names)}")
    lists = (config.metric_list, *(one.metric_list for one in config.filter_list))
    listed = [one for own in lists for one in own or ()]
    rest = {
        "scorer": None,
        "metric_list": _without_agreement(config.metric_list) or (),
        "filter_list": tuple(
            one.model_copy(update={"metric_list": _without_agreement(one.metric_list)})
            for one in config.filter_list
        ),
    }
    base = build_scorer(config.model_copy(update=rest), resolve)
    metric = Metric.column(named_or_plain(listed, FILTER_AGREEMENT), resolve)
    return AgreementScorer(base, chosen.filters or names, metric)


def _without_agreement(listed: Sequence[MetricConfig] | None) -> tuple[MetricConfig, ...] | None:
    """A metric list without what all filters have together; None stays None."""
    return None if listed is None else tuple(one for one in listed if one.metric != FILTER_AGREEMENT)


def user_scorer(config: ScoringConfig, chosen: UserScorerConfig, resolve: Resolve) -> Scorer:
    """A user's class, constructed with the config's other keys."""
    made = resolve(chosen.type)
    if not inspect.isclass(made):
        raise ConfigError(f"scorer {chosen.type!r} is not a class")
    check_call(chosen.type, made, (), tuple(chosen.kwargs))
    try:
        instance = made(**chosen.kwargs)
    except Exception as error:
        raise ConfigError(f"scorer {chosen.type!r} could not be constructed: {error}") from error
    own = getattr(instance, "get_metrics", None)

    def named(one: FilterConfig) -> Sequence[MetricConfig]:
        listed = own(one.name) if callable(own) else (listed_for(config, one) or ("score",))
        return [
            item if isinstance(item, MetricConfig) else MetricConfig.model_validate(item) for item in listed
        ]

    metrics = {
        one.name: unique_metrics(named(one), lambda item: build_column(item, resolve), one.name)
        for one in config.filters
    }
    return UserScorer(chosen.type, instance, metrics)


def _member(config: ScoringConfig, member: EnsembleMember, place: int, resolve: Resolve) -> Member:
    """A member sees the benchmark's output type and its own metric, under a filter of its own."""
    listed = () if member.metric is None else (member.metric,)
    own_metric_only = member.metric is None and member.scorer is not None
    scorer = build_scorer(
        config.model_copy(
            update={
                "scorer": member.scorer,
                "filter_list": (),
                "metric_list": listed if listed or own_metric_only else None,
                "process_results": None,
            }
        ),
        resolve,
    )
    offered = scorer.get_metrics(ANY_FILTER)
    if not offered:
        raise ConfigError(f"ensemble member {place}: its scorer has no metric; name one")
    return Member(scorer, offered[0], member.weight)
