"""Metrics over evaluation results: what a config's ``metrics:`` entries are built into."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from metrics.types import Floats, Resolve
from tasks.reduction.aggregate import (
    ResultCell,
    cells,
    failed_row,
    failure_of,
    result_row,
    rows_of_failures,
)
from tasks.reduction.columns import StatisticsLayout
from tasks.reduction.facets import parse_facets
from tasks.reduction.reduce import reduce_samples
from tasks.reduction.samples import Loaded, load
from tasks.rows.parts import FailedPart, PairIdentity, Part, Row
from tasks.store.keys import canonical_json
from tasks.store.schemas import RESULTS
from tasks.verdicts.config import (
    ClassificationParams,
    EvaluationMetricConfig,
    LabelSelection,
    PassAtKParams,
    PercentileParams,
)
from tasks.verdicts.labels import measure, measures_of, with_cells
from tasks.verdicts.methods import accepted_keywords

if TYPE_CHECKING:
    from metrics.aggregations.aggregation import Aggregation
    from metrics.config import StatisticsConfig
    from metrics.metric import Metric
    from metrics.reductions.reduction import Reduction, Repeats


FILTER = "none"
"""Evaluation methods judge whole responses, so their metrics stand under the filter that does nothing."""


@dataclass(frozen=True)
class EvaluationMetric:
    """One metric over evaluation results.

    ``metric`` is its Metric record, so that it reduces and aggregates as every other pair does; its reduction
    is called ``mean``, since the metric's own name says what it is. ``function`` is the user's and replaces
    both. ``score`` is the column of verdicts that it is about.
    """

    config: EvaluationMetricConfig
    metric: "Metric"
    facets: tuple[str, ...]
    score: Literal["score", "passed"] = "score"
    function: Callable[..., Any] | None = None
    given: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Its name in the config."""
        return self.config.name

    def identity(self, benchmark: str) -> PairIdentity:
        """The pair it is scheduled, cached and exported as."""
        return PairIdentity(benchmark=benchmark, filter=FILTER, metric=self.metric)

    def concerned(self, failed: Sequence[FailedPart]) -> list[FailedPart]:
        """The failed parts whose verdicts the metric would have looked at."""
        labels = self.config.labels
        return [part for part in failed if labels is None or part.label is None or labels.keeps(part.label)]

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The user's function, for the fingerprint; this package's own code decides a built-in."""
        return () if self.function is None else (self.function,)


def build_evaluation_metric(
    config: EvaluationMetricConfig, resolve: Resolve, run_facets: Sequence[str]
) -> EvaluationMetric:
    """The metric that ``config`` describes; its facets are the run's where it names none.

    Raises ConfigError where a user's function does not take ``evaluation_results`` or an argument given to
    it.
    """
    chosen = config.facets if config.facets is not None else tuple(run_facets)
    facets = tuple(facet for facet in chosen if facet != "label")
    if config.type is None:
        function = resolve(str(config.function))
        where = f"metric {config.name!r}: {config.function}"
        given = accepted_keywords(where, function, ("evaluation_results", "facets"), config.params)
        return EvaluationMetric(config, _record(config, "mean"), facets, function=function, given=given)
    score: Literal["score", "passed"] = "passed" if config.type in ("pass_at_k", "pass_rate") else "score"
    return EvaluationMetric(config, _built_in(config), facets, score=score)


def reduce_metric(
    metric: EvaluationMetric, benchmark: str, parts: Sequence[Part]
) -> Iterator[pa.RecordBatch]:
    """The item rows (ITEM_ROWS) of a built-in metric; none of a user's, which is given whole results.

    ``parts`` are those of all evaluation methods, each with its ``method``.
    """
    if metric.function is not None:
        return
    cells = metric.config.type == "classification"
    read = [replace(part, statistics=with_cells(part.statistics)) for part in parts] if cells else list(parts)
    layout = StatisticsLayout(facets=metric.facets, kind="sums" if cells else "score", score=metric.score)
    loaded = load(read, layout)
    if metric.config.labels is not None:
        loaded = _selected(loaded, metric.config.labels)
    if metric.metric.kind == "sums" and not cells:
        loaded = _scores_as_statistics(loaded)
    yield from reduce_samples(metric.identity(benchmark), loaded)


def _selected(loaded: Loaded, labels: LabelSelection) -> Loaded:
    """The samples under the labels that the metric looks at."""
    kept = np.array([labels.keeps(loaded.label(code)) for code in range(-1, len(loaded.labels))])
    rows = np.flatnonzero(kept[loaded.samples.label + 1])
    groups = replace(loaded.groups, code=loaded.groups.code[rows])
    return replace(loaded, samples=loaded.samples.take(rows), groups=groups)


def _scores_as_statistics(loaded: Loaded) -> Loaded:
    score = loaded.samples.score[:, None]
    return replace(loaded, samples=replace(loaded.samples, statistics=np.where(np.isnan(score), 0.0, score)))


def _built_in(config: EvaluationMetricConfig) -> "Metric":
    match config.type:
        case "pass_at_k":
            return _record(config, _share(), pass_at_k(PassAtKParams.model_validate(config.params)))
        case "percentile":
            return _record(
                config, f"percentile@{PercentileParams.model_validate(config.params).percentile:g}"
            )
        case "classification":
            return _record(config, measure(ClassificationParams.model_validate(config.params).value))
        case "count":
            return _record(config, _total(), _number_of_results())
        case "median":
            return _record(config, "median")
        case "pass_rate":
            return _record(config, _share())
        case _:
            return _record(config, "mean")


def _record(
    config: EvaluationMetricConfig, aggregation: "str | Aggregation", reduction: "Reduction | None" = None
) -> "Metric":
    from metrics.aggregations.aggregation import build_aggregation
    from metrics.metric import Metric
    from metrics.reductions.reduction import Reduction

    built = build_aggregation(aggregation) if isinstance(aggregation, str) else aggregation
    arguments: Mapping[str, Any] = dict(config.params)
    return Metric(
        name=config.name,
        function=None,
        aggregation=built,
        reductions=((reduction or Reduction("mean")).bound(built),),
        entry=config.type or config.name,
        arguments=arguments,
    )


def _share() -> "Aggregation":
    """The mean of numbers from 0 to 1: no interval leaves that range."""
    from metrics.aggregations.aggregation import build_aggregation

    return replace(build_aggregation("mean"), bounds=(0.0, 1.0))


def _number_of_results() -> "Reduction":
    """How many verdicts an item has."""
    from metrics.ragged import segment_counts
    from metrics.reductions.reduction import Reduction

    def compute(repeats: "Repeats") -> Any:
        return segment_counts(repeats.scored, repeats.offsets).astype(np.float64)

    return Reduction("mean", compute=compute)


def _total() -> "Aggregation":
    """The sum of the items' counts: a fact, without an error."""
    from metrics.aggregations.aggregation import Aggregation, as_column

    return Aggregation("count", compute=lambda total, n: total[..., 0], encode=as_column, rule="none")


_AGGREGATIONS: dict[str, Callable[[Floats], Floats]] = {
    "mean": lambda trials: np.mean(trials, axis=1),
    "median": lambda trials: np.median(trials, axis=1),
    "min": lambda trials: np.min(trials, axis=1),
    "max": lambda trials: np.max(trials, axis=1),
}


def pass_at_k(params: PassAtKParams) -> "Reduction":
    """The reduction behind ``pass_at_k``: the unbiased estimator, or the aggregate of an item's trials.

    An item's number lies in 0 to 1, higher is better. An item with fewer scored samples than it takes (k, or
    k × num_trials) is unscored.
    """
    from metrics.reductions.reduction import Reduction, build_reduction

    if params.num_trials is None:
        unbiased = build_reduction(f"pass@{params.k}")
        return Reduction(name="mean", requires=params.k, compute=unbiased.compute)
    needed, trials = params.k * params.num_trials, params.num_trials

    def compute(repeats: "Repeats") -> Floats:
        return trial_values(repeats, params.k, trials, params.aggregation)

    return Reduction(name="mean", requires=needed, compute=compute)


def trial_values(repeats: "Repeats", k: int, num_trials: int, aggregation: str) -> Floats:
    """Each item's aggregate over its trials (n,), from its first k × num_trials scored samples.

    A trial is 1 if one of its k samples has a score above zero, else 0. NaN where an item has too few
    samples.
    """
    from metrics.reductions.reduction import scored_only

    scored = scored_only(repeats)
    enough = np.flatnonzero(scored.counts >= k * num_trials)
    values = np.full(len(scored), np.nan)
    rows = scored.offsets[:-1][enough, None] + np.arange(k * num_trials)
    passed = (scored.score[rows] > 0).reshape(len(enough), num_trials, k).any(axis=2)
    values[enough] = _AGGREGATIONS[aggregation](passed.astype(np.float64))
    return values


METRIC_ROWS: Final = pa.schema(
    [
        *RESULTS,
        pa.field(
            "values_json", pa.string()
        ),  # JSON object: the metric's own value keys, as metrics.jsonl has them
    ]
)


def aggregate_metric(
    metric: EvaluationMetric,
    benchmark: str,
    item_rows: Iterable[pa.RecordBatch],
    options: "StatisticsConfig",
    failed: Sequence[FailedPart] = (),
) -> Iterator[pa.RecordBatch]:
    """One row (METRIC_ROWS) a label and facet group of a built-in metric, from what ``reduce_metric`` made.

    Groups that a failed part belongs to are ``failed`` with its error.
    """
    pair, failed = metric.identity(benchmark), metric.concerned(failed)
    rows: list[Row] = []
    for cell in cells(item_rows):
        error = failure_of(parse_facets(cell.facets), cell.label, failed)
        made = failed_row(pair, cell, error) if error else result_row(pair, cell, options)
        values = {} if error else _own_values(metric, cell, made)
        rows.append(made | {"values_json": canonical_json(values).decode()})
    yield from metric_batches(rows + rows_of_failures(pair, failed, metric.facets, rows))


def metric_batches(rows: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows as one batch, or none."""
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=METRIC_ROWS)


def _own_values(metric: EvaluationMetric, cell: ResultCell, row: Row) -> dict[str, Any]:
    """The value under the metric type's own key; all measures and counts of a classification."""
    if metric.config.type == "classification" and cell.statistics is not None:
        return measures_of(cell.statistics)
    return {str(metric.config.type): row["value"]}
