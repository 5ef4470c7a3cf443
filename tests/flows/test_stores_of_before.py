"""Stores that earlier versions wrote: their answers, results and history are read, never misread.

``tests/fixtures/store-0.1.0`` was written by version 0.1.0 (commit 54a1bbc), ``store-8424e01`` by that commit
(format 1): one evaluation of ``old.yaml``, then two nights of ``suite.yaml``. Neither has seals.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.compare.__main__ import main as compare
from flows.history import app

PROJECT = Path(__file__).resolve().parents[2]
FIXTURES = PROJECT / "tests" / "fixtures"
FIRST = {"exact_match": 0.6666666666666666, "bleu": 67.40209204939114}


@pytest.fixture(params=["store-0.1.0", "store-8424e01"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the folder: reading may add to a store."""
    return Path(shutil.copytree(FIXTURES / request.param, tmp_path / "old"))


def runs_of(old: Path) -> tuple[str, list[str]]:
    """The evaluation alone, and those of the two nights, in their order."""
    manifests = [json.loads(path.read_bytes()) for path in (old / "store" / "runs").glob("*.json")]
    manifests.sort(key=lambda manifest: manifest["started"])
    first, *nights = [str(manifest["run_id"]) for manifest in manifests]
    return first, nights


def test_its_answers_are_served_and_its_numbers_come_out_again(old: Path, evaluate: Any) -> None:
    ran = evaluate(old / "old.yaml", "--store", old / "store", "--json")
    assert ran.code == 0, ran.err
    assert ran.document["requests"] == {"sent": 0, "cached": 6, "failed": 0}
    values = {row["metric"]: row["value"] for row in ran.document["results"]}
    assert values == pytest.approx(FIRST, rel=1e-9)


def test_its_history_answers(old: Path) -> None:
    sql = "SELECT run_id, metric, value FROM results ORDER BY run_id, metric"
    answer = CliRunner().invoke(app, [sql, "--json", "--store", str(old / "store")])
    rows = json.loads(answer.stdout)
    first, nights = runs_of(old)
    assert sorted(row["run_id"] for row in rows[::2]) == sorted([first, *nights])
    assert [row["value"] for row in rows] == pytest.approx(
        [67.40209204939114, 0.6666666666666666] * 3, rel=1e-9
    )


@pytest.mark.parametrize("compacted", [False, True], ids=["loose", "compacted"])
def test_its_history_has_the_columns_of_today(old: Path, compacted: bool) -> None:
    store = str(old / "store")
    if compacted:
        assert CliRunner().invoke(app, ["--compact", "--store", store]).exit_code == 0
    sql = "SELECT count(*) AS n, count(warning) AS warned FROM results JOIN runs USING (run_id)"
    answer = CliRunner().invoke(app, [sql, "--json", "--store", store])
    assert json.loads(answer.stdout) == [{"n": 6, "warned": 0}]
    sql = "SELECT count(*) AS n FROM scores"
    assert json.loads(CliRunner().invoke(app, [sql, "--json", "--store", store]).stdout)[0]["n"] > 0


def test_its_nights_are_read_and_pruning_keeps_what_they_need(old: Path) -> None:
    from tasks.history.nights import past_nights
    from tasks.store.storage import Store

    store = Store(str(old / "store"))
    first, nights = runs_of(old)
    assert [night.passed for night in past_nights(store, "old-nightly")] == [True, False]
    answer = CliRunner().invoke(app, ["--prune", "--keep", "1", "--json", "--store", store.uri])
    assert json.loads(answer.stdout)["forgotten"] == sorted([first, nights[0]])
    assert store.format()[0] > 0
    assert list((old / "store" / "answers").glob("*/*.parquet"))
    sql = "SELECT count(DISTINCT run_id) AS n FROM results"
    assert json.loads(CliRunner().invoke(app, [sql, "--json", "--store", store.uri]).stdout) == [{"n": 3}]


def test_its_runs_are_compared_by_their_ids(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare([*runs_of(old)[1], "--store", str(old / "store"), "--json"])
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    pairs = json.loads(said.out)["pairs"]
    assert [pair["difference"] for pair in pairs] == [0.0, 0.0]
