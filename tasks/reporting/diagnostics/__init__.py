"""What is probably wrong with a run, found before anybody believes its numbers.

``diagnose`` looks through a run; ``Diagnosis`` takes the samples of a pass that the caller makes anyway. A
check sees one sample after another and keeps counts and a few examples, so that memory does not grow with the
run. The report enters here; who only shows findings takes their records from ``findings``.
"""

from itertools import chain

from tasks.reporting.diagnostics import answers, responses
from tasks.reporting.diagnostics.findings import Check, Diagnostic, DiagnosticOptions, grouped
from tasks.reporting.view import RunView, SampleView


def diagnose(view: RunView, options: DiagnosticOptions | None = None) -> tuple[Diagnostic, ...]:
    """Finds what is probably wrong with the run, the gravest first, in one pass over its samples."""
    diagnosis = Diagnosis(view, options)
    for sample in view.samples():
        diagnosis.add(sample)
    return diagnosis.finish(view)


class Diagnosis:
    """All checks over one pass of the samples, or over passes through parts of them, which are merged."""

    def __init__(self, view: RunView, options: DiagnosticOptions | None = None) -> None:
        self._options = options or DiagnosticOptions()
        self._checks = _checks(view, self._options)

    def add(self, sample: SampleView) -> None:
        """Shows one sample to every check."""
        for check in self._checks:
            check.add(sample)

    def merge(self, other: "Diagnosis") -> None:
        """Takes into account what was seen of the samples that come next."""
        for check, theirs in zip(self._checks, other._checks, strict=True):
            check.merge(theirs)

    def finish(self, view: RunView) -> tuple[Diagnostic, ...]:
        """All findings on the run, the gravest first, then the most frequent; those of one kind together."""
        findings = [finding for check in self._checks for finding in check.finish()]
        findings += answers.format_gaps(view, self._options)
        findings += responses.unused_recordings(view.manifest)
        findings += responses.absent_recordings(view.manifest)
        findings += responses.uncounted_replies(view.manifest)
        findings += responses.stopped_early(view.manifest)
        findings += responses.edited_files(view.manifest)
        findings += answers.arena_findings(view.manifest)
        return tuple(chain.from_iterable(grouped(findings)))


def _checks(view: RunView, options: DiagnosticOptions) -> list[Check]:
    """A fresh instance of every check."""
    return [
        responses.FailedRequests(options),
        responses.UnscoredResponses(options),
        responses.CutOffResponses(options),
        responses.RefusedResponses(options),
        responses.TruncatedResponses(options),
        responses.UnknownFinishes(options),
        responses.UnendedThoughts(options),
        responses.EmptyResponses(options),
        answers.EmptyFilters(options),
        answers.SameAnswers(options),
        answers.DisagreeingRepeats(options),
        answers.ConstantScores(options),
        answers.LetterChoices(options),
        responses.TargetsOutside(options),
        responses.EmptyReferences(view, options),
        responses.UnreachableReferences(view, options),
    ]
