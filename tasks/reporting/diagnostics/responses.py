"""Checks on responses: requests that failed, answers nobody could score, texts cut off or empty."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from scorers.letters import FIRST_TOKEN
from tasks.reporting import numbers
from tasks.reporting.diagnostics.findings import TEXT_LENGTH, Diagnostic, DiagnosticOptions, TallyCheck
from tasks.reporting.view import ResponseView, SampleView

ALL_CUT_OFF: Final = "all_cut_off"
"""The finding that a model has no answer left to judge: then the run has failed."""
REASONS: Final = 100  # distinct reasons kept a model: messages may hold ids, and then every one is distinct


class FailedRequests(TallyCheck):
    """Requests that ended without an answer, with the most frequent reason."""

    def __init__(self, options: DiagnosticOptions) -> None:
        super().__init__(options)
        self._reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, sample: SampleView) -> None:
        """Counts requests and failed ones by model."""
        tally, reasons = self.tallies[sample.model_name], self._reasons[sample.model_name]
        tally.total += len(sample.responses)
        for response in sample.responses:
            if response.failed:
                reason = (response.error or response.status)[:TEXT_LENGTH]
                tally.hit(sample, f"{response.status}: {reason}")
                if reason in reasons or len(reasons) < REASONS:
                    reasons[reason] += 1

    def merge(self, other: Any) -> None:
        """Adds tallies and reasons."""
        super().merge(other)
        for model, counts in other._reasons.items():
            reasons = self._reasons[model]
            for reason, times in counts.items():
                if reason in reasons or len(reasons) < REASONS:
                    reasons[reason] += times

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model."""
        for model, tally in self.tallies.items():
            if tally.seen:
                reason, times = self._reasons[str(model)].most_common(1)[0]
                yield tally.finding(
                    "requests_failed",
                    "warning",
                    f"{model}: {tally.words('request')} failed and are unscored. Most frequent reason "
                    f"({numbers.count(times)}): {reason}",
                )


class UnscoredResponses(TallyCheck):
    """Answers that are there and have no score: a judge whose reply was unreadable, a metric that gave up."""

    def add(self, sample: SampleView) -> None:
        """Counts unscored repeats by pair; failed requests and cut-off answers have checks of their own."""
        if any(response.failed for response in sample.responses):
            return
        for pair, scores in sample.scores.items():
            tally, reasons = self.tallies[pair], sample.reasons.get(pair, ())
            tally.total += len(scores)
            for index, score in enumerate(scores):
                of_its_own = index < len(sample.responses) and sample.responses[index].cut_off
                if score is None and not of_its_own:
                    reason = reasons[index] if index < len(reasons) else None
                    tally.hit(sample, reason or "no reason was recorded")

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a pair."""
        for pair, tally in self.tallies.items():
            if tally.seen:
                yield tally.finding(
                    "unscored",
                    self.gravity(tally),
                    f"{pair}: {tally.words('answer')} could not be scored; they count neither as right nor "
                    "as wrong.",
                )


class CutOffResponses(TallyCheck):
    """Answers that never began, because the tokens were used up: as a rule by thinking."""

    def add(self, sample: SampleView) -> None:
        """Counts by model and prompt."""
        tally = self.tallies[sample.model_name, sample.prompt_template]
        for response in sample.responses:
            tally.total += 1
            if response.cut_off:
                tally.hit(sample, response.reasoning or response.error or "")

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model and prompt; an error where no answer is left."""
        for key, tally in self.tallies.items():
            model, prompt = key if isinstance(key, tuple) else (key, "")
            if tally.seen:
                every = tally.seen == tally.total
                yield tally.finding(
                    ALL_CUT_OFF if every else "cut_off",
                    "error" if every else "warning",
                    f"{model}, prompt {prompt}: {tally.words('answer')} never began, because the tokens were "
                    "used up. Raise sample_params.max_tokens, or lower what the model may think.",
                )


class TruncatedResponses(TallyCheck):
    """Answers that ended because the token limit was reached (finish reason "length")."""

    def add(self, sample: SampleView) -> None:
        """Counts by model; where the first token was asked for, no answer was meant to go on."""
        if _asked_for_first_token(sample):
            return
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
                    f"{model}: {tally.words('response')} were cut off at the token limit (finish reason "
                    "length). Raise sample_params.max_tokens, or read the scores as those of unfinished "
                    "answers.",
                )


class UnendedThoughts(TallyCheck):
    """Answers at the token limit without a thought, of a model that thinks otherwise: the template may open
    the thought, and then they are thoughts that never ended."""

    def __init__(self, options: DiagnosticOptions) -> None:
        super().__init__(options)
        self._think: set[str] = set()

    def add(self, sample: SampleView) -> None:
        """Counts by model."""
        tally = self.tallies[sample.model_name]
        for response in sample.responses:
            if response.reasoning:
                self._think.add(sample.model_name)
            if response.ok and response.text:
                tally.total += 1
                if response.finish_reason == "length" and not response.reasoning:
                    tally.hit(sample, response.text)

    def merge(self, other: Any) -> None:
        """Adds tallies, and the models that were seen to think."""
        super().merge(other)
        self._think |= other._think

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model."""
        for model, tally in self.tallies.items():
            if tally.seen and model in self._think:
                yield tally.finding(
                    "thought_unended",
                    "warning",
                    f"{model}: {tally.words('answer')} ended at the token limit without any thought, where "
                    "others have one: they may be thoughts that never ended, and were scored as answers. If "
                    "the chat template opens the thought, set reasoning: {opened: true}.",
                )


def unused_recordings(manifest: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Rows of a recording that the run did not look at: of other models, or of what was not asked for."""
    for recording in manifest.get("recordings", ()):
        others: Mapping[str, int] = recording["other_models"]
        unused, of_others = recording["rows"] - recording["used"], sum(others.values())
        said = [f"{numbers.count(of_others)} of models that the config does not have ({', '.join(others)})"]
        said = said if others else []
        if unused > of_others:
            beside = numbers.count(unused - of_others)
            said.append(f"{beside} of items, prompt templates or samples that the run does not ask for")
        if said:
            total = numbers.plural(recording["rows"], "row")
            yield Diagnostic(
                "recording_unused",
                "note",
                f"{recording['path']}: {numbers.count(unused)} of {total} were not used: {'; '.join(said)}.",
                unused,
            )


class EmptyResponses(TallyCheck):
    """Responses without any text."""

    def add(self, sample: SampleView) -> None:
        """Counts by model; log-likelihood responses have no text and are left out, as first tokens are."""
        if _asked_for_first_token(sample):
            return
        tally = self.tallies[sample.model_name]
        for response in sample.responses:
            if response.ok and not response.lls:
                tally.total += 1
                if not (response.text or "").strip() and not response.tool_calls:
                    tally.hit(sample, _instead_of_text(response))

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model."""
        for model, tally in self.tallies.items():
            if tally.share > self.options.empty_response:
                yield tally.finding(
                    "empty_response",
                    "warning",
                    f"{model}: {tally.words('response')} are empty. Look for a stop sequence that the model "
                    "begins with, or for reasoning that used up the token limit.",
                )


def _asked_for_first_token(sample: SampleView) -> bool:
    rows = (one for details in sample.details.values() for one in details if one is not None)
    return any(one.get("rule") == FIRST_TOKEN for one in rows)


def _instead_of_text(response: ResponseView) -> str:
    if response.reasoning:
        return f"reasoning only: {response.reasoning}"
    return f"empty (finish reason: {response.finish_reason or 'not reported'})"
