"""``export: [inspect]``: the samples of a run as logs of Inspect, which it reads and so do we."""

import json
import math
import os
import subprocess
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.publishers.publisher import FinishedRun
from tasks.reporting.inspect_log import LoggedRun, write_inspect_log
from tasks.reporting.view import LabelView, ResponseView, SampleView
from tests.flows.conftest import INSPECT
from tests.flows.test_publishing import written

Evaluate = Callable[..., Any]
READ = """
import json, sys
from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries
logs = {path: read_eval_log(path) for path in sys.argv[1:]}
for path, log in logs.items():
    assert len(read_eval_log_sample_summaries(path)) == len(log.samples), path
print(json.dumps({path: log.model_dump(mode="json") for path, log in logs.items()}))
"""


def logs_of(folder: Path) -> dict[str, Path]:
    """The logs in a run's folder by their models."""
    found = sorted((folder / "inspect").glob("*.eval"))
    assert not list((folder / "inspect").glob("*.part"))
    return {header(path)["eval"]["model"]: path for path in found}


def header(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("header.json"))


def test_each_model_has_a_log_with_its_numbers_and_samples(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(written(tmp_path, [], export=["inspect"]), "--json")
    assert ran.code == 0, ran.err
    folder = Path(ran.document["output"])
    logs = logs_of(folder)
    assert sorted(logs) == ["org/one", "two"]
    assert FinishedRun(folder).manifest["published"]["inspect"] == {
        "places": [str(logs["org/one"]), str(logs["two"])],
        "error": None,
    }
    for model, path in logs.items():
        told = header(path)
        assert (told["version"], told["status"]) == (2, "success")
        rows = {
            row["metric"]: row
            for row in ran.document["results"]
            if row["model_name"] == model and not row["facets"]
        }
        for score in told["results"]["scores"]:
            row, metrics = rows.pop(score["name"]), score["metrics"]
            assert metrics["mean"]["value"] == row["value"]
            assert (metrics["ci_low"]["value"], metrics["ci_high"]["value"]) == (
                row["ci_low"],
                row["ci_high"],
            )
        assert not rows
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.startswith("samples/")]
            summaries = json.loads(archive.read("summaries.json"))
        assert len(names) == len(summaries) == told["results"]["total_samples"] == 12


def test_a_log_of_ours_that_is_read_again_has_the_same_numbers(evaluate: Evaluate, tmp_path: Path) -> None:
    config = repeated(tmp_path)
    ran = evaluate(config, "--json")
    assert ran.code == 0, ran.err
    (log,) = logs_of(Path(ran.document["output"])).values()
    assert header(log)["eval"]["config"]["epochs"] == 2
    back = evaluate("--from-inspect", log, "--output", tmp_path / "back", "--json")
    assert back.code == 0, back.err
    assert back.document["requests"]["sent"] == 0
    for name in ("exact_match,none", "exact_match/short,none"):
        own = name.replace("/short,none", ",short")
        assert back.value(name) == ran.value(own)
    (first, second) = (
        next(row for row in one.document["results"] if row["metric"] == metric and row["filter"] == source)
        for one, metric, source in ((ran, "exact_match", "short"), (back, "exact_match/short", "none"))
    )
    assert first["n_scored"] == second["n_scored"] == 12
    # What failed is unscored here as there.
    assert first["n_unscored"] == second["n_unscored"] == 0


def repeated(folder: Path) -> Path:
    """Six items with two answers each, scored as they are and by their first word."""
    items = [{"id": f"s/{n}", "question": f"{n}?", "answer": "a"} for n in range(6)]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    answers = ["a", "a b", "c"]
    rows = [
        {"item_id": f"s/{n}", "sample_index": repeat, "response": answers[(n + repeat) % 3]}
        for n in range(6)
        for repeat in range(2)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": "repeated",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "models": [{"name": "m", "type": "replay", "config": {"path": "rows.jsonl"}}],
        "sample_params": {"num_samples": 2},
        "filter_list": [
            {"name": "none", "filter": [], "metric_list": ["exact_match"]},
            {
                "name": "short",
                "filter": [{"function": "regex", "regex_pattern": r"^(\w+)"}],
                "metric_list": ["exact_match"],
            },
        ],
        "export": ["inspect"],
    }
    (folder / "repeated.yaml").write_text(yaml.safe_dump(config))
    return folder / "repeated.yaml"


def made(folder: Path, *samples: SampleView) -> Path:
    """A log of samples that are given."""
    return logged(folder, samples)


def logged(folder: Path, samples: Iterable[SampleView]) -> Path:
    """The same of samples that come one by one."""
    manifest = {
        "benchmark": "made", "run_id": "made-1", "started": 1.8e9, "wall_seconds": 2.0,
        "models": {"m": {"sampling": {"temperature": 0.5, "stop": "\n"}, "identity": {}}},
        "versions": {"nightjar": "0"},
    }  # fmt: skip
    row = {
        "metric": "acc", "filter": "none", "reduction": "mean", "label": None, "facets": "{}", "value": 0.5,
        "stderr": None, "ci_low": math.nan, "ci_high": 0.9, "n_scored": 1, "n_unscored": 1, "signature": "s",
        "model_name": None, "prompt_template": None,
    }  # fmt: skip
    return write_inspect_log(folder, LoggedRun(manifest, [row], ["default"]), "m", "default", samples)


CHAT = json.dumps(
    [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [
            {"type": "text", "text": "What is it?"},
            {"type": "image_url", "image_url": {"url": "nightjar:12ab"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}},
        ]},
        {"role": "tool", "tool_call_id": "c0", "content": "a cat"},
    ]
)  # fmt: skip
STRANGE = (
    SampleView("choices", "m", "default", "Which?", responses=[ResponseView(None, lls=(-3.0, -1.0))],
               choices=("x", "y"), gold=(0,), scores={"acc,none": [0.0]}),
    SampleView("calls", "m", "default", CHAT, ["cat"], chat=True, facets={"topic": "art"}, responses=[
        ResponseView("A cat.", reasoning="fur", finish_reason="length", prompt_tokens=3, completion_tokens=2,
                     tool_calls=[{"name": "pet", "arguments": "{"}]),
        ResponseView(None, "infra_error", "HTTP 500"),
    ], scores={"acc,none": [None, None]}, reasons={"acc,none": ["cannot say", None]},
        labels=[LabelView("kind", 0, passed=True, details={"why": "soft"})]),
)  # fmt: skip


def test_two_that_write_one_log_do_not_take_each_others(tmp_path: Path) -> None:
    def while_another_writes() -> Iterator[SampleView]:
        yield STRANGE[0]
        made(tmp_path, *STRANGE)

    path = logged(tmp_path, while_another_writes())
    assert len(samples_in(path)) == 1
    assert list(path.parent.iterdir()) == [path]


def samples_in(path: Path) -> Mapping[str, Any]:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith("samples/")]
        return {name.removeprefix("samples/"): json.loads(archive.read(name)) for name in names}


def test_choices_calls_thoughts_failures_and_unscored_samples_have_their_place(tmp_path: Path) -> None:
    samples = samples_in(made(tmp_path, *STRANGE))
    assert list(samples) == ["choices_epoch_1.json", "calls_epoch_1.json", "calls_epoch_2.json"]
    choice, calls, failed = samples.values()
    assert (choice["output"]["completion"], choice["target"]) == ("y", ["x"])
    assert [message["role"] for message in calls["messages"]] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    asked = calls["messages"][1]["content"]
    assert [part["type"] for part in asked] == ["text", "text", "image"]
    assert calls["messages"][2]["tool_calls"] == [{"id": "c0", "function": "look", "arguments": {"at": 1}}]
    assert calls["messages"][4]["tool_calls"][0]["arguments"] == {"arguments": "{"}
    assert calls["output"]["choices"][0]["stop_reason"] == "max_tokens"
    assert calls["scores"] == {"kind": {"value": True, "explanation": '{"why": "soft"}'}}
    assert calls["metadata"] == {"topic": "art", "unscored": {"acc": "cannot say"}}
    kinds = [[event["event"] for event in one["events"]] for one in samples.values()]
    assert kinds == [
        ["sample_init", "model", "score"],
        ["sample_init", "tool", "model", "score"],
        ["sample_init", "tool", "model", "error"],
    ]
    _, tool, model, score = calls["events"]
    assert (tool["function"], tool["arguments"], tool["result"]) == ("look", {"at": 1}, "a cat")
    assert (model["input"], model["output"]) == (calls["messages"][:-1], calls["output"])
    assert (score["scorer"], score["score"]) == ("kind", calls["scores"]["kind"])
    marks = [event["uuid"] for one in samples.values() for event in one["events"]]
    assert len(set(marks)) == len(marks)
    assert failed["error"]["message"] == "HTTP 500"
    assert failed["output"]["choices"] == []


@pytest.mark.inspect
def test_inspect_reads_our_logs(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(repeated(tmp_path), "--json")
    assert ran.code == 0, ran.err
    (log,) = logs_of(Path(ran.document["output"])).values()
    strange = made(tmp_path, *STRANGE)
    done = subprocess.run(
        [os.environ[INSPECT], "-c", READ, str(log), str(strange)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    read = found[str(log)]
    assert {score["name"]: score["metrics"]["mean"]["value"] for score in read["results"]["scores"]} == {
        "exact_match": ran.value("exact_match,none"),
        "exact_match/short": ran.value("exact_match,short"),
    }
    assert len(read["samples"]) == 12
    scores = [sample["scores"]["exact_match/short"]["value"] for sample in read["samples"]]
    assert sum(scores) / 12 == pytest.approx(ran.value("exact_match,short"), rel=1e-12)
    assert {sample["id"] for sample in found[str(strange)]["samples"]} == {"choices", "calls"}
    for one in found.values():
        kinds = [[event["event"] for event in sample["events"]] for sample in one["samples"]]
        assert all({"sample_init", "model"} <= set(events) for events in kinds)
