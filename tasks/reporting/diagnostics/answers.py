"""Checks on predictions and scores: empty filters, answers that never vary, repeats that disagree; and on
places: whether choices that were asked for by their letters are preferred for where they stand,
whatever stands there, and how such answers were read; whether an arena's judge looks at the place of an
answer, and which models it can't rate.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from statistics import median
from string import ascii_uppercase
from typing import Any, Final

import numpy as np

from metrics.statistics.significance import position_bias
from scorers.letters import FIRST_TOKEN
from tasks.reporting import numbers
from tasks.reporting.diagnostics.findings import (
    INVALID,
    TEXT_LENGTH,
    Diagnostic,
    DiagnosticOptions,
    Occurrences,
    TallyCheck,
)
from tasks.reporting.view import Place, ResultRow, RunView, SampleView, result_rows


class EmptyFilters(TallyCheck[tuple[str, str, bool]]):
    """Filters that found nothing in responses that are there; answers that name no choice, where choices were
    asked for by their letters. What could not be read as an answer is unscored, and told as such."""

    def add(self, sample: SampleView) -> None:
        """Counts by filter and model."""
        for name, predictions in sample.filters.items():
            readings = [
                details
                for pair, details in sample.details.items()
                if pair.rpartition(",")[2] == name and any(map(_is_reading, details))
            ]
            tally = self.tallies[name, sample.model_name, bool(readings)]
            for index, prediction in enumerate(predictions):
                if any("error" in (own[index] or ()) for own in readings if index < len(own)):
                    continue
                response = sample.responses[index] if index < len(sample.responses) else None
                if response is None or response.ok:
                    tally.total += 1
                    if prediction is None or prediction == INVALID:
                        tally.hit(sample, (response.text if response else None) or "(empty)")

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a filter and model."""
        for (name, model, lettered), tally in self.tallies.items():
            if tally.share > self.options.filter_empty:
                found, advice = "nothing", "Look at the pattern, or ask for the format in the prompt."
                if lettered:
                    found, advice = "no choice", "Ask for the letter alone: choices_by.template."
                said = f"{name} found {found} in {tally.words('response')} of {model}. {advice}"
                yield tally.finding("filter_empty", "warning", said)


def _is_reading(details: Mapping[str, Any] | None) -> bool:
    """Whether a sample's details say how a letter was read."""
    return details is not None and "rule" in details and "order" in details


class SameAnswers:
    """Models that answer the same whatever is asked, although the references differ."""

    def __init__(self, options: DiagnosticOptions) -> None:
        self._options = options
        self._answers: defaultdict[tuple[str, str], Frequent] = defaultdict(Frequent)
        self._references: defaultdict[str, Frequent] = defaultdict(Frequent)
        self._examples: defaultdict[tuple[str, str], Occurrences] = defaultdict(
            partial(Occurrences, options.examples)
        )

    def add(self, sample: SampleView) -> None:
        """Counts predictions and references."""
        if sample.references:
            self._references[sample.model_name].add(str(sample.references[0])[:TEXT_LENGTH])
        for name, predictions in sample.filters.items():
            for prediction, response in zip_longest(predictions, sample.responses[: len(predictions)]):
                if prediction not in (None, INVALID):
                    # An answer that only calls tools has no text.
                    said = str(prediction) or "; ".join(response.calls if response else ())
                    self._answers[name, sample.model_name].add(said[:TEXT_LENGTH])
                    self._examples[name, sample.model_name].hit(sample, said)

    def merge(self, other: "SameAnswers") -> None:
        """Adds counts and examples."""
        for model, references in other._references.items():
            self._references[model].merge(references)
        for key, answers in other._answers.items():
            self._answers[key].merge(answers)
            self._examples[key].merge(other._examples[key])

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a filter and model."""
        for (name, model), answers in self._answers.items():
            answer, times = answers.top()
            expected = self._references[model].top_share()
            if answers.total < self._options.min_samples or expected >= self._options.same_answer:
                continue
            if times / answers.total >= self._options.same_answer:
                least = "at least " if times < answers.total else ""
                shown = answer if len(answer) <= 60 else f"{answer[:59]}…"
                yield Diagnostic(
                    "same_answer",
                    "warning",
                    f"{name}: {model} answers “{shown}” in {least}{numbers.share(times, answers.total)} of "
                    f"{numbers.plural(answers.total, 'prediction')}, whatever is asked. Look at prompt and "
                    "filter.",
                    times,
                    tuple(self._examples[name, model].examples),
                )


class DisagreeingRepeats(TallyCheck[tuple[str, str]]):
    """Items that are right in one repeat and wrong in another: how much of a score is luck.

    Of scores other than 0 and 1 nothing is said: those of two texts are seldom equal.
    """

    def __init__(self, options: DiagnosticOptions) -> None:
        super().__init__(options)
        self._graded: set[str] = set()

    def add(self, sample: SampleView) -> None:
        """Counts items with several scored repeats by pair and model."""
        for pair, scores in sample.scores.items():
            if pair in self._graded:
                continue
            scored = _numbers(scores)
            if not all(score in (0.0, 1.0) for score in scored):
                self._graded.add(pair)
            elif len(scored) > 1:
                tally = self.tallies[pair, sample.model_name]
                tally.total += 1
                if min(scored) != max(scored):
                    tally.hit(sample, f"scores {', '.join(f'{score:g}' for score in scored)}")

    def merge(self, other: Any) -> None:
        """Adds tallies, and the pairs that were seen to be graded."""
        super().merge(other)
        self._graded |= other._graded

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a pair and model."""
        for (pair, model), tally in self.tallies.items():
            if pair not in self._graded and tally.share > self.options.repeats_disagree:
                yield tally.finding(
                    "repeats_disagree",
                    "note",
                    f"{pair}: the repeats of {model} disagree on {tally.words('item')}; a single sample of "
                    "these items is a matter of luck.",
                )


@dataclass
class _Range:
    """Smallest and largest score, and of how many items."""

    low: float = math.inf
    high: float = -math.inf
    n: int = 0


class ConstantScores:
    """Pairs under which every item of a model has the same score: they distinguish nothing."""

    def __init__(self, options: DiagnosticOptions) -> None:
        self._options = options
        self._ranges: defaultdict[tuple[str, str, str], _Range] = defaultdict(_Range)

    def add(self, sample: SampleView) -> None:
        """Widens the range of the sample's pairs."""
        for pair, scores in sample.scores.items():
            scored = _numbers(scores)
            if scored:
                seen = self._ranges[pair, sample.model_name, sample.prompt_template]
                seen.n += 1
                for score in scored:
                    if score < seen.low:
                        seen.low = score
                    if score > seen.high:
                        seen.high = score

    def merge(self, other: "ConstantScores") -> None:
        """Widens the ranges by the other's."""
        for key, theirs in other._ranges.items():
            seen = self._ranges[key]
            seen.low, seen.high = min(seen.low, theirs.low), max(seen.high, theirs.high)
            seen.n += theirs.n

    def finish(self) -> Iterator[Diagnostic]:
        """One finding a pair, model and prompt."""
        for (pair, model, prompt), seen in self._ranges.items():
            if seen.n >= self._options.min_samples and seen.low == seen.high:
                yield Diagnostic(
                    "zero_variance",
                    "warning",
                    f"{pair}: all {numbers.plural(seen.n, 'item')} of {model} with prompt {prompt} score "
                    f"{seen.low:g}. The benchmark is too hard or too easy, or its scoring is broken.",
                    seen.n,
                )


def _numbers(scores: Sequence[float | None]) -> list[float]:
    """The scores of scored repeats; a metric without a number for one sample has NaN there."""
    return [score for score in scores if score is not None and not math.isnan(score)]


class Frequent:
    """Counts texts with at most ``size`` counters.

    A text's count is a lower bound that errs by at most ``total / size``, so that with 200 counters a text
    that makes up half of the stream is found and its share is right to half a per cent.
    """

    def __init__(self, size: int = 200) -> None:
        self.size = size
        self.total = 0
        self._counts: Counter[str] = Counter()

    def add(self, text: str) -> None:
        """Counts one text."""
        self.total += 1
        if text in self._counts or len(self._counts) < self.size:
            self._counts[text] += 1
            return
        self._counts = Counter({text: times - 1 for text, times in self._counts.items() if times > 1})

    def merge(self, other: "Frequent") -> None:
        """Adds another stream's counts; the bound on the error is as before, over both streams."""
        self.total += other.total
        self._counts.update(other._counts)
        if len(self._counts) > self.size:
            over = sorted(self._counts.values(), reverse=True)[self.size]
            self._counts = Counter(
                {text: times - over for text, times in self._counts.items() if times > over}
            )

    def top(self) -> tuple[str, int]:
        """The most frequent text and at least how often it came; ("", 0) for an empty stream."""
        return self._counts.most_common(1)[0] if self._counts else ("", 0)

    def top_share(self) -> float:
        """At least what share of the stream the most frequent text makes up."""
        return self.top()[1] / self.total if self.total else 0.0


def format_gaps(view: RunView, options: DiagnosticOptions) -> Iterator[Diagnostic]:
    """Exact matches that a lenient filter sees and a strict one does not: right answers in another format.

    Filters are compared that keep the same samples: a vote over samples is no other format.
    """
    groups: defaultdict[tuple[str | int | Place, ...], list[tuple[float, ResultRow]]] = defaultdict(list)
    selections = _selections(view)
    for row in result_rows(view.results):
        if row.value is not None and row.metric == "exact_match":
            same = row.benchmark, row.metric_key, row.place, row.label or ""
            groups[*same, row.n_samples, selections.get(row.filter, "")].append((row.value, row))
    for group in groups.values():
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


def _selections(view: RunView) -> dict[str, str]:
    """Filter → its steps that choose among an item's samples, as text; of a user's step nobody knows."""
    from scorers.config import FilterConfig
    from scorers.filters import FILTERS

    found = {}
    config = view.manifest.get("config")
    for entry in (config.get("filter_list") or ()) if isinstance(config, Mapping) else ():
        try:
            read = FilterConfig.model_validate({"name": entry["name"], "filter": entry.get("filter") or ()})
        except (LookupError, ValueError):  # a step of another version
            continue
        steps = [step for step in read.filter if step.function in FILTERS]
        chosen = [step for step in steps if FILTERS[step.function].keeps in ("first", "one")]
        found[read.name] = repr([(step.function, step.kwargs) for step in chosen])
    return found


LEVEL: Final = 0.01
"""P-value of a preference that is told."""
LEAST_EXCESS: Final = 0.03
"""A place is chosen more often than is due by at least this share, or nothing is said: large runs find
anything."""


@dataclass
class Asked:
    """What one model, prompt and pair was read as, sample by sample."""

    rules: Counter[str] = field(default_factory=Counter)
    coverage: list[float] = field(default_factory=list)
    below: int = 0
    chosen: list[int] = field(default_factory=list)
    right: list[Sequence[int]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    items: list[int] = field(default_factory=list)
    n_items: int = 0

    def add(self, reading: Mapping[str, Any]) -> None:
        """Takes one sample's details into account."""
        self.rules[reading["rule"]] += 1
        if "coverage" in reading:
            self.coverage.append(reading["coverage"])
        self.below += "error" in reading
        if "position" in reading and reading["right"]:
            self.chosen.append(reading["position"])
            self.right.append(reading["right"])
            self.counts.append(len(reading["order"]))
            self.items.append(self.n_items)

    def merge(self, other: "Asked") -> None:
        """Adds the samples of other items."""
        self.rules.update(other.rules)
        self.coverage += other.coverage
        self.below += other.below
        self.chosen += other.chosen
        self.right += other.right
        self.counts += other.counts
        self.items += [self.n_items + item for item in other.items]
        self.n_items += other.n_items

    @property
    def read(self) -> str:
        """How the answers were read, in words: rule by rule, or the first token's coverage."""
        total = self.rules.total()
        if set(self.rules) == {FIRST_TOKEN}:
            if not self.coverage:
                return "no first token came with its alternatives"
            least, middle = min(self.coverage), median(self.coverage)
            below = numbers.share(self.below, total)
            return (
                f"the letters cover {100 * middle:.0f} % of the first token in the median (at least "
                f"{100 * least:.0f} %); {below} of {numbers.plural(total, 'sample')} are unscored"
            )
        shares = (f"{rule} {numbers.share(count, total)}" for rule, count in self.rules.most_common())
        return f"{numbers.plural(total, 'answer')} were read by the rules {', '.join(shares)}"


class LetterChoices:
    """How letters were read, a note each; and a preference of places, by a test that minds repeats."""

    def __init__(self, options: DiagnosticOptions) -> None:
        self._asked: defaultdict[tuple[str, str, str], Asked] = defaultdict(Asked)

    def add(self, sample: SampleView) -> None:
        """Takes the details of every pair that has readings."""
        for pair, details in sample.details.items():
            readings = [one for one in details if one is not None and _is_reading(one)]
            if not readings:
                continue
            asked = self._asked[sample.model_name, sample.prompt_template, pair]
            asked.n_items += 1
            for reading in readings:
                asked.add(reading)

    def merge(self, other: "LetterChoices") -> None:
        """Adds what was asked of the items that come next."""
        for key, asked in other._asked.items():
            self._asked[key].merge(asked)

    def finish(self) -> Iterator[Diagnostic]:
        """A note on the reading, and a warning where a place is preferred, for each model and prompt."""
        for (model, prompt, pair), asked in self._asked.items():
            who = f"{model}, prompt {prompt}, {pair}"
            yield Diagnostic("letters_read", "note", f"{who}: {asked.read}.", asked.rules.total())
            yield from _bias(who, asked)


def _bias(who: str, asked: Asked) -> Iterator[Diagnostic]:
    width = max(asked.counts, default=0)
    right = np.zeros((len(asked.chosen), width), dtype=np.bool_)
    for row, places in enumerate(asked.right):
        right[row, list(places)] = True
    columns = (np.array(column, dtype=np.int64) for column in (asked.chosen, asked.counts, asked.items))
    chosen, counts, items = columns
    found = position_bias(chosen, right, counts, items)
    if found is None or found.p_value >= LEVEL:
        return
    place = found.favourite
    excess = float(found.chosen[place] - found.due[place])
    if excess < LEAST_EXCESS:
        return
    yield Diagnostic(
        "position_bias",
        "warning",
        f"{who}: {ascii_uppercase[place]} was chosen in {100 * found.chosen[place]:.0f} % of "
        f"{numbers.plural(len(asked.chosen), 'answer')}, where {100 * found.due[place]:.0f} % were expected "
        f"(χ² = {found.statistic:.1f}, {found.degrees} degrees of freedom, p = {found.p_value:.2g}): the "
        "model prefers the place, whatever the choice. Ask in several orders: sample_params.num_samples.",
        len(asked.chosen),
    )


SURE: Final = 0.01
"""A place is said to matter where chance alone gives a share as far from a half more seldom than that."""


def arena_findings(manifest: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """What the ratings of the run, one document a prompt and filter, say against themselves."""
    for rated in manifest.get("ratings") or ():
        where = f"prompt {rated['prompt_template']}, filter {rated['filter']}"
        for judge, found in rated["judges"].items():
            if found["p_value"] is not None and found["p_value"] < SURE:
                yield _position(where, judge, found)
        lost = [row for row in rated["models"] if row["strength"] is None]
        if lost:
            said = "; ".join(f"{row['model']}: {row['note']}" for row in lost)
            yield Diagnostic("unrated", "warning", f"{where}: no strength for {said}.", len(lost))


def _position(where: str, judge: str, found: Mapping[str, Any]) -> Diagnostic:
    share, said = found["first"], numbers.p_said(found["p_value"])
    return Diagnostic(
        "judge_position",
        "warning",
        f"{where}: judge {judge} looks at the place: the answer shown first won {100 * share:.0f} % of "
        f"{numbers.plural(found['verdicts'], 'verdict')}, ties counting half ({said}, signs of items "
        "flipped at random). With both_orders a win rate is the mean of both places, and so "
        "nearer to a half than with a judge who looks at the answers.",
        found["verdicts"],
    )
