"""Steps of filters, pairs, evaluation methods and their metrics: what each of them is in a cache key."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.config.schema import EvalConfig
from flows.plan.steps import ArenaPlan, FilterPlan, MethodPlan, MetricPlan, OverallPlan, PairPlan
from metrics import Metric
from metrics.errors import ConfigError, NightjarError
from metrics.metric import installed_version
from metrics.registry import module_of
from scorers.arena import is_arena
from scorers.base import ALL_FILTERS, Scorer
from scorers.config import (
    ArenaConfig,
    DefaultScorerConfig,
    EnsembleConfig,
    ExecutionConfig,
    FilterConfig,
    ScorerConfig,
    ScoringConfig,
    UserScorerConfig,
)
from scorers.execution import is_executed
from scorers.filters import FilterPipeline
from scorers.filters.pipeline import FilterStep, UserStep
from scorers.judge.config import JudgeConfig
from scorers.letters import FIRST_TOKEN
from scorers.metric_lists import SCORER_METRICS
from scorers.process_results import ProcessResultsScorer
from tasks.arena import RateSetup
from tasks.datasets.items import read_rows
from tasks.execute import ExecuteSetup
from tasks.judge import MethodSetup, MetricSetup
from tasks.reduce import AggregateSetup
from tasks.reduction.verdict_metrics import build_evaluation_metric
from tasks.rows.parts import PairSetup, pending, reads_responses
from tasks.rows.predictions import FilterSetup
from tasks.rows.running import RunningScore
from tasks.sandboxes.interpreters import interpreter_at
from tasks.sandboxes.run import VERSION
from tasks.store.home import named_path
from tasks.store.keys import Step
from tasks.store.schemas import CELL_FACETS
from tasks.usercode.evaluate import asks_about_programs
from tasks.usercode.load import Resolver
from tasks.usercode.sources import named_files, sources_of
from tasks.verdicts.config import EvaluationMethodConfig, EvaluationMetricConfig
from tasks.verdicts.methods import build_method


def filters_of(config: EvalConfig, scorer: Scorer) -> list[FilterConfig]:
    """The filters, and the one that stands for all of them where the scorer has metrics for it."""
    everything = FilterConfig.model_construct(name=ALL_FILTERS, filter=(), metric_list=())
    return [*config.filters(), *([everything] if scorer.get_metrics(ALL_FILTERS) else [])]


def filter_plan(
    config: EvalConfig,
    entry: FilterConfig,
    scoring: ScoringConfig,
    scorer: Scorer,
    resolve: Resolver,
    not_before: float = 0.0,
) -> FilterPlan:
    """A filter and its pairs; programs that ran before ``not_before`` (seconds since 1970) run again."""
    pipeline = FilterPipeline.build(entry, resolve, config.output_type)
    identity: dict[str, Any] = {
        "steps": [step.model_dump(mode="json") for step in entry.filter],
        "code": sources_of(*pipeline.code(), resolve=resolve),
        **_named([step.model_dump() for step in entry.filter], config.base_dir),
    }
    letters = config.choices_by if config.asks_letters else None
    if letters is not None:
        read = {"ask": letters.ask, "coverage": letters.coverage if letters.ask == FIRST_TOKEN else None}
        identity["letters"] = read
    if scoring.cut_off == "text":
        identity["cut_off"] = "text"  # otherwise it is the score's affair
    if any(step.patterns for step in pipeline.steps):
        identity["item_timeout"] = scoring.item_timeout
    setup = FilterSetup(
        config=entry,
        output_type=config.output_type,
        base_dir=config.base_dir,
        own_modules=_owns(config),
        letters=letters.ask if letters is not None and letters.ask != "likelihood" else None,
        coverage=letters.coverage if letters is not None else 0.0,
        cut_as_text=scoring.cut_off == "text",
        item_timeout=scoring.item_timeout,
    )
    scored = _ScoringOf(config, scoring, scorer, entry.name, resolve, not_before)
    return FilterPlan(
        name=entry.name,
        step=Step(name=f"filter {entry.name}", identity=identity, setup=setup),
        process=_process(config, scoring, entry.name, resolve),
        pairs=tuple(_pair(scored, metric) for metric in scorer.get_metrics(entry.name)),
    )


def running_score(
    config: EvalConfig, filters: Sequence[FilterPlan], resolve: Resolver
) -> RunningScore | None:
    """The first pair that can be scored while its model is still asked: a mean over items by functions of
    this project's, which ask nobody, run nothing and end. None: there is none."""
    if config.scorer is not None or config.process_results is not None or config.turns is not None:
        return None
    for plan in filters:
        for pair in plan.pairs:
            metric, setup = pair.identity.metric, plan.step.setup
            ours = metric.function is not None and module_of(metric).partition(".")[0] == "metrics"
            plain = pair.asks is None and pair.execute is None and pair.arena is None and not metric.endless
            steps = setup.pipeline().steps if ours and plain else ()
            if ours and plain and metric.aggregation.name == "mean" and not any(map(_is_users, steps)):
                return RunningScore(filter=setup, pair=pair.score.setup)
    return None


def _is_users(step: FilterStep) -> bool:
    return isinstance(step.run, UserStep)


def _owns(config: EvalConfig) -> bool:
    """Whether the functions' files are imported for this benchmark alone: the harness's keep state."""
    return config.harness is not None


def _process(
    config: EvalConfig, scoring: ScoringConfig, name: str, resolve: Resolver
) -> Step[PairSetup] | None:
    if config.process_results is None or config.scorer is not None:
        return None
    code = sources_of(resolve(config.process_results), resolve=resolve)
    setup = PairSetup(
        benchmark=config.name, scoring=scoring, filter=name, metric="", base_dir=config.base_dir,
        own_modules=_owns(config),
    )  # fmt: skip
    identity = {
        "function": config.process_results.rpartition(":")[2],
        "code": code,
        "output_type": config.output_type,
        "cut_off": scoring.cut_off,
        **_named([entry.model_dump() for entry in config.metric_list or ()], config.base_dir),
    }
    return Step(name=f"process {name}", identity=identity, setup=setup)


@dataclass(frozen=True)
class _ScoringOf:
    """What all pairs of a filter share."""

    config: EvalConfig
    scoring: ScoringConfig
    scorer: Scorer
    source: str
    resolve: Resolver
    not_before: float


def _pair(shared: _ScoringOf, metric: Metric) -> PairPlan:
    config, scoring, scorer, source = shared.config, shared.scoring, shared.scorer, shared.source
    setup = PairSetup(
        benchmark=config.name,
        scoring=scoring,
        filter=source,
        metric=metric.name,
        base_dir=config.base_dir,
        own_modules=_owns(config),
        facets=config.facets,
    )
    identity = setup.identity(scorer)
    name = f"{identity.filter} × {identity.metric.name}"
    asking = _scorer_identity(shared, metric)
    scored = _metric_identity(shared, metric) | {"scorer": asking, "across_filters": source == ALL_FILTERS}
    if (
        metric.endless
        or metric.patterns is not None
        or isinstance(scoring.scorer, EnsembleConfig | JudgeConfig)
    ):
        scored["item_timeout"] = scoring.item_timeout
    # The rows bear these names; what was scored, and how, is in the statistics that they are made from.
    named = {"benchmark": config.name, "names": [identity.filter, identity.metric.name]}
    named |= _named({"depends_on": metric.depends_on}, config.base_dir)
    # A judge's calibration has a say in its numbers' errors, and a scorer of its own may have.
    own = {"scorer": asking} if asking["config"] is not None else {}
    reduced = named | own | {
        "reductions": [reduction.name for reduction in metric.reductions],
        "aggregation": metric.aggregation.name,
        "facets": list(config.facets),
        "code": sources_of(*metric.reduction_code(), resolve=shared.resolve),
    }  # fmt: skip
    aggregated = named | own | {
        "facets": list(config.facets),
        "statistics": config.statistics.model_dump(mode="json"),
        "signature": metric.signature(),
        "higher_is_better": metric.higher_is_better,
        "code": sources_of(*metric.aggregation.code(), resolve=shared.resolve),
    }  # fmt: skip
    reduce: Step[PairSetup] = Step(
        name=f"reduce {name}",
        identity=reduced,
        setup=setup,
        whole=("answers",) if reads_responses(config.facets) else (),
    )
    aggregate: Step[AggregateSetup] = Step(
        name=f"aggregate {name}",
        identity=aggregated,
        setup=AggregateSetup(**dict(setup), statistics=config.statistics),
    )
    return PairPlan(
        source=source,
        identity=identity,
        score=Step(name=f"score {name}", identity=scored, setup=setup),
        reduce=reduce,
        aggregate=aggregate,
        execute=_execute(shared, asking) if is_executed(metric) else _execute_asked(shared),
        asks=scorer.needs(metric),
        calibration=calibration_step(config, scoring, scorer, asking) if metric.entry == CORRECTED else None,
        arena=_arena(shared, setup, metric) if is_arena(metric) else None,
        overall=_overall(reduce, aggregate) if set(config.facets) - {*CELL_FACETS, "label"} else None,
    )


def _overall(reduce: Step[PairSetup], aggregate: Step[AggregateSetup]) -> OverallPlan:
    """The same steps by model and prompt alone."""
    setups = [step.setup.model_copy(update={"facets": CELL_FACETS}) for step in (reduce, aggregate)]
    identities = [step.identity | {"facets": list(CELL_FACETS)} for step in (reduce, aggregate)]
    names = [step.name.replace(" ", " overall ", 1) for step in (reduce, aggregate)]
    return OverallPlan(
        reduce=Step(name=names[0], identity=identities[0], setup=setups[0]),
        aggregate=Step(name=names[1], identity=identities[1], setup=setups[1]),
    )


def _arena(shared: _ScoringOf, setup: PairSetup, metric: Metric) -> ArenaPlan:
    """The games of a filter: what they come to depends on what the judge is asked and how its verdicts are
    read, and on no other model."""
    config, chosen, source = shared.config, shared.scoring.scorer, shared.source
    assert isinstance(chosen, ArenaConfig), "only such a scorer has a metric that waits for games"
    identity = {
        "code": sources_of(*shared.scorer.code(), resolve=shared.resolve),
        "config": chosen.model_dump(mode="json", exclude={"opponents", "baseline"}),
        "cut_off": shared.scoring.cut_off,
    }
    models = tuple(model.name for model in config.models)
    rated = {
        "models": list(models),
        "filter": source,
        "statistics": config.statistics.model_dump(mode="json"),
        "opponents": metric.arguments["opponents"],
    }
    return ArenaPlan(
        games=Step(name=f"games {source}", identity=identity, setup=setup),
        rate=Step(
            name=f"rate {source}",
            identity=rated,
            setup=RateSetup(models=models, filter=source, statistics=config.statistics),
        ),
        baseline=chosen.baseline,
    )


def _execute(shared: _ScoringOf, scorer: dict[str, Any]) -> Step[ExecuteSetup]:
    """The step that runs a filter's predictions, the same for all of its pairs."""
    config, chosen = shared.config, shared.scoring.scorer
    assert isinstance(chosen, ExecutionConfig), "only such a scorer has a metric that waits for programs"
    interpreter = interpreter_at(chosen.python or "").about
    setup = ExecuteSetup(
        benchmark=config.name,
        scoring=shared.scoring,
        filter=shared.source,
        metric="",
        base_dir=config.base_dir,
        not_before=shared.not_before,
    )
    identity = {"scorer": scorer, "interpreter": interpreter, "sandbox": VERSION}
    return Step(name=f"execute {shared.source}", identity=identity, setup=setup)


def _execute_asked(shared: _ScoringOf) -> Step[ExecuteSetup] | None:
    """The step that runs what the functions of a filter's pairs ask about, the same for all of them; None
    where none asks."""
    config, scorer = shared.config, shared.scorer
    if isinstance(scorer, ProcessResultsScorer):
        asking = scorer.get_metrics(shared.source)[:1] if asks_about_programs(scorer.function) else ()
        identity: dict[str, Any] = {"function": (config.process_results or "").rpartition(":")[2]}
    else:
        asking = tuple(_asking(scorer.get_metrics(shared.source)).values())
        identity = {"metrics": [_metric_identity(shared, metric) for metric in asking]}
    if not asking:
        return None
    setup = ExecuteSetup(
        benchmark=config.name,
        scoring=shared.scoring,
        filter=shared.source,
        metric="",
        base_dir=config.base_dir,
        own_modules=_owns(config),
        not_before=shared.not_before,
        asking=tuple(metric.name for metric in asking),
    )
    identity |= {
        "scorer": sources_of(*scorer.code(), resolve=shared.resolve),
        "cut_off": shared.scoring.cut_off,
        "interpreter": interpreter_at(sys.executable).about,
        "sandbox": VERSION,
    }
    return Step(name=f"execute {shared.source}", identity=identity, setup=setup)


def _asking(metrics: Sequence[Metric]) -> dict[str, Metric]:
    """The metrics that ask about programs; of several that are called alike, the first."""
    found: dict[str, Metric] = {}
    for metric in metrics:
        if asks_about_programs(metric.function):
            found.setdefault(f"{metric.function!r} {dict(metric.kwargs)!r}", metric)
    return found


def method_plan(config: EvalConfig, entry: EvaluationMethodConfig, resolve: Resolver) -> MethodPlan:
    """An evaluation method."""
    method = build_method(entry, resolve)
    identity = {
        "method": entry.model_dump(mode="json"),
        "code": sources_of(*method.code(), resolve=resolve),
        **_named(entry.model_dump(), config.base_dir),
        "cut_off": config.cut_off_as(),
        **({"item_timeout": config.item_timeout} if entry.type == "regex_match" else {}),
    }
    setup = MethodSetup(
        config=entry,
        base_dir=config.base_dir,
        cut_off=config.cut_off_as(),
        item_timeout=config.item_timeout,
    )
    return MethodPlan(
        entry.name,
        # A method is given the whole record of a response.
        Step(name=f"evaluate {entry.name}", identity=identity, setup=setup, whole=("answered",)),
        knows_model=method.function is not None,
    )


_OF_RESPONSES = ("statistics", "answers")
"""Metrics over evaluation results read what methods said of whole responses."""


def metric_plan(config: EvalConfig, entry: EvaluationMetricConfig, resolve: Resolver) -> MetricPlan:
    """A metric over the results of evaluation methods."""
    metric = build_evaluation_metric(entry, resolve, config.facets)
    identity = {
        "benchmark": config.name,
        "metric": entry.model_dump(mode="json"),
        "facets": list(metric.facets),
        "code": sources_of(*metric.code(), resolve=resolve),
        **_named(entry.model_dump(), config.base_dir),
    }
    setup = MetricSetup(
        benchmark=config.name,
        config=entry,
        methods=config.evaluation_methods,
        facets=config.facets,
        statistics=config.statistics,
        base_dir=config.base_dir,
    )
    statistics = identity | {"statistics": config.statistics.model_dump(mode="json")}
    return MetricPlan(
        name=entry.name,
        identity=metric.identity(config.name),
        reduce=Step(name=f"reduce {entry.name}", identity=identity, setup=setup, whole=_OF_RESPONSES),
        aggregate=Step(name=f"aggregate {entry.name}", identity=statistics, setup=setup, whole=_OF_RESPONSES),
        facets=metric.facets,
        is_users=metric.function is not None,
    )


def _named(config: Any, base_dir: str | Path) -> dict[str, Any]:
    """The files that a dumped config names under ``depends_on``, wherever it does."""
    names = sorted(set(_depends_on(config)))
    return {"depends_on": named_files(names, base_dir)} if names else {}


def _depends_on(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from entry if key == "depends_on" else _depends_on(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _depends_on(entry)


def _metric_identity(shared: _ScoringOf, metric: Metric) -> dict[str, Any]:
    """What decides a metric's numbers; its display name does not."""
    return {
        "metric": metric.entry or metric.name,
        "arguments": dict(metric.arguments),
        "version": metric.version,
        "aggregation": metric.aggregation.name,
        "code": sources_of(*metric.scoring_code(), resolve=shared.resolve),
        "libraries": {name: installed_version(name) for name in metric.libraries},
        **_named({"depends_on": metric.depends_on}, shared.config.base_dir),
    }


def _scorer_identity(shared: _ScoringOf, metric: Metric) -> dict[str, Any]:
    """What of the scorer decides a metric's numbers: a judge's prompt says nothing about the metrics beside
    it."""
    config, scoring, scorer = shared.config, shared.scoring, shared.scorer
    chosen = scoring.scorer
    concerned = metric.entry in SCORER_METRICS or isinstance(chosen, DefaultScorerConfig | UserScorerConfig)
    return {
        "code": sources_of(*scorer.code(), resolve=shared.resolve),
        "config": chosen.model_dump(mode="json") if chosen is not None and concerned else None,
        "output_type": scoring.output_type,
        "cut_off": scoring.cut_off,
        **(_named(chosen.model_dump(), config.base_dir) if chosen is not None else {}),
    }


JUDGE, CORRECTED = "llm_judge", "llm_judge_corrected"


def read_calibrations(chosen: ScorerConfig | None, base_dir: str | Path) -> ScorerConfig | None:
    """The scorer's config with the rows of a calibration file in place of its name.

    The rows and not the name then are in every cache key. Raises ConfigError naming the file, and the row
    where one is at fault.
    """
    if isinstance(chosen, JudgeConfig) and isinstance(chosen.calibration, str):
        try:
            rows = [row.value for row in read_rows(named_path(base_dir, chosen.calibration))]
        except NightjarError as error:
            raise ConfigError(f"scorer.calibration: {error}") from error
        if not rows:
            raise ConfigError(f"scorer.calibration: {chosen.calibration} is empty; expected human verdicts")
        return chosen.with_calibration(rows)
    return chosen


def calibration_step(
    config: EvalConfig, scoring: ScoringConfig, scorer: Scorer, identity: dict[str, Any]
) -> Step[PairSetup] | None:
    """The step that scores the calibration's answers, None where the judge has nothing to judge.

    ``identity`` is the scorer's. Raises NightjarError for what would only come out after all was asked: an
    answer that the prompt can't be made for, human verdicts that are all the same.
    """
    batch = pending(scorer)
    if batch is None:
        return None
    source = scoring.filters[0].name
    metric = next(entry for entry in scorer.get_metrics(source) if entry.entry == JUDGE)
    scorer.requests(batch, metric)
    _refuse_one_sided(scoring.scorer)
    setup = PairSetup(
        benchmark=config.name, scoring=scoring, filter=source, metric=metric.name, base_dir=config.base_dir
    )
    return Step(name="score the calibration", identity={"calibration": identity}, setup=setup)


def _refuse_one_sided(chosen: ScorerConfig | None) -> None:
    rows = chosen.calibration if isinstance(chosen, JudgeConfig) else None
    human = {row.human for row in rows} if isinstance(rows, tuple) else set()
    rates = isinstance(chosen, JudgeConfig) and chosen.calibration_method == "rates"
    if rates and len(human) == 1:
        said = "right" if human.pop() else "wrong"
        raise ConfigError(
            f"scorer.calibration: people called all answers {said}; sensitivity and specificity need some of "
            "both"
        )
