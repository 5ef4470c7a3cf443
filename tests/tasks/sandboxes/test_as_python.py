"""A program in a sandbox ends as under plain ``python program.py``: the same output, the same verdict."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from scorers.config import Program, ProgramLimits
from tasks.sandboxes.interpreters import interpreter_at
from tasks.sandboxes.kinds import Sandbox
from tasks.sandboxes.run import run_program
from tests.tasks.sandboxes.conftest import Place

PROGRAMS = yaml.safe_load(Path(__file__).with_name("plain.yaml").read_text(encoding="utf-8"))
LIMITS = ProgramLimits(seconds=60, memory_mb=512)

pytestmark = pytest.mark.usefixtures("readable")


def plain(python: str, text: str, stdin: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of the program in a Python of its own, in a folder of its own."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [python, "program.py"], cwd=folder, env=environment, input=stdin, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.fixture(scope="module")
def plain_python(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, str], tuple[int, str]]:
    """Exit code and output of a program under the same Python in an environment of its own, where nothing is
    installed."""

    @cache
    def python(interpreter: str) -> str:
        folder = tmp_path_factory.mktemp("plain")
        base = interpreter_at(interpreter).base
        subprocess.run([base, "-m", "venv", "--without-pip", str(folder)], check=True)
        return str(folder / "bin" / "python")

    @cache
    def ended(interpreter: str, text: str, stdin: str) -> tuple[int, str]:
        return plain(python(interpreter), text, stdin, tmp_path_factory.mktemp("program"))

    return ended


@pytest.mark.parametrize("entry", PROGRAMS, ids=[entry["name"] for entry in PROGRAMS])
def test_a_program_prints_and_ends_as_under_plain_python(
    place: Place, entry: Any, plain_python: Callable[[str, str, str], tuple[int, str]]
) -> None:
    text, stdin = entry["program"], entry.get("stdin", "")
    code, output = plain_python(place.interpreter, text, stdin)
    assert (code == 0) == entry.get("ends_well", True), "of the table itself"
    program = Program(text, LIMITS, (stdin,), (output,), "exact", interpreter=place.interpreter)
    outcome = run_program(program, place.sandbox)
    assert outcome.stdout == output, outcome
    assert (outcome.verdict, outcome.exit_code) == ("passed" if code == 0 else "failed", code), outcome


@pytest.mark.parametrize("script", [True, False], ids=["as a script", "in an empty namespace"])
def test_annotations_are_evaluated_as_the_program_asks(place: Place, script: bool) -> None:
    """The judge's own ``from __future__ import annotations`` says nothing about the program."""
    if sys.version_info >= (3, 14):
        pytest.skip("Python 3.14 evaluates no annotation before it is asked for")
    verdicts = []
    for text in (
        "def first(values: List[int]):\n    return values[0]",
        "from __future__ import annotations\ndef first(values: List[int]):\n    return values[0]",
    ):
        program = Program(text, LIMITS, interpreter=place.interpreter, script=script)
        verdicts.append(run_program(program, place.sandbox).verdict)
    assert verdicts == ["failed", "passed"]


def environment_with_package(folder: Path, interpreter: str) -> Path:
    """The Python of a new environment that has a package ``packaged``."""
    python = interpreter_at(interpreter).base
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "packaged").mkdir()
    (packages / "packaged" / "__init__.py").write_text("VALUE = 7")
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
    return folder / "bin" / "python"


def test_an_environment_that_programs_may_not_read_says_nothing_about_them(
    kind: Sandbox, tmp_path: Path
) -> None:
    if os.getuid() or kind.name in ("docker", "podman"):
        pytest.skip("programs have another user than the tests where those are root's, in bubblewrap")
    python = environment_with_package(tmp_path / "closed", "")
    (packages,) = (tmp_path / "closed").glob("lib/python3*/site-packages")
    packages.chmod(0o700)
    outcome = run_program(Program("import packaged", LIMITS, interpreter=str(python)), kind)
    assert outcome.verdict == "sandbox_error"
    assert f"the interpreter's folder {packages} can't be read inside" in str(outcome.error)


@pytest.mark.parametrize("root", ["/tmp", "/dev/shm", "/var/tmp"])
def test_an_environment_is_seen_wherever_it_lies(place: Place, root: str) -> None:
    """Also below the folders that a program has of its own, and where the path has a blank."""
    if not os.access(root, os.W_OK):
        pytest.skip(f"{root} is not there, or not ours to write to")
    with TemporaryDirectory(dir=root, prefix="an environment ") as folder:
        os.chmod(folder, 0o755)
        python = environment_with_package(Path(folder, "one"), place.interpreter)
        text = "import packaged\nassert packaged.VALUE == 7\nimport os\nopen('/tmp/note', 'w').write('x')"
        outcome = run_program(Program(text, LIMITS, interpreter=str(python)), place.sandbox)
        assert outcome.verdict == "passed", outcome
        hostile = (
            "import packaged, os\nopen(os.path.join(os.path.dirname(packaged.__file__), 'evil.py'), 'w')"
        )
        outcome = run_program(Program(hostile, LIMITS, interpreter=str(python)), place.sandbox)
        assert outcome.verdict == "failed", outcome
        assert not list(Path(folder).rglob("evil.py"))
