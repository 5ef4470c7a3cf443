"""Accuracies of multiple choice: the choice of largest weight, and whether it is right.

The weight is the log-likelihood, alone or per character, per byte, or without context.
``metrics.classification`` and ``perplexity`` beside it take the chosen and the right choices from here.
"""

import numpy as np

from metrics.errors import MetricError
from metrics.ragged import row_of, segment_any, segment_argmax, segment_counts, segment_max, segment_sum
from metrics.registry import metric
from metrics.types import IGNORED_TARGET, Bools, ChoiceBatch, Floats, Ints, Scores, scalar_scores

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
    flags = known_greedy("exact_match_mc", batch)
    greedy = inside & (flags[place] if len(flags) else False)
    score = segment_any(greedy, batch.gold_offsets).astype(np.float64)
    return scalar_scores(nan_where_undefined(batch, score, batch.lls))


@metric("acc_greedy", style="choices", output_type="loglikelihood", source=HARNESS)
def acc_greedy(batch: ChoiceBatch) -> Scores:
    """1 if greedy decoding would have produced the continuation: what ``acc`` means for a loglikelihood."""
    score = segment_any(known_greedy("acc", batch), batch.offsets).astype(np.float64)
    return scalar_scores(nan_where_undefined(batch, score, batch.lls))


def known_greedy(name: str, batch: ChoiceBatch) -> Bools:
    """What greedy decoding would have produced, choice by choice; MetricError with the first item of which
    it is not known."""
    if batch.greedy_unknown is not None and batch.greedy_unknown.any():
        raise MetricError(
            f"{name} needs is_greedy, and the recorded response has none; add it to the record, or leave the "
            "metric out",
            int(np.flatnonzero(batch.greedy_unknown)[0]),
        )
    return batch.is_greedy


def choice_of_largest(batch: ChoiceBatch, weights: Floats) -> Ints:
    """Index of each item's choice with the largest weight (n,); ties go to the first."""
    return segment_argmax(weights, batch.offsets)


def is_right(batch: ChoiceBatch, choice: Ints) -> Bools:
    """Whether each item's ``choice`` (n,) is one of its acceptable ones (n,)."""
    gold = batch.gold
    if len(gold) == len(choice) and bool((np.diff(batch.gold_offsets) == 1).all()):
        return np.asarray((choice == gold) & (gold != IGNORED_TARGET))
    hits = (np.repeat(choice, np.diff(batch.gold_offsets)) == gold) & (gold != IGNORED_TARGET)
    return segment_any(hits, batch.gold_offsets)


def accuracy(batch: ChoiceBatch, weights: Floats) -> Floats:
    """1 where the choice of largest weight is right, else 0; NaN where a weight is NaN."""
    score = is_right(batch, choice_of_largest(batch, weights)).astype(np.float64)
    return nan_where_undefined(batch, score, weights)


def nan_where_undefined(batch: ChoiceBatch, score: Floats, weights: Floats) -> Floats:
    """``score`` with NaN for items that have a NaN among their weights, or no choice at all."""
    if np.isnan(weights.sum()) if len(weights) else False:
        score = np.where(segment_any(np.isnan(weights), batch.offsets), np.nan, score)
    return np.where(np.diff(batch.offsets) > 0, score, np.nan)


def per_length(lls: Floats, lengths: Ints) -> Floats:
    """Log-likelihoods over lengths; an empty choice keeps 0 where its log-likelihood is 0, else has -inf."""
    if len(lengths) and lengths.min() > 0:
        return np.asarray(lls / lengths)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((lengths == 0) & (lls == 0), 0.0, lls / lengths)


def gold_weight(batch: ChoiceBatch, weights: Floats, name: str) -> Floats:
    """The weight of each item's right choice (n,), of several the first; NaN where there is none.

    A single continuation is its own right choice. Raises ``MetricError`` for an index outside the choices.
    """
    counts = np.diff(batch.offsets)
    place = np.where(counts == 1, 0, first_gold(batch))
    outside = np.flatnonzero((place >= counts) | (place < IGNORED_TARGET))
    if len(outside):
        row = int(outside[0])
        raise MetricError(
            f"{name}: item {row} has the target {int(place[row])} among {int(counts[row])} choices", row
        )
    known = (place >= 0) & (counts > 0)
    weight = np.full(len(batch), np.nan)
    weight[known] = weights[batch.offsets[:-1][known] + place[known]]
    return weight


def first_gold(batch: ChoiceBatch) -> Ints:
    """The first acceptable index of each item that is not ignored (n,); -100 where there is none."""
    usable = batch.gold != IGNORED_TARGET
    counts = segment_counts(usable, batch.gold_offsets)
    first = np.full(len(batch), IGNORED_TARGET, dtype=np.int64)
    if len(batch.gold):
        rows = row_of(batch.gold_offsets)[usable]
        first[rows[::-1]] = batch.gold[usable][::-1]  # the last assignment, the first of each item, stays
    return np.where(counts > 0, first, IGNORED_TARGET)


def log_softmax(weights: Floats, offsets: Ints) -> Floats:
    """Log-probabilities (m,) of weights as logits within each item; stable for any finite weights."""
    counts = np.diff(offsets)
    largest = segment_max(weights, offsets)
    shift = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        total = shift + np.log(segment_sum(np.exp(weights - np.repeat(shift, counts)), offsets))
        return np.asarray(weights - np.repeat(total, counts))
