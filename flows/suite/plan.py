"""What a night evaluates, under which ids and folders, and what of a suite is refused before it begins.

``plan_night`` decides it for the flow and its retries alike; ``check_suite`` serves the command line, which
wants to know at once what the flow would let fail alone.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flows.config.checkpoints import with_checkpoints
from flows.config.load import load_configs
from flows.config.schema import EvalConfig, RunOptions
from flows.eval.start import is_new_checkpoint, run_id_of, slug
from flows.suite.config import SuiteBenchmark, SuiteConfig
from metrics.errors import ConfigError, NightjarError, nearest
from scorers.factory import build_scorer
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
