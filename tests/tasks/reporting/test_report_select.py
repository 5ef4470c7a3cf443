"""Which samples a page shows when it can't show all."""

from collections.abc import Iterable

import pytest

from tasks.reporting.report import PageLimits, SampleSelection, Scan
from tasks.reporting.view import LabelView, ResponseView, SampleView


def sample(
    number: int, score: float | None = 1.0, ok: bool = True, repeats: int = 1, **fields: object
) -> SampleView:
    response = ResponseView("text") if ok else ResponseView(None, "infra_error", "time-out")
    return SampleView(
        item_id=str(number),
        model_name="m",
        prompt_template="p",
        prompt="q",
        responses=[response] * repeats,
        scores={"em,none": [score] * repeats},
        **fields,  # type: ignore[arg-type]
    )


def select(
    samples: Iterable[SampleView], limit: int, seed: int = 0, lower: frozenset[str] = frozenset()
) -> SampleSelection:
    scan = Scan(PageLimits(samples=limit, seed=seed), lower)
    for each in samples:
        scan.add(each)
    return scan.select()


def test_a_run_that_fits_is_shown_whole_and_nothing_is_said() -> None:
    assert select([sample(n) for n in range(10)], 10) == SampleSelection(None, None, None)


def test_all_failures_are_held_even_beyond_the_limit() -> None:
    samples = [sample(n, None, ok=False) if n % 2 else sample(n) for n in range(100)]
    selection = select(samples, 20)
    assert selection.chosen == frozenset(range(1, 100, 2))
    assert selection.statement is not None
    assert "50 of 100 samples" in selection.statement
    assert "all 50 that failed or are unscored" in selection.statement


def test_unscored_and_judgements_without_an_answer_are_failures() -> None:
    unscored = [sample(0, None), sample(1, labels=[LabelView("q", 0, status="unscored")])]
    selection = select([*unscored, *(sample(n) for n in range(2, 50))], 10)
    assert selection.chosen is not None
    assert {0, 1} <= selection.chosen


def test_wrong_answers_are_held_when_they_fit_and_drawn_like_the_others_when_not() -> None:
    few_wrong = select([sample(n, float(n % 10 != 0)) for n in range(100)], 30)
    assert few_wrong.chosen is not None
    assert set(range(0, 100, 10)) <= few_wrong.chosen
    assert len(few_wrong.chosen) == 30
    many_wrong = select([sample(n, float(n % 2)) for n in range(1000)], 200)
    assert many_wrong.chosen is not None
    assert 60 < sum(n % 2 for n in many_wrong.chosen) < 140
    assert many_wrong.statement is not None
    assert "scored 0" not in many_wrong.statement


def test_a_score_of_0_is_not_wrong_where_lower_is_better() -> None:
    samples = [sample(n, float(n % 10 != 0)) for n in range(1000)]
    selection = select(samples, 100, lower=frozenset({"em,none"}))
    assert selection.chosen is not None
    assert not set(range(0, 1000, 10)) <= selection.chosen


def test_the_draw_depends_on_the_seed_and_not_on_the_order() -> None:
    samples = [sample(n) for n in range(1000)]
    forwards, backwards = select(samples, 100), select(samples[::-1], 100)
    assert forwards.chosen is not None
    assert backwards.chosen is not None
    assert forwards.chosen == {999 - n for n in backwards.chosen}
    assert select(samples, 100, seed=1).chosen != forwards.chosen


def test_repeats_count_as_samples() -> None:
    selection = select([sample(n, repeats=8) for n in range(100)], 80)
    assert selection.chosen is not None
    assert len(selection.chosen) == 10
    assert selection.statement is not None
    assert "80 of 800 samples" in selection.statement


@pytest.mark.parametrize("length", [3_000, 100_000])
def test_the_cap_holds_all_texts_within_the_browsers_memory(length: int) -> None:
    scan = Scan(PageLimits(text_bytes=1_000_000, file_bytes=10**9))
    samples = [
        SampleView(str(n), "m", "p", "q", responses=[ResponseView(f"{n:05d} " * (length // 6))])
        for n in range(1000)
    ]
    for each in samples:
        scan.add(each)
    cap = scan.select().cap
    assert cap is not None
    assert 256 <= cap <= 1_024
