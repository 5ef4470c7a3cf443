"""What the intervals cover: ``python -m bench.coverage [ROUNDS [FAMILY …]]`` prints the table of
docs/statistics.md.

Each setting draws data sets with a fixed seed, asks for the default interval of each, and looks whether the
truth lies inside. ``make test-slow`` holds the bounds.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation, build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.estimate import estimate
from metrics.types import Floats
from tasks.reduction.estimators import quantile_of_samples

ROUNDS = 10_000
DEFAULT = StatisticsConfig()
LOW, HIGH = 0.93, 0.985
BLOCK = 500
Rng = np.random.Generator
Draw = Callable[[Rng, int], Iterator[tuple[Any, Any, Any]]]
"""From a generator and a number of data sets to each one's statistics, values and clusters."""


@dataclass(frozen=True)
class Setting:
    """One line of the table: data of a known truth, and what is asked about them.

    ``discrete``: coverage comes in steps and may be above the upper bound. ``named``: of the audit's list.
    ``benign``: nothing is wrong with such data, and nothing must be warned about.
    """

    family: str
    name: str
    aggregation: Aggregation
    draw: Draw
    truth: float
    samples: int | None = None
    discrete: bool = False
    named: bool = False
    benign: bool = False
    rounds: int = ROUNDS
    options: StatisticsConfig = DEFAULT


@dataclass(frozen=True)
class Coverage:
    """Shares of the data sets: intervals that hold the truth, warnings, and warnings where it is missed."""

    setting: Setting
    covered: float
    warned: float
    warned_misses: float

    @property
    def noise(self) -> float:
        """Two Monte Carlo errors."""
        return 2 * math.sqrt(0.95 * 0.05 / self.setting.rounds)

    @property
    def holds(self) -> bool:
        """Whether the coverage is within the bounds."""
        above = not self.setting.discrete and self.covered > HIGH + self.noise
        return self.covered >= LOW - self.noise and not above

    @property
    def relies_on_warning(self) -> bool:
        """Whether it is not, but the data sets that miss say so."""
        return not self.holds and self.covered < LOW and self.warned_misses >= 0.95


def measure(setting: Setting) -> Coverage:
    """Ask for the interval of each data set of a setting."""
    rng = np.random.default_rng(20260)
    inside = warned = told = done = 0
    while done < setting.rounds:
        for statistics, values, clusters in setting.draw(rng, min(BLOCK, setting.rounds - done)):
            made = estimate(
                setting.aggregation, statistics, values, clusters, setting.options, samples=setting.samples
            )
            covers = made.ci_low - 1e-12 <= setting.truth <= made.ci_high + 1e-12
            inside += covers
            warned += made.warning is not None
            told += made.warning is not None and not covers
            done += 1
    missed = setting.rounds - inside
    return Coverage(setting, inside / done, warned / done, told / missed if missed else 1.0)


MEAN = build_aggregation("mean")
SHARE = replace(MEAN, bounds=(0.0, 1.0))


def _numbers(sample: Callable[[Rng, tuple[int, int]], Floats], n: int) -> Draw:
    def draw(rng: Rng, count: int) -> Iterator[tuple[Any, Any, Any]]:
        for row in np.asarray(sample(rng, (count, n)), dtype=np.float64):
            yield row.reshape(-1, 1), None, None

    return draw


def _values(sample: Callable[[Rng, tuple[int, int]], Floats], n: int) -> Draw:
    def draw(rng: Rng, count: int) -> Iterator[tuple[Any, Any, Any]]:
        for row in sample(rng, (count, n)):
            yield None, row, None

    return draw


def _pairs(sample: Callable[[Rng, tuple[int, int]], tuple[Floats, Floats]], n: int) -> Draw:
    def draw(rng: Rng, count: int) -> Iterator[tuple[Any, Any, Any]]:
        for first, second in zip(*sample(rng, (count, n)), strict=True):
            yield np.column_stack([first, second]), None, None

    return draw


def shares() -> Iterator[Setting]:
    """Right or wrong, one sample an item. Wilson's own coverage swings with p, down to .84 near 1."""
    for p in (0.5, 0.8, 0.9, 0.97, 0.99):
        for n in (5, 10, 30, 100, 1000):
            yield Setting(
                "0/1", f"p {p}, n {n}", SHARE,
                _numbers(lambda rng, shape, p=p: rng.random(shape) < p, n), p,
                samples=n, discrete=True, benign=n >= 30,
            )  # fmt: skip


def repeats() -> Iterator[Setting]:
    """Means of an item's repeats; items differ in difficulty, Beta(c p, c (1 - p))."""
    for r, p, n, c in (
        (4, 0.99, 100, 10), (16, 0.99, 100, 10), (16, 0.9, 10, 3), (16, 0.9, 30, 3), (16, 0.9, 100, 3),
        (16, 0.5, 10, 3), (16, 0.5, 100, 3), (4, 0.7, 30, 1), (4, 0.7, 1000, 1), (64, 0.8, 200, 2),
    ):  # fmt: skip

        def sample(rng: Rng, shape: Any, r: int = r, p: float = p, c: float = c) -> Floats:
            return rng.binomial(r, rng.beta(c * p, c * (1 - p), shape)) / r

        yield Setting(
            "mean of repeats", f"{r} repeats, p {p}, n {n}", SHARE, _numbers(sample, n), p, samples=r * n,
            discrete=p == 0.99, named=(r, p, n) in ((4, 0.99, 100), (16, 0.99, 100), (16, 0.9, 10)),
            benign=p < 0.9 and n >= 100,
        )  # fmt: skip


def passes() -> Iterator[Setting]:
    """pass@8 of 16 samples, items' chances uniform."""
    table = np.array([1 - math.comb(16 - c, 8) / math.comb(16, 8) for c in range(17)])
    for n in (10, 30, 100, 1000):
        yield Setting(
            "pass@8 of 16", f"n {n}", SHARE,
            _numbers(lambda rng, shape: table[rng.binomial(16, rng.random(shape))], n), 8 / 9,
            samples=16 * n, named=n <= 30,
        )  # fmt: skip


def clusters() -> Iterator[Setting]:
    """Right or wrong, 1 to 19 items a cluster, correlation 0.3 within."""
    for p, groups in (
        (0.9, 10), (0.9, 20), (0.9, 50), (0.98, 50), (0.5, 10), (0.5, 50), (0.9, 200), (0.98, 200), (0.7, 30),
        (0.7, 2), (0.7, 3), (0.9, 3), (0.9, 5), (0.99, 20),
    ):  # fmt: skip

        def draw(rng: Rng, count: int, p: float = p, groups: int = groups) -> Iterator[tuple[Any, Any, Any]]:
            for _ in range(count):
                sizes = rng.integers(1, 20, groups)
                chance = np.repeat(rng.beta(p * 7 / 3, (1 - p) * 7 / 3, groups), sizes)
                right = (rng.random(len(chance)) < chance).astype(np.float64)
                yield right.reshape(-1, 1), None, np.repeat(np.arange(groups), sizes)

        named = (p, groups) in ((0.9, 10), (0.9, 20), (0.9, 50), (0.98, 50))
        yield Setting(
            "clustered 0/1", f"p {p}, {groups} clusters", SHARE, draw, p, named=named, benign=groups >= 200,
            discrete=p >= 0.98 or groups <= 5,
        )  # fmt: skip


def _zipf(groups: int) -> Floats:
    return np.maximum(1, np.round(7 * groups / np.arange(1, groups + 1)))


def _one_holds(share: float, groups: int) -> Floats:
    sizes = np.full(groups, 10.0)
    sizes[0] = round(10 * (groups - 1) * share / (1 - share))
    return sizes


UNEVEN = {
    **{f"one of {g} has half": _one_holds(1 / 2, g) for g in (8, 20, 42, 101)},
    **{f"one of {g} has a third": _one_holds(1 / 3, g) for g in (20, 101)},
    **{f"Zipf sizes, {g}": _zipf(g) for g in (20, 42, 101)},
    "two of 42 have a third each": np.concatenate([[400.0, 400.0], np.full(40, 10.0)]),
    "lognormal sizes, 42": np.round(np.exp(2 + 1.2 * np.linspace(-2, 2, 42))),
}


def uneven_clusters() -> Iterator[Setting]:
    """Clusters of unequal size: right or wrong, and numbers."""
    for called, sizes in UNEVEN.items():
        groups = np.repeat(np.arange(len(sizes)), sizes.astype(int))
        for p, rho in ((0.7, 0.3), (0.9, 0.1), (0.0, 0.3)):

            def draw(
                rng: Rng,
                count: int,
                p: float = p,
                rho: float = rho,
                groups: Any = groups,
                g: int = len(sizes),
            ) -> Iterator[tuple[Any, Any, Any]]:
                for _ in range(count):
                    if p:
                        own = rng.beta(p * (1 / rho - 1), (1 - p) * (1 / rho - 1), g)[groups]
                        rows = (rng.random(len(groups)) < own).astype(np.float64)
                    else:
                        rows = math.sqrt(rho) * rng.normal(0, 1, g)[groups]
                        rows = rows + math.sqrt(1 - rho) * rng.normal(0, 1, len(groups))
                    yield rows.reshape(-1, 1), None, groups

            kind = f"p {p}, ρ {rho}" if p else f"numbers, ρ {rho}"
            yield Setting(
                "uneven clusters", f"{called}, {kind}", SHARE if p else MEAN, draw, p, rounds=2_000,
                discrete=True,
            )  # fmt: skip


def crossed_clusters() -> Iterator[Setting]:
    """Questions × prompts that both differ, all of them asked or every other: right or wrong, and numbers."""
    for questions, prompts, spread, whole in (
        (60, 12, (1.0, 0.3), True), (30, 30, (1.0, 1.0), True), (100, 20, (0.0, 0.0), True),
        (50, 20, (0.7, 0.7), False), (200, 40, (1.0, 0.2), False),
    ):  # fmt: skip
        scale = math.sqrt(1 + spread[0] ** 2 + spread[1] ** 2)
        for kind in ("0/1", "numbers"):

            def draw(
                rng: Rng, count: int, a: int = questions, b: int = prompts, spread: Any = spread,
                whole: bool = whole, shift: float = 0.8 * scale, cut: bool = kind == "0/1",
            ) -> Iterator[tuple[Any, Any, Any]]:  # fmt: skip
                question, prompt = np.divmod(np.arange(a * b), b)
                for _ in range(count):
                    numbers = rng.normal(0, spread[0], a)[question] + rng.normal(0, spread[1], b)[prompt]
                    numbers = numbers + shift + rng.normal(0, 1, a * b)
                    asked = np.full(a * b, True) if whole else rng.random(a * b) < 0.5
                    rows = (numbers > 0).astype(np.float64) if cut else numbers
                    yield rows[asked].reshape(-1, 1), None, np.column_stack([question, prompt])[asked]

            truth = NormalDist().cdf(0.8) if kind == "0/1" else 0.8 * scale
            called = f"{questions} × {prompts}{'' if whole else ', half asked'}, {kind}"
            if spread == (0.0, 0.0):
                called += ", alike"
            yield Setting(
                "crossed clusters", called, SHARE if kind == "0/1" else MEAN, draw, truth, rounds=4_000
            )
    yield from _one_prompt()


def _one_prompt() -> Iterator[Setting]:
    """Questions × prompts of which one has half of the items."""
    for questions, prompts, kind in ((100, 30, "0/1"), (100, 30, "numbers")):
        times = np.concatenate([[prompts - 1], np.ones(prompts - 1)]).astype(int)
        prompt = np.tile(np.repeat(np.arange(prompts), times), questions)
        question = np.repeat(np.arange(questions), times.sum())

        def draw(
            rng: Rng, count: int, question: Any = question, prompt: Any = prompt, cut: bool = kind == "0/1",
        ) -> Iterator[tuple[Any, Any, Any]]:  # fmt: skip
            for _ in range(count):
                numbers = rng.normal(0, 0.7, question.max() + 1)[question] + rng.normal(1.2, 1, len(prompt))
                numbers = numbers + rng.normal(0, 0.7, prompt.max() + 1)[prompt]
                rows = (numbers > 0).astype(np.float64) if cut else numbers
                yield rows.reshape(-1, 1), None, np.column_stack([question, prompt])

        truth = NormalDist().cdf(1.2 / math.sqrt(1.98)) if kind == "0/1" else 1.2
        yield Setting(
            "crossed clusters", f"{questions} × {prompts}, one prompt has half, {kind}",
            SHARE if kind == "0/1" else MEAN, draw, truth, rounds=1_000, discrete=True,
        )  # fmt: skip


def grades() -> Iterator[Setting]:
    """Grades from 1 to 5."""
    aggregation = replace(MEAN, bounds=(1.0, 5.0))
    top, middle = (0.0125, 0.0125, 0.0125, 0.0125, 0.95), (0.1, 0.2, 0.4, 0.2, 0.1)
    for chances, called, sizes in (
        (top, "95 % fives", (10, 30, 100, 1000)),
        (middle, "spread", (10, 30, 100)),
    ):
        for n in sizes:
            yield Setting(
                "grade 1 to 5", f"{called}, n {n}", aggregation,
                _numbers(lambda rng, shape, c=chances: rng.choice(np.arange(1.0, 6.0), shape, p=c), n),
                float(np.dot(np.arange(1, 6), chances)), samples=n, named=chances is top and n <= 100,
                discrete=n <= 30 or chances is top, benign=chances is middle and n >= 30,
            )  # fmt: skip


def texts() -> Iterator[Setting]:
    """ROUGE, a mean of numbers from 0 to 100."""
    aggregation = replace(MEAN, bounds=(0.0, 100.0))
    for n in (10, 30, 100, 300):
        yield Setting(
            "ROUGE", f"97 % zeros, n {n}", aggregation,
            _numbers(lambda rng, s: 100 * np.where(rng.random(s) < 0.97, 0.0, rng.beta(2, 2, s)), n), 1.5,
            named=n in (30, 100), discrete=True,
        )  # fmt: skip
    for n in (10, 30, 100, 1000):
        yield Setting(
            "ROUGE", f"usual, n {n}", aggregation,
            _numbers(lambda rng, s: 100 * rng.beta(3, 6, s), n), 100 / 3, benign=n >= 30,
        )  # fmt: skip


def close_together() -> Iterator[Setting]:
    """Scores close together between the ends, of which a few fail altogether: with many in the sample the
    truth lies near, with none of them the interval has to reach it."""
    for n, q in ((30, 0.03), (50, 0.02), (100, 0.02), (200, 0.01)):
        yield Setting(
            "close together", f".9 ± .03, {q:.0%} are 0, n {n}", replace(MEAN, bounds=(0.0, 1.0)),
            _numbers(lambda rng, s, q=q: (rng.random(s) >= q) * rng.normal(0.9, 0.03, s).clip(0, 1), n),
            (1 - q) * 0.9, discrete=True,
        )  # fmt: skip
    for n in (30, 60, 100):
        yield Setting(
            "close together", f"grades 8 and 9, 3% are 1, n {n}", replace(MEAN, bounds=(1.0, 10.0)),
            _numbers(lambda rng, s: rng.choice([8.0, 9.0, 1.0], s, p=[0.2, 0.77, 0.03]), n), 8.56,
            discrete=True,
        )  # fmt: skip


def error_rates() -> Iterator[Setting]:
    """Word error rates of 5 to 29 words, 10 % wrong; a hallucination adds 40 to 119 words."""

    def sample(rng: Rng, shape: Any, chance: float) -> tuple[Floats, Floats]:
        words = rng.integers(5, 30, shape)
        extra = np.where(rng.random(shape) < chance, rng.integers(40, 120, shape), 0)
        return (rng.binomial(words, 0.1) + extra).astype(np.float64), words.astype(np.float64)

    for chance, sizes in ((0.08, (10, 30, 100, 300, 1000)), (0.0, (50, 200))):
        for n in sizes:
            yield Setting(
                "WER", f"{chance:.0%} hallucinated, n {n}", build_aggregation("wer"),
                _pairs(lambda rng, s, c=chance: sample(rng, s, c), n), (1.7 + chance * 79.5) / 17,
                named=chance > 0 and n <= 100, benign=chance == 0,
            )  # fmt: skip


def likelihoods() -> Iterator[Setting]:
    """Texts of lognormal length whose longer ones are easier, and perplexities of single answers."""
    sigma, slope = 1.2, 0.25

    def sample(rng: Rng, shape: Any) -> tuple[Floats, Floats]:
        size = rng.normal(0, sigma, shape)
        weights = np.exp(5 + size)
        return -weights * (2.5 - slope * size / sigma + rng.normal(0, 0.3, shape)), weights

    rate = 2.5 - slope * sigma  # E[w x] / E[w] of a lognormal weight
    for name, truth in (("bits_per_byte", rate / math.log(2)), ("weighted_perplexity", math.exp(rate))):
        for n in (30, 100, 1000):
            yield Setting(
                name,
                f"lognormal lengths, n {n}",
                build_aggregation(name),
                _pairs(sample, n),
                truth,
                named=True,
            )
    plain = build_aggregation("perplexity")
    for n in (10, 30, 100, 1000):
        yield Setting(
            "perplexity", f"heavy tails, n {n}", plain,
            _numbers(lambda rng, s: -np.exp(rng.normal(0, 1, s)), n), math.exp(math.exp(0.5)), named=n == 10,
        )  # fmt: skip
    for n in (30, 300):
        yield Setting(
            "perplexity", f"normal, n {n}", plain, _numbers(lambda rng, s: rng.normal(-2, 0.5, s), n),
            math.exp(2), benign=True,
        )  # fmt: skip


def numbers() -> Iterator[Setting]:
    """Means of numbers without a known range."""
    kinds: dict[str, tuple[Callable[[Rng, Any], Floats], float, tuple[int, ...]]] = {
        "normal": (lambda rng, s: rng.normal(3, 2, s), 3.0, (20, 100, 1000)),
        "exponential": (lambda rng, s: rng.exponential(1, s), 1.0, (20, 100)),
        "lognormal": (lambda rng, s: np.exp(rng.normal(0, 1, s)), math.exp(0.5), (10, 30, 100, 1000)),
        "Student's, 3 degrees": (lambda rng, s: rng.standard_t(3, s), 0.0, (20, 100)),
    }
    for name, (sample, truth, sizes) in kinds.items():
        for n in sizes:
            yield Setting(
                "mean of numbers", f"{name}, n {n}", MEAN, _numbers(sample, n), truth, benign=name == "normal"
            )


def quantiles() -> Iterator[Setting]:
    """Between order statistics: discrete, hence conservative."""
    for name, truth, sizes in (
        ("median", math.log(2), (5, 10, 25, 100, 1000)),
        ("percentile@75", math.log(4), (50, 200)),
    ):
        for n in sizes:
            yield Setting(
                name, f"exponential, n {n}", build_aggregation(name),
                _values(lambda rng, s: rng.exponential(1, s), n), truth, discrete=True, rounds=5_000,
                benign=n >= 100,
            )  # fmt: skip

    for q, n in ((50, 15), (95, 15), (95, 100)):
        aggregation = quantile_of_samples(q / 100).aggregation
        yield Setting(
            f"percentile@{q} of samples", f"exponential, n {n}, 4 each", aggregation, _half_alike(n),
            -math.log(1 - q / 100), discrete=True, rounds=2_000,
        )  # fmt: skip


def _half_alike(n: int) -> Draw:
    """Four exponential samples of each item; those of half of the items are alike."""

    def draw(rng: Rng, count: int) -> Iterator[tuple[Any, Any, Any]]:
        for _ in range(count):
            own, other = rng.exponential(size=(2, n, 4))
            yield None, np.where(rng.random((n, 1)) < 0.5, own[:, :1], other).tolist(), None

    return draw


def classes() -> Iterator[Setting]:
    """F1 of confusion cells."""
    for n, positive in ((50, 0.03), (100, 0.03), (100, 0.3), (300, 0.1), (1000, 0.5)):
        cells = np.array([0.9 * (1 - positive), 0.1 * (1 - positive), 0.25 * positive, 0.75 * positive])

        def draw(rng: Rng, count: int, n: int = n, cells: Any = cells) -> Iterator[tuple[Any, Any, Any]]:
            for _ in range(count):
                yield np.eye(4)[rng.choice(4, size=n, p=cells)], None, None

        yield Setting(
            "F1", f"{positive:.0%} positive, n {n}", build_aggregation("f1"), draw,
            float(2 * cells[3] / (2 * cells[3] + cells[1] + cells[2])), rounds=2_000,
            options=StatisticsConfig(bootstrap_iters=1_000),
        )  # fmt: skip


def near_bounds() -> Iterator[Setting]:
    """Numbers between two ends, where hardly an item errs: F1, MCC, ratios, BLEU, pass@k over trials."""
    few = StatisticsConfig(bootstrap_iters=500)
    for n in (42, 100, 200, 500):
        for wrong in (0.005, 0.03):
            cells = np.array([0.5 * (1 - wrong), 0.5 * wrong, 0.5 * wrong, 0.5 * (1 - wrong)])

            def labels(
                rng: Rng, count: int, n: int = n, cells: Any = cells
            ) -> Iterator[tuple[Any, Any, Any]]:
                for _ in range(count):
                    yield np.eye(4)[rng.choice(4, size=n, p=cells)], None, None

            def pairs(rng: Rng, count: int, n: int = n, cells: Any = cells) -> Iterator[tuple[Any, Any, Any]]:
                for _ in range(count):
                    yield None, [divmod(cell, 2) for cell in rng.choice(4, size=n, p=cells).tolist()], None

            yield Setting(
                "F1", f"{wrong:.1%} wrong, n {n}", build_aggregation("f1"), labels, 1 - wrong, rounds=1_000,
                discrete=True, options=few,
            )  # fmt: skip
            yield Setting(
                "MCC", f"{wrong:.1%} wrong, n {n}", build_aggregation("mcc"), pairs, 1 - 2 * wrong,
                rounds=1_000, discrete=True, options=few,
            )  # fmt: skip
    for name in ("nanmean", "weighted_mean"):
        for p, n in ((0.99, 42), (0.99, 200), (0.9, 100), (0.5, 100)):

            def sample(rng: Rng, shape: Any, p: float = p, name: str = name) -> tuple[Floats, Floats]:
                weights = rng.integers(1, 9, shape) if name == "weighted_mean" else rng.random(shape) < 0.9
                return (rng.random(shape) < p) * weights.astype(np.float64), weights.astype(np.float64)

            known = replace(build_aggregation(name), bounds=(0.0, 1.0))
            yield Setting(name, f"p {p}, n {n}", known, _pairs(sample, n), p, rounds=2_000, discrete=True)
    for n in (42, 100, 200, 500):
        for share in (0.99, 0.97, 0.9):
            yield _copies("bleu", n, share, BLEU_SHARES)
        yield _copies("chrf", n, 0.97, (0.7, 0.5, 0.4, 0.3, 0.2, 0.1))
    for n in (42, 200):
        yield _copies("bleu", n, 0.03, (0.0, 0.0, 0.0, 0.0))
    for p in (0.99, 0.5, 0.01):
        for n in (42, 200):
            trials = replace(
                build_aggregation("mean"), name="trials", rule=None, k=4, bounds=(0.0, 1.0),
                compute=lambda total, n: np.mean(total / np.asarray(n)[..., None], axis=-1),
            )  # fmt: skip

            def passed(rng: Rng, count: int, p: float = p, n: int = n) -> Iterator[tuple[Any, Any, Any]]:
                for _ in range(count):
                    chance = rng.beta(3 * p, 3 * (1 - p), (n, 1))
                    yield (rng.random((n, 4)) < chance).astype(np.float64), None, None

            yield Setting(
                "pass rate of 4 trials", f"p {p}, n {n}", trials, passed, p, rounds=2_000, discrete=True
            )


BLEU_SHARES = (0.5, 0.3, 0.2, 0.1)


def _copies(metric: str, n: int, copies: float, others: tuple[float, ...]) -> Setting:
    """BLEU or chrF of texts of which a share are exact copies; of the others' n-grams a share matches, order
    by order."""
    orders = len(others)

    def draw(rng: Rng, count: int) -> Iterator[tuple[Any, Any, Any]]:
        for _ in range(count):
            length = rng.integers(10, 40, n)
            possible = np.stack([np.maximum(length - order, 0) for order in range(orders)], axis=1)
            other = rng.binomial(possible, np.array(others))
            matched = np.where((rng.random(n) < copies)[:, None], possible, other)
            if metric == "bleu":
                table = np.column_stack([length, length, matched, possible])
            else:
                table = np.stack([possible, possible, matched], axis=2).reshape(n, 3 * orders)
            yield table.astype(np.float64), None, None

    parts = copies + (1 - copies) * np.array(others)
    truth = 100 * float(np.exp(np.log(parts).mean()) if metric == "bleu" else parts.mean())
    family = {"bleu": "BLEU", "chrf": "chrF"}[metric]
    called = f"{copies:.0%}".replace("%", " %") + f" exact copies, n {n}"
    return Setting(family, called, build_aggregation(metric), draw, truth, rounds=1_000, discrete=True)


def edges() -> Iterator[Setting]:
    """Columns that happen to lie between 0 and 1, corpora of few short texts, runaway outputs, percentiles
    beyond the items."""
    for n in (5, 8, 15, 42):
        yield Setting(
            "undeclared column", f"lognormal, mean 0.3, n {n}", MEAN,
            _numbers(lambda rng, s: np.exp(rng.normal(math.log(0.3) - 0.32, 0.8, s)), n), 0.3, rounds=2_000,
        )  # fmt: skip
        yield _short_texts(n)
    for n in (42, 200):
        yield _runaway_bleu(n)
        for name, factor in (("wer", 1.0), ("ter", 100.0)):

            def errors(rng: Rng, shape: Any) -> tuple[Floats, Floats]:
                words = rng.integers(5, 30, shape)
                extra = np.where(rng.random(shape) < 0.03, rng.integers(100, 300, shape), 0)
                return (rng.binomial(words, 0.1) + extra).astype(np.float64), words.astype(np.float64)

            yield Setting(
                name.upper(), f"3% runaway outputs, n {n}", build_aggregation(name), _pairs(errors, n),
                factor * (1.7 + 0.03 * 199.5) / 17, rounds=2_000,
            )  # fmt: skip
    for n in (5, 15, 100):
        yield Setting(
            "percentile@95", f"exponential, n {n}", build_aggregation("percentile@95"),
            _values(lambda rng, s: rng.exponential(1, s), n), math.log(20), discrete=True, rounds=2_000,
        )  # fmt: skip


def _short_texts(n: int) -> Setting:
    """BLEU of texts of one to four words."""
    shares = np.array([0.8, 0.7, 0.6, 0.5])

    def draw(rng: Rng, count: int) -> Iterator[tuple[Any, Any, Any]]:
        for _ in range(count):
            length = rng.integers(1, 5, n)
            possible = np.stack([np.maximum(length - order, 0) for order in range(4)], axis=1)
            matched = rng.binomial(possible, shares)
            yield np.column_stack([length, length, matched, possible]).astype(np.float64), None, None

    truth = 100 * float(np.exp(np.log(shares).mean()))
    return Setting("BLEU", f"1 to 4 words, n {n}", build_aggregation("bleu"), draw, truth, rounds=1_000)


def _runaway_bleu(n: int) -> Setting:
    """BLEU of usual texts of which 3 % go on for 100 to 299 words more."""
    shares, chance = np.array([0.7, 0.5, 0.4, 0.3]), 0.03

    def draw(rng: Rng, count: int) -> Iterator[tuple[Any, Any, Any]]:
        for _ in range(count):
            length = rng.integers(10, 40, n)
            possible = np.stack([length - order for order in range(4)], axis=1)
            matched = rng.binomial(possible, shares)
            extra = np.where(rng.random(n) < chance, rng.integers(100, 300, n), 0)
            table = [length + extra, length, matched, possible + extra[:, None]]
            yield np.column_stack(table).astype(np.float64), None, None

    usual = 24.5 - np.arange(4)
    precisions = shares * usual / (usual + chance * 199.5)
    truth = 100 * float(np.exp(np.log(precisions).mean()))
    return Setting("BLEU", f"3% runaway outputs, n {n}", build_aggregation("bleu"), draw, truth, rounds=1_000)


def _own(function: Callable[[Any], float]) -> Aggregation:
    return build_aggregation("own.py:fn", None, lambda _: lambda values: function(np.asarray(values)))


def own_functions() -> Iterator[Setting]:
    """Functions of a user's, bootstrapped; fewer data sets, since each takes hundreds of calls."""
    for name, function, truth, sizes in (
        ("mean", lambda x: float(x.sum() / len(x)), 0.0, (5, 10, 30)),
        ("standard deviation", lambda x: math.sqrt(float(x @ x - x.sum() ** 2 / len(x)) / (len(x) - 1)), 1.0,
         (5, 10, 30)),
    ):  # fmt: skip
        for n in sizes:
            yield Setting(
                "own function", f"{name}, n {n}", _own(function),
                _values(lambda rng, s: rng.normal(0, 1, s), n), truth, rounds=1_000,
                options=StatisticsConfig(bootstrap_iters=200), named=n <= 10,
            )  # fmt: skip


FAMILIES = (
    shares, repeats, passes, clusters, uneven_clusters, crossed_clusters, grades, texts, close_together,
    error_rates, likelihoods, numbers, quantiles, classes, near_bounds, edges, own_functions,
)  # fmt: skip


def settings() -> list[Setting]:
    """All settings of the table, in its order."""
    return [setting for family in FAMILIES for setting in family()]


HEADER = "| data | setting | covered | rows that warn | warned where missed |\n|---|---|---|---|---|"


def row(one: Coverage) -> str:
    """A line of the published table, in Markdown."""
    return (
        f"| {one.setting.family} | {one.setting.name} | {one.covered:.3f} | {one.warned:.1%} | "
        f"{one.warned_misses:.0%} |"
    )


def chosen(prog: str, about: str, families: Sequence[Callable[[], object]]) -> tuple[int, list[str]]:
    """Of a command line ``[ROUNDS [FAMILY …]]``: the data sets a setting, 0 for as many as it says, and the
    names of the families, all of them without any."""
    names = [family.__name__ for family in families]
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument("rounds", nargs="?", type=int, default=0, help="0: as many as each setting says")
    parser.add_argument("families", nargs="*", metavar="family", help=", ".join(names))
    asked = parser.parse_args()
    if unknown := [name for name in asked.families if name not in names]:
        parser.error(f"no family {', '.join(unknown)}; there are {', '.join(names)}")
    return asked.rounds, asked.families or names


def main() -> None:
    """Prints the table, each row as soon as it is known."""
    rounds, names = chosen("python -m bench.coverage", "What the default intervals cover.", FAMILIES)
    print(HEADER, flush=True)
    for family in FAMILIES:
        for setting in family() if family.__name__ in names else ():
            print(row(measure(replace(setting, rounds=rounds or setting.rounds))), flush=True)


if __name__ == "__main__":
    main()
