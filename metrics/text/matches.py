"""Checks of one answer against its references: it contains one, matches a pattern, equals a number, holds the
same JSON. ``length`` measures the answer alone.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from metrics.errors import ConfigError, MetricError
from metrics.json_values import read_json, shallow
from metrics.registry import each_reference, metric
from metrics.text.inputs import hypotheses, reference_lists
from metrics.types import Floats, Scores, scalar_scores

_CURRENCY = "$€£¥₹"
_NUMBER = re.compile(
    rf"""
    (?: [{_CURRENCY}]\s* (?=[-+\u2212]) )? (?P<sign> [-+\u2212]? ) \s* (?: [{_CURRENCY}]\s* )?
    (?P<whole> \d{{1,3}} (?P<by> [,_ \u00a0\u2009\u202f] ) \d{{3}} (?: (?P=by) \d{{3}} )* | \d+ | (?=\.\d) )
    (?P<rest> (?: \.\d* )? (?: [eE][-+\u2212]?\d+ )? )
    (?: \s*[{_CURRENCY}%] )? \s* \.*
    """,
    re.VERBOSE,
)
_FORMULA = re.compile(r"(\$\$?)(?P<inside>.*)\1")
_FENCED = re.compile(r"(`{3,}+|~{3,}+)[ \t]*(?:json)?(?P<inside>.*)\1", re.DOTALL | re.IGNORECASE)
_EXACT = 2**53
"""Up to here a float tells whole numbers apart."""
LENGTHS: Final[Mapping[str, Callable[[str], int]]] = {
    "characters": len,
    "words": lambda text: len(text.split()),
    "lines": lambda text: len(text.splitlines()),
    "bytes": lambda text: len(text.encode("utf-8", "surrogatepass")),
}


def _containing(references: Sequence[Any], *, all: bool = False, **_: Any) -> Sequence[Any]:
    """Answers that contain what they must: each reference, or all of them in one text."""
    return ["\n".join(map(str, references))] if all else references


@metric("contains", batched=True, right_answers=_containing)
def contains(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    ignore_case: bool = False,
    all: bool = False,
) -> Floats:
    """1 if the answer contains any of the references (with ``all``: every one of them), else 0."""
    score = np.zeros(len(predictions))
    golds = reference_lists(references, "contains")
    for row, text in enumerate(hypotheses(predictions, "contains")):
        own = text.casefold() if ignore_case else text
        hits = [(gold.casefold() if ignore_case else gold) in own for gold in golds[row]]
        missing = predictions[row] is None  # no prediction contains nothing, not even ""
        score[row] = not missing and (min(hits) if all else max(hits))
    return score


def _patterns(
    references: Sequence[Sequence[Any]], *, pattern: str | None = None, ignore_case: bool = False, **_: Any
) -> list[tuple[str, int]]:
    """What ``regex_match`` searches for: its pattern, or the references."""
    texts = [pattern] if pattern is not None else [str(gold) for own in references for gold in own]
    return [(text, re.IGNORECASE if ignore_case else 0) for text in texts]


@metric("regex_match", batched=True, patterns=_patterns)
def regex_match(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    pattern: str | None = None,
    full: bool = False,
    ignore_case: bool = False,
) -> Floats:
    """1 if ``pattern``, or without one any of the references taken as a pattern, is found in the answer, else
    0.

    ``full``: the whole answer must match. Raises ``MetricError`` for a reference that is no pattern.
    """
    flags = re.IGNORECASE if ignore_case else 0
    given = None if pattern is None else [_compiled(pattern, flags)]
    score = np.zeros(len(predictions))
    for row, text in enumerate(hypotheses(predictions, "regex_match")):
        patterns = given if given is not None else _reference_patterns(references[row], flags, row)
        found = any((one.fullmatch(text) if full else one.search(text)) is not None for one in patterns)
        score[row] = found and predictions[row] is not None
    return score


def _reference_patterns(golds: Sequence[Any], flags: int, row: int) -> list[re.Pattern[str]]:
    if not golds:
        raise MetricError(f"regex_match: row {row} has no reference, and the config has no pattern", row)
    try:
        return [_compiled(str(gold), flags) for gold in golds]
    except ConfigError as error:
        raise MetricError(f"regex_match: row {row}: {error}", row) from error


@cache
def _compiled(pattern: str, flags: int) -> re.Pattern[str]:
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ConfigError(f"regex_match: {pattern!r} is no pattern: {error}") from None


@metric("numeric_match", batched=True, version=2, right_answers=each_reference)
def numeric_match(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    abs_tol: float = 0.0,
    rel_tol: float | None = None,
) -> Floats:
    """1 if the answer is a number within the tolerances of any reference, else 0.

    ``rel_tol`` is 1e-9 unless given, and 0 between whole numbers. Separators between groups of three digits,
    a currency sign, a percent sign and a trailing period are ignored. An answer that is not a number is
    wrong; a reference that is not one raises ``MetricError``.
    """
    if abs_tol < 0 or (rel_tol or 0) < 0:
        raise ConfigError("numeric_match: abs_tol and rel_tol must not be negative")
    same = _close if rel_tol is None else math.isclose
    score = np.zeros(len(predictions))
    for row, (golds, prediction) in enumerate(zip(references, predictions, strict=True)):
        targets = [parse_number(gold) for gold in golds]
        if not targets or None in targets:
            raise MetricError(
                f"numeric_match: row {row} has the references {list(golds)!r}, not numbers", row
            )
        own = parse_number(prediction)
        score[row] = own is not None and any(
            same(own, target, rel_tol=1e-9 if rel_tol is None else rel_tol, abs_tol=abs_tol)
            for target in targets
            if target is not None
        )
    return score


def parse_number(value: Any) -> int | float | None:
    """The number that a value is or that a text writes; None if it is not a finite one.

    >>> parse_number("-$1,234.50."), parse_number("\u22125"), parse_number("12,5"), parse_number("twelve")
    (-1234.5, -5, None, None)
    """
    if isinstance(value, str):
        value = _undressed(value)
    if value is None or isinstance(value, bool):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    if not math.isfinite(found):
        return None
    written_whole = isinstance(value, str) and value.removeprefix("-").isdecimal()
    return int(value) if written_whole or isinstance(value, int) else found


def _undressed(text: str) -> str | None:
    """A number as Python writes it, of a text that is nothing else."""
    formula = _FORMULA.fullmatch(text.strip())
    found = _NUMBER.fullmatch((formula["inside"] if formula else text).strip())
    if found is None:
        return None
    sign = "-" if found["sign"] in ("-", "\u2212") else ""
    return sign + found["whole"].replace(found["by"] or ",", "") + found["rest"].replace("\u2212", "-")


def _close(left: float, right: float, rel_tol: float, abs_tol: float) -> bool:
    """Whether two numbers are one: of those that are not whole, one may be the other's rounding."""
    try:
        if _is_whole(left) and _is_whole(right):
            return abs(left - right) <= abs_tol
        return math.isclose(left, right, rel_tol=rel_tol, abs_tol=abs_tol)
    except OverflowError:  # an integer that no float holds, and a float
        return False


def _is_whole(number: float) -> bool:
    """Whether it is a whole number, to the last digit."""
    return isinstance(number, int) or (number.is_integer() and abs(number) < _EXACT)


@metric("json_match", batched=True, version=3, right_answers=each_reference)
def json_match(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    structure_only: bool = False,
    ignore_order: bool = False,
    abs_tol: float = 0.0,
) -> Scores:
    """1 if the answer is JSON equal to any reference, else 0; the details name the first difference.

    Texts are parsed, a Markdown fence around them is dropped. ``structure_only`` compares keys, lengths and
    types only; ``ignore_order`` compares lists as bags; ``abs_tol`` is for numbers. Whole numbers are
    compared to the last digit. A reference that is not JSON raises ``MetricError``.
    """
    score = np.zeros(len(predictions))
    details: list[dict[str, Any] | None] = [None] * len(predictions)
    for row, (golds, prediction) in enumerate(zip(references, predictions, strict=True)):
        targets = [_reference_json(gold, row) for gold in golds]
        if not targets:
            raise MetricError(f"json_match: row {row} has no reference to compare with", row)
        try:
            own = _parsed(prediction)
            differences = [
                first_difference(target, own, structure_only, ignore_order, abs_tol) for target in targets
            ]
        except ValueError as error:
            details[row] = {"difference": f"not JSON: {error}"}
            continue
        score[row] = None in differences
        if None not in differences:
            details[row] = {"difference": differences[0]}
    any_details = details if any(details) else None
    column = scalar_scores(score)
    return Scores(column.statistics, None, column.score, any_details)


def _parsed(value: Any) -> Any:
    if value is None:
        raise ValueError("no prediction")
    if not isinstance(value, str):
        return shallow(value)
    text = value.strip()
    fenced = _FENCED.fullmatch(text)
    return read_json(fenced["inside"] if fenced else text)


def _reference_json(gold: Any, row: int) -> Any:
    try:
        return _parsed(gold)
    except ValueError as error:
        raise MetricError(f"json_match: row {row} has a reference that is not JSON: {error}", row) from None


@metric("length", batched=True, bounds=(0.0, math.inf))
def length(
    references: Sequence[Sequence[Any]], predictions: Sequence[Any], *, unit: str = "characters"
) -> Floats:
    """Length of the answer in characters, words, lines or UTF-8 bytes; no prediction has length 0."""
    if unit not in LENGTHS:
        raise ConfigError(f"length: unit must be one of {', '.join(LENGTHS)}, not {unit!r}")
    return np.array([LENGTHS[unit](text) for text in hypotheses(predictions, "length")], dtype=np.float64)


def first_difference(
    gold: Any, own: Any, structure_only: bool, ignore_order: bool, abs_tol: float
) -> str | None:
    """A sentence with the path of the first difference of ``own`` from ``gold``, None if there is none.

    >>> first_difference({"a": [1, 2]}, {"a": [1, 3]}, False, False, 0.0)
    '$.a[1]: 3 instead of 2'
    """

    def compare(left: Any, right: Any, path: str) -> str | None:
        if isinstance(left, dict) and isinstance(right, dict):
            return compare_objects(left, right, path)
        if isinstance(left, list) and isinstance(right, list):
            return compare_bags(left, right, path) if ignore_order else compare_lists(left, right, path)
        if _kind(left) != _kind(right):
            return f"{path}: {_kind(right)} instead of {_kind(left)}"
        if structure_only or _equal(left, right, abs_tol):
            return None
        return f"{path}: {right!r} instead of {left!r}"

    def compare_objects(left: dict[str, Any], right: dict[str, Any], path: str) -> str | None:
        missing = sorted(left.keys() - right.keys())
        if missing:
            return f"{path}: the key {missing[0]!r} is missing"
        extra = sorted(right.keys() - left.keys())
        if extra:
            return f"{path}: the key {extra[0]!r} is not expected"
        return next(
            (found for key in left if (found := compare(left[key], right[key], f"{path}.{key}"))), None
        )

    def compare_lists(left: list[Any], right: list[Any], path: str) -> str | None:
        if len(left) != len(right):
            return f"{path}: {len(right)} elements instead of {len(left)}"
        pairs = enumerate(zip(left, right, strict=True))
        return next((found for i, (a, b) in pairs if (found := compare(a, b, f"{path}[{i}]"))), None)

    def compare_bags(left: list[Any], right: list[Any], path: str) -> str | None:
        if len(left) != len(right):
            return f"{path}: {len(right)} elements instead of {len(left)}"
        remaining = list(right)
        for i, wanted in enumerate(left):
            place = next(
                (j for j, other in enumerate(remaining) if compare(wanted, other, path) is None), None
            )
            if place is None:
                return f"{path}: nothing equals element {i}"
            del remaining[place]
        return None

    return compare(gold, own, "$")


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    return {str: "string", dict: "object", list: "list", type(None): "null"}.get(
        type(value), type(value).__name__
    )


def _equal(left: Any, right: Any, abs_tol: float) -> bool:
    if _kind(left) == "number":
        return _close(left, right, rel_tol=1e-12, abs_tol=abs_tol)
    return bool(left == right)
