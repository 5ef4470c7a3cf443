"""A byte-level n-gram language model: small, exact, and the same in every process.

P(byte | context) interpolates orders 0 to ``ORDER`` with Witten-Bell weights, down to the uniform
distribution over the 256 bytes, so that every text has a finite log-likelihood. Its training text is
``corpus.txt`` beside this file.
"""

from collections import defaultdict
from functools import lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

ORDER = 6
BOS = 256
"""Token id that stands before the text; all other ids are the bytes' values."""


@lru_cache(maxsize=1)
def _counts() -> dict[bytes, NDArray[np.int64]]:
    """Counts of the bytes that follow each context of up to ``ORDER`` bytes, sparse: (byte, count) pairs."""
    text = b"\n" + (files(__package__) / "corpus.txt").read_bytes()
    counts: dict[bytes, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for end in range(1, len(text)):
        for order in range(min(ORDER, end) + 1):
            counts[text[end - order : end]][text[end]] += 1
    return {context: np.array(sorted(following.items())) for context, following in counts.items()}


@lru_cache(maxsize=1 << 14)
def log_distribution(context: bytes) -> NDArray[np.float64]:
    """Natural-log probabilities (256,) of the byte after ``context``, its last ``ORDER`` bytes."""
    counts = _counts()
    probability = np.full(256, 1 / 256)
    for order in range(len(context) + 1):
        following = counts.get(context[len(context) - order :])
        if following is None:
            break
        total, distinct = following[:, 1].sum(), len(following)
        probability = probability * (distinct / (total + distinct))
        probability[following[:, 0]] += following[:, 1] / (total + distinct)
    result: NDArray[np.float64] = np.log(probability)
    result.flags.writeable = False
    return result


def score(tokens: list[int]) -> list[tuple[float, int, float]]:
    """For each token after the first: its log-probability, the likeliest byte and that byte's
    log-probability.

    ``tokens`` are bytes, BOS (or the start of a text) counting as a line break.
    """
    text = bytes(0x0A if token == BOS else token for token in tokens)
    scored = []
    for position in range(1, len(text)):
        logs = log_distribution(text[max(0, position - ORDER) : position])
        best = int(logs.argmax())
        scored.append((float(logs[text[position]]), best, float(logs[best])))
    return scored
