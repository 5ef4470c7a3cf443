"""Exact match after optional normalisation, as ``evaluate`` and lm-evaluation-harness define it."""

import re
import string
from collections.abc import Sequence
from itertools import chain, compress, repeat
from operator import eq
from typing import Any

import numpy as np

from metrics.errors import ConfigError, MetricError
from metrics.normalisation import Normalisation
from metrics.registry import metric
from metrics.types import Bools, Scores, scalar_scores

_ITEMS = 1024  # normalised at once: few enough for a core's cache


@metric(
    "exact_match",
    batched=True,
    source="huggingface/evaluate metrics/exact_match; lm-evaluation-harness",
    variants={"multiple_choice": "exact_match_mc"},
)
def exact_match(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    regexes_to_ignore: Sequence[str] | None = None,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
) -> Scores:
    """1 if the prediction equals any of the references, else 0; higher is better.

    Both sides are normalised first: matches of each regular expression removed, then lower case, then ASCII
    punctuation removed, then ASCII digits removed. No prediction (None) is wrong. A reference that is not
    text is compared as text with a prediction that is.
    """
    patterns = [regexes_to_ignore] if isinstance(regexes_to_ignore, str) else regexes_to_ignore or []
    deleted = (string.punctuation if ignore_punctuation else "") + (string.digits if ignore_numbers else "")
    normalisation = Normalisation(_compiled(patterns), ignore_case, deleted)
    score = np.empty(len(predictions))
    for start in range(0, len(score), _ITEMS):
        rows = slice(start, start + _ITEMS)
        score[rows] = _matches(references[rows], predictions[rows], normalisation, start)
    return scalar_scores(score)


def _matches(
    references: Sequence[Sequence[Any]], predictions: Sequence[Any], normalisation: Normalisation, first: int
) -> Bools:
    """Whether each prediction equals a reference; ``first`` is the number of the first row."""
    counts = list(map(len, references))
    if 0 in counts:
        row = first + counts.index(0)
        raise MetricError(f"exact_match: row {row} has no reference to compare with", row)
    golds = list(chain.from_iterable(references))
    if len(golds) == len(predictions):
        return _equal(predictions, golds, normalisation)
    own = list(chain.from_iterable(map(repeat, predictions, counts)))  # one for each reference
    starts = np.cumsum([0, *counts[:-1]])
    return np.logical_or.reduceat(_equal(own, golds, normalisation), starts)


def _equal(answers: Sequence[Any], golds: Sequence[Any], normalisation: Normalisation) -> Bools:
    """Whether each answer equals its reference: as texts, or an answer that is no text as it is."""
    if set(map(type, answers)) <= {str}:
        texts = normalisation.of_texts([*answers, *map(str, golds)])
        return np.fromiter(map(eq, texts[: len(golds)], texts[len(golds) :]), np.bool_, count=len(golds))
    text = np.fromiter((isinstance(answer, str) for answer in answers), np.bool_, count=len(golds))
    equal = np.array(
        [answer is not None and bool(answer == gold) for answer, gold in zip(answers, golds, strict=True)]
    )
    equal[text] = _equal(list(map(str, compress(answers, text))), list(compress(golds, text)), normalisation)
    return equal


def _compiled(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except (re.error, TypeError) as error:
            raise ConfigError(
                f"exact_match: regexes_to_ignore holds {pattern!r}, which is no pattern: {error}"
            ) from None
    return compiled
