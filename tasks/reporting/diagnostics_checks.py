"""Checks on samples: failed requests, cut and empty responses, filters that find nothing, answers that never vary."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.reporting import report_numbers as numbers
from tasks.reporting.diagnostics import Check, Diagnostic, DiagnosticOptions, Example, Severity
from tasks.reporting.diagnostics_frequent import Frequent
from tasks.reporting.diagnostics_references import UnreachableReferences
from tasks.reporting.view import ResponseView, RunView, SampleView

TEXT_LENGTH = 300


def sample_checks(view: RunView, options: DiagnosticOptions) -> list[Check]:
    """A fresh instance of every check."""
    return [
        FailedRequests(options),
        UnscoredResponses(options),
        TruncatedResponses(options),
        EmptyResponses(options),
        EmptyFilters(options),
        SameAnswers(options),
        DisagreeingRepeats(options),
        UnreachableReferences(view, options),
    ]


def example(sample: SampleView, text: Any) -> Example:
    """The sample as an example, with the end of a long text, where answers stand."""
    text = text if isinstance(text, str) else repr(text)
    if len(text) > TEXT_LENGTH:
        text = f"…{text[-TEXT_LENGTH:]}"
    return Example(sample.item_id, sample.model_name, sample.prompt_template, text)


@dataclass
class Tally:
    """How often something was looked at and seen, with the first few examples."""

    limit: int
    total: int = 0
    seen: int = 0
    examples: list[Example] = field(default_factory=list)

    def hit(self, sample: SampleView, text: Any) -> None:
        """Counts one more and keeps it if there are few examples, at most one a sample."""
        self.seen += 1
        if len(self.examples) < self.limit:
            found = example(sample, text)
            if not self.examples or self.examples[-1].item_id != found.item_id:
                self.examples.append(found)

    @property
    def share(self) -> float:
        """Seen of all, 0 if nothing was looked at."""
        return self.seen / self.total if self.total else 0.0

    def words(self, what: str) -> str:
        """``"312 of 1,319 responses (24 %)"``."""
        return f"{numbers.count(self.seen)} of {numbers.plural(self.total, what)} ({numbers.share(self.seen, self.total)})"

    def finding(self, kind: str, severity: Severity, message: str) -> Diagnostic:
        """The tally as a finding."""
        return Diagnostic(kind, severity, message, self.seen, tuple(self.examples))


class _PerGroup:
    """A tally for each model, or whatever else a check keeps apart."""

    def __init__(self, options: DiagnosticOptions) -> None:
        self.options = options
        self.tallies: defaultdict[Any, Tally] = defaultdict(lambda: Tally(options.examples))


class FailedRequests(_PerGroup):
    """Requests that ended without an answer, with the most frequent reason."""

    def __init__(self, options: DiagnosticOptions) -> None:
        super().__init__(options)
        self.reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, sample: SampleView) -> None:
        """Counts requests and failed ones by model."""
        tally = self.tallies[sample.model_name]
        tally.total += len(sample.responses)
        for response in sample.responses:
            if not response.ok:
                reason = response.error or response.status
                tally.hit(sample, f"{response.status}: {reason}")
                reasons = self.reasons[sample.model_name]
                if reason in reasons or len(reasons) < 100:  # messages may hold ids: bounded, not complete
                    reasons[reason[:TEXT_LENGTH]] += 1

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model."""
        for model, tally in self.tallies.items():
            if tally.seen:
                reason, times = self.reasons[model].most_common(1)[0]
                yield tally.finding(
                    "requests_failed",
                    "error" if tally.share > self.options.truncated else "warning",
                    f"{model}: {tally.words('request')} failed and are unscored; most often ({numbers.count(times)} times): "
                    f"{reason}. Running the same command again asks only for these.",
                )


class UnscoredResponses(_PerGroup):
    """Answers that are there and could not be scored: a judge whose reply was unreadable, a metric that gave up."""

    def add(self, sample: SampleView) -> None:
        """Counts unscored repeats by pair, failed requests left out."""
        if not all(response.ok for response in sample.responses):
            return
        for pair, scores in sample.scores.items():
            tally = self.tallies[pair]
            tally.total += len(scores)
            reasons = sample.reasons.get(pair, ())
            for index, score in enumerate(scores):
                if score is None:
                    reason = reasons[index] if index < len(reasons) else None
                    tally.hit(sample, reason or "no reason was recorded")

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a pair."""
        for pair, tally in self.tallies.items():
            if tally.seen:
                yield tally.finding(
                    "unscored",
                    "error" if tally.share > self.options.grave else "warning",
                    f"{pair}: {tally.words('answered response')} could not be scored and count neither as right nor as wrong.",
                )


class TruncatedResponses(_PerGroup):
    """Responses that ended because the token limit was reached (finish reason "length")."""

    def add(self, sample: SampleView) -> None:
        """Counts by model."""
        tally = self.tallies[sample.model_name]
        for response in sample.responses:
            if response.ok:
                tally.total += 1
                if response.finish_reason == "length":
                    tally.hit(sample, response.text or "")

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model."""
        for model, tally in self.tallies.items():
            if tally.seen:
                yield tally.finding(
                    "truncated",
                    "warning" if tally.share > self.options.truncated else "note",
                    f"{model}: {tally.words('response')} were cut off at the token limit (finish reason length); "
                    "raise sample_params.max_tokens, or read the scores as those of unfinished answers.",
                )


class EmptyResponses(_PerGroup):
    """Responses without any text."""

    def add(self, sample: SampleView) -> None:
        """Counts by model; log-likelihood responses have no text and are left out."""
        tally = self.tallies[sample.model_name]
        for response in sample.responses:
            if response.ok and not response.lls:
                tally.total += 1
                if not (response.text or "").strip():
                    tally.hit(sample, _instead(response))

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model."""
        for model, tally in self.tallies.items():
            if tally.share > self.options.empty_response:
                yield tally.finding(
                    "empty_response",
                    "error" if tally.share > self.options.grave else "warning",
                    f"{model}: {tally.words('response')} are empty; look for a stop sequence that the model begins with, "
                    "or for reasoning that used up the token limit.",
                )


class EmptyFilters(_PerGroup):
    """Filters that found nothing in responses that are there."""

    def add(self, sample: SampleView) -> None:
        """Counts by filter and model."""
        for name, predictions in sample.filters.items():
            tally = self.tallies[name, sample.model_name]
            for index, prediction in enumerate(predictions):
                response = sample.responses[index] if index < len(sample.responses) else None
                if response is None or response.ok:
                    tally.total += 1
                    if prediction is None or prediction == "[invalid]":
                        tally.hit(sample, (response.text if response else None) or "")

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a filter and model."""
        for (name, model), tally in self.tallies.items():
            if tally.share > self.options.filter_empty:
                yield tally.finding(
                    "filter_empty",
                    "error" if tally.share > self.options.grave else "warning",
                    f"{name} found nothing in {tally.words('response')} of {model}; they count as wrong. Look at the "
                    "pattern, or ask for the format in the prompt.",
                )


class SameAnswers:
    """Models that answer the same whatever is asked, although the references differ."""

    def __init__(self, options: DiagnosticOptions) -> None:
        self.options = options
        self.answers: defaultdict[tuple[str, str], Frequent] = defaultdict(Frequent)
        self.references: defaultdict[str, Frequent] = defaultdict(Frequent)
        self.tallies: defaultdict[tuple[str, str], Tally] = defaultdict(lambda: Tally(options.examples))

    def add(self, sample: SampleView) -> None:
        """Counts predictions and references."""
        if sample.references:
            self.references[sample.model_name].add(str(sample.references[0]))
        for name, predictions in sample.filters.items():
            for prediction in predictions:
                if prediction is not None and prediction != "[invalid]":
                    self.answers[name, sample.model_name].add(str(prediction)[:TEXT_LENGTH])
                    tally = self.tallies[name, sample.model_name]
                    if len(tally.examples) < tally.limit:
                        tally.hit(sample, prediction)

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a filter and model."""
        for (name, model), answers in self.answers.items():
            answer, times = answers.top()
            expected = self.references[model].top_share() if model in self.references else 0.0
            if (
                answers.total >= self.options.min_samples
                and times / answers.total >= self.options.same_answer
                and expected < self.options.same_answer
            ):
                shown = answer if len(answer) <= 60 else f"{answer[:59]}…"
                yield Diagnostic(
                    "same_answer",
                    "warning",
                    f"{name}: {model} gave the same answer “{shown}” in at least {numbers.share(times, answers.total)} of "
                    f"{numbers.plural(answers.total, 'prediction')}, whatever was asked; look at the prompt and the filter.",
                    times,
                    tuple(self.tallies[name, model].examples),
                )


class DisagreeingRepeats(_PerGroup):
    """Items that are right in one repeat and wrong in another: how much of the score is luck."""

    def add(self, sample: SampleView) -> None:
        """Counts items with several scored repeats by pair and model."""
        for pair, scores in sample.scores.items():
            scored = [score for score in scores if score is not None]
            if len(scored) > 1:
                tally = self.tallies[pair, sample.model_name]
                tally.total += 1
                if min(scored) != max(scored):
                    tally.hit(sample, _scores_text(scores))

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a pair and model."""
        for (pair, model), tally in self.tallies.items():
            if tally.share > self.options.repeats_disagree:
                yield tally.finding(
                    "repeats_disagree",
                    "note",
                    f"{pair}: repeats of {model} disagree on {tally.words('item')}; one more sample an item says more "
                    "than one more digit.",
                )


def _scores_text(scores: Sequence[float | None]) -> str:
    return "scores " + ", ".join("unscored" if score is None else f"{score:g}" for score in scores)


def _instead(response: ResponseView) -> str:
    if response.reasoning:
        return f"reasoning only: {response.reasoning}"
    return f"empty (finish reason {response.finish_reason or 'not reported'})"
