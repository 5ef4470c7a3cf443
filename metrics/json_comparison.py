"""Where two JSON values differ first."""

import math
from typing import Any


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
        return math.isclose(left, right, rel_tol=1e-12, abs_tol=abs_tol)
    return bool(left == right)
