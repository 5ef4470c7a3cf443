"""All commands under one name, with help of one style, that a shell completes."""

import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from flows.command_line import COMMANDS, named_app, typed_command

ROOT = Path(__file__).resolve().parents[2]


def as_nightjar(**environment: str) -> str:
    """What the console script of that name prints."""
    code = "import sys; sys.argv[0] = 'nightjar'; from flows.command_line import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_fits_80_columns_and_ends_with_examples(name: str) -> None:
    shown = CliRunner().invoke(named_app(), [name, "--help"], env={"COLUMNS": "80"}).output
    text, _, examples = shown.partition("Examples:")
    assert f"python -m flows.{name}" in examples
    assert max(map(len, text.splitlines())) <= 80


def test_every_module_with_a_command_line_of_its_own_is_a_command() -> None:
    """Those that a person calls by ``python -m``; the server's has commands of its own."""
    own = {path for path in (ROOT / "flows").rglob("*.py") if "app = App()" in path.read_text()}
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in own}
    assert set(COMMANDS.values()) == modules


@pytest.mark.parametrize(
    ("main", "script", "words"),
    [
        ("flows.lm_eval.__main__", "flows/lm_eval/__main__.py", "python -m flows.lm_eval"),
        ("flows.history", "flows/history.py", "python -m flows.history"),
        (None, "bin/nightjar", "nightjar"),
        ("pytest.__main__", "pytest/__main__.py", "python -m flows.eval"),
    ],
)
def test_a_command_is_named_as_it_was_called(
    main: str | None, script: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("__main__")
    module.__spec__ = None if main is None else ModuleSpec(main, None)
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(sys, "argv", [script, "--limit", "2"])
    assert typed_command() == [*words.split(), "--limit", "2"]


SEEN = """
import atexit, gc, os, runpy, sys, warnings
atexit.register(
    lambda: print(gc.get_threshold()[0], warnings.showwarning.__name__, os.environ.get("DO_NOT_TRACK"))
)
"""


@pytest.mark.parametrize("name", ["eval", "suite", "lm_eval", "power"])
def test_a_run_starts_alike_under_both_names(name: str) -> None:
    """Garbage looked for rarely, users' warnings in one line, Prefect's log off the terminal."""
    module = COMMANDS[name].removesuffix(".__main__")
    starts = (
        f"sys.argv = [{module!r}, '--help']; runpy.run_module({module!r}, run_name='__main__')",
        f"sys.argv = ['nightjar', {name!r}, '--help']; from flows.command_line import main; main()",
    )
    environment = {key: value for key, value in os.environ.items() if key != "DO_NOT_TRACK"}
    found = [
        subprocess.run(
            [sys.executable, "-c", SEEN + start], cwd=ROOT, env=environment, capture_output=True,
            text=True, timeout=120, check=True,
        ).stdout.splitlines()[-1]
        for start in starts
    ]  # fmt: skip
    assert found == ["50000 show_warning 1"] * 2


def test_a_command_imports_no_other() -> None:
    seen = (
        "import atexit, sys; sys.argv = ['nightjar', 'history', '--help']\n"
        "from flows.command_line import COMMANDS, main\n"
        "atexit.register(lambda: print(sorted(set(COMMANDS.values()) & set(sys.modules))))\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", seen], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.splitlines()[-1] == "['flows.history']"


def test_a_mistyped_command_is_told_which_one_is_near() -> None:
    assert "Did you mean 'history'?" in CliRunner().invoke(named_app(), ["histry"]).output


@pytest.mark.services
def test_a_shell_completes_commands_and_options() -> None:
    words = as_nightjar(_NIGHTJAR_COMPLETE="complete_bash", COMP_WORDS="nightjar his", COMP_CWORD="1")
    assert words.split() == ["history"]
    options = as_nightjar(_NIGHTJAR_COMPLETE="complete_bash", COMP_WORDS="nightjar eval --sh", COMP_CWORD="2")
    assert set(options.split()) == {"--shuffle", "--show-prompts"}


def test_no_color_leaves_colours_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from tasks.reporting.terminal import console

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()
    console(coloured).print("error", style="red")
    monkeypatch.setenv("NO_COLOR", "1")
    console(plain).print("error", style="red")
    assert "\x1b[31m" in coloured.getvalue()
    assert "\x1b[31m" not in plain.getvalue()
