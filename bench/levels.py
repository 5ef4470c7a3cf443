"""How often tests are wrong, and how often they find what is there.

``python -m bench.levels [ROUNDS [FAMILY …]]`` prints the second table of docs/statistics.md; 0 rounds are as
many as each setting says. ``python -m bench.coverage`` prints that of intervals. A false alarm, a wrong
regression and a wrong pass each have a chance of at most the level. What is to be found is found with at
least the share that the docs promise.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bench.coverage import MEAN, SHARE, UNEVEN, chosen
from bench.judges import verdicts
from metrics.aggregation import Aggregation, build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.drift import adjusted_at_night, drift_chance
from metrics.statistics.gate import decide
from metrics.statistics.ratings import Games, rate
from metrics.statistics.unpaired import UNPAIRED, compare_unpaired
from metrics.types import Floats, Ints
from scorers.judge.calibration import Labelled
from scorers.judge.contrast import Correction, compare_corrected
from tasks.models.canaries import CanaryReport

Rng = np.random.Generator
LEVEL = 0.05
WIDE = replace(MEAN, bounds=(-1_000.0, 1_000.0))
"""Numbers with a range that no item comes near: a gate passes on fewer of them than of those without."""
FEW = StatisticsConfig(bootstrap_iters=200)
NONE = StatisticsConfig(bootstrap_iters=0)


@dataclass(frozen=True)
class Rate:
    """One line of the table: a share of data sets, and what it may be at most (or must be at least)."""

    family: str
    name: str
    measure: Callable[[Rng, int], float]
    bound: float
    at_least: bool = False
    rounds: int = 1_000


@dataclass(frozen=True)
class Measured:
    """What a rate came to."""

    rate: Rate
    share: float
    rounds: int

    @property
    def holds(self) -> bool:
        """Whether it is within its bound, three Monte Carlo errors of the bound wider."""
        bound = self.rate.bound
        noise = 3 * math.sqrt(bound * (1 - bound) / self.rounds)
        return self.share >= bound - noise if self.rate.at_least else self.share <= bound + noise


@dataclass(frozen=True)
class Suites:
    """Suites of so many nights after their anchor, of which each has some pairs on items of their own.

    Each night a share of the answers is drawn anew, and the others stay. The first pair loses ``fall`` a
    night. ``kind``: right or wrong; the same in clusters of ten that are redrawn together; word error rates.
    """

    nights: int
    pairs: int = 1
    redrawn: float = 0.05
    items: int = 2_000
    fall: float = 0.0
    kind: str = "0/1"


def first_alarm(suites: Suites, rng: Rng) -> tuple[int | None, float]:
    """After how many nights one suite named a pair, None: never; and what was lost by then."""
    histories = [_history(suites, rng, suites.fall if pair == 0 else 0.0) for pair in range(suites.pairs)]
    clusters = np.arange(suites.items) // 10 if suites.kind == "clusters" else None
    aggregation = build_aggregation("wer") if suites.kind == "WER" else SHARE
    anchors = [next(history)[0] for history in histories]
    lost = 0.0
    for night in range(1, suites.nights + 1):
        answers = [next(history) for history in histories]
        p_values = [
            drift_chance([anchor, tonight], aggregation, clusters)
            for anchor, (tonight, _) in zip(anchors, answers, strict=True)
        ]
        lost = answers[0][1]
        if (adjusted_at_night(p_values, night) < LEVEL).any():
            return night, lost
    return None, lost


def _history(suites: Suites, rng: Rng, fall: float) -> Iterator[tuple[ItemColumn, float]]:
    """A pair's nights and what its chance to be right has lost: most items are surely right or wrong."""
    n = suites.items
    groups = np.arange(n) // 10 if suites.kind == "clusters" else np.arange(n)
    chance = rng.beta(0.3, 0.15, n)
    right = _drawn(rng, chance, groups)
    words, lost = rng.integers(5, 30, n), np.zeros(n, dtype=bool)
    while True:
        kept = (right & ~lost).astype(np.float64)
        if suites.kind == "WER":
            errors = (1 - kept) * (1 + words // 3)
            yield ItemColumn(errors, np.column_stack([errors, words]).astype(np.float64)), 0.0
        else:
            yield ItemColumn(kept, kept.reshape(-1, 1)), float(chance @ lost) / n
        anew = (rng.random(groups.max() + 1) < suites.redrawn)[groups]
        right = np.where(anew, _drawn(rng, chance, groups), right)
        lost |= rng.random(n) < fall * 1.5


def _drawn(rng: Rng, chance: Floats, groups: Ints) -> Floats:
    """Answers, right with their chances; those of a cluster depend on one number."""
    drawn: Floats = rng.random(int(groups.max()) + 1)[groups] < chance
    return drawn


def false_alarms(suites: Suites, rng: Rng, rounds: int) -> float:
    """Share of suites that ever name a pair."""
    return sum(first_alarm(suites, rng)[0] is not None for _ in range(rounds)) / rounds


def found_in_time(suites: Suites, rng: Rng, rounds: int, most: float) -> float:
    """Share of suites that name a pair before ``most`` is lost."""
    found = [first_alarm(suites, rng) for _ in range(rounds)]
    return sum(night is not None and lost < most for night, lost in found) / rounds


def drifts() -> Iterator[Rate]:
    """Nights against their anchor: few alarms without a drift on all nights; a slow decline is found."""
    for kind, nights, pairs, redrawn, items, rounds in (
        ("0/1", 6, 1, 0.05, 2_000, 1_000), ("0/1", 10, 1, 0.05, 2_000, 1_000),
        ("0/1", 10, 10, 0.05, 500, 300),
        ("0/1", 60, 1, 0.05, 1_000, 400), ("0/1", 60, 10, 0.05, 500, 100), ("0/1", 10, 1, 1.0, 1_000, 1_000),
        ("0/1", 60, 1, 1.0, 1_000, 200), ("clusters", 10, 1, 0.05, 500, 300), ("WER", 10, 1, 0.05, 500, 300),
    ):  # fmt: skip
        suites = Suites(nights, pairs, redrawn, items, kind=kind)
        name = f"{kind}, {nights} nights, {_of_pairs(pairs)}, {redrawn:.0%} redrawn nightly"
        yield Rate("drift, false alarms", name, partial(false_alarms, suites), LEVEL, rounds=rounds)
    for pairs in (1, 10):
        suites = Suites(60, pairs, fall=0.001)
        measured = partial(found_in_time, suites, most=0.05)
        name = f".001 a night, {_of_pairs(pairs)}, found before .05 is lost"
        yield Rate("drift, found", name, measured, 7 / 8, at_least=True, rounds=100)


def _of_pairs(count: int) -> str:
    return "1 pair" if count == 1 else f"{count} pairs"


def quantiles() -> Iterator[Rate]:
    """Medians and percentiles of two runs that do not differ, on few items; lognormal numbers.
    Each comparison makes hundreds of calls."""
    for name in ("median", "percentile@95"):
        for n in (5, 8, 15):
            measured = partial(_quantiles_differ, name, n)
            yield Rate("paired, no difference", f"{name}, n {n}", measured, LEVEL, rounds=200)


def _quantiles_differ(name: str, n: int, rng: Rng, rounds: int) -> float:
    aggregation, found = build_aggregation(name), 0
    for _ in range(rounds):
        shared = rng.normal(0, 1, n)
        runs = [np.exp(shared + rng.normal(0, 0.5, n)) for _ in range(2)]
        columns = [ItemColumn(own, values=own) for own in runs]
        found += compare_items(aggregation, *columns, None, FEW).p_value < LEVEL
    return found / rounds


def unpaired() -> Iterator[Rate]:
    """Means of two runs without common items that do not differ, lognormal numbers."""
    for n, m in ((15, 15), (15, 200), (30, 30), (30, 60), (40, 200), (50, 200), (75, 1_000)):
        measured = partial(_unpaired_differ, n, m)
        yield Rate(
            "unpaired, unwarned", f"lognormal, no difference, {n} and {m}", measured, LEVEL, rounds=4_000
        )


def _unpaired_differ(n: int, m: int, rng: Rng, rounds: int) -> float:
    """Share that differ with no warning but that items are not paired."""
    found = 0
    for _ in range(rounds):
        runs = [np.exp(rng.normal(0, 1, size)) for size in (n, m)]
        first, second = (ItemColumn(own, own.reshape(-1, 1)) for own in runs)
        made = compare_unpaired(MEAN, (first, second), (None, None), FEW)
        found += made.p_value < LEVEL and made.warning == UNPAIRED
    return found / rounds


def shared_calibrations() -> Iterator[Rate]:
    """Gates over judge-corrected rates with one calibration, at losses of the margin and more."""
    for found, n, m, loss, margin in (
        (0.7, 2_000, 200, 0.10, 0.05), (0.7, 1_000, 400, 0.10, 0.10), (0.9, 1_000, 200, 0.05, 0.05),
    ):  # fmt: skip
        measured = partial(_wrongly_passed, found, n, m, (loss, margin))
        name = f"judge {found} / {found}, n {n}, m {m}, loss {loss}, margin {margin}"
        yield Rate("gate, wrong pass", name, measured, LEVEL / 2, rounds=400)


def _wrongly_passed(
    found: float, n: int, m: int, lost: tuple[float, float], rng: Rng, rounds: int, share: float = 0.7
) -> float:
    loss, margin = lost
    passed = 0
    for _ in range(rounds):
        known = Correction(Labelled.of(*verdicts(rng, m, share, found, found)), "a")
        judged = [verdicts(rng, n, own, found, found)[1] for own in (share, share - loss)]
        first, second = (ItemColumn(own, own.reshape(-1, 1)) for own in judged)
        made = compare_corrected((first, second), (known, known), None, FEW)
        passed += decide(made, margin, LEVEL).verdict in ("pass", "worse")
    return passed / rounds


@dataclass(frozen=True)
class Losses:
    """Two runs over clusters whose loss is the margin on the whole, and how it falls on them.

    ``each its own``: of a cluster's items some differ, and some of these all one way. ``one in five``: the
    others lose nothing, and a tenth of all items differ besides. ``exponential``, ``lognormal``: numbers, of
    which clusters lose so much. ``normal``: numbers, of which clusters lose or gain.
    """

    sizes: Ints
    kind: str
    margin: float

    @property
    def groups(self) -> Ints:
        """The cluster of each item."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def draw(self, rng: Rng) -> tuple[ItemColumn, ItemColumn]:
        """The base and the candidate."""
        groups = self.groups
        if self.numbers:
            base = rng.normal(0, 0.5, len(groups))
            change = -self.margin * self._lost(rng)[groups] + rng.normal(0, 0.05, len(groups))
        else:
            lose, gain = self._chances(rng)
            drawn = rng.random(len(groups))
            change = np.where(drawn < lose, -1.0, np.where(drawn < lose + gain, 1.0, 0.0))
            base = np.where(change == 0, rng.integers(0, 2, len(groups)), change < 0).astype(np.float64)
        first, second = (ItemColumn(own, own.reshape(-1, 1)) for own in (base, base + change))
        return first, second

    @property
    def numbers(self) -> bool:
        """Whether the items are numbers, without a range."""
        return self.kind in ("exponential", "lognormal", "normal")

    def _lost(self, rng: Rng) -> Floats:
        """What each cluster of numbers loses, 1 on average."""
        count = len(self.sizes)
        if self.kind == "exponential":
            return rng.exponential(1, count)
        return rng.normal(1, 3, count) if self.kind == "normal" else rng.lognormal(-0.5, 1, count)

    def _chances(self, rng: Rng) -> tuple[Floats, Floats]:
        """The chance of each item to be lost, and to be gained."""
        groups, count, margin = self.groups, len(self.sizes), self.margin
        if self.kind == "one in five":
            lose: Floats = 0.05 + np.where(rng.random(count) < 0.2, 5 * margin, 0.0)[groups]
            return lose, np.full(len(groups), 0.05)
        total = 0.1 + margin
        differs = rng.beta(3 * total, 3 * (1 - total), count)[groups]
        falls, together = (0.05 + margin) / total, rng.random(len(groups)) < 0.3
        falling = np.where(together, (rng.random(count) < falls)[groups], falls)
        return differs * falling, differs * (1 - falling)


def uneven_gates() -> Iterator[Rate]:
    """Gates over clusters of unequal size, at a loss of the margin: a few of them hold most of the items, and
    may happen to lose little. Where they count as few equal ones, no gate passes on them."""
    for called in ("Zipf sizes, 20", "Zipf sizes, 42", "Zipf sizes, 101", "lognormal sizes, 42"):
        for kind, margin in (
            ("each its own", 0.05),
            ("one in five", 0.1),
            ("exponential", 0.1),
            ("normal", 0.1),
        ):
            losses = Losses(UNEVEN[called].astype(np.int64), kind, margin)
            measured = partial(_wrong_passes, losses, WIDE if losses.numbers else SHARE)
            yield Rate("gate, wrong pass", f"{called}, {kind}, margin {margin}", measured, LEVEL / 2)


def _wrong_passes(losses: Losses, aggregation: Aggregation, rng: Rng, rounds: int) -> float:
    """Share of gates that pass."""
    clusters, passed = losses.groups if losses.sizes.max() > 1 else None, 0
    for _ in range(rounds):
        made = compare_items(aggregation, *losses.draw(rng), clusters, FEW)
        passed += decide(made, losses.margin, LEVEL).verdict in ("pass", "worse")
    return passed / rounds


def skewed_gates() -> Iterator[Rate]:
    """Gates over numbers without a range that lose the margin on average, most items little and a few much.

    What a sample has not met of such a tail no test can know (Bahadur and Savage 1956): no gate passes on
    fewer than 50 such items, or clusters.
    """
    for form, least, most in (("items", 1, 1), ("clusters of 10", 10, 10), ("clusters of 1 to 19", 1, 19)):
        for units in (20, 50, 100):
            sizes = np.linspace(least, most, units).round().astype(np.int64)
            for kind in ("exponential", "lognormal"):
                measured = partial(_wrong_passes, Losses(sizes, kind, 0.1), MEAN)
                name = f"numbers, {kind} losses, {units} {form}"
                yield Rate("gate, wrong pass, no range", name, measured, LEVEL, rounds=2_000)


def canaries() -> Iterator[Rate]:
    """Canaries: how often a change of a share of the answers is noticed, and how often none is."""
    for count, changed, bound in ((5, 0.5, 0.8), (29, 0.1, 0.8), (40, 0.1, 0.9)):
        name = f"{count} canaries, {changed:.0%} of the answers changed"
        yield Rate("canaries, found", name, partial(_noticed, count, changed), bound, True, 10_000)
    for count, changed in ((5, 0.01), (29, 0.01)):
        name = f"{count} canaries, {changed:.0%} differ by chance"
        yield Rate("canaries, false alarms", name, partial(_noticed, count, changed), LEVEL, rounds=10_000)


def _noticed(count: int, changed: float, rng: Rng, rounds: int) -> float:
    differing = rng.binomial(count, changed, rounds).tolist()
    return sum(CanaryReport(count, own).is_another for own in differing) / rounds


def arenas() -> Iterator[Rate]:
    """12 models whose strengths differ as normal numbers, games drawn at random: models left unrated."""
    few = partial(_unrated, 30, silent=False)
    yield Rate("arena, some model unrated", "12 models, 30 games: too few", few, 0.95, at_least=True)
    for games, most in ((100, 0.25), (150, 0.08)):
        measured = partial(_unrated, games, silent=False)
        yield Rate("arena, some model unrated", f"12 models, {games} games", measured, most)
    for games in (30, 100):
        measured = partial(_unrated, games, silent=True)
        yield Rate("arena, unrated without a reason", f"12 models, {games} games", measured, 0.0)


def _unrated(count: int, rng: Rng, rounds: int, silent: bool, models: int = 12) -> float:
    """Share of arenas with a model that has no strength; ``silent``: and no sentence that says why."""
    found = 0
    for _ in range(rounds):
        strength = rng.normal(0, 1, models)
        pairs = np.array([rng.choice(models, 2, replace=False) for _ in range(count)])
        odds = strength[pairs[:, 0]] - strength[pairs[:, 1]]
        won = (rng.random(count) < 1 / (1 + np.exp(-odds))).astype(np.float64)
        rated = rate(Games(pairs[:, 0], pairs[:, 1], won, np.arange(count)), models, NONE).models
        found += any(own.strength is None and not (silent and own.doubt) for own in rated)
    return found / rounds


FAMILIES = (drifts, quantiles, unpaired, shared_calibrations, uneven_gates, skewed_gates, canaries, arenas)


def rates(*families: str) -> list[Rate]:
    """All rates of the table, in its order, or those of some families."""
    chosen = [family for family in FAMILIES if not families or family.__name__ in families]
    return [one for family in chosen for one in family()]


def measure(one: Rate, rounds: int = 0) -> Measured:
    """Draws the data sets of a rate, with a fixed seed."""
    count = rounds or one.rounds
    return Measured(one, one.measure(np.random.default_rng(20262), count), count)


def line(one: Measured) -> str:
    """Its row of the table."""
    bound = f"{'≥' if one.rate.at_least else '≤'} {one.rate.bound:.3g}"
    held = "yes" if one.holds else "**no**"
    return f"| {one.rate.family} | {one.rate.name} | {one.rounds:,} | {one.share:.3f} | {bound} | {held} |"


def main() -> None:
    """Prints the table, each row as soon as it is known."""
    rounds, families = chosen("python -m bench.levels", "How often tests are wrong, and find.", FAMILIES)
    print("| what | setting | data sets | share | bound | holds |\n|---|---|---|---|---|---|")
    for one in rates(*families):
        print(line(measure(one, rounds)), flush=True)


if __name__ == "__main__":
    main()
