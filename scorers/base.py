"""What every scorer is to the pipeline."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from metrics.metric import Metric
from metrics.types import Estimate, Floats, Ints
from scorers.records import Batch, Reply, SampleScores, ScorerRequest

if TYPE_CHECKING:
    from metrics.config import StatisticsConfig

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

    def needs(self, metric: Metric) -> str | None:
        """Name of the set of requests that ``metric`` waits for, None if it waits for none.

        Metrics of one filter that name the same set have the same ``requests``, to be asked once.
        """
        ...

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """What a model has to be asked before ``score`` can be called; usually nothing."""
        ...

    def unreadable(self, batch: Batch, metric: Metric, replies: Sequence[Reply | None]) -> Sequence[bool]:
        """Beside each of the ``requests``: it was answered, and the answer could not be read."""
        ...

    def score(self, batch: Batch, metric: Metric, replies: Sequence[Reply | None] = ()) -> SampleScores:
        """The scores of ``metric``. ``replies`` stand beside the ``requests`` of the same batch and metric.

        Raises ScorerError or MetricError naming the item where the metric failed.
        """
        ...

    def estimate(
        self, metric: Metric, statistics: Floats | None, clusters: Ints | None, options: "StatisticsConfig"
    ) -> Estimate | None:
        """The number of ``metric`` with its uncertainty where the scorer knows more of it than the statistics
        of the items (n, k) say; usually None, and the metric's aggregation says it all."""
        ...

    def code(self) -> tuple[Callable[..., Any], ...]:
        """Classes and user functions whose source decides the scores, beside the metric's own."""
        ...
