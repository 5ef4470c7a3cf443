"""What is probably wrong with a run, said before anybody believes its numbers.

A check looks at one sample after another and keeps counts and a few examples, never the samples, so that a
million of them need no more memory than a thousand. `Diagnosis` feeds all checks in one pass; the report uses
it beside its own, `diagnose` makes a pass of its own.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import pyarrow as pa

from tasks.reporting import numbers
from tasks.reporting.view import ResultRow, RunView, SampleView, result_rows

Severity = Literal["error", "warning", "note"]
GRAVEST_FIRST: Final = ("error", "warning", "note")


@dataclass(frozen=True)
class Example:
    """A sample that shows the finding: which one, and the piece of text to look at."""

    item_id: str
    model_name: str
    prompt_template: str
    text: str


@dataclass(frozen=True)
class Diagnostic:
    """One finding.

    ``kind`` is a stable identifier ("filter_empty", "truncated" …), ``message`` a sentence or two: what was
    seen, in how many of how many, and what to do. "error": the numbers can't be trusted as they are;
    "warning": look before you quote them; "note": good to know. ``count`` says how often it was seen.
    """

    kind: str
    severity: Severity
    message: str
    count: int
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class DiagnosticOptions:
    """From which share on something is said; shares are of samples or responses, from 0 to 1.

    ``min_samples`` is how many samples a finding about sameness needs, so that a try-out of three items is
    not told that its answers do not vary.
    """

    filter_empty: float = 0.05
    truncated: float = 0.01
    empty_response: float = 0.01
    same_answer: float = 0.8
    repeats_disagree: float = 0.2
    format_gap: float = 0.1
    grave: float = 0.5
    min_samples: int = 10
    examples: int = 5


class Check(Protocol):
    """Looks at samples one after another and says at the end what it found."""

    def add(self, sample: SampleView) -> None:
        """Takes one sample into account."""
        ...

    def finish(self) -> Iterator[Diagnostic]:
        """The findings, once all samples were added."""
        ...


class Diagnosis:
    """All checks over one pass of the samples."""

    def __init__(self, view: RunView, options: DiagnosticOptions | None = None) -> None:
        self._view = view
        self._options = options or DiagnosticOptions()
        self._checks = _checks(view, self._options)

    def add(self, sample: SampleView) -> None:
        """Shows one sample to every check."""
        for check in self._checks:
            check.add(sample)

    def finish(self) -> tuple[Diagnostic, ...]:
        """All findings, the gravest first, within a severity the most frequent first."""

        found = [finding for check in self._checks for finding in check.finish()]
        found += format_gaps(self._view.results, self._options)
        return tuple(sorted(found, key=lambda d: (GRAVEST_FIRST.index(d.severity), -d.count, d.kind)))


def diagnose(view: RunView, options: DiagnosticOptions | None = None) -> tuple[Diagnostic, ...]:
    """What is probably wrong with the run, the gravest first; one streaming pass over its samples."""
    diagnosis = Diagnosis(view, options)
    for sample in view.samples():
        diagnosis.add(sample)
    return diagnosis.finish()


def _checks(view: RunView, options: DiagnosticOptions) -> list[Check]:
    """A fresh instance of every check; the modules import this one, hence not at the top."""
    from tasks.reporting.diagnostics import answers, references, responses

    return [
        responses.FailedRequests(options),
        responses.UnscoredResponses(options),
        responses.TruncatedResponses(options),
        responses.EmptyResponses(options),
        answers.EmptyFilters(options),
        answers.SameAnswers(options),
        answers.DisagreeingRepeats(options),
        answers.ConstantScores(options),
        references.EmptyReferences(options),
        references.UnreachableReferences(view, options),
    ]


def format_gaps(results: pa.Table, options: DiagnosticOptions) -> Iterator[Diagnostic]:
    """Exact matches that a lenient filter sees and a strict one does not: right answers in another format."""
    alike: defaultdict[tuple[str, ...], list[tuple[float, ResultRow]]] = defaultdict(list)
    for row in result_rows(results):
        if row.value is not None and row.metric == "exact_match":
            alike[row.benchmark, row.metric_key, row.group, row.label or ""].append((row.value, row))
    for group in alike.values():
        low, strict = min(group, key=lambda entry: entry[0])
        high, lenient = max(group, key=lambda entry: entry[0])
        if high - low > options.format_gap and strict.n_items >= options.min_samples:
            yield Diagnostic(
                "format_gap",
                "note",
                f"{strict.group}: {strict.metric_key} is {numbers.number(high - low)} higher with "
                f"{lenient.filter} than with {strict.filter}; many answers are right in another format than "
                f"{strict.filter} asks for.",
                round((high - low) * strict.n_items),
            )
