"""Draws of few-shot examples: the harness's sequence, its exclusions, and the draw that needs no sequence."""

from random import Random

import pytest

from tasks.benchmarks.lm_eval.benchmark import FewshotPool
from tasks.datasets.config import DatasetError

DOCS = [{"n": number} for number in range(8)]


def test_draws_follow_one_another_from_one_generator():
    draws, random = FewshotPool(DOCS, 3, seed=7).draws(), Random(7)
    for doc in DOCS:
        assert draws.examples(doc) == random.sample(DOCS, 3)


def test_the_document_itself_is_left_out_of_one_more_draw():
    draws, random = FewshotPool(DOCS, 3, excludes=True, seed=7).draws(), Random(7)
    for doc in DOCS:
        expected = [example for example in random.sample(DOCS, 4) if example != doc][:3]
        assert draws.examples(doc) == expected


def test_copies_of_the_document_cause_a_second_draw_without_them():
    docs = [{"n": 1}] * 6 + [{"n": 2}, {"n": 3}, {"n": 4}]
    draws = FewshotPool(docs, 3, excludes=True, seed=7).draws()
    for _ in range(5):
        assert sorted(example["n"] for example in draws.examples({"n": 1})) == [2, 3, 4]


@pytest.mark.parametrize("excludes", [False, True])
def test_skipped_documents_leave_the_generator_where_drawing_would(excludes):
    docs = [{"n": number // 2} for number in range(10)]
    drawn, skipped = (FewshotPool(docs, 2, excludes=excludes, seed=3).draws() for _ in range(2))
    for doc in docs[:6]:
        drawn.examples(doc)
        skipped.skip(doc)
    assert drawn.examples(docs[6]) == skipped.examples(docs[6])


def test_first_n_takes_the_first_others():
    assert FewshotPool(DOCS, 2, "first_n", excludes=True).draws().examples({"n": 0}) == [{"n": 1}, {"n": 2}]
    assert FewshotPool(DOCS, 2, "first_n").draws().examples({"n": 0}) == [{"n": 0}, {"n": 1}]


def test_per_item_depends_on_document_and_seed_alone():
    first = FewshotPool(DOCS, 3, "per_item", excludes=True, seed=1)
    again, other = first.draws(), FewshotPool(DOCS, 3, "per_item", excludes=True, seed=2)
    again.examples({"n": 5})
    assert again.examples({"n": 2}) == first.draws().examples({"n": 2})
    assert [other.draws().examples(doc) for doc in DOCS] != [first.draws().examples(doc) for doc in DOCS]
    assert all({"n": 2} not in first.draws().examples({"n": 2}) for _ in range(3))


def test_no_examples_need_no_pool():
    assert FewshotPool([], 0).draws().examples({"n": 1}) == []


@pytest.mark.parametrize("sampler", ["default", "first_n", "per_item"])
def test_more_examples_than_there_are_is_an_error(sampler):
    with pytest.raises(DatasetError, match="num_fewshot"):
        FewshotPool(DOCS, 9, sampler).draws().examples({"n": 1})
