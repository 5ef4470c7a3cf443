"""Accuracies from log-likelihoods of choices."""

import numpy as np

from metrics.choices import accuracy, blanked, per_length
from metrics.errors import MetricError
from metrics.ragged import row_of, segment_any
from metrics.registry import metric
from metrics.types import IGNORED_TARGET, ChoiceBatch, Scores, scalar_scores

CHOICE_TYPES = ("multiple_choice", "loglikelihood")
HARNESS = "lm-evaluation-harness"
SINGLE = {"loglikelihood": "acc_greedy"}
"""What an accuracy means where there is nothing to choose from."""


@metric("acc", style="choices", output_type=CHOICE_TYPES, variants=SINGLE, source=HARNESS)
def acc(batch: ChoiceBatch) -> Scores:
    """1 if the choice with the highest log-likelihood is right; of a loglikelihood: if it was greedy."""
    return scalar_scores(accuracy(batch, batch.lls))


@metric("acc_norm", style="choices", output_type=CHOICE_TYPES, variants=SINGLE, source=HARNESS)
def acc_norm(batch: ChoiceBatch) -> Scores:
    """As acc, by log-likelihood per character of the choice."""
    return scalar_scores(accuracy(batch, per_length(batch.lls, batch.chars)))


@metric("acc_bytes", style="choices", output_type=CHOICE_TYPES, variants=SINGLE, source=HARNESS)
def acc_bytes(batch: ChoiceBatch) -> Scores:
    """As acc, by log-likelihood per UTF-8 byte of the choice."""
    return scalar_scores(accuracy(batch, per_length(batch.lls, batch.bytes)))


@metric("acc_mutual_info", style="choices", output_type="multiple_choice", source=HARNESS)
def acc_mutual_info(batch: ChoiceBatch) -> Scores:
    """As acc, by log-likelihood minus that of the choice without context.

    Raises ``MetricError`` without unconditional log-likelihoods of the same choices.
    """
    if batch.unconditional is None:
        raise MetricError("acc_mutual_info needs the choices' log-likelihoods without context, and has none")
    if len(batch.unconditional) != len(batch.lls):
        raise MetricError(
            f"acc_mutual_info needs as many unconditional log-likelihoods as conditional ones "
            f"({len(batch.lls)}), and has {len(batch.unconditional)}"
        )
    with np.errstate(invalid="ignore"):
        return scalar_scores(accuracy(batch, batch.lls - batch.unconditional))


@metric("exact_match_mc", style="choices", output_type="multiple_choice", source=HARNESS)
def exact_match_mc(batch: ChoiceBatch) -> Scores:
    """1 if a right choice is what greedy decoding would have produced."""
    counts = np.diff(batch.offsets)
    rows = row_of(batch.gold_offsets)
    inside = (batch.gold != IGNORED_TARGET) & (batch.gold >= 0) & (batch.gold < counts[rows])
    place = np.where(inside, batch.offsets[:-1][rows] + batch.gold, 0)
    greedy = inside & (batch.is_greedy[place] if len(batch.is_greedy) else False)
    score = segment_any(greedy, batch.gold_offsets).astype(np.float64)
    return scalar_scores(blanked(batch, score, batch.lls))


@metric("acc_greedy", style="choices", output_type="loglikelihood", source=HARNESS)
def acc_greedy(batch: ChoiceBatch) -> Scores:
    """1 if greedy decoding would have produced the continuation: what ``acc`` means for a loglikelihood."""
    score = segment_any(batch.is_greedy, batch.offsets).astype(np.float64)
    return scalar_scores(blanked(batch, score, batch.lls))
