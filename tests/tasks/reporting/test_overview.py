"""All runs at a glance: headlines, leaderboard with ties, courses."""

import html
import json
import math
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tasks.history.query import compact, query
from tasks.reporting import overview
from tasks.reporting.compare import write_compare_report
from tasks.reporting.overview import PAGE, ROWS, boards, glances, shows_store, sweeps, write_index
from tasks.store.schemas import RESULTS
from tasks.store.storage import Store
from tests.tasks.reporting.recorded_runs import record, row
from tests.tasks.reporting.report_recordings import run_of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_a_run_comes_to_its_first_pair_that_has_a_number(store: Store) -> None:
    failed = row("a", 0.9, metric="hard", status="failed")
    of_group = row("a", 0.1, facets=json.dumps({"model_name": "a", "subject": "x"}))
    record(store, "monday", 1, failed, of_group, row("a", 0.5), row("b", 0.6), row("a", 40.0, metric="bleu"))
    (run,) = glances(store).runs
    assert [(score.model, score.pair, score.text) for score in run.scores] == [
        ("a", "exact_match,none", "0.5000 ± 0.0200"),
        ("b", "exact_match,none", "0.6000 ± 0.0200"),
    ]
    assert (run.asked, run.reused, run.cost, run.currency) == (7, 3, 0.5, "EUR")


def test_the_first_pair_is_the_first_of_the_run_wherever_its_rows_lie(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of several groups of a file are read at once, and come as they are done."""
    monkeypatch.setattr("tasks.history.query.ROW_GROUP", 2)
    for night in range(20):
        record(store, f"night-{night}", night, *(row("a", 0.5, metric=f"m{at:02d}") for at in range(100)))
    compact(store)
    assert {run.scores[0].pair for run in glances(store).runs} == {"m00,none"}
    (found,) = query(store, "SELECT * FROM results LIMIT 1").rows
    assert len(found) == len(RESULTS)


def test_an_answer_of_this_night_is_none_that_was_reused(store: Store) -> None:
    record(store, "monday", 1, row("a", 0.5), requests={"sent": 66, "cached": 18, "same_night": 17})
    (run,) = glances(store).runs
    assert (run.asked, run.reused) == (83, 1)


@pytest.mark.parametrize("status", ["Crashed", "Cancelled", "TimedOut", "failed"])
def test_a_run_that_ended_before_it_had_numbers_failed_and_changed_nothing(store: Store, status: str) -> None:
    record(store, "monday", 1, row("a", 0.5), status="ok")
    record(store, "tuesday", 2, status=status, message="why", config=None, models=None)
    ended, whole = glances(store).runs
    assert (ended.status, ended.changed, whole.status) == ("failed", (), "ok")


def test_costs_are_told_by_model_and_stage(store: Store) -> None:
    models = {"a": {"cost": 0.5, "saved_cost": 0.25}}
    record(store, "monday", 1, row("a", 0.5), models=models, judges={"j": {"cost": 0.125}})
    record(store, "tuesday", 2, row("a", 0.5))
    assert [dict(run.costs) for run in glances(store).runs] == [{}, {"a answering": 0.75, "j judging": 0.125}]


def test_what_has_no_price_beside_others_that_have_is_told_and_in_no_cost(store: Store) -> None:
    models = {"a": {"cost": 0.5, "prompt_tokens": 9}, "b": {"cost": 0.0, "completion_tokens": 7}}
    prices = {"currency": "USD", "a": {"prompt": 1}}
    record(store, "monday", 1, row("a", 0.5), models=models, config={"prices": prices})
    record(store, "tuesday", 2, row("a", 0.5), models=models, config={"prices": {"currency": "USD"}})
    unpriced, priced = glances(store).runs
    assert (dict(priced.costs), priced.unpriced) == ({"a answering": 0.5}, ("b",))
    assert unpriced.unpriced == (), "without any price there is no total"


def test_what_was_changed_is_told_against_the_run_of_that_benchmark_before(store: Store) -> None:
    record(store, "monday", 1, row("a", 0.5))
    record(store, "other", 2, row("a", 0.5, benchmark="products"), config={"sample_params": {"seed": 9}})
    record(
        store, "tuesday", 3, row("a", 0.5), config={"facets": ["model_name"], "sample_params": {"seed": 2}}
    )
    record(store, "wednesday", 4, row("b", 0.5), limit=20, versions={"numpy": "9"})
    # Models may take turns, as those of a suite do.
    record(
        store, "thursday", 5, row("a", 0.5), config={"facets": ["model_name"], "sample_params": {"seed": 3}}
    )
    changed = {run.name: run.changed for run in glances(store).runs}
    assert changed == {
        "thursday": ("sample_params",),
        "wednesday": ("models: b", "sample_params", "limit"),
        "tuesday": ("sample_params",),
        "other": (),
        "monday": (),
    }
    assert [run.name for run in glances(store, 3).runs] == ["thursday", "wednesday", "tuesday"]
    assert glances(store, 3).runs[2].changed == ("sample_params",)


def test_the_leaderboard_marks_who_is_not_told_apart_from_the_best(store: Store) -> None:
    record(store, "monday", 1, row("old", 0.95))
    record(store, "tuesday", 2, row("a", 0.70), row("b", 0.66), row("c", 0.60), row("old", 0.2))
    (board,) = boards(glances(store).runs)
    assert [(place.score.model, place.best, place.ties) for place in board.places] == [
        ("a", True, False),
        ("b", False, True),
        ("c", False, False),
        ("old", False, False),
    ]
    assert math.hypot(0.02, 0.02) * 1.96 == pytest.approx(0.0554, abs=1e-4)


def test_a_failed_run_takes_no_place_and_stands_behind_those_that_did_not_fail(
    store: Store, tmp_path: Path
) -> None:
    few = {"n_samples": 60, "n_scored": 3, "n_items": 60}
    whole = {"n_samples": 60, "n_scored": 60, "n_items": 60}
    record(store, "before", 0, row("good", 0.95, **few), status="failed")  # the night after it did not fail
    record(store, "monday", 1, row("good", 0.75, **whole), row("other", 0.5, **whole | {"n_scored": 57}))
    record(store, "tuesday", 2, row("good", 1.0, **few), row("broken", 1.0, **few), status="failed")
    record(store, "wednesday", 3, row("good", 0.9), dataset_digest="new", status="failed")
    (board,) = boards(glances(store).runs)
    assert [(place.score.model, place.run.name, place.best, place.failed) for place in board.places] == [
        ("good", "monday", True, False),
        ("other", "monday", False, False),
        ("good", "tuesday", False, True),
        ("broken", "tuesday", False, True),
    ]
    assert not any(place.ties for place in board.places if place.failed)
    said = ["", "57 of 60 samples scored", *["3 of 60 samples scored"] * 2]
    assert [place.score.scored for place in board.places] == said
    page = write_index(store, tmp_path).read_text()
    assert page.count("57 of 60 samples scored") == 1
    assert page.count('<span class="chip none">failed</span>') == 2


def test_a_board_of_failed_runs_alone_has_no_best(store: Store) -> None:
    record(store, "monday", 1, row("a", 0.7), row("b", 0.7), status="failed")
    (board,) = boards(glances(store).runs)
    assert [(place.best, place.ties, place.failed) for place in board.places] == [(False, False, True)] * 2


def test_a_failed_run_over_checkpoints_is_drawn_where_no_other_is(store: Store, tmp_path: Path) -> None:
    config = {
        "facets": ["model_name", "step"],
        "models": [{"name": name, "metadata": {"step": step}} for name, step in (("a", 1), ("b", 2))],
    }
    record(store, "monday", 1, row("a", 0.4), row("b", 0.4), config=config, status="failed")
    assert "</svg> monday (failed)</li>" in write_index(store, tmp_path).read_text()
    record(store, "tuesday", 2, row("a", 0.5), row("b", 0.6), config=config)
    record(store, "wednesday", 3, row("a", 1.0), row("b", 1.0), config=config, status="failed")
    ((run, _),) = sweeps(glances(store).runs).values()
    assert run.name == "tuesday"


def test_each_training_of_a_run_is_a_line_of_its_own_as_in_its_report(store: Store, tmp_path: Path) -> None:
    known = {name: {"step": int(name[-1]), "sweep": name[:-1]} for name in ("sft1", "sft2", "dpo1", "dpo2")}
    models = [{"name": name, "metadata": said} for name, said in known.items()]
    rows = [row(name, value) for name, value in zip(known, (0.1, 0.2, 0.8, 0.9), strict=True)]
    record(store, "monday", 1, *rows, config={"facets": ["model_name"], "models": models})
    page = write_index(store, tmp_path).read_text()
    assert "</svg> monday · sft</li>" in page
    assert "</svg> monday · dpo</li>" in page


STOP = {"asked_items": 40, "of_items": 100, "why": "decided"}


def test_a_run_that_stopped_says_so_at_a_glance_and_leads_nothing(store: Store, tmp_path: Path) -> None:
    record(store, "monday", 1, row("a", 0.5))
    record(store, "tuesday", 2, row("a", 0.9, n_items=40), stopped=STOP)
    stopped, whole = glances(store).runs
    assert (stopped.stopped, whole.stopped) == ("40 of 100 items, stopped: decided", None)
    assert stopped.as_dict()["stopped"] == stopped.stopped
    (board,) = boards(glances(store).runs)
    assert [place.run.name for place in board.places] == ["monday"]
    write_index(store, tmp_path)
    said = (tmp_path / ROWS).read_text().partition("= ")[2].rstrip(";\n")
    rows = {entry["name"]: entry for entry in json.loads(said)["runs"]}
    assert rows["tuesday"]["stopped"] == stopped.stopped
    assert rows["monday"]["stopped"] is None
    # Other items are a curve of their own.
    assert rows["tuesday"]["points"][0][0] == "a · 40 items" != rows["monday"]["points"][0][0]
    assert stopped.stopped in (tmp_path / PAGE).read_text()  # where no script runs


def test_only_runs_over_the_same_items_are_beside_each_other(store: Store) -> None:
    record(store, "monday", 1, row("a", 0.9), dataset_digest="of before")
    record(store, "tuesday", 2, row("b", 0.5))
    record(store, "try-out", 3, row("c", 1.0, n_items=5), limit=5)
    record(store, "lower", 4, row("a", 2.0, metric="perplexity", higher_is_better=False, benchmark="text"))
    record(store, "lower-2", 5, row("b", 1.5, metric="perplexity", higher_is_better=False, benchmark="text"))
    by_name = {
        board.benchmark: [place.score.model for place in board.places]
        for board in boards(glances(store).runs)
    }
    assert by_name == {"sums": ["b"], "text": ["b", "a"]}


def test_runs_over_as_many_other_items_are_not_beside_each_other(store: Store, tmp_path: Path) -> None:
    record(store, "first", 1, row("a", 0.8, n_items=20), samples="0-19")
    record(store, "drawn", 2, row("b", 0.7, n_items=20), limit=20, shuffle=True)
    record(store, "second", 3, row("c", 0.6, n_items=20), samples="20-39")
    record(store, "second-again", 4, row("d", 0.5, n_items=20), samples="20-39", shuffle=True)
    (board,) = boards(glances(store).runs)
    assert [place.score.model for place in board.places] == ["c", "d"]
    write_index(store, tmp_path)
    assert "exact_match,none, 20 items (20-39)" in (tmp_path / PAGE).read_text()
    rows = {entry["name"]: entry for entry in rows_of(tmp_path)["runs"]}
    assert {name: rows[name]["points"][0][0] for name in rows} == {
        "first": "a · 20 items (0-19)",
        "drawn": "b · 20 random items",
        "second": "c · 20 items (20-39)",
        "second-again": "d · 20 items (20-39)",
    }


def test_a_limit_that_leaves_nothing_out_is_none(store: Store) -> None:
    record(store, "whole", 1, row("a", 0.8))
    record(store, "limited", 2, row("b", 0.7), limit=1000, shuffle=True)
    (board,) = boards(glances(store).runs)
    assert [place.score.model for place in board.places] == ["a", "b"]


def test_a_limit_of_as_many_items_as_there_are_leaves_nothing_out(store: Store) -> None:
    record(store, "whole", 1, row("a", 0.8, n_items=20))
    record(store, "limited", 2, row("b", 0.9, n_items=20), limit=20, shuffle=True)
    record(store, "part", 3, row("c", 0.9, n_items=20), samples="0-19")
    record(store, "again", 4, row("d", 0.7, n_items=20), limit=20)
    (board,) = boards(glances(store).runs)
    assert [place.score.model for place in board.places] == ["b", "a", "d"]
    assert board.items == "20 items"


def test_which_samples_were_chosen_is_told_as_changed(store: Store) -> None:
    record(store, "monday", 1, row("a", 0.5, n_items=60), samples="0-59")
    record(store, "tuesday", 2, row("a", 0.5, n_items=5), samples="20-24")
    record(store, "wednesday", 3, row("a", 0.5, n_items=5), limit=5, shuffle=False)
    record(store, "thursday", 4, row("a", 0.5, n_items=5), limit=5, shuffle=True)
    record(store, "friday", 5, row("a", 0.5, n_items=5), limit=5, shuffle=True)
    assert [run.changed for run in glances(store).runs] == [
        (), ("shuffle",), ("limit", "samples"), ("samples",), (),
    ]  # fmt: skip


def test_the_page_links_what_is_there_and_escapes_names(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    (folder / "here").mkdir(parents=True)
    (folder / "here" / "report.html").write_text("x")
    (folder / "base vs new").mkdir()
    (folder / "base vs new" / "comparison.html").write_text("x")
    record(store, "here", 1, row("<b>a</b>", 0.5), output=str(folder / "here"))
    record(store, "gone", 2, row("a", 0.5, None), output=str(folder / "gone"))
    text = write_index(store, folder).read_text(encoding="utf-8")
    assert 'href="here/report.html"' in text
    assert "gone/report.html" not in text
    assert 'href="base%20vs%20new/comparison.html"' in text
    assert "&lt;b&gt;a&lt;/b&gt;" in text
    assert "<b>a</b>" not in text


def rows_of(folder: Path) -> dict[str, Any]:
    """What the script beside the page gives it."""
    text = (folder / ROWS).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text.removeprefix("globalThis.nightjarRuns = ").removesuffix(";\n"))
    return found


def test_all_runs_lie_in_the_script_beside_a_page_that_stays_small(store: Store, tmp_path: Path) -> None:
    for night in range(300):
        record(store, f"night-{night}", night, row("a", 0.5 + night / 1000), row("b", 0.4))
    page = write_index(store, tmp_path / "results")
    assert page.stat().st_size < 100_000
    runs = rows_of(page.parent)["runs"]
    assert [run["id"] for run in runs[:2]] == ["night-299", "night-298"]
    assert len(runs) == 300
    assert [point[0] for point in runs[0]["points"]] == ["a", "b"]


def test_the_page_has_a_run_that_ended_while_another_wrote_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write it, and the one that knows less may be the last."""
    folder = tmp_path / "results"
    record(store, "first", 1, row("a", 0.5))
    drawn = overview.page_parts

    def slowly(*given: Any) -> tuple[str, str]:
        if not folder.exists():
            record(store, "second", 2, row("b", 0.4))
            monkeypatch.setattr(overview, "page_parts", drawn)
            write_index(store, folder)
        return drawn(*given)

    monkeypatch.setattr(overview, "page_parts", slowly)
    text = write_index(store, folder).read_text(encoding="utf-8")
    assert [run["id"] for run in rows_of(folder)["runs"]] == ["second", "first"]
    assert "second" in text


def test_the_page_knows_which_comparisons_are_of_which_runs(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    record(store, "one", 1, row("a", 0.5))
    views = [run_of(lambda: iter(()), {"benchmark": "sums", "run_id": name}) for name in ("one", "two")]
    (folder / "both").mkdir(parents=True)
    write_compare_report(*views, [], folder / "both" / "comparison.html")
    (folder / "old").mkdir()
    (folder / "old" / "comparison.html").write_text("one of before")
    write_index(store, folder)
    found = {entry["name"]: entry["runs"] for entry in rows_of(folder)["comparisons"]}
    assert found == {"both": ["one", "two"], "old": []}


def test_the_page_says_that_its_times_are_utc(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "results"
    record(store, "one", 1, row("a", 0.5))
    (folder / "both").mkdir(parents=True)
    page = folder / "both" / "comparison.html"
    page.touch()
    os.utime(page, (1795484525, 1795484525))
    monkeypatch.setenv("TZ", "<+14>-14")
    time.tzset()
    try:
        text = write_index(store, folder).read_text(encoding="utf-8")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [entry["when"] for entry in rows_of(folder)["comparisons"]] == ["2026-11-24 01:42 UTC"]
    assert "<li>2026-11-02 02:00 UTC " in text
    assert re.search(r"Written \d{4}-\d\d-\d\d \d\d:\d\d UTC by", text)
    assert "Started (UTC)" in text


def test_a_folder_has_the_page_of_one_store(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    assert not shows_store(folder, store)
    record(store, "one", 1, row("a", 0.5))
    assert write_index(store, folder) == folder / PAGE
    assert shows_store(folder, store)
    assert not shows_store(folder, Store(str(tmp_path / "another")))


def test_the_script_beside_a_page_has_its_nonce_and_no_other_is_let_in(store: Store, tmp_path: Path) -> None:
    record(store, "here", 1, row("a", 0.5))
    texts = [write_index(store, tmp_path / "results").read_text(encoding="utf-8") for _ in range(2)]
    nonces = [re.findall(r"'nonce-([^']+)'", html.unescape(text)) for text in texts]
    assert [len(found) for found in nonces] == [1, 1]
    assert nonces[0] != nonces[1]
    assert f'<script src="{ROWS}" nonce="{nonces[0][0]}"></script>' in texts[0]
