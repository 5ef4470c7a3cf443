"""Metrics over evaluation results: what a config's ``metrics:`` entries are built into."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from tasks.evaluation.config import EvaluationMetricConfig, LabelSelection
from tasks.evaluation.confusion import measure, with_cells
from tasks.evaluation.keywords import accepted_keywords
from tasks.evaluation.params import ClassificationParams, PassAtKParams, PercentileParams
from tasks.evaluation.trials import pass_at_k
from tasks.reduction.reading import Layout
from tasks.reduction.records import FailedPart, PairIdentity, Part
from tasks.reduction.reduce import reduce_samples
from tasks.reduction.samples import Loaded, load

if TYPE_CHECKING:
    from metrics.aggregations.aggregation import Aggregation
    from metrics.metric import Metric
    from metrics.reductions.reduction import Reduction, Repeats

Resolve = Callable[[str], Callable[..., Any]]

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
    layout = Layout(facets=metric.facets, kind="sums" if cells else "score", score=metric.score)
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
