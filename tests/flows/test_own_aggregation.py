"""The metric of CONTRIBUTING that brings its aggregation along takes one file."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONTRIBUTING = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
ITEMS = [{"id": str(place), "question": f"{place} + 1?", "answer": str(place + 1)} for place in range(30)]


def test_a_metric_with_its_own_aggregation_is_one_file(evaluate: Callable[..., Any], tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text("utf-8"), re.DOTALL)
    (own,) = [block for block in blocks if "aggregation_factory" in block]
    (tmp_path / "own.py").write_text(own)
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in ITEMS))
    answers = [{"item_id": item["id"], "response": "it is " + "7 " * (n % 3)} for n, item in enumerate(ITEMS)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    config = {
        "name": "sums",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "metric_list": [{"function": "own.py:digit_words"}],
        "models": [{"name": "kept", "type": "replay", "config": {"path": "answers.jsonl"}}],
    }
    (tmp_path / "sums.yaml").write_text(json.dumps(config))
    ran = evaluate(tmp_path / "sums.yaml", "--json")
    assert ran.code == 0, ran.err
    (row,) = ran.document["results"]
    assert row["metric"] == "digit_words"
    assert 0 < row["value"] < 1
    assert 0 < row["stderr"] < 0.5
    assert row["stderr_method"] == "jackknife"
    assert 0 <= row["ci_low"] < row["value"] < row["ci_high"] <= 1
    (tmp_path / "own.py").write_text(own.replace("JackknifeRule", "ExpOfMeanRule"))
    refused = evaluate(tmp_path / "sums.yaml")
    assert refused.code == 2
    assert (
        "'share_of_words': its error rule ExpOfMeanRule is not for a value other than exp(-mean)"
        in refused.err
    )
