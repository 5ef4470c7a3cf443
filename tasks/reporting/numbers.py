"""How numbers are written for people: the same digits in the terminal, the report and the comparison.

The strengths of models become the cells of a table, and sentences, in the same way; a rating is what the
stage rate makes of one prompt and filter, as the manifest holds it under ``ratings``.
"""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

MISSING = "–"


def decimals(value: float) -> int:
    """Digits after the point that suit a score of this size: 4 for shares, 2 for scores up to 100, fewer
    beyond; for small ones so many that two of them tell something, down to what rounding leaves of 0."""
    size = abs(value)
    if 1e-9 <= size < 0.001:
        return 1 - math.floor(math.log10(size))
    if size < 10:
        return 4
    return 2 if size < 10_000 else 0


def number(value: float | None, like: float | None = None) -> str:
    """``value`` with the digits that suit it, or suit ``like``, the number it stands beside; "–" for None and
    NaN."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    text = f"{value:,.{decimals(value if like is None or not math.isfinite(like) else like)}f}"
    return text if any(digit in text for digit in "123456789") else text.removeprefix("-")


def rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    """A table's row for people, still with numbers in it: each has the digits that suit it.

    >>> rounded({"metric": "bleu", "value": 66.512345, "difference": -1e-16})
    {'metric': 'bleu', 'value': 66.51, 'difference': 0.0}
    """
    return {
        # 0.0 is added, because what rounds to nothing would keep its minus.
        name: round(value, decimals(value)) + 0.0
        if isinstance(value, float) and math.isfinite(value)
        else value
        for name, value in row.items()
    }


def signed(value: float | None, like: float | None = None) -> str:
    """A difference: as ``number``, with its sign unless nothing is left of it."""
    text = number(value, like)
    return f"+{text}" if value and value > 0 and text.strip("0.,") else text


def value_with_error(value: float | None, stderr: float | None) -> str:
    """``"0.5531 ± 0.0137"``; without the second part where there is no standard error."""
    if value is None or stderr is None or math.isnan(stderr):
        return number(value)
    return f"{number(value)} ± {number(stderr, like=value)}"


def interval(low: float | None, high: float | None, like: float | None = None) -> str:
    """``"[0.5262, 0.5800]"``, or "–" where an end is missing."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return MISSING
    return f"[{number(low, like)}, {number(high, like)}]"


def money(amount: float | None, currency: str | None = None) -> str:
    """A cost with its currency, where the prices name one; "–" where nothing was paid or no price is known.

    >>> money(0.1234567, "USD"), money(1234.5), money(0)
    ('0.1235 USD', '1,234.50', '–')
    """
    if not amount:
        return MISSING
    text = f"{amount:,.2f}" if amount >= 100 else f"{amount:,.4g}"
    return f"{text} {currency}" if currency else text


def p_value(p: float | None) -> str:
    """``"0.031"``; below a thousandth ``"< 0.001"``, and ``"> 0.999"`` for what is nearly 1."""
    if p is None or math.isnan(p):
        return MISSING
    if p < 0.001:
        return "< 0.001"
    return "> 0.999" if 0.999 < p < 1 else f"{p:.3f}"


def p_said(p: float | None) -> str:
    """In a sentence: ``"p = 0.031"``, ``"p < 0.001"``."""
    text = p_value(p)
    return f"p {text}" if text[0] in "<>" else f"p = {text}"


def count(n: float | None) -> str:
    """``1319`` as ``"1,319"``."""
    return MISSING if n is None else f"{n:,.0f}"


def share(part: float, whole: float) -> str:
    """``part`` of ``whole`` in per cent; never 0 % or 100 % for what is neither."""
    if not whole:
        return MISSING
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.0f} %" if percent in (0, 100) or 10 <= percent < 99 else f"{percent:.1f} %"


def plural(n: int, noun: str, many: str | None = None) -> str:
    """``"1 item"``, ``"1,319 items"``; ``many`` for nouns that don't take an s."""
    return f"{count(n)} {noun if n == 1 else many or noun + 's'}"


def duration(seconds: float) -> str:
    """``"4.2 s"``, ``"3 min 20 s"``, ``"2 h 05 min"``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def moment(when: Any, *, seconds: bool = False) -> str | None:
    """A time, given in seconds since 1970 or as ISO 8601 text, to the minute or the second.

    >>> moment(1795484525), moment("2026-11-24T01:42:05Z", seconds=True)
    ('2026-11-24 01:42 UTC', '2026-11-24 01:42:05 UTC')
    """
    if when is None or when == "":
        return None
    if isinstance(when, int | float):
        when = datetime.fromtimestamp(when, UTC).isoformat()
    return f"{str(when).replace('T', ' ')[: 19 if seconds else 16]} UTC"


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
        value_with_error(strength, row["stderr"]) if strength is not None else MISSING,
        interval(row["ci_low"], row["ci_high"], like=strength),
        *(count(row[name]) for name in ("wins", "ties", "losses")),
        row["note"] or "",
    ]


def rating_effects(rated: Mapping[str, Any]) -> Iterator[str]:
    """What else decides games, in log odds: being shown first, and being twice as long."""
    for name, said in (("position", "the first place is worth"), ("length", "twice the length is worth")):
        if (effect := rated[name]) is not None:
            value = value_with_error(effect["value"], effect["stderr"])
            yield f"{said} {value}"
