"""How a stage of inference runs, and what it reports back."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from tasks.models.config import Limits, Price, SampleParams
from tasks.models.tally import Tally

Lease = AbstractContextManager[int]
"""A share of a limit that several processes hold together, such as a Prefect global concurrency limit:
entering takes a block of places, waiting until there is one, and gives its size.
"""


@dataclass(frozen=True)
class InferenceOptions:
    """What a run asks for beside the model and its requests.

    ``sampling`` holds the global and the model's parameters, merged. ``refresh`` asks everything anew;
    ``not_before`` (seconds since 1970) does so for answers older than that, so that a retried stage keeps
    what it has asked since. ``run_id`` names the account that limits are held against, shared by all
    partitions of the process; None: this call's own. ``expected`` is the number of requests, for the time
    left. ``secret`` reads a Secret block by name, ``lease`` takes the model's share of a concurrency limit
    between processes by the limit's name and the number of places wanted.
    """

    sampling: SampleParams
    journal_dir: Path
    limits: Limits = field(default_factory=Limits)
    price: Price | None = None
    run_id: str | None = None
    refresh: bool = False
    not_before: float = 0.0
    expected: int | None = None
    base_dir: Path = Path()
    secret: Callable[[str], str] | None = None
    lease: Callable[[str, int], Lease] | None = None


@dataclass(frozen=True)
class Progress:
    """How far inference is; ``rate`` in requests a second, ``seconds_left`` None while nobody can say."""

    done: int
    expected: int | None
    cached: int
    failed: int
    model_errors: int
    retries: int
    in_flight: int
    concurrency: int
    rate: float
    tokens_per_second: float
    cost: float
    seconds_left: float | None


@dataclass(frozen=True)
class Responded:
    """A partition's responses: RESPONSES batches in request order, to be read once, and what they came to."""

    batches: Iterator[pa.RecordBatch]
    tally: Tally
