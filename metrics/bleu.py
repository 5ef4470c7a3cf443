"""Corpus BLEU and sentence BLEU, equal to sacrebleu's."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from metrics.aggregations import Aggregation, Count, Total, factory
from metrics.errors import ConfigError
from metrics.registry import metric
from metrics.texts import hypotheses, read_text_pairs, reference_lists
from metrics.types import Floats, Scores

PAPINENI = "Papineni et al. 2002; sacrebleu (Post 2018)"
SMOOTHING = {"none": None, "floor": 0.1, "add-k": 1.0, "exp": None}
_LOG_OF_ZERO = -9999999999.0  # sacrebleu's stand-in for log(0)


@metric(
    "bleu", batched=True, aggregation="bleu", libraries=("sacrebleu",), bounds=(0.0, 100.0), source=PAPINENI
)
def bleu(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    max_ngram_order: int = 4,
) -> Scores:
    """Corpus BLEU on a 0-100 scale, equal to ``sacrebleu.corpus_bleu``; higher is better.

    Statistics (n, 2 + 2 * order): hypothesis length, closest reference length, matching n-grams of each
    order, the hypothesis's n-grams of each order. The score of a sample is its sentence BLEU with effective
    order. No prediction is an empty hypothesis. Smoothing (``smooth_method`` exp, floor, add-k or none,
    ``smooth_value``) and ``effective_order`` are arguments of the aggregation.
    """
    from metrics.bleu_statistics import bleu_statistics

    statistics = bleu_statistics(
        reference_lists(references, "bleu"),
        hypotheses(predictions, "bleu"),
        tokenize,
        lowercase,
        max_ngram_order,
    )
    sentence = _corpus_bleu(max_ngram_order, "exp", None, True)
    return Scores(statistics=statistics, values=None, score=sentence(statistics, 1.0))


@metric("sentence_bleu", batched=True, libraries=("sacrebleu",), bounds=(0.0, 100.0), source=PAPINENI)
def sentence_bleu(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    max_ngram_order: int = 4,
) -> Floats:
    """BLEU of each sample with effective order, 0-100, equal to ``sacrebleu.sentence_bleu``; higher is
    better."""
    statistics = bleu(
        references, predictions, tokenize=tokenize, lowercase=lowercase, max_ngram_order=max_ngram_order
    ).statistics
    assert statistics is not None
    finish = bleu_point(max_ngram_order, smooth_method, smooth_value, True)
    return np.array([finish(row, 1.0) for row in statistics], dtype=np.float64)


@factory("bleu", source=PAPINENI)
def bleu_aggregation(
    *,
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    effective_order: bool = False,
    max_ngram_order: int = 4,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Aggregation:
    """Corpus BLEU of added-up n-gram statistics, or of (reference, prediction) pairs; 0-100."""
    if smooth_method not in SMOOTHING:
        raise ConfigError(f"bleu: smooth_method must be one of {', '.join(SMOOTHING)}, not {smooth_method!r}")

    def read(values: Sequence[Any]) -> Scores:
        references, predictions = read_text_pairs(values, "bleu")
        return bleu(
            references, predictions, tokenize=tokenize, lowercase=lowercase, max_ngram_order=max_ngram_order
        )

    return Aggregation(
        "bleu",
        k=2 + 2 * max_ngram_order,
        compute=_corpus_bleu(max_ngram_order, smooth_method, smooth_value, effective_order),
        point=bleu_point(max_ngram_order, smooth_method, smooth_value, effective_order),
        read=read,
        bounds=(0.0, 100.0),
    )


def bleu_point(order: int, smooth_method: str, smooth_value: float | None, effective_order: bool) -> Any:
    """BLEU of one sum of statistics, operation for operation as sacrebleu's ``compute_bleu``."""
    smooth = SMOOTHING[smooth_method] if smooth_value is None else smooth_value

    def finish(total: Floats, n: float) -> float:
        lengths, counts = total[:2].tolist(), total[2:].tolist()
        matched, possible = counts[:order], counts[order:]
        if not any(matched):
            return 0.0
        logs, halvings, orders = [_LOG_OF_ZERO] * order, 1.0, order
        for i in range(order):
            right, all_ = matched[i], possible[i]
            if smooth_method == "add-k" and i > 0:
                right, all_ = right + smooth, all_ + smooth
            if all_ == 0:
                break
            if effective_order:
                orders = i + 1
            precision = 100.0 * right / all_
            if right == 0:
                halvings *= 2 if smooth_method == "exp" else 1
                lowest = {"exp": 100.0 / (halvings * all_), "floor": 100.0 * (smooth or 0.0) / all_}
                precision = lowest.get(smooth_method, 0.0)
            logs[i] = math.log(precision) if precision != 0.0 else _LOG_OF_ZERO
        return _brevity(*lengths) * math.exp(sum(logs[:orders]) / orders)

    return finish


def _brevity(hypothesis: float, reference: float) -> float:
    if hypothesis >= reference:
        return 1.0
    return math.exp(1 - reference / hypothesis) if hypothesis > 0 else 0.0


def _corpus_bleu(order: int, smooth_method: str, smooth_value: float | None, effective_order: bool) -> Any:
    """The same over many sums at once: (..., 2 + 2 * order) → (...), equal to the last few bits."""
    smooth = SMOOTHING[smooth_method] if smooth_value is None else smooth_value

    def compute(total: Total, n: Count) -> Floats:
        hypothesis, reference = total[..., 0], total[..., 1]
        matched, possible = total[..., 2 : 2 + order], total[..., 2 + order : 2 + 2 * order]
        if smooth_method == "add-k":
            added = np.where(np.arange(order) > 0, smooth or 0.0, 0.0)
            right, all_ = matched + added, possible + added
        else:
            right, all_ = matched, possible
        if right is matched and bool((matched > 0).all()):  # nothing to smooth: nearly always, in a corpus
            logs = np.log(100.0 * matched / possible)
            mean = reduce(np.add, np.moveaxis(logs, -1, 0)) / order
            brevity = np.where(hypothesis < reference, np.exp(np.minimum(1 - reference / hypothesis, 0)), 1.0)
            return np.asarray(brevity * np.exp(mean))
        reached = np.logical_and.accumulate(all_ != 0, axis=-1)
        zero = (right == 0) & reached
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            precision = 100.0 * right / all_
            if smooth_method == "exp":
                precision = np.where(zero, 100.0 / (2.0 ** np.cumsum(zero, axis=-1) * all_), precision)
            elif smooth_method == "floor":
                precision = np.where(zero, 100.0 * (smooth or 0.0) / all_, precision)
            logs = np.where(reached & (precision != 0), np.log(precision), _LOG_OF_ZERO)
            brevity = np.where(hypothesis < reference, np.exp(1 - reference / hypothesis), 1.0)
            brevity = np.where(hypothesis > 0, brevity, np.where(reference > hypothesis, 0.0, 1.0))
        orders = np.maximum(reached.sum(axis=-1), 1) if effective_order else np.full(total.shape[:-1], order)
        used = np.arange(order) < orders[..., None]
        score = brevity * np.exp(np.where(used, logs, 0.0).sum(axis=-1) / orders)
        return np.where(matched.any(axis=-1), score, 0.0)

    return compute
