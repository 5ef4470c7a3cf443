"""A program in a sandbox ends as under plain ``python program.py``: the same output, the same verdict."""

import os
import signal
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
from tasks.sandboxes.judges import end_free_judges
from tasks.sandboxes.kinds import Sandbox
from tasks.sandboxes.run import run_program
from tests.tasks.sandboxes.conftest import Place, at_once

HERE = Path(__file__).parent
PROGRAMS = [
    entry
    for name in ("plain.yaml", "library.yaml")
    for entry in yaml.safe_load((HERE / name).read_text(encoding="utf-8"))
]
SOLUTIONS = yaml.safe_load((HERE / "solutions.yaml").read_text(encoding="utf-8"))
LIMITS = ProgramLimits(seconds=60, memory_mb=512)

pytestmark = pytest.mark.usefixtures("readable")


def plain(python: str, text: str, stdin: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of the program in a Python of its own, in a folder of its own."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [python, "program.py"], cwd=folder, env=environment, input=stdin.encode(),
        capture_output=True, check=False, timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    return done.returncode, done.stdout.decode("utf-8", "replace")


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


Plain = Callable[[str, str, str], tuple[int, str]]


def test_programs_print_and_end_as_under_plain_python(place: Place, plain_python: Plain) -> None:
    names = [entry["name"] for entry in PROGRAMS]
    assert len(set(names)) == len(names) >= 200

    def differs(entry: Any) -> str | None:
        text, stdin = entry["program"], entry.get("stdin", "")
        code, output = plain_python(place.interpreter, text, stdin)
        assert (code == 0) == entry.get("ends_well", True), f"of the table itself: {entry['name']}: {code}"
        program = Program(text, LIMITS, (stdin,), (output,), "exact", interpreter=place.interpreter)
        outcome = run_program(program, place.sandbox)
        ended = -outcome.signal if outcome.signal else outcome.exit_code
        verdict = "passed" if code == 0 else "failed"
        if (outcome.verdict, ended) == (verdict, code) and (outcome.stdout == output or len(output) > 4_000):
            return None
        return f"{entry['name']}: {code}, {output!r} plainly, but {outcome}"

    assert at_once(differs, PROGRAMS) == []


def test_signals_that_a_run_was_started_to_ignore_end_programs(place: Place) -> None:
    """As nohup does, and a shell's ``&``."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    end_free_judges()  # those that are there were started before
    try:
        for number in before:
            text = f"import os\nos.kill(os.getpid(), {int(number)})\nprint(1)"
            program = Program(text, LIMITS, interpreter=place.interpreter)
            outcome = run_program(program, place.sandbox)
            assert outcome.verdict == "failed", outcome
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        end_free_judges()


def test_right_solutions_of_benchmarks_pass(place: Place) -> None:
    programs = []
    for text in (*SOLUTIONS["humaneval"], *SOLUTIONS["mbpp"]):
        programs += [
            Program(text, LIMITS, interpreter=place.interpreter, script=script) for script in (True, False)
        ]
    for entry in SOLUTIONS["apps"]:
        cases = tuple(entry["inputs"]), tuple(entry["outputs"])
        programs.append(Program(entry["program"], LIMITS, *cases, interpreter=place.interpreter))

    def wrong(program: Program) -> str | None:
        outcome = run_program(program, place.sandbox)
        return None if outcome.verdict == "passed" else f"{program.text}: {outcome}"

    assert at_once(wrong, programs) == []


@pytest.mark.parametrize("script", [True, False], ids=["as a script", "in an empty namespace"])
def test_whatever_a_right_program_did_to_its_names_and_streams_it_passes(place: Place, script: bool) -> None:
    texts = [
        "import sys\nsys.stdout.close()",
        "import os\nos.close(1)",
        "import os, sys\nsys.stdout = sys.stderr = open(os.devnull, 'w')\nprint('x')",
        "import os\nos.write = os.read = os.open = os.kill = os.fork = os._exit = None",
        "bytes = bytearray = open = print = write = SystemExit = None",
        "import sys, os\nsys.modules['os'] = None\nsys.exit = os._exit = exit = quit = None",
        "import posix\nposix = None\ndef write(): ...",
        "x = 1 # half a character: \ud800",
        "while True:\n    break\nelse:\n    x = 1",
        "def f():\n    pass\n    # an indented comment at the end",
        "x = 1;",
        "",
    ]

    def wrong(text: str) -> str | None:
        program = Program(text, LIMITS, interpreter=place.interpreter, script=script)
        outcome = run_program(program, place.sandbox)
        right = "passed" if "\ud800" not in text else "failed"  # Python refuses it, too
        return None if outcome.verdict == right else f"{text}: {outcome}"

    assert at_once(wrong, texts) == []


def test_what_the_page_names_as_an_imitation_is_told_by_nobody(place: Place) -> None:
    """So that the page says no more than what holds."""
    texts = [
        "class Equal:\n    def __eq__(self, other):\n        return True\nassert Equal() == 1",
        "import os\ntext = open(__file__).read()\nexec(text[text.rindex('while' + ' 1:'):])\nos._exit(0)",
    ]
    for text in texts:
        outcome = run_program(Program(text, LIMITS, interpreter=place.interpreter), place.sandbox)
        assert outcome.verdict == "passed", outcome


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
