"""How nights count: by the gate, the nights before, a fixed anchor, and whether a model was asked."""

import html
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.accept import accept
from flows.compare.runs import compare_night, comparison_document
from flows.suite import judging
from flows.suite.__main__ import show_night
from flows.suite.judging import JudgedNight
from flows.suite.page import about_night, write_page
from flows.suite.plan import SuiteOptions, check_margins, check_suite, load_suite, plan_night
from flows.suite.scores import NOTHING, night_sentences
from flows.suite.words import (
    headline,
    night_document,
    noteworthy_pairs,
    pair_sentences,
    summary_markdown,
    told_sentence,
)
from metrics.errors import ConfigError
from tasks.comparison.compare import Gate
from tasks.comparison.matching import GroupKey, ItemGroup
from tasks.comparison.runs import ComparedRun, open_night
from tasks.history.nights import LOOSE_NIGHTS, Night, NightEvaluation, record_night
from tasks.store.schemas import RESULTS
from tasks.store.storage import Store
from tests.flows.made_nights import Judge, suite_file


def test_six_identical_nights_pass_however_few_their_items(night: Judge) -> None:
    outcomes = [night(wrong=[3], of=42, margin=0.02).outcome for _ in range(6)]
    assert outcomes == [None, *["pass"] * 5]


def test_inconclusive_nights_in_a_row_end_undecided_and_another_verdict_starts_the_count_anew(
    night: Judge,
) -> None:
    night(of=42)
    few = [night(wrong=[number], of=42, margin=0.02) for number in range(2)]
    assert [judged.outcome for judged in few] == ["inconclusive", "inconclusive"]
    assert all(judged.ok for judged in few)
    assert night(of=42, margin=0.02).outcome == "pass"
    again = [night(wrong=[number], of=42, margin=0.02) for number in range(4)]
    assert [judged.outcome for judged in again] == ["inconclusive", "inconclusive", "undecided", "undecided"]
    assert [judged.ok for judged in again] == [True, True, False, False]
    assert "3 inconclusive nights in a row" in headline(again[2])
    assert {judged.night.baseline for judged in again} == {(again[0].night.baseline)}


def test_a_cancelled_night_neither_counts_among_inconclusive_ones_in_a_row_nor_ends_them(
    night: Judge, tmp_path: Path
) -> None:
    night(of=42)
    assert [night(wrong=[n], of=42, margin=0.02).outcome for n in range(2)] == ["inconclusive"] * 2
    stopped = night(of=42, ok=False).night
    record_night(Store(str(tmp_path / "store")), stopped.model_copy(update={"verdict": None}))
    assert night(wrong=[3], of=42, margin=0.02).outcome == "undecided"


def test_nights_of_fewer_items_neither_count_among_inconclusive_ones_in_a_row_nor_end_them(
    night: Judge,
) -> None:
    night()
    tries = [night(wrong=[number], limit=5, margin=0.02) for number in (3, 2)]
    assert [judged.outcome for judged in tries] == ["inconclusive", "inconclusive"]
    outcomes = []
    for number in (1, 2, 3):
        outcomes.append(night(wrong=range(number, number + 20), margin=0.02).outcome)
        by_hand = night(wrong=range(50), limit=50, margin=0.02, coverage=0.001)
        assert by_hand.outcome == "regression"
    assert outcomes == ["inconclusive", "inconclusive", "undecided"]


def test_nights_of_fewer_items_take_no_part_of_an_alpha_that_others_share_and_drift_counts_none(
    night: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    real = judging.pair_courses
    monkeypatch.setattr(
        judging,
        "pair_courses",
        lambda nights, since: counted.append(since and since.night) or real(nights, since),
    )
    shared = {"alpha_over": {"nights": 30}, "margin": 0.05}
    judged = [night(of=300, limit=limit, **shared) for limit in (None, None, 5, 5, None)]
    assert [entry.spent for entry in judged] == [0, 1, 1, 2, 2]
    assert counted == [None, 1, 1, 2, 2]


def test_a_night_opens_each_record_and_run_of_nights_before_once_at_most(
    night: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path / "store"))
    for number in range(292):
        due = f"2025-{number // 28 + 1:02}-{number % 28 + 1:02}T02:30:00+00:00"
        record_night(store, Night(suite="night", run_id=f"made-{number}", started=due, evaluations=()))
    for _ in range(8):
        night()
    opened: Counter[str] = Counter()
    for name in ("read", "open_table"):
        whole = getattr(Store, name)

        def counted(self: Store, file: str, *others: Any, whole: Any = whole, **more: Any) -> Any:
            opened[file] += 1
            return whole(self, file, *others, **more)

        monkeypatch.setattr(Store, name, counted)
    judged = night(baseline="rolling")
    assert len(judged.night.baseline) == 7
    of_before = {
        file: times
        for file, times in opened.items()
        if file.startswith(("suites/", "runs/", "history/")) and f"{9:032}" not in file
    }
    assert set(of_before.values()) == {1}, of_before
    assert sum(file.startswith("suites/") for file in of_before) <= LOOSE_NIGHTS


def test_the_number_of_inconclusive_nights_is_the_gates(night: Judge) -> None:
    night(of=42)
    assert night(wrong=[1], of=42, inconclusive_nights=1).outcome == "undecided"


def test_a_loss_within_the_margin_is_worse_is_told_and_is_no_baseline(night: Judge) -> None:
    first = night()
    worse = night(wrong=range(20), margin=0.05)
    assert (worse.outcome, worse.ok, worse.night.passed) == ("worse", True, False)
    assert night(wrong=range(20), margin=0.05).night.baseline == (first.night.run_id,)
    told = noteworthy_pairs(worse)
    assert [(entry["pair"], entry["verdict"]) for entry in told] == [("exact_match,none (own)", "worse")]
    assert told[0]["difference"] == pytest.approx(-0.02)
    assert not night(wrong=range(20), margin=0.05, fail_on="worse").ok


def test_a_loss_beyond_the_margin_fails_the_night(night: Judge) -> None:
    night()
    judged = night(wrong=range(60), margin=0.02)
    assert (judged.outcome, judged.ok) == ("regression", False)


def test_a_model_that_was_asked_nothing_decides_nothing_unless_that_is_allowed(night: Judge) -> None:
    night(of=42)
    silent = night(of=42, sent=0)
    assert silent.outcome == "inconclusive"
    assert "asked nothing" in str(noteworthy_pairs(silent)[0]["reason"])
    assert night(of=42, sent=0, reused="allow").outcome == "pass"
    assert night(wrong=range(40), of=42, sent=0, reused="allow").outcome == "regression"
    assert night(of=42, sent=1).outcome == "pass"
    assert night(of=42, sent=0, model="replay").outcome == "pass"  # nobody can ask a recording


def test_a_failed_evaluation_is_said_before_that_nothing_was_asked(night: Judge) -> None:
    night(of=42)
    judged = night(of=20, sent=0)
    assert judged.outcome == "inconclusive"
    assert "coverage" in str(noteworthy_pairs(judged)[0]["reason"])


def why(judged: JudgedNight) -> dict[str, tuple[str | None, str | None]]:
    """Verdict and reason of each pair of a night."""
    assert judged.compared is not None
    return {pair.key.pair: (pair.verdict, pair.reason) for pair in judged.compared.pairs}


def test_a_night_of_which_all_failed_is_inconclusive_and_says_why(night: Judge) -> None:
    first = night()
    judged = night(failed="boom")
    assert (judged.outcome, judged.ok) == ("inconclusive", False)
    assert why(judged) == {"exact_match,none": ("inconclusive", "failed in the candidate: boom")}
    judged = night(refused=True)
    assert (judged.outcome, judged.ok) == ("inconclusive", False)
    assert f"against {first.night.run_id}: inconclusive" in headline(judged)
    assert night().outcome == "pass"


def test_a_night_with_other_metrics_is_inconclusive_and_can_be_accepted(night: Judge, tmp_path: Path) -> None:
    night()
    changed = night(metric="rouge1")
    assert (changed.outcome, changed.complete) == ("inconclusive", True)
    assert why(changed) == {
        "exact_match,none": ("inconclusive", "not in the candidate"),
        "rouge1,none": (None, "not in the baseline"),
    }
    accept(Store(str(tmp_path / "store")), changed.night.run_id, "a better metric", "somebody")
    assert night(metric="rouge1").outcome == "pass"


@pytest.mark.parametrize("before", [{"failed": "boom"}, {"refused": True}])
def test_a_night_after_one_of_which_all_failed_is_not_decided_by_it(
    night: Judge, before: dict[str, Any]
) -> None:
    night()
    lost = night(**before)
    judged = night(against=lost.night.run_id)
    assert judged.night.baseline == (lost.night.run_id,)
    assert judged.outcome == "inconclusive"
    reason = "failed in the baseline: boom" if "failed" in before else "not in the baseline"
    assert why(judged) == {"exact_match,none": (None, reason)}
    assert night().outcome == "pass"


@pytest.mark.parametrize("before", [{"failed": "boom"}, {"refused": True}])
def test_a_loss_behind_a_night_of_which_all_failed_is_found_against_the_last_one_that_has_numbers(
    night: Judge, before: dict[str, Any]
) -> None:
    there = night(baseline="last")
    night(baseline="last", **before)
    judged = night(wrong=range(300), baseline="last")
    assert judged.night.baseline == (there.night.run_id,)
    assert judged.outcome == "regression"


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b""), Path.unlink])
def test_a_baseline_whose_rows_can_not_be_read_decides_nothing_and_says_why(
    night: Judge, tmp_path: Path, damage: Callable[[Path], Any]
) -> None:
    first = night()
    name = f"history/items/{first.night.evaluations[0].run_id}.parquet"
    damage(tmp_path / "store" / name)
    judged = night(range(400))
    assert judged.night.baseline == (first.night.run_id,)
    assert judged.outcome == "inconclusive"
    ((_, reason),) = why(judged).values()
    assert name in str(reason)
    assert "python -m flows.store --repair" in str(reason)


def test_a_gated_pair_that_fails_on_its_first_night_decides_nothing_of_the_others(night: Judge) -> None:
    night()
    pairs: dict[str, Any] = {"exact_match,none": {}, "rouge1,none": {}}
    assert night(failed="boom", metric="rouge1", pairs=pairs).outcome == "inconclusive"
    with pytest.raises(ConfigError, match="neither run has a pair 'rouge1,none'"):
        night(pairs=pairs)  # everything was evaluated, and nothing is called that


def test_what_is_told_names_the_pairs_that_did_not_pass_with_their_numbers(night: Judge) -> None:
    passed = night(margin=0.02)
    assert told_sentence(passed) == headline(passed)
    lost = night(wrong=range(60), margin=0.02)
    (pair,) = noteworthy_pairs(lost)
    said = told_sentence(lost)
    assert said.startswith(f"sums {pair['pair']}: 1.0000 → 0.9400 (-0.0600), regression; 1 of 1 evaluations")
    assert said.endswith(headline(lost))
    undecided = night(failed="all refused", margin=0.02)
    (pair,) = noteworthy_pairs(undecided)
    assert told_sentence(undecided).startswith(f"sums {pair['pair']}: inconclusive ({pair['reason']}); ")
    anchored = night(wrong=range(60), margin=0.02, anchor="first", baseline=lost.night.run_id)
    said = "sums exact_match,none (own) against first: 1.0000 → 0.9400 (-0.0600), regression; "
    assert told_sentence(anchored).startswith(said)


def test_of_many_pairs_that_did_not_pass_the_first_are_told() -> None:
    pair = {"pair": "exact_match,none", "against": "last-passed", "verdict": "regression", "reason": None,
            "base": 1.0, "candidate": 0.9, "difference": -0.1}  # fmt: skip
    said = [*pair_sentences([pair | {"benchmark": f"sums_{n}"} for n in range(6)], "last-passed")]
    assert said[0] == "sums_0 exact_match,none: 1.0000 → 0.9000 (-0.1000), regression"
    assert said[3:] == ["3 more pairs did not pass"]


def test_the_headline_says_why_evaluations_failed_each_reason_once() -> None:
    full = "StoreError: store /data: can't write infer artifact:\nNo space left on device"
    night = Night(
        suite="night",
        run_id="night-1",
        started="2026-11-22",
        evaluations=(
            NightEvaluation(name="one × m", run_id="1", ok=False, message=full),
            NightEvaluation(name="two × m", run_id="2", ok=True, message="all is well"),
            NightEvaluation(name="three × m", run_id="3", ok=False, message=full),
            NightEvaluation(name="four × m", run_id="4", ok=False, message="x" * 5000),
            NightEvaluation(name="five × m", run_id="5", ok=False),
        ),
    )
    said = headline(JudgedNight(night=night, compared=None, courses=()))
    reason = "StoreError: store /data: can't write infer artifact: No space left on device"
    assert said.startswith("1 of 5 evaluations complete; failed: one × m, three × m (")
    assert f"failed: one × m, three × m ({reason}), four × m (xxxx" in said
    assert "), five × m; nothing to compare with yet" in said
    assert len(said) < 700


def test_a_judged_night_that_evaluated_nothing_is_not_complete() -> None:
    night = Night(suite="night", run_id="night-1", started="2026-11-22", evaluations=())
    judged = JudgedNight(night=night, compared=None, courses=())
    assert (judged.complete, judged.ok) == (False, False)


def test_small_steps_add_up_against_the_anchor(night: Judge) -> None:
    first = night()
    anchor, nights = first.night.run_id, []
    for step in range(1, 9):
        nights.append(night(wrong=range(3 * step), margin=0.01, anchor=anchor))
    assert [judged.outcome for judged in nights[:2]] == ["pass", "pass"]
    fallen = next(judged for judged in nights if judged.outcome == "worse")
    assert fallen.compared is not None
    assert fallen.compared.verdict == "pass"
    assert f"against the anchor {anchor}" in headline(fallen)
    assert [entry["against"] for entry in noteworthy_pairs(fallen)] == [anchor]
    assert night_document(fallen)["anchor"]["verdict"] == "regression"
    assert not fallen.night.passed


def test_the_first_night_that_passed_is_an_anchor_and_the_shipped_gate_has_it(night: Judge) -> None:
    night(ok=False)
    first = night(anchor="first")
    nights = [night(wrong=range(3 * step), margin=0.01, anchor="first") for step in range(1, 9)]
    fallen = next(judged for judged in nights if judged.outcome == "worse")
    assert fallen.anchored is not None
    assert first.night.run_id in str(fallen.anchored.base) or fallen.anchored.base == "first"
    assert "against the anchor first" in headline(fallen)
    shipped = Path(__file__).parents[2] / "deployments/suites/nightly.yaml"
    gate = load_suite(shipped).gate
    assert gate is not None
    assert gate.anchor == "first"


def test_a_slow_decline_is_told_since_the_first_night_that_passed_without_an_anchor(night: Judge) -> None:
    night(ok=False)
    first = night().night.run_id
    nights = [night(wrong=range(2 * step), margin=0.02) for step in range(1, 11)]
    told = [summary_markdown(judged) for judged in nights]
    assert {judged.outcome for judged in nights} <= {"pass", "worse"}
    assert ["## Drift" in page for page in told] == [False] * 5 + [True] * 5
    assert f"- sums exact_match,none (own): 1 → 0.98 in 10 nights since {first} (p = " in told[-1]
    (drift,) = night_document(nights[-1])["drift"]
    assert (drift["pair"], drift["anchor"], drift["night"]) == ("exact_match,none", first, 10)
    assert drift["p_value"] == pytest.approx(2.0**-19)
    assert drift["p_adjusted"] == pytest.approx(drift["p_value"] * 39 * 40 / 30)


def test_nights_count_from_an_anchor_of_the_suite_and_from_the_night_that_was_accepted(
    night: Judge, tmp_path: Path
) -> None:
    runs = [night().night.run_id for _ in range(3)]
    (drift,) = night_document(night(anchor=runs[1]))["drift"]
    assert (drift["anchor"], drift["night"]) == (runs[1], 2)
    meant = night(wrong=range(60), margin=0.02)
    assert "## Drift" in summary_markdown(meant)
    accept(Store(str(tmp_path / "store")), meant.night.run_id, "meant", "ada")
    after = night(wrong=range(60), margin=0.02)
    (drift,) = night_document(after)["drift"]
    assert (drift["anchor"], drift["night"], drift["p_value"]) == (meant.night.run_id, 1, 1.0)


def test_an_anchor_that_is_not_there_is_refused_before_the_night(tmp_path: Path) -> None:
    suite = load_suite(suite_file(tmp_path, gate={"anchor": "yesteryear"}))
    with pytest.raises(ConfigError, match="'yesteryear'"):
        check_suite(suite, SuiteOptions(store=str(tmp_path / "store")))


@pytest.mark.parametrize(
    ("items", "keys", "gate", "said"),
    [
        (42, {}, {"margin": 0.02}, "42 items can't rule out a loss of 0.02; 439 would do"),
        (42, {}, {"margin": 0}, "no number of items can rule out a loss of 0"),
        (42, {}, {"margin": 0.5}, None),
        (440, {}, {"margin": 0.02}, None),
        (440, {}, {"margin": 0.02, "pairs": {"exact_match,none": {"margin": 0.01}}}, "440 items"),
        # Repeats spread an item's score: nothing is known of that before there are answers.
        (42, {"sample_params": {"num_samples": 4}}, {"margin": 0.02}, None),
        (4, {"sample_params": {"num_samples": 4}}, {"margin": 0.02}, "4 items can't rule out"),
        (42, {"dataset": "nowhere.jsonl"}, {"margin": 0.02}, None),  # that evaluation fails by itself
    ],
)
def test_a_margin_that_the_items_can_not_decide_is_told_with_the_number_that_would_do(
    tmp_path: Path, items: int, keys: dict[str, Any], gate: dict[str, Any], said: str | None
) -> None:
    options = SuiteOptions(store=str(tmp_path / "store"))
    path = suite_file(tmp_path, items, benchmark=keys, gate=gate)
    found = check_margins(plan_night(load_suite(path), options, "x"))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]
    path = suite_file(tmp_path, items, benchmark=keys, gate=gate | {"undecidable": "refuse"})
    if said is not None:
        with pytest.raises(ConfigError, match="undecidable: warn"):
            check_margins(plan_night(load_suite(path), options, "x"))


def test_a_limit_counts_where_margins_are_checked(tmp_path: Path) -> None:
    suite = load_suite(suite_file(tmp_path, 1000, gate={"margin": 0.02}))
    assert check_margins(plan_night(suite, SuiteOptions(limit=100), "x"))
    assert not check_margins(plan_night(suite, SuiteOptions(), "x"))


def test_nights_that_share_an_alpha_are_counted_and_told(night: Judge) -> None:
    night(of=300)
    shared = {"alpha_over": {"nights": 3}, "margin": 0.05}
    told = [night_document(night(of=300, **shared))["alpha"] for _ in range(4)]
    assert [entry["night"] for entry in told] == [1, 2, 3, 1]
    assert told[1]["spent"] == pytest.approx(2 * 0.05 / 3)
    judged = night(of=300, **shared)
    assert "night 2 of 3 that share alpha 0.05: 0.017 a night, 0.033 spent" in headline(judged)
    anew = night(of=300, **{**shared, "alpha": 0.1})
    assert night_document(anew)["alpha"]["night"] == 1
    assert night_document(night(of=300))["alpha"] is None


def test_a_night_by_hand_against_another_baseline_leaves_the_suites_count_of_shared_alpha_as_it_is(
    night: Judge,
) -> None:
    shared = {"alpha_over": {"nights": 3}, "margin": 0.05}
    first = night(of=300, **shared)
    spent = [night(of=300, against=against, **shared).spent for against in (None, "last", None)]
    assert spent == [1, 0, 2]
    assert night(of=300, baseline=first.night.run_id, **shared).spent == 1  # the suite itself names another


def test_a_night_says_everywhere_that_more_answers_are_empty(
    night: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night(of=100, outcomes="fail", empty=range(90, 93))
    judged = night(of=100, outcomes="fail", empty=range(40))
    assert judged.outcome == "regression"
    assert {pair.verdict for pair in judged.compared.pairs} == {"pass"}
    said = "answers empty, own: 3 % → 40 % of 100 items, p = "
    document = night_document(judged) | {"store": str(tmp_path / "store")}
    show_night(document, None)
    headed, _, below = capsys.readouterr().out.partition("\n")
    assert said in headed
    assert said in below
    assert summary_markdown(judged).count(said) == 2
    assert [said in line for line in night_sentences([], document["comparison"])] == [False, True]
    fewer = night_document(night(of=100, outcomes="fail", empty=[90]))
    assert "answers empty" not in fewer["headline"]
    assert not [line for line in night_sentences([], fewer["comparison"]) if "answers empty" in line]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (100, 400, "compared on the 100 items of both; 300 new ones decide nothing"),
        (99, 100, "compared on the 99 items of both; 1 new one decides nothing"),
        (400, 399, "compared on the 399 items of both; 1 of the baseline's is not there"),
        (400, 100, "compared on the 100 items of both; 300 of the baseline's are not there"),
        (100, 100, None),
    ],
)
def test_a_pair_says_on_which_items_it_is_compared_where_the_runs_have_others(
    night: Judge,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: int,
    after: int,
    said: str | None,
) -> None:
    night(of=before)
    judged = night(of=after, wrong=range(before, after), margin=0.08, anchor="first")
    document = night_document(judged) | {"store": str(tmp_path / "store")}
    show_night(document, None)
    runs = open_night(judged.night, Store(str(tmp_path / "store")))
    write_page(tmp_path, about_night(judged.night, "night", "said", "pass"), runs, document["comparison"])
    page = html.unescape((tmp_path / "suite.html").read_text())
    places = (capsys.readouterr().out, summary_markdown(judged), page, json.dumps(document["anchor"]))
    assert [(said or "items of both") in place for place in places] == [said is not None] * 4


@pytest.mark.parametrize(
    ("attempt", "shown"),
    [(1, ("98", "3 reused")), (2, ("17", "81 kept from earlier in this night, 3 reused"))],
)
def test_the_page_counts_answers_as_its_sentence_does(
    night: Judge, tmp_path: Path, attempt: int, shown: tuple[str, str]
) -> None:
    night()
    judged = night()
    requests = {"sent": 17, "cached": 84, "same_night": 81, "batched": 0}
    (entry,) = judged.night.evaluations
    entry = entry.model_copy(update={"requests": requests})
    own = judged.night.model_copy(update={"evaluations": (entry,), "attempt": attempt})
    runs = open_night(own, Store(str(tmp_path / "store")))
    write_page(tmp_path, about_night(own, "night", "said", "pass"), runs, [])
    page = html.unescape((tmp_path / "suite.html").read_text())
    assert f'<dd>{shown[0]}</dd><dd class="dim">{shown[1]}</dd>' in page
    assert f"{own.run_id} · {own.place[:16].replace('T', ' ')} UTC" in page


def headlines(folder: Path, *numbers: tuple[str, str | None, dict[str, str], float]) -> str:
    """The page's table of benchmarks and models, of pass rates: model, label, other facets, value."""
    row = dict.fromkeys(RESULTS.names) | {"benchmark": "b", "filter": "none", "metric": "pass_rate"}
    row |= {"reduction": "mean", "status": "ok"}
    rows = [
        row | {"label": label, "value": value, "facets": json.dumps({"model_name": model, **facets})}
        for model, label, facets, value in numbers
    ]
    about = {"title": "night", "run": "", "said": "", "outcome": None, "baseline": "", "failed": []}
    counts = dict.fromkeys(("evaluated", "asked", "kept", "reused"), 0)
    write_page(folder, about | counts, {"run": ComparedRun("run", {}, tuple(rows))}, None)
    page = (folder / "suite.html").read_text()
    return page[page.index('id="scores"') : page.index('id="all"')]


def test_a_number_of_one_group_is_no_headline_of_its_model(tmp_path: Path) -> None:
    groups = [("own", "ok", {"topic": topic}, value) for topic, value in (("rare", 0.75), ("common", 0.5))]
    shown = headlines(tmp_path, *groups, ("other", "ok", {}, 0.25))
    assert "2 groups" in shown
    assert "0.2500" in shown
    assert "0.7500" not in shown
    assert "0.5000" not in shown


def test_a_headline_is_of_one_label_and_names_it(tmp_path: Path) -> None:
    first = ("own", "geo", {}, 0.75), ("own", "math", {}, 0.5)
    shown = headlines(tmp_path, *first, ("other", "math", {}, 0.25), ("other", "geo", {}, 0.125))
    assert "pass_rate,none · geo" in shown
    assert "0.7500" in shown
    assert "0.1250" in shown
    assert "0.2500" not in shown
    alone = headlines(tmp_path, first[0], ("other", "math", {}, 0.25))
    assert "0.2500" not in alone


def test_a_headline_names_its_prompt_where_there_are_several(tmp_path: Path) -> None:
    first, second = (("own", "ok", {"prompt_template": name}, 0.5) for name in ("short", "long"))
    assert " · short" in headlines(tmp_path, first, second)
    assert " · short" not in headlines(tmp_path, first)


def of_two_benchmarks(right: int) -> ComparedRun:
    """40 items each, of one model; nothing but the benchmark tells their pairs apart."""
    keys = [GroupKey(name, "none", "exact_match", "mean", None, (("model_name", "own"),)) for name in "ab"]
    names, value = np.array([f"q{n}" for n in range(40)], dtype=object), (np.arange(40) < right).astype(float)
    empty = {"empty": (np.arange(40) >= right).astype(float)}
    group = ItemGroup(names, names, None, value, value[:, None], None, np.ones(40, dtype=bool), empty)
    failed = {"benchmark": "b", "filter": "none", "metric": "bleu", "status": "failed", "error": "no words"}
    row = dict.fromkeys(RESULTS.names) | failed | {"reduction": "mean", "facets": "{}"}
    return ComparedRun("run", dict.fromkeys(keys, group), (row,))


def test_sentences_name_the_benchmark_where_there_are_several(night: Judge) -> None:
    gate = Gate(margin=0.05, anchor="first")
    muted = {"a exact_match,none": "muted"}
    compared = compare_night(of_two_benchmarks(40), of_two_benchmarks(10), gate, frozenset(), muted)
    first, second = compared.pairs
    compared = replace(compared, pairs=(first, replace(second, reason="a reason", code=-0.5)))
    judged = replace(night(), compared=compared, anchored=compared, gate=gate)
    assert "against the anchor first: b exact_match,none (own)" in headline(judged)
    assert "tonight's code moves kept answers: b exact_match,none (own) -0.5" in headline(judged)
    assert "b: answers empty, own: 0 % → 75 % of 40 items" in headline(judged)
    lines = list(night_sentences([of_two_benchmarks(10)], comparison_document(compared)))
    assert lines[:2] == ["failed: b none × bleu: no words", "b exact_match,none (own): a reason"]
    assert lines[2].startswith("a: answers empty, own: ")
    page = summary_markdown(judged)
    assert "- b exact_match,none (own): a reason" in page
    assert "- flipped, a exact_match,none (own): " in page


def test_a_failed_pair_is_told_with_its_model_where_there_are_several_evaluations() -> None:
    runs = [replace(of_two_benchmarks(40), manifest={"models": {name: {}}}) for name in ("own", "other")]
    told = [line for line in night_sentences(runs, NOTHING) if line.startswith("failed: ")]
    assert told == [f"failed: none × bleu of {name}: no words" for name in ("own", "other")]


def test_a_benchmark_that_was_renamed_stands_beside_its_number_of_before(
    night: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night(of=100, margin=0.02)
    judged = night(range(60), of=100, margin=0.02, benchmark="sums_v2")
    show_night({**night_document(judged), "store": str(tmp_path / "store")}, None)
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("sums_v2 "))
    assert "-0.6000" in row
    assert row.endswith("regression")
    assert "| sums → sums_v2 | own |" in summary_markdown(judged)
    document = night_document(judged)["comparison"]
    assert [(pair["benchmark"], pair["candidate_benchmark"]) for pair in document["pairs"]] == [
        ("sums", "sums_v2")
    ]
    runs = open_night(judged.night, Store(str(tmp_path / "store")))
    write_page(tmp_path, about_night(judged.night, "night", "said", "regression"), runs, document)
    assert "-0.6000" in (tmp_path / "suite.html").read_text()


def test_the_headline_stands_below_the_suites_own_name(
    night: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged = night(of=5, name="My nightly")
    show_night({**night_document(judged), "store": str(tmp_path / "store")}, None)
    assert capsys.readouterr().out.startswith("My nightly: 1 of 1 evaluations complete")
    assert summary_markdown(judged).startswith("# My nightly: ")


def test_a_night_prints_its_scores_with_verdicts_and_no_markdown(
    night: Judge, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for judged, verdict in (
        (night(of=100, margin=0.02), ""),
        (night(range(60), of=100, margin=0.02), "regression"),
    ):
        document = {**night_document(judged), "store": str(tmp_path / "store")}
        show_night(document, None)
        said = capsys.readouterr().out
        assert "|" not in said
        row = next(line for line in said.splitlines() if line.startswith("sums "))
        assert row.split()[:3] == ["sums", "own", "none"]
        assert row.endswith(verdict)
    assert "-0.6000" in row


@pytest.mark.parametrize("gate", [{"margin": 0.02, "anchor": "first"}, {"margin": 0.02}])
def test_a_night_whose_clock_was_set_back_is_inconclusive_says_so_and_is_no_baseline(
    night: Judge, monkeypatch: pytest.MonkeyPatch, gate: dict[str, Any]
) -> None:
    first = night(**gate)
    with monkeypatch.context() as clock:
        clock.setattr("flows.suite.telling.now", lambda: "2020-11-18T02:30:00.000000+00:00")
        back = night(wrong=range(60), **gate)
    assert (back.outcome, back.night.passed, back.ok) == ("inconclusive", False, True)
    said = headline(back)
    assert f"began at 2020-11-18 02:30 UTC, before {first.night.run_id}" in said
    assert "nothing to compare with" not in said
    assert f"before {first.night.run_id}" in summary_markdown(back)
    assert night_document(back)["outcome"] == "inconclusive"
    later = night(wrong=range(60), baseline="first", **gate)
    assert (later.outcome, later.night.baseline) == ("regression", (first.night.run_id,))
