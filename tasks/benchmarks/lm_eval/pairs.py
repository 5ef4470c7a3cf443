"""The metric of definitions whose work is all in an aggregation over (reference, prediction) pairs."""

from collections.abc import Sequence
from typing import Any


def pair(references: Sequence[Any], predictions: Sequence[Any]) -> tuple[Any, Any]:
    """The pair itself; several references stay together as a list.

    >>> pair(references=["4"], predictions=["5"])
    ('4', '5')
    """
    return (references[0] if len(references) == 1 else list(references)), predictions[0]
