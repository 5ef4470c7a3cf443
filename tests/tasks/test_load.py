"""What the check before a run has read of a dataset, the run does not read again."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tasks import load as stage
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace
from tasks.datasets.item import Item
from tasks.load import LoadSetup, load, read_ahead
from tasks.store.keys import Step


@pytest.fixture(autouse=True)
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "_ahead", {})


@pytest.fixture
def step(tmp_path: Path) -> Step[LoadSetup]:
    rows = [{"id": str(n), "question": f"{n}?", "answer": str(n)} for n in range(3_000)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = BenchmarkFields.model_validate(
        {
            "name": "many",
            "dataset": {"path": "items.jsonl", "id": "id"},
            "prompt_template": "{{question}}",
            "base_dir": str(tmp_path),
        }
    )
    return Step(name="load many", identity={"dataset": "a digest"}, setup=LoadSetup(benchmark=fields))


def items_of(step: Step[LoadSetup]) -> Iterator[Item]:
    return open_benchmark(step.setup.benchmark).items()


def loaded(step: Step[LoadSetup], tmp_path: Path) -> pa.Table:
    rows = inspect.unwrap(load.fn)(step, Workspace(store=str(tmp_path / "store"), journal_dir=str(tmp_path)))
    return pa.Table.from_batches(list(rows))


def test_what_was_read_ahead_is_loaded_once(step: Step[LoadSetup], tmp_path: Path) -> None:
    fresh = loaded(step, tmp_path)
    assert list(read_ahead(step, items_of(step))) == list(items_of(step))
    (tmp_path / "items.jsonl").rename(tmp_path / "elsewhere.jsonl")
    assert loaded(step, tmp_path) == fresh
    (tmp_path / "elsewhere.jsonl").rename(tmp_path / "items.jsonl")
    (tmp_path / "items.jsonl").write_text('{"id": "0", "question": "0?", "answer": "0"}\n')
    assert loaded(step, tmp_path).num_rows == 1  # a second time it is read


def test_a_dataset_that_was_not_read_to_its_end_is_read_again(step: Step[LoadSetup], tmp_path: Path) -> None:
    items = read_ahead(step, items_of(step))
    assert next(items).item_id == "0"
    items.close()  # type: ignore[attr-defined]
    assert loaded(step, tmp_path).num_rows == 3_000


def test_no_more_is_kept_than_memory_bears(
    step: Step[LoadSetup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "AHEAD_BYTES", 100_000)
    assert len(list(read_ahead(step, items_of(step)))) == 3_000
    assert stage._ahead == {}
    assert loaded(step, tmp_path).num_rows == 3_000


def test_another_steps_rows_are_not_taken(step: Step[LoadSetup], tmp_path: Path) -> None:
    assert len(list(read_ahead(step, items_of(step)))) == 3_000
    (tmp_path / "items.jsonl").write_text('{"id": "0", "question": "0?", "answer": "0"}\n')
    other = step.model_copy(update={"identity": {"dataset": "another digest"}})
    assert loaded(other, tmp_path).num_rows == 1
