"""Is a response the JSON that was asked for: in structure, and in values?"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import orjson

from tasks.verdicts.config import JsonMatchParams

_FENCE: Final = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL | re.IGNORECASE)
_SHOWN = 10
_MISSING: Final = object()

Difference = tuple[str, bool]  # where and what, and whether it is one of structure


def json_match(params: JsonMatchParams) -> Callable[[str, Any], tuple[bool, dict[str, Any]]]:
    """A judge of responses that are JSON, bare or inside one fenced block; the ground truth is JSON or its
    text.

    The details say whether structure and values match and name the first differences by path.
    """

    def judge(response: str, truth: Any) -> tuple[bool, dict[str, Any]]:
        expected = _expected(truth)
        try:
            found = orjson.loads(_bare(response))
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


def _bare(response: str) -> str:
    fenced = _FENCE.search(response)
    return (fenced.group(1) if fenced else response).strip()


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
