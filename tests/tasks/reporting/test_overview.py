"""All runs at a glance: headlines, leaderboard with ties, courses, and the page in a browser."""

import json
import math
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.history.record import record_run
from tasks.reporting.overview.page import write_index
from tasks.reporting.overview.runs import boards, courses, glances
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import Store

START = datetime(2026, 11, 1, 2, 0, tzinfo=UTC)
PLAIN: dict[Any, Any] = {pa.string(): "", pa.int64(): 0, pa.int32(): 0, pa.bool_(): True}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def results(*given: dict[str, Any]) -> pa.Table:
    def value(field: pa.Field, row: dict[str, Any]) -> Any:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        return row.get(field.name, None if field.nullable else PLAIN[kind])

    columns = [pa.array([value(field, row) for row in given]).cast(field.type) for field in RESULTS]
    return pa.table(columns, schema=RESULTS)


def row(model: str, value: float, stderr: float | None = 0.02, **fields: Any) -> dict[str, Any]:
    known = {
        "benchmark": "sums", "model_name": model, "prompt_template": "default", "filter": "none",
        "metric": "exact_match", "reduction": "mean", "status": "ok", "n_items": 100,
        "higher_is_better": True,
        "facets": json.dumps({"model_name": model}), "value": value, "stderr": stderr,
        "ci_low": None if stderr is None else value - 2 * stderr,
        "ci_high": None if stderr is None else value + 2 * stderr,
    }  # fmt: skip
    return {**known, **fields}


def record(store: Store, name: str, night: int, *rows: dict[str, Any], **manifest: Any) -> None:
    models = {entry["model_name"]: {"identity": {"base_url": "http://a"}} for entry in rows}
    about = {
        "run_id": name, "run_name": name, "benchmark": rows[0]["benchmark"] if rows else "sums",
        "started": (START + timedelta(days=night)).timestamp(), "requests": {"sent": 7, "cached": 3},
        "dataset_digest": "d", "config": {"facets": ["model_name"]}, "models": models, "cost": 0.5,
        "currency": "EUR", "limit": None,
    }  # fmt: skip
    record_run(store, {**about, **manifest}, [results(*rows)], [ITEM_ROWS.empty_table()])


def test_a_run_comes_to_its_first_pair_that_has_a_number(store: Store) -> None:
    failed = row("a", 0.9, metric="hard", status="failed")
    of_group = row("a", 0.1, facets=json.dumps({"model_name": "a", "subject": "x"}))
    record(store, "monday", 1, failed, of_group, row("a", 0.5), row("b", 0.6), row("a", 40.0, metric="bleu"))
    (run,) = glances(store)
    assert [(score.model, score.pair, score.text) for score in run.scores] == [
        ("a", "exact_match,none", "0.5000 ± 0.0200"),
        ("b", "exact_match,none", "0.6000 ± 0.0200"),
    ]
    assert (run.asked, run.reused, run.cost, run.currency) == (7, 3, 0.5, "EUR")


def test_costs_are_told_by_model_and_stage(store: Store) -> None:
    models = {"a": {"cost": 0.5, "saved_cost": 0.25}}
    record(store, "monday", 1, row("a", 0.5), models=models, judges={"j": {"cost": 0.125}})
    record(store, "tuesday", 2, row("a", 0.5))
    assert [dict(run.costs) for run in glances(store)] == [{}, {"a answering": 0.75, "j judging": 0.125}]


def test_what_was_changed_is_told_against_the_run_of_that_benchmark_before(store: Store) -> None:
    record(store, "monday", 1, row("a", 0.5))
    record(store, "other", 2, row("a", 0.5, benchmark="products"), config={"sample_params": {"seed": 9}})
    record(
        store, "tuesday", 3, row("a", 0.5), config={"facets": ["model_name"], "sample_params": {"seed": 2}}
    )
    record(store, "wednesday", 4, row("b", 0.5), limit=20, versions={"numpy": "9"})
    changed = {run.name: run.changed for run in glances(store)}
    assert changed == {
        "wednesday": ("models: b", "sample_params", "limit"),
        "tuesday": ("sample_params",),
        "other": (),
        "monday": (),
    }
    assert [run.name for run in glances(store, 2)] == ["wednesday", "tuesday"]
    assert glances(store, 2)[1].changed == ("sample_params",)


def test_the_leaderboard_marks_who_is_not_told_apart_from_the_best(store: Store) -> None:
    record(store, "monday", 1, row("old", 0.95))
    record(store, "tuesday", 2, row("a", 0.70), row("b", 0.66), row("c", 0.60), row("old", 0.2))
    (board,) = boards(glances(store))
    assert [(place.score.model, place.best, place.ties) for place in board.places] == [
        ("a", True, False),
        ("b", False, True),
        ("c", False, False),
        ("old", False, False),
    ]
    assert math.hypot(0.02, 0.02) * 1.96 == pytest.approx(0.0554, abs=1e-4)


def test_only_runs_over_the_same_items_are_beside_each_other(store: Store) -> None:
    record(store, "monday", 1, row("a", 0.9), dataset_digest="of before")
    record(store, "tuesday", 2, row("b", 0.5))
    record(store, "try-out", 3, row("c", 1.0, n_items=5), limit=5)
    record(store, "lower", 4, row("a", 2.0, metric="perplexity", higher_is_better=False, benchmark="text"))
    record(store, "lower-2", 5, row("b", 1.5, metric="perplexity", higher_is_better=False, benchmark="text"))
    by_name = {
        board.benchmark: [place.score.model for place in board.places] for board in boards(glances(store))
    }
    assert by_name == {"sums": ["b"], "text": ["b", "a"]}


def test_a_course_needs_two_runs_and_goes_from_the_oldest(store: Store) -> None:
    for night, value in enumerate((0.5, 0.6, 0.4)):
        record(store, f"night-{night}", night, row("a", value))
    record(store, "once", 9, row("b", 0.3, benchmark="products"))
    found = courses(glances(store))
    assert list(found) == [("sums", "exact_match,none")]
    (course,) = found["sums", "exact_match,none"]
    assert [score.value for _, score in course.points] == [0.5, 0.6, 0.4]


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


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 1,000 runs: five benchmarks, four models, 50 nights of each."""
    folder = tmp_path_factory.mktemp("thousand")
    store, draw = Store(str(folder / "store")), random.Random(1)
    for number in range(1000):
        night, place = divmod(number, 20)
        benchmark, model = f"benchmark-{place // 4}", f"model-{place % 4}"
        value = 0.5 + 0.1 * (place % 4) + 0.01 * draw.random()
        record(store, f"run-{number}", night, row(model, value, benchmark=benchmark))
    return write_index(store, folder / "results")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        yield launched
        launched.close()


@pytest.mark.services
@pytest.mark.parametrize(
    "context",
    [
        {"viewport": {"width": 1280, "height": 900}},
        {"viewport": {"width": 390, "height": 800}},
        {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"},
    ],
    ids=["desktop", "phone", "dark"],
)
def test_a_thousand_runs_are_looked_through_in_a_browser(
    thousand: Path, browser: Any, context: dict[str, Any]
) -> None:
    opened = browser.new_context(**context)
    page = opened.new_page()
    logged: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: logged.append(message.text))
    page.on("pageerror", lambda error: logged.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(thousand.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=30_000)
    assert page.locator("#found tr").count() == 1000
    assert page.locator("#leaderboard table").count() == 5
    assert page.locator("#leaderboard .chip.full").count() == 5
    assert page.locator("#curves figure").count() == 5
    wide, window = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide <= window, "the page itself never scrolls sideways"
    page.locator("#find").focus()
    page.keyboard.type("benchmark-3 model-2")
    assert page.locator("#status").inner_text() == "50 of 1,000 runs"
    assert page.locator("#found tr:visible").count() == 50
    page.keyboard.press("Tab")  # to the table, which scrolls, then to its first heading
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Started"
    page.keyboard.press("Enter")
    assert page.locator("#runs th[aria-sort]").inner_text().startswith("Started")
    assert logged == []
    assert asked == [thousand.as_uri()]
    opened.close()
