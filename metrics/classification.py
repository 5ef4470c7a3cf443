"""F1 and Matthews correlation over predicted labels, equal to scikit-learn's.

For the two labels 0 and 1 a sample's statistics are its one-hot cell of the confusion matrix. Labels that are
not known beforehand are kept as pairs and become one-hot rows over the pairs that occur, once all are there.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.aggregations import Aggregation, Count, Total, factory
from metrics.choices import blanked, chosen, first_gold, is_right
from metrics.errors import ConfigError, MetricError
from metrics.label_counts import Finish, correlation, macro, micro, tabulated, weighted
from metrics.registry import metric
from metrics.types import IGNORED_TARGET, ChoiceBatch, Floats, Scores

AVERAGES = ("binary", "macro", "micro", "weighted")
SKLEARN_F1 = "scikit-learn f1_score; lm-evaluation-harness"
SKLEARN_MCC = "Matthews 1975; scikit-learn matthews_corrcoef; lm-evaluation-harness"


@metric("f1", style="choices", output_type="multiple_choice", aggregation="f1", source=SKLEARN_F1)
def f1(batch: ChoiceBatch) -> list[tuple[int, int]]:
    """F1 of the label 1 over all items, the prediction being the choice of highest log-likelihood.

    Raises ``MetricError`` for an item without such a choice: one of its log-likelihoods is NaN, or it has
    none.
    """
    return _labels(batch, "f1")


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
    return _labels(batch, "mcc")


def _labels(batch: ChoiceBatch, name: str) -> list[tuple[int, int]]:
    predicted = chosen(batch, batch.lls)
    unclear = np.flatnonzero(np.isnan(blanked(batch, np.zeros(len(batch)), batch.lls)))
    if len(unclear):
        row = int(unclear[0])
        own = batch.lls[batch.offsets[row] : batch.offsets[row + 1]].tolist()
        raise MetricError(f"{name}: item {row} has no most likely choice; its log-likelihoods are {own}", row)
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
    return _over_labels(f"f1_{average}", {"macro": macro, "micro": micro, "weighted": weighted}[average], 0.0)


@factory("matthews_corrcoef", source=SKLEARN_MCC)
def matthews_corrcoef() -> Aggregation:
    """Matthews correlation from (gold, predicted) labels, of any number of labels; 0 where it is
    undefined."""
    return _over_labels("matthews_corrcoef", correlation, -1.0)


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
        tabulate=lambda values: tabulated(name, values, finish, lowest),
        merge=_merged,
        rule="multinomial",
        bounds=(lowest, 1.0),
    )


def _merged(values: Sequence[Any]) -> dict[str, Any]:
    return {"pairs": [[gold, predicted, 1 / len(values)] for gold, predicted in values]}


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
