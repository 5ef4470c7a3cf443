"""Confusion of any labels as counts that add up: one-hot rows over the (gold, predicted) pairs that occur.

Labels lead in every array here, so that 100,000 resamples are a few sums of long rows.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from metrics.aggregations import Aggregation, Count, Total
from metrics.types import IGNORED_TARGET, Bools, Floats, Ints, Values

Finish = Callable[[Floats, Floats, Floats], Floats]  # right, gold and predicted counts (labels, ...) → (...)
Pair = tuple[Hashable, Hashable]


def tabulated(name: str, values: Values, finish: Finish, lowest: float) -> tuple[Aggregation, Floats]:
    """The pairs as weights over the pairs that occur (n, P), and the aggregation of such rows.

    A value is a pair, or ``{"pairs": [[gold, predicted, weight], …]}`` for the repeats of an item. Pairs with
    an ignored target are in no column.
    """
    rows, pairs, weights = _entries(values)
    columns = {pair: -1 if pair[0] == IGNORED_TARGET else 0 for pair in dict.fromkeys(pairs)}
    kept = [pair for pair, column in columns.items() if column == 0]
    columns.update(zip(kept, range(len(kept)), strict=True))
    places = np.fromiter(map(columns.__getitem__, pairs), dtype=np.int64, count=len(pairs))
    counted = places >= 0
    table = np.zeros((len(values), max(len(kept), 1)))
    np.add.at(table, (rows[counted], places[counted]), weights[counted])

    def compute(total: Total, n: Count) -> Floats:
        return finish(*label_counts(total, kept))

    sums = Aggregation(name, k=table.shape[1], compute=compute, rule="multinomial", bounds=(lowest, 1.0))
    return sums, table


def _entries(values: Values) -> tuple[Ints, list[Pair], Floats]:
    """Row, pair and weight of everything that counts."""
    if set(map(type, values)) <= {list, tuple}:
        pairs = list(map(tuple, values))
        return np.arange(len(pairs)), pairs, np.ones(len(pairs))
    entries = [
        (row, (gold, predicted), weight)
        for row, value in enumerate(values)
        for gold, predicted, weight in _weighted_pairs(value)
    ]
    rows = np.array([row for row, _, _ in entries], dtype=np.int64)
    weights = np.array([weight for _, _, weight in entries], dtype=np.float64)
    return rows, [pair for _, pair, _ in entries], weights


def _weighted_pairs(value: Any) -> list[tuple[Any, Any, float]]:
    if isinstance(value, Mapping):
        return [(gold, predicted, weight) for gold, predicted, weight in value["pairs"]]
    return [(value[0], value[1], 1.0)]


def label_counts(total: Total, pairs: Sequence[Pair]) -> tuple[Floats, Floats, Floats]:
    """Items of each label that are right, that have it, and that got it (labels, ...), from counts of pairs
    (..., P)."""
    labels = dict.fromkeys(label for pair in pairs for label in pair)
    numbers = {label: number for number, label in enumerate(labels)}
    by_pair = np.ascontiguousarray(np.moveaxis(total, -1, 0))
    right, gold, predicted = np.zeros((3, max(len(labels), 1), *by_pair.shape[1:]))
    for (own, given), count in zip(pairs, by_pair, strict=False):  # without pairs there is one empty column
        gold[numbers[own]] += count
        predicted[numbers[given]] += count
        if own == given:
            right[numbers[own]] += count
    return right, gold, predicted


def _label_f1(right: Floats, gold: Floats, predicted: Floats) -> tuple[Floats, Bools]:
    present = gold + predicted > 0
    return np.where(present, 2 * right / np.where(present, gold + predicted, 1.0), 0.0), present


def macro(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """Mean of the labels' F1."""
    each, present = _label_f1(right, gold, predicted)
    return np.asarray(each.sum(0) / np.maximum(present.sum(0), 1))


def micro(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """F1 of all labels' counts together, which is the share of right items."""
    items = gold.sum(0)
    return np.where(items > 0, right.sum(0) / np.where(items > 0, items, 1.0), 0.0)


def weighted(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """Mean of the labels' F1, each as often as its label occurs."""
    items = gold.sum(0)
    each, _ = _label_f1(right, gold, predicted)
    return np.where(items > 0, (each * gold).sum(0) / np.where(items > 0, items, 1.0), 0.0)


def correlation(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """Matthews correlation of any number of labels; 0 where all items have, or all got, one label."""
    items = gold.sum(0)
    covariance = right.sum(0) * items - _products(gold, predicted)
    spread = (items**2 - _products(gold, gold)) * (items**2 - _products(predicted, predicted))
    defined = spread > 0
    return np.asarray(np.divide(covariance, np.sqrt(spread), out=np.zeros_like(spread), where=defined))


def _products(first: Floats, second: Floats) -> Floats:
    """Σ over the labels of two counts' products."""
    return np.asarray(np.einsum("l...,l...->...", first, second))
