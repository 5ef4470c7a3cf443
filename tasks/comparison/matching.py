"""What is compared with what: groups of two runs, and within a group the rows of the same item.

Groups match by their keys, apart from facets that the two runs are about; rows match by the digest of the
item's content, never by position or id.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from metrics.aggregations.aggregation import Aggregation
from metrics.errors import ConfigError
from metrics.statistics.comparison import ItemColumn
from tasks.comparison.items import GroupKey, ItemGroup
from tasks.store.schemas import cluster_ways


@dataclass(frozen=True)
class Match:
    """Two groups to compare; one of them is None where the other run has nothing like it."""

    base: GroupKey | None
    candidate: GroupKey | None

    @property
    def key(self) -> GroupKey:
        """The key it goes by: the baseline's, where there is one."""
        key = self.base or self.candidate
        assert key is not None
        return key


@dataclass(frozen=True)
class JoinedItems:
    """Which rows of two groups belong to the same item and are scored in both, in the baseline's order.

    ``base`` and ``candidate`` are row numbers of equal length. The counts say what became of the rest:
    ``missing`` items of the baseline are not in the candidate, ``unscored`` ones are but have no score there,
    ``unscored_base`` have none in the baseline, ``new`` ones the baseline does not know. Where rows are not
    ``paired`` the row numbers are all scored ones of either group, and of different length.
    """

    base: NDArray[np.intp]
    candidate: NDArray[np.intp]
    n_base: int
    n_candidate: int
    missing: int
    unscored: int
    unscored_base: int
    new: int
    paired: bool = True

    @property
    def coverage(self) -> float:
        """Share of the baseline's items that are in the candidate and scored there, or, unpaired, of the
        candidate's own items that are scored; NaN without items."""
        if not self.paired:
            return len(self.candidate) / self.n_candidate if self.n_candidate else float("nan")
        return (self.n_base - self.missing - self.unscored) / self.n_base if self.n_base else float("nan")

    def __len__(self) -> int:
        return len(self.base)


@dataclass(frozen=True)
class Flipped:
    """An item whose value changed between 0 and 1."""

    item_id: str
    item_digest: str
    base: float
    candidate: float


def match_runs(base: Iterable[GroupKey], candidate: Iterable[GroupKey]) -> list[Match]:
    """Groups of equal keys. A facet (or the benchmark's name) that has one value throughout each run is what
    the two runs are about, as with two checkpoints of one model, and does not hold them apart."""
    base, candidate = list(base), list(candidate)
    names = {name for key in (*base, *candidate) for name, _ in key.facets}
    constant = frozenset(name for name in names if _is_constant(base, name) and _is_constant(candidate, name))
    several = len({key.benchmark for key in base}) > 1 or len({key.benchmark for key in candidate}) > 1

    def shared(key: GroupKey) -> GroupKey:
        return key.without(constant) if several else replace(key.without(constant), benchmark="")

    partners = {shared(key): key for key in candidate}
    matches = [Match(key, partners.pop(shared(key), None)) for key in base]
    return matches + [Match(None, key) for key in partners.values()]


def match_across(groups: Iterable[GroupKey], facet: str) -> list[Match]:
    """Every two values of a facet within one run against each other, the first to appear as the baseline.

    Raises ConfigError when the run does not hold at least two values of that facet apart.
    """
    keys = list(groups)
    values = list(dict.fromkeys(key.facet(facet) for key in keys if facet in dict(key.facets)))
    if len(values) < 2:
        known = sorted({name for key in keys for name, _ in key.facets})
        found = (
            f"it has the one value {values[0]!r}"
            if values
            else f"the facets are {', '.join(known) or 'none'}"
        )
        raise ConfigError(f"--across {facet}: the run does not hold two values of this facet apart: {found}")
    dropped = frozenset({facet})
    by_value = {
        value: {key.without(dropped): key for key in keys if key.facet(facet) == value} for value in values
    }
    return [
        Match(key, by_value[second].get(shared))
        for first, second in combinations(values, 2)
        for shared, key in by_value[first].items()
    ]


def join(base: ItemGroup, candidate: ItemGroup) -> JoinedItems:
    """Joins on the content digest, never on position or id.

    A dataset may hold a row twice under two ids: equal digests are told apart by the order of their ids, so
    that the n-th copy meets the n-th copy.
    """
    rows = {key: row for row, key in enumerate(row_keys(candidate))}
    matched = np.array([rows.get(key, -1) for key in row_keys(base)], dtype=np.intp)
    present = matched >= 0
    scored = present.copy()
    scored[present] = candidate.scored[matched[present]]
    both = scored & base.scored
    return JoinedItems(
        base=np.flatnonzero(both),
        candidate=matched[both],
        n_base=len(base),
        n_candidate=len(candidate),
        missing=int((~present).sum()),
        unscored=int((present & ~scored).sum()),
        unscored_base=int((scored & ~base.scored).sum()),
        new=len(candidate) - int(present.sum()),
    )


def apart(base: ItemGroup, candidate: ItemGroup) -> JoinedItems:
    """All scored rows of two groups whose items need not be the same."""
    return JoinedItems(
        base=np.flatnonzero(base.scored),
        candidate=np.flatnonzero(candidate.scored),
        n_base=len(base),
        n_candidate=len(candidate),
        missing=0,
        unscored=len(candidate) - int(candidate.scored.sum()),
        unscored_base=len(base) - int(base.scored.sum()),
        new=0,
        paired=False,
    )


def flipped_items(base: ItemGroup, candidate: ItemGroup, joined: JoinedItems) -> tuple[Flipped, ...]:
    """The items that changed between right and wrong; none for a metric with other values than 0 and 1."""
    before, after = base.value[joined.base], candidate.value[joined.candidate]
    if not (np.isin(before, (0.0, 1.0)).all() and np.isin(after, (0.0, 1.0)).all()):
        return ()
    return tuple(
        Flipped(str(base.item_ids[row]), str(base.digests[row]), float(first), float(second))
        for row, first, second in zip(joined.base, before, after, strict=True)
        if first != second
    )


def _is_constant(keys: list[GroupKey], facet: str) -> bool:
    return len({key.facet(facet) for key in keys}) <= 1


def row_keys(group: ItemGroup) -> list[tuple[str, int]]:
    """(digest, which copy of it) for each row."""
    copies: dict[str, int] = {}
    keys: list[tuple[str, int]] = [("", 0)] * len(group)
    for row in np.argsort(group.item_ids.astype(str), kind="stable"):
        digest = group.digests[row]
        copies[digest] = copies.get(digest, -1) + 1
        keys[row] = (digest, copies[digest])
    return keys


def column_of(group: ItemGroup, rows: NDArray[np.intp], aggregation: Aggregation) -> ItemColumn:
    """Some rows of a group, as the comparison of metrics takes them."""
    value = group.value[rows]
    statistics = None if group.statistics is None else group.statistics[rows]
    if statistics is None and aggregation.kind == "sums" and aggregation.encode is not None:
        statistics = aggregation.encode(value)
    return ItemColumn(
        value=value,
        statistics=statistics,
        values=None if group.objects is None else [group.objects[row] for row in rows],
    )


def clusters_of(group: ItemGroup, rows: NDArray[np.intp]) -> NDArray[np.int64] | None:
    """Numbers of the clusters that some items belong to, (n,), or (n, 2) where two fields cross; an item
    without one is a cluster of its own."""
    if group.clusters is None:
        return None
    own = [
        cluster_ways(cluster) if cluster is not None else (row,)
        for row, cluster in zip(rows.tolist(), group.clusters[rows], strict=True)
    ]
    ways = max((len(entry) for entry in own), default=1)
    columns = []
    for way in range(ways):
        numbers: dict[object, int] = {}
        entries = [entry[way] if way < len(entry) else entry for entry in own]
        columns.append([numbers.setdefault(entry, len(numbers)) for entry in entries])
    codes = np.array(columns, dtype=np.int64)
    return codes[0] if ways == 1 else codes.T
