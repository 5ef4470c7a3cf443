"""Corpus chrF and chrF++, equal to sacrebleu's."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metrics.aggregations import Aggregation, Count, Total, factory
from metrics.chrf_statistics import Options, chrf_statistics
from metrics.registry import metric
from metrics.texts import hypotheses, read_text_pairs, reference_lists
from metrics.types import Floats, Scores

POPOVIC = "Popović 2015, 2017; sacrebleu"
_EPSILON = 1e-16  # sacrebleu's precision and recall of an order without n-grams


@metric(
    "chrf", batched=True, aggregation="chrf", libraries=("sacrebleu",), bounds=(0.0, 100.0), source=POPOVIC
)
def chrf(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    char_order: int = 6,
    word_order: int = 0,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Scores:
    """Corpus chrF on a 0-100 scale, equal to ``sacrebleu.corpus_chrf``; higher is better.

    Statistics (n, 3 * orders): n-grams of hypothesis and reference and matches for each character order, then
    each word order, against the reference with the best F. No prediction is an empty hypothesis. A sample's
    score is its own chrF.
    """
    options = Options(char_order, word_order, lowercase, whitespace)
    finish = f_score(char_order + word_order, beta, eps_smoothing)
    statistics = chrf_statistics(
        reference_lists(references, "chrf"), hypotheses(predictions, "chrf"), options, finish
    )
    return Scores(statistics=statistics, values=None, score=finish(statistics, 1.0))


@metric(
    "chrf++",
    batched=True,
    aggregation="chrf++",
    libraries=("sacrebleu",),
    bounds=(0.0, 100.0),
    source=POPOVIC,
)
def chrf_plus_plus(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    char_order: int = 6,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Scores:
    """chrF with words and word pairs besides characters (word_order 2), 0-100; higher is better."""
    return chrf(
        references,
        predictions,
        char_order=char_order,
        word_order=2,
        beta=beta,
        lowercase=lowercase,
        whitespace=whitespace,
        eps_smoothing=eps_smoothing,
    )


@factory("chrf", source=POPOVIC)
def chrf_aggregation(
    *,
    char_order: int = 6,
    word_order: int = 0,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Aggregation:
    """Corpus chrF of added-up n-gram statistics, or of (reference, prediction) pairs; 0-100."""

    def read(values: Sequence[Any]) -> Scores:
        references, predictions = read_text_pairs(values, "chrf")
        return chrf(
            references,
            predictions,
            char_order=char_order,
            word_order=word_order,
            beta=beta,
            lowercase=lowercase,
            whitespace=whitespace,
            eps_smoothing=eps_smoothing,
        )

    orders = char_order + word_order
    return Aggregation(
        "chrf++" if word_order == 2 else "chrf",
        k=3 * orders,
        compute=f_score(orders, beta, eps_smoothing),
        read=read,
        bounds=(0.0, 100.0),
    )


@factory("chrf++", source=POPOVIC)
def chrf_plus_plus_aggregation(
    *,
    char_order: int = 6,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Aggregation:
    """As chrf, with words and word pairs besides characters."""
    return chrf_aggregation(
        char_order=char_order,
        word_order=2,
        beta=beta,
        lowercase=lowercase,
        whitespace=whitespace,
        eps_smoothing=eps_smoothing,
    )


def f_score(orders: int, beta: float, eps_smoothing: bool) -> Callable[[Total, Count], Floats]:
    """chrF of sums (..., 3 * orders), with the operations in sacrebleu's order, so that the bits agree."""
    factor = beta**2

    def finish(total: Total, n: Count) -> Floats:
        smoothed = np.zeros(total.shape[:-1])
        precision, recall, effective = smoothed.copy(), smoothed.copy(), smoothed.copy()
        for order in range(orders):
            own, reference, matched = (total[..., 3 * order + j] for j in range(3))
            share = np.where(own > 0, matched / np.where(own > 0, own, 1), _EPSILON)
            found = np.where(reference > 0, matched / np.where(reference > 0, reference, 1), _EPSILON)
            denominator = factor * share + found
            ratio = (1 + factor) * share * found / np.where(denominator > 0, denominator, 1)
            smoothed = smoothed + np.where(denominator > 0, ratio, _EPSILON)
            counted = (own > 0) & (reference > 0)
            precision = precision + np.where(counted, share, 0.0)
            recall = recall + np.where(counted, found, 0.0)
            effective = effective + counted
        if eps_smoothing:
            return np.asarray(100 * smoothed / orders)
        divisor = np.where(effective > 0, effective, 1)
        precision, recall = precision / divisor, recall / divisor
        some = precision + recall > 0
        score = (1 + factor) * precision * recall / np.where(some, factor * precision + recall, 1)
        return np.where(some, 100 * score, 0.0)

    return finish
