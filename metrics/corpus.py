"""The public base of corpus metrics: something per item, and one number from all of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from metrics.aggregations import Aggregation, from_function


class CorpusMetric(ABC):
    """A metric that needs all items at once.

    ``metric(references, predictions)`` is called for each sample with lists, and may return anything that
    JSON can hold; ``metric.aggregation(items)`` makes one number of what was returned for all items. Keywords
    of the config go to the constructor. Given several repeats of an item, their results are averaged where
    they are numbers or equally long lists of numbers (else the first counts), and a warning says so once.

    >>> class Longest(CorpusMetric):
    ...     def __call__(self, references, predictions):
    ...         return len(predictions[0])
    ...     def aggregation(self, items):
    ...         return max(items)
    """

    @abstractmethod
    def __call__(self, references: Sequence[Any], predictions: Sequence[Any]) -> Any:
        """What one sample contributes."""

    @abstractmethod
    def aggregation(self, items: Sequence[Any]) -> float:
        """The number that all items' contributions make."""


def corpus_aggregation(instance: Any, name: str) -> Aggregation:
    """The aggregation of a corpus metric: its own method, over whatever it returned for each sample."""
    return replace(from_function(instance.aggregation, {}, name), name=name)
