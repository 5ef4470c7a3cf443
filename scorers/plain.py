"""Values of user functions as plain JSON-able ones."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def as_plain(value: Any) -> Any:
    """``value`` with numpy scalars and arrays, tuples and sets as Python numbers and lists; TypeError
    otherwise.

    >>> as_plain({"a": np.float64(0.5), "b": ("x", np.arange(2))})
    {'a': 0.5, 'b': ['x', [0, 1]]}
    """
    if isinstance(value, np.generic):  # first: some of them are floats and texts too
        return value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): as_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted((as_plain(entry) for entry in value), key=repr)
    raise TypeError(f"{type(value).__name__} {value!r:.60}, which is no number, text, list or dictionary")
