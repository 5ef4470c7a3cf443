"""F1 and Matthews correlation over predicted labels, equal to scikit-learn's.

For the two labels 0 and 1 a sample's statistics are its one-hot cell of the confusion matrix. Labels that are
not known beforehand stay pairs (gold, predicted) and become one-hot rows over the pairs that occur, once all
are there. Labels lead in the arrays of counts, so that 100,000 resamples are a few sums of long rows.
"""

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from metrics.aggregation import Aggregation, Count, Total, aggregation_factory, require_pairs
from metrics.choices import choice_of_largest, first_gold, is_right, nan_where_undefined
from metrics.errors import ConfigError, MetricError
from metrics.registry import metric
from metrics.statistics.rules import ConfusionRule
from metrics.types import IGNORED_TARGET, Bools, ChoiceBatch, Floats, Ints, Scores, Values

LabelStatistic = Callable[[Floats, Floats, Floats], Floats]
"""From the counts of right, gold and predicted labels (labels, ...) to a number (...)."""
Pair = tuple[Hashable, Hashable]
Decisive: TypeAlias = Literal["all", "gold"] | None
_OTHER = "another label"
AVERAGES = ("binary", "macro", "micro", "weighted")
SKLEARN_F1 = "scikit-learn f1_score; lm-evaluation-harness"
SKLEARN_MCC = "Matthews 1975; scikit-learn matthews_corrcoef; lm-evaluation-harness"


@metric("f1", style="choices", output_type="multiple_choice", aggregation="f1", source=SKLEARN_F1)
def f1(batch: ChoiceBatch) -> list[tuple[int, int]]:
    """F1 of the label 1 over all items, the prediction being the choice of highest log-likelihood.

    Raises ``MetricError`` for an item without such a choice: one of its log-likelihoods is NaN, or it has
    none.
    """
    return _label_pairs(batch, "f1")


@metric(
    "mcc",
    style="choices",
    output_type="multiple_choice",
    aggregation="matthews_corrcoef",
    bounds=(-1.0, 1.0),
    source=SKLEARN_MCC,
)
def mcc(batch: ChoiceBatch) -> list[tuple[int, int]]:
    """Matthews correlation of right and chosen labels over all items, of any number of labels; -1 to 1.

    Raises ``MetricError`` for an item without a chosen label: one of its log-likelihoods is NaN, or it has
    none.
    """
    return _label_pairs(batch, "mcc")


@aggregation_factory(
    "f1",
    source=SKLEARN_F1,
    takes="a pair (gold, predicted) of labels",
    example=((1, 1), (0, 1)),
)
def f1_aggregation(*, average: str = "binary", pos_label: Any = None) -> Aggregation:
    """F1 from (gold, predicted) labels: of one label (1, or ``pos_label``), or macro, micro, weighted over
    all."""
    if average not in AVERAGES:
        raise ConfigError(f"f1: average must be one of {', '.join(AVERAGES)}, not {average!r}")
    if average == "binary":
        return Aggregation(
            "f1",
            k=4,
            compute=_binary_f1,
            point=_of_counted(_binary_f1),
            read=lambda values: _confusion_cells(values, pos_label),
            rule=ConfusionRule(rarest=lambda total: float(total[2] + total[3])),
            bounds=(0.0, 1.0),
        )
    return _over_labels(
        f"f1_{average}",
        {"macro": macro_f1, "micro": micro_f1, "weighted": weighted_f1}[average],
        0.0,
        decisive="all" if average == "macro" else None,
    )


@aggregation_factory(
    "matthews_corrcoef",
    source=SKLEARN_MCC,
    takes="a pair (gold, predicted) of labels",
    example=(("a", "b"), ("b", "b")),
)
def matthews_corrcoef() -> Aggregation:
    """Matthews correlation from (gold, predicted) labels, of any number of labels; 0 where it is
    undefined."""
    return _over_labels("matthews_corrcoef", matthews_correlation, -1.0, decisive="gold")


@aggregation_factory(
    "mcc",
    source=SKLEARN_MCC,
    takes="a pair (gold, predicted) of labels",
    example=((1, 1), (0, 1), (0, 0)),
)
def mcc_aggregation() -> Aggregation:
    """Matthews correlation under its short name."""
    return matthews_corrcoef()


def _label_pairs(batch: ChoiceBatch, name: str) -> list[tuple[int, int]]:
    predicted = choice_of_largest(batch, batch.lls)
    unclear = np.flatnonzero(np.isnan(nan_where_undefined(batch, np.zeros(len(batch)), batch.lls)))
    if len(unclear):
        row = int(unclear[0])
        own = batch.lls[batch.offsets[row] : batch.offsets[row + 1]].tolist()
        raise MetricError(f"{name}: item {row} has no most likely choice; its log-likelihoods are {own}", row)
    gold = np.where(is_right(batch, predicted), predicted, first_gold(batch))
    return list(zip(gold.tolist(), predicted.tolist(), strict=True))


def _of_counted(compute: Callable[[Total, Count], Floats]) -> Callable[[Floats, float], float]:
    """The number of all items: none where no item counts. A draw of them has 0 there."""
    return lambda total, n: float(compute(total, n)) if total.any() else math.nan


def _binary_f1(total: Total, n: Count) -> Floats:
    false_positive, false_negative, right = total[..., 1], total[..., 2], total[..., 3]
    denominator = 2 * right + false_positive + false_negative
    return np.where(denominator > 0, 2 * right / np.where(denominator > 0, denominator, 1.0), 0.0)


def _confusion_cells(values: Sequence[Any], pos_label: Any) -> Scores:
    """One-hot rows (n, 4): true negative, false positive, false negative, true positive."""
    cells = np.zeros((len(values), 4))
    score = np.full(len(values), math.nan)
    for row, (gold, predicted) in enumerate(_pairs(values, "f1")):
        if gold == IGNORED_TARGET:
            continue
        if pos_label is None and not {gold, predicted} <= {0, 1}:
            raise MetricError(
                f"f1 takes the labels 0 and 1, and sample {row} has {gold!r} and {predicted!r}; "
                "set pos_label, or average: macro",
                row,
            )
        positive = 1 if pos_label is None else pos_label
        cells[row, 2 * (gold == positive) + (predicted == positive)] = 1.0
        score[row] = gold == predicted
    return Scores(statistics=cells, values=None, score=score)


def _over_labels(name: str, finish: LabelStatistic, lowest: float, decisive: Decisive) -> Aggregation:
    def read(values: Sequence[Any]) -> Scores:
        pairs = list(_pairs(values, name))
        ignored = [gold == IGNORED_TARGET for gold, _ in pairs]
        right = [math.nan if skip else float(g == p) for (g, p), skip in zip(pairs, ignored, strict=True)]
        return Scores(
            None, [[gold, predicted] for gold, predicted in pairs], np.asarray(right, dtype=np.float64)
        )

    return Aggregation(
        name,
        kind="values",
        read=read,
        tabulate=lambda values: pair_table(name, values, finish, lowest, decisive),
        merge=_merged_pairs,
        rule=ConfusionRule(),
        bounds=(lowest, 1.0),
    )


def _merged_pairs(values: Sequence[Any]) -> dict[str, Any]:
    return {"pairs": [[gold, predicted, 1 / len(values)] for gold, predicted in values]}


def _pairs(values: Sequence[Any], name: str) -> list[tuple[Any, Any]]:
    require_pairs(values, name, "(gold, predicted)")
    pairs = [(_as_label(gold), _as_label(predicted)) for gold, predicted in values]
    for row, pair in enumerate(pairs):
        for label in pair:
            if isinstance(label, Collection) and not isinstance(label, str):
                raise MetricError(
                    f"{name} takes one label each, and sample {row} has {label!r:.80}; "
                    "of several labels give one number an item, with the aggregation mean",
                    row,
                )
    return pairs


def _as_label(label: Any) -> Any:
    """A numpy scalar or a truth value as the plain number, so that equal labels are one label."""
    if isinstance(label, np.generic):
        label = label.item()
    return int(label) if isinstance(label, bool) else label


FEW_PAIRS = 64
"""Pairs of labels up to which each is a column: resamples of so few distinct rows are counts."""


def pair_table(
    name: str, values: Values, finish: LabelStatistic, lowest: float, decisive: Decisive = "gold"
) -> tuple[Aggregation, Floats]:
    """The items' weights as a table, and the aggregation of its rows; ``decisive`` are the labels of
    which a rare one decides as much as a common one: those of the items, or ``all`` that occur.

    A value is a pair, or ``{"pairs": [[gold, predicted, weight], …]}`` for the repeats of an item. A row has
    the weights of the pairs that occur (n, P) or, where these are many, what they add to the right, the gold
    and the predicted items of each label (n, 3 labels). Pairs with an ignored target are in no column.
    """
    rows, pairs, weights = _entries(values)
    columns = {pair: -1 if pair[0] == IGNORED_TARGET else 0 for pair in dict.fromkeys(pairs)}
    counted_pairs = [pair for pair, column in columns.items() if column == 0]
    counted_pairs += _unseen(counted_pairs)
    columns.update(zip(counted_pairs, range(len(counted_pairs)), strict=True))
    places = np.fromiter(map(columns.__getitem__, pairs), dtype=np.int64, count=len(pairs))
    counted = places >= 0
    rows, places, weights = rows[counted], places[counted], weights[counted]
    steps = _label_matrix(counted_pairs)
    by_label = len(counted_pairs) > FEW_PAIRS

    def counts(total: Total) -> tuple[Floats, Floats, Floats]:
        if not by_label:
            return label_counts(total, counted_pairs)
        right, gold, predicted = np.split(np.ascontiguousarray(np.moveaxis(total, -1, 0)), 3)
        return right, gold, predicted

    def rarest(total: Floats) -> float:
        gold = counts(total)[1]
        return float(gold[gold > 0].min(initial=math.inf))

    def strangest(total: Floats) -> float:
        _, gold, predicted = counts(total)
        return float(predicted[(gold == 0) & (predicted > 0)].min(initial=math.inf))

    def compute(total: Total, n: Count) -> Floats:
        return finish(*counts(total))

    sums = Aggregation(
        name,
        k=steps.shape[1] if by_label else len(steps),
        compute=compute,
        point=_of_counted(compute),
        rule=ConfusionRule(rarest if decisive else None, strangest if decisive == "all" else None),
        bounds=(lowest, 1.0),
        steps=steps if by_label else None,
    )
    table = np.zeros((len(values), sums.k))
    if by_label and (np.diff(rows) > 0).all():  # one pair an item
        table[rows] = weights[:, None] * steps[places]
    elif by_label:
        np.add.at(table, rows, weights[:, None] * steps[places])
    else:
        np.add.at(table, (rows, places), weights)
    return sums, table


def _label_matrix(pairs: Sequence[Pair]) -> Floats:
    """What each pair adds to the right, the gold and the predicted items of each label (P, 3 labels)."""
    numbers = _label_numbers(pairs)
    matrix = np.zeros((max(len(pairs), 1), 3, max(len(numbers), 1)))
    for row, (own, given) in enumerate(pairs):
        matrix[row, 0, numbers[own]] = own == given
        matrix[row, 1, numbers[own]] = 1.0
        matrix[row, 2, numbers[given]] = 1.0
    return matrix.reshape(len(matrix), -1)


def _label_numbers(pairs: Sequence[Pair]) -> dict[Hashable, int]:
    labels = dict.fromkeys(label for pair in pairs for label in pair)
    return {label: number for number, label in enumerate(labels)}


def _unseen(pairs: Sequence[Pair]) -> list[Pair]:
    """A wrong pair where all are right, a right one where all are wrong: what an error bar must allow for."""
    if not pairs:
        return []
    labels = list(dict.fromkeys(label for pair in pairs for label in pair))
    right = [pair[0] == pair[1] for pair in pairs]
    if all(right):
        return [(label, other) for label, other in pairwise([*labels, labels[0] if labels[1:] else _OTHER])]
    return [] if any(right) else [(label, label) for label in labels]


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
    numbers = _label_numbers(pairs)
    by_pair = np.ascontiguousarray(np.moveaxis(total, -1, 0))
    right, gold, predicted = np.zeros((3, max(len(numbers), 1), *by_pair.shape[1:]))
    for (own, given), count in zip(pairs, by_pair, strict=False):  # without pairs there is one empty column
        gold[numbers[own]] += count
        predicted[numbers[given]] += count
        if own == given:
            right[numbers[own]] += count
    return right, gold, predicted


def _label_f1(right: Floats, gold: Floats, predicted: Floats) -> tuple[Floats, Bools]:
    present = gold + predicted > 0
    return np.where(present, 2 * right / np.where(present, gold + predicted, 1.0), 0.0), present


def macro_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """Mean of the labels' F1."""
    each, present = _label_f1(right, gold, predicted)
    return np.asarray(each.sum(0) / np.maximum(present.sum(0), 1))


def micro_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """F1 of all labels' counts together, which is the share of right items."""
    items = gold.sum(0)
    return np.where(items > 0, right.sum(0) / np.where(items > 0, items, 1.0), 0.0)


def weighted_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """Mean of the labels' F1, each as often as its label occurs."""
    items = gold.sum(0)
    each, _ = _label_f1(right, gold, predicted)
    return np.where(items > 0, (each * gold).sum(0) / np.where(items > 0, items, 1.0), 0.0)


def matthews_correlation(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """Matthews correlation of any number of labels; 0 where all items have, or all got, one label."""
    items = gold.sum(0)
    covariance = right.sum(0) * items - _products(gold, predicted)
    spread = (items**2 - _products(gold, gold)) * (items**2 - _products(predicted, predicted))
    defined = spread > 0
    return np.asarray(np.divide(covariance, np.sqrt(spread), out=np.zeros_like(spread), where=defined))


def _products(first: Floats, second: Floats) -> Floats:
    """Σ over the labels of two counts' products."""
    return np.asarray(np.einsum("l...,l...->...", first, second))
