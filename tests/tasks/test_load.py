"""What waits for the stage is taken once, by the step that it is of."""

import inspect
import json
from pathlib import Path

import pyarrow as pa
import pytest

from tasks import load as stage
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace
from tasks.load import LoadSetup, keep_ahead, load
from tasks.rows.items import item_batches
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


def rows_of(step: Step[LoadSetup]) -> list[pa.RecordBatch]:
    return list(item_batches(open_benchmark(step.setup.benchmark).items()))


def loaded(step: Step[LoadSetup], tmp_path: Path) -> pa.Table:
    rows = inspect.unwrap(load.fn)(step, Workspace(store=str(tmp_path / "store"), journal_dir=str(tmp_path)))
    return pa.Table.from_batches(list(rows))


def test_what_was_read_ahead_is_loaded_once(step: Step[LoadSetup], tmp_path: Path) -> None:
    fresh = loaded(step, tmp_path)
    keep_ahead(step, rows_of(step), 0)
    (tmp_path / "items.jsonl").write_text('{"id": "0", "question": "0?", "answer": "0"}\n')
    assert loaded(step, tmp_path) == fresh
    assert loaded(step, tmp_path).num_rows == 1  # a second time it is read


def test_no_more_waits_than_memory_bears(
    step: Step[LoadSetup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(step)
    size = sum(batch.nbytes for batch in rows)
    monkeypatch.setattr(stage, "AHEAD_BYTES", 2 * size - 1)
    other = step.model_copy(update={"identity": {"dataset": "another digest"}})
    keep_ahead(step, rows, size)
    keep_ahead(other, rows, size)
    assert len(stage._ahead) == 1
    (tmp_path / "items.jsonl").write_text('{"id": "0", "question": "0?", "answer": "0"}\n')
    assert loaded(other, tmp_path).num_rows == 1
    assert loaded(step, tmp_path).num_rows == 3_000


def test_what_is_taken_while_more_is_kept_does_not_disturb(
    step: Step[LoadSetup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that loads in one thread, and one that is checked in another."""

    class TakenMeanwhile(int):
        def __radd__(self, other: int) -> int:
            stage._ahead.pop("taken", None)
            return other + int(self)

    ahead: dict[str, tuple[list[pa.RecordBatch], int]] = {
        name: ([], TakenMeanwhile(1)) for name in ("taken", "kept")
    }
    monkeypatch.setattr(stage, "_ahead", ahead)
    keep_ahead(step, [], 1)
    assert len(ahead) == 2
    assert "taken" not in ahead
