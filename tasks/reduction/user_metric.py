"""A user's function over evaluation results: called once a label and facet group, with the group's rows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from metrics.errors import MetricError
from tasks.reduction.aggregate import base_row, failure_of, rows_of_failures
from tasks.reduction.facets import Vocabulary, facets_text
from tasks.reduction.verdict_metrics import EvaluationMetric, facet_of_row, metric_batches
from tasks.rows.parts import UNKNOWN, FailedPart, Row, resolve
from tasks.verdicts.labels import details_json
from tasks.verdicts.rows import JudgedPart, evaluation_rows, is_scored


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


def call_metric(
    metric: EvaluationMetric, benchmark: str, judged: Sequence[JudgedPart], failed: Sequence[FailedPart] = ()
) -> Iterator[pa.RecordBatch]:
    """The rows (METRIC_ROWS) of a user's metric ``fn(evaluation_results, facets, **params) -> dict``.

    ``evaluation_results`` are the rows of evaluation_results.jsonl of one group, unscored ones among them;
    ``facets`` are the facets' names, with their values by name. The dictionary's entries become the row's
    own values: ``value`` is the entry of that name, else the one called like the metric, else the first
    number. Raises MetricError naming the group where the function fails or returns something else.
    """
    failed = metric.concerned(failed)
    rows = [_called(metric, benchmark, group, failed) for group in _groups(metric, judged)]
    pair = metric.identity(benchmark)
    yield from metric_batches(rows + rows_of_failures(pair, failed, metric.facets, rows))


def _groups(metric: EvaluationMetric, judged: Sequence[JudgedPart]) -> list[_Group]:
    groups: list[_Group] = []
    numbers = Vocabulary()
    labels = metric.config.labels
    for entry in judged:
        for row in evaluation_rows(entry):
            if labels is not None and not labels.keeps(row["label"]):
                continue
            values = [facet_of_row(metric, facet, _facet(row, facet)) for facet in metric.facets]
            number = numbers.code([row["label"], *values])
            if number == len(groups):
                groups.append(_Group(row["label"], dict(zip(metric.facets, values, strict=True))))
            groups[number].rows.append(row)
    return groups


def _facet(row: Row, facet: str) -> Any:
    """The value at the path in the row, else in its metadata, as the reductions find it."""
    for record in (row, row["metadata"]):
        if (value := resolve(record, facet)) is not None:
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
        "n_refused": sum(row["status"] == "model_error" for row in group.rows),
        "signature": f"{metric.metric.signature()}|fn:{metric.config.function}",
    }
    error = failure_of(group.facets, group.label, failed)
    if not error and not scored:
        error = f"nothing could be scored: {_first_reason(group.rows)}"
    if error:
        return row | {"status": "failed", "error": error}
    values = _values(metric, group)
    value = _value(values, metric.name)
    odd = value is not None and not math.isfinite(value)
    return row | {
        "value": value,
        "stderr": _number(values.get("stderr")),
        "status": "ok",
        "error": f"the value is {value}: JSON has no such number, so files have null" if odd else None,
        "values_json": details_json(values),
    }


def _first_reason(rows: Sequence[Row]) -> str:
    return next((row["error"] for row in rows if row["error"]), "no row has a score")


def _values(metric: EvaluationMetric, group: _Group) -> Mapping[str, Any]:
    offered = {"evaluation_results": group.rows, "facets": GroupFacets(group.facets, group.label)}
    where = f"metric {metric.name!r} ({metric.config.function}) on label {group.label!r} with {group.facets}"
    assert metric.function is not None
    try:
        returned = metric.function(**{name: offered[name] for name in metric.given}, **metric.config.params)
    except Exception as error:
        raise MetricError(f"{where}: {type(error).__name__}: {error}") from error
    if isinstance(returned, list) and len(returned) == 1:
        returned = returned[0]
    if _number(returned) is not None:
        return {"value": _number(returned)}
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
        if (number := _number(values.get(key))) is not None:
            return number
    return next((number for value in values.values() if (number := _number(value)) is not None), None)


def _number(value: Any) -> float | None:
    plain = value.item() if hasattr(value, "item") else value
    return float(plain) if isinstance(plain, (int, float)) else None
