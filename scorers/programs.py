"""Programs that a scorer wants run, and what came of them.

The records cross the border between scorers, which are pure, and the stage that runs programs in a sandbox.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Verdict = Literal["passed", "failed", "timeout", "memory", "output", "sandbox_error"]
Compare = Literal["lines", "tokens", "exact"]


class ProgramLimits(BaseModel):
    """What one run of a program may take; memory, processes and output are those of all its processes
    together."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Field(
        10.0, gt=0, le=3_600, description="Wall-clock time of a run, and CPU time of a process"
    )
    memory_mb: int = Field(1_024, ge=64, description="Memory")
    processes: int = Field(16, ge=1, description="Processes and threads at once")
    output_kb: int = Field(256, ge=1, le=65_536, description="What it may print, stdout and stderr together")
    disk_mb: int = Field(64, ge=1, description="Its temporary folder, and any one file")


@dataclass(frozen=True)
class Program:
    """A Python program, and how it is judged.

    Without ``inputs`` it has passed when it reached its last line. With them each is the stdin of a run of
    its own, which has passed when it printed ``expected``, the text beside it: that never comes near the
    program. ``interpreter`` is the path of the Python that runs it; empty: our own, with the standard library
    alone. ``script`` runs it as ``__main__``; otherwise as ``exec`` does in an empty namespace.
    """

    text: str
    limits: ProgramLimits
    inputs: tuple[str, ...] | None = None
    expected: tuple[str, ...] = ()
    compare: Compare = "lines"
    interpreter: str = ""
    script: bool = True


@dataclass(frozen=True)
class ProgramRun:
    """How one run ended.

    ``verdict`` is passed where the program reached its end within the limits; of a run with input that says
    nothing yet about what it printed. ``cpu_seconds`` sums all its processes; ``stdout`` and ``stderr`` are
    cut where the limit was.
    """

    verdict: Verdict
    exit_code: int | None = None
    signal: int | None = None
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""


KEPT_OUTPUT = 4_000
"""Characters of each stream that are kept for people to look at."""


@dataclass(frozen=True)
class ProgramOutcome:
    """What came of a program, all its runs together.

    ``verdict`` is passed if every run has, else that of the first that has not; ``cases`` are those of the
    runs in order, with as many as there were inputs: those after a run that took too much are its verdict,
    too, since they were not run. ``exit_code`` to ``stderr`` are of the run that decided. ``sandbox`` names
    what ran it, ``error`` says why it could not: then nothing is known of the program.
    """

    verdict: Verdict
    cases: tuple[Verdict, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    stdout: str = ""
    stderr: str = ""
    sandbox: str = ""
    error: str | None = None

    @property
    def share(self) -> float:
        """Share of its cases that passed, from 0 to 1; of a program without cases whether it did."""
        verdicts = self.cases or (self.verdict,)
        return sum(verdict == "passed" for verdict in verdicts) / len(verdicts)

    def as_dict(self) -> dict[str, Any]:
        """As it is kept."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "ProgramOutcome":
        """The inverse of ``as_dict``."""
        return cls(**{**value, "cases": tuple(value["cases"])})


def outcome_of(program: Program, runs: Sequence[ProgramRun], sandbox: str) -> ProgramOutcome:
    """The runs of a program, judged by what they printed.

    >>> limits = ProgramLimits()
    >>> doubling = Program("", limits, inputs=("1", "2", "3"), expected=("2", "4", "6"))
    >>> right, wrong = ProgramRun("passed", stdout="2\\n"), ProgramRun("passed", stdout="5\\n")
    >>> runs = [right, wrong, ProgramRun("timeout")]
    >>> outcome_of(doubling, runs, "none").cases
    ('passed', 'failed', 'timeout')
    """
    verdicts: list[Verdict] = []
    for place, run in enumerate(runs):
        right = program.inputs is None or same_output(run.stdout, program.expected[place], program.compare)
        verdicts.append(run.verdict if run.verdict != "passed" or right else "failed")
    decided = next((place for place, verdict in enumerate(verdicts) if verdict != "passed"), 0)
    shown = runs[decided]
    if program.inputs is not None:
        verdicts += [verdicts[-1]] * (len(program.inputs) - len(verdicts))
    return ProgramOutcome(
        verdict=verdicts[decided],
        cases=tuple(verdicts) if program.inputs is not None else (),
        exit_code=shown.exit_code,
        signal=shown.signal,
        cpu_seconds=round(sum(run.cpu_seconds for run in runs), 4),
        wall_seconds=round(sum(run.wall_seconds for run in runs), 4),
        stdout=_cut(shown.stdout),
        stderr=_cut(shown.stderr),
        sandbox=sandbox,
    )


def same_output(printed: str, expected: str, compare: Compare) -> bool:
    """Whether a run printed what was expected: the same lines, white space at their ends and empty lines at
    the end aside; the same words; or the very same text.

    >>> same_output("1 2 \\n\\n", "1 2", "lines"), same_output("1  2", "1 2", "lines")
    (True, False)
    >>> same_output("1\\n2", "1 2", "tokens"), same_output("1\\n", "1", "exact")
    (True, False)
    """
    if compare == "exact":
        return printed == expected
    if compare == "tokens":
        return printed.split() == expected.split()
    return _lines(printed) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _cut(text: str) -> str:
    """The beginning and the end of a long text: the end of a traceback says most."""
    half = KEPT_OUTPUT // 2
    return text if len(text) <= KEPT_OUTPUT else f"{text[:half]}\n…\n{text[-half:]}"


def read_cases(value: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inputs and expected outputs of an item's field; raises ValueError saying what was expected.

    It holds a list of mappings with ``input`` and ``output``, a mapping with the lists ``inputs`` and
    ``outputs`` (APPS), or the JSON text of either (LiveCodeBench).

    >>> read_cases('[{"input": "1", "output": "2", "testtype": "stdin"}]')
    (('1',), ('2',))
    >>> read_cases({"inputs": ["1", "2"], "outputs": ["2", 4]})
    (('1', '2'), ('2', '4'))
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"is a text that is no JSON ({error})") from None
    if isinstance(value, Mapping):
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if value.get("fn_name"):
            raise ValueError("calls a function (fn_name); only programs that read stdin are run by cases")
    elif isinstance(value, list) and all(isinstance(case, Mapping) for case in value):
        kinds = {str(case.get("testtype", "stdin")) for case in value}
        if kinds - {"stdin"}:
            raise ValueError(f"has cases of testtype {', '.join(sorted(kinds))}; only stdin is run by cases")
        inputs = [case.get("input") for case in value]
        outputs = [case.get("output") for case in value]
    else:
        inputs = outputs = None
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("is neither a list of {input, output} nor {inputs: […], outputs: […]} of one length")
    if not inputs or any(entry is None for entry in (*inputs, *outputs)):
        raise ValueError("has no case, or one without input or output")
    return tuple(map(_text, inputs)), tuple(map(_text, outputs))


def _text(value: Any) -> str:
    if isinstance(value, list):  # APPS: lines
        return "\n".join(map(str, value))
    return value if isinstance(value, str) else str(value)
