"""Checks on places: whether choices that were asked for by their letters are preferred for where they
stand, whatever stands there, and how such answers were read; whether an arena's judge looks at the
place of an answer, and which models it can't rate.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from string import ascii_uppercase
from typing import Any, Final

import numpy as np

from metrics.statistics.positions import position_bias
from scorers.letters import FIRST_TOKEN
from tasks.reporting import numbers
from tasks.reporting.diagnostics.findings import Diagnostic, DiagnosticOptions
from tasks.reporting.view import SampleView

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
            readings = [one for one in details if one is not None and "rule" in one and "order" in one]
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
        f"{numbers.plural(len(asked.chosen), 'answer')}, where {100 * found.due[place]:.0f} % were due (χ² = "
        f"{found.statistic:.1f}, {found.degrees} degrees of freedom, p = {found.p_value:.2g}): the model "
        "prefers the place, whatever stands there. Ask in several orders: sample_params.num_samples.",
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
    share, chance = found["first"], numbers.p_value(found["p_value"])
    said = f"p {chance}" if chance.startswith("<") else f"p = {chance}"
    return Diagnostic(
        "judge_position",
        "warning",
        f"{where}: judge {judge} looks at the place: the answer shown first won {100 * share:.0f} % of "
        f"{numbers.plural(found['verdicts'], 'verdict')}, ties counting half ({said}, signs of items "
        "flipped at random). With both_orders a win rate is the mean of both places, and so "
        "nearer to a half than with a judge who looks at the answers.",
        found["verdicts"],
    )
