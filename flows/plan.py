"""From a config to the steps of its flow run: every task's identity is decided here, before anything starts.

An identity holds what can change the step's answer and nothing else. Display names, folders, time-outs and
limits stay outside, so that renaming a model or moving a checkout serves what is there already.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.config import EvalConfig
from flows.options import RunOptions
from metrics import Metric
from metrics.errors import ConfigError, nearest
from scorers.asked_models import AskedEntry, asked_models
from scorers.base import ALL_FILTERS, Scorer
from scorers.config import FilterConfig, ScoringConfig
from scorers.factory import build_scorer
from scorers.filters import FilterPipeline
from scorers.process_results import ProcessResultsScorer
from tasks.aggregate import AggregateSetup
from tasks.ask import AskSetup, sampling_text
from tasks.benchmarks.config import BenchmarkFields, open_benchmark
from tasks.benchmarks.records import Benchmark
from tasks.evaluate import MethodSetup, MetricSetup
from tasks.evaluation.config import EvaluationMethodConfig, EvaluationMetricConfig
from tasks.evaluation.methods import build_method
from tasks.evaluation.metrics import build_evaluation_metric
from tasks.filter import FilterSetup
from tasks.infer import InferSetup
from tasks.load import LoadSetup
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.identity import model_identity
from tasks.pair import PairSetup
from tasks.preflight import Checks
from tasks.reduction.records import Origin, PairIdentity
from tasks.render import RenderSetup
from tasks.steps import Step
from tasks.store.fingerprint import fingerprint, library_versions
from tasks.usercode import Resolve, resolver

MAX_PARTITIONS = 64
PARTITION_ITEMS = 2_000
COMFORTABLE_TASK_RUNS = 500


@dataclass(frozen=True)
class PairPlan:
    """One (filter, metric): the unit of scheduling, caching and retrying."""

    source: str
    """The filter whose predictions are scored; "*" for all of them."""
    identity: PairIdentity
    score: Step[PairSetup]
    reduce: Step[PairSetup]
    aggregate: Step[AggregateSetup]
    asks: str | None = None
    """Name of the set of requests to a model (a judge, a reward model) that it waits for."""

    @property
    def name(self) -> str:
        """As results name it: "metric,filter"."""
        return f"{self.identity.metric.name},{self.identity.filter}"


@dataclass(frozen=True)
class FilterPlan:
    """One filter, and the pairs that score its predictions; ``process`` runs ``process_results`` for all of
    them."""

    name: str
    step: Step[FilterSetup]
    process: Step[PairSetup] | None
    pairs: tuple[PairPlan, ...]


@dataclass(frozen=True)
class AskedModel:
    """A model that a scorer asks, and the sampling parameters that it asks with."""

    infer: Step[InferSetup]
    sampling: str

    def ask(self, pair: PairPlan, attempt: int) -> Step[AskSetup]:
        """What a pair wants to know of it; ``attempt`` counts from 0."""
        model = self.infer.setup.model.name
        setup = AskSetup(**dict(pair.score.setup), judge=model, sampling=self.sampling, attempt=attempt)
        identity = pair.score.identity | {"judge": model, "sampling": self.sampling, "attempt": attempt}
        again = f" (attempt {attempt + 1})" if attempt else ""
        return Step(name=f"ask {model} for {pair.source}{again}", identity=identity, setup=setup)


@dataclass(frozen=True)
class MethodPlan:
    """An evaluation method: judges every response."""

    name: str
    step: Step[MethodSetup]
    knows_model: bool
    """A user's function may look at the model's name, which then is part of the identity."""

    def of(self, origin: Origin) -> Step[MethodSetup]:
        """The step for the responses of one model to one prompt."""
        identity = self.step.identity | ({"origin": asdict(origin)} if self.knows_model else {})
        setup = self.step.setup.model_copy(update={"origin": origin})
        return self.step.model_copy(update={"identity": identity, "setup": setup})


@dataclass(frozen=True)
class MetricPlan:
    """A metric over the results of evaluation methods."""

    name: str
    identity: PairIdentity
    reduce: Step[MetricSetup]
    aggregate: Step[MetricSetup]
    is_users: bool


@dataclass(frozen=True)
class Cell:
    """One place of the grid: a model, a prompt template, a partition (rows ``start`` to ``stop`` of the
    items).

    ``part`` and ``suffix`` say in run names which partition and which place it is, where there are several.
    """

    model: str
    prompt: str
    start: int
    stop: int
    part: str = ""
    suffix: str = ""

    @property
    def place(self) -> tuple[str, int]:
        """What is asked: the same of every model."""
        return self.prompt, self.start


@dataclass(frozen=True)
class Plan:
    """All steps of a run."""

    config: EvalConfig
    load: Step[LoadSetup]
    prompts: Mapping[str, Step[RenderSetup]]
    models: Mapping[str, Step[InferSetup]]
    filters: tuple[FilterPlan, ...]
    methods: tuple[MethodPlan, ...] = ()
    metrics: tuple[MetricPlan, ...] = ()
    asked: tuple[AskedModel, ...] = ()

    def once_a_prompt(self, cells: Sequence[Cell]) -> list[Cell]:
        """One cell for each prompt and partition: requests are the same for every model."""
        return list({cell.place: cell for cell in reversed(cells)}.values())[::-1]

    def pairs(self) -> tuple[PairPlan, ...]:
        """Every pair, in the order of the config."""
        return tuple(pair for entry in self.filters for pair in entry.pairs)

    def checks(self, endpoints: Sequence[str]) -> Checks:
        """What the preflight tries; ``endpoints`` are the models that have to be asked for something."""
        return Checks(
            benchmark=self.load.setup.benchmark,
            filters=tuple(entry.step.setup for entry in self.filters if entry.name != ALL_FILTERS),
            pairs=tuple(pair.score.setup for pair in self.pairs()),
            endpoints=tuple(self.models[name].setup for name in endpoints),
        )

    def partitions(self, items: int) -> int:
        """How many partitions ``items`` are cut into: one up to 2,000, then as many as the number of task
        runs bears.

        Powers of two, so that another pair or model seldom moves the cuts that cached steps depend on.
        """
        wanted, count = -(-items // PARTITION_ITEMS), 1
        per_partition = len(self.prompts) * (
            1 + len(self.models) * (1 + len(self.filters) + len(self.pairs()))
        )
        while count < min(wanted, MAX_PARTITIONS) and 2 * count * per_partition <= COMFORTABLE_TASK_RUNS:
            count *= 2
        return count

    def cells(self, items: int) -> list[Cell]:
        """The grid of models, prompts and partitions; a cell's suffix says of its place what is not plain
        anyway."""
        parts = self.partitions(items)
        cuts = [items * part // parts for part in range(parts + 1)]
        return [
            self._cell(
                model, prompt, cuts[part], cuts[part + 1], f" [{part + 1}/{parts}]" if parts > 1 else ""
            )
            for model in self.models
            for prompt in self.prompts
            for part in range(parts)
        ]

    def _cell(self, model: str, prompt: str, start: int, stop: int, part: str) -> Cell:
        names = [model] if len(self.models) > 1 else []
        names += [prompt] if len(self.prompts) > 1 else []
        place = f" · {' × '.join(names)}" if names else ""
        return Cell(model, prompt, start, stop, part, f"{place}{part}")


def make_plan(config: EvalConfig, options: RunOptions, began: float = 0.0) -> Plan:
    """The steps of an evaluation that began at ``began`` (seconds since 1970).

    Raises NightjarError for user code, files or models that can't be used.
    """
    resolve = resolver(config.base_dir)
    fields = BenchmarkFields.model_validate(config.model_dump(include=set(BenchmarkFields.model_fields)))
    benchmark = open_benchmark(fields)
    scoring = scoring_config(config)
    scorer = build_scorer(scoring, resolve)
    return Plan(
        config=config,
        load=_load(fields, benchmark, options.limit),
        prompts={name: _render(fields, benchmark, name) for name in benchmark.prompt_names()},
        models={model.name: _infer(config, model, options, began) for model in config.models},
        filters=tuple(
            _filter(config, entry, scoring, scorer, resolve) for entry in _with_all(config, scorer)
        ),
        methods=tuple(_method(config, entry, resolve) for entry in config.evaluation_methods),
        metrics=tuple(_metric(config, entry, resolve) for entry in config.metrics),
        asked=tuple(_asked(config, entry, options, began) for entry in asked_models(config.scorer)),
    )


def scoring_config(config: EvalConfig) -> ScoringConfig:
    """The part of the config that scorers are built from."""
    return ScoringConfig(
        output_type=config.output_type,
        filter_list=config.filters(),
        # Each filter has its own list by now; process_results names the metrics of all filters in the
        # common one.
        metric_list=config.metric_list if config.process_results is not None else (),
        process_results=config.process_results,
        scorer=config.scorer,
    )


def _load(fields: BenchmarkFields, benchmark: Benchmark, limit: int | None) -> Step[LoadSetup]:
    identity = {"dataset": benchmark.dataset_digest(), "cluster": fields.cluster, "limit": limit}
    return Step(name=f"load {fields.name}", identity=identity, setup=LoadSetup(benchmark=fields, limit=limit))


def _render(fields: BenchmarkFields, benchmark: Benchmark, prompt: str) -> Step[RenderSetup]:
    identity = {"prompt": benchmark.render_digest(prompt), "name": prompt}
    return Step(
        name=f"render {prompt}", identity=identity, setup=RenderSetup(benchmark=fields, prompt=prompt)
    )


def _infer(config: EvalConfig, model: ModelConfig, options: RunOptions, began: float) -> Step[InferSetup]:
    sampling = config.sampling(model)
    identity = {
        "model": model_identity(model, Path(config.base_dir)),
        "sampling": sampling.sent(),
        "samples": sampling.num_samples,
        "seed": sampling.seed,
        "n": sampling.n,
    }
    setup = InferSetup(
        model=model, sampling=sampling, errors=config.errors, limits=config.limits,
        prices=config.prices, base_dir=config.base_dir, run_id=options.run_id,
        not_before=began if "infer" in options.refresh else 0.0,
    )  # fmt: skip
    return Step(name=f"infer {model.name}", identity=identity, setup=setup)


def _asked(config: EvalConfig, entry: AskedEntry, options: RunOptions, began: float) -> AskedModel:
    """A judge or reward model: one of ``models:`` by name, or an entry of its own."""
    known = {model.name: model for model in config.models}
    if not entry.model and entry.name not in known:
        raise ConfigError(
            f"scorer: '{entry.name}' is no entry of models{nearest(entry.name, known)}; name one, or give the "
            "judge a type and config of its own"
        )
    model = (
        ModelConfig.model_validate({"name": entry.name, **entry.model}) if entry.model else known[entry.name]
    )
    single = {**model.sample_params.model_dump(exclude_unset=True), **entry.sampling, "num_samples": 1}
    step = _infer(config, model.model_copy(update={"sample_params": SampleParams()}), options, began)
    sampling = SampleParams.model_validate(single)
    identity = step.identity | {
        "sampling": sampling.sent(),
        "samples": 1,
        "seed": sampling.seed,
        "n": sampling.n,
    }
    setup = step.setup.model_copy(update={"model": model, "sampling": sampling, "role": "judge"})
    return AskedModel(
        Step(name=f"infer {model.name}", identity=identity, setup=setup), sampling_text(entry.sampling)
    )


def _with_all(config: EvalConfig, scorer: Scorer) -> list[FilterConfig]:
    """The filters, and the one that stands for all of them where the scorer has metrics for it."""
    everything = FilterConfig.model_construct(name=ALL_FILTERS, filter=(), metric_list=())
    return [*config.filters(), *([everything] if scorer.get_metrics(ALL_FILTERS) else [])]


def _filter(
    config: EvalConfig, entry: FilterConfig, scoring: ScoringConfig, scorer: Scorer, resolve: Resolve
) -> FilterPlan:
    pipeline = FilterPipeline.build(entry, resolve, config.output_type)
    identity = {
        "steps": [step.model_dump(mode="json") for step in entry.filter],
        "code": fingerprint(*pipeline.code()) if pipeline.steps else None,
    }
    setup = FilterSetup(config=entry, output_type=config.output_type, base_dir=config.base_dir)
    return FilterPlan(
        name=entry.name,
        step=Step(name=f"filter {entry.name}", identity=identity, setup=setup),
        process=_process(config, scoring, entry.name, resolve),
        pairs=tuple(
            _pair(config, entry.name, metric, scoring, scorer) for metric in scorer.get_metrics(entry.name)
        ),
    )


def _process(
    config: EvalConfig, scoring: ScoringConfig, name: str, resolve: Resolve
) -> Step[PairSetup] | None:
    if config.process_results is None or config.scorer is not None:
        return None
    code = fingerprint(resolve(config.process_results), ProcessResultsScorer)
    setup = PairSetup(
        benchmark=config.name, scoring=scoring, filter=name, metric="", base_dir=config.base_dir
    )
    identity = {
        "function": config.process_results.rpartition(":")[2],
        "code": code,
        "output_type": config.output_type,
    }
    return Step(name=f"process {name}", identity=identity, setup=setup)


def _pair(
    config: EvalConfig, source: str, metric: Metric, scoring: ScoringConfig, scorer: Scorer
) -> PairPlan:
    setup = PairSetup(
        benchmark=config.name, scoring=scoring, filter=source, metric=metric.name,
        base_dir=config.base_dir, facets=config.facets,
    )  # fmt: skip
    identity = setup.identity()
    name = f"{identity.filter} × {identity.metric.name}"
    computed = _metric_identity(metric)
    scored = computed | {"scorer": _scorer_identity(scoring, scorer), "filter": _own_filter(source)}
    reductions = [reduction.name for reduction in metric.reductions]
    reduced = {
        "benchmark": config.name,
        "filter": identity.filter,
        "metric": identity.metric.name,
        "reductions": reductions,
        "facets": list(config.facets),
        "code": computed["code"],
        "aggregation": computed["aggregation"],
    }
    statistics = config.statistics.model_dump(mode="json")
    return PairPlan(
        source=source,
        identity=identity,
        score=Step(name=f"score {name}", identity=scored, setup=setup),
        reduce=Step(name=f"reduce {name}", identity=reduced, setup=setup),
        aggregate=Step(
            name=f"aggregate {name}",
            identity=computed | {"statistics": statistics, "signature": metric.signature()},
            setup=AggregateSetup(**dict(setup), statistics=config.statistics),
        ),
        asks=scorer.needs(metric),
    )


def _method(config: EvalConfig, entry: EvaluationMethodConfig, resolve: Resolve) -> MethodPlan:
    method = build_method(entry, resolve)
    identity = {
        "method": entry.model_dump(mode="json"),
        "code": fingerprint(*method.code()) if method.code() else None,
    }
    setup = MethodSetup(config=entry, base_dir=config.base_dir)
    return MethodPlan(
        entry.name,
        Step(name=f"evaluate {entry.name}", identity=identity, setup=setup),
        method.looks_at_origin,
    )


def _metric(config: EvalConfig, entry: EvaluationMetricConfig, resolve: Resolve) -> MetricPlan:
    metric = build_evaluation_metric(entry, resolve, config.facets)
    identity = {
        "benchmark": config.name,
        "metric": entry.model_dump(mode="json"),
        "facets": list(metric.facets),
        "code": fingerprint(*metric.code()) if metric.code() else None,
    }
    setup = MetricSetup(
        benchmark=config.name, config=entry, methods=config.evaluation_methods,
        facets=config.facets, statistics=config.statistics, base_dir=config.base_dir,
    )  # fmt: skip
    statistics = identity | {"statistics": config.statistics.model_dump(mode="json")}
    return MetricPlan(
        name=entry.name,
        identity=metric.identity(config.name),
        reduce=Step(name=f"reduce {entry.name}", identity=identity, setup=setup),
        aggregate=Step(name=f"aggregate {entry.name}", identity=statistics, setup=setup),
        is_users=metric.function is not None,
    )


def _metric_identity(metric: Metric) -> dict[str, Any]:
    """What decides a metric's numbers; its display name does not."""
    code = metric.code()
    return {
        "metric": metric.entry or metric.name,
        "arguments": dict(metric.arguments),
        "version": metric.version,
        "aggregation": metric.aggregation.name,
        "code": fingerprint(*code) if code else None,
        "libraries": library_versions(metric.libraries),
    }


def _scorer_identity(scoring: ScoringConfig, scorer: Scorer) -> dict[str, Any]:
    return {
        "code": fingerprint(*scorer.code()),
        "config": scoring.scorer.model_dump(mode="json") if scoring.scorer is not None else None,
        "output_type": scoring.output_type,
    }


def _own_filter(filter_name: str) -> str | None:
    """A score over all filters depends on which there are; any other one on its predictions alone."""
    return filter_name if filter_name == ALL_FILTERS else None
