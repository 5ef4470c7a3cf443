"""Matchups: which answers meet, what a judge is asked, and what its verdicts come to."""

import numpy as np
import pytest

from metrics.errors import ConfigError
from scorers.arena import Answers, Game, matchup, played
from scorers.base import ModelReply
from scorers.config import ScoringConfig
from scorers.factory import build_scorer

PROMPT = "{{question}}: {{answer_a}} or {{answer_b}}?"


def scoring(**scorer):
    own = {"type": "arena", "prompt": PROMPT, "judges": ["judge"], **scorer}
    return ScoringConfig.model_validate({"metric_list": [], "players": ["one", "two"], "scorer": own})


@pytest.fixture
def arena(resolve):
    def built(**scorer):
        found = build_scorer(scoring(**scorer), resolve)
        return found, found.get_metrics("none")[0]

    return built


@pytest.fixture
def batches(make_batch):
    docs = [{"question": f"q{row}"} for row in range(5)]
    references = [[] for _ in docs]
    first = make_batch(["4", "5", None, "x", "7"], references=references, docs=docs, failed=[3])
    return first, make_batch(["4", "6", "8", "y", None], references=references, docs=docs)


def test_both_orders_are_asked_and_swapped_back(arena, batches):
    scorer, metric = arena()
    both = matchup(*batches)
    asked = scorer.requests(both, metric)
    assert [request.prompt for request in asked] == ["q1: 5 or 6?", "q1: 6 or 5?"]
    games = scorer.games(both, metric, [ModelReply("Verdict: A"), ModelReply("[[A]]")])
    assert [(game.row, game.value, game.asked) for game in games] == [
        (0, 0.5, False), (0, 0.5, False),  # equal answers
        (1, 1.0, True), (1, 0.0, True),  # whoever is first wins
        (2, 0.0, False), (2, 0.0, False),  # an answer beats none
        (4, 1.0, False), (4, 1.0, False),
    ]  # fmt: skip


def test_failed_request_is_no_game(batches):
    assert matchup(*batches).scored.tolist() == [True, True, True, False, True]


def test_unreadable_verdicts_are_named_and_asked_again(arena, batches):
    scorer, metric = arena()
    replies = [ModelReply("both are fine, A and B"), ModelReply(None, "time-out")]
    assert scorer.unreadable(matchup(*batches), metric, replies) == [True, False]
    games = scorer.games(matchup(*batches), metric, replies)
    errors = [game.error for game in games if game.error]
    assert "several of the labels" in errors[0]
    assert errors[1] == "no reply: time-out"


def test_one_order_is_the_same_whoever_is_called_the_first():
    for a, b in (("4", "5"), ("x", "long " * 9), ("", "?")):
        (swapped,) = Answers(a, b).swaps(both_orders=False)
        (other,) = Answers(b, a).swaps(both_orders=False)
        assert swapped != other
    first = sum(Answers(str(n), str(n + 1)).swaps(False)[0] for n in range(1000))
    assert 420 < first < 580, "chance chooses the order"


def test_samples_of_an_item_meet_by_their_order(make_batch):
    first = make_batch(["a", "b", "c"], references=[[]] * 3, item_ids=["1", "1", "2"])
    second = make_batch(["d", "e"], references=[[]] * 2, item_ids=["1", "2"])
    both = matchup(first, second)
    assert [(answers.first, answers.second) for answers in both.predictions] == [("a", "d"), ("c", "e")]
    assert both.sample_index.tolist() == [0, 0]


def test_a_rate_needs_every_verdict():
    won, lost = Game(0, "judge", False, 1.0), Game(0, "judge", True, None, error="no label")
    assert played({"two": [(won, True)], "three": [(won, False)]}).value == 0.5
    half = played({"two": [(won, True), (lost, True)]})
    assert (half.value, half.error) == (None, "against two, judge 'judge': no label")
    assert played({"two": [(won, True)], "three": []}).error == (
        "no game against three: it has no answer to this item"
    )


def test_scale_of_more_steps_is_a_share(arena, batches):
    scorer, metric = arena(parse={"type": "number", "min": 1, "max": 5})
    games = scorer.games(matchup(*batches), metric, [ModelReply("4"), ModelReply("4")])
    assert [game.value for game in games if game.asked] == [0.75, 0.25]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"players": ["one"]}, "compares models"),
        ({"players": ["one", "two"], "baseline": "twoo"}, "did you mean 'two'"),
        ({"output_type": "multiple_choice"}, "looks at text"),
    ],
)
def test_what_no_arena_can_be_made_of(resolve, config, said):
    own = {"type": "arena", "prompt": PROMPT, "judges": ["judge"]}
    if name := config.pop("baseline", None):
        own |= {"opponents": "baseline", "baseline": name}
    whole = {"metric_list": [], "players": ["one", "two"], "scorer": own, **config}
    with pytest.raises(ConfigError, match=said):
        build_scorer(ScoringConfig.model_validate(whole), resolve)


def test_opponents_tell_results_apart(resolve):
    names = [
        build_scorer(scoring().model_copy(update={"players": players}), resolve).get_metrics("none")[0]
        for players in (("one", "two"), ("two", "one"), ("one", "two", "three"))
    ]
    signatures = [metric.signature() for metric in names]
    assert signatures[0] == signatures[1] != signatures[2]
    assert np.array_equal(names[0].aggregation.bounds, (0.0, 1.0))
