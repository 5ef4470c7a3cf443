"""What the intervals of judged rates cover: ``python -m bench.judges`` prints their table.

As ``bench/coverage.py`` does for single numbers. People's verdicts are a random sample of answers such as the
items', which prediction-powered inference needs; error rates are the same on both, which correction by rates
needs.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from bench.coverage import HIGH, LOW
from metrics.types import Estimate
from scorers.judge.calibration import Calibration, Labelled, corrected_estimate, ppi_estimate

ROUNDS = 4_000
LEVEL = 0.95
FIVE = (1.0, 5.0)
Rng = np.random.Generator


@dataclass(frozen=True)
class Setting:
    """One line of a table: what is drawn and estimated, and the truth. ``discrete``: coverage may be above
    the upper bound."""

    family: str
    name: str
    truth: float
    draw: Callable[[Rng], Estimate]
    discrete: bool = False


@dataclass(frozen=True)
class Coverage:
    """Shares of the data sets: intervals that hold the truth, data sets that give none, rows that warn, and
    of those that miss the truth; ``silent`` give no interval and say nothing."""

    setting: Setting
    covered: float
    without: float
    warned: float
    warned_misses: float = 0.0
    silent: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether the coverage is within the bounds, two Monte Carlo errors wider."""
        noise = 2 * math.sqrt(0.95 * 0.05 / ROUNDS)
        above = not self.setting.discrete and self.covered > HIGH + noise
        return (self.covered >= LOW - noise and not above) or self.warned_misses >= 0.95


def measure(setting: Setting) -> Coverage:
    """Asks for the interval of each data set; those that give none do not count."""
    rng = np.random.default_rng(20261)
    inside = given = warned = told = silent = 0
    for _ in range(ROUNDS):
        made = setting.draw(rng)
        warned += made.warning is not None
        if math.isfinite(made.ci_low):
            given += 1
            covers = made.ci_low - 1e-12 <= setting.truth <= made.ci_high + 1e-12
            inside += covers
            told += made.warning is not None and not covers
        else:
            silent += made.warning is None
    shares = inside / max(given, 1), 1 - given / ROUNDS, warned / ROUNDS, told / max(given - inside, 1)
    return Coverage(setting, *shares, silent / ROUNDS)


def verdicts(rng: Rng, n: int, rate: float, found: float, rejected: float) -> tuple[Any, Any]:
    """The truth of n answers, and what a judge says that finds so many right ones and rejects so many wrong
    ones."""
    right = rng.random(n) < rate
    said = np.where(right, rng.random(n) < found, rng.random(n) >= rejected)
    return right.astype(np.float64), said.astype(np.float64)


def grades(rng: Rng, n: int, level: float, bias: float, noise: float) -> tuple[Any, Any]:
    """People's grades from 1 to 5 of n answers, and those of a judge that is biased and noisy."""
    latent = rng.normal(level, 1, n)
    moved = latent + bias + rng.normal(0, noise, n)
    return np.clip(np.rint(latent), *FIVE), np.clip(np.rint(moved), *FIVE)


def mean_grade(level: float) -> float:
    """The mean of people's grades."""
    ends, normal = [-math.inf, 1.5, 2.5, 3.5, 4.5, math.inf], NormalDist(level, 1)
    shares = [normal.cdf(high) - normal.cdf(low) for low, high in pairwise(ends)]
    return math.fsum(grade * share for grade, share in enumerate(shares, start=1))


def of_people() -> Iterator[Setting]:
    """Prediction-powered rates and mean grades; m answers that people judged, n items."""
    for rate, found, rejected, m, n in (
        (0.5, 0.9, 0.8, 100, 500), (0.85, 0.9, 0.8, 100, 500), (0.97, 0.95, 0.8, 100, 500),
        (0.9, 0.95, 0.9, 50, 1000), (0.7, 0.95, 0.2, 200, 500), (0.6, 0.5, 0.5, 100, 500),
        (0.5, 0.9, 0.8, 30, 200), (0.8, 0.98, 0.98, 50, 500), (0.9, 0.9, 0.8, 20, 300),
    ):  # fmt: skip

        def rated(rng: Rng, own: Any = (rate, found, rejected), m: int = m, n: int = n) -> Estimate:
            labelled = Labelled.of(*verdicts(rng, m, *own))
            return ppi_estimate(labelled, verdicts(rng, n, *own)[1], None, LEVEL)

        name = f"rate {rate}, judge {found} / {rejected}, m {m}, n {n}"
        yield Setting("PPI, verdicts", name, rate, rated, discrete=m <= 50)
    for level, bias, noise, m, n in (
        (3.0, 0.5, 0.5, 100, 500), (4.5, 0.5, 0.5, 100, 500), (3.0, 0.0, 2.0, 50, 500),
        (5.0, 0.2, 0.5, 50, 300), (3.0, 0.5, 0.3, 25, 200), (5.5, 0.5, 0.5, 30, 300),
    ):  # fmt: skip

        def graded(rng: Rng, own: Any = (level, bias, noise), m: int = m, n: int = n) -> Estimate:
            labelled = Labelled.of(*grades(rng, m, *own), FIVE)
            return ppi_estimate(labelled, grades(rng, n, *own)[1], None, LEVEL)

        name = f"mean {mean_grade(level):.2f}, bias {bias}, noise {noise}, m {m}, n {n}"
        yield Setting("PPI, grades 1 to 5", name, mean_grade(level), graded)


def of_rates() -> Iterator[Setting]:
    """Rates corrected by sensitivity and specificity, of m right and m wrong answers."""
    for rate, found, rejected, m, n in (
        (0.2, 0.9, 0.8, 100, 200), (0.5, 0.9, 0.8, 100, 200), (0.85, 0.9, 0.8, 100, 200),
        (0.7, 0.95, 0.6, 50, 500), (0.9, 0.98, 0.95, 30, 300), (0.5, 0.8, 0.7, 200, 1000),
        (0.7, 0.6, 0.6, 20, 500), (0.7, 0.6, 0.6, 42, 500), (0.7, 0.6, 0.6, 100, 500),
        (0.8, 0.65, 0.65, 20, 1000), (0.8, 0.65, 0.65, 42, 1000), (0.8, 0.65, 0.65, 100, 1000),
    ):  # fmt: skip

        def corrected(rng: Rng, own: Any = (rate, found, rejected), m: int = m, n: int = n) -> Estimate:
            known = Calibration(m, int(rng.binomial(m, own[1])), m, int(rng.binomial(m, own[2])))
            return corrected_estimate(known, verdicts(rng, n, *own)[1], None, LEVEL)

        name = f"rate {rate}, judge {found} / {rejected}, m {m}, n {n}"
        yield Setting("error rates", name, rate, corrected, discrete=rate == 0.9)


def settings() -> list[Setting]:
    """All settings of the tables."""
    return [*of_people(), *of_rates()]


def table(measured: list[Coverage]) -> str:
    """The published table, in Markdown."""
    lines = ["| number | setting | covered | no interval | rows that warn | warned where missed |"]
    lines += ["|---" * 6 + "|"]
    lines += [
        f"| {one.setting.family} | {one.setting.name} | {one.covered:.3f} | {one.without:.1%} | "
        f"{one.warned:.1%} | {one.warned_misses:.0%} |"
        for one in measured
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([measure(setting) for setting in settings()]), flush=True)
