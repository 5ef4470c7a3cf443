"""Choices shown with letters: the orders they are shown in, and what stands around them."""

from collections import Counter

import pytest

from tasks.benchmarks.lettered import CHAT_TEMPLATE, TEXT_TEMPLATE, Lettering, split_cue
from tasks.datasets.config import DatasetError

COLOURS = ["red", "green", "blue"]


def test_orders_begin_with_the_items_own_and_show_each_choice_at_each_place_alike():
    orders = Lettering(CHAT_TEMPLATE, permutations=6).orders("i", COLOURS)
    assert orders[0] == [0, 1, 2]
    assert all(sorted(order) == [0, 1, 2] for order in orders)
    for block in (orders[:3], orders[3:]):
        places = Counter((place, choice) for order in block for place, choice in enumerate(order))
        assert set(places.values()) == {1}


def test_orders_hang_on_item_and_seed_and_a_longer_list_begins_with_the_shorter():
    many = Lettering(CHAT_TEMPLATE, permutations=40).orders("i", COLOURS * 2)
    assert many[:4] == Lettering(CHAT_TEMPLATE, permutations=4).orders("i", COLOURS * 2)
    assert many != Lettering(CHAT_TEMPLATE, permutations=40).orders("j", COLOURS * 2)
    assert many != Lettering(CHAT_TEMPLATE, permutations=40, seed=5).orders("i", COLOURS * 2)
    assert len({tuple(order) for order in many}) > 30


def test_choices_that_are_letters_stay_where_the_question_lists_them():
    lettering = Lettering(CHAT_TEMPLATE, permutations=4)
    assert lettering.orders("i", ["A", "B"]) == [[0, 1]]
    shown = lettering.shown("Why?\nA. so\nB. thus\nAnswer:", ["A", "B"], [0, 1])
    assert shown == "Why?\nA. so\nB. thus\n\nReply with the letter of the right choice alone."


def test_a_chat_is_told_how_to_reply_and_a_completion_begun():
    question = "Question: why?\nAnswer:"
    asked = Lettering(CHAT_TEMPLATE).shown(question, COLOURS, [2, 0, 1])
    assert asked == (
        "Question: why?\n\nA. blue\nB. red\nC. green\n\nReply with the letter of the right choice alone."
    )
    begun = Lettering(TEXT_TEMPLATE).shown(question, COLOURS, [0, 1, 2])
    assert begun == "Question: why?\nA. red\nB. green\nC. blue\nAnswer:"
    assert Lettering(CHAT_TEMPLATE).solved(question, COLOURS) == begun


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Q\nThe best answer:", ("Q", "The best answer:")),
        ("Q\nWhich of these here is it:", ("Q\nWhich of these here is it:", "")),
        ("Answer:", ("Answer:", "")),
        ("Q: why?", ("Q: why?", "")),
    ],
)
def test_only_a_short_last_line_is_a_cue(text, expected):
    assert split_cue(text) == expected


def test_what_can_not_be_lettered_is_refused_with_the_reason():
    with pytest.raises(DatasetError, match="27 choices, and 26 letters"):
        Lettering(CHAT_TEMPLATE).shown("Q", list(map(str, range(27))), range(27))
    with pytest.raises(DatasetError, match=r"choices_by.template: .*'nope' is undefined"):
        Lettering("{{ nope }}").shown("Q", COLOURS, [0, 1, 2])
