"""What is asked of the model, and which of it begins alike."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LEAST_COMMON = 0.25
"""What share of a sequence it has to have in common with others to be worked on together with them."""


class Refused(Exception):
    """A request that can't be served: status 400 and the reason."""


class Overloaded(Exception):
    """A request that may be served later: status 503 and the reason."""


@dataclass
class Sampling:
    """How tokens of an answer are chosen."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0


@dataclass
class Job:
    """One sequence to score or to go on with; ``done`` is set when ``error`` or the results are there."""

    ids: list[int]
    score: bool
    top: int = 1
    max_tokens: int = 0
    stops: tuple[str, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[list[tuple[int, float]]] = field(default_factory=list)
    new_ids: list[int] = field(default_factory=list)
    new_logprobs: list[float] = field(default_factory=list)
    new_tops: list[list[tuple[int, float]]] = field(default_factory=list)
    finish: str = "length"
    generator: Any = None
    """Draws its tokens, once it has begun."""
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the model is given of a sequence to score: all but the last token."""
        return tuple(self.ids[:-1])


@dataclass
class SharedPrefix:
    """Sequences to score that begin with the same ``common`` tokens; those of a row differ in their last one
    alone."""

    common: int
    rows: list[list[Job]]

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return [job for row in self.rows for job in row]

    @property
    def length(self) -> int:
        """Tokens that go into the model for its longest sequence."""
        return max(len(row[0].inputs) for row in self.rows)


def shared_prefixes(jobs: list[Job], at_most: int, tokens: int) -> list[SharedPrefix]:
    """Jobs by what they begin with, where that saves work: prefixes of ``at_most`` rows (below two: of one),
    which beyond their beginning have ``tokens`` tokens together at most."""
    rows: dict[tuple[int, ...], list[Job]] = {}
    for job in jobs:
        rows.setdefault(job.inputs, []).append(job)
    prefixes: list[SharedPrefix] = []
    before: tuple[int, ...] = ()
    longest = 0
    for inputs in sorted(rows):
        shared = prefixes[-1] if prefixes else SharedPrefix(0, [])
        count, common = len(shared.rows), min(shared.common, _alike(before, inputs))
        longest = max(longest, len(inputs))
        fits = 0 < count < at_most and (count + 1) * (longest - common) <= tokens
        # A row that shares less than those before may cost them more than it brings.
        saves = count * common >= (count - 1) * shared.common and common >= len(inputs) * LEAST_COMMON
        if fits and saves:
            shared.rows.append(rows[inputs])
            shared.common = common
        else:
            prefixes.append(SharedPrefix(len(inputs), [rows[inputs]]))
            longest = len(inputs)
        before = inputs
    for shared in prefixes:
        if len(shared.rows) == 1:
            shared.common = 0
    return prefixes


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
