"""Metrics of the edit distance: word error rate of a corpus, and similarity of two texts by characters.

Both count insertions, deletions and substitutions by ``levenshtein``, over any two sequences.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation, Count, Total, aggregation_factory
from metrics.registry import each_reference, metric
from metrics.text.inputs import hypotheses, read_text_pairs, reference_lists
from metrics.types import Floats, Scores

JIWER = "Morris et al. 2004; jiwer and evaluate"


@metric(
    "wer",
    batched=True,
    aggregation="wer",
    higher_is_better=False,
    bounds=(0.0, math.inf),
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


@aggregation_factory(
    "wer",
    source=JIWER,
    takes="a pair (reference, prediction)",
    example=(("a b c", "a c"), (["x", "x z"], "y")),
)
def wer_aggregation() -> Aggregation:
    """Word error rate of added-up edits and words, or of (reference, prediction) pairs."""

    def read(values: Sequence[Any]) -> Scores:
        return wer(*read_text_pairs(values, "wer"))

    return edit_rate("wer", _rate, read)


def edit_rate(
    name: str, rate: Callable[[Total, Count], Floats], read: Callable[[Sequence[Any]], Scores]
) -> Aggregation:
    """The aggregation of edits over words, added up: ``rate`` takes both sums, ``read`` what a user's
    function gives of a sample."""
    return Aggregation(
        name, k=2, compute=rate, read=read, weight=(1,), bounds=(0.0, math.inf), higher_is_better=False
    )


def _closest(text: Sequence[str], golds: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Edits and length of the reference with the lowest rate, of equal ones that with fewer edits."""
    counted = [(levenshtein(text, gold), len(gold)) for gold in golds]
    return min(counted, key=lambda pair: (pair[0] / max(pair[1], 1), *pair))


def _rate(total: Total, n: Count) -> Floats:
    """Edits / words; the edits where there is no reference word."""
    edits, words = total[..., 0], total[..., 1]
    return np.asarray(edits / np.where(words > 0, words, 1))


@metric("edit_similarity", batched=True, source="Levenshtein 1966", right_answers=each_reference)
def edit_similarity(
    references: Sequence[Sequence[Any]], predictions: Sequence[Any], *, ignore_case: bool = False
) -> Floats:
    """1 - edits / length of the longer text, 0 to 1, of characters; the best reference; 1 for two empty
    texts."""
    golds = reference_lists(references, "edit_similarity")
    texts = hypotheses(predictions, "edit_similarity")
    if ignore_case:
        golds = [[gold.casefold() for gold in own] for own in golds]
        texts = [text.casefold() for text in texts]
    best = [max(_similarity(gold, text) for gold in own) for own, text in zip(golds, texts, strict=True)]
    return np.array(best, dtype=np.float64)


def _similarity(first: str, second: str) -> float:
    longer = max(len(first), len(second))
    return 1 - levenshtein(first, second) / longer if longer else 1.0


def levenshtein(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Least number of insertions, deletions and substitutions that make one sequence of the other.

    A column of the table is the bits of an integer: Myers 1999 in the form of Hyyrö 2003.

    >>> levenshtein("kitten", "sitting"), levenshtein(["the", "cat"], ["a", "cat"])
    (3, 1)
    """
    if first == second:
        return 0
    if not first or not second:
        return len(first) or len(second)
    places: dict[Hashable, int] = {}
    for place, sign in enumerate(first):
        places[sign] = places.get(sign, 0) | (1 << place)
    full, last = (1 << len(first)) - 1, 1 << (len(first) - 1)
    positive, negative, distance = full, 0, len(first)
    for sign in second:
        equal = places.get(sign, 0)
        diagonal = (((equal & positive) + positive) ^ positive) | equal | negative
        up, down = negative | (full & ~(diagonal | positive)), positive & diagonal
        distance += bool(up & last) - bool(down & last)
        up, down = ((up << 1) | 1) & full, (down << 1) & full
        positive, negative = down | (full & ~(diagonal | up)), up & diagonal
    return distance
