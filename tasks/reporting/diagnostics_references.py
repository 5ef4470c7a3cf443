"""References that the scoring could never meet: empty ones, and those that a filter can't produce.

The test puts the reference where the model's answer stood in its own response and runs the filter again: a
model that answers correctly in that very format should get the reference back. If something else comes out
("1319" for a reference of "1,319"), no model can score on that item.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tasks.reporting.diagnostics import Diagnostic, DiagnosticOptions, Severity
from tasks.reporting.diagnostics_tally import Tally
from tasks.reporting.report_highlight import find_span, patterns
from tasks.reporting.view import RunView, SampleView

Extractor = Callable[[str], Any]
UNKNOWN: Final = object()
TESTS: Final = 3_000  # references tested a filter: bounds the time of a run with a million items


@dataclass(frozen=True)
class _Frame:
    """A response without the answer in it."""

    before: str
    after: str

    def around(self, reference: str) -> str:
        return f"{self.before}{reference}{self.after}"


class UnreachableReferences:
    """Empty references, and references that come out of a filter as something else."""

    def __init__(self, view: RunView, options: DiagnosticOptions) -> None:
        self._options = options
        self._patterns = patterns(_config(view))
        self._extractors = {**_pattern_extractors(_config(view)), **_applied(view.extractors)}
        self._frames: dict[str, _Frame] = {}
        self._tested: defaultdict[str, set[str]] = defaultdict(set)
        self._lenient: set[str] = (
            set()
        )  # filters whose metric takes a prediction that differs from the reference
        self._empty = Tally(options.examples)
        self._exactly: defaultdict[str, Tally] = defaultdict(lambda: Tally(options.examples))
        self._loosely: defaultdict[str, Tally] = defaultdict(lambda: Tally(options.examples))

    def add(self, sample: SampleView) -> None:
        """Tests the sample's references once for every filter with a known pattern."""
        texts = [reference for reference in sample.references if isinstance(reference, str)]
        if not sample.choices and sample.scores:
            self._empty.total += 1
            if not sample.references or (
                len(texts) == len(sample.references) and not any(map(str.strip, texts))
            ):
                self._empty.hit(sample, "the reference is empty")
        if texts:
            for name, extract in self._extractors.items():
                if name in sample.filters:
                    self._test(name, extract, sample, texts)

    def finish(self) -> Iterator[Diagnostic]:
        """One finding for empty references, one for every filter that can't produce some."""
        if self._empty.seen:
            yield self._empty.finding(
                "reference_missing",
                self._gravity(self._empty),
                f"{self._empty.words('sample')} have an empty reference; look at target and ground_truth.",
            )
        for name in self._exactly:
            tally = (self._loosely if name in self._lenient else self._exactly)[name]
            if tally.seen:
                yield tally.finding(
                    "reference_unreachable",
                    self._gravity(tally),
                    f"{name} can't produce the reference of {tally.words('item')} tested: put in place of "
                    "a model's answer, it comes out as something else, so that no answer can be right. "
                    "Change target or filter.",
                )

    def _gravity(self, tally: Tally) -> Severity:
        return "error" if tally.share > self._options.grave else "warning"

    def _test(self, name: str, extract: Extractor, sample: SampleView, references: Sequence[str]) -> None:
        self._learn(name, sample)
        tested, frame = self._tested[name], self._frames.get(name)
        key = f"{sample.item_id}\0{references[0]}"
        if frame is None or key in tested or len(tested) >= TESTS:
            return
        tested.add(key)
        outcomes = [(reference, extract(frame.around(reference))) for reference in references]
        if any(outcome is UNKNOWN for _, outcome in outcomes):
            return
        for tallies, same in ((self._exactly, _same), (self._loosely, _alike)):
            tallies[name].total += 1
            if not any(same(reference, outcome) for reference, outcome in outcomes):
                reference, outcome = outcomes[0]
                shown = "nothing" if outcome is None else f"“{outcome}”"
                tallies[name].hit(sample, f"“{reference}” comes out as {shown}")

    def _learn(self, name: str, sample: SampleView) -> None:
        """Takes the frame of a response whose answer was found, and whether the metric is lenient."""
        predictions = sample.filters[name]
        for prediction, response in zip(predictions, sample.responses, strict=False):
            if name not in self._frames and response.text and isinstance(prediction, str):
                span = find_span(response.text, prediction, self._patterns.get(name))
                if span:
                    self._frames[name] = _Frame(response.text[: span[0]], response.text[span[1] :])
        right = (
            prediction
            for pair, scores in sample.scores.items()
            if pair.endswith(f",{name}")
            for prediction, score in zip(predictions, scores, strict=False)
            if score == 1
        )
        if any(not any(_same(reference, found) for reference in sample.references) for found in right):
            self._lenient.add(name)


def _config(view: RunView) -> Mapping[str, Any]:
    config = view.manifest.get("config")
    return config if isinstance(config, Mapping) else {}


def _pattern_extractors(config: Mapping[str, Any]) -> dict[str, Extractor]:
    """Filters that are one regular expression, perhaps with take_first: what they do is known from the
    config."""
    simple = {
        str(entry.get("name"))
        for entry in config.get("filter_list") or ()
        if {step.get("function") for step in entry.get("filter") or ()} <= {"regex", "take_first"}
    }
    found: dict[str, Extractor] = {}
    for name, pattern in patterns(config).items():
        if name in simple:
            found[name] = lambda text, pattern=pattern: (  # type: ignore[misc]
                text[slice(*span)] if (span := pattern.span(text)) else None
            )
    return found


def _applied(extractors: Mapping[str, Any]) -> dict[str, Extractor]:
    """Filter pipelines, which work on lists of lists, as functions of one text; UNKNOWN where the pipeline
    raises."""

    def one(apply: Any) -> Extractor:
        def extract(text: str) -> Any:
            try:
                kept = apply([[text]], [{}])[0]
            except Exception:  # a user's filter may need the item, which is not at hand here
                return UNKNOWN
            return kept[0] if kept else None

        return extract

    return {name: one(apply) for name, apply in extractors.items()}


def _same(reference: Any, outcome: Any) -> bool:
    return str(reference).strip() == str(outcome).strip()


def _alike(reference: Any, outcome: Any) -> bool:
    def bare(value: Any) -> str:
        return "".join(filter(str.isalnum, str(value))).casefold()

    return bare(reference) == bare(outcome)
