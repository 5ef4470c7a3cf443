"""Counting what a check looks for, with a few samples that show it."""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, Final

from tasks.reporting import numbers
from tasks.reporting.diagnostics import Diagnostic, DiagnosticOptions, Example, Severity
from tasks.reporting.view import SampleView

TEXT_LENGTH: Final = 300
INVALID: Final = "[invalid]"  # what harness filters put where they found nothing


def example(sample: SampleView, text: Any) -> Example:
    """The sample as an example, with the end of a long text, where answers stand."""
    text = text if isinstance(text, str) else repr(text)
    if len(text) > TEXT_LENGTH:
        text = f"…{text[-TEXT_LENGTH:]}"
    return Example(sample.item_id, sample.model_name, sample.prompt_template, text)


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
            found = example(sample, text)
            if not self.examples or self.examples[-1].item_id != found.item_id:
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


class TallyCheck:
    """Base of checks that keep a tally for each model, pair or whatever they tell apart."""

    def __init__(self, options: DiagnosticOptions) -> None:
        self.options = options
        self.tallies: defaultdict[Hashable, Occurrences] = defaultdict(lambda: Occurrences(options.examples))

    def gravity(self, tally: Occurrences) -> Severity:
        """An error once it is the rule and not the exception."""
        return "error" if tally.share > self.options.grave else "warning"
