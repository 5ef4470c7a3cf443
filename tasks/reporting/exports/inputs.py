"""What the exports are made of: the run, and the streams of each model × prompt template × partition.

Publish makes these records from its artifacts; every export takes them and knows no store.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.rows.parts import BatchSource, Origin


@dataclass(frozen=True)
class RunInfo:
    """What results.json says about a run beside its numbers.

    ``models`` and ``prompts`` are the names of all of them; ``n_items`` counts the dataset's items, of which
    ``--limit`` may have left ``n_used``; ``date`` is the start in seconds since 1970, ``config`` the run's
    config and ``versions`` those of the program and its libraries; ``requests`` counts what was asked and
    what was reused. ``version`` is the benchmark's own.
    """

    run_id: str
    benchmark: str
    models: Sequence[str]
    prompts: Sequence[str]
    date: float
    n_items: int
    n_used: int
    config: Mapping[str, Any]
    num_fewshot: int = 0
    alias: str | None = None
    version: str | int | float = 1
    output_type: str = "generate_until"
    versions: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    git_revision: str | None = None

    @property
    def keeps_apart(self) -> bool:
        """Whether results of several models or prompts stand beside each other."""
        return len(self.models) > 1 or len(self.prompts) > 1


@dataclass(frozen=True)
class AnswerPart:
    """The answers to one partition: sources of REQUESTS and RESPONSES batches."""

    origin: Origin
    requests: BatchSource
    responses: BatchSource


@dataclass(frozen=True)
class SamplePart:
    """One filter's view of one partition: also its PREDICTIONS, and the STATISTICS of each of its metrics.

    A metric that failed is left out of ``statistics``.
    """

    answers: AnswerPart
    filter: str
    predictions: BatchSource
    statistics: Mapping[str, BatchSource]
