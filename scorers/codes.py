"""Stable hashes of predictions: equal predictions, equal codes, in every process and on every machine."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

NO_PREDICTION = -1
_POSITIVE = (1 << 63) - 1


def prediction_codes(predictions: Sequence[Any]) -> NDArray[np.int64]:
    """63-bit hashes of the predictions, -1 for None.

    Text "4" and the number 4 differ; mappings are equal whatever the order of their keys.

    >>> codes = prediction_codes(["a", None, "a", 4, "4"])
    >>> codes[0] == codes[2], codes[3] == codes[4], int(codes[1])
    (np.True_, np.False_, -1)
    """
    seen: dict[str, int] = {}
    codes = np.empty(len(predictions), dtype=np.int64)
    for row, prediction in enumerate(predictions):
        if prediction is None:
            codes[row] = NO_PREDICTION
            continue
        # A prefix keeps text apart from JSON, whose own texts begin with a quotation mark.
        text = "t" + prediction if isinstance(prediction, str) else "j" + _canonical(prediction)
        code = seen.get(text)
        if code is None:
            digest = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            code = seen[text] = int.from_bytes(digest, "big") & _POSITIVE
        codes[row] = code
    return codes


def _canonical(prediction: Any) -> str:
    return json.dumps(prediction, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=repr)
