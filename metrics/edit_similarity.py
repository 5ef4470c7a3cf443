"""Similarity of two texts by the number of single-character edits between them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.levenshtein import levenshtein
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
