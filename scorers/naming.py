"""Names of a filter's metrics: each one its own, so that no result overwrites another."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from metrics.build import named_apart
from metrics.config import MetricConfig
from metrics.errors import ConfigError
from metrics.metric import Metric
from metrics.reductions.reduction import reduction_key


def unique_metrics(
    listed: Sequence[MetricConfig], build: Callable[[MetricConfig], Metric], filter_name: str
) -> tuple[Metric, ...]:
    """The metrics of one filter under names that differ.

    Entries that differ in an argument have it in their names. Raises ConfigError naming the filter where
    nothing tells two entries apart, or where two have the same alias.
    """
    aliases = [one.alias for one in listed if one.alias is not None]
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise ConfigError(
                f"filter {filter_name!r}: metric alias {alias!r} is given twice; choose another"
            )
    try:
        metrics = [build(one) for one in listed]
        _refuse_borrowed(aliases, metrics)
        apart = named_apart(metrics)
        _refuse_shared_keys(apart)
    except ConfigError as error:
        raise ConfigError(f"filter {filter_name!r}: {error}") from None
    return tuple(_without_comma(new, old.name) for new, old in zip(apart, metrics, strict=True))


def _refuse_borrowed(aliases: Sequence[str], metrics: Sequence[Metric]) -> None:
    """An alias is what its result is called, so that no other metric may have that name."""
    names = [metric.name for metric in metrics]
    for alias in aliases:
        if names.count(alias) > 1:
            raise ConfigError(f"metric alias {alias!r} is another metric's name, too; choose another")


def _refuse_shared_keys(metrics: Sequence[Metric]) -> None:
    """``max(exact_match)`` and ``exact_match_stderr`` as names would be other results' keys."""
    seen: set[str] = set()
    for metric in metrics:
        for key in (reduction_key(metric, reduction.name) for reduction in metric.reductions):
            for taken in (key, f"{key}_stderr"):
                if taken in seen:
                    raise ConfigError(f"two results would be called {taken!r}; choose another alias")
                seen.add(taken)


def _without_comma(metric: Metric, given: str) -> Metric:
    """The metric, no comma in what was added to its given name: the name of a result is ``metric,filter``."""
    added = metric.name.removeprefix(given)
    return replace(metric, name=given + added.replace(",", ";")) if "," in added else metric


def split_name(name: str, filter_name: str) -> tuple[str, str]:
    """Metric and filter of a result name that may hold both, as ``process_results`` gives them.

    >>> split_name("exact_match,strict-match", "none"), split_name("bleu", "none")
    (('exact_match', 'strict-match'), ('bleu', 'none'))
    """
    metric, comma, own_filter = name.rpartition(",")
    return (metric.strip(), own_filter.strip()) if comma else (name, filter_name)
