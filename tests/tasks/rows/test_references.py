"""References are tried as answers to themselves before a run."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metrics.build import build_metric
from metrics.config import MetricConfig
from metrics.registry import METRICS
from scorers.config import FilterConfig, ScoringConfig
from tasks.rows import references as module
from tasks.rows.parts import PairSetup
from tasks.rows.references import Referenced, reference_warnings
from tasks.usercode.load import resolver

MONEY = (r"\$32,348", r"\$5", r"\$18.90", r"\$1{,}000", r"\$.05", r"\$32,348.00", r"-\$5", r"\$3", r"\$ 7")


def pair(metric: str, filter_name: str = "none", base_dir: str = ".", **arguments: Any) -> PairSetup:
    entry = MetricConfig(metric=metric, kwargs=arguments)
    listed = FilterConfig(name=filter_name, filter=(), metric_list=(entry,))
    scoring = ScoringConfig(output_type="generate_until", filter_list=(listed,), item_timeout=4.0)
    name = build_metric(entry, resolver(base_dir)).name
    return PairSetup(benchmark="b", scoring=scoring, filter=filter_name, metric=name, base_dir=base_dir)


def items(*references: Any) -> list[Referenced]:
    return [Referenced(f"i{place}", [gold], {}) for place, gold in enumerate(references)]


@pytest.mark.parametrize("answer", ["auto", "boxed", "whole"])
@pytest.mark.parametrize("normalise", [None, "minerva", "hendrycks"])
def test_money_passes_itself(answer: str, normalise: str | None) -> None:
    scorer, metric = pair("math_match", answer=answer, normalise=normalise).built()
    batch, rows = module._batch(metric, items(*MONEY))
    assert set(rows) == set(range(len(MONEY)))
    assert scorer.score(batch, metric).scores.score.tolist() == [metric.best] * len(rows)


def test_a_reference_that_cannot_be_right_is_named_with_its_pair() -> None:
    (said,) = reference_warnings([pair("numeric_match")], items("1", "two", "3", "four"), 60)
    assert said.startswith("none × numeric_match: the reference of 2 of 4 items is wrong as its own answer: ")
    assert ": 'i1', 'i3';" in said


def test_one_metric_under_two_filters_is_tried_once() -> None:
    pairs = [pair("numeric_match", "a"), pair("numeric_match", "b"), pair("exact_match", "b")]
    (said,) = reference_warnings(pairs, items("1", "two"), 60)
    assert said.startswith("a × numeric_match, b × numeric_match: ")


def test_of_several_references_each_must_pass() -> None:
    several = [Referenced("i0", ["1", "one"], {})]
    assert len(reference_warnings([pair("numeric_match")], several, 60)) == 1
    assert reference_warnings([pair("exact_match"), pair("token_f1")], several, 60) == []


def test_all_that_must_be_contained_is_one_answer() -> None:
    several = [Referenced("i0", ["red", "blue"], {})]
    assert reference_warnings([pair("contains", all=True), pair("contains")], several, 60) == []


def test_items_without_a_reference_are_left_to_others() -> None:
    assert reference_warnings([pair("exact_match")], [Referenced("i0", [], {})], 60) == []


def test_a_metric_without_right_answers_reads_nothing() -> None:
    def unread() -> Iterator[Referenced]:
        raise AssertionError("the dataset was read")
        yield

    assert reference_warnings([pair("bleu"), pair("rougeL"), pair("length")], unread(), 60) == []


def test_a_large_dataset_is_sampled_and_the_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    golds = ["x"] * 500

    def said(reading: int, scoring: int) -> str:
        """Where reading an item takes a second each, and looking at the clock afterwards so many."""
        ticks = itertools.chain(range(reading), itertools.count(reading, scoring))
        monkeypatch.setattr(module.time, "monotonic", lambda: float(next(ticks)))
        (sentence,) = reference_warnings([pair("numeric_match")], items(*golds), 1_800)
        return sentence

    assert "the reference of 500 of 500 items is wrong" in said(503, 1)
    assert "the reference of 64 of 64 items (tried: a sample of 64 of 500 items) is wrong" in said(503, 2_000)
    assert "the reference of 3 of 3 items (tried: 3 of the first 3 items) is wrong" in said(3, 1_000)


OWN = """\
from metrics import metric

@metric("careful", endless=True, right_answers=lambda references, **_: references)
def careful(references, predictions):
    while predictions[0] == "forever":
        pass
    return 1.0
"""


def test_a_reference_that_runs_away_is_named_and_ends(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    setup = pair("own.py:careful", base_dir=str(tmp_path))
    (said,) = reference_warnings([setup], items("1", "forever", "3"), 60)
    assert "the reference of 1 of 3 items is wrong as its own answer: 'i1';" in said


@pytest.mark.parametrize("name", [name for name in METRICS if METRICS[name].right_answers is not None])
def test_what_a_metric_calls_a_right_answer_has_its_best_score(name: str) -> None:
    golds = ["12", "7"] if name != "json_match" else ['{"a": [1, 2]}', "3"]
    assert reference_warnings([pair(name)], items(*golds), 60) == []
