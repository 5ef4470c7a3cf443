"""How far inference is, for those who show it."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

FirstSettled = tuple[pa.RecordBatch, list[pa.RecordBatch]]


@dataclass(frozen=True)
class RunningFigure:
    """A metric's scores so far: their sum over ``items`` items of a sample. No result."""

    metric: str
    total: float
    items: int

    @property
    def mean(self) -> float | None:
        """None before the first item."""
        return self.total / self.items if self.items else None


@dataclass(frozen=True)
class Progress:
    """How far inference is; ``rate`` in requests a second, ``seconds_left`` None while nobody can say."""

    done: int
    expected: int | None
    cached: int = 0
    failed: int = 0
    retries: int = 0
    in_flight: int = 0
    concurrency: int = 0
    rate: float = 0.0
    tokens_per_second: float = 0.0
    cost: float = 0.0
    seconds_left: float | None = None
    tokens: int = 0
    running: RunningFigure | None = None
    first: Callable[[], FirstSettled | None] | None = None
    """Gives, to any thread, the first items that are settled by now and their responses."""
