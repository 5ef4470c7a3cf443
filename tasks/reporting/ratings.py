"""How the strengths of models are told, in a terminal and in the report: cells of a table, and a sentence.

A record is what the stage rate makes of one prompt and filter, as the manifest holds it under ``ratings``.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tasks.reporting import numbers

RATING_COLUMNS: Final = ("Model", "Rank", "Strength", "Interval", "Won", "Tied", "Lost", "Note")


def strongest_first(rated: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The models by strength, those without one last."""
    return sorted(rated["models"], key=lambda row: (row["strength"] is None, -(row["strength"] or 0.0)))


def rating_cells(row: Mapping[str, Any]) -> list[str]:
    """One model beside ``RATING_COLUMNS``; a rank that is not certain is an interval."""
    best, worst = row["rank_best"], row["rank_worst"]
    strength = row["strength"]
    return [
        str(row["model"]),
        str(best) if best == worst else f"{best}–{worst}",
        numbers.value_with_error(strength, row["stderr"]) if strength is not None else numbers.MISSING,
        numbers.interval(row["ci_low"], row["ci_high"], like=strength),
        *(numbers.count(row[name]) for name in ("wins", "ties", "losses")),
        row["note"] or "",
    ]


def rating_effects(rated: Mapping[str, Any]) -> Iterator[str]:
    """What else decides games, in log odds: being shown first, and being twice as long."""
    for name, said in (("position", "the first place is worth"), ("length", "twice the length is worth")):
        if (effect := rated[name]) is not None:
            value = numbers.value_with_error(effect["value"], effect["stderr"])
            yield f"{said} {value}"
