"""Word error rate of a corpus."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.aggregations import Aggregation, Count, Total, factory
from metrics.levenshtein import levenshtein
from metrics.registry import metric
from metrics.texts import hypotheses, read_text_pairs, reference_lists
from metrics.types import Floats, Scores

JIWER = "Morris et al. 2004; jiwer and evaluate"


@metric(
    "wer",
    batched=True,
    aggregation="wer",
    higher_is_better=False,
    bounds=(0.0, float("inf")),
    source=JIWER,
)
def wer(references: Sequence[Sequence[Any]], predictions: Sequence[Any]) -> Scores:
    """Word edits of all items per reference word, a share and no percentage; lower is better, above 1 for
    long answers.

    Statistics (n, 2): insertions, deletions and substitutions of words, and the reference's words; of several
    references those of the closest. Words lie between white space (``str.split``). No prediction is an empty
    answer. A sample's score is its own rate, the number of edits where the reference has no words, as jiwer
    has it.
    """
    texts = [text.split() for text in hypotheses(predictions, "wer")]
    golds = [[gold.split() for gold in own] for own in reference_lists(references, "wer")]
    counted = [_closest(text, own) for text, own in zip(texts, golds, strict=True)]
    statistics = np.array(counted, dtype=np.float64).reshape(-1, 2)
    return Scores(statistics=statistics, values=None, score=_rate(statistics, 1.0))


@factory("wer", source=JIWER)
def wer_aggregation() -> Aggregation:
    """Word error rate of added-up edits and words, or of (reference, prediction) pairs."""

    def read(values: Sequence[Any]) -> Scores:
        return wer(*read_text_pairs(values, "wer"))

    return Aggregation("wer", k=2, compute=_rate, read=read, bounds=(0.0, float("inf")))


def _closest(text: Sequence[str], golds: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Edits and length of the reference with the lowest rate, of equal ones that with fewer edits."""
    counted = [(levenshtein(text, gold), len(gold)) for gold in golds]
    return min(counted, key=lambda pair: (pair[0] / max(pair[1], 1), *pair))


def _rate(total: Total, n: Count) -> Floats:
    """Edits / words; the edits where there is no reference word."""
    edits, words = total[..., 0], total[..., 1]
    return np.asarray(edits / np.where(words > 0, words, 1))
