"""The record of an evaluation method: how it is called, and what it needs to be given."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.evaluation import asked
from tasks.evaluation.asked import Asked
from tasks.evaluation.labels import Verdict
from tasks.reduction.records import Origin

Judgement = tuple[list[Verdict], float]
"""What a method says of one response, and how many seconds it took."""

JudgeBatch = Callable[[pa.RecordBatch, Sequence[Asked], Origin], Iterator[Judgement]]


@dataclass(frozen=True)
class EvaluationMethod:
    """One evaluation method of a config.

    ``judge(batch, requests, origin)`` yields one judgement for each response of a RESPONSES batch that holds
    ``response_columns``; ``requests`` stand beside the rows. It is only called for responses that succeeded.
    """

    name: str
    judge: JudgeBatch
    response_columns: Sequence[str] = ("response",)
    request_columns: Sequence[str] = asked.COLUMNS
    function: Callable[..., Any] | None = None

    @property
    def default_label(self) -> str | None:
        """The label of every response, judged or not; None where only the function knows its labels."""
        return self.name if self.function is None else None

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The user's function, for the fingerprint; this package's own code decides a built-in."""
        return () if self.function is None else (self.function,)
