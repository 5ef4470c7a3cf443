"""Strengths of models from games between two at a time: Bradley–Terry with Davidson's ties.

The log odds that the answer shown first beats the other are λ_first − λ_second + γ + β · longer: γ is what
the first place is worth, β what an answer twice as long is (Davidson and Beaver 1977; Li, Angelopoulos and
Chiang 2024). A tie has the odds ν · sqrt(win · loss) (Davidson 1970). Intervals come from a bootstrap over
items, whose games depend on each other, with weights that are never 0 (Xu et al. 2020): no draw can separate
what the data do not. Ranks are intervals of places that the differences leave open (Mogstad et al. 2024).

Likelihood alone puts a model that won every game at infinity. Whether that happens is a question about the
graph of the games (Ford 1957; with ties: no cycle has more wins than ties), and is answered before anything
is fitted: such a model has no number but a sentence.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from metrics.config import StatisticsConfig
from metrics.statistics.intervals import effective_units, left_of_units, normal_quantile, student_quantile
from metrics.statistics.significance import sign_flip
from metrics.types import Floats, Ints

DRAWS = 1_000
"""Draws of the bootstrap, at most: an interval's end then errs by a fifteenth of a standard error."""
SPREAD_OF_EFFECTS = 10.0
"""Standard deviation of a normal prior on γ and β, in log odds: too wide to be seen, but for a judge that
looks at nothing else, whose effect would be infinite."""
FEW_ITEMS = 20
TIES_ALONE = "its games were ties, of which nothing tells strengths apart"
NO_SPREAD = "its games say the same on every item: there is no interval"
HELD_BY_TIES = "its losses and wins go one way and only ties hold it to the others: no strength is too large"
_STEPS = 100
_FLIPS = 10_000
_TOLERANCE = 1e-6
_LARGEST = 300.0
"""Half log odds and log ν beyond which nothing changes but the risk of an overflow."""
_TERMS = 100_000
"""Games of all draws that are worked on at once, so that memory has a bound."""


@dataclass(frozen=True)
class Games:
    """G games of n models, column by column.

    ``first`` and ``second`` (G,) number the models by the place that their answers were shown in, ``outcome``
    is 1 where the first won, 0 where the second did, 0.5 for a tie. ``item`` numbers what the game was about:
    games about one item depend on each other. ``longer`` says by how much the first answer was longer (see
    ``longer``), None where that is not to be held apart; ``placed`` is 1 where a judge saw the answers in
    that order and 0 where none was asked, None where places say nothing.
    """

    first: Ints
    second: Ints
    outcome: Floats
    item: Ints
    longer: Floats | None = None
    placed: Floats | None = None

    def __len__(self) -> int:
        return len(self.outcome)

    def among(self, models: Ints) -> "Games":
        """The games between these models, which are numbered by their place in ``models``."""
        place = np.full(int(max(self.first.max(), self.second.max(), models.max())) + 1, -1)
        place[models] = np.arange(len(models))
        kept = (place[self.first] >= 0) & (place[self.second] >= 0)
        longer = None if self.longer is None else self.longer[kept]
        placed = None if self.placed is None else self.placed[kept]
        first, second = place[self.first[kept]], place[self.second[kept]]
        return Games(first, second, self.outcome[kept], self.item[kept], longer, placed)


@dataclass(frozen=True)
class Estimated:
    """A number with its error bar, in log odds; NaN where there is none."""

    value: float
    stderr: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Rated:
    """What the games say of one model.

    ``strength`` is its log strength, those of all rated models adding up to 0; None where no number does it
    justice. ``doubt`` says why there is none, or no interval. The model's rank is one from ``best`` to
    ``worst`` (1 is the strongest).
    """

    strength: Estimated | None
    best: int
    worst: int
    wins: int
    ties: int
    losses: int
    doubt: str | None = None


@dataclass(frozen=True)
class Ratings:
    """All models, and what else decides games: ``position`` and ``length`` are γ and β, ``ties`` is log ν;
    None where the games can't say."""

    models: tuple[Rated, ...]
    position: Estimated | None
    length: Estimated | None
    ties: Estimated | None
    warning: str | None = None


def longer(first: Floats, second: Floats) -> Floats:
    """By how much the first of two lengths is larger: 1 if it is twice the second, −1 if half, at most ±3.

    >>> longer(np.array([200.0, 50.0, 0.0]), np.array([100.0, 100.0, 0.0])).tolist()
    [1.0, -1.0, 0.0]
    """
    total = first + second
    return np.asarray(3 * (first - second) / np.where(total > 0, total, 1.0))


def rate(games: Games, n: int, options: StatisticsConfig) -> Ratings:
    """The strengths of ``n`` models with their intervals at ``options.ci_level``.

    Only models that beat each other somehow, directly or through others, can be put on one scale: those of
    the largest such group are rated, the others have a sentence. ``bootstrap_iters`` <= 0: no intervals.
    """
    rated, doubts = _comparable(games, n)
    if len(rated) < 2:
        own, fitted = None, None
    else:
        own = games.among(rated)
        fitted = _Fitted.of(own, len(rated), options)
    place = {model: where for where, model in enumerate(rated.tolist())}
    models = []
    for model in range(n):
        wins, ties, losses = _record(games, model)
        if fitted is None or model not in place:
            models.append(Rated(None, 1, n, wins, ties, losses, doubts[model]))
            continue
        strength = fitted.estimated(place[model])
        better, worse = fitted.apart(place[model])
        said = None if fitted.spreads(place[model]) else NO_SPREAD
        models.append(Rated(strength, 1 + better, n - worse, wins, ties, losses, said))
    if fitted is None or own is None:
        return Ratings(tuple(models), None, None, None)
    warning = _few(_games_of_items(own))
    position, length, drawn = fitted.effects()
    return Ratings(tuple(models), position, length, drawn, warning)


def _games_of_items(games: Games) -> Floats:
    """How many games each item has, or each cluster of them."""
    return np.unique(games.item, return_counts=True)[1].astype(np.float64)


def _few(sizes: Floats) -> str | None:
    """A doubt where items, or clusters, are few, or a few have most of the games."""
    if len(sizes) < FEW_ITEMS:
        return f"only {len(sizes)} items: the intervals are a rough guide"
    equal = effective_units(sizes)
    if equal >= FEW_ITEMS - _TOLERANCE:
        return None
    return (
        f"a few items, or clusters of them, have most of the games: they count as {equal:.1f} with equally "
        f"many, and the intervals are a rough guide; {FEW_ITEMS} and more are safer"
    )


def _record(games: Games, model: int) -> tuple[int, int, int]:
    """Wins, ties and losses of a model."""
    own = np.concatenate([games.outcome[games.first == model], 1 - games.outcome[games.second == model]])
    return int((own == 1).sum()), int((own == 0.5).sum()), int((own == 0).sum())


def _comparable(games: Games, n: int) -> tuple[Ints, list[str | None]]:
    """The models that can be put on one scale, and beside each model why it can't."""
    doubts: list[str | None] = [None] * n
    if not len(games):
        return np.arange(0), ["no game could be judged"] * n
    if (games.outcome == 0.5).all():
        return np.arange(0), ["every game was a tie: nothing tells the models apart"] * n
    if (place := _deciding_place(games)) is not None:
        said = f"the answer shown {place} won every verdict: nothing is said of the models"
        return np.arange(0), [said] * n
    beats = _wins(games, n)
    groups = sorted(_strong_groups(beats + _ties(games, n) > 0), key=len, reverse=True)
    rated: list[int] = []
    for group in groups:
        own = games.among(np.array(sorted(group)))
        if len(group) > 1 and _held_by_ties_alone(own, len(group)):
            said = TIES_ALONE if (own.outcome == 0.5).all() else HELD_BY_TIES
            for model in group:
                doubts[model] = said
        elif len(group) > len(rated):
            rated = sorted(group)
    met = beats + beats.T + _ties(games, n) > 0
    reached = _reach(met, rated[0]) if rated else set()
    for model in range(n):
        if model not in rated and doubts[model] is None:
            doubts[model] = _why_apart(games, model, model in reached, len(rated))
    if len(rated) == 1:
        doubts[rated[0]] = _why_apart(games, rated[0], True, 1)
    return np.array(rated, dtype=np.int64), doubts


def _deciding_place(games: Games) -> str | None:
    """The place that won every game that a judge saw, where models met in both places and no other game says
    anything of them; None: the verdicts do not follow the place alone."""
    if games.placed is None or not (seen := games.placed == 1).any():
        return None
    shown = games.outcome[seen]
    pairs = set(zip(games.first[seen].tolist(), games.second[seen].tolist(), strict=True))
    both = any((second, first) in pairs for first, second in pairs)
    alone = shown[0] != 0.5 and (shown == shown[0]).all() and (games.outcome[~seen] == 0.5).all()
    return ("first" if shown[0] == 1 else "second") if both and alone else None


def _why_apart(games: Games, model: int, met: bool, rated: int) -> str:
    wins, ties, losses = _record(games, model)
    if wins + ties + losses == 0:
        return "no game of it could be judged"
    if not met:
        return "it never met the models that are rated, nor any that met them"
    if losses == 0 and ties == 0:
        return f"it won all of its {wins} games: no strength is too large"
    if wins == 0 and ties == 0:
        return f"it lost all of its {losses} games: no strength is too small"
    where = "the models that are rated" if rated > 1 else "another"
    return f"against {where} its games went one way: no strength is too large or too small"


def _wins(games: Games, n: int) -> NDArray[np.int64]:
    """(n, n): how often the row's model beat the column's."""
    found = np.zeros((n, n), dtype=np.int64)
    won, lost = games.outcome == 1, games.outcome == 0
    np.add.at(found, (games.first[won], games.second[won]), 1)
    np.add.at(found, (games.second[lost], games.first[lost]), 1)
    return found


def _ties(games: Games, n: int) -> NDArray[np.int64]:
    """(n, n), symmetric: how often two models tied."""
    found = np.zeros((n, n), dtype=np.int64)
    tied = games.outcome == 0.5
    np.add.at(found, (games.first[tied], games.second[tied]), 1)
    np.add.at(found, (games.second[tied], games.first[tied]), 1)
    return found


def _reach(edges: NDArray[np.bool_], start: int) -> set[int]:
    """The nodes that can be reached from one, itself among them."""
    found, waiting = {start}, [start]
    while waiting:
        for node in np.flatnonzero(edges[waiting.pop()]).tolist():
            if node not in found:
                found.add(node)
                waiting.append(node)
    return found


def _strong_groups(edges: NDArray[np.bool_]) -> list[list[int]]:
    """Groups of nodes that reach each other."""
    n = len(edges)
    ahead = [_reach(edges, node) for node in range(n)]
    groups: list[list[int]] = []
    for node in range(n):
        group = next((one for one in groups if one[0] in ahead[node] and node in ahead[one[0]]), None)
        if group is None:
            groups.append([node])
        else:
            group.append(node)
    return groups


def _held_by_ties_alone(games: Games, n: int) -> bool:
    """Whether strengths may grow without end although the models are linked: there are strengths by which
    every winner is at least a step above its loser, and none that tied are more than a step apart.

    Then steps of any size explain the games better. That is so unless some cycle has more wins than ties
    (Bellman and Ford's negative cycle).
    """
    ties = _ties(games, n)
    if not ties.any():
        return False
    distance = np.zeros(n)
    wins = _wins(games, n) > 0
    cost = np.where(wins, -1.0, np.where(ties > 0, 1.0, np.inf))
    for _ in range(n):
        shorter = np.minimum(distance, (distance[:, None] + cost).min(axis=0))
        if (shorter == distance).all():
            return True
        distance = shorter
    return False


@dataclass(frozen=True)
class _Design:
    """The games as a regression on strengths and effects, sorted by who met whom.

    ``pairs`` (P, n) has 1 for the model shown first and −1 for the other, ``starts`` (P,) where each pair's
    games begin and ``counts`` how many there are. ``effects`` (G, E) holds place and length, ``sign`` is the
    winner's, ``tied`` which games nobody won; ``order`` puts games into this order.
    """

    pairs: Floats
    starts: Ints
    counts: Ints
    effects: Floats
    sign: Floats
    tied: Floats
    order: Ints
    ties: bool

    @classmethod
    def of(cls, games: Games, n: int) -> "_Design":
        met, which = np.unique(games.first * n + games.second, return_inverse=True)
        pairs = np.zeros((len(met), n))
        pairs[np.arange(len(met)), met // n] = 1.0
        pairs[np.arange(len(met)), met % n] = -1.0
        order = np.argsort(which.ravel(), kind="stable")
        counts = np.bincount(which.ravel())
        columns = [column[order] for column in (games.placed, games.longer) if column is not None]
        effects = np.column_stack(columns) if columns else np.zeros((len(games), 0))
        outcome = games.outcome[order]
        tied = outcome == 0.5
        starts = np.cumsum(counts) - counts
        return cls(pairs, starts, counts, effects, 2 * outcome - 1, tied, order, bool(tied.any()))

    @property
    def n(self) -> int:
        """Number of models."""
        return int(self.pairs.shape[1])

    @property
    def width(self) -> int:
        """Number of parameters: strengths, effects, and log ν last where there are ties."""
        return int(self.n + self.effects.shape[1]) + self.ties

    def penalty(self) -> Floats:
        """Precision of the prior on effects."""
        held = np.zeros(self.width)
        held[self.n : self.n + self.effects.shape[1]] = SPREAD_OF_EFFECTS**-2
        return held

    def fit(self, weights: Floats, start: Floats) -> Floats:
        """The parameters (D, width) of the largest (penalised) likelihood for each row of weights (D, G), by
        Newton's steps from ``start``; the strengths add up to 0."""
        weights, found = weights[:, self.order], np.tile(start, (len(weights), 1))
        held, going = self.penalty(), np.arange(len(weights))
        gauge = np.diag(held)
        gauge[: self.n, : self.n] += 1.0
        for _ in range(_STEPS):
            own, at = weights[going], found[going]
            odds = self._odds(at)
            slope, curve = self._derivatives(odds, own)
            solved = np.linalg.solve(curve + gauge, (slope - held * at)[:, :, None])
            step = np.asarray(solved[:, :, 0], dtype=np.float64)
            step = step * self._shortened(at, step, own, self._likelihood(at, odds, own, held), held)
            found[going] = at + step
            going = going[np.abs(step).max(axis=1) >= _TOLERANCE]
            if not len(going):
                break
        return found

    def _shortened(self, at: Floats, step: Floats, weights: Floats, value: Floats, held: Floats) -> Floats:
        """(D, 1): which part of each step, halved as often as it takes, loses no likelihood."""
        size = np.ones((len(at), 1))
        trying = np.arange(len(at))
        while len(trying):
            tried = at[trying] + size[trying] * step[trying]
            reached = self._likelihood(tried, self._odds(tried), weights[trying], held)
            least = value[trying] - 1e-12 * np.abs(value[trying])
            trying = trying[(reached < least) & (size[trying, 0] >= 1e-6)]
            size[trying] /= 2
        return size

    def _odds(self, found: Floats) -> "_Odds":
        n, k = self.n, self.n + self.effects.shape[1]
        half = np.repeat(found[:, :n] @ self.pairs.T, self.counts, axis=1)
        half += found[:, n:k] @ self.effects.T
        half = np.clip(half / 2, -_LARGEST, _LARGEST)
        won = np.exp(half)
        lost = 1 / won
        tie = np.clip(found[:, -1:], -_LARGEST, _LARGEST) if self.ties else np.full((len(found), 1), -np.inf)
        drawn = np.exp(tie)
        total = won + lost + drawn
        return _Odds(half, tie, won / total, lost / total, drawn / total, np.log(total))

    def _likelihood(self, found: Floats, odds: "_Odds", weights: Floats, held: Floats) -> Floats:
        """(D,): the log-likelihoods with the prior's part."""
        said = self.sign * odds.half - odds.total
        if self.ties:
            said = said + self.tied * odds.tie
        return np.asarray((weights * said).sum(axis=1) - (held * found**2).sum(axis=1) / 2)

    def _derivatives(self, odds: "_Odds", weights: Floats) -> tuple[Floats, Floats]:
        """Slope (D, width) and curvature (D, width, width) of the likelihood alone."""
        n, k, draws = self.n, self.n + self.effects.shape[1], len(weights)
        slope, curve = np.empty((draws, self.width)), np.empty((draws, self.width, self.width))
        mean = odds.won - odds.lost
        self._sum(weights * (self.sign - mean) / 2, slope)
        bend = weights * (odds.won + odds.lost - mean**2) / 4
        met = np.add.reduceat(bend, self.starts, axis=1)
        outer = (self.pairs[:, :, None] * self.pairs[:, None, :]).reshape(len(self.pairs), -1)
        curve[:, :n, :n] = (met @ outer).reshape(draws, n, n)
        for place, column in enumerate(self.effects.T, start=n):
            self._sum(bend * column, curve[:, place])
        curve[:, :n, n:k] = curve[:, n:k, :n].transpose(0, 2, 1)
        if self.ties:
            slope[:, k] = (weights * (self.tied - odds.drawn)).sum(axis=1)
            self._sum(weights * mean * odds.drawn / -2, curve[:, k])
            curve[:, :k, k] = curve[:, k, :k]
            curve[:, k, k] = (weights * odds.drawn * (1 - odds.drawn)).sum(axis=1)
        return slope, curve

    def _sum(self, terms: Floats, into: Floats) -> None:
        """Adds up each game's term (D, G) for the strengths and effects that it depends on."""
        n, k = self.n, self.n + self.effects.shape[1]
        into[:, :n] = np.add.reduceat(terms, self.starts, axis=1) @ self.pairs
        into[:, n:k] = terms @ self.effects


@dataclass(frozen=True)
class _Odds:
    """Half the log odds of each game (D, G), log ν (D, 1), the chances of the three outcomes, and the log of
    the sum of their weights."""

    half: Floats
    tie: Floats
    won: Floats
    lost: Floats
    drawn: Floats
    total: Floats


@dataclass(frozen=True)
class _Fitted:
    """The parameters of the games and of each draw: ``draws`` is (draws, parameters), empty without any."""

    design: _Design
    games: Games
    found: Floats
    draws: Floats
    sizes: Floats
    level: float

    @classmethod
    def of(cls, games: Games, n: int, options: StatisticsConfig) -> "_Fitted":
        design = _Design.of(games, n)
        (found,) = design.fit(np.ones((1, len(games))), np.zeros(design.width))
        items, item = np.unique(games.item, return_inverse=True)
        draws = min(DRAWS, options.bootstrap_iters) if len(items) > 1 else 0
        portion = max(1, _TERMS // len(games))
        drawn = [
            design.fit(weights[:, item.ravel()], found)
            for weights in _weights(len(items), draws, portion, options.seed)
        ]
        draws_of = np.vstack(drawn) if drawn else np.empty((0, design.width))
        return cls(design, games, found, draws_of, _games_of_items(games), options.ci_level)

    @property
    def degrees(self) -> float:
        """Of freedom: one less than the items of equally many games that the items count as."""
        return max(effective_units(self.sizes) - 1.0, 1.0)

    def estimated(self, place: int) -> Estimated:
        """A parameter with its error bar: Student's quantile of the draws' spread, if they have one."""
        value = float(self.found[place])
        if len(self.draws) < 2:
            return Estimated(value)
        stderr = self._spread(self.draws[:, place])
        reach = student_quantile(self.level, self.degrees) * stderr
        return Estimated(value, stderr, value - reach, value + reach)

    def spreads(self, place: int) -> bool:
        """Whether the draws of a parameter differ; True without draws."""
        return len(self.draws) < 2 or not math.isnan(self._spread(self.draws[:, place]))

    def _spread(self, column: Floats) -> float:
        """Of draws, which have what the games of an item leave of its own part (CR2): of items with equally
        many, (n − 1)/n.

        NaN where draws differ by no more than the fit errs: games that say the same on every item, or cancel
        out there, have the same strengths whatever the weights, and how sure these are nobody knows.
        """
        spread = float(column.std(ddof=1)) / left_of_units(self.sizes)
        return spread if spread > _TOLERANCE else math.nan

    def apart(self, place: int) -> tuple[int, int]:
        """How many models are surely stronger than one, and how many surely weaker: at the level for all of
        them together (the largest of the draws' standardised differences)."""
        others = [other for other in range(self.design.n) if other != place]
        if len(self.draws) < 2:
            return 0, 0
        apart = self.found[others] - self.found[place]
        drawn = self.draws[:, others] - self.draws[:, [place]]
        spread = np.array([self._spread(column) for column in drawn.T])
        largest = np.nan_to_num(np.abs(drawn - apart) / spread).max(axis=1)
        # Student's share of the normal quantile, as in the intervals.
        few = student_quantile(self.level, self.degrees) / normal_quantile(self.level)
        reach = float(np.quantile(largest, self.level)) * few * spread
        return int((apart > reach).sum()), int((-apart > reach).sum())

    def effects(self) -> Iterator[Estimated | None]:
        """γ, β and log ν, those that there are."""
        place = self.design.n
        yield self.estimated(place) if self.games.placed is not None else None
        place += self.games.placed is not None
        yield self.estimated(place) if self.games.longer is not None else None
        yield self.estimated(self.design.width - 1) if self.design.ties else None


def place_preference(games: Games, seed: int) -> tuple[float, float]:
    """Which share of the verdicts the answer shown first won, ties counting half, and how likely a share as
    far from a half is if places say nothing (signs of items flipped at random).

    Of use where each two answers were shown in both orders, or in one that chance chose: 0.5 is then expected
    whatever the models' strengths. NaN without a game that a judge saw.
    """
    seen = np.ones(len(games), dtype=bool) if games.placed is None else games.placed == 1
    if not seen.any():
        return math.nan, math.nan
    lead = games.outcome[seen] - 0.5
    items, item = np.unique(games.item[seen], return_inverse=True)
    units = np.zeros(len(items))
    np.add.at(units, item.ravel(), lead)
    return float(0.5 + lead.mean()), sign_flip(units, _FLIPS, np.random.default_rng(seed))


def _weights(units: int, draws: int, portion: int, seed: int) -> Iterator[Floats]:
    """Weights of the items in each draw (portion, units), none of them 0, their sum the number of items."""
    generator = np.random.default_rng(seed)
    for start in range(0, draws, portion):
        weights = generator.exponential(size=(min(portion, draws - start), units))
        yield weights * (units / weights.sum(axis=1, keepdims=True))
