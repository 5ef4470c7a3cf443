"""The plot of scores by the tokens that answers took."""

import re

import pytest

from tasks.reporting.plots import BOTTOM, TOP, TokensSpent, spent_curves
from tasks.reporting.view import ResponseView, SampleView


def sample(number: int, tokens: int | None, score: float | None, thought: str | None = "hm") -> SampleView:
    scores = {"exact_match,none": [score]}
    response = ResponseView("4", reasoning=thought, completion_tokens=tokens)
    return SampleView(f"i{number}", "m", "plain", "2 + 2", responses=[response], scores=scores)


def test_longer_thoughts_and_their_scores_are_a_line():
    spent = TokensSpent()
    for number in range(40):  # 100 tokens are right in one of four, 1,600 in three of four
        right = (number % 4 > 0) if number >= 20 else (number % 4 == 0)
        spent.add(sample(number, 1600 if number >= 20 else 100, float(right)))
    (plot,) = spent_curves(spent)
    assert (plot.title, plot.filter, plot.across) == ("exact_match", "none", "tokens")
    ((name, marks),) = [(line.name, line.marks) for line in plot.lines]
    assert name == "m · plain"
    assert [re.sub(r"0?\.(\d+)", r".\1", text) for _, _, text in marks] == [
        "m · plain, 100 tokens: .2500 (20 samples)",
        "m · plain, 1,600 tokens: .7500 (20 samples)",
    ]
    assert marks[0][0] < marks[1][0]
    assert BOTTOM >= marks[0][1] > marks[1][1] >= TOP
    assert [tick.text for tick in plot.x_ticks] == ["128", "256", "512", "1,024"]


def test_few_samples_join_their_neighbours():
    spent = TokensSpent()
    for number, tokens in enumerate([10] * 5 + [1000] * 5 + [5000]):
        spent.add(sample(number, tokens, 1.0))
    (plot,) = spent_curves(spent)
    assert [text.partition("(")[2] for _, _, text in plot.lines[0].marks] == ["5 samples)", "6 samples)"]


@pytest.mark.parametrize(
    "samples",
    [
        [sample(number, 10 * 4**number, 1.0, thought=None) for number in range(8)],
        [sample(number, 10, 1.0) for number in range(30)],
        [sample(number, None, 1.0) for number in range(30)],
        [sample(number, 10 + 100 * number, None) for number in range(30)],
    ],
    ids=["no thoughts", "all alike", "not counted", "unscored"],
)
def test_where_there_is_nothing_to_see_there_is_no_plot(samples):
    spent = TokensSpent()
    for one in samples:
        spent.add(one)
    assert spent_curves(spent) == []
