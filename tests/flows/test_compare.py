"""The comparison's command line: exit codes, gate files, one JSON document."""

import io
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows.compare.__main__ import main
from flows.compare.flips import FlippedItems
from flows.compare.runs import ComparisonTable, compare_opened
from tasks.comparison.compare import ComparedPair
from tasks.comparison.matching import Flipped, GroupKey, Match
from tasks.comparison.runs import ComparedRun, open_run
from tasks.history.layout import record_run
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import Store
from tests.flows.conftest import Evaluate


def item_rows(right: int, items: int, **other: Any) -> list[dict[str, Any]]:
    row = {
        "benchmark": "sums",
        "filter": "none",
        "metric": "exact_match",
        "reduction": "mean",
        "n_samples": 1,
    }
    return [
        row | {"item_id": f"q{i}", "item_digest": f"q{i}", "value": float(i < right)}
        | {"statistics": [float(i < right)]}
        | {"n_samples": 1, "n_scored": 1, "model_name": "demo"} | other
        for i in range(items)
    ]  # fmt: skip


def folder(path: Path, right: int, items: int = 300, **manifest: Any) -> Path:
    path.mkdir()
    pq.write_table(pa.Table.from_pylist(item_rows(right, items)), path / "items.parquet")
    (path / "manifest.json").write_text(json.dumps({"run_id": path.name, **manifest}))
    return path


def published(path: Path, right: int, response: str = "A: 4", items: int = 4) -> Path:
    folder(path, right, items)
    pq.write_table(RESULTS.empty_table(), path / "results.parquet")
    response_rows = [
        {
            "item_id": f"q{i}",
            "sample_index": 0,
            "model_name": "demo",
            "prompt_template": "p",
            "prompt": f"{i}?",
        }
        | {"response": response, "status": "ok", "error": None}
        for i in range(items)
    ]
    logged = [
        {"item_id": f"q{i}", "filter": "none", "filtered_resps": [response], "metrics": ["exact_match"]}
        | {"exact_match": float(i < right), "doc_hash": f"q{i}", "target": "4", "resps": [[response]]}
        for i in range(items)
    ]
    for name, rows in (("responses", response_rows), ("samples_sums", logged)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def gate(path: Path, text: str) -> str:
    (path / "gate.yaml").write_text(text)
    return str(path / "gate.yaml")


def compare(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, captured.out, captured.err


def test_a_comparison_is_headed_by_its_models_and_says_where_its_page_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, model in (("monday", "qwen"), ("tuesday", "gpt")):
        folder(tmp_path / name, 200)
        rows = item_rows(200, 300, facets=json.dumps({"model_name": model}))
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "items.parquet")
    base, candidate = tmp_path / "monday", tmp_path / "tuesday"
    _, said, err = compare(capsys, base, candidate, "--output", tmp_path / "out")
    assert said.splitlines()[0] == f"base: {base} (qwen); candidate: {candidate} (gpt)"
    assert f"comparison: {tmp_path / 'out' / 'comparison.json'}" in err


def test_numbers_have_the_digits_of_the_page(tmp_path: Path) -> None:
    def opened(name: str, right: int) -> ComparedRun:
        return open_run(str(folder(tmp_path / name, right)), Store(str(tmp_path / "store")))

    compared = compare_opened(opened("base", 200), opened("candidate", 200))
    (pair,) = compared.pairs
    assert pair.comparison is not None
    nothing = replace(pair.comparison, difference=-1.1e-16, ci_low=-0.04567891, p_value=2.3e-19)
    shown = replace(pair, comparison=nothing, p_adjusted=2.3e-19)
    file = io.StringIO()
    Console(file=file, width=200).print(ComparisonTable(replace(compared, pairs=(shown,))))
    assert re.search(r"0\.6667 +0\.6667 +0\.0000 +\[-0\.0457, 0\.\d{4}\] +< 0\.001 ", file.getvalue())


@pytest.mark.parametrize(
    ("right", "margin", "code", "verdict"),
    [(200, 0.05, 0, "pass"), (100, 0.05, 1, "regression"), (190, 0.05, 3, "inconclusive")],
)
def test_the_exit_code_is_the_gates_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], right: int, margin: float, code: int, verdict: str
) -> None:
    base, candidate = folder(tmp_path / "base", 200), folder(tmp_path / "candidate", right)
    arguments = ("--gate", gate(tmp_path, f"margin: {margin}\n"), "--json")
    found, out, _ = compare(capsys, base, candidate, *arguments)
    document = json.loads(out)
    assert (found, document["verdict"]) == (code, verdict)
    (pair,) = document["pairs"]
    assert pair["difference"] == pytest.approx((right - 200) / 300)
    assert (pair["losses"], pair["wins"], pair["coverage"]) == (200 - right, 0, 1.0)
    assert len(pair["flipped"]) == 200 - right
    assert {"ci_low", "ci_high", "test", "p_value", "p_adjusted", "mde", "ties"} <= set(pair)


def test_without_a_gate_a_difference_is_shown_and_judges_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = compare(capsys, folder(tmp_path / "base", 200), folder(tmp_path / "candidate", 100))
    assert code == 0
    assert "-0.3333" in out
    assert "flipped, exact_match,none (demo): -q100" in out


BENCHMARK = """
name: sums
output_type: generate_until
dataset: a_dataset.csv
prompt_template: "Question: {{question}}\\nAnswer:"
target: "{{answer}}"
models: [{name: demo, type: demo, config: {error_rate: %s}}]
filter_list: [{name: last-number, filter: [last_number, normalize_number], metric_list: [exact_match]}]
"""


def numbered(path: Path, evaluate: Evaluate) -> tuple[Path, Path]:
    """Two runs over questions without ids: all are right, then all are wrong."""
    rows = (
        f"Ada has {n} shells and finds {n + 3} more shells. How many has she?,{2 * n + 3}" for n in range(8)
    )
    (path / "a_dataset.csv").write_text("\n".join(["question,answer", *rows]) + "\n")
    for name, rate in (("right", 0.0), ("wrong", 1.0)):
        (path / f"{name}.yaml").write_text(BENCHMARK % rate)
        assert evaluate(path / f"{name}.yaml", "--output", path / name).code == 0
    return path / "right", path / "wrong"


def test_a_flipped_item_without_an_id_is_named_by_its_line_and_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], evaluate: Evaluate
) -> None:
    right, wrong = numbered(tmp_path, evaluate)
    _, out, _ = compare(capsys, right, wrong, "--flips", 2)
    shown = out[out.index("\nflipped, ") + 1 :].splitlines()
    assert shown[0] == "flipped, exact_match,last-number (demo, default): 2 of 8 (- lost, + won):"
    assert [line.strip() for line in shown[1:3]] == [
        f"-a_dataset.csv:{n + 2}  Ada has {n} shells and finds {n + 3} more shells. How many has she?"
        for n in range(2)
    ]
    _, out, _ = compare(capsys, wrong, right, "--flips", 8)
    assert out.count("  +a_dataset.csv:") == 8
    assert not re.search(r"\b[0-9a-f]{16}\b", out), "a digest tells nobody anything"
    for folder in (right, wrong):
        (folder / "samples_sums.jsonl").unlink()
    _, out, _ = compare(capsys, right, wrong, "--flips", 1)
    assert re.search(r"-item [0-9a-f]{16} \(its run has no samples any more\)", out)


@pytest.mark.parametrize("width", [100, 80, 60, 40])
def test_the_place_of_a_flipped_item_is_whole_at_any_width(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "a_dataset_of_quite_a_long_name.csv:1319"
    item = Flipped(16 * "a", 64 * "a", 1.0, 0.0, place, "How many eggs are left? " * 9)
    key = GroupKey("sums", "none", "exact_match", "mean")
    pair = ComparedPair(Match(key, key), flipped=(item,), higher_is_better=True)
    file = io.StringIO()
    Console(file=file, width=width).print(FlippedItems("exact_match,none", pair, 5))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert f"-{place}" in "".join(line.strip() for line in lines)
    assert lines[-1].endswith("…")
    assert "How many" in lines[-1]


def test_run_ids_are_looked_up_in_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(str(tmp_path / "store"))
    for run_id, right in (("monday", 200), ("tuesday", 100)):
        rows = [row | {"facets": '{"model_name": "demo"}'} for row in item_rows(right, 300)]
        items = pa.Table.from_pylist(
            [{name: row.get(name) for name in ITEM_ROWS.names} for row in rows], schema=ITEM_ROWS
        )
        record_run(store, {"run_id": run_id}, [RESULTS.empty_table()], [items])
    arguments = ("--store", store.uri, "--json", "--output", tmp_path / "out")
    code, out, err = compare(capsys, "monday", "tuesday", *arguments)
    assert code == 0
    assert json.loads(out)["pairs"][0]["losses"] == 100
    assert json.loads((tmp_path / "out" / "comparison.json").read_bytes()) == json.loads(out)
    assert not (tmp_path / "out" / "comparison.html").exists()
    assert err.splitlines() == [
        "no comparison.html: it needs the output folders of both runs, "
        "and monday and tuesday are known by id only",
        f"comparison: {tmp_path / 'out' / 'comparison.json'}",
    ]
    code, _, err = compare(capsys, "monday", "tuesdy", "--store", store.uri)
    assert code == 2
    assert "did you mean 'tuesday'" in err


def test_two_folders_make_a_page_that_runs_nothing_a_model_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = '<script>document.title = "owned"</script>'
    base = published(tmp_path / "base", 4)
    candidate = published(tmp_path / "candidate", 1, hostile)
    arguments = ("--output", tmp_path / "out", "--gate", gate(tmp_path, "margin: 0.05\n"))
    code, _, err = compare(capsys, base, candidate, *arguments)
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert (code, err.startswith("comparison: ")) == (3, True)
    assert str(candidate) in page
    assert "exact_match,none" in page
    assert "inconclusive" in page
    assert "<script>document" not in page
    assert "-0.75" in page.replace("\N{MINUS SIGN}", "-")


def test_a_folder_without_samples_is_compared_and_an_old_page_does_not_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, bare = published(tmp_path / "base", 4), folder(tmp_path / "bare", 1, 4)
    out = tmp_path / "out"
    compare(capsys, base, published(tmp_path / "candidate", 1), "--output", out)
    assert (out / "comparison.html").exists()
    code, _, err = compare(capsys, base, bare, "--output", out)
    assert code == 0
    assert err.startswith(f"no comparison.html: {bare} is not the folder of a published run")
    assert [path.name for path in out.iterdir()] == ["comparison.json"]


def test_a_comparison_that_cannot_be_written_leaves_the_one_before_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, same, other = (folder(tmp_path / name, count) for name, count in (("a", 4), ("b", 4), ("c", 1)))
    out = tmp_path / "out"
    compare(capsys, base, same, "--output", out)
    before = (out / "comparison.json").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    code, _, err = compare(capsys, base, other, "--output", out)
    assert (code, err) == (2, f"error: can't write {out / 'comparison.json'}: No space left on device\n")
    assert (out / "comparison.json").read_bytes() == before
    assert [path.name for path in out.iterdir()] == ["comparison.json"]


def test_no_new_numbers_stand_beside_a_page_that_cannot_be_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = folder(tmp_path / "a", 4), folder(tmp_path / "b", 1)
    out = tmp_path / "out"
    page = out / "comparison.html"
    page.mkdir(parents=True)
    code, _, err = compare(capsys, base, candidate, "--output", out)
    assert (code, err.startswith(f"error: can't remove {page}: ")) == (2, True)
    assert [path.name for path in out.iterdir()] == ["comparison.html"]


def test_a_run_that_cannot_be_read_has_its_own_name_in_the_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, candidate = published(tmp_path / "base", 4), published(tmp_path / "candidate", 1)

    def forbidden(view: Any, *_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", str(base / "responses.jsonl"))

    monkeypatch.setattr("tasks.reporting.compare.write_compare_report", forbidden)
    code, _, err = compare(capsys, base, candidate, "--output", tmp_path / "out")
    assert code == 0
    assert f"no comparison.html: [Errno 13] Permission denied: '{base / 'responses.jsonl'}'" in err


def test_runs_are_compared_as_two_samples_where_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = folder(tmp_path / "base", 200), folder(tmp_path / "candidate", 190)
    joined = json.loads(compare(capsys, base, candidate, "--json")[1])["pairs"][0]
    apart = json.loads(compare(capsys, base, candidate, "--json", "--unpaired")[1])["pairs"][0]
    assert (joined["n_items"], apart["n_items"]) == (300, 600)
    assert apart["difference"] == pytest.approx(joined["difference"])
    assert apart["stderr"] > 2 * joined["stderr"]
    assert apart["mde"] > joined["mde"]
    said = gate(tmp_path, "{method: unpaired, margin: 0.2}\n")
    assert compare(capsys, base, candidate, "--gate", said)[0] == 0


def test_without_an_output_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, candidate = published(tmp_path / "base", 4), published(tmp_path / "candidate", 1)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert compare(capsys, base, candidate)[0] == 0
    assert sorted(tmp_path.rglob("*")) == before


def test_a_changed_model_behind_the_same_name_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = [{"models": {"demo": {"identity": {}, "served": {name: 300}}}} for name in ("v1", "v2")]
    base = folder(tmp_path / "base", 200, **served[0])
    candidate = folder(tmp_path / "candidate", 200, **served[1])
    _, out, _ = compare(capsys, base, candidate)
    assert 'model identity changed: demo: as served: ["v1"] → ["v2"]' in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "alpha: 0.05\nmargn: 0.1\n",
            "gate.yaml:2: margn: 'margn' is not a key here; did you mean 'margin'?",
        ),
        ("alpha: 1.5\n", "gate.yaml:1: alpha: expected less than 1"),
        ("correction: bonferroni\n", "gate.yaml:1: correction: expected one of holm, bh, none"),
        ("pairs:\n  'exact_match,none': {coverage: 2}\n", "gate.yaml:2: pairs.exact_match,none.coverage"),
        ("pairs: {'exact_mach,none': {}}\n", "did you mean 'exact_match,none'?"),
        ("- 1\n", "expected a mapping"),
    ],
)
def test_a_gate_file_that_can_not_be_used_is_refused_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    base = folder(tmp_path / "base", 200)
    code, _, err = compare(capsys, base, base, "--gate", gate(tmp_path, text))
    assert code == 2
    assert message in err


def test_runs_without_a_common_pair_and_folders_without_a_run_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = folder(tmp_path / "base", 200)
    other = tmp_path / "other"
    other.mkdir()
    code, _, err = compare(capsys, base, other)
    assert (code, "no items.parquet" in err) == (2, True)
    pq.write_table(pa.Table.from_pylist(item_rows(1, 3, metric="bleu")), other / "items.parquet")
    code, _, err = compare(capsys, base, other)
    assert code == 2
    assert "have no pair in common" in err
    assert compare(capsys, base)[0] == 2


def test_a_run_of_which_all_pairs_failed_is_inconclusive_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = folder(tmp_path / "base", 200), folder(tmp_path / "candidate", 0, items=0)
    pq.write_table(ITEM_ROWS.empty_table(), candidate / "items.parquet")
    row = {"benchmark": "sums", "filter": "none", "metric": "exact_match", "reduction": "mean"}
    failed = row | {"facets": '{"model_name": "demo"}', "status": "failed", "error": "boom"}
    failed |= dict.fromkeys(("n_items", "n_samples", "n_scored", "n_unscored"), 0)
    pq.write_table(pa.Table.from_pylist([failed], schema=RESULTS), candidate / "results.parquet")
    terms = gate(tmp_path, "pairs: {'exact_match,none': {}}\n")
    code, out, _ = compare(capsys, base, candidate, "--gate", terms)
    assert code == 3
    assert "exact_match,none (demo): failed in the candidate: boom" in out
    assert compare(capsys, candidate, candidate, "--gate", terms)[0] == 3


def test_the_heading_gives_each_side_its_own_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, candidate = folder(tmp_path / "base", 200), folder(tmp_path / "candidate", 200)
    rows = item_rows(200, 300) + item_rows(100, 300, model_name="new")
    pq.write_table(pa.Table.from_pylist(rows), candidate / "items.parquet")
    _, out, _ = compare(capsys, base, candidate)
    assert "base (demo" in out.splitlines()[0]
    assert "candidate (demo, new" in out.splitlines()[0]


def test_two_models_of_one_run_are_compared_across_their_facet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = folder(tmp_path / "run", 200)
    rows = item_rows(200, 300) + item_rows(100, 300, model_name="small")
    pq.write_table(pa.Table.from_pylist(rows), run / "items.parquet")
    output = tmp_path / "out"
    code, out, err = compare(capsys, run, "--across", "model_name", "--json", "--output", output)
    (pair,) = json.loads(out)["pairs"]
    assert (code, pair["facets"], pair["candidate_facets"]) == (
        0,
        {"model_name": "demo"},
        {"model_name": "small"},
    )
    assert pair["losses"] == 100
    assert [path.name for path in output.iterdir()] == ["comparison.json"]
    assert err.startswith("no comparison.html: it shows the samples of two runs side by side")
