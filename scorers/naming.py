"""Names of a filter's metrics: each one its own, so that no result overwrites another."""

from collections.abc import Sequence

from metrics.building import named_apart
from metrics.errors import ConfigError
from metrics.metric import Metric


def unique_metrics(metrics: Sequence[Metric], filter_name: str) -> tuple[Metric, ...]:
    """The metrics of one filter under names that differ; ConfigError naming the filter where nothing tells
    two apart."""
    try:
        return named_apart(metrics)
    except ConfigError as error:
        raise ConfigError(f"filter {filter_name!r}: {error}") from None


def split_name(name: str, filter_name: str) -> tuple[str, str]:
    """Metric and filter of a result name that may hold both, as ``process_results`` gives them.

    >>> split_name("exact_match,strict-match", "none"), split_name("bleu", "none")
    (('exact_match', 'strict-match'), ('bleu', 'none'))
    """
    metric, comma, own_filter = name.rpartition(",")
    return (metric.strip(), own_filter.strip()) if comma else (name, filter_name)
