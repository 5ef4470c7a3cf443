"""The pages hold what they say: commands parse, examples run, files are there. `make docs` checks links."""

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
MADE_UP = {
    "my_benchmark.yaml",
    "my_questions.csv",
    "mine/benchmark.yaml",
    "mine/suite.yaml",
    "questions.jsonl",
    "responses.jsonl",
    "site/index.html",
    "utils.py",
    "site/",
    ".eval_results/",
    "records/",
    "results/",
    "results/index.html",
    ".nightjar/store/",
    ".nightjar/journal/",
    ".nightjar/server/",
}
"""Names in the pages that are an example's, or that a run or a build makes."""
OURS = {"flows", "tasks", "scorers", "metrics"}


PAGES = [str(page.relative_to(ROOT)) for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])]
OWN = [name for name in PAGES if name not in ("docs/report.md", "docs/operations.md", "docs/replies.md")]
"""Pages whose names of files are all this checkout's."""


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> list[str]:
    return [block["text"] for block in BLOCK.finditer(text_of(name)) if block["language"] == language]


def commands(name: str, first: str) -> list[str]:
    """Lines of a page's plain blocks, and its inline code, that begin with ``first``."""
    lines = [line for block in blocks(name, "") for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", BLOCK.sub("", text_of(name)))
    return [line.partition(" #")[0].strip() for line in lines if line.startswith(first)]


def click_command(module: str) -> Any:
    """The command line of ``python -m MODULE``, without running anything."""
    found = importlib.import_module(module)
    if hasattr(found, "__path__"):  # a package's command line
        found = importlib.import_module(f"{module}.__main__")
    return get_command(found.app)


@pytest.mark.parametrize("name", PAGES)
def test_commands_parse(name: str) -> None:
    for line in commands(name, "python -m flows."):
        module, *arguments = shlex.split(line.replace("[", "").replace("]", ""))[2:]
        if module == "flows.server":
            assert set(arguments) <= {"start", "stop", "status", "env", "link", "doctor"}, line
            continue
        command = click_command(module)
        if arguments:  # without any it is only named
            command.make_context(module, [argument.rstrip("…") or "…" for argument in arguments])


@pytest.mark.parametrize("name", PAGES)
def test_make_targets_exist(name: str) -> None:
    targets = set(re.findall(r"^([\w.-]+):", text_of("Makefile"), re.MULTILINE))
    asked = {line.split()[1] for line in commands(name, "make ")}
    assert {target for target in asked if target not in targets} == set()


@pytest.mark.parametrize("name", OWN)
def test_named_files_are_there(name: str) -> None:
    pattern = r"`([\w.-]*/[\w./*-]*|[\w-]+\.(?:py|yaml|jsonl|md|toml))`"
    named = set(re.findall(pattern, BLOCK.sub("", text_of(name)))) - MADE_UP
    assert {path for path in named if not any(ROOT.glob(path.rstrip("/")))} == set()


def test_readme_fits_on_two_screens() -> None:
    lines = text_of("README.md").splitlines()
    assert len(lines) <= 90
    assert max(len(line) for line in lines) <= 160


def test_config_of_the_readme_is_accepted(tmp_path: Path) -> None:
    from flows.config.load import load_config

    (config,) = blocks("README.md", "yaml")
    (tmp_path / "questions.jsonl").write_text('{"question": "1 + 1?", "answer": "2"}\n')
    (tmp_path / "my_benchmark.yaml").write_text(config, encoding="utf-8")
    loaded = load_config(tmp_path / "my_benchmark.yaml")
    assert [entry.name for entry in loaded.filters()] == ["last-number", "none"]


@pytest.mark.parametrize("name", PAGES)
def test_names_that_examples_import_exist(name: str) -> None:
    for code in blocks(name, "python"):
        tree = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in OURS:
                module = importlib.import_module(str(node.module))
                assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)


def test_metric_by_itself_runs() -> None:
    names: dict[str, Any] = {}
    (code,) = [code for code in blocks("docs/notebook.md", "python") if "build_metric" in code]
    exec(compile(code, "docs/notebook.md", "exec"), names)
    assert names["bar"].stderr_method == "jackknife"


@pytest.mark.usefixtures("own_names")
def test_examples_of_contributing_do_what_they_say() -> None:
    from metrics.registry import METRICS
    from scorers.filters.pipeline import FILTERS

    names: dict[str, Any] = {"__name__": "contributing"}
    for code in blocks("CONTRIBUTING.md", "python"):
        if "@provider" in code:  # it needs an endpoint: tests/tasks/models/test_providers.py runs it
            continue
        exec(compile(code, "CONTRIBUTING.md", "exec"), names)
    assert METRICS["starts_alike"].function(references=["42"], predictions=["4"]) == 1.0
    assert METRICS["starts_alike"].function(references=["42"], predictions=[None]) == 0.0
    assert FILTERS["first_line"].function([["a\nb", None]], [{}]) == [["a", None]]


def test_troubleshooting_quotes_messages_that_the_program_says() -> None:
    folders = sorted(OURS)
    code = "\n".join(file.read_text("utf-8") for name in folders for file in (ROOT / name).rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"|\{[^{}]*\}', "", code)
    for heading in re.findall(r"^## (.*)$", text_of("docs/troubleshooting.md"), re.MULTILINE):
        for part in heading.split("…"):
            assert part.strip(" ()") in said, heading
