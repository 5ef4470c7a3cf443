"""``publish: wandb``: a run of Weights & Biases for each model, written by its own client, offline."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.publishers.publisher import FinishedRun, identifier, number_name
from tasks.publishers.wandb import WandB
from tests.flows.test_publishing import written

Evaluate = Callable[..., Any]
FILE_HEADER, RECORD_HEADER, BLOCK = 7, 7, 32 * 1024
WHOLE, LAST = 1, 4
"""Kinds of a record's parts, in the log files that its client writes: those that end a record."""


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its client keeps of a user lies below the test's folder."""
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_MODE", "offline")


def records(file: Path) -> Iterator[Any]:
    """The records of an offline run."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = file.read_bytes(), FILE_HEADER, b""
    while place + RECORD_HEADER <= len(data):
        if BLOCK - place % BLOCK < RECORD_HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        place += RECORD_HEADER
        parts, place = parts + data[place : place + length], place + length
        if kind in (WHOLE, LAST):
            yield Record.FromString(parts)
            parts = b""


def kept(folder: Path) -> dict[str, tuple[Any, dict[str, Any], dict[str, Any]]]:
    """Of each model its run, its config and its summary, as they would be sent."""
    found = {}
    for file in sorted((folder / "wandb").glob("offline-run-*/*.wandb")):
        every = list(records(file))
        (run,) = (record.run for record in every if record.WhichOneof("record_type") == "run")
        config = {entry.key: json.loads(entry.value_json) for entry in run.config.update}
        summary: dict[str, Any] = {}
        for record in every:
            for entry in record.summary.update:
                path = [entry.key] if entry.key else list(entry.nested_key)
                holder = summary
                for name in path[:-1]:
                    holder = holder.setdefault(name, {})
                holder[path[-1]] = json.loads(entry.value_json)
        assert config["model"] not in found
        found[config["model"]] = (run, config, summary)
    return found


def sent_numbers(summary: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in summary.items() if isinstance(value, float)}


def test_each_model_has_a_run_with_every_number_and_its_interval(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(written(tmp_path, [{"wandb": {"project": "nights", "entity": "lab"}}]), "--json")
    assert ran.code == 0, ran.err
    run = FinishedRun(Path(ran.document["output"]))
    found = kept(run.folder)
    assert sorted(found) == ["org/one", "two"]
    for model, (theirs, config, summary) in found.items():
        assert (theirs.project, theirs.entity, theirs.resume) == ("nights", "lab", True)
        assert theirs.run_id == identifier(run.run_id, model).hex
        assert config["config"] == run.manifest["config"]
        assert (config["run_id"], config["sampling.num_samples"]) == (run.run_id, 1)
        rows = run.numbers(model)
        assert len(sent_numbers(summary)) == 5 * len(rows)
        for row in rows:
            name = "/".join(number_name(row))
            assert summary[name] == row["value"]
            ends = [summary[f"{name}/{end}"] for end in ("stderr", "ci_low", "ci_high")]
            assert ends == [row["stderr"], row["ci_low"], row["ci_high"]]
        assert "samples" not in summary
    assert found["two"][0].run_id in run.manifest["published"]["wandb"]["places"][1]


def test_no_sample_leaves_unless_it_is_said(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(written(tmp_path, []), "--json")
    run = FinishedRun(Path(ran.document["output"]))
    places = WandB(project="nights").send(run)
    assert len(places) == 2
    sent = b"".join(path.read_bytes() for path in (run.folder / "wandb").rglob("*") if path.is_file())
    assert b"exact_match" in sent
    assert b"11?" not in sent

    places = WandB(project="nights", samples=True).send(run)
    (found,) = [Path(place) for place in places if identifier(run.run_id, "two").hex in place]
    (file,) = found.rglob("*.table.json")
    table = json.loads(file.read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    file_rows = map(json.loads, (run.folder / "samples_sums & more.jsonl").read_text().splitlines())
    expected = [row for row in file_rows if row["model_name"] == "two"]
    assert [row["item_id"] for row in rows] == [row["item_id"] for row in expected]
    for row, line in zip(rows, expected, strict=True):
        assert (row["exact_match"], row["ter"]) == (line["exact_match"], line["ter"])
        assert json.loads(row["resps"]) == line["resps"]
        assert json.loads(row["arguments"]) == line["arguments"]


def test_a_run_that_is_sent_again_stays_one_run_and_has_its_newest_numbers(
    evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = evaluate(written(tmp_path, []), "--json")
    run, publisher = FinishedRun(Path(ran.document["output"])), WandB(project="nights")
    publisher.send(run)
    before = {model: sent_numbers(summary) for model, (_, _, summary) in kept(run.folder).items()}
    publisher.send(run)
    after = {model: sent_numbers(summary) for model, (_, _, summary) in kept(run.folder).items()}
    assert before == after
    lower = [dict(row, value=row["value"] / 2) for row in run.results]
    monkeypatch.setattr(FinishedRun, "results", lower)
    publisher.send(FinishedRun(run.folder))
    assert kept(run.folder)["two"][2]["ter/none"] == before["two"]["ter/none"] / 2


def test_a_key_that_is_not_set_is_told_before_anything_is_asked(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(written(tmp_path, [{"wandb": {"project": "p", "api_key_env": "NOT_SET_KEY"}}]))
    assert ran.code == 2
    assert "publish.0.wandb: the environment variable NOT_SET_KEY (api_key_env) is not set" in ran.err
