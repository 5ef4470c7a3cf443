"""Two runs side by side: which samples meet, which are shown, and what the page says."""

import base64
import dataclasses
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.reporting.compare import (
    PairView,
    ScannedRun,
    choose_pairs,
    differences,
    differing_settings,
    differing_versions,
    pair_samples,
    run_names,
    write_compare_report,
)
from tasks.reporting.report import PageLimits
from tasks.reporting.view import LabelView, ResponseView, RunView, SampleView
from tests.tasks.reporting.recorded_runs import results, row
from tests.tasks.reporting.report_recordings import HOSTILE, run_of


def sample(item: str, score: float | None = 1.0, **fields: Any) -> SampleView:
    given: dict[str, Any] = {
        "item_id": item,
        "model_name": "m",
        "prompt_template": "p",
        "prompt": f"question {item}",
        "responses": [ResponseView(f"answer {item}")],
        "scores": {"em,none": [score]},
    }
    return SampleView(**(given | fields))


def run(*samples: SampleView, **manifest: Any) -> RunView:
    return run_of(lambda: iter(samples), {"benchmark": "b", **manifest})


def paired(base: list[SampleView], candidate: list[SampleView]) -> list[tuple[int | None, int | None, bool]]:
    pairs = pair_samples(ScannedRun.of(base), ScannedRun.of(candidate))
    return [(pair.base, pair.candidate, pair.flipped) for pair in pairs]


def packed(path: Path, name: str) -> list[Any]:
    found = re.findall(rf'data-name="{name}">([^<]*)</script>', path.read_text())
    return [json.loads(gzip.decompress(base64.b64decode(text))) for text in found]


def test_items_meet_whatever_their_order_and_flips_are_seen() -> None:
    base = [sample("1"), sample("2", 0.0), sample("3")]
    candidate = [sample("3"), sample("2", 1.0), sample("4"), sample("1", None)]
    assert paired(base, candidate) == [(0, 3, True), (1, 1, True), (2, 0, False), (None, 2, False)]


def test_a_corpus_score_that_moves_a_little_is_no_flip() -> None:
    base = [sample("1", scores={"em,none": [1.0], "bleu,none": [46.0]})]
    candidate = [sample("1", scores={"em,none": [1.0], "bleu,none": [45.0]})]
    assert paired(base, candidate) == [(0, 0, False)]
    base, candidate = ([sample("1", scores={"bleu,none": [bleu]})] for bleu in (46.0, 45.0))
    assert paired(base, candidate) == [(0, 0, True)]


def test_a_label_that_passes_no_more_is_a_flip() -> None:
    def labelled(passed: bool, score: float | None = None) -> list[SampleView]:
        return [sample("1", scores={"bleu,none": [score or 46.0]}, labels=[LabelView("ok", 0, passed)])]

    assert paired(labelled(True), labelled(False)) == [(0, 0, True)]
    assert paired(labelled(True), labelled(True, score=45.0)) == [(0, 0, False)]
    graded = [[sample("1", scores={}, labels=[LabelView("ok", 0, None, score)])] for score in (0.5, 1.0)]
    assert paired(*graded) == [(0, 0, True)]


def test_items_meet_by_content_and_not_by_id() -> None:
    assert paired([sample("1", item_digest="x")], [sample("9", item_digest="x")]) == [(0, 0, False)]
    assert paired([sample("1", item_digest="x")], [sample("1", item_digest="y")]) == [
        (0, None, False),
        (None, 0, False),
    ]


def test_copies_of_an_item_meet_in_order() -> None:
    assert paired([sample("1"), sample("1")], [sample("1"), sample("1", 0.0)]) == [
        (0, 0, False),
        (1, 1, True),
    ]


def test_a_model_that_is_the_only_one_in_each_run_does_not_hold_samples_apart() -> None:
    old, new = sample("1", model_name="old"), sample("1", model_name="new")
    assert paired([old], [new]) == [(0, 0, False)]
    assert paired([old, new], [new]) == [(0, None, False), (1, 0, False)]


def test_beyond_the_limit_all_flips_and_failures_are_shown_and_it_is_said() -> None:
    base = ScannedRun.of(sample(str(n)) for n in range(100))
    candidate = ScannedRun.of(sample(str(n), 0.0 if n == 7 else None if n == 9 else 1.0) for n in range(100))
    pairs = pair_samples(base, candidate)
    chosen, statement = choose_pairs(pairs, base, candidate, PageLimits(samples=40))
    assert len(chosen) == 20
    assert {7, 9} <= {pair.base for pair in chosen}
    assert chosen == sorted(chosen, key=lambda pair: pair.base or 0)
    assert statement is not None
    assert statement.startswith("20 of 100 pairs of samples")
    assert "all 2 that changed or failed" in statement
    assert choose_pairs(pairs, base, candidate, PageLimits(samples=200)) == (pairs, None)


def test_the_page_holds_both_sides_of_each_pair(tmp_path: Path) -> None:
    base, candidate = run(sample("1"), sample("2")), run(sample("2", 0.0), sample("3"))
    written = write_compare_report(base, candidate, [], tmp_path / "c.html")
    assert (written.n_pairs, written.n_shown) == (3, 3)
    assert packed(written.path, "paired") == [{"base": [0, 1, -1], "candidate": [-1, 0, 1]}]
    texts = {
        side: [
            sample["responses"][0]["text"]
            for block in packed(written.path, side)
            for sample in block["samples"]
        ]
        for side in ("base", "candidate")
    }
    assert texts == {"base": ["answer 1", "answer 2"], "candidate": ["answer 2", "answer 3"]}


def test_rows_of_a_selection_point_at_the_samples_that_were_written(tmp_path: Path) -> None:
    base = run(*(sample(str(n)) for n in range(60)))
    candidate = run(*(sample(str(n), float(n % 20 != 0)) for n in reversed(range(60))))
    path = write_compare_report(base, candidate, [], tmp_path / "c.html", limits=PageLimits(samples=20)).path
    (rows,) = packed(path, "paired")
    items = {side: packed(path, f"{side}-index")[0]["item"] for side in ("base", "candidate")}
    assert len(rows["base"]) == 10
    for before, after in zip(rows["base"], rows["candidate"], strict=True):
        assert items["base"][before] == items["candidate"][after]


def test_the_table_says_difference_interval_corrected_p_and_verdict(tmp_path: Path) -> None:
    pair = PairView(
        "em,none", 0.3465, 0.5595, 0.213, 0.187, 0.239, 1e-9, 0.0312, 330, 49, 940, 1319, 2, 0.03, 0.01,
        verdict="pass", note="clustered by passage",
    )  # fmt: skip
    text = write_compare_report(run(), run(), [pair], tmp_path / "c.html", verdict="pass").path.read_text()
    for shown in (
        "+0.2130",
        "[0.1870, 0.2390]",
        "0.031",
        "330",
        "49",
        "940",
        "clustered by passage",
        "2 items of the base",
    ):
        assert shown in text
    assert 'class="verdict pass"' in text


def test_differences_of_other_units_have_plots_of_their_own() -> None:
    pairs = [
        PairView("em,none", 0.2, 0.3, 0.1, 0.05, 0.15),
        PairView("em,strict", 0.2, 0.1, -0.1, None, None),
        PairView("bleu,none", 34.0, 33.0, -1.0, -2.0, 0.1),
        PairView("ter,none", 60.0, 59.0, -1.0, -2.0, 0.1, higher_is_better=False),
        PairView("gone,none", 0.2, None, None),
    ]
    plots = differences(pairs)
    assert [(plot.title, [row.name for row in plot.rows]) for plot in plots] == [
        ("Shares", ["em,none", "em,strict"]),
        ("bleu,none", ["all"]),
        ("ter,none", ["all"]),
    ]
    assert plots[2].direction == "↓ lower is better"
    for plot in plots:
        assert plot.zero == plot.axis.at(0.0)
        assert 0 < (plot.zero or 0) < 100


def test_a_group_with_small_values_of_another_metric_is_not_among_the_shares() -> None:
    pairs = [
        PairView("em,none", 0.2, 0.3, 0.1, 0.05, 0.15),
        PairView("bleu,none", 0.9, 0.9, 0.0, -0.1, 0.1, group="hard"),
        PairView("bleu,none", 34.0, 33.0, -1.0, -2.0, 0.1, group="easy"),
        PairView("chrf,none", 0.9, 0.8, -0.1, -90.0, 90.0),
    ]
    assert [(plot.title, len(plot.rows)) for plot in differences(pairs)] == [
        ("Shares", 1), ("bleu,none", 2), ("chrf,none", 1),
    ]  # fmt: skip


def test_items_of_one_run_only_are_left_out_of_paired_differences_alone(tmp_path: Path) -> None:
    def said(*pairs: PairView) -> str:
        return write_compare_report(run(), run(), pairs, tmp_path / "c.html").path.read_text()

    numbers = (0.2, 0.3, 0.1, 0.05, 0.15)
    paired, apart = PairView("em,none", *numbers), PairView("f1,none", *numbers, paired=False)
    assert "left out of the differences" in (text := said(paired))
    assert "of all items of each run" not in text
    assert "part of the differences" in (text := said(apart))
    assert "Candidate minus base of all items of each run, as two samples of items;" in text
    assert "left out of the differences" not in text
    assert "left out where items are paired" in (text := said(paired, apart))
    assert "on the items that both runs scored, or, where the row says so, of all items of each run" in text


def test_wins_and_losses_lead_to_the_samples_of_their_group(tmp_path: Path) -> None:
    numbers = (0.2, 0.3, 0.1, 0.05, 0.15)
    pairs = [
        PairView("em,none", *numbers, wins=1, facets={"model_name": "a/b", "item.topic": "x & y"}),
        PairView("em,none", *numbers, wins=1),
    ]
    own: dict[str, Any] = {"model_name": "a/b", "facets": {"item.topic": "x & y"}}
    base, candidate = run(sample("1", 0.0, **own)), run(sample("1", 1.0, **own))
    text = write_compare_report(base, candidate, pairs, tmp_path / "c.html").path.read_text()
    group = "&amp;f.model_name=a%2Fb&amp;f.item.topic=x+%26+y"
    for outcome in ("better", "worse"):
        for facets in (group, ""):
            assert f'href="#samples?pair=em%2Cnone&amp;outcome={outcome}{facets}"' in text


def test_counts_lead_to_samples_only_where_these_are_counted_alike(tmp_path: Path) -> None:
    numbers = (0.2, 0.3, 0.1, 0.05, 0.15)
    pairs = [
        PairView("pass_rate,none", *numbers, wins=1, label="is ok"),
        PairView("pass@2(em),none", *numbers, wins=8, losses=9, by_mean=False),
    ]
    passed = [sample("1", labels=[LabelView("is ok", 0, right, float(right))]) for right in (False, True)]
    text = write_compare_report(*map(run, passed), pairs, tmp_path / "c.html").path.read_text()
    assert '<a href="#samples?label=is+ok&amp;outcome=better">1</a>' in text
    assert '<td class="num" data-sort="8">8</td>' in text
    assert '<td class="num" data-sort="9">9</td>' in text


def test_counts_of_groups_that_tell_the_answers_to_one_item_apart_lead_nowhere(tmp_path: Path) -> None:
    base = run(sample("1", scores={"em,none": [0.0, 1.0]}), sample("2", scores={"em,none": [1.0, 1.0]}))
    candidate = run(sample("1", scores={"em,none": [1.0, 1.0]}), sample("2", scores={"em,none": [0.0, 1.0]}))
    pairs = [
        PairView("em,none", 0.5, 0.5, 0.0, wins=1, losses=1, facets={"sample_index": "0"}),
        PairView("em,none", 0.75, 0.75, 0.0, wins=1, losses=1),
    ]
    text = write_compare_report(base, candidate, pairs, tmp_path / "c.html").path.read_text()
    assert "f.sample_index" not in text
    assert '<a href="#samples?pair=em%2Cnone&amp;outcome=worse">1</a>' in text


def test_counts_lead_to_no_choice_of_their_samples(tmp_path: Path) -> None:
    """Beyond the limit BLEUs that moved are shown only by chance where another score tells what changed."""
    samples = [sample(str(n), scores={"em,none": [1.0], "bleu,none": [40.0 + n]}) for n in range(20)]
    moved = [sample(str(n), scores={"em,none": [1.0], "bleu,none": [41.0 + n]}) for n in range(20)]

    def view(own: list[SampleView]) -> RunView:
        return RunView({"benchmark": "b"}, results(row("m", 50.0)), lambda: iter(own))

    pairs = [PairView("bleu,none", 50.0, 51.0, 1.0, wins=20)]
    for limit, linked in ((100, True), (10, False)):
        path = tmp_path / f"{limit}.html"
        write_compare_report(view(samples), view(moved), pairs, path, limits=PageLimits(samples=limit))
        assert ("outcome=better" in path.read_text().split("<script")[0]) is linked


def test_the_page_orders_items_by_their_own_numbers(tmp_path: Path) -> None:
    pairs = [
        PairView("ter,none", 60.0, 59.0, -1.0, higher_is_better=False, items_better_up=False),
        PairView("perplexity,none", 9.0, 8.0, -1.0, higher_is_better=False, items_better_up=True),
    ]
    text = write_compare_report(run(), run(), pairs, tmp_path / "c.html").path.read_text()
    (data,) = re.findall(r'id="page-data">(.*?)</script>', text)
    assert json.loads(data)["lower_is_better"] == ["ter,none"]


def test_settings_that_differ_are_listed_and_no_others() -> None:
    def manifest(temperature: float, seconds: float, **own: Any) -> dict[str, Any]:
        served = {"base_url": f"http://127.0.0.1:{seconds}/v1", "served": ["qwen"]}
        account = {"identity": {"model": "qwen"}, "served": served, "seconds": seconds, "cost": seconds}
        params = {"temperature": temperature, "seed": 1}
        return {"config": {"sample_params": params}, "models": {"m": account}, "run_id": str(seconds), **own}

    base = manifest(0.0, 3.0, limit=20, versions={"numpy": "2"})
    candidate = manifest(0.7, 4.0, shuffle=True)
    candidate["models"]["m"]["identity"] = {"model": "qwen-2"}
    assert differing_settings(base, candidate) == [
        ("m: model", "qwen", "qwen-2"),
        ("sample_params · temperature", "0", "0.7"),
        ("limit", "20", "–"),
        ("shuffle", "–", "true"),
    ]
    assert differing_versions(base, candidate) == [("numpy", "2", "–")]


def test_other_items_under_the_same_name_are_what_was_changed() -> None:
    def manifest(path: str, digest: str) -> dict[str, Any]:
        return {"config": {"dataset": {"path": path}}, "dataset_digest": digest}

    same = differing_settings(manifest("q.jsonl", "1a"), manifest("q.jsonl", "2b"))
    assert same == [("dataset", "1a", "2b")]
    other = differing_settings(manifest("q.jsonl", "1a"), manifest("r.jsonl", "2b"))
    assert other == [("dataset", "1a", "2b"), ("dataset · path", "q.jsonl", "r.jsonl")]


FOLDERS = ("results/a", "results/b")


def of_models(*models: str, **manifest: Any) -> RunView:
    """A run of these models."""
    table = results(*(row(model, 0.5) for model in models))
    return dataclasses.replace(run(**manifest), results=table)


def test_runs_are_called_by_the_names_that_they_were_given() -> None:
    named = of_models("m", run_name="monday"), of_models("m", run_name="tuesday")
    assert run_names(*named, FOLDERS) == ("monday", "tuesday")
    assert run_names(named[0], named[0], FOLDERS) == FOLDERS


def test_runs_of_different_models_are_called_by_these() -> None:
    of = of_models
    assert run_names(of("m"), of("n"), FOLDERS) == ("m", "n")
    assert run_names(of("m", "o"), of("m"), FOLDERS) == ("m, o", "m")
    assert run_names(of("m", "n", "o", "p"), of("m"), FOLDERS) == ("m, n and 2 more", "m")
    assert run_names(of("m"), of("m"), FOLDERS) == FOLDERS
    assert run_names(of(*"abcd"), of(*"abef"), FOLDERS) == FOLDERS, "what is left out would differ"


def test_runs_of_the_same_models_are_called_by_when_they_began_and_never_by_a_digest_alone() -> None:
    first, second = (f"sums-{digit * 32}" for digit in "ab")

    def names(*began: Any) -> tuple[str, str]:
        one, other = (
            of_models("m", run_name=name, started=at) for name, at in zip((first, second), began, strict=True)
        )
        return run_names(one, other, FOLDERS)

    assert names(1795484525, 1795570925) == ("m · 2026-11-24 01:42 UTC", "m · 2026-11-25 01:42 UTC")
    assert names(1795484525, 1795484527) == ("m · 2026-11-24 01:42:05 UTC", "m · 2026-11-24 01:42:07 UTC")
    assert names(None, None) == ("m · sums-aaaaaaaa…", "m · sums-bbbbbbbb…")


def test_costs_are_shown_by_model_and_stage(tmp_path: Path) -> None:
    accounts = [{"models": {"qwen": {"cost": cost}}, "currency": "USD"} for cost in (0.5, 0.75)]
    views = [run(sample("1"), **account) for account in accounts]
    text = write_compare_report(*views, [], tmp_path / "c.html").path.read_text()
    assert all(
        cell in text for cell in ("<td><bdi>qwen</bdi></td><td>answering</td>", ">0.5 USD<", ">0.75 USD<")
    )
    assert 'id="costs"' not in write_compare_report(run(), run(), [], tmp_path / "d.html").path.read_text()


def test_markup_is_escaped(tmp_path: Path) -> None:
    view = run(sample(HOSTILE, prompt=HOSTILE), run_name=HOSTILE, config={"note": HOSTILE})
    pair = PairView(f"em,{HOSTILE}", 0.1, 0.2, 0.1, note=HOSTILE, group=HOSTILE)
    text = write_compare_report(
        view, run(), [pair], tmp_path / "c.html", names=(HOSTILE, "new")
    ).path.read_text()
    assert "<img" not in text
    assert "<script>document" not in text


def test_neither_run_is_kept_in_memory(tmp_path: Path) -> None:
    alive: list[int] = []

    def samples() -> Iterator[SampleView]:
        for number in range(50):
            alive.append(number)
            yield dataclasses.replace(sample(str(number)), prompt="x" * 1000)

    view = dataclasses.replace(run(sample("1")), samples=samples)
    write_compare_report(view, view, [], tmp_path / "c.html")
    assert len(alive) == 4 * 50, "two passes a run"
