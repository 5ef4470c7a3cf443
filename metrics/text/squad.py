"""SQuAD's answer comparison: normalised exact match and token-level F1."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from metrics.registry import each_reference, metric
from metrics.text.inputs import hypotheses, reference_lists
from metrics.types import Floats

SQUAD = "Rajpurkar et al. 2016, 2018; evaluate-v2.0.py"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=8192)
def normalised_words(text: str) -> tuple[str, ...]:
    """Words of an answer: lower case, ASCII punctuation removed, articles removed, split at whitespace."""
    return tuple(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def _best_reference(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    name: str,
    compare: Callable[[tuple[str, ...], tuple[str, ...]], float],
) -> Floats:
    golds = reference_lists(references, name)
    texts = hypotheses(predictions, name)
    return np.array(
        [
            max(compare(normalised_words(gold), normalised_words(text)) for gold in own)
            for own, text in zip(golds, texts, strict=True)
        ],
        dtype=np.float64,
    )


@metric("squad_exact_match", batched=True, source=SQUAD, right_answers=each_reference)
def squad_exact_match(references: Sequence[Sequence[Any]], predictions: Sequence[Any]) -> Floats:
    """1 if the normalised answers are equal (case, punctuation, articles and spacing aside), else 0."""
    return _best_reference(references, predictions, "squad_exact_match", lambda gold, own: float(gold == own))


@metric("token_f1", batched=True, source=SQUAD, right_answers=each_reference)
def token_f1(references: Sequence[Sequence[Any]], predictions: Sequence[Any]) -> Floats:
    """Harmonic mean of precision and recall of the normalised answer's words, 0 to 1; the best reference
    counts.

    Where either answer has no words, 1 if both have none, else 0.
    """
    return _best_reference(references, predictions, "token_f1", _f1)


def _f1(gold: tuple[str, ...], own: tuple[str, ...]) -> float:
    if not gold or not own:
        return float(gold == own)
    shared = sum((Counter(gold) & Counter(own)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(own), shared / len(gold)
    return 2 * precision * recall / (precision + recall)
