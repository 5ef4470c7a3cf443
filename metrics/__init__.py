"""Metrics, aggregations, reductions and error bars: pure functions of texts and numbers."""

from metrics.aggregation import Aggregation, statistics_of
from metrics.build import CorpusMetric
from metrics.errors import ConfigError, MetricError, NightjarError
from metrics.instances import LLResults
from metrics.metric import Metric
from metrics.reductions.reduction import Reduced, Reduction, Repeats, reduction_key
from metrics.registry import AGGREGATIONS, METRICS, REDUCTIONS, aggregation, metric, reduction
from metrics.types import ChoiceBatch, Estimate, OutputType, Scores

__all__ = [
    "AGGREGATIONS",
    "METRICS",
    "REDUCTIONS",
    "Aggregation",
    "ChoiceBatch",
    "ConfigError",
    "CorpusMetric",
    "Estimate",
    "LLResults",
    "Metric",
    "MetricError",
    "NightjarError",
    "OutputType",
    "Reduced",
    "Reduction",
    "Repeats",
    "Scores",
    "aggregation",
    "metric",
    "reduction",
    "reduction_key",
    "statistics_of",
]
