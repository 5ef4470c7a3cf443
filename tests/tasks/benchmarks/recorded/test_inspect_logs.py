"""Logs of Inspect, as its versions 0.3.90 and 0.3.285 wrote them (``logs``)."""

import json
import math
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flows.config.load import CommandInputs, choose_configs
from flows.config.schema import EvalConfig
from metrics.errors import ConfigError
from tasks.benchmarks.recorded import inspect_log, recorded_configs
from tasks.benchmarks.recorded.inspect_log import InspectLog, number_of
from tasks.datasets.config import DatasetError

LOGS = Path(__file__).parent / "logs"


def rows(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def imported(path: Path, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """The config of one log, the responses that it replays, and what is told of it."""
    (config,), notes = recorded_configs("inspect", [path], folder)
    return config, rows(config["models"][0]["config"]["path"]), notes


def rewritten(log: Path, path: Path, change: Mapping[str, Any], *, header: bool = True) -> Path:
    """The log as a JSON file with other fields of its first sample, or without its header as after a kill."""
    whole = InspectLog.open(log)
    samples = list(whole.samples())
    samples[0].update(change)
    document = {**whole.header, "samples": samples}
    if not header:
        document = {"eval": document["eval"], "samples": samples}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("name", ["plain-0.3.90.eval", "two-scorers.eval", "tools.eval"])
def test_the_mean_of_what_is_read_is_what_inspect_wrote(name: str, tmp_path: Path) -> None:
    log = InspectLog.open(LOGS / name)
    config, responses, notes = imported(LOGS / name, tmp_path)
    assert notes == []
    said = {
        (one["scorer"], one["name"]): metric["value"]
        for one in log.results()
        for kind, metric in one["metrics"].items()
        if kind in ("accuracy", "mean")
    }
    assert len(said) == len(config["metric_list"])
    for entry in config["metric_list"]:
        scores = [row["metadata"]["scores"][entry["alias"]]["score"] for row in responses]
        scorer, _, part = entry["alias"].partition("/")
        assert math.fsum(scores) / len(scores) == pytest.approx(said[scorer, part or scorer], rel=1e-15)


def test_epochs_are_samples_and_ids_are_texts(tmp_path: Path) -> None:
    config, responses, _ = imported(LOGS / "two-scorers.eval", tmp_path)
    assert config["sample_params"] == {"num_samples": 3}
    assert sorted((row["item_id"], row["sample_index"]) for row in responses) == [
        (str(item), epoch) for item in range(6) for epoch in range(3)
    ]
    items = rows(config["dataset"])
    assert items[0] == {"id": "0", "input": "What is 0+1?", "target": ["1", "x"]}


def test_values_that_lie_between_0_and_1_by_what_they_are_have_a_range(tmp_path: Path) -> None:
    config, _, _ = imported(LOGS / "two-scorers.eval", tmp_path)
    ranges = {entry["alias"]: entry.get("range") for entry in config["metric_list"]}
    assert ranges == {"match": [0, 1], "includes": [0, 1], "parts/len": None, "parts/even": [0, 1]}


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("C", 1.0), ("P", 0.5), ("I", 0.0), ("N", 0.0), ("c", None), ("yes", 1.0), ("False", 0.0),
        (True, 1.0), (2, 2.0), ("0.25", 0.25), ("nan", None), (math.inf, None), (math.nan, None),
        ("good", None), ([1], None),
    ],
)  # fmt: skip
def test_values_count_as_in_inspect_but_what_is_no_number_is_no_score(
    value: Any, number: float | None
) -> None:
    assert number_of(value) == number


def test_a_sample_that_failed_has_no_score(tmp_path: Path) -> None:
    error = {"message": "TimeoutError()", "traceback": "…", "traceback_ansi": "…"}
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", {"scores": None, "error": error})
    _, responses, _ = imported(path, tmp_path)
    assert (responses[0]["status"], responses[0]["error"]) == ("infra_error", "Inspect: TimeoutError()")
    assert [row["status"] for row in responses[1:]] == ["ok", "ok", "ok"]


def test_a_sample_that_failed_and_has_a_score_counts_and_is_told(tmp_path: Path) -> None:
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", {"error": {"message": "TimeoutError()"}})
    _, responses, notes = imported(path, tmp_path)
    assert {row["status"] for row in responses} == {"ok"}
    (told,) = (note for note in notes if "error" in note)
    assert told == f"{path}: samples with an error and a score: 1; the score counts, as in Inspect"


def test_a_value_that_is_no_number_says_so(tmp_path: Path) -> None:
    scores = {"match": {"value": "fine", "answer": None}}
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", {"scores": scores})
    _, responses, _ = imported(path, tmp_path)
    found = responses[0]["metadata"]["scores"]["match"]
    assert found == {"score": None, "value": "fine", "error": "Inspect's value is 'fine', no number"}


def test_long_texts_are_put_back(tmp_path: Path) -> None:
    mark = "0123456789abcdef" * 2
    change = {"input": f"attachment://{mark}", "attachments": {mark: "a long question"}}
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", change)
    config, _, _ = imported(path, tmp_path)
    assert rows(config["dataset"])[0]["input"] == "a long question"


def test_messages_are_shown_with_their_roles(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image", "image": "data:…"}]
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": parts}]
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", {"input": messages})
    config, _, _ = imported(path, tmp_path)
    assert rows(config["dataset"])[0]["input"] == "system: Be short.\n\nuser: What is it?\n[image]"


def test_a_log_of_a_run_that_was_killed_says_so(tmp_path: Path) -> None:
    path = tmp_path / "killed.eval"
    with zipfile.ZipFile(LOGS / "plain-0.3.90.eval") as whole, zipfile.ZipFile(path, "w") as cut:
        for name in ("_journal/start.json", "samples/q0_epoch_1.json", "samples/q3_epoch_1.json"):
            cut.writestr(name, whole.read(name))
    _, responses, notes = imported(path, tmp_path)
    assert len(responses) == 2
    assert notes == [f"{path}: the evaluation ended as 'started'; 2 of 8 sample runs are there"]


@pytest.mark.parametrize("name", ["tools.eval", "plain-0.3.90.eval"])
def test_a_changed_byte_of_a_sample_is_damage(name: str, tmp_path: Path) -> None:
    content = bytearray((LOGS / name).read_bytes())
    with zipfile.ZipFile(LOGS / name) as archive:
        entry = next(one for one in archive.infolist() if one.filename.startswith("samples/"))
    content[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 4
    (tmp_path / "log.eval").write_bytes(content)
    with pytest.raises(DatasetError, match=r"log\.eval"):
        imported(tmp_path / "log.eval", tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("log.eval", b"no archive", "can't be read as a log of Inspect"),
        ("log.json", b"{", "malformed JSON"),
        ("log.json", b"[1]", "is no log of Inspect: it has no 'eval'"),
        ("log.json", b'{"eval": {"task": "t"}, "samples": []}', "holds no samples"),
        ("log.json", b'{"eval": {}, "samples": [{"id": 1, "epoch": 1}]}', "none of its samples has a score"),
    ],
)
def test_what_is_no_log_is_named(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DatasetError, match=said) as caught:
        imported(tmp_path / name, tmp_path)
    assert name in str(caught.value)


def test_a_folder_stands_for_its_logs_and_an_empty_one_is_refused(tmp_path: Path) -> None:
    configs, _ = recorded_configs("inspect", [LOGS], tmp_path / "made")
    assert [config["name"] for config in configs] == ["plain", "tools", "two"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty: expected a log of Inspect"):
        recorded_configs("inspect", [tmp_path / "empty"], tmp_path)


def test_a_sample_without_an_id_and_scores_of_one_name_are_refused(tmp_path: Path) -> None:
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", {"id": None})
    with pytest.raises(DatasetError, match="a sample has no 'id'"):
        imported(path, tmp_path)
    scores = {"a/b": {"value": 1}, "a": {"value": {"b": 0}}}
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", {"scores": scores})
    with pytest.raises(DatasetError, match="two scores of a sample would be called 'a/b'"):
        imported(path, tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_sample_that_would_fill_the_memory_is_refused(
    compression: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspect_log, "SAMPLE_BYTES", 100_000)
    attachments = {f"{0:032x}": "a" * 1000}
    texts = {
        "large": {"id": 1, "input": " " * 200_000},
        "attached": {"id": 1, "input": f"attachment://{0:032x}" * 200, "attachments": attachments},
    }
    for name, sample in texts.items():
        path = tmp_path / f"{name}.eval"
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.writestr("header.json", json.dumps({"eval": {"task": "t"}}))
            archive.writestr("samples/1_epoch_1.json", json.dumps(sample))
        with pytest.raises(DatasetError, match=rf"{name}\.eval: samples/1_epoch_1\.json: is larger than"):
            list(InspectLog.open(path).samples())
    document = {"eval": {"task": "t"}, "samples": [texts["attached"]]}
    (tmp_path / "log.json").write_text(json.dumps(document))
    with pytest.raises(DatasetError, match=r"log\.json: samples\[0\]: is larger than"):
        list(InspectLog.open(tmp_path / "log.json").samples())


def test_a_sample_is_never_unpacked_beyond_what_the_archive_says_of_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(LOGS / "tools.eval") as archive:
        entry = archive.getinfo("samples/t0_epoch_1.json")
        entry.file_size = 100
        with pytest.raises(DatasetError, match="damaged: its checksum is another"):
            inspect_log._bytes(archive, entry)


HEADER: dict[str, Any] = {
    "version": 2, "status": "success",
    "eval": {"task": "t", "model": "m", "config": {"epochs": 1}, "dataset": {"sample_ids": ["a"]}},
}  # fmt: skip
SAMPLE: dict[str, Any] = {
    "id": "a", "epoch": 1, "input": "q", "target": "t", "messages": [],
    "output": {"model": "m", "choices": [], "completion": "x"}, "scores": {"match": {"value": "C"}},
}  # fmt: skip
DEEP = "[" * 10**6 + "]" * 10**6
CALLED = {"role": "user", "content": "a", "tool_calls": 5}
WRONG_TYPES: list[tuple[str, Any]] = [
    ("id", [1]), ("id", {}), ("epoch", "x"), ("epoch", -3), ("epoch", 10**20), ("epoch", 1.5), ("input", 5),
    ("input", [5]), ("input", {"a": 1}), ("messages", 5), ("messages", ["x"]),
    ("messages", [{"role": 5, "content": 5}]), ("messages", [{"role": "tool", "error": "x"}]),
    ("messages", [CALLED]), ("output", 5), ("output", {"choices": 5}), ("output", {"choices": [5]}),
    ("output", {"choices": [{"message": 5}]}), ("output", {"completion": 5}), ("scores", 5), ("scores", [1]),
    ("scores", {"m": 5}), ("scores", {"m": None}), ("total_time", "x"), ("model_usage", 5),
    ("model_usage", {"m": 5}), ("model_usage", {"m": {"input_tokens": "x"}}),
    ("model_usage", {"m": {"input_tokens": 10**30}}), ("attachments", 5), ("attachments", ["x"]),
]  # fmt: skip
WRONG_HEADERS: list[tuple[str, Any]] = [
    ("task", [1]), ("model", {}), ("config", []), ("config", {"epochs": "x"}), ("config", {"epochs": -1}),
    ("config", {"epochs": 10**12}), ("config", {"epochs_reducer": {}}), ("dataset", 3),
    ("dataset", {"sample_ids": 5}),
]  # fmt: skip


def archive_of(path: Path, *samples: str | bytes, header: str | None = None) -> Path:
    """A log of these samples, each in the same member."""
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of two members with one name
        archive.writestr("header.json", json.dumps(HEADER) if header is None else header)
        for sample in samples:
            archive.writestr("samples/../../a_epoch_1.json", sample)
    return path


def told(path: Path, folder: Path) -> str:
    """What is said of a log that is refused."""
    with pytest.raises(DatasetError) as caught:
        imported(path, folder)
    assert path.name in str(caught.value)
    assert len(str(caught.value)) < 1_000
    return str(caught.value)


@pytest.mark.parametrize(("key", "value"), WRONG_TYPES)
def test_a_sample_of_wrong_types_is_refused_with_file_and_key(key: str, value: Any, tmp_path: Path) -> None:
    log = archive_of(tmp_path / "log.eval", json.dumps({**SAMPLE, key: value}))
    assert f"a_epoch_1.json: is no log of Inspect: {key}" in told(log, tmp_path)


@pytest.mark.parametrize(("key", "value"), WRONG_HEADERS)
def test_a_header_of_wrong_types_is_refused_with_file_and_key(key: str, value: Any, tmp_path: Path) -> None:
    header = {**HEADER, "eval": {**HEADER["eval"], key: value}}
    log = archive_of(tmp_path / "log.eval", json.dumps(SAMPLE), header=json.dumps(header))
    assert f"log.eval: is no log of Inspect: eval.{key}" in told(log, tmp_path)


@pytest.mark.parametrize("samples", [5, [5], [None], {"a": 1}])
def test_samples_of_wrong_types_are_refused(samples: Any, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps({**HEADER, "samples": samples}))
    assert "is no log of Inspect: samples" in told(tmp_path / "log.json", tmp_path)


def test_what_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(DEEP)
    assert "nested too deeply" in told(tmp_path / "log.json", tmp_path)
    assert "nested too deeply" in told(archive_of(tmp_path / "header.eval", header=DEEP), tmp_path)
    assert "nested too deeply" in told(archive_of(tmp_path / "sample.eval", DEEP), tmp_path)
    some = json.dumps({**SAMPLE, "attachments": {"a": "b"}})[:-1] + f', "deep": {"[" * 900 + "]" * 900}}}'
    assert "nested too deeply" in told(archive_of(tmp_path / "some.eval", some), tmp_path)


def test_a_part_of_an_archive_other_bytes_and_two_samples_in_one_are_refused(tmp_path: Path) -> None:
    whole = archive_of(tmp_path / "whole.eval", json.dumps(SAMPLE)).read_bytes()
    for size in range(0, len(whole), 97):
        (tmp_path / "part.eval").write_bytes(whole[:size])
        assert "can't be read as a log of Inspect" in told(tmp_path / "part.eval", tmp_path)
    other = json.dumps(SAMPLE).encode().replace(b'"q"', b'"\xff\xfe"')
    assert "malformed JSON" in told(archive_of(tmp_path / "other.eval", other), tmp_path)
    wrong = json.dumps({**SAMPLE, "scores": {"match": {"value": "I"}}})
    twice = archive_of(tmp_path / "twice.eval", json.dumps(SAMPLE), wrong)
    assert "two samples are 'a' of epoch 1" in told(twice, tmp_path)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "9" * 400, "[1]", "null", '"\\ud800"'])
def test_a_value_that_is_no_number_is_never_a_score(value: str, tmp_path: Path) -> None:
    scores = json.dumps({**SAMPLE, "scores": {"match": {"value": "V"}}}).replace('"V"', value)
    log = archive_of(tmp_path / "log.eval", scores)
    _, ((row,)), _ = imported(log, tmp_path)
    assert row["metadata"]["scores"]["match"]["score"] is None
    assert not list(tmp_path.parent.glob("a_epoch_1.json"))
    assert not list(tmp_path.glob("a_epoch_1.json"))


@pytest.mark.parametrize(
    ("task", "model", "names"),
    [
        ("inspect_evals/gsm8k", "openai/gpt-4o", ("inspect_evals_gsm8k", "openai/gpt-4o")),
        ("sums:v2", "vllm//abs/../model", ("sums:v2", "vllm_abs_.._model")),
    ],
)
def test_a_packages_task_and_a_model_that_reads_like_a_path_have_names_of_ours(
    tmp_path: Path, task: str, model: str, names: tuple[str, str]
) -> None:
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", {})
    document = json.loads(path.read_text())
    document["eval"] |= {"task": task, "model": model}
    path.write_text(json.dumps(document))
    config, _, _ = imported(path, tmp_path)
    assert (config["name"], config["models"][0]["name"]) == names
    EvalConfig.model_validate(config)


def test_what_can_be_no_name_is_told_with_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path))
    path = rewritten(LOGS / "tools.eval", tmp_path / "log.json", {})
    document = json.loads(path.read_text())
    document["eval"] |= {"task": "tools", "model": "x" * 2000}
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=r"^--from-inspect: benchmark 'tools': models.*is 2000 bytes long"):
        choose_configs(CommandInputs(recorded={"inspect": [path]}))
