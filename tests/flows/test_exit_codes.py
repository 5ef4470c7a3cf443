"""Exit codes mean what they say, and what is suggested after a failure helps."""

import argparse
import asyncio
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer
from pydantic import BaseModel, ValidationError
from typer.core import TyperArgument

from flows.command_line import (
    COMMANDS,
    INTERRUPTED,
    UNDECIDED,
    App,
    command_line,
    named_app,
    print_json,
    status,
    warn,
)
from flows.config.schema import RunOptions
from flows.eval import session
from flows.server import __main__ as server
from flows.suite.plan import SuiteOptions
from tasks.processes.endings import ended_with_process, interrupted
from tasks.reporting.terminal import console
from tests.flows.conftest import PROJECT

Evaluate = Callable[..., Any]


NOTHING = "filter_list=[{name: n, filter: [{function: regex, regex_pattern: zzz(.)}], metric_list: [bleu]}]"


def test_a_finding_that_leaves_the_numbers_is_no_failure(evaluate: Evaluate) -> None:
    ran = evaluate("--json", "--limit", "12", "--set", NOTHING)
    assert {entry["severity"] for entry in ran.document["diagnostics"]} == {"warning"}
    assert "filter_empty" in {entry["kind"] for entry in ran.document["diagnostics"]}
    assert ran.code == 0


def mostly_unscored(folder: Path, keys: str = "") -> Path:
    """A benchmark with a reward model that says nothing of two answers in three."""
    (folder / "mine.py").write_text(
        "def reward(responses, docs):\n    return [None if int(doc['id']) % 3 else 1.0 for doc in docs]\n"
    )
    rows = [{"id": str(number), "question": "?", "said": "x"} for number in range(12)]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "rewarded.yaml").write_text(
        "name: rewarded\ndataset: items.jsonl\nprompt_template: '{{question}}'\nmetric_list: []\n"
        "models: [{name: recorded, type: replay, config: {field: said}}]\n"
        f"scorer: {{type: reward_model, function: 'mine.py:reward'}}\n{keys}"
    )
    return folder / "rewarded.yaml"


def test_a_run_that_a_finding_fails_ends_its_night_and_is_not_tried_again(
    evaluate: Evaluate, suite_night: Evaluate, tmp_path: Path
) -> None:
    """Nothing of it is missing: there is nothing to go on with."""
    path = mostly_unscored(tmp_path, "answers: fresh\n")
    shown = evaluate(path)
    assert (shown.code, "Nothing is missing." in shown.out) == (1, True)
    assert "only what is missing" not in shown.out
    nights = tmp_path / "store/nights"
    assert [*nights.glob("*.json")] == []
    suite = {"name": "night", "benchmarks": ["rewarded.yaml"], "retries": 1, "retry_delay": 3600}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    ran = suite_night(tmp_path / "suite.yaml")
    assert (ran.code, ran.document["evaluations"][0]["ok"]) == (1, False)
    assert [*nights.glob("*.json")] == []


def test_what_prefect_refuses_to_retry_does_not_ask_for_it(
    evaluate: Evaluate, suite_night: Evaluate, tmp_path: Path
) -> None:
    """Of a suite it retries the whole alone, and of a run without a deployment nothing."""
    mostly_unscored(tmp_path)
    (tmp_path / "mine.py").write_text("def reward(responses, docs):\n    raise ValueError('no')\n")
    (tmp_path / "suite.yaml").write_text(json.dumps({"name": "night", "benchmarks": ["rewarded.yaml"]}))
    ran = suite_night(tmp_path / "suite.yaml")
    (evaluation,) = ran.document["evaluations"]
    assert "run it again to compute only what is missing" in evaluation["message"]
    alone = evaluate(tmp_path / "rewarded.yaml", "--json", "--force")
    assert "run it again to compute only what is missing" in alone.document["message"]


def test_a_finding_of_level_error_is_a_failed_run_although_every_pair_has_a_number(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    ran = evaluate(mostly_unscored(tmp_path), "--json")
    assert [(row["status"], row["n_unscored"]) for row in ran.document["results"]] == [("ok", 8)]
    (finding,) = [entry for entry in ran.document["diagnostics"] if entry["severity"] == "error"]
    assert (ran.code, ran.document["status"]) == (1, "Failed")
    assert finding["message"] in ran.document["message"]
    manifest = json.loads((tmp_path / "out/manifest.json").read_bytes())
    assert manifest["status"] == "failed"


def test_recorded_failures_are_told_by_the_words_that_were_recorded(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    rows = [{"item_id": str(number), "status": "infra_error", "error": "HTTP [/500]"} for number in range(3)]
    (tmp_path / "recorded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    items = [{"id": str(number), "question": "?", "answer": "x"} for number in range(4)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items))
    (tmp_path / "failed.yaml").write_text(
        "name: failed\ndataset: items.jsonl\nprompt_template: '{{question}}'\ntarget: '{{answer}}'\n"
        "models: [{name: recorded, type: replay, config: {path: recorded.jsonl}}]\n"
        "metric_list: [exact_match]\n"
    )
    ran = evaluate(tmp_path / "failed.yaml")
    assert ran.code == 1
    assert "3 × HTTP [/500]; 1 × not recorded" in " ".join(ran.out.split())


ENDING = """\
import sys
from pathlib import Path

def leave(): sys.exit(0)

def late(references, predictions): leave()

class Keep:
    def apply(self, resps, docs): return ([leave() for one in item] for item in resps)

def process(doc, results): leave()

def rows():
    yield {"id": "1", "question": "1 + 1?", "answer": "2", "said": "2"}
    leave()

def reward(responses, docs): return (leave() for doc in docs)

def total(values): leave()

def reduced(references, predictions): leave()

class Scoring:
    def score(self, batch):
        for response in batch.responses: yield leave()

class Unmade:
    def __init__(self): leave()
    def score(self, batch): return [1.0] * len(batch)
"""
EXITING: list[tuple[dict[str, Any], list[str]]] = [
    (
        {
            "metric_list": [
                "exact_match",
                {"metric": "ending.py:late"},
                {"metric": "exact_match", "alias": "summed", "aggregation": "ending.py:total"},
                {"metric": "exact_match", "alias": "joined", "reduction": "ending.py:reduced"},
            ],
            "filter_list": [{"name": "own", "filter": [{"function": "ending.py:Keep"}]}, {"name": "none"}],
        },
        ["metric 'late'", "aggregation 'total'", "reduction 'reduced'", "filter 'ending.py:Keep'"],
    ),
    ({"process_results": "ending.py:process"}, ["item '1'", "process_results"]),
    ({"dataset": {"function": "ending.py:rows"}}, ["ending.py:rows failed at item 2"]),
    ({"scorer": {"type": "reward_model", "function": "ending.py:reward"}, "metric_list": []}, ["reward"]),
    ({"scorer": {"type": "ending.py:Scoring"}, "metric_list": ["own"]}, ["scorer 'ending.py:Scoring'"]),
    ({"scorer": {"type": "ending.py:Unmade"}, "metric_list": ["own"]}, ["scorer 'ending.py:Unmade'"]),
]


@pytest.mark.parametrize(("keys", "names"), EXITING)
def test_a_function_that_exits_fails_by_its_name_and_not_the_run_in_silence(
    evaluate: Evaluate, tmp_path: Path, keys: dict[str, Any], names: list[str]
) -> None:
    row = {"id": "1", "question": "1 + 1?", "answer": "2", "said": "2"}
    (tmp_path / "items.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "ending.py").write_text(ENDING)
    config = {
        "name": "ending", "dataset": "items.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}",
        "models": [{"name": "recorded", "type": "replay", "config": {"field": "said"}}],
        "metric_list": ["exact_match"], **keys,
    }  # fmt: skip
    (tmp_path / "ending.yaml").write_text(json.dumps(config))
    ran = evaluate(tmp_path / "ending.yaml", "--force")
    said = " ".join((ran.out + ran.err).split())
    assert [name for name in names if name not in said] == []
    assert said.count("SystemExit: 0") >= len(names) - 1
    assert ran.code != 0


SILENT = "import os, sys\ndef metric(references, predictions): silence(); return 1.0\ndef silence():\n"
SILENT += "    sys.stdout = sys.stderr = open(os.devnull, 'w')\n"


@pytest.mark.parametrize("text", [SILENT, SILENT + "silence()\n"])
def test_a_metric_that_takes_the_streams_away_does_not_take_the_report(
    evaluate: Evaluate, tmp_path: Path, text: str
) -> None:
    row = {"id": "1", "question": "1 + 1?", "answer": "2", "said": "2"}
    (tmp_path / "items.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "silent.py").write_text(text)
    (tmp_path / "silent.yaml").write_text(
        "name: silent\ndataset: items.jsonl\nprompt_template: '{{question}}'\ntarget: '{{answer}}'\n"
        "metric_list: ['silent.py:metric']\n"
        "models: [{name: recorded, type: replay, config: {field: said}}]\n"
    )
    before = sys.stdout
    ran = evaluate(tmp_path / "silent.yaml", "--dry-run")
    assert "silent" in ran.out
    ran = evaluate(tmp_path / "silent.yaml")
    assert "1.0000" in ran.out
    assert sys.stdout is before


@pytest.mark.parametrize("name", ["flows.theirs", "__main__"])
def test_an_exit_of_a_library_is_a_failure(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``python -m`` calls a command's own module by the other name."""
    app = App()
    module: dict[str, Any] = {"__name__": name, "argparse": argparse}
    exec("def command(): argparse.ArgumentParser().parse_args(['--help'])", module)
    app.command()(module["command"])
    with pytest.raises(SystemExit) as ended:
        command_line(app, [])
    assert ended.value.code == 1
    assert "argparse.py" in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 7])
def test_a_process_that_code_of_others_ends_is_no_success(code: int) -> None:
    # What the children of a process end with is theirs.
    program = f"""
import os
from flows.command_line import command_line, App
app = App()
@app.command()
def main() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    os._exit({code})
command_line(app, [])
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == (code or 1)
    assert ("ended the command before it was done (os._exit)" in ended.stderr) == (code == 0)


def test_what_ends_a_command_and_is_no_error_is_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    app = App()

    @app.command()
    def command() -> None:
        raise asyncio.CancelledError

    with pytest.raises(SystemExit) as ended:
        command_line(app, [])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.endswith("ended the command before it was done (CancelledError)\n")


SAYING: list[Callable[[], object]] = [
    lambda: console().print("said"),
    lambda: print("said", flush=True),
    lambda: print("said"),
    lambda: print_json({"said": 1}),
]


@pytest.mark.parametrize("say", SAYING)
def test_a_pipe_that_nobody_reads_changes_nothing_of_how_a_command_ends(
    say: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = App()

    @app.command()
    def command() -> None:
        say()
        say()
        raise typer.Exit(UNDECIDED)

    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        with pytest.raises(SystemExit) as ended:
            command_line(app, [])
    assert (ended.value.code, capsys.readouterr().err) == (UNDECIDED, "")


@pytest.mark.parametrize("say", [*SAYING, lambda: status("said"), lambda: warn("said")])
def test_a_command_may_be_begun_without_standard_output_and_error(
    say: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App()

    @app.command()
    def command() -> None:
        say()
        raise typer.Exit(UNDECIDED)

    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    status("before it begins")
    with pytest.raises(SystemExit) as ended:
        command_line(app, [])
    assert ended.value.code == UNDECIDED
    assert (sys.stdout, sys.stderr) == (None, None)


def test_a_command_ends_well_where_a_library_has_put_its_own_exit_in_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As wandb does, from its import on."""
    app, leave = App(), sys.exit

    @app.command()
    def command() -> None:
        monkeypatch.setattr(sys, "exit", lambda code=None: leave(code))

    with pytest.raises(SystemExit) as ended:
        command_line(app, [])
    assert (ended.value.code, capsys.readouterr().err) == (0, "")


def test_an_argument_that_is_not_utf8_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Python has a byte of a file's name that is none: Prefect can't be told of it."""
    app, done = App(), []

    @app.command()
    def command(run_name: str = "") -> None:
        done.append(run_name)

    monkeypatch.setattr(sys, "argv", ["command", "--run-name", "b\udce9ta"])
    for arguments in (None, ["--run-name", "b\udce9ta"]):
        with pytest.raises(SystemExit) as ended:
            command_line(app, arguments)
        assert (ended.value.code, done) == (2, [])
        said = r"error: the argument 'b\xe9ta' is not UTF-8; use another name"
        assert capsys.readouterr().err == said + "\n"
    monkeypatch.setattr(sys, "argv", ["command", "--run-name", "bêta"])
    with pytest.raises(SystemExit) as ended:
        command_line(app)
    assert (ended.value.code, done) == (0, ["bêta"])


def test_several_configs_end_with_one_table(evaluate: Evaluate, tmp_path: Path) -> None:
    row = {"id": "1", "question": "1 + 1?", "answer": "2", "said": "2"}
    (tmp_path / "items.jsonl").write_text(json.dumps(row) + "\n")
    for name in ("first", "second"):
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\ndataset: items.jsonl\nprompt_template: '{{{{question}}}}'\n"
            "target: '{{answer}}'\nmetric_list: [exact_match]\n"
            "models: [{name: recorded, type: replay, config: {field: said}}]\n"
        )
    ran = evaluate(tmp_path / "first.yaml", tmp_path / "second.yaml")
    assert ran.code == 0, ran.err
    before, _, table = ran.out.partition("All together")
    assert before.count("exact_match") == 2, "each has its own table"
    lines = [line.split() for line in table.splitlines() if "exact_match" in line]
    assert [line[0] for line in lines] == ["first", "second"]
    assert not ran.out.rstrip().endswith("All together")


def test_an_example_is_named_by_its_line_and_shown_with_its_question(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    items = [{"id": f"q{number}", "question": f"{number} + 1?", "answer": "x"} for number in range(12)]
    lines = "\n\n".join(json.dumps(item) for item in items)
    (tmp_path / "questions.jsonl").write_text(lines + "\n")
    (tmp_path / "sums.yaml").write_text(
        "name: sums\ndataset: questions.jsonl\n"
        'prompt_template: "Question: {{question}}"\ntarget: "{{answer}}"\n'
        "models: [{name: demo, type: demo}]\nmetric_list: [exact_match]\n"
        "filter_list: [{name: n, filter: [{function: regex, regex_pattern: 'zzz(.)'}]}]\n"
    )
    ran = evaluate(tmp_path / "sums.yaml", "--samples", "3-11")
    assert "e.g. questions.jsonl:7, demo “Question: 3 + 1?”: " in ran.out.replace("\n", "")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ">questions.jsonl:7 · demo</a>" in page
    assert "Question: 3 + 1?" in page


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as in a terminal: in the background of a script it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("pressed", [True, False])
@pytest.mark.parametrize("other", [RuntimeError, TypeError])
def test_an_interruption_that_becomes_another_error_is_one(
    other: type[Exception], pressed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Python makes of one that meets a class being made, and pydantic of one that meets a schema."""
    app = App()

    @app.command()
    def imports() -> None:
        try:
            if pressed:
                signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt as error:
            raise other(f"Error building a validator: {type(error).__name__}") from None
        raise other("no interruption")

    with pytest.raises(SystemExit if pressed else other) as raised:
        command_line(app, [])
    assert getattr(raised.value, "code", INTERRUPTED) == INTERRUPTED
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def leaving(interruptible: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What ends the process raises SystemExit here."""
    monkeypatch.setattr(session.os, "_exit", sys.exit)
    yield
    interrupted.clear()


@contextmanager
def ended_by(end: Callable[[], object]) -> Iterator[None]:
    yield
    end()


@pytest.mark.usefixtures("leaving")
def test_ctrl_c_ends_what_would_stay_behind() -> None:
    seen: list[str] = []
    with (
        pytest.raises(SystemExit) as raised,
        session.interruptible(),
        ended_with_process(ended_by(lambda: seen.append("jobs are cancelled"))),
    ):
        signal.raise_signal(signal.SIGINT)
    assert (raised.value.code, seen) == (INTERRUPTED, ["jobs are cancelled"])


@pytest.mark.usefixtures("leaving")
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_waits_for_nothing(second: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "ENDING_SECONDS", 600)
    released, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def stuck() -> None:
        signal.pthread_kill(main, second)
        released.wait()

    with (
        pytest.raises(SystemExit) as raised,
        session.interruptible(),
        ended_with_process(ended_by(stuck)),
    ):
        signal.raise_signal(signal.SIGINT)
    assert raised.value.code == INTERRUPTED
    assert not released.is_set()
    released.set()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_at_the_very_beginning_leaves_no_traceback(tmp_path: Path) -> None:
    """Pressed while the first library is imported."""
    (tmp_path / "orjson.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    path = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-m", "flows.eval"], env=path, cwd=PROJECT, capture_output=True)
    assert (ran.returncode, ran.stderr, ran.stdout) == (-signal.SIGINT, b"", b"")


@pytest.mark.usefixtures("interruptible")
def test_a_command_of_the_server_can_put_away_what_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as it is while the command is imported
    found: list[object] = []
    monkeypatch.setattr(server, "status", lambda: found.append(signal.getsignal(signal.SIGINT)))
    monkeypatch.setattr(sys, "argv", ["", "status"])
    server.main()
    assert found == [signal.default_int_handler]


def _empty_texts(command: str) -> Iterator[tuple[list[str], str]]:
    """Words that end with the empty value of an option or argument, and its name."""
    arguments = 0
    for param in typer.main.get_command(importlib.import_module(COMMANDS[command]).app).params:
        if isinstance(param, TyperArgument):
            yield [*["x"] * arguments, ""], str(param.metavar or param.name)
            arguments += 1
        elif not getattr(param, "is_flag", False):
            yield [param.opts[-1], ""], param.opts[-1]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_value_of_an_option_or_argument_is_refused(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, called in _empty_texts(command):
        with pytest.raises(SystemExit) as raised:
            command_line(named_app(), [command, *words])
        assert raised.value.code == 2
        said = " ".join(capsys.readouterr().err.split())
        assert f"'{called}': it is empty, which a shell makes of a variable that is not set" in said


def test_a_margin_without_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        command_line(named_app(), ["power", "nowhere.yaml", "--margin", "inf"])
    assert raised.value.code == 2
    assert capsys.readouterr().err == "error: --margin inf: expected a finite number\n"


def test_a_store_without_a_name_is_among_them() -> None:
    stores = {command for command in COMMANDS for words, _ in _empty_texts(command) if words[0] == "--store"}
    assert {"eval", "suite", "compare", "history", "power", "why", "accept", "mute", "store"} <= stores


@pytest.mark.parametrize("options", [RunOptions, SuiteOptions])
@pytest.mark.parametrize("key", ["store", "output"])
def test_a_deployment_names_a_store_and_a_folder_or_none(options: type[BaseModel], key: str) -> None:
    with pytest.raises(ValidationError):
        options.model_validate({key: ""})


def test_an_empty_option_prunes_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.history.prune.prune_all", lambda *_, **__: pytest.fail("pruned"))
    with pytest.raises(SystemExit) as raised:
        command_line(named_app(), ["history", "--prune", "--keep", "1", "--store", ""])
    assert raised.value.code == 2


@pytest.mark.parametrize("flag", ["--config", "--output_path", "--include_path", "--use_cache"])
def test_an_empty_path_in_a_command_line_of_the_harness_is_refused(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        command_line(named_app(), ["lm_eval", "run", "--tasks", "gsm8k", flag, ""])
    assert raised.value.code == 2
    assert f"{flag}" in (said := capsys.readouterr().err)
    assert "it is empty, which a shell makes of a variable that is not set" in said


def test_a_warning_is_printed_once_in_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    app = App()

    @app.command()
    def check() -> None:
        for sentence in ("the list lacks 'm'", "the list lacks 'm'", "another"):
            warn(sentence)

    for _ in range(2):
        with pytest.raises(SystemExit):
            command_line(app, [])
        said = capsys.readouterr().err
        assert said.splitlines() == ["warning: the list lacks 'm'", "warning: another"]
