"""Checks on responses: requests that failed, answers nobody could score, texts cut off or empty; and on
references that no answer could meet: empty ones, and those that a filter can't produce.

The test puts the reference where a model's answer stood in its response, and filters and scores that
text: a model that answers correctly in that very format should be right. If it is not ("1" comes out
where the reference is "1,319"), no model can score on that item.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from metrics.build import build_metric
from metrics.errors import NightjarError
from metrics.types import IGNORED_TARGET
from scorers.base import FilterError
from scorers.letters import FIRST_TOKEN
from tasks.comparison.stopping import stopped_sentence
from tasks.messages.endings import ending
from tasks.reporting import numbers
from tasks.reporting.diagnostics.findings import (
    TEXT_LENGTH,
    Diagnostic,
    DiagnosticOptions,
    Occurrences,
    TallyCheck,
)
from tasks.reporting.spans import find_span, patterns
from tasks.reporting.view import LabelView, ResponseView, RunView, SampleView
from tasks.verdicts.labels import NO_TRUTH

if TYPE_CHECKING:
    from metrics.metric import Metric


REASONS: Final = 100  # distinct reasons kept a model: messages may hold ids, and then every one is distinct
NO_REASON: Final = "no reason was recorded"
NAMED: Final = 5  # distinct finish reasons that a finding names


class FailedRequests(TallyCheck[str]):
    """Requests that ended without an answer, with the most frequent reason; what a recording lacks was no
    request, and is told by ``absent_recordings``."""

    def __init__(self, options: DiagnosticOptions) -> None:
        super().__init__(options)
        self._reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def add(self, sample: SampleView) -> None:
        """Counts requests and failed ones by model."""
        tally, reasons = self.tallies[sample.model_name], self._reasons[sample.model_name]
        asked = [response for response in sample.responses if not response.absent]
        tally.total += len(asked)
        for response in asked:
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
                reason, times = self._reasons[model].most_common(1)[0]
                yield tally.finding(
                    "requests_failed",
                    "warning",
                    f"{model}: {tally.words('request')} failed and are unscored. Most frequent reason "
                    f"({numbers.count(times)}): {reason}",
                )


LOST: Final = "could not be scored"
UNTRUE: Final = "are to items without a ground truth"
UNSAID: Final = "have neither passed nor a score"


class UnscoredResponses(TallyCheck[tuple[str, str]]):
    """Answers that are there and have no score: a judge whose reply was unreadable, a metric or an evaluation
    method that gave up; and those that a method had nothing to compare with, or gave a label alone."""

    def add(self, sample: SampleView) -> None:
        """Counts unscored answers by pair and by method; failed requests, cut-off and refused answers have
        checks of their own."""
        for pair, scores in sample.scores.items():
            tally, reasons = self.tallies[pair, LOST], sample.reasons.get(pair, ())
            for index, score in enumerate(scores):
                if index < len(sample.responses) and not sample.responses[index].ok:
                    continue
                tally.total += 1
                if score is None:
                    reason = reasons[index] if index < len(reasons) else None
                    tally.hit(sample, reason or NO_REASON)
        answered = [
            label
            for label in sample.labels
            if label.sample_index < len(sample.responses) and sample.responses[label.sample_index].ok
        ]
        in_order = sorted(answered, key=lambda label: label.status != "ok")  # of several, one is enough
        for label in {(label.method, label.sample_index): label for label in in_order}.values():
            self._add_judged(sample, label)
        for label in answered:
            if label.status == "ok":
                tally = self.tallies[f"evaluation method {label.method}, label {label.label}", UNSAID]
                tally.total += 1
                if label.number is None:
                    tally.hit(sample, label.details)

    def _add_judged(self, sample: SampleView, label: LabelView) -> None:
        """Counts what a method made of one answer; what it could not judge at all is no failure of it."""
        name, error = f"evaluation method {label.method}", label.details.get("error")
        lost, untrue = self.tallies[name, LOST], self.tallies[name, UNTRUE]
        untrue.total += 1
        if error == NO_TRUTH:
            untrue.hit(sample, error)
            return
        lost.total += 1
        if label.status != "ok":
            lost.hit(sample, error or NO_REASON)

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a pair or method and way to have no score; a label that has a verdict nowhere is not
        meant to."""
        for (name, how), tally in self.tallies.items():
            if tally.seen and not (how == UNSAID and tally.seen == tally.total):
                yield tally.finding(
                    "unscored",
                    self.gravity(tally) if how == LOST else "warning",
                    f"{name}: {tally.words('answer')} {how}; they count neither as right nor as wrong.",
                )


class CutOffResponses(TallyCheck[tuple[str, str]]):
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
        for (model, prompt), tally in self.tallies.items():
            if tally.seen:
                every = tally.seen == tally.total
                yield tally.finding(
                    "all_cut_off" if every else "cut_off",
                    "error" if every else "warning",
                    f"{model}, prompt {prompt}: {tally.words('answer')} never began, because the tokens were "
                    "used up. Raise sample_params.max_tokens, or lower what the model may think.",
                )


class RefusedResponses(TallyCheck[tuple[str, str]]):
    """Answers that the model or its provider refused: scored as no answer."""

    def add(self, sample: SampleView) -> None:
        """Counts by model and prompt."""
        tally = self.tallies[sample.model_name, sample.prompt_template]
        for response in sample.responses:
            tally.total += 1
            if response.refused:
                tally.hit(sample, response.error or "")

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model and prompt."""
        for (model, prompt), tally in self.tallies.items():
            if tally.seen:
                yield tally.finding(
                    "refused",
                    "warning",
                    f"{model}, prompt {prompt}: {tally.words('answer')} were refused by the model or its "
                    "provider. The metric refusal counts them; others score them as no answer.",
                )


class TruncatedResponses(TallyCheck[str]):
    """Answers that ended because the token limit was reached (finish reason "length")."""

    def add(self, sample: SampleView) -> None:
        """Counts by model; where the first token was asked for, no answer was meant to go on."""
        if _asked_for_first_token(sample):
            return
        tally = self.tallies[sample.model_name]
        for response in sample.responses:
            if response.ok:
                tally.total += 1
                if response.at_limit:
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


class UnknownFinishes(TallyCheck[str]):
    """Answers with a finish reason that nobody here knows: it may say that they are no whole answers."""

    def __init__(self, options: DiagnosticOptions) -> None:
        super().__init__(options)
        self._reasons: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def add(self, sample: SampleView) -> None:
        """Counts by model, and keeps the reasons."""
        tally = self.tallies[sample.model_name]
        for response in sample.responses:
            if response.ok:
                tally.total += 1
                if response.finish_reason and ending(response.finish_reason) is None:
                    tally.hit(sample, f"{response.finish_reason}: {response.text or ''}")
                    self._keep(sample.model_name, [response.finish_reason])

    def merge(self, other: Any) -> None:
        """Adds tallies and reasons."""
        super().merge(other)
        for model, reasons in other._reasons.items():
            self._keep(model, reasons)

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model."""
        for model, tally in self.tallies.items():
            if tally.seen:
                named = ", ".join(reason[:TEXT_LENGTH] for reason in self._reasons[model])
                yield tally.finding(
                    "unknown_finish",
                    "warning",
                    f"{model}: {tally.words('response')} ended with a finish reason that is not known here "
                    f"({named}), and count as whole answers. Look whether they are.",
                )

    def _keep(self, model: str, reasons: Iterable[str]) -> None:
        for reason in reasons:
            if len(self._reasons[model]) < NAMED:
                self._reasons[model][reason] = None


class UnendedThoughts(TallyCheck[str]):
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
                if response.at_limit and not response.reasoning:
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


def absent_recordings(manifest: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Samples that a recording does not hold: the one rule of what they count as, and how many there are."""
    for recording in manifest.get("recordings", ()):
        if absent := recording.get("absent"):
            are, them = ("is", "it") if absent == 1 else ("are", "them")
            first = f"{recording['first_absent']} ({recording.get('absent_error')})"
            yield Diagnostic(
                "recording_absent",
                "warning",
                f"{recording['path']}: {numbers.plural(absent, 'sample')} that the run asks for "
                f"{are} not there, the first {first}. Metrics over evaluation results leave {them} out; to a "
                "metric_list a sample without an answer is a failed request, and unscored.",
                absent,
            )


def uncounted_replies(manifest: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Replies that did not say how many tokens they took: what the run says of tokens and cost lacks them."""
    config = manifest.get("config")
    limits = (config.get("limits") if isinstance(config, Mapping) else None) or {}
    held = [f"limits.{name}" for name in ("max_tokens", "max_cost") if limits.get(name) is not None]
    are = "was" if len(held) == 1 else "were"
    said = f"; {' and '.join(held)} {are} held by an estimate from their characters" if held else ""
    for name, counts in [*manifest.get("models", {}).items(), *manifest.get("judges", {}).items()]:
        if uncounted := counts.get("uncounted"):
            yield Diagnostic(
                "uncounted",
                "warning" if held else "note",
                f"{name}: {numbers.plural(uncounted, 'answer')} came without token counts, and the run's "
                f"tokens and cost lack them{said}.",
                uncounted,
            )


def stopped_early(manifest: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """That a gate ended the run: its numbers are over the items that were asked."""
    if stopped := manifest.get("stopped"):
        yield Diagnostic(
            "stopped",
            "note",
            f"{stopped_sentence(stopped)}. All numbers are over the items that were asked; a run that "
            "stopped is no baseline.",
            int(stopped["asked_items"]),
        )


def edited_files(manifest: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Files that users' code read before and after an edit: its numbers are by both."""
    for edited in manifest.get("edited", ()):
        yield Diagnostic(
            "file_edited",
            "warning",
            f"{edited['of']}: {edited['file']} was edited while the run was under way, and its numbers come "
            "from both versions. Run again, which computes only what differs.",
            1,
        )


class EmptyResponses(TallyCheck[str]):
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


STRICT: Final = "exact_match"  # of the built-in metrics the one that is all or nothing
TESTS: Final = 2_000  # items tested a filter: bounds the time that a run of a million items takes
PIECES: Final = 30  # words of a reference tried one by one


Extractor = Callable[[list[list[Any]], list[Mapping[str, Any]]], list[list[Any]]]
"""What a filter makes of responses."""


@dataclass(frozen=True)
class _Frame:
    """A response without the answer in it."""

    before: str
    after: str

    def around(self, reference: str) -> str:
        return f"{self.before}{reference}{self.after}"


@dataclass(frozen=True)
class Probe:
    """One filter, and the metrics that compare its predictions with references exactly."""

    apply: Extractor
    metrics: "Sequence[Metric]"

    def accepts(self, texts: Sequence[str], references: Sequence[Any]) -> bool:
        """Would one of these responses be right under one of the metrics? Raises whatever the filter
        raises.
        """
        filtered = self.apply([[text] for text in texts], [{}] * len(texts))
        predictions = [entry[0] if entry else None for entry in filtered]
        columns = [references] * len(texts)
        if not all(metric.bounded(columns, predictions) for metric in self.metrics):
            raise FilterError("a metric may never end here")
        return any(1 in metric.evaluate(columns, predictions).score for metric in self.metrics)

    def outcome(self, text: str) -> Any:
        """The prediction that the filter makes of the text; None: it finds nothing."""
        filtered = self.apply([[text]], [{}])[0]
        return filtered[0] if filtered else None


WITHOUT_REFERENCES: Final = (
    *("tests_passed", "reward", "win_rate"),
    *("tool_match", "tool_use_rate", "refusal", "json_schema_valid"),
)
"""Metrics, by the name that their signature begins with, that compare with no reference, or to which none is
one: no tool is to be called."""


class TargetsOutside(TallyCheck[str]):
    """Items with a right answer that is none of their choices; lm-evaluation-harness warns of them, too. An
    index of -1 is left alone, as there: so test sets are marked whose answers nobody publishes."""

    def add(self, sample: SampleView) -> None:
        """Counts items with choices by model."""
        if sample.choices:
            tally = self.tallies[sample.model_name]
            tally.total += 1
            if IGNORED_TARGET in sample.gold:
                target = sample.references[0] if sample.references else None
                tally.hit(sample, f"{target!r} is none of {sample.choices}"[:TEXT_LENGTH])

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a model."""
        for model, tally in self.tallies.items():
            if tally.seen:
                yield tally.finding(
                    "target_outside",
                    "warning",
                    f"The right answer of {tally.words('item')} of {model} is none of the choices: each "
                    "choice counts as wrong there. Compare the targets with the choices.",
                )


class EmptyReferences:
    """Samples that are scored although there is nothing to compare with; programs and rewards need none."""

    def __init__(self, view: RunView, options: DiagnosticOptions) -> None:
        columns = (view.results.column(name).to_pylist() for name in ("metric", "filter", "signature"))
        self._alone = {
            f"{metric},{name}"
            for metric, name, signature in zip(*columns, strict=True)
            if str(signature).partition("|")[0] in WITHOUT_REFERENCES
        }
        self._tally = Occurrences(options.examples)

    def add(self, sample: SampleView) -> None:
        """Counts samples with scores; log-likelihoods have choices instead of references."""
        if sample.choices or self._alone.issuperset(sample.scores):
            return
        self._tally.total += 1
        if not any(_is_something(reference) for reference in sample.references):
            self._tally.hit(sample, "the reference is empty")

    def merge(self, other: "EmptyReferences") -> None:
        """Adds the other's tally."""
        self._tally.merge(other._tally)

    def finish(self) -> Iterator[Diagnostic]:
        """One finding."""
        if self._tally.seen:
            yield self._tally.finding(
                "reference_missing",
                "warning",
                f"{self._tally.words('sample')} have an empty reference; look at target and ground_truth.",
            )


class UnreachableReferences:
    """Items on which even the reference itself would be wrong under a filter."""

    def __init__(self, view: RunView, options: DiagnosticOptions) -> None:
        config = view.manifest.get("config")
        self._options = options
        self._patterns = patterns(config if isinstance(config, dict) else {})
        self._probes = probes(view)
        self._frames: dict[str, _Frame] = {}
        self._tested: defaultdict[str, dict[str, str | None]] = defaultdict(dict)  # item → what went wrong
        self._samples: defaultdict[str, dict[str, SampleView]] = defaultdict(dict)

    def add(self, sample: SampleView) -> None:
        """Tests the sample's references, once an item and filter."""
        texts = [reference for reference in sample.references if _is_something(reference)]
        for name, probe in self._probes.items():
            predictions = sample.filters.get(name)
            if predictions is None or not texts or not isinstance(texts[0], str):
                continue
            tested = self._tested[name]
            if _right(sample, name):
                tested[sample.item_id] = None
            elif sample.item_id not in tested and len(tested) < TESTS:
                self._learn_frame(name, sample, predictions)
                if name in self._frames:
                    tested[sample.item_id] = self._test(name, probe, texts)
                    self._keep_example(name, sample)

    def merge(self, other: "UnreachableReferences") -> None:
        """Adds what was tested beside; what was right once can be reached."""
        for name, theirs in other._tested.items():
            tested = self._tested[name]
            for item_id, wrong in theirs.items():
                if wrong is None or (item_id not in tested and len(tested) < TESTS):
                    tested[item_id] = wrong
            self._frames.setdefault(name, other._frames[name]) if name in other._frames else None
            for item_id, sample in other._samples[name].items():
                self._samples[name].setdefault(item_id, sample)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the probes, which can't be taken to another process, and test no more there."""
        return {**self.__dict__, "_probes": {}}

    def finish(self) -> Iterator[Diagnostic]:
        """One finding for every filter that can't produce some references."""
        for name, tested in self._tested.items():
            tally = Occurrences(self._options.examples, total=len(tested))
            for item_id, wrong in tested.items():
                if wrong is not None:
                    tally.seen += 1
                    if item_id in self._samples[name] and len(tally.examples) < tally.limit:
                        tally.seen -= 1
                        tally.hit(self._samples[name][item_id], wrong)
            if tally.seen:
                yield tally.finding(
                    "reference_unreachable",
                    "warning",
                    f"{name} can't produce the reference of {tally.words('item')} tested: put in place of "
                    "a model's answer, it comes out as something else, so that no answer can be right. "
                    "Change target or filter.",
                )

    def _test(self, name: str, probe: Probe, references: Sequence[str]) -> str | None:
        """What comes out instead of the reference; None: it can be produced, or that can't be known."""
        frame = self._frames[name]
        try:
            for reference in references:
                answers = [frame.around(piece) for piece in (reference, *_pieces(reference))]
                if probe.accepts([reference, *answers], references):
                    return None
            outcome = probe.outcome(frame.around(references[0]))
        except Exception:  # a filter may need the item, which is not available here: nothing is known then
            return None
        shown = "nothing" if outcome is None else f"“{outcome}”"
        return f"“{references[0]}” comes out as {shown}"

    def _learn_frame(self, name: str, sample: SampleView, predictions: Sequence[Any]) -> None:
        """Takes the frame of the first response in which the filter's find stands."""
        if name in self._frames:
            return
        for prediction, response in zip(predictions, sample.responses, strict=False):
            span = find_span(response.text or "", prediction, self._patterns.get(name))
            if span and response.text:
                self._frames[name] = _Frame(response.text[: span[0]], response.text[span[1] :])
                return

    def _keep_example(self, name: str, sample: SampleView) -> None:
        examples = self._samples[name]
        if self._tested[name][sample.item_id] is not None and len(examples) < 10 * self._options.examples:
            examples[sample.item_id] = sample


def probes(view: RunView) -> dict[str, Probe]:
    """Filter name → probe, for filters that take something from a text and are scored by exact match.

    Filters of the user's own code are left out.
    """
    config = view.manifest.get("config")
    if not isinstance(config, Mapping) or config.get("output_type", "generate_until") != "generate_until":
        return {}
    found = {}
    for entry in config.get("filter_list") or ():
        steps, name = entry.get("filter"), str(entry.get("name"))
        metrics = _strict_metrics(entry.get("metric_list") or config.get("metric_list") or [STRICT])
        apply = _pipeline(entry)
        if steps and metrics and apply is not None:
            found[name] = Probe(apply, metrics)
    return found


def _pipeline(entry: Mapping[str, Any]) -> Extractor | None:
    from scorers.config import FilterConfig
    from scorers.filters.pipeline import FilterPipeline

    known = {"name": entry.get("name"), "filter": entry.get("filter")}
    try:
        pipeline = FilterPipeline.build(FilterConfig.model_validate(known), _unresolved)
    except ValueError:  # a function of the user's own, or a step of another version
        return None

    def apply(texts: list[list[Any]], docs: list[Mapping[str, Any]]) -> list[list[Any]]:
        if not all(step.bounded(item) for step in pipeline.steps for item in texts):
            raise FilterError(f"filter {pipeline.name!r} may never end here")
        return pipeline.apply(texts, docs)

    return apply


def _strict_metrics(entries: Sequence[Any]) -> "list[Metric]":
    from metrics.config import MetricConfig

    found = []
    for entry in entries:
        try:
            config = MetricConfig.model_validate(entry)
            if config.metric == STRICT and config.function is None:
                found.append(build_metric(config, _unresolved))
        except ValueError:
            continue
    return found


def _unresolved(reference: str) -> Any:
    raise NightjarError(f"{reference} is not looked up here")


def _pieces(reference: str) -> list[str]:
    """The last words of a reference: of a worked solution it is one of them that metrics compare."""
    words = reference.split()
    return list(dict.fromkeys(reversed(words[-PIECES:]))) if len(words) > 1 else []


def _right(sample: SampleView, name: str) -> bool:
    """Did a response of the sample score 1 under this filter?"""
    return any(1 in scores for pair, scores in sample.scores.items() if pair.endswith(f",{name}"))


def _is_something(reference: Any) -> bool:
    return reference is not None and (not isinstance(reference, str) or bool(reference.strip()))
