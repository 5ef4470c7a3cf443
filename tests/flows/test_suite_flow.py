"""Nights as Prefect shows them: state, labels, event, exit code."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ITEMS = 42


def write_suite(folder: Path, **gate: Any) -> Path:
    lines = (
        json.dumps({"id": str(n), "question": f"{n}+1?", "answer": str(n + 1)}) + "\n" for n in range(ITEMS)
    )
    (folder / "items.jsonl").write_text("".join(lines))
    benchmark = {
        "name": "sums", "output_type": "generate_until", "dataset": "items.jsonl", "target": "{{answer}}",
        "prompt_template": "{{question}}", "metric_list": ["exact_match"],
        "models": [{"name": "recorded", "type": "replay", "config": {"path": "said.jsonl"}}],
    }  # fmt: skip
    (folder / "sums.yaml").write_text(json.dumps(benchmark))
    path = folder / "suite.yaml"
    path.write_text(json.dumps({"name": "night", "benchmarks": ["sums.yaml"], "gate": gate}))
    return path


def answer(folder: Path, wrong: int) -> None:
    """Records a night's answers, the first ones wrong."""
    rows = [
        {"item_id": str(n), "sample_index": 0, "response": "?" if n < wrong else str(n + 1)}
        for n in range(ITEMS)
    ]
    (folder / "said.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_nights_state_labels_event_and_exit_code_say_its_verdict(
    suite_night: Callable[..., Any], prefect_api: Callable[..., Any], tmp_path: Path
) -> None:
    path = write_suite(tmp_path, margin=0.02, inconclusive_nights=2)
    found = []
    for wrong in (0, 0, 1, 2, 30):
        answer(tmp_path, wrong)
        ran = suite_night(path)
        run = prefect_api("GET", "/flow_runs/" + ran.document["flow_run_url"].rpartition("/")[2])
        found.append(
            (ran.code, run["state"]["type"], run["state"]["name"], run["labels"]["nightjar.verdict"])
        )
    assert found == [
        (0, "COMPLETED", "Completed", ""),
        (0, "COMPLETED", "Completed", "pass"),
        (3, "COMPLETED", "Inconclusive", "inconclusive"),
        (3, "FAILED", "Failed", "undecided"),
        (1, "FAILED", "Failed", "regression"),
    ]
    assert "439 would do" in ran.err
    (pair,) = json.loads(run["labels"]["nightjar.pairs"])
    assert (pair["pair"], pair["verdict"]) == ("exact_match,none (recorded, default)", "regression")

    def events() -> list[dict[str, Any]]:
        body = {"filter": {"event": {"prefix": ["nightjar.suite."]}, "order": "ASC"}, "limit": 50}
        return list(prefect_api("POST", "/events/filter", body)["events"])

    deadline = time.monotonic() + 60
    while len(told := events()) < 3 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert [event["event"].rpartition(".")[2] for event in told] == [
        "inconclusive",
        "undecided",
        "regression",
    ]
    assert told[-1]["payload"]["url"] == ran.document["flow_run_url"]
    assert told[-1]["payload"]["pairs"] == [pair]
