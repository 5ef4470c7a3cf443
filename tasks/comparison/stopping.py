"""What a gate with ``stop`` says of a run that asks items in a random order: pair by pair, whenever it looks.

The order depends on a seed and on the items alone, so that item rows are enough to say it again: the task
that decides in the middle of a run, the comparison at its end and one next month come to the same verdict.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation
from metrics.statistics.sequence import (
    PairedUnits,
    SequenceLevels,
    SequenceLook,
    look_at,
    lower_end,
    upper_end,
)
from tasks.comparison.matching import ItemGroup, JoinedItems, join
from tasks.datasets.selection import place_in_order, unit_of
from tasks.store.schemas import cluster_ways


def stopped_sentence(stopped: Mapping[str, Any]) -> str:
    """What a manifest says of a run that stopped, in words.

    >>> stopped_sentence({"asked_items": 400, "of_items": 1319, "why": "decided"})
    '400 of 1,319 items, stopped: decided'
    """
    return f"{stopped['asked_items']:,} of {stopped['of_items']:,} items, stopped: decided"


@dataclass(frozen=True)
class Stopping:
    """How a run was asked that could stop: the seed of its order, and, if it did stop, after how many items
    of how many."""

    seed: int
    asked_items: int | None = None
    of_items: int | None = None

    @classmethod
    def of_manifest(cls, manifest: Mapping[str, Any]) -> "Stopping | None":
        """As a run's manifest has it; None for a run that was to ask everything."""
        order, stopped = manifest.get("stopping"), manifest.get("stopped")
        if not isinstance(order, Mapping):
            return None
        counts = stopped if isinstance(stopped, Mapping) else {}
        return cls(int(order["seed"]), counts.get("asked_items"), counts.get("of_items"))

    @property
    def early(self) -> bool:
        """Whether some items were not asked."""
        return self.asked_items is not None

    @property
    def sentence(self) -> str:
        """As ``stopped_sentence``."""
        return stopped_sentence({"asked_items": self.asked_items, "of_items": self.of_items})


NOT_A_MEAN = "is no mean of its items' numbers"
NO_BOUNDS = "has no bounds"
CROSSED = "has items in two crossing clusters"
APART = "is compared unpaired"


def never_stops(aggregation: Aggregation) -> str | None:
    """Why no confidence sequence of a metric's difference is known; None where there is one."""
    if not aggregation.averages:
        return NOT_A_MEAN
    return None if all(map(math.isfinite, aggregation.bounds)) else NO_BOUNDS


def asked_part(base: ItemGroup, candidate: ItemGroup, seed: int) -> ItemGroup:
    """The baseline's rows without the items that a run that stopped did not come to."""
    last = max((place_in_order(seed, unit) for unit in units_in(candidate)), default="")
    there = set(candidate.digests)
    rows = [
        row
        for row, unit in enumerate(units_in(base))
        if base.digests[row] in there or place_in_order(seed, unit) < last
    ]
    return base.take(np.array(rows, dtype=np.intp))


def units_in(group: ItemGroup) -> list[str]:
    """What places each of a group's rows."""
    clusters = group.clusters if group.clusters is not None else [None] * len(group)
    return [unit_of(cluster, digest) for cluster, digest in zip(clusters, group.digests, strict=True)]


@dataclass(frozen=True)
class PairAsked:
    """A pair's rows so far: both groups, what they share, and what its difference is made of."""

    base: ItemGroup
    candidate: ItemGroup
    joined: JoinedItems
    aggregation: Aggregation
    higher_is_better: bool = True

    def units(self, seed: int, whole: bool) -> PairedUnits | str:
        """The units that were asked, in their order, whole clusters only; else why there are none.

        ``whole``: the mean is that of the baseline's items and no others.
        """
        if reason := never_stops(self.aggregation):
            return reason
        if _crossed(self.base) or _crossed(self.candidate):
            return CROSSED
        low, high = self.aggregation.bounds
        differences = self.candidate.value[self.joined.candidate] - self.base.value[self.joined.base]
        if np.abs(differences).max(initial=0.0) > high - low:
            return f"has numbers beyond its bounds, {low:g} to {high:g}"
        of_base = units_in(self.base)
        sizes, asked = Counter(of_base), Counter(units_in(self.candidate))
        # A look may come between the items of a cluster, which stand beside each other: it waits for them.
        complete = [
            row for row, at in enumerate(self.joined.base) if asked[of_base[at]] >= sizes[of_base[at]]
        ]
        rows = sorted(complete, key=lambda row: place_in_order(seed, of_base[self.joined.base[row]]))
        runs = Counter(of_base[self.joined.base[row]] for row in rows)
        signed = differences[rows] if self.higher_is_better else -differences[rows]
        counts = np.array(list(runs.values()), dtype=np.int64)
        largest = max(sizes.values(), default=1)
        return PairedUnits.of_items(signed, counts, largest, high - low, len(sizes), whole)


def _crossed(group: ItemGroup) -> bool:
    return group.clusters is not None and any(
        cluster is not None and len(cluster_ways(cluster)) > 1 for cluster in group.clusters[:1]
    )


@dataclass(frozen=True)
class StopRule:
    """By what pairs are looked at: the order's seed, whether the verdict is about the benchmark's items
    alone, and how many pairs (times nights) share the level of a regression."""

    seed: int
    whole: bool
    parts: int

    def look(self, pair: PairAsked, margin: float, alpha: float) -> SequenceLook | str:
        """A look at a pair; else why it is never decided before all is asked."""
        units = pair.units(self.seed, self.whole)
        return units if isinstance(units, str) else look_at(units, margin, self.levels(alpha))

    def coverage(self, pair: PairAsked) -> float:
        """The share of the baseline's items among those that were to be asked so far that have a score."""
        return join(asked_part(pair.base, pair.candidate, self.seed), pair.candidate).coverage

    def levels(self, alpha: float) -> SequenceLevels:
        """The levels of the sequence."""
        return SequenceLevels.of_gate(alpha, self.parts)

    def course(self, pair: PairAsked, alpha: float, looks: int) -> "Course":
        """How the interval closed in, at so many looks up to now."""
        units, levels = pair.units(self.seed, self.whole), self.levels(alpha)
        if isinstance(units, str):
            return ()
        asked = [len(units) * look // looks for look in range(1, looks + 1)]
        parts = [replace(units, values=units.values[:n], weights=units.weights[:n]) for n in asked]
        return tuple(
            (len(part), lower_end(part, levels.passes), upper_end(part, levels.fails)) for part in parts
        )


Course = Sequence[tuple[int, float, float]]
"""The ends of a sequence after so many units, from the first look to the last."""
