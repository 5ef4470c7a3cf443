"""A block of samples: which log it goes on with, and the rows that are read from it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tasks.benchmarks.recorded.inspect_log import InspectLog
from tasks.inspecting import Block, InspectFound, InspectRun, InspectTask, block, block_rows, run_block
from tasks.models.config import ModelConfig, Price, SampleParams
from tasks.models.tally import RequestTally
from tasks.store.schemas import REQUESTS, row_batch

LOGS = Path(__file__).parents[1] / "benchmarks" / "recorded" / "logs"


def block_of(name: str, folder: Path, pairs: tuple[str, ...], **given: Any) -> tuple[Block, InspectLog]:
    log = InspectLog.open(LOGS / name)
    found = InspectFound(files={}, packages={"inspect_ai": "0"}, pairs=pairs)
    model = ModelConfig.model_validate({"name": "m", "config": {"base_url": "http://127.0.0.1:9/v1"}})
    made = Block(
        InspectRun(task=InspectTask(task="a.py"), found=found), model,
        SampleParams(num_samples=log.epochs), folder, list(dict.fromkeys(log.expected)), folder / "block",
        **given,
    )  # fmt: skip
    (folder / "block" / "logs").mkdir(parents=True)
    return made, log


def requests_of(made: Block) -> Any:
    rows = [
        {
            "item_id": name, "doc_id": place, "item_digest": name, "cluster": None, "kind": "generate",
            "prompt_template": "default", "chat": False, "prompts": ["?"], "continuations": [""],
            "unconditional": [], "references_json": "[]", "gold": [], "choices": [], "doc_json": "{}",
            "first_sample": 0, "orders": None, "keeps_space": None,
        }
        for place, name in enumerate(made.samples)
    ]  # fmt: skip
    return [row_batch(rows, REQUESTS)]


def test_rows_are_those_of_the_log_and_are_counted(tmp_path: Path) -> None:
    made, log = block_of("plain-0.3.90.eval", tmp_path, ("match", "missing"))
    reused = frozenset({(made.samples[0], 1)})
    tally = RequestTally()
    ran = block.BlockRun(log, reused, 0.0)
    rows = [
        row
        for batch in block_rows(made, ran, requests_of(made), Price(prompt=1, completion=1), tally)
        for row in batch.to_pylist()
    ]
    samples = {str(sample["id"]): sample for sample in log.samples()}
    assert [row["item_id"] for row in rows] == list(made.samples)
    for row in rows:
        scores = json.loads(row["metadata_json"])["scores"]
        assert scores["match"]["value"] == samples[row["item_id"]]["scores"]["match"]["value"]
        assert "the scorer gave none here (there are match)" in scores["missing"]["error"]
        assert json.loads(row["prompt"])[0]["role"] == "user"
    assert (tally.requests, tally.sent, tally.cached, tally.same_night) == (len(rows), len(rows) - 1, 1, 1)


def test_a_dictionary_without_named_keys_says_which_to_name(tmp_path: Path) -> None:
    made, log = block_of("two-scorers.eval", tmp_path, ())
    (scored, *_) = log.samples()
    name, given = next(iter(scored["scores"].items()))
    scored["scores"] = {name: {**given, "value": {"b": 1, "a": 0}}}
    found = InspectFound(files={}, packages={}, pairs=(name,))
    run = InspectRun(task=made.run.task, found=found)
    other = Block(run, made.model, made.sampling, tmp_path, made.samples, tmp_path)
    scores = block._row(scored, other, log)["metadata"]["scores"]
    assert scores[name]["error"].endswith(f"set inspect.values: {{{name}: [a, b]}}")


def test_a_block_goes_on_with_the_log_that_holds_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, log = block_of("plain-0.3.90.eval", tmp_path, ("match",))
    logs = made.folder / "logs"
    shutil.copy(log.path, logs / "whole.eval")
    (logs / "cut.eval").write_bytes(log.path.read_bytes()[:100])
    monkeypatch.setattr(block, "call_inspect", lambda *_: pytest.fail("all samples are there"))
    ran = run_block(made, None, lambda: None)
    assert (ran.log.path.name, len(ran.reused)) == ("whole.eval", len(made.samples))

    asked: list[dict[str, Any]] = []

    def call(_action: str, request: dict[str, Any], *_: Any) -> dict[str, Any]:
        asked.append(request)
        return {"log": str(log.path), "status": "success", "error": None}

    monkeypatch.setattr(block, "call_inspect", call)
    later = Block(made.run, made.model, made.sampling, tmp_path, made.samples, made.folder, not_before=2**33)
    assert run_block(later, None, lambda: None).reused == frozenset()
    assert asked[0]["resume"] is None
    more = Block(made.run, made.model, SampleParams(num_samples=2), tmp_path, made.samples, made.folder)
    assert len(run_block(more, None, lambda: None).reused) == len(made.samples)
    assert (asked[1]["resume"], asked[1]["epochs"]) == (str(logs / "whole.eval"), 2)
