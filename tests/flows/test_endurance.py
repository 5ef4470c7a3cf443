"""What a bad night does to a run: killed processes and secrets, seen from the endpoint's side."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.models.demo.options import DemoOptions, Faults
from tasks.models.demo.server import Serving, serve

PROJECT = Path(__file__).resolve().parents[2]
PROBLEMS = PROJECT / "deployments" / "benchmarks" / "demo" / "problems.jsonl"
ITEMS = 42
WINDOW = 4
SECRET = "sk-5f1c-never-to-be-seen-anywhere"
Evaluate = Callable[..., Any]


def config_for(folder: Path, running: Serving, **endpoint: object) -> Path:
    path = folder / "config.yaml"
    settings = {"base_url": running.base_url, "model": "demo", "max_concurrency": WINDOW, **endpoint}
    listed = ", ".join(f"{name}: {value}" for name, value in settings.items())
    path.write_text(
        f"name: endurance\ndataset: {PROBLEMS}\n"
        'prompt_template: "Question: {{question}}\\nAnswer:"\ntarget: "{{answer.split(\'#### \')[-1]}}"\n'
        f"models: [{{name: remote, config: {{{listed}}}}}]\n"
        "filter_list: [{name: number, filter: [last_number], metric_list: [exact_match]}]\n"
    )
    return path


@pytest.mark.services
@pytest.mark.parametrize(
    ("number", "runner"),
    [
        (signal.SIGKILL, "threads"),
        (signal.SIGKILL, "processes"),
        (signal.SIGTERM, "threads"),  # both of these come to one handler
        (signal.SIGINT, "processes"),
    ],
)
def test_killed_run_is_gone_on_with_and_asks_for_what_is_missing(
    evaluate: Evaluate,
    own_environment: dict[str, str],
    tmp_path: Path,
    number: signal.Signals,
    runner: str,
) -> None:
    with serve(DemoOptions(latency=0.3)) as running:
        config = config_for(tmp_path, running)
        command = [sys.executable, "-m", "flows.eval", str(config), "--json"]
        command += ["--store", str(tmp_path / "store"), "--output", str(tmp_path / "out")]
        command += ["--task-runner", runner]
        started = subprocess.Popen(
            command, cwd=PROJECT, env=own_environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + 90
        while running.stats()["received"] < ITEMS // 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        started.send_signal(number)
        started.communicate(timeout=30)  # its output ends with the last of its processes
        code = started.returncode
        asked = running.stats()["received"]
        assert ITEMS // 2 <= asked < ITEMS
        assert code == (-number if number is signal.SIGKILL else 130)
        marks = len([*(tmp_path / "store" / "active").iterdir()])  # of a run in progress, for who prunes
        assert marks == (1 if number is signal.SIGKILL else 0)

        again = evaluate(config, "--json")
        assert again.code == 0, again.err
        assert running.stats()["received"] <= ITEMS + WINDOW
        assert again.document["requests"]["sent"] <= ITEMS - asked + WINDOW
        assert again.document["requests"]["sent"] + again.document["requests"]["cached"] == ITEMS


def test_key_in_a_secret_block_of_the_own_server_is_found(
    evaluate: Evaluate, own_environment: dict[str, str], tmp_path: Path
) -> None:
    save = (
        "from flows.server import use_server; use_server()\n"
        "from prefect.blocks.system import Secret\n"
        f"Secret(value={SECRET!r}).save('endurance-key', overwrite=True)"
    )
    subprocess.run([sys.executable, "-c", save], cwd=PROJECT, env=own_environment, check=True, timeout=120)
    with serve(DemoOptions(api_key=SECRET)) as running:
        ran = evaluate(config_for(tmp_path, running, api_key_secret="endurance-key"), "--limit", "3")
        assert ran.code == 0, ran.err
        absent = evaluate(config_for(tmp_path, running, api_key_secret="no-such-key"), "--limit", "4")
        assert absent.code == 2
        assert "no Secret block 'no-such-key'" in absent.err


@pytest.mark.services
def test_key_is_nowhere_but_in_the_environment(
    evaluate_process: Evaluate, home: Path, tmp_path: Path
) -> None:
    with serve(DemoOptions(api_key=SECRET)) as running:
        config = config_for(tmp_path, running, api_key_env="THE_KEY")
        ran = evaluate_process(config, "--json", "--limit", "3", env={"THE_KEY": SECRET})
        assert ran.code == 0, ran.err
        refused = evaluate_process(config, "--json", "--limit", "4", env={"THE_KEY": SECRET + "x"})
        assert refused.code == 2
    assert SECRET not in ran.out + ran.err + refused.out + refused.err
    needle = SECRET.encode()
    files = [path for folder in (home, tmp_path) for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in files)
    assert [str(path) for path in files if needle in path.read_bytes()] == []


def test_refused_items_are_unscored_and_the_budget_decides(evaluate: Evaluate, tmp_path: Path) -> None:
    with serve(DemoOptions(faults=Faults(fail_prompts="Ines"))) as running:
        config = config_for(tmp_path, running)
        strict = evaluate(config, "--json")
        assert strict.code == 1, strict.err
        row = strict.document["results"][0]
        refused = strict.document["requests"]["failed"]
        assert 0 < refused < ITEMS
        assert (row["status"], row["n_scored"], row["n_unscored"]) == ("ok", ITEMS - refused, refused)
        responses = [
            json.loads(line) for line in (tmp_path / "out" / "responses.jsonl").read_text().splitlines()
        ]
        assert sum(response["status"] == "infra_error" for response in responses) == refused
        assert all(response["error"] for response in responses if response["status"] != "ok")

        asked = running.stats()["received"]
        tolerant = evaluate(config, "--json", "--set", "errors.max_rate=0.5")
        assert tolerant.code == 0, tolerant.err
        assert running.stats()["received"] == asked + refused  # whoever mended the server would be answered
        assert tolerant.document["results"][0]["value"] == row["value"]
