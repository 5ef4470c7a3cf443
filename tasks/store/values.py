"""What metrics and ``process_results`` return, as JSON text that keeps NaN and infinities."""

import json
from typing import Any

import numpy as np
import orjson

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def value_text(value: Any) -> str:
    """``value`` as JSON; numbers that are not finite are written as Python writes them.

    >>> value_text([1.5, float("nan"), float("-inf"), None])
    '[1.5,NaN,-Infinity,null]'
    """
    try:
        text = orjson.dumps(value, default=_plain, option=_OPTIONS)
    except TypeError:  # integers beyond 64 bits, half of a surrogate pair
        return _with_python(value)
    # orjson writes null for what is not finite, too.
    return _with_python(value) if b"null" in text else text.decode()


def text_value(text: str) -> Any:
    """What ``value_text`` wrote; integers beyond 64 bits may come back as floats."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def _with_python(value: Any) -> str:
    return json.dumps(value, default=_plain, separators=(",", ":"))


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
