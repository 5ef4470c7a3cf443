"""How item rows become RESULTS: one number with its uncertainty for each reduction × label × facet group.

Item rows are cut into cells, a cell is estimated, and a group that a failed step took items from is failed
rather than a number over the rest. ``aggregate_pair`` serves the stage aggregate; metrics over evaluation
results reuse the rows and the rules of failure.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tasks.reduction.facets import Codes, Vocabulary, facets_text, integers, missing_facets, parse_facets
from tasks.rows.parts import UNKNOWN, FailedPart, Origin, PairIdentity, Row, locate, resolve
from tasks.store.keys import text_value
from tasks.store.schemas import COUNTED, RESULTS, cluster_ways

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig
    from metrics.types import Estimate, Floats, Ints


_KEYS = ("reduction", "label", "facets")
_COLUMNS = (
    *_KEYS,
    *("item_id", "cluster", "value", "statistics", "n_samples", "n_scored"),
    *(f"n_{name}" for name in COUNTED),
)
NAMED_ITEMS = 3
_NO_SAMPLES = {
    "stderr_method": "none",
    "n_items": 0,
    "n_samples": 0,
    "n_scored": 0,
    "n_unscored": 0,
    **{f"n_{name}": 0 for name in COUNTED},
    "status": "failed",
}
Estimator: TypeAlias = "Callable[[Floats | None, Ints | None, StatisticsConfig], Estimate | None]"
"""From the items' statistics (n, k) and clusters (n,) to a number with its uncertainty; None: it knows no
more of it than the metric's aggregation does."""


@dataclass(frozen=True)
class ResultCell:
    """The n scored items of one result, and the counts of all items that belong to it.

    ``statistics`` (n, k) or ``values`` (n) are what the aggregation takes, ``clusters`` (n,) numbers the
    clusters; ``unscored`` names the first few items without an outcome under this reduction.
    """

    reduction: str
    label: str | None
    facets: str
    statistics: NDArray[np.float64] | None
    values: Sequence[Any] | None
    clusters: Codes | None
    n_items: int
    n_samples: int
    n_scored: int
    unscored: Sequence[str]
    samples: Codes  # of each item that belongs to it, scored or not
    repeats: Codes | None = None  # scored samples of each of the n items
    outcomes: Mapping[str, int] = field(default_factory=dict)  # samples by COUNTED

    @property
    def n_valid(self) -> int:
        """Items that have an outcome."""
        return len(self.statistics if self.statistics is not None else self.values or ())

    @property
    def n_lost(self) -> int:
        """Items that have none."""
        return self.n_items - self.n_valid


def aggregate_pair(
    pair: PairIdentity,
    item_rows: Iterable[pa.RecordBatch],
    options: "StatisticsConfig",
    failed: Sequence[FailedPart] = (),
    facets: Sequence[str] = (),
    *,
    estimator: "Estimator | None" = None,
) -> Iterator[pa.RecordBatch]:
    """The pair's results (RESULTS), in the order of the item rows.

    A group that a failed part belongs to is ``failed`` with that part's error, whatever its other partitions
    gave: a number from some of its items would not say so. A group without a single scored item has failed,
    too. ``facets`` are those of the item rows, needed for groups of which nothing was left.
    ``estimator`` comes before the estimate of the metric's aggregation. Raises what a user's aggregation
    raises.
    """
    rows = [
        failed_row(pair, cell, error) if error else result_row(pair, cell, options, estimator)
        for cell in cells(item_rows)
        for error in [failure_of(parse_facets(cell.facets), cell.label, failed)]
    ]
    rows += rows_of_failures(pair, failed, facets, rows)
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=RESULTS)


def result_row(
    pair: PairIdentity, cell: ResultCell, options: "StatisticsConfig", estimator: "Estimator | None" = None
) -> Row:
    """One row of RESULTS: the estimate, the counts and every doubt there is about them."""
    from metrics.statistics.estimate import estimate, possible

    if not cell.n_valid:
        return failed_row(pair, cell, "; ".join(["nothing could be scored", *cell_doubts(cell)]))
    aggregation = pair.metric.aggregation
    estimated = estimator(cell.statistics, cell.clusters, options) if estimator is not None else None
    if estimated is not None:
        estimated = possible(estimated, aggregation.bounds)
    else:
        known = None if cell.repeats is None else int(cell.repeats.sum())
        estimated = estimate(aggregation, cell.statistics, cell.values, cell.clusters, options, samples=known)
    doubts = [estimated.warning, *cell_doubts(cell)]
    return base_row(pair, cell.reduction, cell.label, cell.facets) | {
        "value": _number(estimated.value),
        "stderr": _number(estimated.stderr),
        "stderr_method": estimated.stderr_method,
        "ci_low": _number(estimated.ci_low),
        "ci_high": _number(estimated.ci_high),
        **_counts(cell),
        "status": "ok",
        "error": "; ".join(doubt for doubt in doubts if doubt) or None,
        "signature": signature(pair, cell.reduction, estimated, options),
        **_foreseen(pair, cell, estimated, options),
        "warning": estimated.warning,
    }


def _foreseen(
    pair: PairIdentity, cell: ResultCell, estimated: "Estimate", options: "StatisticsConfig"
) -> Row:
    """Which part of a mean's standard error is the choice of items, and which the sampling of answers (of
    means of 0/1 samples, whose own spread the means tell); and the loss that a comparison would find."""
    from metrics.statistics.clusters import counts, effective, numbered
    from metrics.statistics.formulas import variance_components
    from metrics.statistics.power import foreseen_mde

    if math.isnan(estimated.stderr):
        return {}
    groups = numbered(cell.clusters)
    units, clusters = (cell.n_valid, math.inf) if groups is None else (min(counts(groups)), effective(groups))
    level, (low, high) = 1 - options.ci_level, pair.metric.aggregation.bounds
    if not pair.metric.aggregation.averages or cell.statistics is None:
        mde = foreseen_mde(units, estimated.stderr, level, width=high - low, clusters=clusters)
        return {"mde": _number(mde)}
    means, parts, repeats = cell.statistics[:, 0], None, None
    if pair.metric.aggregation.name == "mean" and cell.reduction == "mean" and cell.repeats is not None:
        repeats = cell.repeats.astype(np.float64)
        parts = variance_components(means, repeats, estimated.stderr)
    sampling = None if parts is None else parts[1]
    mde = foreseen_mde(
        units,
        estimated.stderr,
        level,
        means=means,
        repeats=repeats,
        sampling=sampling,
        width=high - low,
        clusters=clusters,
    )
    found: Row = {"mde": _number(mde)}
    return found if parts is None else found | {"stderr_items": parts[0], "stderr_sampling": parts[1]}


def failed_row(pair: PairIdentity, cell: ResultCell, error: str) -> Row:
    """One row of RESULTS for a group without a number: it would rest on a part of its items, or on none."""
    return base_row(pair, cell.reduction, cell.label, cell.facets) | {
        "value": None,
        "stderr": None,
        "stderr_method": "none",
        **_counts(cell),
        "status": "failed",
        "error": error,
    }


def base_row(pair: PairIdentity, reduction: str, label: str | None, facets: str) -> Row:
    """What a row of RESULTS says about where it belongs."""
    values: Mapping[str, Any] = parse_facets(facets)
    return {
        "run_id": None,
        "benchmark": pair.benchmark,
        "model_name": _text(values.get("model_name")),
        "prompt_template": _text(values.get("prompt_template")),
        "filter": pair.filter,
        "metric": pair.metric.name,
        "reduction": reduction,
        "label": label,
        "facets": facets,
        "higher_is_better": pair.metric.higher_is_better,
    }


def cell_doubts(cell: ResultCell) -> list[str]:
    """Sentences about items without an outcome and about facets that the group's rows lack."""
    doubts = []
    if cell.n_lost:
        more = ", …" if cell.n_lost > len(cell.unscored) else ""
        doubts.append(f"{cell.n_lost} of {cell.n_items} items are unscored: {', '.join(cell.unscored)}{more}")
    lacking = missing_facets(parse_facets(cell.facets))
    if lacking:
        doubts.append(f"no value for {', '.join(lacking)} in these responses, or the text {UNKNOWN!r}")
    return doubts


def signature(pair: PairIdentity, reduction: str, estimated: "Estimate", options: "StatisticsConfig") -> str:
    """Says how the number was computed: metric, arguments, filter, reduction, error bar."""
    parts = [pair.metric.signature(), f"filter:{pair.filter}", f"red:{reduction}"]
    if estimated.stderr_method != "none":
        parts.append(f"se:{estimated.stderr_method}|ci:{options.ci_level:g}")
    if "bootstrap" in estimated.stderr_method or "bca" in estimated.stderr_method:
        parts.append(f"iters:{options.bootstrap_iters}|seed:{options.seed}")
    return "|".join(parts)


def _counts(cell: ResultCell) -> Row:
    return {
        "n_items": cell.n_items,
        "n_samples": cell.n_samples,
        "n_scored": cell.n_scored,
        "n_unscored": cell.n_samples - cell.n_scored,
        **{f"n_{name}": cell.outcomes.get(name, 0) for name in COUNTED},
    }


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def failure_of(values: Mapping[str, Any], label: str | None, failed: Sequence[FailedPart]) -> str | None:
    """The error of the first failed part whose samples could have stood in the group of these values."""
    for part in failed:
        shared = origin_facets(part.origin, list(values))
        if part.concerns(label) and all(values[facet] == value for facet, value in shared.items()):
            return part.error
    return None


def rows_of_failures(
    pair: PairIdentity, failed: Sequence[FailedPart], facets: Sequence[str], present: Sequence[Row]
) -> list[Row]:
    """Rows of RESULTS for failed parts of whose groups nothing is left: one a reduction × group × label.

    ``present`` are the rows of the groups of which something is left.
    """
    grouped = [facet for facet in facets if facet != "label"]
    known = {(row["facets"], row["label"]) for row in present}
    rows: dict[tuple[str, str, str | None], Row] = {}
    for part in failed:
        values = dict.fromkeys(grouped, UNKNOWN) | origin_facets(part.origin, grouped)
        text = facets_text(values)
        if any(facets == text and part.concerns(label) for facets, label in known):
            continue
        label = part.label or part.method
        for reduction in pair.metric.reductions:
            row = base_row(pair, reduction.name, label, text) | _NO_SAMPLES | {"error": part.error}
            rows.setdefault((reduction.name, text, label), row)
    return list(rows.values())


def origin_facets(origin: Origin, facets: Sequence[str]) -> dict[str, Any]:
    """The values of those facets that all samples of the origin share; the others are left out."""
    values: dict[str, Any] = {}
    for facet in facets:
        source, path = locate(facet)
        if source == "origin":
            values[facet] = getattr(origin, path)
        elif source == "metadata" and (value := resolve(origin.shared_metadata, path)) is not None:
            values[facet] = value
    return values


def cells(item_rows: Iterable[pa.RecordBatch]) -> Iterator[ResultCell]:
    """The cells in order of appearance, from batches of ITEM_ROWS."""
    batches = [batch for batch in item_rows if len(batch)]
    if not batches:
        return
    table = pa.Table.from_batches(batches)
    (whole,) = table.select(_COLUMNS).unify_dictionaries().combine_chunks().to_batches()
    names = Vocabulary()
    cell, columns = _cell_codes(whole, names), _Columns.of(whole, table.column("value_json"))
    order = np.argsort(cell, kind="stable")
    bounds = np.searchsorted(cell[order], np.arange(len(names.values) + 1))
    for number, (reduction, label, facets) in enumerate(names.values):
        yield columns.cell((reduction, label, facets), order[bounds[number] : bounds[number + 1]])


def _cell_codes(batch: pa.RecordBatch, names: Vocabulary) -> Codes:
    """The number of each row's (reduction, label, facets)."""
    encoded = [batch.column(name).dictionary_encode() for name in _KEYS]
    tables = [[*column.dictionary.to_pylist(), None] for column in encoded]
    indices = [
        column.indices.fill_null(len(table) - 1).to_numpy(zero_copy_only=False)
        for column, table in zip(encoded, tables, strict=True)
    ]
    keys = np.stack(indices, axis=1)
    distinct, first, inverse = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    codes = np.empty(len(distinct), dtype=np.int64)
    for row in np.argsort(first).tolist():
        codes[row] = names.code([table[index] for table, index in zip(tables, distinct[row], strict=True)])
    return codes[inverse.ravel()]


@dataclass(frozen=True)
class _Columns:
    """The columns of all item rows; ``place`` says where a valid row's statistics or object stand."""

    item_ids: pa.Array
    valid: NDArray[np.bool_]
    place: Codes
    value: NDArray[np.float64]
    cluster: Codes
    statistics: NDArray[np.float64] | None
    objects: list[Any] | None
    n_samples: Codes
    n_scored: Codes
    outcomes: Mapping[str, Codes]

    @classmethod
    def of(cls, rows: pa.RecordBatch, texts: pa.ChunkedArray) -> "_Columns":
        """``texts`` are the values that are no numbers; one array may not hold them all."""
        value, lists = rows.column("value"), rows.column("statistics")
        known, statistics, objects, clusters = value, None, None, Vocabulary()
        if lists.null_count < len(rows):
            known, flat = lists, lists.drop_null().flatten().to_numpy(zero_copy_only=False)
            statistics = flat.reshape(len(rows) - lists.null_count, -1)
        elif texts.null_count < len(rows):
            known, objects = texts, [text_value(text) for text in texts.drop_null().to_pylist()]
        valid = known.is_valid().to_numpy(zero_copy_only=False)
        codes = clusters.encode_known(rows.column("cluster"))
        return cls(
            item_ids=rows.column("item_id"),
            valid=valid,
            place=np.cumsum(valid) - 1,
            value=value.fill_null(np.nan).to_numpy(zero_copy_only=False),
            cluster=_cluster_columns(codes, [cluster_ways(text) for text in clusters.values]),
            statistics=statistics,
            objects=objects,
            n_samples=integers(rows, "n_samples"),
            n_scored=integers(rows, "n_scored"),
            outcomes={name: integers(rows, f"n_{name}") for name in COUNTED},
        )

    def cell(self, name: tuple[str, str | None, str], rows: Codes) -> ResultCell:
        valid, lost = rows[self.valid[rows]], rows[~self.valid[rows]]
        reduction, label, facets = name
        return ResultCell(
            reduction=reduction,
            label=label,
            facets=facets,
            statistics=None if self.statistics is None else self.statistics[self.place[valid]],
            values=self._values(valid) if self.statistics is None else None,
            clusters=_own_cluster(self.cluster[valid]),
            n_items=len(rows),
            n_samples=int(self.n_samples[rows].sum()),
            n_scored=int(self.n_scored[rows].sum()),
            unscored=self.item_ids.take(pa.array(lost[:NAMED_ITEMS])).to_pylist(),
            samples=self.n_samples[rows],
            repeats=self.n_scored[valid],
            outcomes={name: int(counts[rows].sum()) for name, counts in self.outcomes.items()},
        )

    def _values(self, rows: Codes) -> list[Any]:
        if self.objects is None:
            return list(self.value[rows].tolist())
        return [self.objects[place] for place in self.place[rows].tolist()]


def _cluster_columns(codes: Codes, ways: Sequence[tuple[str, ...]]) -> Codes:
    """The clusters (rows,), or (rows, 2) of two fields that cross; −1 without one."""
    if max(map(len, ways), default=1) == 1:
        return codes
    numbers = [Vocabulary(), Vocabulary()]
    table = np.array(
        [*([own.code(text) for own, text in zip(numbers, texts, strict=True)] for texts in ways), [-1, -1]]
    )
    return np.asarray(table[codes])


def _own_cluster(clusters: Codes) -> Codes | None:
    """None where no item has a cluster; an item without one beside others that have is its own cluster."""
    if clusters.ndim == 2:
        first, second = (_own_cluster(column) for column in clusters.T)
        return None if first is None or second is None else np.column_stack([first, second])
    alone = clusters < 0
    if alone.all():
        return None
    top = int(clusters.max()) + 1
    return np.where(alone, top + np.arange(len(clusters)), clusters)
