"""Krippendorff's alpha: how far raters agree beyond chance, as an aggregation over items."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from metrics.aggregations.aggregation import Aggregation, Count, Total
from metrics.errors import ConfigError, MetricError
from metrics.types import Floats, Scores

Unit = Sequence[float | None]
"""The raters' grades of one sample; None where a rater gave none."""


NAME, BOUNDS = "krippendorff_alpha", (-1.0, 1.0)


def krippendorff_alpha(*, level: Literal["nominal", "interval"] = "nominal") -> Aggregation:
    """Krippendorff's alpha: 1 is full agreement, 0 what chance gives, below 0 systematic disagreement.

    An item's value is a list of units, each the grades of one sample. ``level`` nominal: grades are equal or
    not; interval: their squared difference counts. NaN where all grades are the same, since chance then
    agrees as well. Source: Krippendorff (2011), Computing Krippendorff's alpha-reliability.
    """
    if level not in ("nominal", "interval"):
        raise ConfigError(f"krippendorff_alpha: level is nominal or interval, not {level!r}")
    return Aggregation(
        NAME,
        kind="values",
        read=_read_units,
        tabulate=_nominal_table if level == "nominal" else _interval_table,
        merge=_merged,
        bounds=BOUNDS,
        parameters={"level": level},
    )


def _nominal_table(values: Sequence[Any] | Floats) -> tuple[Aggregation, Floats]:
    """Per item: observed disagreement, grades, and how often each grade was given."""
    grades = sorted({grade for item in values for unit in _rated(item) for grade in unit})
    column = {grade: place for place, grade in enumerate(grades)}
    table = np.zeros((len(values), 2 + len(grades)))
    for row, item in enumerate(values):
        for unit in _rated(item):
            counts = np.bincount([column[grade] for grade in unit], minlength=len(grades))
            n = len(unit)
            table[row, 0] += (n * n - int((counts**2).sum())) / (n - 1)
            table[row, 1] += n
            table[row, 2:] += counts

    def compute(total: Total, n: Count) -> Floats:
        rated, by_grade = total[..., 1], total[..., 2:]
        return _alpha(total[..., 0], (rated**2 - (by_grade**2).sum(axis=-1)) / (rated - 1))

    return Aggregation(NAME, k=table.shape[1], compute=compute, bounds=BOUNDS), table


def _interval_table(values: Sequence[Any] | Floats) -> tuple[Aggregation, Floats]:
    """Per item: observed disagreement, grades, their sum and their sum of squares."""
    # Differences do not depend on the origin, and sums of squares lose fewer digits around the mean.
    everything = [grade for item in values for unit in _rated(item) for grade in unit]
    origin = float(np.mean(everything)) if everything else 0.0
    table = np.zeros((len(values), 4))
    for row, item in enumerate(values):
        for unit in _rated(item):
            grades = np.asarray(unit) - origin
            n, plain, squares = len(unit), float(grades.sum()), float((grades**2).sum())
            table[row] += [2 * (n * squares - plain**2) / (n - 1), n, plain, squares]

    def compute(total: Total, n: Count) -> Floats:
        rated, plain, squares = total[..., 1], total[..., 2], total[..., 3]
        return _alpha(total[..., 0], 2 * (rated * squares - plain**2) / (rated - 1))

    return Aggregation(NAME, k=4, compute=compute, bounds=BOUNDS), table


def _alpha(observed: Floats, expected: Floats) -> Floats:
    # Rounding leaves a trace of "expected" where all grades are equal.
    varied = expected > 1e-9
    return np.asarray(np.where(varied, 1 - observed / np.where(varied, expected, 1.0), np.nan))


def _rated(item: Sequence[Unit]) -> list[list[float]]:
    """Units with the grades there are; one grade alone agrees with nothing."""
    units = [[float(grade) for grade in unit if grade is not None] for unit in item]
    return [unit for unit in units if len(unit) > 1]


def _read_units(values: Sequence[Any]) -> Scores:
    for index, value in enumerate(values):
        if not isinstance(value, Sequence) or not all(isinstance(unit, Sequence) for unit in value):
            raise MetricError(
                f"krippendorff_alpha takes a list of units a sample, and sample {index} has {value!r}", index
            )
    score = np.array([_pairs_in_agreement(value) for value in values], dtype=np.float64)
    return Scores(statistics=None, values=list(values), score=score)


def _pairs_in_agreement(item: Sequence[Unit]) -> float:
    """Share of the pairs of raters that gave the same grade: what people see of one sample; NaN without a
    pair."""
    shares = [
        sum(count * (count - 1) for count in Counter(unit).values()) / (len(unit) * (len(unit) - 1))
        for unit in _rated(item)
    ]
    return sum(shares) / len(shares) if shares else np.nan


def _merged(values: Sequence[Any]) -> list[Unit]:
    """Repeats of an item are units of their own."""
    return [unit for item in values for unit in item]
