"""What a night evaluates, under which ids and folders, and what of a suite is refused before it begins.

``plan_night`` decides it for the flow and its retries alike; ``check_suite`` serves the command line, which
wants to know at once what the flow would let fail alone. ``check_margins`` tells both which margins of the
gate the items are too few to decide. Where the store has runs of the benchmark, these tell how its items
spread. Else it can speak of metrics between 0 and 1 with one sample an item, whose spread at best is known
without an answer; of others only whether a test can reach its level.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flows.config.checkpoints import with_checkpoints
from flows.config.load import load_configs
from flows.config.schema import EvalConfig, RunOptions
from flows.eval.start import is_new_checkpoint, run_id_of, slug
from flows.plan.build import benchmark_fields
from flows.plan.power import Asked, pair_powers, said_to_decide
from flows.suite.config import SuiteBenchmark, SuiteConfig
from metrics.errors import ConfigError, NightjarError, nearest
from metrics.metric import Metric
from metrics.statistics.power import items_needed, units_needed
from scorers.factory import build_scorer
from tasks.benchmarks.open import open_benchmark
from tasks.comparison.compare import Gate, GateTerms
from tasks.comparison.items import DEFAULT_REDUCTION
from tasks.history.record import baseline_nights, past_nights
from tasks.store.home import default_store, results_folder
from tasks.store.storage import Store
from tasks.usercode.load import resolver


class SuiteOptions(BaseModel):
    """How one run of a suite goes about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    limit: int | None = Field(None, ge=1, description="Only the first items of every benchmark")
    output: str | None = Field(None, description="Folder of the night's files; default: results/<id>")
    store: str | None = Field(None, description="URI of the artifact store")
    baseline: str | None = Field(None, description="Instead of the suite's own")
    night: str | None = Field(None, description="Night that answers are asked for in; default: this flow run")


@dataclass(frozen=True)
class PlannedEvaluation:
    """One benchmark on one model. ``refusal`` says why it can't be run; it then has no config."""

    name: str
    options: RunOptions
    config: EvalConfig | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class PlannedNight:
    """A suite's evaluations with everything decided: ids, folders, store.

    ``run_id`` is this run's; ``night`` is the night that it asks in, which a run that goes on with an
    unfinished one has from there.
    """

    suite: SuiteConfig
    run_id: str
    night: str
    store: str
    output: str
    baseline: str
    evaluations: tuple[PlannedEvaluation, ...]

    @property
    def slug(self) -> str:
        """The suite's name as part of file names and artifact keys."""
        return slug(self.suite.name)

    @property
    def artifact_key(self) -> str:
        """The suite's name as Prefect takes it in keys and resources."""
        return self.slug.lower().replace(".", "-")


def plan_night(suite: SuiteConfig, options: SuiteOptions, unique: str) -> PlannedNight:
    """The night's evaluations, benchmarks × models; ``unique`` is the same for a flow run and its retries.

    A benchmark whose config is refused becomes an evaluation that fails: the others are not its hostages.
    """
    run_id = run_id_of(suite.name, unique)
    night = PlannedNight(
        suite=suite,
        run_id=run_id,
        night=options.night or unique,
        store=options.store or default_store(),
        output=str(Path(options.output or results_folder() / run_id).resolve()),
        baseline=options.baseline or suite.baseline,
        evaluations=(),
    )
    planned = tuple(
        evaluation
        for benchmark, file in zip(suite.benchmarks, suite.files(), strict=True)
        for evaluation in _planned(night, benchmark, file, options)
    )
    names = [evaluation.name for evaluation in planned]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"suite '{suite.name}': '{min(twice)}' is there twice; give the benchmarks names of their own"
        )
    return replace(night, evaluations=planned)


def watched_models(suite: SuiteConfig) -> list[str]:
    """Names of the models of which only new checkpoints are evaluated."""
    configs = [config for file in suite.files() for config in load_configs(file, strict=False)]
    models = [*suite.models, *(model for config in configs for model in config.models)]
    return [model.name for model in models if model.checkpoints is not None and model.checkpoints.new_only]


def check_suite(suite: SuiteConfig, options: SuiteOptions) -> PlannedNight:
    """A night as it would be planned now. Raises ConfigError for configs that are refused, a gate on pairs
    that no benchmark has, an unknown baseline or anchor.

    The flow itself lets a refused benchmark fail alone; who types the command wants to know at once.
    """
    night = plan_night(suite, options, "check")
    if refusals := [entry.refusal for entry in night.evaluations if entry.refusal is not None]:
        raise ConfigError("\n".join(dict.fromkeys(refusals)))
    if suite.gate is not None and suite.gate.pairs:
        pairs = {
            name for entry in night.evaluations if entry.config is not None for name in _pairs(entry.config)
        }
        for name in suite.gate.pairs:
            if _without_reduction(name) not in pairs:
                raise ConfigError(
                    f"gate: no benchmark of the suite has a pair '{name}'{nearest(name, sorted(pairs))}"
                )
    store = Store(night.store)
    store.check_readable()
    past = past_nights(store, night.slug)
    baseline_nights(store, past, night.baseline, suite.nights)
    if suite.gate is not None and suite.gate.anchor is not None:
        baseline_nights(store, past, suite.gate.anchor, suite.nights)
    return night


def _planned(
    night: PlannedNight, benchmark: SuiteBenchmark, file: Path, options: SuiteOptions
) -> Iterator[PlannedEvaluation]:
    overrides = [f"{key}={json.dumps(value)}" for key, value in benchmark.set.items()]
    if night.suite.models:
        models = [model.model_dump(mode="json", exclude_unset=True) for model in night.suite.models]
        overrides.append(f"models={json.dumps(models)}")
    limit = options.limit or benchmark.limit
    said: dict[str, Any] = {"canaries": night.suite.canaries}
    if night.suite.answers is not None:
        said["answers"] = night.suite.answers
    try:
        configs = load_configs(file, overrides)
    except NightjarError as error:
        yield PlannedEvaluation(file.stem, _options(night, file.stem, limit), refusal=str(error))
        return
    for config in configs:
        try:
            config = with_checkpoints(config, is_new_checkpoint(config, _options(night, config.name, limit)))
        except NightjarError as error:
            yield PlannedEvaluation(config.name, _options(night, config.name, limit), refusal=str(error))
            continue
        for model in config.models:
            name = f"{config.name} × {model.name}"
            single = config.model_copy(update={"models": (model,), **said})
            yield PlannedEvaluation(name, _options(night, name, limit), single)


def _options(night: PlannedNight, name: str, limit: int | None) -> RunOptions:
    return RunOptions(
        limit=limit,
        output=str(Path(night.output) / slug(name)),
        store=night.store,
        run_name=f"{night.suite.name}: {name}",
        run_id=f"{night.run_id}-{slug(name)}",
        night=night.night,
    )


def _pairs(config: EvalConfig) -> list[str]:
    """The pairs of a benchmark as "metric,filter"."""
    scorer = build_scorer(config.scoring(), resolver(config.base_dir))
    names = [entry.name for entry in config.filters()]
    return [f"{metric.name},{name}" for name in names for metric in scorer.get_metrics(name)]


def _without_reduction(name: str) -> str:
    """``metric,filter`` of ``reduction(metric),filter``."""
    metric, _, filter_name = name.rpartition(",")
    return f"{metric.partition('(')[2].removesuffix(')') or metric},{filter_name}" if "(" in metric else name


_ALL = 1 << 40


def check_margins(night: PlannedNight) -> list[str]:
    """A sentence for each gated margin that the items can't decide, with the number of items that would do.

    Raises ConfigError with them instead, where the gate says ``undecidable: refuse``.
    """
    gate = night.suite.gate
    if gate is None:
        return []
    found = (line for entry in night.evaluations for line in _undecidable(entry, gate))
    sentences = list(dict.fromkeys(found))
    if sentences and gate.undecidable == "refuse":
        raise ConfigError(
            "\n".join([*sentences[:2], "take more items or wider margins, or undecidable: warn"])
        )
    return sentences


def _undecidable(planned: PlannedEvaluation, gate: Gate) -> Iterator[str]:
    if planned.config is None:
        return
    needs = [
        (name, terms, needed)
        for name, terms, repeats in _gated(planned.config, gate)
        if (needed := _needed(terms, repeats)) is None or needed > 1
    ]
    most = max((needed or 1 for *_, needed in needs), default=0)
    items = _count(planned, most) if needs else 0
    known = _from_history(planned, gate)
    yield from known.values()
    needs = [entry for entry in needs if entry[0] not in known]
    for name, terms, needed in needs:
        said = f"gate: {name} of {planned.config.name}:"
        if needed is None:
            yield f"{said} no number of items decides a margin of {terms.margin:g}"
        elif items < needed:
            yield f"{said} {items} items can't decide a margin of {terms.margin:g}; {needed} would do"


def _from_history(planned: PlannedEvaluation, gate: Gate) -> dict[str, str]:
    """Sentences for the pairs whose spread the store's last runs tell, as ``python -m flows.power`` does."""
    assert planned.config is not None
    found: dict[str, str] = {}
    if planned.options.store is None:
        return found
    store = Store(planned.options.store)
    for name, terms, _ in _gated(planned.config, gate):
        items = _count(planned, _ALL)
        for power in pair_powers(planned.config, store, Asked(items, terms.margin, terms.alpha)):
            if power.pair != name or power.assumed or power.decides is None or power.decides <= terms.margin:
                continue
            would = next(design.items for design in power.designs if design.samples == power.samples)
            said = said_to_decide(power.items, power.samples, power.decides)
            found[name] = (
                f"gate: {name} of {planned.config.name}: {said} ({power.source}), and it is "
                f"{terms.margin:g}; {'no number' if would is None else would} would do"
            )
    return found


def _gated(config: EvalConfig, gate: Gate) -> Iterator[tuple[str, GateTerms, bool]]:
    """The gated pairs with their terms, and whether an item is simply right or wrong."""
    scorer = build_scorer(config.scoring(), resolver(config.base_dir))
    once = all(config.sampling(model).num_samples == 1 for model in config.models)
    once = once and len(open_benchmark(benchmark_fields(config)).prompt_names()) == 1
    for entry in config.filters():
        for metric in scorer.get_metrics(entry.name):
            name = f"{metric.name},{entry.name}"
            if gate.covers(name) and any(one.name == DEFAULT_REDUCTION for one in metric.reductions):
                yield name, gate.for_pair(name), once and _right_or_wrong(metric)


def _right_or_wrong(metric: Metric) -> bool:
    return metric.aggregation.rule == "mean" and metric.aggregation.bounds == (0.0, 1.0)


def _needed(terms: GateTerms, right_or_wrong: bool) -> int | None:
    if right_or_wrong:
        return items_needed(terms.margin, terms.alpha)
    return units_needed(terms.alpha) if terms.margin > 0 else None


def _count(planned: PlannedEvaluation, most: int) -> int:
    """The evaluation's items, counted up to ``most``; that many where they can't be read: it fails by
    itself."""
    assert planned.config is not None
    limit = planned.options.limit
    try:
        items = open_benchmark(benchmark_fields(planned.config)).items()
        return sum(1 for _ in islice(items, most if limit is None else min(most, limit)))
    except NightjarError:
        return most
