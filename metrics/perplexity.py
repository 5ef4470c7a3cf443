"""Metrics of how probable the right choice was, and perplexities."""

import math
from collections.abc import Callable

import numpy as np

from metrics.choices import CHOICE_TYPES, HARNESS, gold_weight, log_softmax, per_length
from metrics.ragged import segment_sum
from metrics.registry import metric
from metrics.types import ChoiceBatch, Floats, Ints, Scores, scalar_scores

ROLLING = ("loglikelihood_rolling",)
ANY_LL = ("loglikelihood", "multiple_choice", "loglikelihood_rolling")
LOGS = (-math.inf, 0.0)
POSITIVE = (0.0, math.inf)


@metric("logprob", style="choices", output_type=CHOICE_TYPES, bounds=LOGS, source=HARNESS)
def logprob(batch: ChoiceBatch) -> Scores:
    """Log-likelihood of the right choice, in nats."""
    return scalar_scores(gold_weight(batch, batch.lls, "logprob"))


@metric("likelihood", style="choices", output_type=CHOICE_TYPES, bounds=LOGS, source=HARNESS)
def likelihood(batch: ChoiceBatch) -> Scores:
    """Log-likelihood of the right choice, in nats, under the harness's name for it."""
    return scalar_scores(gold_weight(batch, batch.lls, "likelihood"))


@metric(
    "bpb", style="choices", output_type=CHOICE_TYPES, higher_is_better=False, bounds=POSITIVE, source=HARNESS
)
def bpb(batch: ChoiceBatch) -> Scores:
    """Bits that each UTF-8 byte of the right choice costs: -ll / bytes / ln 2, mean over items."""
    return scalar_scores(-gold_weight(batch, per_length(batch.lls, batch.bytes), "bpb") / math.log(2))


@metric("choice_logprob", style="choices", output_type="multiple_choice", bounds=LOGS, source=HARNESS)
def choice_logprob(batch: ChoiceBatch) -> Scores:
    """Log-probability of the right choice among the choices: ll - logsumexp(lls)."""
    return scalar_scores(gold_weight(batch, log_softmax(batch.lls, batch.offsets), "choice_logprob"))


@metric("choice_prob_norm", style="choices", output_type="multiple_choice", source=HARNESS)
def choice_prob_norm(batch: ChoiceBatch) -> Scores:
    """Probability of the right choice among the choices, by log-likelihood per byte."""
    return scalar_scores(np.exp(_normed(batch, "choice_prob_norm")))


@metric("choice_logprob_norm", style="choices", output_type="multiple_choice", bounds=LOGS, source=HARNESS)
def choice_logprob_norm(batch: ChoiceBatch) -> Scores:
    """Logarithm of choice_prob_norm of the item."""
    return scalar_scores(_normed(batch, "choice_logprob_norm"))


def _normed(batch: ChoiceBatch, name: str) -> Floats:
    return gold_weight(batch, log_softmax(per_length(batch.lls, batch.bytes), batch.offsets), name)


@metric(
    "brier_score",
    style="choices",
    output_type="multiple_choice",
    aggregation="brier_score",
    higher_is_better=False,
    bounds=(0.0, 2.0),
    source="Brier 1950; lm-evaluation-harness",
)
def brier_score(batch: ChoiceBatch) -> Scores:
    """Squared distance of the choices' probabilities from the right one: Σ (p - one-hot)², 0 to 2."""
    probability = np.exp(log_softmax(batch.lls, batch.offsets))
    right = gold_weight(batch, probability, "brier_score")
    squares = segment_sum(probability**2, batch.offsets)
    return scalar_scores(np.maximum(squares - 2 * right + 1.0, 0.0))


@metric(
    "perplexity",
    style="choices",
    output_type=ANY_LL,
    aggregation="perplexity",
    higher_is_better=False,
    bounds=POSITIVE,
    source=HARNESS,
)
def perplexity(batch: ChoiceBatch) -> Scores:
    """exp(-mean log-likelihood of the right continuation) over items; the item's number is the
    log-likelihood."""
    return scalar_scores(gold_weight(batch, batch.lls, "perplexity"))


@metric(
    "word_perplexity",
    style="choices",
    output_type=ROLLING,
    aggregation="weighted_perplexity",
    higher_is_better=False,
    bounds=POSITIVE,
    source=HARNESS,
)
def word_perplexity(batch: ChoiceBatch) -> Scores:
    """exp(-Σ log-likelihood / Σ words) over documents; words are what whitespace separates."""
    return _per_unit(batch, batch.words, lambda a, b: np.exp(-a / b))


@metric(
    "byte_perplexity",
    style="choices",
    output_type=ROLLING,
    aggregation="weighted_perplexity",
    higher_is_better=False,
    bounds=POSITIVE,
    source=HARNESS,
)
def byte_perplexity(batch: ChoiceBatch) -> Scores:
    """exp(-Σ log-likelihood / Σ UTF-8 bytes) over documents."""
    return _per_unit(batch, batch.bytes, lambda a, b: np.exp(-a / b))


@metric(
    "bits_per_byte",
    style="choices",
    output_type=ROLLING,
    aggregation="bits_per_byte",
    higher_is_better=False,
    bounds=POSITIVE,
    source=HARNESS,
)
def bits_per_byte(batch: ChoiceBatch) -> Scores:
    """-Σ log-likelihood / Σ UTF-8 bytes / ln 2 over documents."""
    return _per_unit(batch, batch.bytes, lambda a, b: -a / b / math.log(2))


def _per_unit(batch: ChoiceBatch, lengths: Ints, finish: Callable[[Floats, Floats], Floats]) -> Scores:
    ll = segment_sum(batch.lls, batch.offsets)
    units = segment_sum(lengths.astype(np.float64), batch.offsets)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        score = np.asarray(finish(ll, units), dtype=np.float64)
    return Scores(statistics=np.column_stack([ll, units]), values=None, score=score)
