"""What is kept of a dataset that is read before its run."""

import json
from pathlib import Path

import pytest
import yaml

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.eval import ahead
from flows.plan.fields import benchmark_fields


def test_rows_that_take_too_much_memory_are_counted_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": str(n), "question": f"{n}?", "answer": str(n)} for n in range(3_000)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = {
        "name": "many",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "models": ["demo"],
    }
    (tmp_path / "many.yaml").write_text(yaml.safe_dump({**written, "metric_list": ["exact_match"]}))
    config = load_config(tmp_path / "many.yaml")
    about = (config, benchmark_fields(config), RunOptions().selection(), ())
    whole = ahead.check_dataset(*about)
    assert whole.rows is not None
    assert (whole.count, whole.held) == (3_000, sum(batch.nbytes for batch in whole.rows))
    monkeypatch.setattr(ahead, "AHEAD_BYTES", whole.held - 1)
    told: list[int] = []
    large = ahead.check_dataset(*about, seen=told.append)
    assert (large.rows, large.held, large.count, told[-1]) == (None, 0, 3_000, 3_000)
