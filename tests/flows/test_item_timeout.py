"""A pattern of a config that runs away on one answer, wherever patterns run: that answer is unscored and
told, the others have their scores, and the run ends."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

Evaluate = Callable[..., Any]

CONFIG = r"""
name: runaway
dataset: {path: items.jsonl}
prompt_template: "{{ question }}"
models: [{name: recorded, type: replay, config: {field: said}}]
item_timeout: 0.3
filter_list:
  - name: filtered
    filter: [{function: regex, regex_pattern: "((?:a+)+)$"}]
    metric_list: [exact_match]
  - name: whole
    metric_list:
      - {metric: exact_match, regexes_to_ignore: ["(a|aa)+$"]}
      - {metric: regex_match, pattern: "^(a+)+$"}
evaluation_methods:
  - {name: shaped, type: regex_match, params: {pattern: "^(a+)+$"}}
"""
RUNAWAY = "a" * 40 + "!"
ANSWERS = ["aa", RUNAWAY, "b", "aaaa"]


@pytest.mark.services
def test_an_answer_on_which_a_pattern_runs_away_is_unscored_and_the_others_are_scored(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    rows = [
        {"id": f"i{row}", "question": f"q{row}", "answer": "aa", "said": said}
        for row, said in enumerate(ANSWERS)
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "bench.yaml").write_text(CONFIG + "target: '{{ answer }}'\n")
    ran = evaluate(tmp_path / "bench.yaml", "--json")
    assert ran.code == 0, ran.err
    found = {f"{row['metric']},{row['filter']}": row for row in ran.document["results"]}
    filtered = found["exact_match,filtered"]
    # aa is right, b has no match and is wrong, aaaa is wrong, and of the runaway nothing is known
    assert (filtered["value"], filtered["n_scored"], filtered["n_unscored"]) == (1 / 3, 3, 1)
    matched = found["regex_match,whole"]
    assert (matched["value"], matched["n_scored"], matched["n_unscored"]) == (2 / 3, 3, 1)
    ignoring = next(
        row for name, row in found.items() if name.startswith("exact_match") and row["filter"] == "whole"
    )
    assert (ignoring["value"], ignoring["n_scored"]) == (2 / 3, 3)  # both sides are empty then; b is not
    findings = [entry for entry in ran.document["diagnostics"] if entry["kind"] == "unscored"]
    assert findings
    assert "item_timeout" in json.dumps(findings)
    tables = [pq.read_table(path) for path in (tmp_path / "store").rglob("*.parquet")]
    statistics = [
        row for table in tables if "evaluated_at" in table.column_names for row in table.to_pylist()
    ]
    lost = [row for row in statistics if row["item_id"] == "i1"]
    assert len(lost) == 4
    assert not any(row["scored"] for row in lost)
    assert all("took more than 0.3 s (item_timeout)" in row["error"] for row in lost)
    assert all(row["error"] is None for row in statistics if row["item_id"] != "i1")
