"""Where a run keeps things."""

import time
from pathlib import Path

import pytest

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.eval.run import Run
from flows.eval.start import first_start, with_defaults, workspace
from flows.plan.build import make_plan
from tasks.history.layout import record_run
from tasks.store.home import home
from tasks.store.keys import digest
from tasks.store.storage import Store

OLD = Path(__file__).resolve().parents[1] / "fixtures" / "store-0.1.0" / "old.yaml"


def test_answers_on_their_way_to_one_store_are_not_moved_to_another(tmp_path: Path) -> None:
    stores = [str(tmp_path / "a"), str(tmp_path / "b"), "memory://a"]
    assert len({workspace(RunOptions(store=store)).journal_dir for store in stores}) == 3


def test_a_store_is_the_same_by_whatever_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    spelled = [str(tmp_path / "a"), f"{tmp_path}/./a/", str(tmp_path / "link")]
    assert len({workspace(RunOptions(store=store)).journal_dir for store in spelled}) == 1


@pytest.mark.parametrize(
    ("store", "named_before"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket//prefix", "s3://bucket/prefix"),
        ("/data/store", "/data/store"),
        ("file:///data/store/", "/data/store"),
        ("~/store", str(Path.home() / "store")),
    ],
)
def test_a_store_s_journals_are_where_they_were_however_it_is_written(store: str, named_before: str) -> None:
    place = Path(workspace(RunOptions(store=store)).journal_dir)
    assert place == home() / "journal" / digest(named_before)[:16]


def test_a_store_named_relative_to_a_folder_is_the_same_in_every_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = with_defaults(load_config(OLD), RunOptions(store="store"), "1")
    assert options.store == workspace(options).store == str(tmp_path / "store")
    monkeypatch.setenv("NIGHTJAR_STORE", "mine")
    assert with_defaults(load_config(OLD), RunOptions(), "1").store == str(tmp_path / "mine")


def test_a_clock_that_is_set_back_leaves_how_long_a_run_took() -> None:
    options = RunOptions(store="memory://a")
    tomorrow = time.time() + 86_400.0
    run = Run(
        make_plan(load_config(OLD), options), options, workspace(options), tomorrow, earlier_seconds=10.0
    )
    assert 10.0 <= run.wall_seconds < 86_400.0


def test_the_retry_of_a_night_leaves_its_numbers_where_they_were_in_the_history(tmp_path: Path) -> None:
    """It evaluates in flow runs of its own: a late one took the newest places from the nights since then."""
    options = RunOptions(store=str(tmp_path), run_id="nightly-1-sums-m", night="1")
    assert first_start(options, 900.0) == 900.0
    record_run(Store(str(tmp_path)), {"run_id": options.run_id, "night": "1", "started": 100.0}, [], [])
    assert first_start(options, 900.0) == 100.0
    assert first_start(options.model_copy(update={"night": "2"}), 900.0) == 900.0
