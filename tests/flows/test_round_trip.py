"""Our own responses.jsonl is a recording: replayed, it gives the numbers that it came from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Evaluate = Callable[..., Any]
ITEMS = [
    {"id": f"i{at}", "question": f"Tom has {at} apples. He buys 3 more. How many?", "choices": ["a b", "ü"],
     "answer": at % 2, "text": f"{at + 3}"}
    for at in range(4)
]  # fmt: skip
LETTERS = {"choices": "{{choices}}", "target": "{{answer}}"}
KINDS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "generate_until": ({"target": "{{text}}"}, ["exact_match", "bleu"], ["exact_match"]),
    "multiple_choice": (LETTERS, ["acc", "acc_norm", "acc_mutual_info", "exact_match_mc"], ["acc"]),
    "loglikelihood": ({"target": "{{text}}"}, ["perplexity", "acc"], ["perplexity"]),
    "loglikelihood_rolling": ({}, ["word_perplexity", "byte_perplexity", "bits_per_byte"], ["bits_per_byte"]),
}
"""Output type → keys of the config, the metrics of the first run, and fewer of them."""


def numbers(folder: Path) -> dict[str, Any]:
    text = (folder / "metrics.jsonl").read_text(encoding="utf-8")
    return {
        line["metric_name"]: [line[name] for name in ("value", "stderr", "total_sample_count", "status")]
        for line in map(json.loads, text.splitlines())
    }


@pytest.mark.parametrize("output_type", list(KINDS))
def test_recorded_responses_replay_to_equal_numbers(
    evaluate: Evaluate, tmp_path: Path, output_type: str
) -> None:
    keys, metrics, fewer = KINDS[output_type]
    items = "".join(json.dumps(item) + "\n" for item in ITEMS)
    (tmp_path / "items.jsonl").write_text(items, encoding="utf-8")
    generates = output_type == "generate_until"
    base = {
        "name": "round", "output_type": output_type, "dataset": "items.jsonl", **keys,
        "prompt_template": "{{question}}", "metric_list": metrics,
        "sample_params": {"num_samples": 3, "temperature": 0.7} if generates else {},
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(base | {"models": [{"name": "m", "type": "demo"}]}), encoding="utf-8")
    asked = evaluate(path)
    assert asked.code == 0, asked.err
    first = numbers(tmp_path / "out")
    assert len(first) == len(metrics)
    assert {status for *_, status in first.values()} == {"ok"}
    recorded = {"name": "m", "type": "replay", "config": {"path": str(tmp_path / "out" / "responses.jsonl")}}
    path.write_text(yaml.safe_dump(base | {"models": [recorded]}), encoding="utf-8")
    for place, asked_for in (("again", metrics), ("fewer", fewer)):
        lists = f"metric_list={json.dumps(asked_for)}"
        ran = evaluate(path, "--output", tmp_path / place, "--set", lists)
        assert ran.code == 0, ran.err
        expected = {name: value for name, value in first.items() if name.partition(",")[0] in asked_for}
        assert numbers(tmp_path / place) == expected
