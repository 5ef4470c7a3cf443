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
from metrics.statistics.intervals import normal_quantile, student_quantile
from metrics.statistics.permutation import sign_flip
from metrics.types import Floats, Ints

DRAWS = 1_000
"""Draws of the bootstrap, at most: an interval's end then errs by a fifteenth of a standard error."""
SPREAD_OF_EFFECTS = 10.0
"""Standard deviation of a normal prior on γ and β, in log odds: too wide to be seen, but for a judge that
looks at nothing else, whose effect would be infinite."""
FEW_ITEMS = 20
_STEPS = 100
_FLIPS = 10_000
_TOLERANCE = 1e-6


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

    ``strength`` is its log strength, those of all rated models adding up to 0; None where ``doubt`` says why
    no number does it justice. The model's rank is one from ``best`` to ``worst`` (1 is the strongest).
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
        models.append(Rated(strength, 1 + better, n - worse, wins, ties, losses))
    if fitted is None or own is None:
        return Ratings(tuple(models), None, None, None)
    units = len(np.unique(own.item))
    warning = f"only {units} items: the intervals are a rough guide" if units < FEW_ITEMS else None
    position, length, drawn = fitted.effects()
    return Ratings(tuple(models), position, length, drawn, warning)


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
    groups = _strong_groups(beats + _ties(games, n) > 0)
    largest = max(groups, key=len)
    met = beats + beats.T + _ties(games, n) > 0
    reached = _reach(met, largest[0])
    for model in range(n):
        if model in largest:
            continue
        doubts[model] = _why_apart(games, model, model in reached, len(largest))
    chosen = np.array(sorted(largest))
    if len(chosen) > 1 and _held_by_ties_alone(games.among(chosen), len(chosen)):
        said = "its losses and wins go one way and only ties hold it to the others: no strength is too large"
        return np.arange(0), [doubt or said for doubt in doubts]
    if len(chosen) == 1:
        doubts[chosen[0]] = _why_apart(games, int(chosen[0]), True, 1)
    return chosen, doubts


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
    """The games as rows of a regression: ``rows`` (G, n + effects), the winner's sign and which were ties."""

    rows: Floats
    sign: Floats
    tied: Floats
    n: int
    ties: bool

    @classmethod
    def of(cls, games: Games, n: int) -> "_Design":
        rows = np.zeros((len(games), n))
        every = np.arange(len(games))
        rows[every, games.first] = 1.0
        rows[every, games.second] = -1.0
        columns = [rows]
        if games.placed is not None:
            columns.append(games.placed.reshape(-1, 1))
        if games.longer is not None:
            columns.append(games.longer.reshape(-1, 1))
        tied = (games.outcome == 0.5).astype(np.float64)
        return cls(np.hstack(columns), 2 * games.outcome - 1, tied, n, bool(tied.any()))

    @property
    def width(self) -> int:
        """Number of parameters: strengths, effects, and log ν last where there are ties."""
        return int(self.rows.shape[1]) + self.ties

    def penalty(self) -> Floats:
        """Precision of the prior on effects; that of strengths is only to hold their sum at 0."""
        held = np.zeros((self.width, self.width))
        effects = np.arange(self.n, self.rows.shape[1])
        held[effects, effects] = SPREAD_OF_EFFECTS**-2
        return held

    def fit(self, weights: Floats, start: Floats) -> Floats:
        """The parameters of the largest (penalised) likelihood, from ``start`` by Newton's steps."""
        held, found = self.penalty(), start
        gauge = np.zeros_like(held)
        gauge[: self.n, : self.n] = 1.0
        value = self.likelihood(found, weights, held)
        for _ in range(_STEPS):
            slope, curve = self._derivatives(found, weights)
            step = np.linalg.solve(curve + held + gauge, slope - held @ found)
            size = 1.0
            while True:
                tried = found + size * step
                reached = self.likelihood(tried, weights, held)
                if reached >= value - 1e-12 * abs(value) or size < 1e-6:
                    break
                size /= 2
            found, value = tried, reached
            if np.abs(size * step).max() < _TOLERANCE:
                break
        return found

    def likelihood(self, found: Floats, weights: Floats, held: Floats) -> float:
        """The log-likelihood with the prior's part."""
        half, total, tie = self._terms(found)
        won = np.where(self.tied > 0, tie, self.sign * half)
        return float(weights @ (won - total) - found @ held @ found / 2)

    def _terms(self, found: Floats) -> tuple[Floats, Floats, float]:
        """Half the log odds of each game, the log of the sum of its outcomes' weights, and log ν."""
        half = self.rows @ found[: self.rows.shape[1]] / 2
        total = np.logaddexp(half, -half)
        tie = float(found[-1]) if self.ties else -math.inf
        return half, np.logaddexp(total, tie) if self.ties else total, tie

    def _derivatives(self, found: Floats, weights: Floats) -> tuple[Floats, Floats]:
        half, total, tie = self._terms(found)
        won, lost = np.exp(half - total), np.exp(-half - total)
        mean = won - lost
        slope = np.empty(self.width)
        curve = np.empty((self.width, self.width))
        k = self.rows.shape[1]
        slope[:k] = self.rows.T @ (weights * (np.where(self.tied > 0, 0.0, self.sign) - mean)) / 2
        curve[:k, :k] = (self.rows.T * (weights * (won + lost - mean**2) / 4)) @ self.rows
        if self.ties:
            drawn = np.exp(tie - total)
            slope[k] = weights @ (self.tied - drawn)
            curve[k, k] = weights @ (drawn * (1 - drawn))
            curve[k, :k] = curve[:k, k] = -self.rows.T @ (weights * mean * drawn) / 2
        return slope, curve


@dataclass(frozen=True)
class _Fitted:
    """The parameters of the games and of each draw: ``draws`` is (draws, parameters), empty without any."""

    design: _Design
    games: Games
    found: Floats
    draws: Floats
    units: int
    level: float

    @classmethod
    def of(cls, games: Games, n: int, options: StatisticsConfig) -> "_Fitted":
        design = _Design.of(games, n)
        found = design.fit(np.ones(len(games)), np.zeros(design.width))
        items, item = np.unique(games.item, return_inverse=True)
        draws = min(DRAWS, options.bootstrap_iters) if len(items) > 1 else 0
        drawn = [
            design.fit(weights[item.ravel()], found) for weights in _weights(len(items), draws, options.seed)
        ]
        return cls(
            design,
            games,
            found,
            np.array(drawn).reshape(len(drawn), design.width),
            len(items),
            options.ci_level,
        )

    def estimated(self, place: int) -> Estimated:
        """A parameter with its error bar: Student's quantile of the draws' spread."""
        value = float(self.found[place])
        if len(self.draws) < 2:
            return Estimated(value)
        stderr = self._spread(self.draws[:, place])
        reach = student_quantile(self.level, self.units - 1) * stderr
        return Estimated(value, stderr, value - reach, value + reach)

    def _spread(self, column: Floats) -> float:
        """Of draws: weights that add up to the number of items vary by (n − 1)/n too little."""
        return float(column.std(ddof=1) * math.sqrt(self.units / (self.units - 1)))

    def apart(self, place: int) -> tuple[int, int]:
        """How many models are surely stronger than one, and how many surely weaker: at the level for all of
        them together (the largest of the draws' standardised differences)."""
        others = [other for other in range(self.design.n) if other != place]
        if len(self.draws) < 2:
            return 0, 0
        apart = self.found[others] - self.found[place]
        drawn = self.draws[:, others] - self.draws[:, [place]]
        spread = np.array([self._spread(column) for column in drawn.T])
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.abs(drawn - apart) / spread
        largest = np.nan_to_num(ratios).max(axis=1)
        # Student's share of the normal quantile, as in the intervals.
        few = student_quantile(self.level, self.units - 1) / normal_quantile(self.level)
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


def _weights(units: int, draws: int, seed: int) -> Iterator[Floats]:
    """Weights of the items in each draw, none of them 0, their sum the number of items."""
    generator = np.random.default_rng(seed)
    for _ in range(draws):
        weights = generator.exponential(size=units)
        yield weights * (units / weights.sum())
