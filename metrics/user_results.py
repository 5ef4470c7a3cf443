"""What a user's metric may return for one item, a number or a dictionary, and how it becomes ``Scores``."""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation
from metrics.errors import MetricError
from metrics.types import Scores, number_of


@cache
def warn_once(text: str) -> None:
    """Say something once a process: a metric is called batch after batch."""
    warnings.warn(text, UserWarning, stacklevel=3)


def read_user_results(results: Sequence[Any], name: str, entry: str, aggregation: Aggregation) -> Scores:
    """Scores of per-item returns; of a dictionary, the entry called like the metric, else the first one.

    Raises ``MetricError`` with the row for an empty dictionary, and for something that is not a number where
    the aggregation takes numbers.
    """
    details: list[dict[str, Any] | None] = [None] * len(results)
    values = list(results)
    for index, result in enumerate(results):
        if isinstance(result, Mapping):
            values[index], details[index] = _from_mapping(result, name, entry, index)
        plain = aggregation.scalar and aggregation.function is None
        if plain and isinstance(values[index], (list, tuple)):
            values[index] = _only(values[index], name, index)
    if aggregation.function is None:
        values = (
            [_number(value, name, index) for index, value in enumerate(values)]
            if aggregation.scalar
            else values
        )
    try:
        scores = aggregation.scores(values)
    except MetricError as error:
        raise MetricError(f"metric {name!r}: {error}", error.index) from error
    any_details = details if any(detail is not None for detail in details) else None
    return Scores(scores.statistics, scores.values, scores.score, any_details)


def _from_mapping(
    result: Mapping[str, Any], name: str, entry: str, index: int
) -> tuple[Any, dict[str, Any] | None]:
    if not result:
        raise MetricError(f"metric {name!r} returned an empty dictionary for row {index}", index)
    key = next((known for known in (name, entry) if known in result), None)
    if key is None:
        key = next(iter(result))
        warn_once(
            f"metric {name!r} returned a dictionary without an entry of that name; "
            f"its first entry, {key!r}, is the score"
        )
    rest = {str(other): value for other, value in result.items() if other != key}
    return result[key], rest or None


def _only(repeats: Sequence[Any], name: str, index: int) -> Any:
    """The one value of a list with a value for each repeat: a metric is given one repeat at a time."""
    if len(repeats) != 1:
        raise MetricError(
            f"metric {name!r} returned {len(repeats)} values for row {index}; it is called with one "
            "prediction, expected one",
            index,
        )
    return repeats[0]


def _number(value: Any, name: str, index: int) -> float:
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(())[()]
    if (number := number_of(value)) is not None:
        return number
    if value is None:
        raise MetricError(
            f"metric {name!r} returned nothing for row {index}; return a number or a dictionary", index
        )
    raise MetricError(f"metric {name!r} returned {type(value).__name__} for row {index}, not a number", index)
