"""Metrics over evaluation results: what a config's ``metrics:`` entries are built into; a user's function
is called once a label and facet group, with the group's rows.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import pyarrow as pa

from metrics.errors import MetricError, named, users_code
from metrics.types import Resolve, number_of
from tasks.reduction.aggregate import (
    Estimator,
    ResultCell,
    base_row,
    cells,
    failed_row,
    failure_of,
    result_row,
    rows_of_failures,
)
from tasks.reduction.estimators import (
    SampleEstimator,
    first_cells,
    mean_of_samples,
    quantile_of_samples,
    trials,
)
from tasks.reduction.facets import Codes, FacetGroups, Vocabulary, facets_text, integers, parse_facets
from tasks.reduction.reduce import reduce_by, reduce_samples
from tasks.reduction.samples import Loaded, StatisticsLayout, load, sample_keys
from tasks.rows.parts import UNKNOWN, FailedPart, PairIdentity, Part, Row, file_places, resolve_detail
from tasks.store.keys import canonical_json
from tasks.store.schemas import RESULTS
from tasks.verdicts.config import (
    METRIC_PARAMS,
    ClassificationParams,
    EvaluationMetricConfig,
    LabelSelection,
    PassAtKParams,
    PercentileParams,
)
from tasks.verdicts.labels import CELLS, details_json, measure, measures_of, with_cells
from tasks.verdicts.methods import accepted_keywords
from tasks.verdicts.rows import JudgedPart, is_scored, placed_rows

if TYPE_CHECKING:
    from metrics.aggregation import Aggregation
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
    both; an ``estimator`` of samples or trials replaces the reduction. ``score`` is the column of verdicts
    that it is about.
    """

    config: EvaluationMetricConfig
    metric: "Metric"
    facets: tuple[str, ...]
    score: Literal["score", "passed"] = "score"
    function: Callable[..., Any] | None = None
    given: Sequence[str] = ()
    estimator: "SampleEstimator | None" = None

    @property
    def name(self) -> str:
        """Its name in the config."""
        return self.config.name

    def identity(self, benchmark: str) -> PairIdentity:
        """The pair it is scheduled, cached and exported as."""
        return PairIdentity(benchmark=benchmark, filter=FILTER, metric=self.metric)

    def concerned(self, failed: Sequence[FailedPart]) -> list[FailedPart]:
        """The failed parts whose verdicts the metric would have looked at."""
        return [part for part in failed if self._concerned(part)]

    def _concerned(self, part: FailedPart) -> bool:
        labels = self.config.labels
        if labels is None or part.label is not None:
            return labels is None or labels.keeps(part.label)
        return labels.include is None or any(map(part.concerns, labels.include))

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The user's function, for keys; a built-in is behind its stage."""
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
    record, estimator = _built_in(config)
    return EvaluationMetric(config, record, facets, score=score, estimator=estimator)


def reduce_metric(
    metric: EvaluationMetric, benchmark: str, parts: Sequence[Part]
) -> Iterator[pa.RecordBatch]:
    """The item rows (ITEM_ROWS) of a built-in metric; none of a user's, which is given whole results.

    ``parts`` are those of all evaluation methods, each with its ``method``.
    """
    if metric.function is not None:
        return
    cells = metric.config.type == "classification"
    ignored = metric.estimator is not None
    read = (
        [replace(part, statistics=with_cells(part.statistics, ignored)) for part in parts]
        if cells
        else list(parts)
    )
    layout = StatisticsLayout(facets=metric.facets, kind="sums" if cells else "score", score=metric.score)
    loaded = load(read, layout)
    loaded = replace(loaded, groups=_as_rows_say(loaded.groups, metric))
    if metric.config.labels is not None:
        loaded = _selected(loaded, metric.config.labels)
    if metric.estimator is not None:
        if metric.config.type in _IN_FILE_ORDER:
            loaded = _in_file_order(loaded, parts)
        yield from reduce_by(metric.identity(benchmark), loaded, metric.estimator.reduce)
        return
    if metric.metric.kind == "sums" and not cells:
        loaded = _scores_as_statistics(loaded)
    yield from reduce_samples(metric.identity(benchmark), loaded)


_IN_FILE_ORDER = ("pass_at_k", "classification")
ROW_FIELDS: Final = frozenset(
    {
        *("item_id", "sample_id", "sample_index", "model_name", "prompt_template", "passed", "score"),
        *("status", "error", "detailed_results", "evaluation_time", "timestamp", "timestamp_unix"),
        *("metadata", "item"),
    }
)
"""What a row of evaluation results has at its top."""


def facet_of_row(metric: EvaluationMetric, facet: str, value: Any) -> Any:
    """A facet's value as the two-phase framework groups by it.

    A name without dots is a field of the evaluation result, and unknown where there is no such field; a
    nested value that is empty, 0 or false is unknown. The run's own facets are found in the metadata, too.
    """
    if "." in facet:
        return value or UNKNOWN
    return value if facet in ROW_FIELDS or metric.config.facets is None else UNKNOWN


def _as_rows_say(groups: FacetGroups, metric: EvaluationMetric) -> FacetGroups:
    """The groups by their facets' values in the rows of evaluation results; equal ones become one."""
    numbers = Vocabulary()
    values = [
        {facet: facet_of_row(metric, facet, value) for facet, value in group.items()}
        for group in groups.values
    ]
    codes = np.array([numbers.code(group) for group in values], dtype=np.int64)
    if len(numbers.values) == len(values):
        return replace(groups, values=values)
    return FacetGroups(code=codes[groups.code], values=numbers.values)


def _in_file_order(loaded: Loaded, parts: Sequence[Part]) -> Loaded:
    """The samples in the order of the files that they were recorded in; those that were asked for stand in
    the order of their index."""
    samples = loaded.samples
    order = samples.sample_index.astype(np.int64)
    for number, part in enumerate(parts):
        if (recorded := _recorded_rows(part)) is None:
            continue
        own = np.flatnonzero(samples.part == number)
        keys, rows = recorded
        order[own] = rows[np.searchsorted(keys, sample_keys(samples.doc_id[own], samples.sample_index[own]))]
    together = np.array(file_places(parts), dtype=samples.part.dtype)[samples.part]
    return replace(loaded, samples=replace(samples, part=together, sample_index=order))


def _recorded_rows(part: Part) -> tuple[Codes, Codes] | None:
    """Keys of a part's samples, ascending, and their rows in the file; None where one has no such row."""
    keys, rows = [], []
    for batch in part.responses(["doc_id", "sample_index", "recorded_row"]):
        if batch.column("recorded_row").null_count:
            return None
        keys.append(sample_keys(integers(batch, "doc_id"), integers(batch, "sample_index")))
        rows.append(integers(batch, "recorded_row"))
    if not keys:
        return None
    order = np.argsort(np.concatenate(keys))
    return np.concatenate(keys)[order], np.concatenate(rows)[order]


def _selected(loaded: Loaded, labels: LabelSelection) -> Loaded:
    """The samples under the labels that the metric looks at."""
    kept = np.array([labels.keeps(loaded.label(code)) for code in range(-1, len(loaded.labels))])
    rows = np.flatnonzero(kept[loaded.samples.label + 1])
    groups = replace(loaded.groups, code=loaded.groups.code[rows])
    return replace(loaded, samples=loaded.samples.take(rows), groups=groups)


def _scores_as_statistics(loaded: Loaded) -> Loaded:
    score = loaded.samples.score[:, None]
    return replace(loaded, samples=replace(loaded.samples, statistics=np.where(np.isnan(score), 0.0, score)))


def _built_in(config: EvaluationMetricConfig) -> "tuple[Metric, SampleEstimator | None]":
    """The metric's record, and its estimator where that is one of samples or trials."""
    estimator = _estimator(config)
    if estimator is not None:
        return _record(config, estimator.aggregation), estimator
    params = METRIC_PARAMS[str(config.type)].model_validate(config.params)
    match params:
        case PassAtKParams():
            return _record(config, _share(), unbiased(params.k)), None
        case PercentileParams():
            return _record(config, f"percentile@{params.percentile:g}"), None
        case ClassificationParams():
            return _record(config, measure(params.value)), None
    match config.type:
        case "count":
            return _record(config, _total(), _number_of_results()), None
        case "median":
            return _record(config, "median"), None
        case "pass_rate":
            return _record(config, _share()), None
        case _:
            return _record(config, "mean"), None


def _estimator(config: EvaluationMetricConfig) -> "SampleEstimator | None":
    params = METRIC_PARAMS[str(config.type)].model_validate(config.params)
    if getattr(params, "estimator", "items") not in ("trials", "samples"):
        return None
    match params:
        case PassAtKParams():
            return trials(params.k, params.num_trials or 1, params.aggregation)
        case ClassificationParams():
            return first_cells(params.num_trials, measure(params.value, zero=True))
        case PercentileParams():
            return quantile_of_samples(params.percentile / 100)
        case _ if config.type == "median":
            return quantile_of_samples(0.5)
    return mean_of_samples((0.0, 1.0) if config.type == "pass_rate" else (-math.inf, math.inf))


def _record(
    config: EvaluationMetricConfig, aggregation: "str | Aggregation", reduction: "Reduction | None" = None
) -> "Metric":
    from metrics.aggregation import build_aggregation
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
    from metrics.aggregation import build_aggregation

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
    from metrics.aggregation import Aggregation, as_column
    from metrics.statistics.rules import NoErrorBar

    return Aggregation("count", compute=lambda total, n: total[..., 0], encode=as_column, rule=NoErrorBar())


def unbiased(k: int) -> "Reduction":
    """The unbiased estimator of each item's pass@k, 0 to 1; an item with fewer scored samples is unscored."""
    from metrics.reductions.reduction import Reduction, build_reduction

    return Reduction(name="mean", requires=k, compute=build_reduction(f"pass@{k}").compute)


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
        error = failure_of(parse_facets(cell.facets), cell.label, failed) or _too_few(metric, cell)
        if error:
            rows.append(failed_row(pair, cell, error) | {"values_json": "{}"})
            continue
        row = result_row(pair, cell, options, _estimate_of(metric, cell))
        rows.append(row | {"values_json": canonical_json(_own_values(metric, cell, row)).decode()})
    rows += rows_of_failures(pair, failed, metric.facets, rows)
    yield from metric_batches(rows or [_nothing_to_look_at(metric, pair)])


def _nothing_to_look_at(metric: EvaluationMetric, pair: PairIdentity) -> Row:
    """The row of a metric that no evaluation result is for: what was asked for is not computed."""
    labels = metric.config.labels
    chosen = "" if labels is None else f" under the labels that metric {metric.name!r} looks at"
    counts = ("n_items", "n_samples", "n_scored", "n_unscored", "n_cut_off", "n_refused")
    return base_row(pair, "mean", None, facets_text({})) | dict.fromkeys(counts, 0) | {
        "stderr_method": "none",
        "status": "failed",
        "error": f"there is no evaluation result{chosen}",
        "values_json": "{}",
    }  # fmt: skip


def _estimate_of(metric: EvaluationMetric, cell: ResultCell) -> "Estimator | None":
    """What knows more about a cell's error than the metric's aggregation."""
    known = metric.estimator.estimate if metric.estimator is not None else None
    if known is None:
        return None
    return lambda statistics, clusters, options: known(statistics, cell.values, clusters, options)


def _too_few(metric: EvaluationMetric, cell: ResultCell) -> str | None:
    """Why trials can't be cut: some item of the group has fewer samples than they need.

    Samples that are there and could not be scored leave their item unscored, and are counted as such.
    """
    needed = metric.config.required_samples()
    fewer = cell.samples[cell.samples < needed]
    if not len(fewer):
        return None
    named = f": {', '.join(cell.unscored)}" if cell.n_lost == len(fewer) <= len(cell.unscored) else ""
    return (
        f"metric {metric.name!r} needs {needed} samples of every item (k × num_trials), and {cell.n_items} "
        f"items have {cell.n_samples} together. Too few have {len(fewer)} of them, the least {fewer.min()}"
        f"{named}. Lower k or num_trials, group by fewer facets, or complete the file"
    )


def metric_batches(rows: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows as one batch, or none."""
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=METRIC_ROWS)


def _own_values(metric: EvaluationMetric, cell: ResultCell, row: Row) -> dict[str, Any]:
    """What the two-phase framework's rows say beside the counts that every line has.

    The value stands under the framework's key (``pass_at_2``, ``percentile_95``) and the type's name.
    """
    config, value = metric.config, row["value"]
    if config.type is None:
        return {}
    params = METRIC_PARAMS[config.type].model_validate(config.params)
    own: dict[str, Any] = {config.type: value}
    match params:
        case PassAtKParams():
            several = (params.num_trials or 1) > 1
            about = {"num_trials": params.num_trials, "aggregation": params.aggregation} if several else {}
            return {f"pass_at_{params.k}": value, **own, **about}
        case PercentileParams():
            given = config.params.get("percentile", params.percentile)  # as it is written: 95 or 95.0
            return {f"percentile_{given}": value, **own, "sample_count": cell.n_scored}
        case ClassificationParams() if cell.statistics is not None:
            zero = params.estimator == "trials"
            counted = int(cell.statistics[:, -1].sum()) if zero else cell.n_scored
            counts = {
                "num_trials": params.num_trials if zero else None,
                "sample_count": counted,
                "ignored_count": cell.n_samples - counted,
                "total_count": cell.n_samples,
            }
            shown = {name: count for name, count in counts.items() if count is not None}
            return measures_of(cell.statistics[:, : len(CELLS)], zero) | shown
    if config.type == "count":
        return own if value is None else {"count": int(value)}
    if config.type == "pass_rate" and metric.estimator is not None and cell.statistics is not None:
        passed = float(cell.statistics[:, 0].sum())
        return own | {"passed_count": int(passed), "total_count": cell.n_scored}
    return own | {"sample_count": cell.n_scored}


class GroupFacets(list[str]):
    """The names of a group's facets, as the two-phase framework hands them over; by a name, its value.

    The label is not among the names, and has its value, too.
    """

    def __init__(self, values: Mapping[str, Any], label: str) -> None:
        super().__init__(values)
        self._values = {**values, "label": label}

    def __getitem__(self, key: Any) -> Any:
        return self._values[key] if isinstance(key, str) else super().__getitem__(key)

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a facet, or of the label."""
        return self._values.get(name, default)

    def values(self) -> dict[str, Any]:
        """Facet → value, the label among them."""
        return dict(self._values)


@dataclass
class _Group:
    """The evaluation results under one label with equal facet values."""

    label: str
    facets: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)  # of the file, and of the row in it

    def in_file_order(self) -> "_Group":
        """The group with its rows as the files have them."""
        order = sorted(range(len(self.rows)), key=self.places.__getitem__)
        return replace(self, rows=[self.rows[row] for row in order])


def call_metric(
    metric: EvaluationMetric, benchmark: str, judged: Sequence[JudgedPart], failed: Sequence[FailedPart] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows (METRIC_ROWS) of a user's metric ``fn(evaluation_results, facets, **params) -> dict``.

    ``evaluation_results`` are the rows of evaluation_results.jsonl of one group, unscored ones among them;
    ``facets`` are the facets' names, with their values by name. The dictionary's entries become the row's
    own values: ``value`` is the entry of that name, else the one called like the metric, else the first
    number that is no truth value and not ``stderr``. A group without one has failed. Raises MetricError
    naming the group where the function fails or returns something else.
    """
    failed = metric.concerned(failed)
    rows = [_called(metric, benchmark, group, failed) for group in _groups(metric, judged)]
    pair = metric.identity(benchmark)
    rows += rows_of_failures(pair, failed, metric.facets, rows)
    yield from metric_batches(rows or [_nothing_to_look_at(metric, pair)])


def _groups(metric: EvaluationMetric, judged: Sequence[JudgedPart]) -> list[_Group]:
    groups: list[_Group] = []
    numbers = Vocabulary()
    labels = metric.config.labels
    for file, entry in zip(file_places([entry.part for entry in judged]), judged, strict=True):
        for place, row in placed_rows(entry):
            if labels is not None and not labels.keeps(row["label"]):
                continue
            values = [facet_of_row(metric, facet, _facet(row, facet)) for facet in metric.facets]
            number = numbers.code([row["label"], *values])
            if number == len(groups):
                groups.append(_Group(row["label"], dict(zip(metric.facets, values, strict=True))))
            groups[number].rows.append(row)
            groups[number].places.append((file, place or 0))
    return [group.in_file_order() for group in groups]


def _facet(row: Row, facet: str) -> Any:
    """The value at the path in the row, else in its metadata, as the reductions find it."""
    for record in (row, row["metadata"]):
        if (value := resolve_detail(record, facet)) is not None:
            return value
    return UNKNOWN


def _called(metric: EvaluationMetric, benchmark: str, group: _Group, failed: Sequence[FailedPart]) -> Row:
    text = facets_text(group.facets)
    pair = metric.identity(benchmark)
    scored = sum(is_scored(row) for row in group.rows)
    row = base_row(pair, "mean", group.label, text) | {
        "stderr_method": "none",
        "n_items": len({row["item_id"] for row in group.rows}),
        "n_samples": len(group.rows),
        "n_scored": scored,
        "n_unscored": len(group.rows) - scored,
        "n_cut_off": sum(row["status"] == "cut_off" for row in group.rows),
        "n_refused": sum(row["status"] == "refused" for row in group.rows),
        "signature": f"{metric.metric.signature()}|fn:{metric.config.function}",
    }
    error = failure_of(group.facets, group.label, failed)
    if not error and not scored:
        reason = next((row["error"] for row in group.rows if row["error"]), "no row has a score")
        error = f"nothing could be scored: {reason}"
    if error:
        return row | {"status": "failed", "error": error}
    values = _values(metric, group)
    value = _value(values, metric.name)
    if value is None:
        said = f"metric {metric.name!r} ({metric.config.function}) returned no number: {dict(values)!r:.200}"
        return row | {"status": "failed", "error": said, "values_json": details_json(values)}
    odd = not math.isfinite(value)
    return row | {
        "value": value,
        "stderr": _number(values.get("stderr")),
        "status": "ok",
        "error": f"the value is {value}: JSON has no such number, so files have null" if odd else None,
        "values_json": details_json(values),
    }


def _values(metric: EvaluationMetric, group: _Group) -> Mapping[str, Any]:
    offered = {"evaluation_results": group.rows, "facets": GroupFacets(group.facets, group.label)}
    where = f"metric {metric.name!r} ({metric.config.function}) on label {group.label!r} with {group.facets}"
    assert metric.function is not None
    try:
        given = {name: offered[name] for name in metric.given}
        with users_code():
            returned = metric.function(**given, **deepcopy(metric.config.params))
    except Exception as error:
        raise MetricError(f"{where}: {named(error)}") from error
    if isinstance(returned, list) and len(returned) == 1:
        returned = returned[0]
    if (number := _number(returned, truth=True)) is not None:
        return {"value": number}
    if not isinstance(returned, Mapping):
        many = f" of {len(returned)}" if isinstance(returned, list) else ""
        raise MetricError(
            f"{where} must return a dictionary, or a list of one, not {type(returned).__name__}{many}"
        )
    try:
        details_json(dict(returned))
    except ValueError as error:
        raise MetricError(f"{where} returned something that is not JSON: {error}") from error
    return {str(name): value for name, value in returned.items()}


def _value(values: Mapping[str, Any], name: str) -> float | None:
    for key in ("value", name):
        if (number := _number(values.get(key), truth=True)) is not None:
            return number
    numbers = (_number(value) for key, value in values.items() if key != "stderr")
    return next((number for number in numbers if number is not None), None)


def _number(value: Any, truth: bool = False) -> float | None:
    """A number, or with ``truth`` also a truth value as 0 or 1; None for anything else."""
    try:
        plain = value.item() if hasattr(value, "item") else value
    except (ValueError, RuntimeError):  # numpy's and torch's words for several numbers
        return None
    return number_of(plain) if truth or not isinstance(plain, bool) else None
