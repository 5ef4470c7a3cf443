"""Findings on an arena: a judge that looks at the place of an answer, models that can't be rated."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tasks.reporting import numbers
from tasks.reporting.diagnostics.findings import Diagnostic

SURE: Final = 0.01
"""A place is said to matter where chance alone gives a share as far from a half more seldom than that."""


def arena_findings(manifest: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """What the ratings of the run, one document a prompt and filter, say against themselves."""
    for rated in manifest.get("ratings") or ():
        where = f"prompt {rated['prompt_template']}, filter {rated['filter']}"
        for judge, found in rated["judges"].items():
            if found["p_value"] is not None and found["p_value"] < SURE:
                yield _position(where, judge, found)
        lost = [row for row in rated["models"] if row["strength"] is None]
        if lost:
            said = "; ".join(f"{row['model']}: {row['note']}" for row in lost)
            yield Diagnostic("unrated", "warning", f"{where}: no strength for {said}.", len(lost))


def _position(where: str, judge: str, found: Mapping[str, Any]) -> Diagnostic:
    share, chance = found["first"], numbers.p_value(found["p_value"])
    said = f"p {chance}" if chance.startswith("<") else f"p = {chance}"
    return Diagnostic(
        "judge_position",
        "warning",
        f"{where}: judge {judge} looks at the place: the answer shown first won {100 * share:.0f} % of "
        f"{numbers.plural(found['verdicts'], 'verdict')}, ties counting half ({said}, signs of items "
        "flipped at random). With both_orders a win rate is the mean of both places, and so "
        "nearer to a half than with a judge who looks at the answers.",
        found["verdicts"],
    )
