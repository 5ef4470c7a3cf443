"""Exact match after optional normalisation, as ``evaluate`` and lm-evaluation-harness define it."""

import re
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metrics.errors import ConfigError, MetricError
from metrics.registry import metric
from metrics.types import Scores, scalar_scores

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DIGITS = str.maketrans("", "", string.digits)


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
    normalise = _normaliser(regexes_to_ignore, ignore_case, ignore_punctuation, ignore_numbers)
    score = np.fromiter(
        (
            _matches(golds, prediction, normalise, row)
            for row, (golds, prediction) in enumerate(zip(references, predictions, strict=True))
        ),
        dtype=np.float64,
        count=len(predictions),
    )
    return scalar_scores(score)


def _matches(golds: Sequence[Any], prediction: Any, normalise: Callable[[str], str], row: int) -> bool:
    if not golds:
        raise MetricError(f"exact_match: row {row} has no reference to compare with", row)
    if not isinstance(prediction, str):
        return prediction is not None and any(prediction == gold for gold in golds)
    if prediction in golds:
        return True  # equal as they are, whatever is ignored
    answer = normalise(prediction)
    return answer in [normalise(gold if isinstance(gold, str) else str(gold)) for gold in golds]


def _normaliser(
    patterns: Sequence[str] | None, case: bool, punctuation: bool, numbers: bool
) -> Callable[[str], str]:
    """The normalisation as one function.

    Trailing NULs go, since the reference implementation compares numpy string arrays, which cannot hold them.
    """
    compiled = _compiled([patterns] if isinstance(patterns, str) else patterns or [])
    deleted = {**(_PUNCTUATION if punctuation else {}), **(_DIGITS if numbers else {})}

    def normalise(text: str) -> str:
        for pattern in compiled:
            text = pattern.sub("", text).rstrip("\0")
        if case:
            text = text.lower()
        if deleted:
            text = text.translate(deleted)
        return text.rstrip("\0")

    return normalise


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
