"""Programs run once, side by side, and what was learned survives a kill."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from scorers.config import Program, ProgramLimits, ProgramOutcome
from tasks.rows import execution
from tasks.rows.execution import OutcomeStore, ProgramRunner, RunnerProgress, program_key
from tasks.sandboxes.run import chosen_sandbox
from tasks.store.storage import Store

PROJECT = Path(__file__).resolve().parents[3]
LIMITS = ProgramLimits(seconds=30)
RIGHT, WRONG = Program("assert 1 + 1 == 2", LIMITS), Program("assert 1 + 1 == 3", LIMITS)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that a sandbox was asked to run."""
    asked: list[Program] = []

    def run(program: Program, sandbox: object) -> ProgramOutcome:
        asked.append(program)
        if "broken" in program.text:
            return ProgramOutcome("sandbox_error", sandbox="pretended", error="sandbox pretended: no room")
        verdict = "passed" if "3" not in program.text else "failed"
        return ProgramOutcome(verdict, sandbox="pretended")

    monkeypatch.setattr(execution, "run_program", run)
    return asked


def run(folder: Path, programs: list[Program | None], not_before: float = 0.0) -> list[ProgramOutcome | None]:
    kept = OutcomeStore(Store(str(folder / "store")), folder / "journal", not_before)
    with ProgramRunner(kept, lambda: None) as running:  # type: ignore[arg-type,return-value]
        return running.run(programs)


def verdicts(outcomes: list[ProgramOutcome | None]) -> list[str | None]:
    return [None if outcome is None else outcome.verdict for outcome in outcomes]


def test_equal_programs_run_once_and_never_again(tmp_path: Path, ran: list[Program]) -> None:
    asked = [RIGHT, WRONG, None, RIGHT, WRONG, RIGHT]
    expected = ["passed", "failed", None, "passed", "failed", "passed"]
    assert verdicts(run(tmp_path, asked)) == expected
    assert len(ran) == 2
    assert verdicts(run(tmp_path, asked[::-1])) == expected[::-1]
    assert len(ran) == 2
    assert verdicts(run(tmp_path, [RIGHT], not_before=time.time() + 60)) == ["passed"]
    assert len(ran) == 3


def test_what_the_sandbox_failed_at_is_tried_again(tmp_path: Path, ran: list[Program]) -> None:
    broken = Program("broken = 1", LIMITS)
    for times in (1, 2):
        [outcome, right] = run(tmp_path, [broken, RIGHT])
        assert getattr(outcome, "error", None) == "sandbox pretended: no room"
        assert verdicts([right]) == ["passed"]
        assert len(ran) == times + 1


@pytest.mark.parametrize(
    "other",
    [
        Program("assert 1 + 1 == 2 ", LIMITS),
        Program(RIGHT.text, ProgramLimits(seconds=31)),
        Program(RIGHT.text, LIMITS, inputs=()),
        Program(RIGHT.text, LIMITS, inputs=("a", "b"), expected=("c", "d")),
        Program(RIGHT.text, LIMITS, inputs=("ab", ""), expected=("c", "d")),
        Program(RIGHT.text, LIMITS, inputs=("a", "b"), expected=("cd", "")),
        Program(RIGHT.text, LIMITS, inputs=("a", "b"), expected=("c", "d"), compare="exact"),
        Program(RIGHT.text, LIMITS, interpreter=sys.executable),
    ],
)
def test_whatever_can_change_an_outcome_is_in_its_key(other: Program) -> None:
    assert program_key(other) != program_key(RIGHT)
    assert program_key(other) == program_key(other)


def test_keys_take_any_text() -> None:
    assert program_key(Program("\ud800", LIMITS)) != program_key(Program("\udfff", LIMITS))


def test_progress_counts_what_was_known(tmp_path: Path, ran: list[Program]) -> None:
    run(tmp_path, [RIGHT])
    said: list[RunnerProgress] = []
    kept = OutcomeStore(Store(str(tmp_path / "store")), tmp_path / "journal")
    with ProgramRunner(kept, lambda: None, said.append) as running:  # type: ignore[arg-type,return-value]
        running.run([RIGHT, WRONG, Program("broken", LIMITS)])
    assert (said[-1].done, said[-1].cached, said[-1].failed) == (3, 1, 1)


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from scorers.config import Program, ProgramLimits
from tasks.rows.execution import OutcomeStore, ProgramRunner
from tasks.sandboxes.run import chosen_sandbox
from tasks.store.storage import Store
folder = Path(sys.argv[1])
programs = [Program(f"import time; time.sleep(0.1); assert {n} % 3", ProgramLimits()) for n in range(60)]
with ProgramRunner(OutcomeStore(Store(str(folder / "store")), folder / "journal"), chosen_sandbox) as running:
    running.run(programs)
"""


@pytest.mark.usefixtures("sandbox")
def test_after_a_kill_only_what_was_in_flight_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(PROJECT)])
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and learned(tmp_path) < 12:
        time.sleep(0.02)
    running.kill()
    running.wait()
    before = learned(tmp_path)
    assert 12 <= before < 60
    again: list[Program] = []
    real = execution.run_program

    def counted(program: Program, sandbox: object) -> ProgramOutcome:
        again.append(program)
        return real(program, sandbox)  # type: ignore[arg-type]

    monkeypatch.setattr(execution, "run_program", counted)
    programs = [Program(f"import time; time.sleep(0.1); assert {n} % 3", ProgramLimits()) for n in range(60)]
    kept = OutcomeStore(Store(str(tmp_path / "store")), tmp_path / "journal")
    with ProgramRunner(kept, chosen_sandbox) as resumed:
        outcomes = resumed.run(list(programs))
    assert verdicts(outcomes) == ["failed" if n % 3 == 0 else "passed" for n in range(60)]
    assert len(again) == 60 - before


def learned(folder: Path) -> int:
    """Outcomes that are safe: in journals, and in the store."""
    lines = sum(path.read_bytes().count(b"\n") for path in folder.glob("journal/*/*.jsonl"))
    store = Store(str(folder / "store"))
    kept = OutcomeStore.__new__(OutcomeStore)  # without taking the journals over
    from tasks.models.answers.segments import AnswerStore
    from tasks.sandboxes.run import VERSION
    from tasks.store.keys import digest

    kept._kept = AnswerStore(store).of_model(digest({"programs": VERSION}))
    return lines + len(kept._kept.snapshot())
