"""Reductions that pick or summarise an item's scores: mean, take_first, extremes, median, mode, avg@k,
majority."""

import numpy as np

from metrics.errors import ConfigError
from metrics.ragged import row_of, segment_argmax
from metrics.reductions.reduction import Reduction, Repeats, reduction_factory, scored_only
from metrics.types import NO_PREDICTION, Bools, Floats, Ints


@reduction_factory("mean")
def mean() -> Reduction:
    """Mean over the scored repeats; of 0/1 scores it is pass@1. The default."""
    return Reduction("mean")


@reduction_factory("take_first", source="lm-evaluation-harness")
def take_first() -> Reduction:
    """The first repeat; unscored if that one is."""

    def pick(repeats: Repeats) -> Ints:
        full = repeats.counts > 0
        first = np.where(full, repeats.offsets[:-1], 0)
        scored = repeats.scored[first] if len(repeats.scored) else np.zeros(len(full), dtype=np.bool_)
        return np.where(full & scored, first, -1)

    return Reduction("take_first", pick=pick)


@reduction_factory("max")
def largest() -> Reduction:
    """The scored repeat with the largest score, the first of several."""
    return Reduction("max", pick=lambda repeats: _extreme(repeats, 1.0))


@reduction_factory("min")
def smallest() -> Reduction:
    """The scored repeat with the smallest score, the first of several."""
    return Reduction("min", pick=lambda repeats: _extreme(repeats, -1.0))


def _extreme(repeats: Repeats, sign: float) -> Ints:
    usable = repeats.scored & ~np.isnan(repeats.score)
    score = np.where(usable, sign * np.nan_to_num(repeats.score), -np.inf)
    place = segment_argmax(score, repeats.offsets)
    row = np.where(place >= 0, repeats.offsets[:-1] + place, -1)
    found = np.zeros(len(row), dtype=np.bool_)
    found[row >= 0] = usable[row[row >= 0]]
    return np.where(found, row, -1)


@reduction_factory("median")
def median() -> Reduction:
    """Median of the scored repeats' scores, the mean of the middle two for an even number."""

    def compute(repeats: Repeats) -> Floats:
        scored = scored_only(repeats)
        order = np.lexsort((scored.score, row_of(scored.offsets)))
        ranked = scored.score[order]
        full = scored.counts > 0
        middle = np.full(len(scored), np.nan)
        low = (scored.offsets[:-1] + (scored.counts - 1) // 2)[full]
        high = (scored.offsets[:-1] + scored.counts // 2)[full]
        with np.errstate(invalid="ignore"):
            middle[full] = (ranked[low] + ranked[high]) / 2
        return middle

    return Reduction("median", compute=compute)


@reduction_factory("mode")
def mode() -> Reduction:
    """The most frequent score among the scored repeats; of equally frequent ones the one that comes first."""

    def pick(repeats: Repeats) -> Ints:
        codes = np.unique(repeats.score, return_inverse=True)[1].astype(np.int64).reshape(-1)
        return _most_frequent(codes, repeats.scored, repeats.offsets)

    return Reduction("mode", pick=pick)


@reduction_factory("avg@k")
def average_at_k(*, k: int) -> Reduction:
    """Mean over the first k repeats; unscored if one of them is."""
    _positive("avg@k", k)

    def compute(repeats: Repeats) -> Floats:
        first, complete = _first_k(repeats, k)
        own = np.where(first, repeats.score, 0.0)[_rows(repeats, k)]
        with np.errstate(invalid="ignore"):
            return np.where(complete, own.sum(1) / k, np.nan)

    return Reduction(f"avg@{k}", requires=k, compute=compute)


@reduction_factory("majority")
def majority() -> Reduction:
    """Score of the first repeat that holds the most frequent prediction; ties go to the one that comes first.

    A repeat without a prediction has no vote; if none has one, the first repeat's score counts.
    """
    return Reduction("majority", pick=lambda repeats: _vote(repeats, repeats.scored))


@reduction_factory("maj@k", source="Wang et al. 2022, self-consistency")
def majority_at_k(*, k: int) -> Reduction:
    """As ``majority``, over the first k repeats; unscored if one of them is."""
    _positive("maj@k", k)

    def pick(repeats: Repeats) -> Ints:
        first, complete = _first_k(repeats, k)
        return np.where(complete, _vote(repeats, first), -1)

    return Reduction(f"maj@{k}", requires=k, pick=pick)


def _vote(repeats: Repeats, eligible: Bools) -> Ints:
    winner = _most_frequent(repeats.codes, eligible & (repeats.codes != NO_PREDICTION), repeats.offsets)
    fallback = _most_frequent(np.zeros_like(repeats.codes), eligible, repeats.offsets)
    return np.where(winner >= 0, winner, fallback)


def _most_frequent(codes: Ints, eligible: Bools, offsets: Ints) -> Ints:
    """Row of the first sample holding each item's most frequent code (n,); -1 without an eligible sample."""
    rows = np.flatnonzero(eligible)
    winner = np.full(len(offsets) - 1, -1, dtype=np.int64)
    if len(rows) == 0:
        return winner
    items = row_of(offsets)[rows]
    order = np.lexsort((rows, codes[rows], items))  # runs of equal predictions, each in order of appearance
    item, code, row = items[order], codes[rows][order], rows[order]
    starts = np.flatnonzero(np.concatenate([[True], (item[1:] != item[:-1]) | (code[1:] != code[:-1])]))
    votes = np.diff(np.append(starts, len(row)))
    best = np.lexsort((row[starts], -votes, item[starts]))  # per item: most votes, then first appearance
    run_item = item[starts][best]
    leading = np.concatenate([[True], run_item[1:] != run_item[:-1]])
    winner[run_item[leading]] = row[starts][best][leading]
    return winner


def _first_k(repeats: Repeats, k: int) -> tuple[Bools, Bools]:
    """Which rows are among their item's first k and scored (m,), and which items have k such rows (n,)."""
    place = np.arange(len(repeats.score)) - repeats.offsets[row_of(repeats.offsets)]
    first = (place < k) & repeats.scored
    counted = np.bincount(row_of(repeats.offsets)[first], minlength=len(repeats))
    return first, counted == k


def _rows(repeats: Repeats, k: int) -> Ints:
    """Row numbers of each item's first k repeats (n, k), clipped to rows that exist."""
    last = max(len(repeats.score) - 1, 0)
    return np.asarray(np.minimum(repeats.offsets[:-1, None] + np.arange(k), last))


def _positive(name: str, k: int) -> None:
    if k < 1:
        raise ConfigError(f"{name}: k must be at least 1, not {k}")
