"""Answers that are programs: what is run of each, and the score that its outcome makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from metrics.metric import Metric
from scorers.base import Batch, ModelReply, SampleScores, ScorerError, score_values
from scorers.config import Compare, Program, ProgramLimits, ProgramOutcome, read_cases
from scorers.generation import GenerationScorer
from scorers.grading import prompt_variables, render

TESTS_PASSED = "tests_passed"
"""The metric that running programs adds."""
SHOWN = 1_000


@dataclass(frozen=True)
class ExecutionScorer(GenerationScorer):
    """Adds the metric ``tests_passed`` to those of a benchmark; all others are scored as generated text.

    ``program`` is a template over the sample, ``cases`` the field of the item that holds inputs and expected
    outputs (None: the program tests itself). A metric's argument ``count`` says whether all cases have to
    pass or their share counts.
    """

    program: str
    cases: str | None
    compare: Compare
    limits: ProgramLimits
    interpreter: str

    def programs(self, batch: Batch) -> list[Program | None]:
        """What is to be run for each row; None for one without a prediction, which has nothing to run.

        Raises ScorerError naming the item whose cases can't be read, or that lacks a field of the template.
        """
        return [
            self._program(batch, row) if ok and prediction is not None else None
            for row, (ok, prediction) in enumerate(zip(batch.scored, batch.predictions, strict=True))
        ]

    def _program(self, batch: Batch, row: int) -> Program:
        name = batch.name(row)
        text = render(self.program, prompt_variables(batch, row), name, "scorer.program")
        if self.cases is None:
            return Program(text, self.limits, interpreter=self.interpreter)
        try:
            value: Any = batch.docs[row]
            for part in self.cases.split("."):
                value = value[part]
        except (KeyError, TypeError, IndexError):
            known = ", ".join(batch.docs[row])
            raise ScorerError(
                f"{name}: scorer.cases: no field {self.cases!r}; the item has {known}"
            ) from None
        try:
            inputs, expected = read_cases(value)
        except ValueError as error:
            raise ScorerError(f"{name}: scorer.cases: field {self.cases!r} {error}") from None
        return Program(text, self.limits, inputs, expected, self.compare, self.interpreter)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """Scores of a metric beside ``tests_passed``, which needs the programs' outcomes."""
        if metric.entry == TESTS_PASSED:
            raise ScorerError(f"metric {metric.name!r} needs what came of the programs")
        return super().score(batch, metric, replies)

    def score_outcomes(
        self, batch: Batch, metric: Metric, outcomes: Sequence[ProgramOutcome | None]
    ) -> SampleScores:
        """Scores of ``tests_passed`` from an outcome a row (None: there was no program to run, which is
        wrong).

        What a sandbox could not run is unscored; what took too much time, memory or room is wrong.
        """
        values: list[float | None] = []
        errors: list[str | None] = []
        details: list[dict[str, Any] | None] = []
        for ok, outcome in zip(batch.scored, outcomes, strict=True):
            lost = not ok or (outcome is not None and outcome.verdict == "sandbox_error")
            values.append(None if lost else self._value(metric, outcome))
            errors.append(outcome.error if outcome is not None else None)
            details.append(_details(outcome) if ok else None)
        return score_values(batch, metric, values, errors, details)

    def _value(self, metric: Metric, outcome: ProgramOutcome | None) -> float:
        if outcome is None:
            return 0.0
        return outcome.share if metric.arguments["count"] == "share" else float(outcome.verdict == "passed")


def _details(outcome: ProgramOutcome | None) -> dict[str, Any]:
    if outcome is None:
        return {"verdict": "no program"}
    said: dict[str, Any] = {"verdict": outcome.verdict, "sandbox": outcome.sandbox}
    if outcome.cases:
        said["cases"] = list(outcome.cases)
    for name in ("exit_code", "signal"):
        if getattr(outcome, name) not in (None, 0):
            said[name] = getattr(outcome, name)
    if outcome.verdict != "passed":
        said |= {name: text[-SHOWN:] for name in ("stdout", "stderr") if (text := getattr(outcome, name))}
    return said


def is_executed(metric: Metric) -> bool:
    """Whether the metric waits for programs to be run."""
    return metric.entry == TESTS_PASSED
