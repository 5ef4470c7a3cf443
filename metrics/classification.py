"""F1 and Matthews correlation over predicted labels, equal to scikit-learn's.

For the two labels 0 and 1 a sample's statistics are its one-hot cell of the confusion matrix. Labels that are
not known beforehand are kept as pairs and become one-hot rows over the pairs that occur, once all are there.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from metrics.aggregations import Aggregation, Count, Total, factory
from metrics.choices import chosen, first_gold, is_right
from metrics.errors import ConfigError, MetricError
from metrics.registry import metric
from metrics.types import IGNORED_TARGET, Bools, ChoiceBatch, Floats, Scores, Values

AVERAGES = ("binary", "macro", "micro", "weighted")
SKLEARN_F1 = "scikit-learn f1_score; lm-evaluation-harness"
SKLEARN_MCC = "Matthews 1975; scikit-learn matthews_corrcoef; lm-evaluation-harness"
Finish = Callable[[Floats, Floats, Floats], Floats]  # right, gold and predicted counts (..., labels) → (...)


@metric("f1", style="choices", output_type="multiple_choice", aggregation="f1", source=SKLEARN_F1)
def f1(batch: ChoiceBatch) -> list[tuple[int, int]]:
    """F1 of the label 1 over all items, the prediction being the choice of highest log-likelihood."""
    return _labels(batch)


@metric(
    "mcc",
    style="choices",
    output_type="multiple_choice",
    aggregation="matthews_corrcoef",
    bounds=(-1.0, 1.0),
    source=SKLEARN_MCC,
)
def mcc(batch: ChoiceBatch) -> list[tuple[int, int]]:
    """Matthews correlation of right and chosen labels over all items, of any number of labels; -1 to 1."""
    return _labels(batch)


def _labels(batch: ChoiceBatch) -> list[tuple[int, int]]:
    predicted = chosen(batch, batch.lls)
    gold = np.where(is_right(batch, predicted), predicted, first_gold(batch))
    return list(zip(gold.tolist(), predicted.tolist(), strict=True))


@factory("f1", source=SKLEARN_F1)
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
            read=lambda values: _cells(values, pos_label),
            rule="multinomial",
            bounds=(0.0, 1.0),
        )
    return _over_labels(
        f"f1_{average}", {"macro": _macro, "micro": _micro, "weighted": _weighted}[average], 0.0
    )


@factory("matthews_corrcoef", source=SKLEARN_MCC)
def matthews_corrcoef() -> Aggregation:
    """Matthews correlation from (gold, predicted) labels, of any number of labels; 0 where it is
    undefined."""
    return _over_labels("matthews_corrcoef", _mcc, -1.0)


@factory("mcc", source=SKLEARN_MCC)
def mcc_aggregation() -> Aggregation:
    """Matthews correlation under its short name."""
    return matthews_corrcoef()


def _binary_f1(total: Total, n: Count) -> Floats:
    false_positive, false_negative, right = total[..., 1], total[..., 2], total[..., 3]
    denominator = 2 * right + false_positive + false_negative
    return np.where(denominator > 0, 2 * right / np.where(denominator > 0, denominator, 1.0), 0.0)


def _cells(values: Sequence[Any], pos_label: Any) -> Scores:
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


def _over_labels(name: str, finish: Finish, lowest: float) -> Aggregation:
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
        tabulate=lambda values: _tabulated(name, values, finish, lowest),
        merge=_merged,
        rule="multinomial",
        bounds=(lowest, 1.0),
    )


def _merged(values: Sequence[Any]) -> dict[str, Any]:
    return {"pairs": [[gold, predicted, 1 / len(values)] for gold, predicted in values]}


def _weighted_pairs(value: Any) -> list[tuple[Any, Any, float]]:
    if isinstance(value, Mapping):
        return [(gold, predicted, weight) for gold, predicted, weight in value["pairs"]]
    return [(value[0], value[1], 1.0)]


def _tabulated(name: str, values: Values, finish: Finish, lowest: float) -> tuple[Aggregation, Floats]:
    """The pairs as weights over the pairs that occur (n, P), and the aggregation of such rows."""
    column: dict[tuple[Hashable, Hashable], int] = {}
    entries = [
        (row, column.setdefault((gold, predicted), len(column)), weight)
        for row, value in enumerate(values)
        for gold, predicted, weight in _weighted_pairs(value)
        if gold != IGNORED_TARGET
    ]
    table = np.zeros((len(values), max(len(column), 1)))
    for row, place, weight in entries:
        table[row, place] += weight
    names = {label: i for i, label in enumerate(dict.fromkeys(label for pair in column for label in pair))}
    gold, predicted = (np.zeros((table.shape[1], max(len(names), 1))) for _ in range(2))
    for pair, place in column.items():
        gold[place, names[pair[0]]] = predicted[place, names[pair[1]]] = 1.0

    def compute(total: Total, n: Count) -> Floats:
        return finish(*(_per_label(total, labels) for labels in (gold * predicted, gold, predicted)))

    sums = Aggregation(name, k=table.shape[1], compute=compute, rule="multinomial", bounds=(lowest, 1.0))
    return sums, table


def _per_label(total: Total, labels: Floats) -> Floats:
    """Counts of labels (..., L) from counts of pairs (..., P); einsum, since these products are too thin for
    BLAS."""
    return np.asarray(np.einsum("...p,pl->...l", total, labels))


def _label_f1(right: Floats, gold: Floats, predicted: Floats) -> tuple[Floats, Bools]:
    present = gold + predicted > 0
    return np.where(present, 2 * right / np.where(present, gold + predicted, 1.0), 0.0), present


def _macro(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    each, present = _label_f1(right, gold, predicted)
    return np.asarray(each.sum(-1) / np.maximum(present.sum(-1), 1))


def _micro(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    items = gold.sum(-1)
    return np.where(items > 0, right.sum(-1) / np.where(items > 0, items, 1.0), 0.0)


def _weighted(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    items = gold.sum(-1)
    each, _ = _label_f1(right, gold, predicted)
    return np.where(items > 0, (each * gold).sum(-1) / np.where(items > 0, items, 1.0), 0.0)


def _mcc(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    items = gold.sum(-1)
    covariance = right.sum(-1) * items - (gold * predicted).sum(-1)
    spread = (items**2 - (gold**2).sum(-1)) * (items**2 - (predicted**2).sum(-1))
    return np.where(spread > 0, covariance / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)


def _pairs(values: Sequence[Any], name: str) -> list[tuple[Any, Any]]:
    for row, value in enumerate(values):
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
            raise MetricError(
                f"{name} takes a pair (gold, predicted) a sample, and sample {row} has {value!r}", row
            )
    return [(_plain(gold), _plain(predicted)) for gold, predicted in values]


def _plain(label: Any) -> Any:
    """A numpy scalar or a truth value as the plain number, so that equal labels are one label."""
    if isinstance(label, np.generic):
        label = label.item()
    return int(label) if isinstance(label, bool) else label
