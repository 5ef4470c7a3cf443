"""``python -m flows.store``: every file of a store is looked at, and what is damaged is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flows.history import app as history
from flows.store import app

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"


def called(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.stdout


@pytest.mark.parametrize("version", ["store-0.1.0", "store-8424e01"])
def test_a_store_of_before_gets_seals_and_then_every_byte_is_checked(tmp_path: Path, version: str) -> None:
    store = Path(shutil.copytree(FIXTURES / version / "store", tmp_path / "store"))
    sql = ["SELECT * FROM results ORDER BY ALL", "--json", "--store", str(store)]
    before = CliRunner().invoke(history, sql).stdout
    code, said = called("--verify", "--store", store)
    assert code == 0, said
    assert "files are of a version before seals and can't be verified" in said
    code, said = called("--repair", "--store", store)
    assert (code, "have seals now" in said) == (0, True), said
    code, said = called("--verify", "--json", "--store", store)
    assert code == 0, said
    assert json.loads(said)["unsealed"] == 0
    assert CliRunner().invoke(history, sql).stdout == before
    (answers,) = (store / "answers").glob("*/*.parquet")
    content = bytearray(answers.read_bytes())
    content[-300] ^= 1
    answers.write_bytes(content)
    code, said = called("--store", store)
    assert code == 1
    assert f"{answers.relative_to(store)} is damaged: its footer is not what was written" in said
    assert "its answers are asked for again" in said


def test_a_bit_in_the_name_of_a_column_of_an_older_store_is_damage(tmp_path: Path) -> None:
    store = Path(shutil.copytree(FIXTURES / "store-0.1.0" / "store", tmp_path / "store"))
    for folder, column in (("answers/*", b"response"), ("history/results", b"value")):
        path = next(store.glob(f"{folder}/*.parquet"))
        content = path.read_bytes()
        start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
        path.write_bytes(content[:start] + content[start:].replace(column, column[:-1] + b"d"))
        code, said = called("--json", "--store", store)
        assert code == 1
        assert [entry["name"] for entry in json.loads(said)["damaged"]] == [str(path.relative_to(store))]
        assert "its column" in said
        path.write_bytes(content)


def test_a_bit_in_kept_answers_costs_questions_and_is_named_and_never_another_number(
    tmp_path: Path, evaluate: Any
) -> None:
    folder = Path(shutil.copytree(FIXTURES / "store-8424e01", tmp_path / "old"))
    store = tmp_path / "store"
    first = evaluate(folder / "old.yaml", "--store", store, "--json")
    assert first.document["requests"]["sent"] == 6
    (answers,) = (store / "answers").glob("*/*.parquet")
    content = answers.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    place = content.index(b"response", start)
    answers.write_bytes(content[:place] + b"s" + content[place + 1 :])
    for artifact in (store / "infer").iterdir():  # so that the answers are read again
        artifact.unlink()
    again = evaluate(folder / "old.yaml", "--store", store, "--json")
    assert again.code == 0, again.err
    assert [row["value"] for row in again.document["results"]] == [
        row["value"] for row in first.document["results"]
    ]
    assert again.document["requests"]["sent"] == 6
    name = answers.relative_to(store)
    assert (
        f"{name} is damaged: its footer is not what was written; its answers are asked for again" in again.err
    )
    assert answers.with_name(f"{answers.name}.damaged").exists()


def test_a_store_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    code, said = called("--store", tmp_path / "none")
    assert code == 0
    assert "0 whole files" in said
