"""The history's command line."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from flows.history import app, main
from tasks.history.layout import record_run
from tasks.reporting.overview import write_index
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import ArtifactRef, Store
from tests.tasks.reporting.recorded_runs import record, row


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def history(store: Store, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--store", store.uri])


def stray(store: Store) -> ArtifactRef:
    return store.write("filter", "a" * 64, pa.schema([("x", pa.int64())]), [pa.table({"x": [1]})])


def test_json_tells_null_from_what_is_no_number_and_from_infinity(store: Store) -> None:
    numbers = (
        "'nan'::DOUBLE AS a, 'inf'::DOUBLE AS b, '-inf'::DOUBLE AS c, NULL AS d, 1.5::DECIMAL(3, 1) AS e"
    )
    answer = history(store, f"SELECT {numbers}", "--json")
    (row,) = json.loads(answer.stdout)
    assert row == {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": None, "e": 1.5}


def test_numbers_within_lists_and_mappings_are_told_apart_too(store: Store) -> None:
    answer = history(store, "SELECT ['nan'::DOUBLE, 1] AS a, {'x': '-inf'::DOUBLE, 'y': NULL} AS b", "--json")
    assert json.loads(answer.stdout) == [{"a": ["NaN", 1.0], "b": {"x": "-Infinity", "y": None}}]


def test_the_list_of_runs_tells_infinity_from_nothing(store: Store) -> None:
    record(store, "monday", 1, row("a", float("inf"), stderr=None))
    (run,) = json.loads(history(store, "--json").stdout)
    (score,) = run["scores"]
    assert (score["value"], score["stderr"]) == ("Infinity", None)


def test_the_list_of_runs_says_how_many_samples_a_number_rests_on(store: Store) -> None:
    counts = {"n_items": 60, "n_samples": 180}
    record(store, "monday", 1, row("a", 0.5, n_scored=180, **counts), row("b", 1.0, n_scored=3, **counts))
    printed = history(store).stdout
    assert "a: exact_match,none 0.5000 ± 0.0200 (60 items)" in printed
    assert "b: exact_match,none 1.0000 ± 0.0200 (60 items, 3 of 180 samples scored)" in printed
    (run,) = json.loads(history(store, "--json").stdout)
    assert [(score["n_scored"], score["n_samples"]) for score in run["scores"]] == [(180, 180), (3, 180)]


def test_the_list_of_runs_names_prompts_where_there_are_several(store: Store) -> None:
    record(store, "monday", 1, row("a", 0.5), row("a", 0.4, prompt_template="long"))
    printed = history(store).stdout
    assert "a · default: exact_match,none 0.5000" in printed
    assert "a · long: exact_match,none 0.4000" in printed


def test_the_list_of_runs_says_which_stopped_and_a_query_finds_them(store: Store) -> None:
    stop = {"asked_items": 400, "of_items": 1319, "why": "decided"}
    record(store, "monday", 1, row("a", 0.5))
    record(store, "tuesday", 2, row("a", 0.5, n_items=400), stopped=stop)
    said = "400 of 1,319 items, stopped: decided"
    assert history(store).stdout.count(said) == 1
    assert [run["stopped"] for run in json.loads(history(store, "--json").stdout)] == [said, None]
    found = history(store, "SELECT run_id FROM runs WHERE manifest->>'$.stopped.why' IS NOT NULL", "--json")
    assert json.loads(found.stdout) == [{"run_id": "tuesday"}]


def test_csv_holds_no_formula(store: Store) -> None:
    answer = history(
        store, "SELECT '=1+1' AS a, '@x' AS b, 'a,b' AS c, -1.5::DOUBLE AS d, NULL AS e", "--csv"
    )
    assert (answer.exit_code, answer.stdout) == (0, "a,b,c,d,e\n'=1+1,'@x,\"a,b\",-1.5,\n")
    assert "--csv needs a SQL query; for example:" in str(history(store, "--csv").exception)
    both = history(store, "SELECT 1", "--csv", "--json").exception
    assert str(both) == "--csv and --json were both given; name one of them"


def test_rows_are_a_table_without_json(store: Store) -> None:
    answer = history(store, "SELECT 'exact_match' AS metric, 0.123456789::DOUBLE AS value")
    assert answer.exit_code == 0
    assert "exact_match" in answer.stdout
    assert "0.123457" in answer.stdout


def test_a_record_that_can_not_be_read_is_named_on_stderr_and_the_others_answer(store: Store) -> None:
    record(store, "monday", 1)
    store.put_bytes("runs/torn.json", b"{")
    answer = history(store, "SELECT run_id FROM runs", "--json")
    assert (answer.exit_code, json.loads(answer.stdout)) == (0, [{"run_id": "monday"}])
    assert "warning: left out" in answer.stderr
    assert "runs/torn.json" in answer.stderr
    for arguments in ((), ("--json",)):
        listed = history(store, *arguments)
        assert "monday" in listed.stdout
        assert listed.stderr == answer.stderr, "once, however many queries the list takes"
    answer = history(store, "--compact", "--json")
    assert json.loads(answer.stdout) == {"runs": 1}
    assert "runs/torn.json" in answer.stderr


def test_pruning_says_what_it_removed(store: Store) -> None:
    ref = stray(store)
    answer = history(store, "--prune")
    assert (answer.exit_code, store.holds(ref)) == (0, False)
    assert f"removed {ref.name}" in answer.stdout
    assert "removed 1 artifacts" in answer.stdout


def test_the_store_that_the_environment_names_is_meant(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NIGHTJAR_STORE", store.uri)
    ref = stray(store)
    answer = CliRunner().invoke(app, ["--prune", "--dry-run", "--json"])
    assert [entry["name"] for entry in json.loads(answer.stdout)["removed"]] == [ref.name]


def test_a_dry_pruning_names_the_same_and_removes_nothing(store: Store) -> None:
    ref = stray(store)
    answer = history(store, "--prune", "--dry-run", "--json")
    assert [entry["name"] for entry in json.loads(answer.stdout)["removed"]] == [ref.name]
    assert store.holds(ref)


def test_a_retention_file_says_what_is_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NIGHTJAR_RESULTS", str(tmp_path / "results"))
    for day in (1, 2, 3):
        manifest = {"run_id": f"run-{day}", "benchmark": "sums", "started": f"2026-01-0{day}"}
        manifest |= {"run_name": "run", "output": str(tmp_path / "results" / f"run-{day}")}
        record_run(store, manifest, [RESULTS.empty_table()], [ITEM_ROWS.empty_table()])
    old = tmp_path / "results" / "run-1" / "manifest.json"
    old.parent.mkdir(parents=True)
    old.write_text(json.dumps({"run_id": "run-1", "benchmark": "sums", "steps": {}}))
    os.utime(old, (0, 0))
    shown = write_index(store, tmp_path / "results").parent / "index-runs.js"
    assert '"folder":"results/run-1"' in shown.read_text()
    file = tmp_path / "retention.yaml"
    file.write_text("keep: 2\nresults: 30d\nanswers: 4w\nlogs: null\n")
    told = json.loads(history(store, "--prune", "--retention", str(file), "--dry-run", "--json").stdout)
    assert (told["forgotten"], told["folders"]) == (["run-1"], [str(old.parent)])
    assert old.exists()
    answer = history(store, "--prune", "--retention", str(file))
    assert "forgot run run-1" in answer.stdout
    assert f"removed {old.parent}" in answer.stdout
    assert not old.parent.exists()
    assert '"folder":"results/run-1"' not in shown.read_text()
    assert [run["run_id"] for run in json.loads(history(store, "SELECT * FROM runs", "--json").stdout)] == [
        "run-1",
        "run-2",
        "run-3",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keep: 0", "keep"),
        ("results: 30", "such as 20h or 90d"),
        ("answers: {unsued: 3d}", "unsued"),
        ("logs: 0d", "above zero"),
    ],
)
def test_a_retention_that_can_not_be_meant_is_refused(
    store: Store, tmp_path: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "retention.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["--prune", "--retention", str(file), "--store", store.uri])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert "retention.yaml:1" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SELECT 1", "--prune"], "either a SQL query or --prune"),
        (["SELECT 1", "--keep", "3"], "need --prune"),
        (["SELECT 1", "--limit", "3"], "--limit is of the latest runs; write LIMIT 3 into the query"),
        (["--compact", "--limit", "3"], "--limit is of the latest runs; leave it out"),
        (["--prune", "--keep", "3", "--retention", "x.yaml"], "name one of them"),
        (["--prune", "--compact"], "either a SQL query"),
        (["DELETE FROM runs"], "read-only"),
        (["SELECT nothing FROM runs"], "nothing"),
    ],
)
def test_bad_input_is_answered_with_exit_code_2(
    store: Store, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--store", store.uri])
    output = capsys.readouterr()
    assert ended.value.code == 2
    assert output.err.startswith("error: ")
    assert message in output.err
    assert "Traceback" not in output.out + output.err


def test_without_sql_the_latest_runs_are_listed_with_numbers_changes_and_places(store: Store) -> None:
    assert "no run yet" in history(store).stdout
    for number, seed in enumerate((1, 2)):
        manifest = {
            "run_id": f"night-{number}",
            "run_name": f"night-{number}",
            "benchmark": "sums",
            "started": 1_800_000_000 + 86_400 * number,
            "config": {"sample_params": {"seed": seed}},
            "models": {"demo": {}},
            "output": f"/results/night-{number}",
        }
        record_run(store, manifest, [RESULTS.empty_table()], [ITEM_ROWS.empty_table()])
    assert history(store).stdout.splitlines() == [
        "2027-01-16 08:00 UTC  night-1",
        "    changed: sample_params",
        "    /results/night-1/report.html",
        "2027-01-15 08:00 UTC  night-0",
        "    /results/night-0/report.html",
    ]
    (latest,) = json.loads(history(store, "--limit", "1", "--json").stdout)
    assert (latest["run_id"], latest["changed"]) == ("night-1", ["sample_params"])


def test_of_a_run_of_many_models_the_best_are_listed(store: Store) -> None:
    many = [row(f"model-{number:02d}", number / 100) for number in range(60)]
    record(store, "monday", 1, *many)
    record(store, "tuesday", 2, *({**entry, "higher_is_better": False} for entry in many))
    record(store, "wednesday", 3, *many[:12])
    lines = [line.strip() for line in history(store).stdout.splitlines()]
    models = [line.partition(":")[0] for line in lines if line.startswith("model-")]
    assert models[:12] == [f"model-{number:02d}" for number in range(12)]
    assert models[12:17] == [f"model-{number:02d}" for number in range(5)]
    assert models[17:] == [f"model-{number:02d}" for number in range(59, 54, -1)]
    assert lines.count("and 55 more; these are the best") == 2
