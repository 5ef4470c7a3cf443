"""What ``nightjar init`` writes runs; ``nightjar deploy`` registers it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.config import load_config
from flows.deploy import main as deploy
from flows.deploy import schedule_of
from flows.init import FILES, main
from flows.suite.plan import load_suite
from tests.flows.conftest import Evaluate, as_new_process, own


def init(folder: Path) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([str(folder)])
    return ended.value.code


def test_what_is_written_runs_and_passes_its_own_gate_on_the_second_night(
    tmp_path: Path, evaluate: Evaluate, suite_night: Evaluate
) -> None:
    folder = tmp_path / "my numbers"
    assert init(folder) == 0
    ran = evaluate(folder / "benchmark.yaml", "--json")
    assert ran.code == 0, ran.err
    rows = {row["facets"].get("topic"): row["value"] for row in ran.document["results"]}
    assert set(rows) == {None, "addition", "subtraction", "multiplication"}
    assert 0.5 < rows[None] < 1
    assert [suite_night(folder / "suite.yaml").code for _ in range(2)] == [0, 0]


def test_every_line_that_is_written_has_a_comment(tmp_path: Path) -> None:
    init(tmp_path / "x")
    for name in FILES:
        lines = (tmp_path / "x" / name).read_text("utf-8").splitlines()
        assert name.endswith(".csv") or all("#" in line for line in lines), name


@pytest.mark.parametrize(
    "folder",
    [
        "2026",
        "2026-01-01",
        "1.5",
        "12:30",
        "010",
        "0x1F",
        "1e3",
        "yes",
        "no",
        "on",
        "True",
        "null",
        "é" * 120,
    ],
)
def test_a_folder_of_any_name_gives_its_files_a_name(folder: str, tmp_path: Path) -> None:
    assert init(tmp_path / folder) == 0
    name = load_config(tmp_path / folder / "benchmark.yaml").name
    assert name == re.sub(r"\W", "_", folder)[:96]
    assert load_suite(tmp_path / folder / "suite.yaml").name == f"{name}_nightly"


def test_a_folder_that_the_file_system_does_not_take_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / ("É" * 150)) == 2
    assert "can't be written: File name too long" in capsys.readouterr().err


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "suite.yaml").write_text("mine")
    assert init(tmp_path) == 2
    assert "suite.yaml is there already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["suite.yaml"]


def test_a_suite_is_registered_with_its_schedule_and_replaced(
    home: Path, tmp_path: Path, prefect_api: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "x")
    for hour in (2, 3):
        given = [
            str(tmp_path / "x" / "suite.yaml"),
            "--cron",
            f"30 {hour} * * *",
            "--timezone",
            "Europe/Berlin",
        ]
        with as_new_process(own(home), ["flows.deploy"]), pytest.raises(SystemExit) as ended:
            deploy(given)
        assert ended.value.code == 0
    found = prefect_api("GET", "/deployments/name/suite/x_nightly")
    (schedule,) = found["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("30 3 * * *", "Europe/Berlin")
    assert found["entrypoint"] == "flows.suite.flow.run_suite"
    assert found["parameters"] == {"suite": str(tmp_path / "x" / "suite.yaml")}
    assert found["work_pool_name"] == "local"
    assert found["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert "runs this suite too" not in capfd.readouterr().out

    with as_new_process(own(home), ["flows.deploy"]), pytest.raises(SystemExit):
        deploy([*given, "--name", "renamed"])
    assert "suite/x_nightly runs this suite too" in capfd.readouterr().out


@pytest.mark.parametrize(
    "given",
    [
        ["--cron", "at night"],
        ["--cron", "61 2 * * *"],
        ["--cron", "30 2 * * * *"],  # a sixth field would be seconds: sixty nights in a minute
        ["--cron", "30 2 * * * * 2020"],
        ["--cron", "0 0 31 2 *"],
        ["--cron", "30 2 * * *", "--timezone", "Mars/Olympus"],
    ],
    ids=str,
)
def test_a_schedule_that_is_none_is_refused(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "x")
    with pytest.raises(SystemExit) as ended:
        deploy([str(tmp_path / "x" / "suite.yaml"), *given])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "expected five fields such as '30 2 * * *'" in said
    assert "type=" not in said


@pytest.mark.parametrize("cron", ["30 2 * * 1-5", "@daily"])
def test_a_schedule_is_five_fields_or_a_name(cron: str) -> None:
    assert schedule_of(cron, "UTC").cron == cron


@pytest.mark.parametrize("name", ["a/b", "50%", "   "])
def test_a_deployment_whose_name_prefect_does_not_take_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(tmp_path / "x")
    suite = str(tmp_path / "x" / "suite.yaml")
    with pytest.raises(SystemExit) as ended:
        deploy([suite, "--cron", "30 2 * * *", "--name", name])
    assert ended.value.code == 2
    assert "give the deployment another with --name" in capsys.readouterr().err
