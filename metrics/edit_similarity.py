"""Similarity of two texts by the number of single-character edits between them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.registry import metric
from metrics.texts import hypotheses, reference_lists
from metrics.types import Floats


@metric("edit_similarity", batched=True, source="Levenshtein 1966")
def edit_similarity(
    references: Sequence[Sequence[Any]], predictions: Sequence[Any], *, ignore_case: bool = False
) -> Floats:
    """1 - edits / length of the longer text, 0 to 1, of characters; the best reference; 1 for two empty
    texts."""
    golds = reference_lists(references, "edit_similarity")
    texts = hypotheses(predictions, "edit_similarity")
    if ignore_case:
        golds = [[gold.casefold() for gold in own] for own in golds]
        texts = [text.casefold() for text in texts]
    best = [max(_similarity(gold, text) for gold in own) for own, text in zip(golds, texts, strict=True)]
    return np.array(best, dtype=np.float64)


def _similarity(first: str, second: str) -> float:
    longer = max(len(first), len(second))
    return 1 - levenshtein(first, second) / longer if longer else 1.0


def levenshtein(first: str, second: str) -> int:
    """Insertions, deletions and substitutions between two texts; a column of the table as the bits of an
    integer.

    Myers 1999 in the form of Hyyrö 2003.

    >>> levenshtein("kitten", "sitting")
    3
    """
    if first == second:
        return 0
    if not first or not second:
        return len(first) or len(second)
    places: dict[str, int] = {}
    for place, character in enumerate(first):
        places[character] = places.get(character, 0) | (1 << place)
    full, last = (1 << len(first)) - 1, 1 << (len(first) - 1)
    positive, negative, distance = full, 0, len(first)
    for character in second:
        equal = places.get(character, 0)
        diagonal = (((equal & positive) + positive) ^ positive) | equal | negative
        up, down = negative | (full & ~(diagonal | positive)), positive & diagonal
        distance += bool(up & last) - bool(down & last)
        up, down = ((up << 1) | 1) & full, (down << 1) & full
        positive, negative = down | (full & ~(diagonal | up)), up & diagonal
    return distance
