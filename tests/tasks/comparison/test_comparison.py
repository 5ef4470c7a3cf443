"""Two runs joined item by item: matching, coverage, verdicts, identity, trends."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.compare.runs import name_of
from metrics.aggregation import build_aggregation
from metrics.errors import ConfigError
from metrics.statistics.unpaired import UNPAIRED
from tasks.comparison.compare import ComparedPair, ComparedRuns, ComparisonRules, Gate, compare_runs
from tasks.comparison.drift import drift_tests
from tasks.comparison.matching import (
    ComparisonError,
    GroupKey,
    Match,
    aggregations,
    clusters_of,
    join,
    match_across,
    match_runs,
    read_groups,
    result_key,
)
from tasks.comparison.runs import (
    ComparedRun,
    changes,
    match_groups,
    merged_run,
    open_run,
    over_facets,
    pooled_groups,
)
from tasks.comparison.trends import flapping_items, trend
from tasks.reporting.compare import compared_pairs, pass_rates
from tasks.reporting.view import RunView
from tasks.store.storage import Store

KEY = GroupKey("sums", "strict", "exact_match", "mean", None, (("model_name", "demo"),))


def groups(tmp_path: Path, values: dict[str, float | None], **other: Any) -> dict[GroupKey, Any]:
    """Item rows with one value an item; the digest is the item's name unless given."""
    row = {
        "benchmark": "sums",
        "filter": "strict",
        "metric": "exact_match",
        "reduction": "mean",
        "label": None,
    }
    row |= {"model_name": "demo", "cluster": None, "n_samples": 1} | other
    rows = [
        row | {
            "item_id": item, "item_digest": item.rstrip("'"), "value": value,
            "statistics": None if value is None else [value], "n_scored": int(value is not None),
        }
        for item, value in values.items()
    ]  # fmt: skip
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return dict(read_groups(path, path.name))


def row_of(**keys: Any) -> dict[str, Any]:
    """A row of results."""
    row = {
        "benchmark": "sums",
        "filter": "strict",
        "metric": "exact_match",
        "reduction": "mean",
        "label": None,
    }
    row |= {"facets": '{"model_name": "demo"}', "signature": None, "status": "ok", "error": None}
    return row | {"higher_is_better": True, **keys}


def run(groups: dict[GroupKey, Any], **fields: Any) -> ComparedRun:
    return ComparedRun("run", groups, **fields)


def compared(base: ComparedRun, candidate: ComparedRun, gate: Gate | None = None) -> ComparedRuns:
    matches = match_runs(base.groups, candidate.groups)
    return compare_runs(base, candidate, matches, ComparisonRules(aggregations({}, ()), gate=gate))


def only(result: ComparedRuns) -> ComparedPair:
    (pair,) = result.pairs
    return pair


def items(n: int, right: int, prefix: str = "q") -> dict[str, float | None]:
    return {f"{prefix}{index}": float(index < right) for index in range(n)}


def test_items_join_on_content_in_any_order_and_the_rest_is_counted(tmp_path: Path) -> None:
    base = groups(tmp_path, {"a": 1.0, "b": 0.0, "c": 1.0, "d": None, "e": 1.0})[KEY]
    candidate = groups(tmp_path, {"f": 1.0, "c": 0.0, "b": None, "d": 1.0, "a": 1.0})[KEY]
    joined = join(base, candidate)
    pairs = [
        (base.item_ids[i], candidate.item_ids[j]) for i, j in zip(joined.base, joined.candidate, strict=True)
    ]
    assert pairs == [("a", "a"), ("c", "c")]
    assert (joined.missing, joined.unscored, joined.unscored_base, joined.new) == (1, 1, 1, 1)
    assert joined.coverage == 3 / 5


def test_copies_of_a_row_meet_their_own_copy(tmp_path: Path) -> None:
    base = groups(tmp_path, {"a": 1.0, "a'": 0.0, "b": 1.0})[KEY]
    candidate = groups(tmp_path, {"b": 1.0, "a'": 0.0, "a": 1.0})[KEY]
    joined = join(base, candidate)
    assert np.array_equal(base.value[joined.base], candidate.value[joined.candidate])
    assert len(joined) == 3


def test_a_facet_that_is_constant_in_each_run_does_not_hold_them_apart(tmp_path: Path) -> None:
    base = groups(tmp_path, {"a": 1.0}, model_name="monday")
    candidate = groups(tmp_path, {"a": 1.0}, model_name="tuesday")
    assert match_runs(base, candidate) == [Match(next(iter(base)), next(iter(candidate)))]


def test_models_of_one_name_are_matched_and_the_others_are_not_in_the_other_run(tmp_path: Path) -> None:
    both = groups(tmp_path, {"a": 1.0}) | groups(tmp_path, {"a": 0.0}, model_name="other")
    one = groups(tmp_path, {"a": 1.0})
    assert [match.candidate is None for match in match_runs(both, one)] == [False, True]


def of_levels(tmp_path: Path, *levels: Any, right: float = 1.0) -> dict[GroupKey, Any]:
    """A group of one item for each level, as a run's file has them."""
    grouped: dict[GroupKey, Any] = {}
    for level in levels:
        facets = json.dumps({"model_name": "demo", "item.lv": level})
        grouped |= groups(tmp_path, {f"item of {level!r}".replace("'", '"'): right}, facets=facets)
    return grouped


@pytest.mark.parametrize("levels", [(1, "1"), (True, "true"), (1.5, "1.5"), ([1], "[1]")])
def test_groups_whose_values_look_alike_as_text_are_not_compared_as_one(
    tmp_path: Path, levels: tuple[Any, Any]
) -> None:
    base, candidate = of_levels(tmp_path, *levels), of_levels(tmp_path, *levels[::-1], right=0.0)
    found = match_runs(base, candidate)
    assert [match.base == match.candidate for match in found] == [True, True]
    assert len({match.key for match in found}) == 2
    assert match_across(base, "item.lv") == [Match(*base)]


def test_a_text_and_the_number_that_it_reads_like_are_one_group_where_no_run_has_both(tmp_path: Path) -> None:
    texts, numbers, both = (of_levels(tmp_path, *own) for own in (("1", "2"), (1, 2), (1, "1", 2)))
    assert match_runs(texts, numbers) == [Match(*pair) for pair in zip(texts, numbers, strict=True)]
    one = next(iter(texts))
    assert match_runs(texts, both)[0] == Match(one, one)  # and not the number's, which is another's
    assert match_runs(numbers, both) == [*(Match(key, key) for key in numbers), Match(None, one)]
    older, night = (
        {key: replace(group, digests=np.array(["same"])) for key, group in run.items()}
        for run in (texts, numbers)
    )
    older = {key: replace(group, value=np.zeros(1)) for key, group in older.items()}
    assert [group.value.tolist() for group in pooled_groups([older, night]).values()] == [[0.5], [0.5]]


def test_a_file_that_has_facets_as_text_alone_is_compared_with_new_ones(tmp_path: Path) -> None:
    old = groups(tmp_path, {"a": 1.0}, **{"item.lv": "1"}) | groups(tmp_path, {"b": 1.0}, **{"item.lv": "2"})
    for levels in ((1, 2), ("1", "2")):
        new = of_levels(tmp_path, *levels)
        assert match_runs(old, new) == [Match(*pair) for pair in zip(old, new, strict=True)]


def test_a_merged_run_has_the_results_of_its_groups_whatever_their_values_read_like(tmp_path: Path) -> None:
    rows = tuple(row_of(facets=json.dumps({"item.lv": level})) for level in (1, "1"))
    nameless = groups(tmp_path, {"a": 1.0}, model_name=None, facets=rows[0]["facets"])
    nameless |= groups(tmp_path, {"a": 1.0}, model_name=None, facets=rows[1]["facets"])
    merged = merged_run("night", {"one": run(nameless, results=rows, manifest={"models": {"demo": {}}})})
    assert [result_key(row) for row in merged.results] == list(merged.groups)


def test_a_row_over_the_facets_is_of_the_group_that_a_gate_holds_together(tmp_path: Path) -> None:
    grouped: dict[GroupKey, Any] = {}
    for prompt, topic in (("short", "x"), ("short", "y"), ("long", "x"), ("long", "y")):
        grouped |= groups(tmp_path, {f"of {topic}": 1.0}, prompt_template=prompt, topic=topic)
    rows = [row_of(model_name="demo", prompt_template=name, facets="{}") for name in ("short", "long")]
    together = over_facets(run(grouped), {"exact_match,strict"})
    assert [result_key(row) for row in rows] == list(together.groups)


def test_every_two_values_of_a_facet_are_compared_within_one_run(tmp_path: Path) -> None:
    grouped: dict[GroupKey, Any] = {}
    for name in ("small", "middle", "large"):
        grouped |= groups(tmp_path, {"a": 1.0}, model_name=name)
    found = [
        (match.base.facet("model_name"), match.candidate.facet("model_name"))
        for match in match_across(grouped, "model_name")
        if match.base and match.candidate
    ]
    assert found == [("small", "middle"), ("small", "large"), ("middle", "large")]
    with pytest.raises(ConfigError, match="the facets are model_name"):
        match_across(grouped, "prompt")


def test_a_clear_loss_is_a_regression_and_its_items_are_named(tmp_path: Path) -> None:
    base, candidate = run(groups(tmp_path, items(200, 160))), run(groups(tmp_path, items(200, 100)))
    result = compared(base, candidate, Gate(margin=0.05))
    pair = only(result)
    assert result.verdict == pair.verdict == "regression"
    assert pair.comparison is not None
    assert pair.comparison.difference == pytest.approx(-0.3)
    assert (pair.comparison.wins, pair.comparison.losses, pair.comparison.ties) == (0, 60, 140)
    assert len(pair.flipped) == 60
    assert (pair.flipped[0].item_id, pair.flipped[0].base, pair.flipped[0].candidate) == ("q100", 1.0, 0.0)


def test_the_same_loss_is_a_win_where_less_is_better(tmp_path: Path) -> None:
    base = run(groups(tmp_path, items(200, 160)), results=(row_of(higher_is_better=False),))
    candidate = run(groups(tmp_path, items(200, 100)))
    pair = only(compared(base, candidate, Gate(margin=0.05)))
    assert pair.verdict == "pass"
    assert pair.comparison is not None
    assert (pair.comparison.wins, pair.comparison.losses) == (60, 0)


def test_an_item_is_better_by_its_own_number_where_that_of_all_falls_with_it(tmp_path: Path) -> None:
    before, after = ({f"q{n}": n / 10 - 9 + gain for n in range(60)} for gain in (0.0, 0.5))
    base, candidate = (
        run(groups(tmp_path, one), results=(row_of(higher_is_better=False),)) for one in (before, after)
    )
    known = {("sums", "strict", "exact_match"): build_aggregation("perplexity")}
    rules = ComparisonRules(aggregations(known, ()), gate=Gate(margin=0.05))
    pair = only(compare_runs(base, candidate, match_runs(base.groups, candidate.groups), rules))
    assert pair.comparison is not None
    assert (pair.comparison.wins, pair.verdict) == (60, "pass")
    assert (pair.higher_is_better, pair.items_better_up) == (False, True)


def test_few_items_can_not_decide_and_say_what_they_could_have_found(tmp_path: Path) -> None:
    base, candidate = run(groups(tmp_path, items(20, 16))), run(groups(tmp_path, items(20, 15)))
    result = compared(base, candidate, Gate(margin=0.01))
    assert result.verdict == "inconclusive"
    assert "20 items find differences from" in str(only(result).reason)


def test_low_coverage_decides_nothing_however_clear_the_difference(tmp_path: Path) -> None:
    base, candidate = run(groups(tmp_path, items(200, 160))), run(groups(tmp_path, items(150, 20)))
    result = compared(base, candidate, Gate(margin=0.05, coverage=0.9))
    assert result.verdict == "inconclusive"
    assert only(result).reason == "coverage 0.75 is below the 0.9 asked for"
    assert compared(base, candidate, Gate(margin=0.05, coverage=0.7)).verdict == "regression"


def test_a_pair_that_failed_in_the_candidate_is_inconclusive_with_its_reason(tmp_path: Path) -> None:
    failed = row_of(status="failed", error="boom", higher_is_better=None)
    other = groups(tmp_path, items(5, 5), metric="bleu")
    base = run(groups(tmp_path, items(5, 5)) | other)
    result = compared(base, run(other, results=(failed,)), Gate())
    lost = next(pair for pair in result.pairs if pair.key.metric == "exact_match")
    assert (lost.verdict, lost.reason) == ("inconclusive", "failed in the candidate: boom")


def test_a_metric_of_one_name_has_the_direction_and_the_failure_of_its_own_benchmark(tmp_path: Path) -> None:
    """Over a merged night, other benchmarks have the same filter and metric."""

    def night(right: int) -> ComparedRun:
        both = groups(tmp_path, items(200, right)) | groups(
            tmp_path, items(200, 200 - right), benchmark="errors"
        )
        return run(both, results=(row_of(), row_of(benchmark="errors", higher_is_better=False)))

    result = compared(night(160), night(100), Gate(margin=0.05))
    assert {pair.key.benchmark: pair.higher_is_better for pair in result.pairs} == {
        "sums": True,
        "errors": False,
    }
    assert [pair.verdict for pair in result.pairs] == ["regression", "regression"]

    failed = row_of(status="failed", error="boom")
    result = compared(
        night(160), run(groups(tmp_path, items(5, 5), metric="bleu"), results=(failed,)), Gate()
    )
    reasons = {pair.key.benchmark: pair.reason for pair in result.pairs if pair.key.metric == "exact_match"}
    assert reasons == {"sums": "failed in the candidate: boom", "errors": "not in the candidate"}


@pytest.mark.parametrize(
    ("failed", "reason"),
    [
        ({"facets": '{"model_name": "demo"}'}, "failed in the candidate: boom"),
        ({"facets": '{"model_name": "other"}'}, "not in the candidate"),  # another model's failure
        ({"facets": '{"model_name": "unknown"}'}, "failed in the candidate: boom"),  # of any model
        ({"facets": "{}"}, "failed in the candidate: boom"),
    ],
)
def test_a_failure_is_of_its_own_model_where_there_are_several(
    tmp_path: Path, failed: dict[str, Any], reason: str
) -> None:
    other = groups(tmp_path, items(5, 5), model_name="other")
    row = row_of(status="failed", error="boom", **failed)
    result = compared(run(groups(tmp_path, items(5, 5)) | other), run(other, results=(row,)), Gate())
    assert [pair.reason for pair in result.pairs if pair.key.facet("model_name") == "demo"] == [reason]


def test_a_failure_of_some_items_is_that_of_all_items_together(tmp_path: Path) -> None:
    """A group over all subjects (``facets: overall``) is compared with runs whose failures name subjects."""
    rows = [row_of(status="failed", error=f"boom in {subject}", facets=f'{{"subject": "{subject}"}}')
            for subject in ("law", "art")]  # fmt: skip
    result = compared(run(groups(tmp_path, items(5, 5))), run({}, results=tuple(rows)), Gate())
    assert only(result).reason == "failed in the candidate: boom in law"


def test_a_failure_is_of_the_one_model_of_a_run_whatever_its_name(tmp_path: Path) -> None:
    row = row_of(status="failed", error="boom", facets='{"model_name": "tuesday"}')
    kept = groups(tmp_path, items(5, 5), metric="bleu", model_name="tuesday")
    base = groups(tmp_path, items(5, 5), model_name="monday")
    base |= groups(tmp_path, items(5, 5), metric="bleu", model_name="monday")
    result = compared(run(base), run(kept, results=(row,)), Gate())
    (lost,) = (pair for pair in result.pairs if pair.match.candidate is None)
    assert lost.reason == "failed in the candidate: boom"


def test_without_a_gate_nothing_is_judged(tmp_path: Path) -> None:
    base, candidate = run(groups(tmp_path, items(200, 160))), run(groups(tmp_path, items(200, 100)))
    result = compared(base, candidate)
    assert result.verdict is None
    assert only(result).p_adjusted is not None


def _recorded(
    groups: dict[GroupKey, Any], answers: str, signature: str = "exact_match|agg:mean"
) -> ComparedRun:
    row = row_of(signature=signature)
    return run(groups, results=(row,), manifest={"artifacts": {"filter": [{"digest": answers}]}})


def test_games_against_other_opponents_are_not_compared(tmp_path: Path) -> None:
    own = groups(tmp_path, items(200, 160))
    two, three = (_recorded(own, "same", f"win_rate|agg:mean|opponents:{who}") for who in ("a, b", "a, b, c"))
    pair = only(compared(two, three, Gate(margin=0.05)))
    assert (pair.comparison, pair.verdict) == (None, "inconclusive")
    assert pair.reason == "games against a, b and against a, b, c are two things"
    assert only(compared(two, two, Gate(margin=0.05))).verdict == "pass"


def test_letters_in_text_and_letters_of_the_first_token_are_not_compared(tmp_path: Path) -> None:
    own = groups(tmp_path, items(200, 160))
    signature = "acc_letter|agg:mean|choices_by:"
    text, token = (_recorded(own, "same", f"{signature}{way}|version:1") for way in ("letter", "first_token"))
    pair = only(compared(text, token, Gate(margin=0.05)))
    assert (pair.comparison, pair.verdict) == (None, "inconclusive")
    assert pair.reason == (
        "choices_by: letter and choices_by: first_token are two things, and are not compared"
    )
    assert only(compared(token, token, Gate(margin=0.05))).verdict == "pass"


def test_numbers_of_a_scorer_class_and_of_the_metric_itself_are_not_compared(tmp_path: Path) -> None:
    own = groups(tmp_path, items(200, 160))
    plain, by_class = _recorded(own, "same"), _recorded(own, "same", "exact_match|agg:mean|scorer:EvenLength")
    pair = only(compared(plain, by_class, Gate(margin=0.05)))
    assert (pair.comparison, pair.verdict) == (None, "inconclusive")
    assert pair.reason == (
        "numbers of the metric itself and of the scorer EvenLength are two things, and are not compared"
    )
    assert only(compared(by_class, by_class, Gate(margin=0.05))).verdict == "pass"


def test_evaluations_that_do_not_group_by_model_are_compared_by_their_signatures_too(tmp_path: Path) -> None:
    """A night names the model of each evaluation, whose rows of results do not."""
    own = groups(tmp_path, items(5, 3), model_name=None, prompt_template="default")

    def night(signature: str) -> ComparedRun:
        row = row_of(signature=signature, facets='{"prompt_template": "default"}')
        manifest = {"models": {"demo": {}}, "artifacts": {"filter": [{"digest": "same"}]}}
        return merged_run("night", {"sums": run(own, results=(row,), manifest=manifest)})

    two, three = (f"win_rate|agg:mean|opponents:{who}" for who in ("a, b", "a, b, c"))
    assert only(compared(night(two), night(two), Gate())).verdict == "pass"
    assert "are two things" in str(only(compared(night(two), night(three), Gate())).reason)


@pytest.mark.parametrize("key", ["choices_by", "cut_off"])
def test_a_change_of_how_choices_are_asked_for_or_cut_off_answers_scored_casts_doubt(key: str) -> None:
    found = changes({"config": {key: "one"}}, {"config": {key: "other"}})
    assert [(change.kind, change.what) for change in found] == [("scoring", key)]


@pytest.mark.parametrize(
    ("answers", "signature", "right", "verdict"),
    [
        ("same", "exact_match|agg:mean", 3, "pass"),
        ("other", "exact_match|agg:mean", 3, "inconclusive"),  # other answers of the same worth
        ("same", "exact_match|agg:mean|ignore_case:True", 3, "inconclusive"),
        ("same", "exact_match|agg:mean", 2, "inconclusive"),  # the metric has changed, not the answers
    ],
)
def test_runs_that_differ_in_nothing_pass_however_few_their_items(
    tmp_path: Path, answers: str, signature: str, right: int, verdict: str
) -> None:
    base = _recorded(groups(tmp_path, items(5, 3)), "same")
    candidate = _recorded(groups(tmp_path, items(5, right)), answers, signature)
    assert compared(base, candidate, Gate()).verdict == verdict
    assert compared(base, base, Gate()).verdict == "inconclusive"  # one run against itself is no second night


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (
            {"benchmark": "texts"},
            "pass",
        ),  # answers to another benchmark, of another model, behind another filter
        ({"model_name": "other"}, "pass"),
        ({"filter": "loose"}, "pass"),
        ({}, "inconclusive"),
    ],
)
def test_a_pair_passes_whose_own_answers_are_the_same_whatever_others_of_the_night_are(
    tmp_path: Path, other: dict[str, str], verdict: str
) -> None:
    own = groups(tmp_path, items(5, 3))
    place = {"benchmark": "sums", "model_name": "demo", "filter": "strict"}

    def night(answers: str) -> ComparedRun:
        parts: dict[str, dict[str, Any]] = {}
        for number, (said, at) in enumerate((("same", place), (answers, place | other))):
            part = {"benchmark": at["benchmark"], "artifacts": {"filter": []}}
            refs = parts.setdefault(at["benchmark"], part)["artifacts"]["filter"]
            refs.append(
                {"digest": f"{said}-{number}", "model_name": at["model_name"], "filter": at["filter"]}
            )
        results = (row_of(signature="exact_match|agg:mean"),)
        return run(own, results=results, parts=tuple(parts.values()))

    assert compared(night("one"), night("two"), Gate()).verdict == verdict


def test_an_evaluation_that_asked_in_blocks_has_the_answers_that_its_manifest_says(tmp_path: Path) -> None:
    """Blocks have digests of their own."""
    own = groups(tmp_path, items(5, 3))

    def night(digests: str, *same: str) -> ComparedRun:
        refs = [{"digest": digest, "filter": "strict"} for digest in digests]
        manifest = {"artifacts": {"filter": refs}, "answers_as": [*same]}
        return run(own, results=(row_of(signature="exact_match|agg:mean"),), manifest=manifest)

    assert compared(night("a"), night("bc", "a"), Gate()).verdict == "pass"
    assert compared(night("bc", "a"), night("bc", "a"), Gate()).verdict == "pass"
    assert compared(night("a"), night("bc"), Gate()).verdict == "inconclusive"


def test_answers_that_are_cut_off_are_told_though_the_first_pair_is_not_in_the_other_run(
    tmp_path: Path,
) -> None:
    """Whichever of a group's pairs both runs have, it rests on the same answers."""

    def answered(cut_off: int, *metrics: str) -> ComparedRun:
        grouped: dict[GroupKey, Any] = {}
        for metric in metrics:
            grouped |= groups(tmp_path, items(60, 60), metric=metric)
        shares = (np.arange(60) < cut_off).astype(float)
        return run({key: replace(group, outcomes={"cut_off": shares}) for key, group in grouped.items()})

    gate = Gate.model_validate({"margin": 0.99, "outcomes": "fail", "pairs": {"exact_match,strict": {}}})
    result = compared(answered(0, "rouge1", "exact_match"), answered(30, "exact_match"), gate)
    assert [(change.outcome, change.candidate, change.risen) for change in result.outcomes] == [
        ("cut_off", 0.5, True)
    ]
    assert result.verdict == "regression"


def test_only_gated_pairs_decide_and_share_the_correction(tmp_path: Path) -> None:
    worse = groups(tmp_path, items(200, 100)) | groups(tmp_path, items(200, 0), filter="loose")
    base = run(groups(tmp_path, items(200, 100)) | groups(tmp_path, items(200, 200), filter="loose"))
    gate = Gate.model_validate({"pairs": {"exact_match,strict": {"margin": 0.2}}})
    result = compared(base, run(worse), gate)
    assert {pair.key.filter: pair.verdict for pair in result.pairs} == {"strict": "pass", "loose": None}
    assert result.verdict == "pass"


def test_clusters_count_once(tmp_path: Path) -> None:
    rows = {f"q{index}": float(index < 100) for index in range(200)}
    base = groups(tmp_path, rows)
    clustered = {key: _with_clusters(group, 4) for key, group in base.items()}
    candidate = groups(tmp_path, dict.fromkeys(rows, 0.0))
    pair = only(compared(run(clustered), run(candidate)))
    assert pair.comparison is not None
    assert pair.comparison.n_clusters == 4


def test_an_evaluation_whose_rows_of_the_baseline_can_not_be_read_is_inconclusive_beside_one_that_passes(
    tmp_path: Path,
) -> None:
    one, other = (run(groups(tmp_path, items(200, 100), model_name=name)) for name in ("a", "b"))
    tonight = merged_run("tonight", {"a": one, "b": other})
    for lost in ({"b": ComparedRun("b", {}, unread={"b": "damaged"})}, {"b": run({})}, {}):
        base = merged_run("base", {"a": one, **lost})
        found = compared(base, tonight, Gate(margin=0.3))
        verdicts = {dict(pair.key.facets)["model_name"]: (pair.verdict, pair.reason) for pair in found.pairs}
        said = verdicts.pop("b")
        assert said == (("inconclusive", "damaged") if base.unread else (None, "not in the baseline"))
        assert found.verdict == ("inconclusive" if base.unread else "pass")


def test_two_nights_that_lack_one_evaluation_each_do_not_compare_what_is_left(tmp_path: Path) -> None:
    one, other = (run(groups(tmp_path, items(9, 5), model_name=name)) for name in ("a", "b"))
    base, tonight = merged_run("", {"a": one, "b": run({})}), merged_run("", {"a": run({}), "b": other})
    (lost,), (new,) = one.groups, other.groups
    assert match_groups(base, tonight) == [Match(lost, None), Match(None, new)]
    assert match_groups(base, base) == [Match(lost, lost)]
    # Checkpoints of one model are what two nights of one evaluation are about, whatever its name.
    for name in ("a", "other"):
        assert match_groups(merged_run("", {"a": one}), merged_run("", {name: other})) == [Match(lost, new)]


@pytest.mark.parametrize("sides", [(None, 4), (4, None), (8, 4)])
def test_clusters_of_the_candidate_count_and_those_of_the_baseline_where_it_has_none(
    tmp_path: Path, sides: tuple[int | None, int | None]
) -> None:
    own = [groups(tmp_path, items(200, right))[KEY] for right in (100, 0)]
    before, after = (
        replace(
            group if count is None else _with_clusters(group, count), outcomes={"cut_off": 1 - group.value}
        )
        for group, count in zip(own, sides, strict=True)
    )
    result = compared(run({KEY: before}), run({KEY: after}))
    comparison = only(result).comparison
    assert comparison is not None
    assert comparison.n_clusters == 4
    assert [outcome.p_value for outcome in result.outcomes] == [comparison.p_value]
    assert drift_tests(aggregations({}, ()))([before, after], KEY) > 0.05


def test_a_facet_without_clusters_leaves_those_of_the_others(tmp_path: Path) -> None:
    keys = [replace(KEY, facets=(*KEY.facets, ("topic", topic))) for topic in ("a", "b")]
    first, second = (groups(tmp_path, items(8, 4, topic))[KEY] for topic in ("a", "b"))
    together = over_facets(run({keys[0]: _with_clusters(first, 4), keys[1]: second}), [KEY.pair])
    (group,) = together.groups.values()
    assert group.clusters is not None
    assert list(group.clusters) == [*"0123" * 2, *[None] * 8]


def _with_clusters(group: Any, count: int) -> Any:
    from dataclasses import replace

    return replace(group, clusters=np.array([str(row % count) for row in range(len(group))], dtype=object))


def test_statistics_that_the_aggregation_can_not_add_up_are_refused_not_averaged(tmp_path: Path) -> None:
    rows = [{"benchmark": "b", "filter": "f", "metric": "m", "reduction": "mean", "item_id": "a",
             "item_digest": "a", "value": 1.0, "statistics": [1.0, 2.0]}]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "wide.parquet")
    wide = run(dict(read_groups(tmp_path / "wide.parquet", "wide")))
    assert "adds up 1 numbers an item, the rows have 2" in str(only(compared(wide, wide)).reason)


def test_the_signature_names_the_aggregation_where_there_is_no_config(tmp_path: Path) -> None:
    group = groups(tmp_path, {"a": -1.0})
    row = {"benchmark": "sums", "filter": "strict", "metric": "exact_match"}
    row |= {"signature": "ppl|agg:perplexity|version:1"}
    assert aggregations({}, [row])(KEY, group[KEY]).name == "perplexity"


def test_another_file_is_refused_with_the_columns_it_lacks(tmp_path: Path) -> None:
    pq.write_table(pa.table({"item_id": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(ComparisonError, match=r"other: .*item_digest"):
        read_groups(tmp_path / "other.parquet", "other")
    (tmp_path / "no.parquet").write_bytes(b"text")
    with pytest.raises(ComparisonError, match="not a readable Parquet file"):
        read_groups(tmp_path / "no.parquet", "no")


def test_facets_with_many_values_are_groups_of_their_own_in_order(tmp_path: Path) -> None:
    n = 5_000
    columns = {
        name: [value] * n
        for name, value in zip(("benchmark", "filter", "metric", "reduction"), "bfmr", strict=True)
    }
    columns |= {"subject": [f"s{row // 2}" for row in range(n)], "item_id": [str(row) for row in range(n)]}
    columns |= {"item_digest": columns["item_id"], "value": [1.0] * n}
    pq.write_table(pa.table(columns), tmp_path / "many.parquet")
    found = read_groups(tmp_path / "many.parquet", "many")
    assert [key.facet("subject") for key in found][:3] == ["s0", "s1", "s2"]
    assert {len(group) for group in found.values()} == {2}
    assert len(found) == n // 2


def test_another_model_behind_the_same_name_is_said_first() -> None:
    def manifest(fingerprint: str, limit: int | None = None) -> dict[str, Any]:
        identity = {"type": "openai", "base_url": "http://a/v1"}
        model = {"identity": identity, "served": {fingerprint: 10}}
        return {"models": {"qwen": model}, "config": {"name": "x", "base_dir": fingerprint}, "limit": limit}

    found = changes(manifest("qwen-v1"), manifest("qwen-v2", limit=3))
    assert [(change.kind, change.what) for change in found] == [
        ("model identity", "qwen: as served"),
        ("setting", "limit"),
    ]
    assert changes(manifest("same"), manifest("same")) == []
    assert changes({}, manifest("same")) == []


def test_a_run_that_asked_nobody_does_not_change_the_served_model() -> None:
    said = {"models": {"qwen": {"identity": {}, "served": {"qwen": 3}}}}
    silent = {"models": {"qwen": {"identity": {}, "served": {}}}}
    assert changes(said, silent) == []


def test_a_rolling_baseline_is_each_items_mean_over_the_nights_that_scored_it(tmp_path: Path) -> None:
    nights = [
        groups(tmp_path, {"a": 1.0, "b": 0.0, "x": 1.0}),
        groups(tmp_path, {"b": 1.0, "a": None}),
        groups(tmp_path, {"a": 0.0, "b": 1.0, "c": None}),
    ]
    pooled = pooled_groups(nights)[KEY]
    assert dict(zip(pooled.item_ids, pooled.value, strict=True)) == pytest.approx(
        {"a": 0.5, "b": 2 / 3, "c": math.nan}, nan_ok=True
    )
    assert pooled.scored.tolist() == [True, True, False]
    assert pooled.statistics is not None
    assert pooled.statistics[:2, 0] == pytest.approx([0.5, 2 / 3])


def test_items_that_flip_back_and_forth_are_named_with_their_course(tmp_path: Path) -> None:
    nights = [
        groups(tmp_path, {"steady": 1.0, "lost": 1.0, "flapping": 1.0}),
        groups(tmp_path, {"steady": 1.0, "lost": 0.0, "flapping": 0.0}),
        groups(tmp_path, {"steady": 1.0, "lost": 0.0, "flapping": None}),
        groups(tmp_path, {"steady": 1.0, "lost": 0.0, "flapping": 1.0}),
    ]
    found = flapping_items(KEY, nights)
    assert [(item.item_id, item.course, item.flips) for item in found] == [("flapping", "10-1", 2)]


def test_metrics_without_right_and_wrong_have_no_flapping_items(tmp_path: Path) -> None:
    nights = [groups(tmp_path, {"a": value}) for value in (0.1, 0.9, 0.2)]
    assert flapping_items(KEY, nights) == []


def test_the_slope_of_a_trend_is_that_from_one_checkpoint_to_the_next() -> None:
    falling = trend([0.80, 0.79, 0.78, 0.77, 0.76, 0.75, 0.74])
    assert falling.slope == pytest.approx(-0.01)
    assert falling.one_way
    assert not trend([0.3, 0.4, 0.7, 0.69, 0.4, 0.1]).one_way
    assert trend([0.5] * 6).slope == 0
    assert math.isnan(trend([0.1, 0.2]).slope)
    assert math.isnan(trend([]).slope)


def test_a_changed_system_fingerprint_is_told() -> None:
    def run(fingerprint: str) -> dict[str, object]:
        return {"models": {"qwen": {"identity": {}, "served": {}, "fingerprints": {fingerprint: 10}}}}

    told = list(changes(run("fp_1"), run("fp_2")))
    assert [(change.kind, change.what) for change in told] == [("model identity", "qwen: system_fingerprint")]
    assert list(changes(run("fp_1"), run("fp_1"))) == []


def test_runs_on_different_items_are_compared_as_two_samples(tmp_path: Path) -> None:
    base, candidate = groups(tmp_path, items(200, 160)), groups(tmp_path, items(200, 90, "other"))
    pair = only(compared(run(base), run(candidate)))
    assert pair.comparison is not None
    assert pair.comparison.test == "unpaired, Agresti–Caffo"
    assert pair.comparison.difference == pytest.approx(-0.35)
    assert pair.comparison.p_value < 1e-6
    assert (pair.comparison.n_items, pair.reason, pair.paired) == (400, UNPAIRED, False)
    (shown,) = compared_pairs(compared(run(base), run(candidate)))
    assert (shown.paired, shown.missing) == (False, 0)
    # A gate does not take other items for the baseline's unless it says so.
    undecided = only(compared(run(base), run(candidate), Gate(margin=0.1)))
    assert (undecided.verdict, undecided.reason) == (
        "inconclusive",
        "coverage 0 is below the 0.99 asked for",
    )
    said = only(compared(run(base), run(candidate), Gate(margin=0.1, method="unpaired")))
    assert said.verdict == "regression"
    near = groups(tmp_path, items(2000, 1600, "more"))
    close = only(compared(run(base), run(near), Gate(margin=0.1, method="unpaired")))
    assert close.verdict == "pass"


def test_only_means_and_pass_rates_are_counted_as_the_page_counts_samples(tmp_path: Path) -> None:
    config = {"metrics": [{"name": "passes", "type": "pass_rate"}, {"name": "grade", "type": "mean_score"}]}
    rates = pass_rates(RunView({"config": config}, pa.table({}), lambda: iter(())))
    keys: list[dict[str, Any]] = [
        {"metric": "exact_match"},
        {"metric": "exact_match", "reduction": "pass@2"},
        {"metric": "passes", "label": "polite"},
        {"metric": "grade", "label": "polite"},
    ]
    own = {key: group for one in keys for key, group in groups(tmp_path, items(20, 10), **one).items()}
    shown = compared_pairs(compared(run(own), run(own)), rates)
    counted = {(pair.name, pair.label) for pair in shown if pair.by_mean}
    assert counted == {("exact_match,strict", None), ("passes,strict", "polite")}


def test_a_group_whose_facet_is_empty_has_a_name_and_samples_of_its_own(tmp_path: Path) -> None:
    own = groups(tmp_path, items(20, 10), topic="") | groups(tmp_path, items(20, 10), topic="algebra")
    found = compared(run(own), run(own))
    empty, named = compared_pairs(found)
    assert (empty.group, named.group) == ("(empty)", "algebra")
    assert empty.samples("worse").endswith("&outcome=worse&f.topic=")
    assert [name_of(pair) for pair in found.pairs] == [
        "exact_match,strict (demo, (empty))",
        "exact_match,strict (demo, algebra)",
    ]


def test_clusters_of_two_fields_cross(tmp_path: Path) -> None:
    right = items(160, 100)
    own = groups(tmp_path, right, cluster="x")
    before, after = ({KEY: replace(own[KEY], clusters=_ways(160))} for _ in range(2))
    codes = clusters_of(before[KEY], np.arange(160))
    assert codes is not None
    assert codes.shape == (160, 2)
    assert [len(np.unique(column)) for column in codes.T] == [20, 8]
    pair = only(compared(run(before), run(after)))
    assert pair.comparison is not None
    assert pair.comparison.n_clusters == 8


def _ways(n: int) -> Any:
    return np.array([f"question {row // 8}\x1fprompt {row % 8}" for row in range(n)], dtype=object)


@pytest.mark.parametrize(
    "manifest",
    [
        "[1]",
        "1",
        '{"config": 3}',
        '{"models": [1]}',
        '{"models": {"a": 1}}',
        '{"versions": "1"}',
        '{"models":',
    ],
)
def test_a_folder_whose_manifest_is_none_is_refused_with_its_name(tmp_path: Path, manifest: str) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    groups(rows, items(2, 1))
    (rows / "0.parquet").rename(tmp_path / "items.parquet")
    (tmp_path / "manifest.json").write_text(manifest)
    with pytest.raises(ComparisonError, match=r"manifest\.json is no manifest of a run"):
        open_run(str(tmp_path), Store(str(tmp_path / "store")))


def test_nights_that_share_alpha_take_a_part_of_it_for_regressions_only(tmp_path: Path) -> None:
    base = run(groups(tmp_path, items(300, 200)))
    lost = run(groups(tmp_path, items(300, 184)))
    whole = only(compared(base, lost, Gate(margin=0.02)))
    part = only(compared(base, lost, Gate.model_validate({"margin": 0.02, "alpha_over": {"nights": 30}})))
    assert whole.verdict == "regression"
    assert part.verdict == "inconclusive"
    assert whole.p_adjusted is not None
    far = run(groups(tmp_path, items(300, 100)))
    shared = Gate.model_validate({"margin": 0.02, "alpha_over": {"nights": 30}})
    assert only(compared(base, far, shared)).verdict == "regression"
    assert only(compared(base, base, shared)).verdict == "pass"
    near = run(groups(tmp_path, items(300, 199)))
    assert only(compared(base, near, shared)).verdict == only(compared(base, near, Gate(margin=0.02))).verdict
