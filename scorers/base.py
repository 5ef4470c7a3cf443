"""What every scorer is to the pipeline."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from metrics.metric import Metric
from scorers.records import Batch, Reply, SampleScores, ScorerRequest

ALL_FILTERS = "*"
"""Filter name of a score that looks at the predictions of all filters at once."""


@runtime_checkable
class Scorer(Protocol):
    """Where filters and metrics meet: what is needed from a model, and how predictions become statistics.

    A scorer never filters and never calls a model; it works on one batch at a time and keeps nothing in
    between.
    """

    def get_metrics(self, filter_name: str) -> tuple[Metric, ...]:
        """The metrics of a filter's predictions, their names unique; empty where it has none."""
        ...

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """What a model has to be asked before ``score`` can be called; usually nothing."""
        ...

    def score(self, batch: Batch, metric: Metric, replies: Sequence[Reply | None] = ()) -> SampleScores:
        """The scores of ``metric``. ``replies`` stand beside the ``requests`` of the same batch and metric.

        Raises ScorerError or MetricError naming the item where the metric failed.
        """
        ...
