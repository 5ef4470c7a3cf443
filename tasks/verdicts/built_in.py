"""The built-in evaluation methods, which compare texts, numbers and JSON: each is one response against one
ground truth.

A judge takes (response, ground truth) and gives whether it passed and what else there is to say; it raises
``ValueError`` where the ground truth can't be compared with any response, which makes the item unscored if it
has no other.
"""

import math
import re
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from typing import Any, Final

import orjson

from metrics.text.fences import fenced_blocks
from metrics.text.matches import LENGTHS, parse_number
from tasks.store.keys import canonical_json
from tasks.verdicts.config import (
    ContainsParams,
    ExactMatchParams,
    JsonMatchParams,
    LengthCheckParams,
    NumericMatchParams,
    Params,
    RegexMatchParams,
)

BuiltInVerdict = tuple[bool, dict[str, Any] | None]
Judge = Callable[[str, Any], BuiltInVerdict]

_NUMBER: Final = re.compile(
    r"""
    (?: (?<![\w.)]) [-+\u2212] [$€£¥₹]? )?                   # a sign, unless it stands between two: 10-5
    (?: \d{1,3} (?P<by>[,\u00a0\u2009\u202f]) \d{3} (?:(?P=by)\d{3})* (?!\d)  # 1,234
      | \d+ | (?<!\d)\.(?=\d) )                             # 1234 or the point of .5
    (?: (?<=\d)\.\d+ | (?<=\.)\d+ )?                        # decimals
    (?: [eE][-+\u2212]?\d+ )?
    """,
    re.VERBOSE,
)
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def as_text(truth: Any) -> str:
    """A ground truth as text: a text as it is, any other value as JSON (18 → ``18``, True → ``true``)."""
    return truth if isinstance(truth, str) else canonical_json(truth).decode()


def exact_match(params: ExactMatchParams) -> Judge:
    """The response is the ground truth, once the same is done to both texts."""
    steps: list[Callable[[str], str]] = []
    if params.ignore_case:
        steps.append(str.casefold)
    if params.ignore_punctuation:
        steps.append(lambda text: text.translate(_PUNCTUATION))
    if params.strip:
        steps.append(str.strip)

    def normalise(text: str) -> str:
        for step in steps:
            text = step(text)
        return text

    def judge(response: str, truth: Any) -> BuiltInVerdict:
        return normalise(response) == normalise(as_text(truth)), None

    return judge


def contains(params: ContainsParams) -> Judge:
    """The ground truth (or any or all of ``values``) is part of the response."""
    fold = str.casefold if params.ignore_case else str

    def judge(response: str, truth: Any) -> BuiltInVerdict:
        text = fold(response)
        wanted = params.values if params.values is not None else (as_text(truth),)
        missing = [value for value in wanted if fold(value) not in text]
        passed = not missing if params.mode == "all" else len(missing) < len(wanted)
        return passed, {"missing": missing} if missing else None

    return judge


def regex_match(params: RegexMatchParams) -> Judge:
    """The pattern is found in the response, and its group, if one is named, holds the ground truth."""

    def judge(response: str, truth: Any) -> BuiltInVerdict:
        pattern = _compiled(params.pattern if params.pattern is not None else as_text(truth), params.flags())
        found = getattr(pattern, params.mode)(response)
        if found is None:
            return False, {"matched": None}
        if params.group is None:
            return True, {"matched": found.group(0)}
        text = found.group(params.group)
        return text is not None and text.strip() == as_text(truth).strip(), {"matched": text}

    return judge


@lru_cache(maxsize=1024)  # a ground truth may be the pattern: as many as there are items
def _compiled(pattern: str, flags: int) -> "re.Pattern[str]":
    try:
        return re.compile(pattern, flags)
    except re.error as error:
        raise ValueError(f"the ground truth {pattern!r} is no regular expression: {error}") from error


def numeric_match(params: NumericMatchParams) -> Judge:
    """A number of the response is close to the ground truth; a response without a number is wrong."""

    def judge(response: str, truth: Any) -> BuiltInVerdict:
        wanted = _truth_number(truth)
        numbers = _floats([response]) if params.take == "whole" else numbers_in(response)
        if not numbers:
            return False, {"expected": wanted, "found": None}
        found = numbers[0] if params.take == "first" else numbers[-1]
        difference = abs(found - wanted)
        allowed = params.tolerance + params.relative_tolerance * abs(wanted)
        return difference <= allowed, {"expected": wanted, "found": found, "difference": difference}

    return judge


def numbers_in(text: str) -> list[float]:
    """The numbers of a text in order; commas and no-break spaces between groups of three digits belong to a
    number.

    >>> numbers_in("7 + 5 is $1,012.50, not -3e2 or -$4")
    [7.0, 5.0, 1012.5, -300.0, -4.0]
    """
    return _floats(match.group() for match in _NUMBER.finditer(text))


def _floats(texts: Iterable[str]) -> list[float]:
    """Those of the texts that are a number."""
    return [float(number) for number in map(parse_number, texts) if number is not None]


def _truth_number(truth: Any) -> float:
    if isinstance(truth, (int, float)) and not isinstance(truth, bool) and math.isfinite(truth):
        return float(truth)
    numbers = numbers_in(truth) if isinstance(truth, str) else []
    if not numbers:
        raise ValueError(f"the ground truth {truth!r} holds no number")
    return numbers[-1]


def length_check(params: LengthCheckParams) -> Judge:
    """The response is neither too short nor too long."""
    measure = LENGTHS[params.unit]
    low = params.min_length or 0
    high = math.inf if params.max_length is None else params.max_length

    def judge(response: str, truth: Any) -> BuiltInVerdict:
        length = measure(response)
        return low <= length <= high, {"length": length}

    return judge


_SPAN: Final = re.compile(r"```(?:json)?(.*?)```", re.DOTALL | re.IGNORECASE)
_SHOWN = 10
_MISSING: Final = object()

Difference = tuple[str, bool]  # where and what, and whether it is one of structure


def json_match(params: JsonMatchParams) -> Callable[[str, Any], tuple[bool, dict[str, Any]]]:
    """A judge of responses that are JSON, or hold it in the first fenced block that names JSON, else in the
    first that names no language; the ground truth is JSON or its text.

    The details say whether structure and values match and name the first differences by path.
    """

    def judge(response: str, truth: Any) -> tuple[bool, dict[str, Any]]:
        expected = _expected(truth)
        try:
            found = _found(response)
        except orjson.JSONDecodeError as error:
            said = [f"the response is not JSON: {error}"]
            return False, {"structure_matches": False, "values_match": False, "differences": said}
        differences = list(islice(_compare(expected, found, "$", params), 1000))
        structure = not any(structural for _, structural in differences)
        details = {
            "structure_matches": structure,
            "values_match": not differences,
            "differences": [text for text, _ in differences[:_SHOWN]],
        }
        return (structure if params.compare == "structure" else not differences), details

    return judge


def _found(response: str) -> Any:
    """The JSON of a response; raises JSONDecodeError where it holds none."""
    blocks = sorted(
        (block for block in fenced_blocks(response) if block.language in ("json", "")),
        key=lambda block: block.language != "json",
    )
    texts = [block.text for block in blocks[:1]]
    if (span := _SPAN.search(response)) is not None:  # on one line, or closed at the end of one
        texts.append(span[1])
    for text in (response, *texts):
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(text.strip())
    return orjson.loads((texts or [response])[0].strip())  # raises what is wrong with it


def _expected(truth: Any) -> Any:
    if not isinstance(truth, str):
        return truth
    try:
        return orjson.loads(truth)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"the ground truth is not JSON: {error}") from error


def _compare(expected: Any, found: Any, path: str, params: JsonMatchParams) -> Iterator[Difference]:
    """All differences below ``path``, depth first."""
    kinds = _kind(expected), _kind(found)
    if kinds[0] != kinds[1]:
        yield f"{path}: expected {kinds[0]}, found {kinds[1]}", True
    elif isinstance(expected, Mapping):
        yield from _compare_objects(expected, found, path, params)
    elif isinstance(expected, list):
        yield from _compare_lists(expected, found, path, params)
    elif kinds[0] == "number" and abs(expected - found) <= params.tolerance:
        return
    elif expected != found:
        yield f"{path}: expected {_text(expected)}, found {_text(found)}", False


def _compare_objects(
    expected: Mapping[str, Any], found: Mapping[str, Any], path: str, params: JsonMatchParams
) -> Iterator[Difference]:
    for key, value in expected.items():
        other = found.get(key, _MISSING)
        if other is _MISSING:
            yield f"{path}.{key}: is missing", True
        else:
            yield from _compare(value, other, f"{path}.{key}", params)
    if not params.allow_extra_keys:
        for key in found:
            if key not in expected:
                yield f"{path}.{key}: is not expected", True


def _compare_lists(
    expected: list[Any], found: list[Any], path: str, params: JsonMatchParams
) -> Iterator[Difference]:
    if len(expected) != len(found):
        yield f"{path}: expected {len(expected)} entries, found {len(found)}", True
    elif params.ignore_order and _pairs_up(expected, found, params):
        return
    else:
        for index, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from _compare(one, other, f"{path}[{index}]", params)


def _pairs_up(expected: list[Any], found: list[Any], params: JsonMatchParams) -> bool:
    """Can each expected entry be given a found entry of its own that equals it? (Augmenting paths.)"""
    fits = [
        [column for column, other in enumerate(found) if next(_compare(one, other, "", params), None) is None]
        for one in expected
    ]
    taken: dict[int, int] = {}

    def place(row: int, seen: set[int]) -> bool:
        for column in fits[row]:
            if column not in seen:
                seen.add(column)
                if column not in taken or place(taken[column], seen):
                    taken[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(expected)))


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "text"
        case list():
            return "list"
        case _:
            return "object"


def _text(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 60 else text[:59] + "…"


JUDGES: Final[dict[str, Callable[[Any], Judge]]] = {
    "exact_match": exact_match,
    "contains": contains,
    "regex_match": regex_match,
    "json_match": json_match,
    "numeric_match": numeric_match,
    "length_check": length_check,
}


def needs_truth(kind: str, params: Params) -> bool:
    """Whether the built-in can't judge an item that has no ground truth."""
    match params:
        case ContainsParams():
            return params.values is None
        case RegexMatchParams():
            return params.pattern is None or params.group is not None
        case _:
            return kind != "length_check"
