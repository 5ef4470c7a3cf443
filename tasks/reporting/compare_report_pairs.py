"""A comparison's numbers as the page shows them."""

import math

from tasks.comparison.comparing import ComparedPair as Found
from tasks.comparison.comparing import ComparedRuns
from tasks.reporting.compare_report import ComparedPair


def compared_pairs(compared: ComparedRuns) -> list[ComparedPair]:
    """One row a compared group, named apart by whatever facets hold groups of a pair apart."""
    keys = [pair.key for pair in compared.pairs]
    names = {name for key in keys for name, _ in key.facets}
    told = {name for name in names if len({key.facet(name) for key in keys}) > 1}
    return [_pair(pair, told) for pair in compared.pairs]


def _pair(found: Found, told: set[str]) -> ComparedPair:
    key, numbers, joined, terms = found.key, found.comparison, found.joined, found.terms
    group = " · ".join(
        [
            *([key.label] if key.label else []),
            *(value for name, value in key.facets if name in told and value),
        ]
    )
    if numbers is None:
        return ComparedPair(key.pair, None, None, None, verdict=found.verdict, note=found.reason, group=group)
    return ComparedPair(
        name=key.pair,
        base=_finite(numbers.base),
        candidate=_finite(numbers.candidate),
        difference=_finite(numbers.difference),
        ci_low=_finite(numbers.ci_low),
        ci_high=_finite(numbers.ci_high),
        p_value=_finite(numbers.p_value),
        p_adjusted=_finite(found.p_adjusted),
        wins=numbers.wins,
        losses=numbers.losses,
        ties=numbers.ties,
        n_items=numbers.n_items,
        missing=joined.missing + joined.unscored if joined is not None else 0,
        mde=_finite(numbers.mde),
        margin=terms.margin if terms is not None else None,
        verdict=found.verdict,
        higher_is_better=found.higher_is_better,
        method=numbers.test,
        note=found.reason or numbers.warning,
        group=group,
    )


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
