"""Which samples are repeats of one item, and how a reduction over them becomes ITEM_ROWS.

An item's samples that share facet values and label are its repeats. ``reduce_pair`` serves the stage reduce;
``reduce_samples`` serves metrics over evaluation results, whose samples are loaded in another way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa

from metrics.errors import MetricError, NightjarError
from metrics.reductions.reduction import reduce_repeats
from tasks.reduction.facets import Codes
from tasks.reduction.samples import ItemTable, Loaded, StatisticsLayout, load
from tasks.rows.parts import PairIdentity, Part
from tasks.store.keys import value_text
from tasks.store.schemas import COUNTED, FLOATS, ITEM_ROWS, OUTCOMES
from tasks.store.thresholds import Threshold

if TYPE_CHECKING:
    from metrics.reductions.reduction import Reduced, Reduction, Repeats


BATCH_ROWS = Threshold("rows_of_items_written", 65_536)


def reduce_pair(pair: PairIdentity, parts: Sequence[Part], facets: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The pair's item rows (ITEM_ROWS): one a reduction × facet group × label × item, in that order.

    ``facets`` are dotted paths of responses and evaluation results; the label is a facet always. Items stand
    in dataset order; repeats in the order of the parts, then of the sample index. Raises NightjarError where
    the artifacts do not belong together, and whatever a user's reduction raises.
    """
    metric = pair.metric
    by_hand = any(reduction.function is not None for reduction in metric.reductions)
    named = [facet for facet in facets if facet != "label"]
    yield from reduce_samples(
        pair, load(parts, StatisticsLayout(facets=named, kind=metric.kind, references=by_hand))
    )


def reduce_by(
    pair: PairIdentity, loaded: Loaded, reduce: "Callable[[Repeats], Reduced]"
) -> Iterator[pa.RecordBatch]:
    """The item rows that ``reduce`` makes of samples in memory, in the order of ``reduce_pair``."""
    if len(loaded.samples):
        entries = _entries(loaded)
        yield from _item_rows(pair, reduce(entries.repeats), entries, loaded)


def reduce_samples(pair: PairIdentity, loaded: Loaded) -> Iterator[pa.RecordBatch]:
    """``reduce_pair`` of samples that are in memory."""
    if not len(loaded.samples):
        return
    entries = _entries(loaded)
    seen: set[str] = set()
    for reduction in pair.metric.reductions:
        for reduced in _applied(reduction, entries, loaded):
            if reduced.name in seen:
                raise NightjarError(
                    f"metric {pair.metric.name!r} has two reductions called {reduced.name!r}; rename the "
                    "entry of the function's dictionary"
                )
            seen.add(reduced.name)
            yield from _item_rows(pair, reduced, entries, loaded)


@dataclass(frozen=True)
class _Entries:
    """The n items × groups × labels that have samples: which they are (n,), their repeats, and how many
    samples of each came to each of COUNTED."""

    repeats: "Repeats"
    outcomes: Mapping[str, Codes]
    group: Codes
    label: Codes
    item: Codes


def _entries(loaded: Loaded) -> _Entries:
    from metrics.reductions.reduction import (
        Repeats,  # numpy and the registry: only where something is reduced
    )

    samples, items = loaded.samples, loaded.items
    labels, n_items = len(loaded.labels) + 1, max(len(items.doc_ids), 1)
    cell = loaded.groups.code * labels + (samples.label + 1)
    key = cell * n_items + items.positions(samples.doc_id)
    order = np.lexsort((samples.sample_index, samples.part, key))
    key = key[order]
    starts = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
    cells, item = np.divmod(key[starts], n_items)
    group, label = np.divmod(cells, labels)
    table = samples.take(order)
    repeats = Repeats(
        score=table.score,
        scored=table.scored,
        codes=table.code,
        offsets=np.append(starts, len(key)),
        statistics=table.statistics,
        values=table.values,
        references=_references(items, item),
    )
    outcomes = {
        name: np.add.reduceat(table.outcome == OUTCOMES.index(name), starts, dtype=np.int64)
        for name in COUNTED
    }
    return _Entries(repeats=repeats, outcomes=outcomes, group=group, label=label - 1, item=item)


def _applied(reduction: "Reduction", entries: _Entries, loaded: Loaded) -> "tuple[Reduced, ...]":
    """The reduction's results; an error about one item names it."""
    try:
        return reduce_repeats(reduction, entries.repeats)
    except MetricError as error:
        if error.index is None:
            raise
        item = loaded.items.columns.column("item_id")[int(entries.item[error.index])]
        raise MetricError(f"item {item.as_py()!r}: {error}", error.index) from error


def _references(items: ItemTable, item: Codes) -> list[list[Any]] | None:
    if "references_json" not in items.columns.column_names:
        return None
    decoded = [orjson.loads(text) for text in items.columns.column("references_json").to_pylist()]
    return [decoded[row] for row in item.tolist()]


def _item_rows(
    pair: PairIdentity, reduced: "Reduced", entries: _Entries, loaded: Loaded
) -> Iterator[pa.RecordBatch]:
    texts = pa.array(loaded.groups.texts(), pa.string())
    labels = pa.array(loaded.labels, pa.string())
    bounds = [*range(0, len(entries.item), BATCH_ROWS), len(entries.item)]
    for start, stop in pairwise(bounds):
        rows = slice(start, stop)
        items = loaded.items.columns.take(pa.array(entries.item[rows]))
        label = pa.array(entries.label[rows], pa.int32(), mask=entries.label[rows] < 0)
        columns = {
            "benchmark": _constant(pair.benchmark, stop - start),
            "filter": _constant(pair.filter, stop - start),
            "metric": _constant(pair.metric.name, stop - start),
            "reduction": _constant(reduced.name, stop - start),
            "label": pa.DictionaryArray.from_arrays(label, labels),
            "facets": pa.DictionaryArray.from_arrays(pa.array(entries.group[rows], pa.int32()), texts),
            **{name: items.column(name).combine_chunks() for name in ("item_id", "item_digest", "cluster")},
            **_outcome(pair, reduced, rows),
            **{f"n_{name}": pa.array(counts[rows], pa.int64()) for name, counts in entries.outcomes.items()},
        }
        yield pa.RecordBatch.from_arrays([columns[name] for name in ITEM_ROWS.names], schema=ITEM_ROWS)


def _outcome(pair: PairIdentity, reduced: "Reduced", rows: slice) -> dict[str, pa.Array]:
    """What the reduction says of each item; null where the item is unscored."""
    value, valid = reduced.value[rows], reduced.valid[rows]
    # Where items add up, NaN only says that one item has no number of its own (BLEU's statistics, say).
    absent = ~valid | np.isnan(value) if pair.metric.kind == "sums" else ~valid
    return {
        "value": pa.array(value, mask=absent),
        "statistics": _lists(reduced, rows),
        "value_json": _texts(reduced, rows),
        "n_samples": pa.array(reduced.n_samples[rows], pa.int64()),
        "n_scored": pa.array(reduced.n_scored[rows], pa.int64()),
    }


def _lists(reduced: "Reduced", rows: slice) -> pa.Array:
    """Statistics (n, k) as lists; null for unscored items."""
    if reduced.statistics is None:
        return pa.nulls(rows.stop - rows.start, FLOATS)
    matrix, present = reduced.statistics[rows], reduced.valid[rows]
    offsets = np.concatenate([[0], np.cumsum(np.where(present, matrix.shape[1], 0))])
    flat = pa.array(np.asarray(matrix[present], dtype=np.float64).ravel())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat, mask=pa.array(~present))


def _texts(reduced: "Reduced", rows: slice) -> pa.Array:
    """Values that are not one number as JSON; null for unscored items."""
    if reduced.values is None:
        return pa.nulls(rows.stop - rows.start, pa.string())
    pairs = zip(reduced.values[rows], reduced.valid[rows].tolist(), strict=True)
    return pa.array([value_text(value) if valid else None for value, valid in pairs], pa.string())


def _constant(text: str, rows: int) -> pa.Array:
    indices = pa.array(np.zeros(rows, dtype=np.int32))
    return pa.DictionaryArray.from_arrays(indices, pa.array([text], pa.string()))
