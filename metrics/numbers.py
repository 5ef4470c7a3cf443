"""Aggregations of plain numbers and of (a, b) pairs: means, perplexities, quantiles, extremes, counts."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation, Count, Total, aggregation_factory, as_column, require_pairs
from metrics.errors import ConfigError, MetricError
from metrics.statistics.rules import ExpOfMeanRule, MeanRule, NoErrorBar, QuantileRule, SumRule
from metrics.types import Bools, Floats, Scores, Values

HARNESS = "lm-evaluation-harness"


def _mean(total: Total, n: Count) -> Floats:
    return np.asarray(total[..., 0] / n)


@aggregation_factory("mean", source="closed form")
def mean() -> Aggregation:
    """Mean of the items' numbers; 0/1 scores get a Wilson interval."""
    return Aggregation("mean", compute=_mean, encode=as_column, rule=MeanRule())


@aggregation_factory("pass_rate", source="closed form")
def pass_rate() -> Aggregation:
    """Share of items whose number is above zero."""

    def passed(score: Floats) -> Floats:
        return as_column(np.where(np.isnan(score), np.nan, score > 0))

    return Aggregation("pass_rate", compute=_mean, encode=passed, rule=MeanRule(), bounds=(0.0, 1.0))


@aggregation_factory("nanmean", source=HARNESS)
def nanmean() -> Aggregation:
    """Mean of the numbers that are finite; items whose number is NaN, ∞ or -∞ do not count, and the result
    says how many they are."""

    def split(score: Floats) -> Floats:
        finite = np.isfinite(score)
        return np.column_stack([np.where(finite, score, 0.0), finite.astype(np.float64)])

    def odd(table: Floats) -> Bools:
        return np.asarray(table[:, 1] == 0)

    return Aggregation("nanmean", k=2, compute=_ratio, encode=split, leaves_out=odd, proportional=True)


@aggregation_factory(
    "sum",
    span="n times the metric's",
)
def total() -> Aggregation:
    """Sum of the items' numbers."""
    return Aggregation("sum", compute=lambda t, n: t[..., 0], encode=as_column, rule=SumRule())


@aggregation_factory(
    "count",
    span="0 to ∞",
)
def count() -> Aggregation:
    """Number of items that have a score."""
    return Aggregation(
        "count", compute=lambda t, n: np.zeros_like(t[..., 0]) + n, encode=as_column, rule=NoErrorBar()
    )


@aggregation_factory(
    "perplexity",
    source=HARNESS,
    takes="a log-likelihood in nats",
    span="1 to ∞",
)
def perplexity() -> Aggregation:
    """exp(-mean) of log-likelihoods in nats; at least 1 for log-likelihoods of text."""
    return Aggregation(
        "perplexity",
        compute=lambda t, n: np.exp(-t[..., 0] / n),
        point=lambda t, n: _exp(-float(t[0]) / n),
        encode=as_column,
        rule=ExpOfMeanRule(),
        bounds=(0.0, math.inf),
        higher_is_better=False,
    )


@aggregation_factory(
    "bypass",
    source=HARNESS,
    span="999",
)
def bypass() -> Aggregation:
    """The constant 999: a benchmark that only wants its responses."""
    return Aggregation(
        "bypass", compute=lambda t, n: t[..., 0] * 0 + 999.0, encode=as_column, rule=NoErrorBar()
    )


def _ratio(total: Total, n: Count) -> Floats:
    """Σa / Σb; NaN where the weights add up to 0."""
    weight = np.where(total[..., 1] == 0, np.nan, total[..., 1])
    return np.asarray(total[..., 0] / weight)


def _read_pairs(name: str, finish: Any) -> Any:
    def read(values: Sequence[Any]) -> Scores:
        require_pairs(values, name, "(a, b)")
        statistics = np.asarray(values, dtype=np.float64).reshape(-1, 2)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return Scores(statistics=statistics, values=None, score=np.asarray(finish(statistics, 1.0)))

    return read


def _weighted_perplexity(total: Total, n: Count) -> Floats:
    return np.asarray(np.exp(-_ratio(total, n)))


def _exp(power: float) -> float:
    """e to a power by the C library, as the harness has it: numpy's may differ in the last bit."""
    try:
        return math.exp(power)
    except OverflowError:
        return math.inf


def _weighted_perplexity_of(total: Floats, n: float) -> float:
    return _exp(-float(_ratio(total, n)))


def _bits(total: Total, n: Count) -> Floats:
    return np.asarray(-_ratio(total, n) / math.log(2))


@aggregation_factory(
    "weighted_mean",
    source=HARNESS,
    takes="a pair (number × weight, weight)",
    example=((1, 2), (3, 4)),
)
def weighted_mean() -> Aggregation:
    """Σa / Σb over pairs (a, b), the harness's: a is the number times its weight b."""
    return Aggregation(
        "weighted_mean",
        k=2,
        compute=_ratio,
        weight=(1,),
        read=_read_pairs("weighted_mean", _ratio),
        proportional=True,
    )


@aggregation_factory(
    "weighted_perplexity",
    source=HARNESS,
    takes="a pair (log-likelihood in nats, number of words or bytes)",
    example=((-1, 2), (-3, 4)),
    span="1 to ∞",
)
def weighted_perplexity() -> Aggregation:
    """exp(-Σa / Σb) over pairs (log-likelihood in nats, number of words or bytes)."""
    return Aggregation(
        "weighted_perplexity",
        k=2,
        compute=_weighted_perplexity,
        point=_weighted_perplexity_of,
        read=_read_pairs("weighted_perplexity", _weighted_perplexity),
        weight=(1,),
        bounds=(0.0, math.inf),
        higher_is_better=False,
    )


@aggregation_factory(
    "bits_per_byte",
    source=HARNESS,
    takes="a pair (log-likelihood in nats, number of bytes)",
    example=((-1, 2), (-3, 4)),
    span="0 to ∞",
)
def bits_per_byte() -> Aggregation:
    """-Σa / Σb / ln 2 over pairs (log-likelihood in nats, number of bytes)."""
    return Aggregation(
        "bits_per_byte",
        k=2,
        compute=_bits,
        weight=(1,),
        read=_read_pairs("bits_per_byte", _bits),
        higher_is_better=False,
    )


def _quantile(name: str, q: float) -> Aggregation:
    def combine(values: Values) -> float:
        column = np.asarray(values, dtype=np.float64)
        if np.isfinite(column).all():
            return _finite_quantile(column, q)
        return _infinite_quantile(column, q) if not np.isnan(column).any() else math.nan

    return Aggregation(name, kind="values", combine=combine, encode=as_column, rule=QuantileRule(q))


def _finite_quantile(column: Floats, q: float) -> float:
    """``np.quantile`` of one column to the last bit, in a tenth of its time: resampling asks it of few items
    some thousand times."""
    rank = (len(column) - 1) * q
    place = math.floor(rank)
    above = min(place + 1, len(column) - 1)
    ordered = np.partition(column, (place, above))
    low, high, share = float(ordered[place]), float(ordered[above]), rank - place
    return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share


def _infinite_quantile(column: Floats, q: float) -> float:
    """The quantile where some values are infinite; NumPy's interpolation multiplies infinity by 0 there."""
    rank = (len(column) - 1) * q
    ordered, share = np.sort(column), rank - math.floor(rank)
    low, high = float(ordered[math.floor(rank)]), float(ordered[math.ceil(rank)])
    return low if low == high or share == 0 else low * (1 - share) + high * share


@aggregation_factory("median")
def median() -> Aggregation:
    """The true median: the mean of the middle two where the count is even."""
    return _quantile("median", 0.5)


@aggregation_factory("percentile")
def percentile(*, q: float = 50.0) -> Aggregation:
    """The q-th percentile, 0 to 100, linear between order statistics; also written percentile@90."""
    if not isinstance(q, (int, float)) or not 0 <= q <= 100:
        raise ConfigError(f"percentile: q must be a number from 0 to 100, not {q!r}")
    return _quantile(f"percentile@{q:g}", q / 100)


@aggregation_factory("min")
def smallest() -> Aggregation:
    """Smallest of the items' numbers; no error bar, since none is sound."""
    return Aggregation(
        "min", kind="values", combine=lambda v: float(np.min(v)), encode=as_column, rule=NoErrorBar()
    )


@aggregation_factory("max")
def largest() -> Aggregation:
    """Largest of the items' numbers; no error bar, since none is sound."""
    return Aggregation(
        "max", kind="values", combine=lambda v: float(np.max(v)), encode=as_column, rule=NoErrorBar()
    )


@aggregation_factory(
    "brier_score",
    source=HARNESS,
    takes="a number, or a pair (gold, probabilities)",
)
def brier_score() -> Aggregation:
    """Mean over items of Σ (p - one-hot gold)², read from numbers or from pairs (gold, probabilities)."""

    def read(values: Sequence[Any]) -> Scores:
        score = np.array(
            [_squared_error(value, index) for index, value in enumerate(values)], dtype=np.float64
        )
        return Scores(statistics=as_column(score), values=None, score=score)

    return Aggregation(
        "brier_score",
        compute=_mean,
        encode=as_column,
        read=read,
        rule=MeanRule(),
        bounds=(0.0, 2.0),
        higher_is_better=False,
    )


def _squared_error(value: Any, index: int) -> float:
    if isinstance(value, (int, float, np.number)):
        return float(value)
    try:
        gold, probabilities = value
        residual = np.asarray(probabilities, dtype=np.float64).copy()
        residual[int(gold)] -= 1.0
    except (TypeError, ValueError, IndexError):
        raise MetricError(
            f"brier_score takes a number or a pair (gold, probabilities), and sample {index} has {value!r}",
            index,
        ) from None
    return float(np.sum(residual**2))
