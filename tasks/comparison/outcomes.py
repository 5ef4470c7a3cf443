"""Whether answers were cut off, empty or refused more often than in the baseline.

A score may stay where it was while a model stops answering: a rise is told beside the pairs, tested item by
item like them. ``compare_runs`` asks for the rises once for each group of items.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from metrics.aggregations.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import ItemColumn, compare_items
from metrics.statistics.gate import adjust
from tasks.comparison.items import GroupKey, ItemGroup
from tasks.comparison.matching import Match, clusters_of, join
from tasks.store.schemas import COUNTED


@dataclass(frozen=True)
class OutcomeChange:
    """How often the answers of one group came to one of COUNTED, in shares from 0 to 1.

    ``p_value`` is two-sided and corrected (Holm) over all changes of the comparison; NaN where nothing can be
    tested. ``risen``: there are more of them, and not by chance.
    """

    key: GroupKey
    outcome: str
    base: float
    candidate: float
    n_items: int
    p_value: float
    risen: bool = False


def outcome_changes(
    base: Mapping[GroupKey, ItemGroup],
    candidate: Mapping[GroupKey, ItemGroup],
    matches: Sequence[Match],
    statistics: StatisticsConfig,
    alpha: float,
) -> tuple[OutcomeChange, ...]:
    """The outcomes that either run has any of, in the order of the groups; ``alpha`` is the tests' level."""
    found = [
        change
        for match in _one_a_group(matches)
        if match.base is not None and match.candidate is not None
        for change in _changes(match.key, base[match.base], candidate[match.candidate], statistics)
    ]
    corrected = adjust([change.p_value for change in found], "holm")
    return tuple(
        replace(change, p_value=float(p), risen=bool(change.candidate > change.base and p < alpha))
        for change, p in zip(found, corrected, strict=True)
    )


def _one_a_group(matches: Sequence[Match]) -> Iterator[Match]:
    """The first pair of each group of items: all its pairs rest on the same answers."""
    seen = set()
    for match in matches:
        group = (match.key.benchmark, match.key.facets)
        if group not in seen:
            seen.add(group)
            yield match


def _changes(
    key: GroupKey, base: ItemGroup, candidate: ItemGroup, statistics: StatisticsConfig
) -> Iterator[OutcomeChange]:
    joined = join(_all_scored(base), _all_scored(candidate))
    for name in COUNTED if len(joined) else ():
        if name not in base.outcomes or name not in candidate.outcomes:
            continue
        before, after = base.outcomes[name][joined.base], candidate.outcomes[name][joined.candidate]
        if not before.any() and not after.any():
            continue
        compared = compare_items(
            build_aggregation("mean"),
            ItemColumn(before, before[:, None]),
            ItemColumn(after, after[:, None]),
            clusters_of(base, joined.base),
            statistics,
            higher_is_better=False,
        )
        yield OutcomeChange(key, name, compared.base, compared.candidate, compared.n_items, compared.p_value)


def _all_scored(group: ItemGroup) -> ItemGroup:
    """The group with all its items: what was not scored was answered, or not, all the same."""
    return replace(group, scored=np.ones(len(group), dtype=np.bool_))
