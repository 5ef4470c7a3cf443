"""No way out of the program passes on what a terminal would obey, of data, errors, labels or arguments."""

import io
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import pytest
import typer
import yaml
from prefect.logging.handlers import PrefectConsoleHandler
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from rich.table import Table
from rich.text import Text

from flows import catalog, check, deploy, history, init, power, why
from flows import command_line as lines
from flows.server import ask, status
from flows.server.boundary import credential
from flows.suite.__main__ import main as suite_main
from metrics.errors import ConfigError, printable, printable_values
from tasks.models.progress import Progress
from tasks.reporting.progress import ProgressBoard, progress_markdown
from tasks.reporting.streams import escape_logs, safe_console, shown_safely
from tests.flows.conftest import PROJECT, Evaluate, as_new_process, own

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\u2066\x7f\r"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

CONFIG = {
    "name": "hostile",
    "output_type": "generate_until",
    "dataset": {"path": "items.jsonl", "id": "name"},
    "prompt_template": "{{question}}",
    "target": "{{answer}}",
    "facets": ["kind"],
    "models": [{"name": "demo", "type": "demo"}],
    "metric_list": ["exact_match", {"metric": "fails", "function": "own.py:fails"}],
    "evaluation_methods": [{"name": "labels", "function": "own.py:labelled"}],
}
OWN = f"""
import logging, warnings
HOSTILE = {HOSTILE!r}

def fails(references, predictions):
    warnings.warn(HOSTILE)
    logging.getLogger("tasks.own").warning(HOSTILE)
    raise ValueError(HOSTILE)

def labelled(response, ground_truth, inference_result):
    return [{{"label": HOSTILE, "passed": True, "score": 1.0}}]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = [
        {"name": f"{HOSTILE}{n}", "question": f"{HOSTILE}?", "answer": HOSTILE, "kind": f"{HOSTILE}{n % 2}"}
        for n in range(4)
    ]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path / "config.yaml"


def safe(text: str) -> bool:
    return not OBEYED.search(text)


def test_what_a_terminal_obeys_is_written_out_and_nothing_else() -> None:
    assert printable(HOSTILE) == (r"\u001b]0;owned\u0007\u001b[2J\u009b31m\u202egpj.exe\u2066\u007f\u000d")
    harmless = "Größe 東京 🙂 עברית\n\ttab — “quotes” \\ %s"
    assert printable(harmless) == harmless
    assert safe("".join(map(printable, map(chr, [*range(0xD800), *range(0xE000, 0x11000)]))))
    assert printable("\ud83d") == r"\ud83d"  # half of an emoji, which can't be written at all
    document = {"a": [HOSTILE, {HOSTILE: (1, None)}]}
    assert json.loads(printable(json.dumps(document, ensure_ascii=False))) == json.loads(json.dumps(document))
    assert safe(json.dumps(printable_values(document), ensure_ascii=False))


@pytest.mark.parametrize(
    "arguments",
    [(), ("--json",), ("--dry-run",), ("--dry-run", "--json"), ("--limit", "1")],
    ids=["table", "json", "plan", "plan as json", "few"],
)
def test_an_evaluation_prints_nothing_that_is_obeyed(
    arguments: tuple[str, ...], config: Path, evaluate: Evaluate
) -> None:
    ran = evaluate(config, *arguments, "--force")
    assert ran.code in (0, 1, 2)
    assert safe(ran.out), OBEYED.findall(ran.out)
    assert safe(ran.err), OBEYED.findall(ran.err)
    if "--json" not in arguments and "--dry-run" not in arguments:
        assert r"\u001b" in ran.out, "it is shown, escaped"
    elif "--json" in arguments:
        json.loads(ran.out)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--set", f"metric_list=[{json.dumps(HOSTILE)}]"),
        ("--set", f"{HOSTILE}=1"),
        ("--set", f"models.0.name={json.dumps(HOSTILE)}"),
        ("--set", f"dataset={json.dumps(HOSTILE)}"),
        ("--set", f"prompt_template={json.dumps('{{ ' + HOSTILE)}"),
        ("--refresh", HOSTILE),
        ("--task-runner", HOSTILE),
        ("--output", f"/dev/null/{HOSTILE}"),
        ("--limit", HOSTILE),
        (f"--{HOSTILE}",),
        (f"{HOSTILE}.yaml",),
    ],
    ids=lambda given: str(given[0]).encode("ascii", "ignore").decode()[:8],
)
def test_a_refusal_prints_nothing_that_is_obeyed(
    arguments: tuple[str, ...], config: Path, evaluate: Evaluate
) -> None:
    named = [argument for argument in arguments if "\0" not in argument]
    refused = evaluate(*([] if named[0].endswith(".yaml") else [config]), *named)
    assert refused.code == 2
    assert safe(refused.out + refused.err), refused.err


@pytest.mark.services
def test_other_commands_print_nothing_that_is_obeyed(
    config: Path, evaluate: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        evaluate(config, "--output", tmp_path / name, "--force")
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    store = ["--store", str(tmp_path / "store")]
    (tmp_path / "gate.yaml").write_text(json.dumps({"pairs": {f"{HOSTILE},none": {}}}))
    calls: list[tuple[Callable[[list[str]], None], list[str]]] = [
        (compare_app, [one, two]),
        (compare_app, [one, two, "--json"]),
        (compare_app, [one, two, "--gate", str(tmp_path / "gate.yaml")]),
        (compare_app, [one, f"{HOSTILE}"]),
        (why_app, [one, *store]),
        (why_app, [one, HOSTILE, *store]),
        (history_app, [f"SELECT *, '{HOSTILE}' AS \"{HOSTILE}\" FROM items", *store]),
        (history_app, ["SELECT * FROM samples", *store]),
        (history_app, [f"SELECT {HOSTILE}", *store]),
        (history_app, ["--json", "SELECT * FROM items", *store]),
        (history_app, store),
        (history_app, ["--json", *store]),
        (history_app, ["--prune", "--keep", "1", "--dry-run", *store]),
        (history_app, ["--prune", "--retention", HOSTILE, *store]),
        (history_app, ["--compact", *store]),
        (history_app, ["--store", f"{HOSTILE}://x"]),
        (power_app, [str(config), *store]),
        (power_app, [str(config), "--json", *store]),
        (power_app, [str(config), "--set", f"prices.currency={json.dumps(HOSTILE)}", *store]),
        (power_app, [HOSTILE, *store]),
        (watch_app, [HOSTILE]),
        (accept_app, [HOSTILE, "--reason", HOSTILE, *store]),
        (mute_app, [HOSTILE, "--until", HOSTILE, "--reason", HOSTILE, *store]),
        (check_app, [HOSTILE]),
        (check_app, [str(config), "--set", f"{HOSTILE}=1"]),
        (init_app, [f"/dev/null/{HOSTILE}"]),
        (lm_eval_app, []),
        (lm_eval_app, [HOSTILE]),
        (lm_eval_app, ["--model", HOSTILE, "--tasks", HOSTILE]),
        (
            lm_eval_app,
            ["--model", "local-completions", "--model_args", f"{HOSTILE}={HOSTILE}", "--tasks", "a"],
        ),
        (lm_eval_app, ["run", "--config", HOSTILE]),
        (lm_eval_app, ["ls", HOSTILE]),
        (lm_eval_app, ["validate", "--tasks", HOSTILE, "--include_path", str(tmp_path)]),
        (deploy_app, [HOSTILE, "--cron", HOSTILE]),
        (store_app, ["--store", f"{HOSTILE}://x"]),
        (store_app, ["--verify", *store]),
        (store_app, ["--json", *store]),
        (catalog_app, []),
        (catalog_app, ["--json"]),
        (catalog_app, [HOSTILE]),
        (catalog_app, ["config", HOSTILE]),
        (catalog_app, ["config", "models"]),
        (server_command, [HOSTILE]),
        (server_command, ["status"]),
        (nightjar_app, [HOSTILE]),
        (nightjar_app, ["why", HOSTILE, *store]),
    ]
    capsys.readouterr()
    for call, arguments in calls:
        with suppress(SystemExit):
            call(arguments)
        said = capsys.readouterr()
        assert said.out + said.err, arguments
        assert safe(said.out + said.err), (arguments, OBEYED.findall(said.out + said.err))


def test_every_command_line_has_its_cases_here() -> None:
    """A new one is to be tried with what a terminal obeys, too."""
    found = subprocess.run(
        ["git", "grep", "-l", '__name__ == "__main__"', "--", "flows"],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    tried = {
        "accept",
        "mute",
        "check",
        "deploy",
        "init",
        "lm_eval",
        "catalog",
        "compare",
        "eval",
        "history",
        "power",
        "server",
        "store",
        "suite",
        "why",
        "watch",
    }
    commands = {
        path.removeprefix("flows/").removesuffix("/__main__.py").removesuffix(".py") for path in found
    }
    # The server's own process prints into its log; ``nightjar`` is the same command lines under one name.
    assert commands - {"server/app"} == tried


@pytest.mark.services
def test_a_suite_prints_nothing_that_is_obeyed(
    config: Path, suite_night: Evaluate, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"name": "demo", "type": "demo"}
    suite = {"name": "night", "benchmarks": ["config.yaml"], "models": [model], "gate": {"margin": 0.1}}
    for changed in (
        {"name": HOSTILE},
        {"name": "x" * 300},
        {"name": ".."},
        {"benchmarks": [HOSTILE]},
        {"baseline": HOSTILE},
        {"gate": {"pairs": {HOSTILE: {}}}},
        {"models": [{**model, "name": HOSTILE}]},
        {HOSTILE: 1},
    ):
        (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite | changed))
        refused = suite_night(tmp_path / "suite.yaml")
        assert refused.code == 2, changed
        assert safe(refused.out + refused.err), refused.err
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(suite))
    night = ["--store", str(tmp_path / "store"), "--output", str(tmp_path / "night")]
    arguments = ["flows.suite", str(tmp_path / "suite.yaml"), *night]
    with as_new_process(own(home), arguments), pytest.raises(SystemExit) as ended:
        suite_main()
    said = capsys.readouterr()
    assert ended.value.code == 1, said.err
    assert safe(said.out + said.err), OBEYED.findall(said.out + said.err)
    assert "owned" in said.out, "why a pair failed is told"


def compare_app(arguments: list[str]) -> None:
    from flows.compare.__main__ import app

    lines.command_line(app, arguments)


def lm_eval_app(arguments: list[str]) -> None:
    from flows.lm_eval.__main__ import app

    lines.command_line(app, arguments)


def why_app(arguments: list[str]) -> None:
    lines.command_line(why.app, arguments)


def history_app(arguments: list[str]) -> None:
    lines.command_line(history.app, arguments)


def power_app(arguments: list[str]) -> None:
    lines.command_line(power.app, arguments)


def catalog_app(arguments: list[str]) -> None:
    lines.command_line(catalog.app, arguments)


def server_command(arguments: list[str]) -> None:
    from flows.server.__main__ import main

    with as_new_process(dict(os.environ), ["flows.server", *arguments]):
        main()


def accept_app(arguments: list[str]) -> None:
    from flows import accept

    lines.command_line(accept.app, arguments)


def mute_app(arguments: list[str]) -> None:
    from flows import mute

    lines.command_line(mute.app, arguments)


def check_app(arguments: list[str]) -> None:
    lines.command_line(check.app, arguments)


def watch_app(arguments: list[str]) -> None:
    """``python -m flows.watch``."""
    from flows.watch.__main__ import app

    lines.command_line(app, arguments)


def init_app(arguments: list[str]) -> None:
    lines.command_line(init.app, arguments)


def deploy_app(arguments: list[str]) -> None:
    lines.command_line(deploy.app, arguments)


def store_app(arguments: list[str]) -> None:
    """``python -m flows.store``."""
    from flows import store

    lines.command_line(store.app, arguments)


def nightjar_app(arguments: list[str]) -> None:
    from flows.command_line import named_app

    lines.command_line(named_app(), arguments)


@pytest.mark.services
def test_prefects_messages_logs_and_artifacts_hold_nothing_that_is_obeyed(
    config: Path, evaluate: Evaluate, recording_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(recording_home))
    ran = evaluate(config, "--json", "--force", env={"NIGHTJAR_HOME": str(recording_home)})
    run = ran.document["flow_run_url"].rpartition("/")[2]
    server = status()
    assert server is not None
    of_run = {"flow_runs": {"id": {"any_": [run]}}}
    with temporary_settings({PREFECT_API_URL: server.api, PREFECT_API_AUTH_STRING: credential()}):
        deadline = time.monotonic() + 60
        while not (tasks := ask("/task_runs/filter", {**of_run, "limit": 200})):
            assert time.monotonic() < deadline, "no task run is recorded"
            time.sleep(0.1)
        found = {
            "run": ask(f"/flow_runs/{run}"),
            "tasks": tasks,
            "logs": ask("/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}, "limit": 200}),
            "artifacts": ask("/artifacts/filter", of_run),
        }
    del found["run"]["parameters"]  # as they were given: JSON of the config
    assert found["artifacts"]
    for what, documents in found.items():
        text = json.dumps(documents, ensure_ascii=False)
        assert safe(text.encode().decode()), (what, OBEYED.findall(text))
        # JSON writes C0 characters out by itself: a text that was escaped before has two backslashes.
        assert not re.search(r"(?<!\\)\\u00(?:1b|07|0d)", text), (what, text[:2000])
    assert "owned" in json.dumps(found["run"]["state"]), "the reason is there"


def test_a_log_that_nobody_reads_any_more_ends_nothing() -> None:
    """As where a worker was killed, and the runs that it began go on."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        for _ in range(2):
            PrefectConsoleHandler(stream=unread).emit(logging.makeLogRecord({"msg": "said"}))
        print("of a user's function", file=unread, flush=True)


def test_logs_are_escaped_with_their_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    logger = logging.getLogger("prefect.task_runs")
    monkeypatch.setattr(logger, "handlers", [])
    escape_logs()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.error("failed: %s", HOSTILE, exc_info=True)
    finally:
        logger.removeHandler(handler)
    assert "Traceback" in stream.getvalue()
    assert safe(stream.getvalue())


HALF = Progress(
    done=1, expected=2, in_flight=1, concurrency=1, rate=1.0, tokens_per_second=1.0, seconds_left=1.0
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_ours_on_a_terminal_and_texts_are_not() -> None:
    file = Terminal()
    console = safe_console(file, force_terminal=True, color_system="standard", width=100, highlight=False)
    table = Table("Name")
    table.add_row(Text(HOSTILE, style="bold red"))
    console.print(table)
    console.print(f"note: {HOSTILE}", style="bold")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    assert "\x1b[1" in file.getvalue()
    assert "owned" in plain
    assert safe(plain), repr(plain)


@pytest.mark.parametrize("overwrites", [False, True], ids=["log file", "notebook"])
def test_progress_is_drawn_with_names_written_out(overwrites: bool) -> None:
    file = io.StringIO()
    board = ProgressBoard(file, seconds=0.01, overwrites=overwrites)
    with board:
        board.reporter(HOSTILE)(HALF)
        while "owned" not in file.getvalue():
            pass
    assert safe(file.getvalue().replace("\r", "")), repr(file.getvalue())
    assert safe(progress_markdown({HOSTILE: HALF}))


def test_whatever_is_printed_in_a_command_is_escaped_and_afterwards_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with shown_safely(), shown_safely():
        print(HOSTILE)
        print(ConfigError(HOSTILE))
    print("\x1b[1mplain")
    said = capsys.readouterr().out
    assert safe(said.replace("\x1b[1mplain", ""))
    assert "\x1b[1mplain" in said


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_the_encoding_of_standard_output_lacks_is_no_error(
    encoding: str,
) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    ran = subprocess.run(
        [sys.executable, "-m", "flows.catalog"],
        cwd=PROJECT,
        env=environment,
        capture_output=True,
        encoding=encoding,
    )
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran.stderr
    assert "\\u" in ran.stdout, "the sign that the encoding lacks is written out"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_written_out_in_commands_alone(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    with shown_safely():
        print("better → worse")
        safe_console().print("≥ 1", Table(title="∞"))
    with pytest.raises(UnicodeEncodeError):
        print("→", flush=True)
    assert stream.buffer.getvalue().startswith(b"better \\u2192 worse\n\\u2265 1\n")


@pytest.mark.parametrize("arguments", [(), ("config",), ("--help",)])
def test_a_standard_output_that_takes_nothing_is_told_in_a_line(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "flows.catalog", *arguments],
            cwd=PROJECT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    expected = "error: standard output can't be written: No space left on device\n"
    assert (ran.returncode, ran.stderr) == (2, expected)


TALKATIVE = """
import multiprocessing, os, subprocess, sys
from typing import Annotated
import typer
from flows.command_line import command_line, App, print_json

def child():
    print("a fork", flush=True)

app = App()

@app.command()
def talk(as_json: Annotated[bool, typer.Option("--json")] = False):
    print("a function")
    sys.__stdout__.write("an early reference\\n")
    os.write(1, b"a descriptor\\n")
    subprocess.run(["echo", "a program"])
    forked = multiprocessing.get_context("fork").Process(target=child)
    forked.start()
    forked.join()
    print_json({"answer": 42})
    print("and afterwards")

command_line(app)
"""


def test_the_document_is_alone_on_standard_output() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", TALKATIVE, "--json"], cwd=PROJECT, capture_output=True, text=True
    )
    assert json.loads(ran.stdout) == {"answer": 42}
    for said in ("function", "early reference", "descriptor", "program", "fork"):
        assert f"a{'n' * (said[0] == 'e')} {said}\n" in ran.stderr
    assert "and afterwards\n" in ran.stderr
    assert ran.returncode == 0


def test_the_document_is_alone_where_standard_output_is_another_object(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = lines.App()

    @app.command()
    def talk(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
        print("said")
        lines.print_json({"answer": 42})

    with pytest.raises(SystemExit):
        lines.command_line(app, ["--json"])
    told = capsys.readouterr()
    assert (json.loads(told.out), told.err) == ({"answer": 42}, "said\n")
    with pytest.raises(SystemExit):
        lines.command_line(app, [])
    assert capsys.readouterr().out.startswith("said\n{")
