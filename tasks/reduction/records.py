"""What goes into a reduction: the parts of a pair, and where their samples come from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from metrics.metric import Metric

BatchSource = Callable[[Sequence[str]], Iterable[pa.RecordBatch]]
"""Given column names, streams the batches of an artifact with those columns; may be called several times."""


@dataclass(frozen=True)
class Origin:
    """What all samples of one model and one prompt template share.

    ``metadata`` is the shared part of a response's metadata: ``model_id`` (the name sent to the endpoint),
    ``prompt_template`` and ``sampling`` (the parameters sent).
    """

    model_name: str
    prompt_template: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shared_metadata(self) -> dict[str, Any]:
        """The metadata of every response: a model without an id of its own is known by its name."""
        return {"model_id": self.model_name, "prompt_template": self.prompt_template, **self.metadata}


@dataclass(frozen=True)
class Part:
    """One model × prompt template × partition of a pair.

    The three sources yield batches of the STATISTICS, REQUESTS and RESPONSES schemas, projected to the
    columns they are called with. ``method`` names the evaluation method that made the statistics; None: a
    metric did.
    """

    origin: Origin
    statistics: BatchSource
    requests: BatchSource
    responses: BatchSource
    method: str | None = None


@dataclass(frozen=True)
class PairIdentity:
    """Which pair is reduced: the benchmark's name, the filter's name and the metric."""

    benchmark: str
    filter: str
    metric: "Metric"


@dataclass(frozen=True)
class FailedPart:
    """A part without statistics, because a step before it failed, and the step's error in words.

    ``label`` is the one label its verdicts would have had (a built-in evaluation method's); None: any.
    """

    origin: Origin
    error: str
    label: str | None = None


def from_batches(batches: Sequence[pa.RecordBatch]) -> BatchSource:
    """A source over batches that are in memory already.

    >>> batch = pa.RecordBatch.from_pydict({"a": [1], "b": [2]})
    >>> [part.schema.names for part in from_batches([batch])(["b"])]
    [['b']]
    """
    return lambda columns: (batch.select(list(columns)) for batch in batches)
