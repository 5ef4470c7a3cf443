"""Which group of one run is compared with which group of another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from metrics.errors import ConfigError
from tasks.comparison.items import GroupKey, ItemGroup

Groups = Mapping[GroupKey, ItemGroup]


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


def _is_constant(keys: list[GroupKey], facet: str) -> bool:
    return len({key.facet(facet) for key in keys}) <= 1
