"""What a finding is, from which share on something is one, and how checks count towards it.

Checks build on ``Occurrences`` and ``TallyCheck``; the report, the terminal and the manifest show
``Diagnostic``.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import orjson

from tasks.messages.chat import chat_messages, content_text
from tasks.reporting import numbers
from tasks.reporting.view import SampleView

Severity = Literal["error", "warning", "note"]
GRAVEST_FIRST: Final = ("error", "warning", "note")
TEXT_LENGTH: Final = 300
QUESTION_LENGTH: Final = 160
INVALID: Final = "[invalid]"  # what harness filters put where they found nothing


@dataclass(frozen=True)
class Example:
    """A sample that shows the finding: which one, and the piece of text to look at.

    ``place`` is where its item stands, as "questions.jsonl:7" (empty: not in a file, or not known),
    ``question`` the end of what was asked, ``doc_id`` its position in the dataset.
    """

    item_id: str
    model_name: str
    prompt_template: str
    text: str
    question: str = ""
    doc_id: int | None = None
    place: str = ""

    @property
    def name(self) -> str:
        """How people find the item: its place, else its id."""
        return self.place or self.item_id


@dataclass(frozen=True)
class Diagnostic:
    """One finding.

    ``kind`` is a stable identifier ("filter_empty", "truncated" …), ``message`` a sentence or two: what was
    seen, in how many of how many, and what to do. "error": there is nothing that numbers could rest on (a
    judge that can't be read, answers that were all cut off), and the run has failed; "warning": look before
    you quote the numbers; "note": good to know. ``count`` says how often it was seen.
    """

    kind: str
    severity: Severity
    message: str
    count: int
    examples: tuple[Example, ...] = ()


SHOWN_OF_A_KIND: Final = 2
"""Of findings that say the same of one model after another, so many are shown at once."""


def grouped(findings: Iterable[Diagnostic]) -> list[list[Diagnostic]]:
    """The findings of one severity and kind together: the gravest first, then the most frequent."""
    groups: dict[tuple[Severity, str], list[Diagnostic]] = {}
    for finding in sorted(
        findings, key=lambda one: (GRAVEST_FIRST.index(one.severity), -one.count, one.kind)
    ):
        groups.setdefault((finding.severity, finding.kind), []).append(finding)
    return list(groups.values())


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
    """Looks at samples one after another and says at the end what it found.

    It can be taken to another process and back.
    """

    def add(self, sample: SampleView) -> None:
        """Takes one sample into account."""
        ...

    def merge(self, other: Any) -> None:
        """Takes into account what a check of the same kind saw of the samples that come next."""
        ...

    def finish(self) -> Iterator[Diagnostic]:
        """The findings, once all samples were added."""
        ...


@dataclass
class Occurrences:
    """How often something was looked at and how often it was seen, with the first few examples."""

    limit: int
    total: int = 0
    seen: int = 0
    examples: list[Example] = field(default_factory=list)

    def hit(self, sample: SampleView, text: Any) -> None:
        """Counts one more; the sample becomes an example while there are few, once for all its repeats."""
        self.seen += 1
        if len(self.examples) < self.limit:
            self._keep(example(sample, text))

    def merge(self, other: "Occurrences") -> None:
        """Adds what was counted of the samples that come next."""
        self.total, self.seen = self.total + other.total, self.seen + other.seen
        for found in other.examples:
            self._keep(found)

    def _keep(self, found: Example) -> None:
        shown = bool(self.examples) and self.examples[-1].item_id == found.item_id
        if len(self.examples) < self.limit and not shown:
            self.examples.append(found)

    @property
    def share(self) -> float:
        """Seen of all, from 0 to 1; 0 if nothing was looked at."""
        return self.seen / self.total if self.total else 0.0

    def words(self, noun: str) -> str:
        """``"312 of 1,319 responses (24 %)"``."""
        share = numbers.share(self.seen, self.total)
        return f"{numbers.count(self.seen)} of {numbers.plural(self.total, noun)} ({share})"

    def finding(self, kind: str, severity: Severity, message: str) -> Diagnostic:
        """The tally as a finding."""
        return Diagnostic(kind, severity, message, self.seen, tuple(self.examples))


K = TypeVar("K", bound=Hashable)


class TallyCheck(Generic[K]):
    """Base of checks that keep a tally for each model, pair or whatever they tell apart."""

    def __init__(self, options: DiagnosticOptions) -> None:
        self.options = options
        self.tallies: defaultdict[K, Occurrences] = defaultdict(partial(Occurrences, options.examples))

    def merge(self, other: Any) -> None:
        """Adds the tallies of the samples that come next."""
        for key, tally in other.tallies.items():
            self.tallies[key].merge(tally)

    def gravity(self, tally: Occurrences) -> Severity:
        """Of what leaves samples without a score: an error once it is the rule and not the exception."""
        return "error" if tally.share > self.options.grave else "warning"


def example(sample: SampleView, text: Any) -> Example:
    """The sample as an example, with the end of a long text, where answers stand."""
    text = text if isinstance(text, str) else repr(text)
    if len(text) > TEXT_LENGTH:
        text = f"…{text[-TEXT_LENGTH:]}"
    return Example(
        sample.item_id, sample.model_name, sample.prompt_template, text, question_of(sample), sample.doc_id
    )


def question_of(sample: SampleView) -> str:
    """The end of what was asked, on one line: the question stands behind instructions and examples."""
    asked = sample.prompt
    if sample.chat:
        try:
            asked = content_text(chat_messages(asked)[-1]["content"])
        except (orjson.JSONDecodeError, LookupError, TypeError):
            asked = sample.prompt
    line = " ".join(asked.split())
    return line if len(line) <= QUESTION_LENGTH else f"…{line[1 - QUESTION_LENGTH :]}"
