"""Predictions and references as the text metrics want them: strings, and at least one reference each."""

from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

from metrics.aggregation import require_pairs
from metrics.errors import MetricError

_DOCUMENTS = 1024  # worked on at once
_CHARACTERS = 1 << 21


def written(prediction: Any) -> Any:
    """A number or truth value as the text that a target of the same value is; anything else as it is.

    Filters such as ``map`` give numbers, and the references of an item are text.
    """
    return str(prediction) if isinstance(prediction, Real) else prediction


def hypotheses(predictions: Sequence[Any], name: str) -> list[str]:
    """Predictions as text: no prediction (None) is an empty hypothesis, a number is written out; anything
    else raises ``MetricError``."""
    texts = ["" if prediction is None else written(prediction) for prediction in predictions]
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise MetricError(f"{name}: the prediction of row {row} is {type(text).__name__}, not text", row)
    return texts


def reference_lists(references: Sequence[Sequence[Any]], name: str) -> list[list[str]]:
    """References as lists of text, numbers written out; an item without any raises ``MetricError``."""
    lists = [[gold if isinstance(gold, str) else str(gold) for gold in golds] for golds in references]
    for row, golds in enumerate(lists):
        if not golds:
            raise MetricError(f"{name}: row {row} has no reference to compare with", row)
    return lists


def batches(sizes: Sequence[int]) -> Iterator[slice]:
    """Documents to work on at once, given how many characters each has: so many that memory stays bounded,
    and one at least."""
    start = characters = 0
    for row, size in enumerate(sizes):
        if row > start and (row - start == _DOCUMENTS or characters + size > _CHARACTERS):
            yield slice(start, row)
            start, characters = row, 0
        characters += size
    if len(sizes):
        yield slice(start, len(sizes))


def read_text_pairs(values: Sequence[Any], name: str) -> tuple[list[Any], list[Any]]:
    """Columns of (reference, prediction) pairs; either may be a list, the prediction's of one text."""
    require_pairs(values, name, "(reference, prediction)")
    references, predictions = [], []
    for row, (reference, prediction) in enumerate(values):
        references.append(
            [reference]
            if isinstance(reference, str) or not isinstance(reference, Sequence)
            else list(reference)
        )
        if isinstance(prediction, Sequence) and not isinstance(prediction, str):
            if len(prediction) != 1:
                raise MetricError(
                    f"{name} takes one prediction a sample, and sample {row} has {len(prediction)}", row
                )
            prediction = prediction[0]
        predictions.append(prediction)
    return references, predictions
