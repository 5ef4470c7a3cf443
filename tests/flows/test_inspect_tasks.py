"""``inspect:`` of a config: tasks of Inspect, run by inspect_ai and scored as they are there."""

import base64
import gzip
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.benchmarks.recorded.inspect_log import InspectLog
from tests.flows.conftest import INSPECT, PROJECT
from tests.flows.endpoints import Body, chat_endpoint, says
from tests.flows.test_from_inspect import said

Evaluate = Callable[..., Any]
TASKS = Path(__file__).parent / "inspect_tasks" / "arithmetic.py"
URL = "http://127.0.0.1:9/v1"
THEIRS = """
import sys
from inspect_ai import eval
task, url, folder = sys.argv[1:]
(log,) = eval(task, model="openai-api/nightjar/scripted", model_base_url=url, log_dir=folder, display="none")
print(log.location.removeprefix("file://"))
"""


class Scripted:
    """A model that adds: it calls a tool where it has one, and is wrong about every third sum; asked again it
    says more."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.worse = False
        self.before: Callable[[], None] = lambda: None

    def __call__(self, body: Body) -> Body:
        self.before()
        messages = body["messages"]
        question = next(one["content"] for one in messages if one["role"] == "user")
        number = int(re.findall(r"\d+", str(question))[0])
        if body.get("tools") and messages[-1]["role"] != "tool":
            (name,) = body["tools"][0]["function"]["parameters"]["required"]
            arguments = json.dumps({name: f"echo $(({number} + {number}))"})
            call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
            return {
                "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                "finish_reason": "tool_calls",
            }
        self.asked.append(str(question))
        again = self.asked.count(str(question)) - 1
        result = messages[-1]["content"] if messages[-1]["role"] == "tool" else str(2 * number)
        wrong = number % 3 == 0 or self.worse or (again and number == 2)
        return says("certainly " * again + ("none" if wrong else str(result).strip()))


@pytest.fixture
def model() -> Iterator[tuple[Scripted, str]]:
    script = Scripted()
    with chat_endpoint(script, ["scripted"]) as url:
        yield script, url


def config(folder: Path, url: str, task: str = "plain", **keys: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / TASKS.name).write_text(TASKS.read_text())
    document = {
        "inspect": {"task": f"{TASKS.name}@{task}", **keys.pop("inspect", {})},
        "models": [{"name": "scripted", "config": {"base_url": url}}],
        **keys,
    }
    (folder / f"{task}.yaml").write_text(yaml.safe_dump(document))
    return folder / f"{task}.yaml"


def theirs(folder: Path, url: str, task: str) -> InspectLog:
    """The log that Inspect writes by itself."""
    done = subprocess.run(
        [os.environ[INSPECT], "-c", THEIRS, f"{TASKS}@{task}", url, folder / "theirs"],
        check=True, timeout=300, capture_output=True, text=True,
        env={**os.environ, "NIGHTJAR_API_KEY": "none"},
    )  # fmt: skip
    return InspectLog.open(Path(done.stdout.strip().splitlines()[-1]))


@pytest.mark.inspect
@pytest.mark.parametrize("task", ["plain", "tools", "repeated"])
def test_a_task_has_the_values_that_inspect_writes(
    task: str, model: tuple[Scripted, str], evaluate: Evaluate, tmp_path: Path
) -> None:
    script, url = model
    log = theirs(tmp_path, url, task)
    script.asked.clear()
    ran = evaluate(config(tmp_path / "ours", url, task), "--json")
    assert ran.code == 0, ran.err
    assert said(log)
    for name, metrics in said(log).items():
        assert ran.value(f"{name},none") == metrics.get("accuracy", metrics.get("mean")), name
    assert ran.document["requests"]["sent"] == len(list(log.samples()))
    written = json.loads((tmp_path / "out" / "results.json").read_text())["inspect"]
    assert {(row["scorer"], row["name"], row["metric"]): row["value"] for row in written} == {
        (score["scorer"], score["name"], metric): found["value"]
        for score in log.results()
        for metric, found in score["metrics"].items()
    }
    read = evaluate("--from-inspect", log.path, "--output", tmp_path / "read", "--json")
    assert intervals(ran) == intervals(read)
    assert all(low < value < high for low, value, high in intervals(ran).values())


def intervals(ran: Any) -> dict[str, tuple[float, float, float]]:
    return {row["metric"]: (row["ci_low"], row["value"], row["ci_high"]) for row in ran.document["results"]}


@pytest.mark.inspect
def test_a_block_is_a_process_and_what_is_kept_is_not_asked_again(
    model: tuple[Scripted, str], evaluate: Evaluate, tmp_path: Path
) -> None:
    script, url = model
    path = config(tmp_path / "ours", url, inspect={"args": {"count": 5}, "block": 2})
    foreseen = evaluate(path, "--dry-run", "--json")
    assert foreseen.document["requests"]["to_send"] == 5
    ran = evaluate(path, "--json")
    assert (ran.steps("infer"), len(script.asked)) == ((3, 0), 5)
    again = evaluate(path, "--json")
    assert (again.steps("infer"), len(script.asked)) == ((0, 3), 5)
    assert intervals(again) == intervals(ran)
    assert evaluate(path, "--dry-run", "--json").document["requests"] == {"to_send": 0, "cached": 5}
    (tmp_path / "ours" / TASKS.name).write_text(TASKS.read_text() + "\n# changed\n")
    changed = evaluate(path, "--json")
    assert (changed.steps("infer"), len(script.asked)) == ((3, 0), 10)
    fresh = evaluate(path, "--json", "--set", "answers=fresh")
    assert (fresh.steps("infer"), len(script.asked)) == ((3, 0), 15)


@pytest.mark.inspect
def test_a_killed_block_goes_on_in_its_log(
    model: tuple[Scripted, str], evaluate: Evaluate, own_environment: dict[str, str], tmp_path: Path
) -> None:
    script, url = model
    reached, may_go_on = threading.Event(), threading.Event()

    def hold_the_fourth() -> None:
        if len(script.asked) >= 3 and not may_go_on.is_set():
            reached.set()
            may_go_on.wait(120)

    script.before = hold_the_fourth
    one = {"base_url": url, "max_concurrency": 1}
    path = config(tmp_path / "ours", url, models=[{"name": "scripted", "config": one}])
    places = ["--store", str(tmp_path / "store"), "--output", str(tmp_path / "out")]
    killed = subprocess.Popen(
        [sys.executable, "-m", "flows.eval", str(path), *places], cwd=PROJECT, env=own_environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert reached.wait(120), "the run asked nothing"
    finally:
        killed.kill()
        killed.wait()
        may_go_on.set()
    before = list(script.asked)
    ran = evaluate(path, "--json")
    assert ran.code == 0, ran.err
    assert ran.value("match,none") == 4 / 6
    requests = ran.document["requests"]
    assert requests["cached"] >= 1, "what the log held was evaluated again"
    assert requests["sent"] + requests["cached"] == 6
    assert len(script.asked) <= len(before) + requests["sent"] + 1  # one that was under way
    assert not list((tmp_path / "store").glob("**/*.eval"))


@pytest.mark.inspect
def test_a_sample_that_fails_costs_itself_and_is_asked_again(
    model: tuple[Scripted, str], evaluate: Evaluate, tmp_path: Path
) -> None:
    script, url = model
    asked = script.__call__

    def fails(body: Body) -> Body:
        if "What is 2 + 2?" in json.dumps(body):
            raise RuntimeError("not today")
        return asked(body)

    with chat_endpoint(fails, ["scripted"]) as broken:
        endpoint = {"base_url": broken, "max_retries": 0}
        models = [{"name": "scripted", "identity": "same", "config": endpoint}]
        path = config(tmp_path / "ours", url, models=models, errors={"max_rate": 0.5})
        ran = evaluate(path, "--json")
    assert ran.document["requests"]["failed"] == 1
    (row,) = ran.document["results"]
    assert (row["n_samples"], row["n_unscored"], len(script.asked)) == (6, 1, 5)
    models[0]["config"] = {"base_url": url}
    again = evaluate(config(tmp_path / "ours", url, models=models), "--json")
    assert again.value("match,none") == 4 / 6
    assert (again.document["requests"]["sent"], len(script.asked)) == (1, 6)


@pytest.mark.inspect
def test_two_nights_of_a_task_are_gated(
    model: tuple[Scripted, str], suite_night: Callable[..., Any], tmp_path: Path
) -> None:
    script, url = model
    path = config(tmp_path / "ours", url, inspect={"args": {"count": 60}})
    suite = {
        "name": "agents", "benchmarks": [path.name], "answers": "fresh", "gate": {"margin": 0.2}
    }  # fmt: skip
    (path.parent / "suite.yaml").write_text(yaml.safe_dump(suite))
    first = suite_night(path.parent / "suite.yaml")
    assert (first.code, len(script.asked)) == (0, 60)
    script.worse = True
    second = suite_night(path.parent / "suite.yaml")
    assert (second.code, second.document["verdict"], len(script.asked)) == (1, "regression", 120)


def test_what_the_task_says_is_not_said_twice(evaluate: Evaluate, tmp_path: Path) -> None:
    path = config(tmp_path / "ours", URL, metric_list=["exact_match"], limits={"max_cost": 1})
    ran = evaluate(path)
    assert ran.code == 2
    assert "metric_list: 'metric_list' is what the task of Inspect says; leave it out" in ran.err
    assert "limits: a task of Inspect has limits of its own; set inspect.limits" in ran.err


def test_a_task_that_is_not_there_is_named(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(config(tmp_path / "ours", URL, inspect={"task": "agent.py@plain"}))
    assert ran.code == 2
    assert "inspect.task: 'agent.py' is not there: expected a file at" in ran.err


def test_a_task_in_a_folder_of_others_is_not_loaded_unasked(evaluate: Evaluate, tmp_path: Path) -> None:
    path = config(tmp_path / "ours", URL)
    (tmp_path / "ours" / TASKS.name).write_text("raise SystemExit('was run')\n")
    path.parent.chmod(0o777)
    ran = evaluate(path)
    assert ran.code == 2
    assert "--trust" in ran.err
    assert "was run" not in ran.err


@pytest.mark.skipif(find_spec("inspect_ai") is not None, reason="inspect_ai is installed here")
def test_without_inspect_the_sentence_names_the_command(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(config(tmp_path / "ours", URL), env={INSPECT: ""})
    assert ran.code == 2
    assert "run pip install 'nightjar[inspect]', or set NIGHTJAR_INSPECT_PYTHON" in ran.err


@pytest.mark.inspect
def test_a_task_that_cant_be_loaded_says_why(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(config(tmp_path / "ours", URL, inspect={"task": f"{TASKS.name}@nowhere"}))
    assert ran.code == 2
    assert "plain.yaml:2: inspect.task: Inspect: " in ran.err
    ran = evaluate(config(tmp_path / "ours", URL, inspect={"args": {"counts": 2}}))
    assert ran.code == 2
    assert "the task takes no argument 'counts' (it takes count)" in ran.err


@pytest.mark.inspect
def test_a_model_that_inspect_cant_ask_is_refused_with_its_line(evaluate: Evaluate, tmp_path: Path) -> None:
    models = [{"name": "old", "config": {"base_url": URL, "api": "completions"}}]
    ran = evaluate(config(tmp_path / "ours", URL, models=models))
    assert ran.code == 2
    assert "config.api: Inspect asks chats; leave completions out" in ran.err


@pytest.mark.inspect
def test_the_conversation_is_in_the_sample_browser(
    model: tuple[Scripted, str], evaluate: Evaluate, tmp_path: Path
) -> None:
    _, url = model
    assert evaluate(config(tmp_path / "ours", url, "tools")).code == 0
    with (tmp_path / "out" / "responses.jsonl").open() as file:
        row = json.loads(next(file))
    assert [one["role"] for one in json.loads(row["prompt"])] == ["user", "assistant", "tool"]
    assert "echo $((1 + 1))" in row["prompt"]
    page = (tmp_path / "out" / "report.html").read_text()
    packed = re.findall(r'data-name="run[^"]*">([^<]+)</script>', page)
    texts = "".join(gzip.decompress(base64.b64decode(one)).decode() for one in packed)
    assert "echo $((1 + 1))" in texts
