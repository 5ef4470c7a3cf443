"""Strengths from games: equal to another implementation, covered by their intervals, and said in words where
no number does them justice."""

from collections.abc import Sequence

import evalica
import numpy as np
import pytest

import metrics.statistics.ratings
from metrics.config import StatisticsConfig
from metrics.statistics.ratings import Games, Ratings, longer, place_preference, rate
from metrics.types import Floats

OPTIONS = StatisticsConfig()
WITHOUT_ERRORS = StatisticsConfig(bootstrap_iters=0)


def games_of(rows: Sequence[tuple[int, int, float, int]], placed: bool = True) -> Games:
    """Games (first, second, outcome, item)."""
    first, second, outcome, item = (np.array(column) for column in zip(*rows, strict=True))
    seen = np.ones(len(rows)) if placed else None
    return Games(first, second, outcome.astype(np.float64), item, placed=seen)


def round_robin(outcomes: Sequence[Sequence[float]], items: int) -> Games:
    """``items`` items on which every two models met in both orders; ``outcomes[a][b]`` is the share of games
    that a wins against b, in whole games."""
    rows = []
    for a in range(len(outcomes)):
        for b in range(a + 1, len(outcomes)):
            wins = round(outcomes[a][b] * items)
            for item in range(items):
                won = float(item < wins)
                rows += [(a, b, won, item), (b, a, 1 - won, item)]
    return games_of(rows)


def simulated(
    rng: np.random.Generator,
    strengths: Floats,
    items: int,
    *,
    ties: float,
    place: float = 0.0,
    length: float = 0.0,
    alike: float = 0.0,
) -> Games:
    """Games by the model: ν is ``ties``, γ ``place``, β ``length``. ``alike`` is the share of items of which
    the second order's verdict follows from the same draw as the first's."""
    n = len(strengths)
    lengths = rng.lognormal(6, 0.6, (items, n)) * np.linspace(1, 1.5, n)
    columns: list[list[float]] = [[], [], [], [], []]
    for a in range(n):
        for b in range(a + 1, n):
            for item in range(items):
                apart = float(longer(lengths[item, [a]], lengths[item, [b]])[0])
                draw = rng.random()
                for first, second, sign in ((a, b, 1.0), (b, a, -1.0)):
                    if sign < 0 and rng.random() >= alike:
                        draw = rng.random()
                    half = (strengths[first] - strengths[second] + place + length * sign * apart) / 2
                    weights = np.array([np.exp(sign * half), ties, np.exp(-sign * half)])
                    of_a = (1, 0.5, 0)[int(np.searchsorted(np.cumsum(weights / weights.sum()), draw))]
                    outcome = of_a if sign > 0 else 1 - of_a
                    row = (first, second, outcome, item, sign * apart)
                    for column, value in zip(columns, row, strict=True):
                        column.append(value)
    first, second, outcome, item, apart = (np.array(column) for column in columns)
    placed = np.ones(len(first))
    return Games(first.astype(int), second.astype(int), outcome, item.astype(int), apart, placed)


def strengths(found: Ratings) -> list[float | None]:
    return [None if model.strength is None else model.strength.value for model in found.models]


def doubts(found: Ratings) -> list[str]:
    return [model.doubt or "" for model in found.models]


def test_strengths_are_those_of_evalica() -> None:
    rng = np.random.default_rng(3)
    true = np.array([1.0, 0.4, 0.1, -0.5, -1.0])
    rows = []
    for item in range(400):
        first, second = rng.choice(5, 2, replace=False)
        won = rng.random() < 1 / (1 + np.exp(true[second] - true[first]))
        rows.append((int(first), int(second), float(won), item))
    found = rate(games_of(rows, placed=False), 5, WITHOUT_ERRORS)
    winners = [evalica.Winner.X if won else evalica.Winner.Y for _, _, won, _ in rows]
    names = [[f"m{row[place]}" for row in rows] for place in (0, 1)]
    theirs = evalica.bradley_terry(*names, winners, tolerance=1e-12, limit=100_000).scores
    logs = np.log([theirs[f"m{model}"] for model in range(5)])
    assert strengths(found) == pytest.approx(list(logs - logs.mean()), abs=1e-6)


def test_two_models_differ_by_the_log_odds_of_winning() -> None:
    found = rate(round_robin([[0, 0.75], [0, 0]], 40), 2, OPTIONS)
    better, worse = (model.strength for model in found.models)
    assert better is not None
    assert worse is not None
    assert better.value - worse.value == pytest.approx(np.log(3), abs=1e-6)
    assert better.low < better.value < better.high
    # The two orders of an item agree here: 40 items and not 80 games are the evidence.
    assert better.stderr == pytest.approx(0.5 / np.sqrt(40 * 0.75 * 0.25), rel=0.15)
    assert [(model.best, model.worst) for model in found.models] == [(1, 1), (2, 2)]
    assert (found.models[0].wins, found.models[0].losses) == (60, 20)


def test_ties_have_a_weight_of_their_own() -> None:
    """Davidson: of 40 games 20 ties, 15 and 5 wins: the odds of the wins decide, ν is 20 / sqrt(75)."""
    rows = [(0, 1, outcome, item) for item, outcome in enumerate([0.5] * 20 + [1.0] * 15 + [0.0] * 5)]
    found = rate(games_of(rows, placed=False), 2, WITHOUT_ERRORS)
    first, second = strengths(found)
    assert first is not None
    assert second is not None
    assert first - second == pytest.approx(np.log(3), abs=1e-6)
    assert found.ties is not None
    assert found.ties.value == pytest.approx(np.log(20 / np.sqrt(75)), abs=1e-6)


def test_only_ties_say_nothing() -> None:
    rows = [(a, b, 0.5, item) for item in range(30) for a, b in ((0, 1), (1, 2), (0, 2))]
    found = rate(games_of(rows), 3, OPTIONS)
    assert strengths(found) == [None] * 3
    assert set(doubts(found)) == {"every game was a tie: nothing tells the models apart"}
    assert {(model.best, model.worst) for model in found.models} == {(1, 3)}


def test_model_that_never_wins_has_a_sentence_and_the_others_numbers() -> None:
    found = rate(round_robin([[0, 0.6, 1], [0, 0, 1], [0, 0, 0]], 30), 3, OPTIONS)
    first, second, third = strengths(found)
    assert third is None
    assert doubts(found)[2] == "it lost all of its 120 games: no strength is too small"
    assert first is not None
    assert first == pytest.approx(-second)
    assert first > 0


def test_full_separation_of_two_models_is_said() -> None:
    found = rate(round_robin([[0, 1], [0, 0]], 30), 2, OPTIONS)
    assert strengths(found) == [None, None]
    assert doubts(found) == [
        "it won all of its 60 games: no strength is too large",
        "it lost all of its 60 games: no strength is too small",
    ]


def test_wins_that_go_one_way_and_ties_have_no_largest_likelihood() -> None:
    """20 wins and 20 ties: the more ν and the strengths grow together, the better they explain the games."""
    rows = [(0, 1, outcome, item) for item, outcome in enumerate([1.0] * 20 + [0.5] * 20)]
    found = rate(games_of(rows, placed=False), 2, OPTIONS)
    assert strengths(found) == [None, None]
    assert all("only ties hold it" in doubt for doubt in doubts(found))


def test_models_that_only_tied_leave_others_that_never_met_them_a_scale() -> None:
    """A disconnected graph with ties: three that always tied with each other, two that won by turns."""
    pairs = [(0, 1), (1, 2), (0, 2)]
    rows = [(*pair, 0.5, item) for item in range(30) for pair in pairs]
    rows += [(3, 4, outcome, item) for item, outcome in enumerate([1.0, 1.0, 0.0, 0.5] * 8)]
    found = rate(games_of(rows, placed=False), 5, OPTIONS)
    assert [value is None for value in strengths(found)] == [True, True, True, False, False]
    assert doubts(found)[0] == "its games were ties, of which nothing tells strengths apart"
    strength = found.models[3].strength
    assert strength is not None
    assert np.isfinite([strength.low, strength.high]).all()
    alone = rate(games_of([*rows[:90], (3, 4, 1.0, 0)], placed=False), 6, OPTIONS)
    assert strengths(alone) == [None] * 6
    assert doubts(alone)[3:] == [
        "it won all of its 1 games: no strength is too large",
        "it lost all of its 1 games: no strength is too small",
        "no game of it could be judged",
    ]


def test_wins_both_ways_somewhere_make_ties_enough_elsewhere() -> None:
    rows = [(0, 1, outcome, item) for item, outcome in enumerate([1.0, 0.0] * 10)]
    rows += [(1, 2, outcome, 20 + item) for item, outcome in enumerate([1.0] * 10 + [0.5] * 10)]
    found = rate(games_of(rows, placed=False), 3, OPTIONS)
    assert all(value is not None and abs(value) < 10 for value in strengths(found))


def test_models_that_never_met_are_not_on_one_scale() -> None:
    rows = [(a, b, won, item) for item, won in enumerate([1.0, 1.0, 0.0] * 8) for a, b in ((0, 1), (2, 3))]
    rows += [(4, 0, 1.0, 99)]
    found = rate(games_of(rows[:-1]), 5, OPTIONS)
    assert [value is None for value in strengths(found)] == [False, False, True, True, True]
    assert doubts(found)[2] == "it never met the models that are rated, nor any that met them"
    assert doubts(found)[4] == "no game of it could be judged"


def test_no_game_at_all() -> None:
    empty = Games(*(np.zeros(0, dtype=int),) * 2, np.zeros(0), np.zeros(0, dtype=int))
    assert doubts(rate(empty, 2, OPTIONS)) == ["no game could be judged"] * 2
    assert np.isnan(place_preference(empty, 0)[0])


def test_five_items_are_warned_about() -> None:
    found = rate(round_robin([[0, 0.6], [0, 0]], 5), 2, OPTIONS)
    assert found.warning == "only 5 items: the intervals are a rough guide"
    assert found.models[0].strength is not None
    assert found.models[0].strength.high > 0 > found.models[0].strength.low


def uneven(rng: np.random.Generator, sizes: Sequence[int]) -> Games:
    """Three models that are equal, each two of them ``sizes`` times a cluster, whose items favour some."""
    rows = []
    for cluster, size in enumerate(sizes):
        own = rng.normal(0, 0.7, 3)
        for first, second in ((0, 1), (1, 2), (2, 0)):
            won = rng.random(size) < 1 / (1 + np.exp(own[second] - own[first]))
            rows += [(first, second, float(one), cluster) for one in won]
    return games_of(rows, placed=False)


def test_a_cluster_with_most_of_the_games_leaves_strengths_uncertain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals took 42 such clusters for as many equal ones, and covered .79."""
    monkeypatch.setattr(metrics.statistics.ratings, "DRAWS", 60)
    rng, hits = np.random.default_rng(3), []
    for _ in range(60):
        found = rate(uneven(rng, [41, *[1] * 41]), 3, OPTIONS)
        assert found.warning is not None
        assert "count as 3.9" in found.warning
        hits += [one.strength.low <= 0 <= one.strength.high for one in found.models if one.strength]
    assert np.mean(hits) > 0.93
    assert rate(uneven(rng, [2] * 25), 3, OPTIONS).warning is None


@pytest.mark.parametrize("place", ["first", "second"])
def test_place_that_decides_everything_is_no_strength(place: str) -> None:
    won = float(place == "first")
    rows = [row for item in range(20) for row in ((0, 1, won, item), (1, 0, won, item))]
    found = rate(games_of(rows), 2, OPTIONS)
    assert strengths(found) == [None, None]
    assert place in doubts(found)[0]
    share, p_value = place_preference(games_of(rows), 0)
    assert share == won
    assert p_value < 0.001


def test_games_that_cancel_out_on_every_item_have_no_interval_but_a_sentence() -> None:
    # The answer shown first wins on nine items, the one shown second on three.
    found = rate(games_of([(a, 1 - a, item < 9, item) for item in range(30) for a in (0, 1)]), 2, OPTIONS)
    assert strengths(found) == pytest.approx([0.0, 0.0], abs=1e-9)
    for model in found.models:
        assert model.strength is not None
        assert np.isnan([model.strength.stderr, model.strength.low, model.strength.high]).all()
        assert (model.best, model.worst) == (1, 2)
    assert doubts(found) == ["its games say the same on every item: there is no interval"] * 2
    assert found.position is not None
    assert found.position.low < found.position.value < found.position.high


def test_games_that_are_alike_on_every_item_order_no_models() -> None:
    outcomes = ((0, 1, 1), (0, 1, 1), (0, 1, 0))
    rows = [(*pair, item) for item in range(30) for pair in outcomes]
    found = rate(games_of(rows, placed=False), 2, OPTIONS)
    assert strengths(found) == pytest.approx([np.log(2) / 2, -np.log(2) / 2], abs=1e-6)
    assert all(model.strength is not None and np.isnan(model.strength.low) for model in found.models)
    assert [(model.best, model.worst) for model in found.models] == [(1, 2), (1, 2)]


def test_interval_is_missing_only_for_the_model_whose_games_cancel_out() -> None:
    rows = [(0, 1, item < 24, item) for item in range(30)]
    rows += [(*pair, 1, item) for item in range(30) for pair in ((0, 2), (2, 0), (1, 2), (2, 1))]
    first, second, third = rate(games_of(rows, placed=False), 3, OPTIONS).models
    assert first.strength is not None
    assert second.strength is not None
    assert third.strength is not None
    assert first.strength.low < first.strength.value < first.strength.high
    assert second.strength.low < second.strength.value < second.strength.high
    assert third.strength.value == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(third.strength.low)
    assert [first.doubt, second.doubt] == [None, None]
    assert (third.best, third.worst) == (2, 2)


def test_model_that_was_always_shown_first_may_have_won_by_itself() -> None:
    found = rate(games_of([(0, 1, 1.0, item) for item in range(20)]), 2, OPTIONS)
    assert doubts(found)[0] == "it won all of its 20 games: no strength is too large"


def test_place_preference_is_none_of_the_strengths() -> None:
    """Both orders: a model that wins everything in either place says nothing of places."""
    share, p_value = place_preference(round_robin([[0, 1], [0, 0]], 30), 0)
    assert (share, p_value) == (0.5, 1.0)


def test_place_and_length_are_held_apart_from_strength() -> None:
    rng = np.random.default_rng(5)
    games = simulated(rng, np.array([0.4, 0.0, -0.4]), 400, ties=0.5, place=0.6, length=0.8)
    found = rate(games, 3, StatisticsConfig(bootstrap_iters=100))
    for estimated, true in ((found.position, 0.6), (found.length, 0.8), (found.ties, np.log(0.5))):
        assert estimated is not None
        assert abs(estimated.value - true) < 4 * estimated.stderr
        assert estimated.stderr < 0.15
    blind = Games(games.first, games.second, games.outcome, games.item, None, games.placed)
    longest = rate(blind, 3, WITHOUT_ERRORS).models[2].strength
    held = found.models[2].strength
    assert longest is not None
    assert held is not None
    assert longest.value > held.value + 0.1, "longer answers pass for strength where length is not looked at"


def covered(setting: dict[str, float], true: Floats, items: int, data_sets: int) -> tuple[float, float]:
    """The share of strengths that their intervals cover, and of ranks."""
    hits, ranks, total = 0, 0, 0
    order = np.argsort(np.argsort(-true)) + 1
    for number in range(data_sets):
        games = simulated(np.random.default_rng([len(true), items, number]), true, items, **setting)
        found = rate(games, len(true), StatisticsConfig(seed=number))
        for model, value, rank in zip(found.models, true, order, strict=True):
            if model.strength is not None:
                total += 1
                hits += model.strength.low <= value <= model.strength.high
                ranks += model.best <= rank <= model.worst
    assert total > 0.95 * data_sets * len(true), "separation is rare in these settings"
    return hits / total, ranks / total


def test_intervals_cover_true_strengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small part of the simulation: 180 strengths, of which a nominal interval misses nine."""
    monkeypatch.setattr(metrics.statistics.ratings, "DRAWS", 60)
    strengths, ranks = covered(
        {"ties": 0.5, "place": 0.4, "length": 0.3, "alike": 0.5}, np.array([0.6, 0.0, -0.6]), 25, 60
    )
    assert 0.89 <= strengths <= 1
    assert ranks >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "models", "items"),
    [
        ({"ties": 0.6, "place": 0.4, "length": 0.3}, 3, 30),
        ({"ties": 0.0, "place": 0.4, "length": 0.3, "alike": 0.8}, 3, 30),
        ({"ties": 0.6, "place": 0.4, "length": 0.3, "alike": 0.8}, 5, 60),
        ({"ties": 0.5, "length": 0.2, "alike": 0.5}, 2, 50),
        ({"ties": 0.6, "place": 0.4, "length": 0.3, "alike": 0.5}, 4, 20),
        ({"ties": 0.3, "place": 0.2, "length": 0.1, "alike": 0.5}, 8, 40),
        ({"ties": 0.6, "place": 0.4, "length": 0.3, "alike": 1.0}, 3, 200),
    ],
)
def test_intervals_cover_strengths_in_many_settings(
    setting: dict[str, float], models: int, items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics.statistics.ratings, "DRAWS", 200)
    data_sets = 1_500 // models
    strengths, ranks = covered(
        setting, np.linspace(0.8, -0.8, models) / (1 + (models == 2)), items, data_sets
    )
    error = np.sqrt(0.95 * 0.05 / (data_sets * models))
    assert 0.93 - 2 * error <= strengths <= 0.98 + 2 * error, f"{strengths:.3f}"
    assert ranks >= 0.95
