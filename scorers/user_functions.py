"""A user's functions at the scorers' boundary: whether a call will fit is checked before anything runs, and
what comes back is turned into JSON values.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from metrics.aliases import nearest
from metrics.errors import ConfigError


def check_call(
    name: str, function: Callable[..., Any], data: Sequence[str], keywords: Sequence[str] = ()
) -> None:
    """Raises ConfigError where ``function`` takes fewer arguments than it will be given, or not these
    keywords."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return  # a builtin: it cannot be asked
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < len(data) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise ConfigError(f"{name} is called with ({', '.join(data)}), and takes {len(positional)} arguments")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters[len(data) :] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in keywords:
        if key not in known:
            raise ConfigError(
                f"{name} has no argument {key!r}{nearest(key, known)} (its arguments: "
                f"{', '.join(known) or 'none'})"
            )


def as_json(value: Any) -> Any:
    """``value`` with numpy scalars and arrays, tuples and sets as Python numbers and lists; TypeError
    otherwise.

    >>> as_json({"a": np.float64(0.5), "b": ("x", np.arange(2))})
    {'a': 0.5, 'b': ['x', [0, 1]]}
    """
    if isinstance(value, np.generic):  # first: some of them are floats and texts too
        return value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if isinstance(value, set | frozenset):
        return sorted((as_json(entry) for entry in value), key=repr)
    raise TypeError(f"{type(value).__name__} {value!r:.60}, which is no number, text, list or dictionary")
