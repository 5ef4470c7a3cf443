"""From a config's entry to a ``Metric``: its function, arguments, aggregation and reductions, each
refused here where it does not fit. The scorers' factory builds every metric with it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from metrics.aggregation import Aggregation, build_aggregation, user_aggregation
from metrics.aliases import nearest
from metrics.errors import ConfigError, described, users_code
from metrics.metric import NOT_INSTALLED, Metric, installed_version
from metrics.reductions.reduction import Reduction, build_reduction, is_family
from metrics.registry import AGGREGATIONS, METRICS, MetricDefinition, module_of, parameters
from metrics.types import OUTPUT_TYPES, OutputType, Resolve

if TYPE_CHECKING:
    from metrics.config import MetricConfig


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


def build_metric(config: "MetricConfig", resolve: Resolve, output_type: OutputType | None = None) -> Metric:
    """The metric that ``config`` describes; ``resolve`` turns ``file.py:fn`` into the function.

    Raises ``ConfigError`` for an unknown name, a keyword that nothing takes, an output type (where given)
    that the metric is not made for, and a reduction that does not fit the aggregation.
    """
    definition = _definition(config, resolve, output_type)
    config = _with_levels(config, definition)
    name = config.alias or _default_name(config, definition)
    if output_type is not None and output_type not in definition.output_types:
        raise ConfigError(
            f"metric {name!r} is made for {', '.join(definition.output_types)}, not for {output_type} "
            "(python -m flows.catalog metrics lists them)"
        )
    missing = [one for one in definition.libraries if installed_version(one) == NOT_INSTALLED]
    if definition.extra and missing:
        raise ConfigError(
            f"metric {name!r} needs {', '.join(missing)}, not installed here: "
            f"pip install 'nightjar[{definition.extra}]'"
        )
    if definition.style == "corpus":
        return _corpus_metric(config, definition, name, resolve)
    kwargs = _accepted(definition.function, config.kwargs)
    aggregation = _aggregation(config, definition.aggregation, config.kwargs, resolve)
    _refuse_unknown_arguments(
        name, config.kwargs, definition.function, config.aggregation or definition.aggregation
    )
    return _metric_record(config, definition, name, aggregation, resolve, kwargs, definition.function)


def build_column(config: "MetricConfig", resolve: Resolve) -> Metric:
    """A metric whose values come from elsewhere; a registered name brings its aggregation and direction."""
    known = METRICS.get(config.metric)
    config = _with_levels(config, known)
    default = known.aggregation if known is not None else "mean"
    aggregation = _aggregation(config, default, config.kwargs, resolve)
    definition = known or MetricDefinition(config.metric, _computed_elsewhere, output_types=OUTPUT_TYPES)
    name = config.alias or config.metric
    record = _metric_record(config, definition, name, aggregation, resolve, {}, None)
    own = known or METRICS.get(config.metric.partition(",")[0])  # exact_match,strict-match
    if own is not None and all(map(math.isfinite, own.bounds)):
        record = record.within(own.bounds)
    return replace(record, output_types=OUTPUT_TYPES, style="item", libraries=definition.libraries)


def _with_levels(config: "MetricConfig", definition: MetricDefinition | None) -> "MetricConfig":
    """The config with its reductions spelled out: those that the metric declares where it names none, and
    ``pass@k`` with ``k: [1, 8]`` as pass@1 and pass@8."""
    asked = config.reduction or list(definition.reduction if definition is not None else ("mean",))
    if "k" not in config.kwargs or not any(map(is_family, asked)):
        return config.model_copy(update={"reduction": asked})
    given = config.kwargs["k"]
    levels = given if isinstance(given, (list, tuple)) else [given]
    if not levels or any(not isinstance(k, int) or isinstance(k, bool) or k < 1 for k in levels):
        raise ConfigError(
            f"metric {config.metric!r}: k must be a whole number from 1, or a list, not {given!r}"
        )
    spelled = [
        name
        for entry in asked
        for name in ([f"{entry[:-1]}{k}" for k in levels] if is_family(entry) else [entry])
    ]
    kwargs = {key: value for key, value in config.kwargs.items() if key != "k"}
    return config.model_copy(update={"reduction": spelled, "kwargs": kwargs})


def named_apart(metrics: Sequence[Metric]) -> tuple[Metric, ...]:
    """The same metrics under names that differ: the arguments that differ tell those of one name apart.

    Raises ConfigError for two that differ in nothing, or that share an alias.
    """
    groups: dict[str, list[Metric]] = {}
    for metric in metrics:
        groups.setdefault(metric.name, []).append(metric)
    named = [_with_difference(metric, groups[metric.name]) for metric in metrics]
    seen: set[str] = set()
    for metric in named:
        if metric.name in seen:
            raise ConfigError(f"metric {metric.name!r} is listed twice; give one of them an alias")
        seen.add(metric.name)
    return tuple(named)


def corpus_aggregation(instance: Any, name: str) -> Aggregation:
    """The aggregation of a corpus metric: its own method, over whatever it returned for each sample."""
    return replace(user_aggregation(instance.aggregation, {}, name), name=name)


def _with_difference(metric: Metric, same_name: Sequence[Metric]) -> Metric:
    if len(same_name) == 1:
        return metric
    keys = sorted({key for other in same_name for key in other.arguments})
    differing = [key for key in keys if len({repr(other.arguments.get(key)) for other in same_name}) > 1]
    differences = [f"{key}={metric.arguments[key]}" for key in differing if key in metric.arguments]
    if len({other.aggregation.name for other in same_name}) > 1:
        differences.append(metric.aggregation.name)
    return replace(metric, name=f"{metric.name}[{' '.join(differences)}]") if differences else metric


def _definition(config: "MetricConfig", resolve: Resolve, output_type: OutputType | None) -> MetricDefinition:
    reference = config.function or (
        config.metric if ":" in config.metric and config.metric not in METRICS else None
    )
    if reference is None:
        if not config.metric:
            raise ConfigError("a metric needs a name that is not empty")
        definition = METRICS[config.metric]
        variant = definition.variants.get(output_type or "")
        return definition if variant is None else replace(METRICS[variant], name=definition.name)
    function = resolve(reference)
    if not callable(function):
        raise ConfigError(f"metric {config.metric!r}: {reference} is not a function")
    declared: MetricDefinition | None = getattr(function, "__metric__", None)
    name = getattr(function, "__name__", None) or reference.rpartition(":")[2]
    style = "corpus" if hasattr(function, "aggregation") else "item"
    anywhere = (-math.inf, math.inf)
    undeclared = MetricDefinition(name, function, output_types=OUTPUT_TYPES, style=style, bounds=anywhere)  # type: ignore[arg-type]
    if declared is None:
        return undeclared
    # What is named is called, also where it wraps a declared function or derives from a declared class.
    return (
        declared if declared.function is function else replace(declared, function=function, bounds=anywhere)
    )


def _default_name(config: "MetricConfig", definition: MetricDefinition) -> str:
    return definition.name if ":" in config.metric else config.metric


def _corpus_metric(
    config: "MetricConfig", definition: MetricDefinition, name: str, resolve: Resolve
) -> Metric:
    maker = definition.function
    unknown = [
        key for key in config.kwargs if (accepted := parameters(maker)) is not None and key not in accepted
    ]
    if unknown:
        raise ConfigError(f"metric {name!r} takes no argument {unknown[0]!r}")
    try:
        with users_code():
            instance = maker(**config.kwargs) if isinstance(maker, type) else maker
    except Exception as error:
        raise ConfigError(f"metric {name!r} could not be constructed: {described(error)}") from error
    aggregation = corpus_aggregation(instance, definition.name)
    if config.aggregation is not None:
        aggregation = build_aggregation(config.aggregation, None, resolve)
    return _metric_record(config, replace(definition, style="item"), name, aggregation, resolve, {}, instance)


def _aggregation(
    config: "MetricConfig", default: str, arguments: Mapping[str, Any], resolve: Resolve
) -> Aggregation:
    name = config.aggregation or default
    if not name:
        raise ConfigError(f"metric {config.metric!r} has no aggregation; name one, such as mean")
    entry = AGGREGATIONS.get(name)
    accepted = _accepted(entry.function, arguments) if entry is not None and entry.builds else {}
    return build_aggregation(name, accepted, resolve)


def _metric_record(
    config: "MetricConfig",
    definition: MetricDefinition,
    name: str,
    aggregation: Aggregation,
    resolve: Resolve,
    kwargs: Mapping[str, Any],
    function: Callable[..., Any] | None,
) -> Metric:
    reductions: list[Reduction] = []
    for asked in config.reduction or ["mean"]:
        built = build_reduction(asked, resolve).bound(aggregation)
        if any(built.name == other.name for other in reductions):
            raise ConfigError(f"metric {name!r} lists reduction {built.name!r} twice")
        reductions.append(built)
    own = aggregation.better_up(definition.higher_is_better)
    better = own if config.higher_is_better is None else config.higher_is_better
    metric = Metric(
        name=name,
        function=function,
        aggregation=aggregation,
        reductions=tuple(reductions),
        kwargs=kwargs,
        higher_is_better=better,
        output_types=definition.output_types,
        style=definition.style,
        version=definition.version,
        libraries=definition.libraries,
        entry=definition.name,
        arguments=dict(config.kwargs),
        patterns=None if function is None else definition.patterns,
        endless=function is not None and definition.endless,
        right_answers=None if function is None else definition.right_answers,
        best=definition.bounds[1] if aggregation.items_better_up(own) else definition.bounds[0],
        worst=_worst(definition, better, aggregation),
        refused=None if aggregation.encode is None else definition.refused,
        depends_on=config.depends_on,
    )
    ours = function is not None and module_of(definition).startswith("metrics.")
    return metric.within(definition.bounds) if ours else metric


def _worst(definition: MetricDefinition, higher_is_better: bool, aggregation: Aggregation) -> float | None:
    """The upper end of the range of a sample's number that is better when lower, where it has one and the
    statistics are made of it."""
    worst, better = definition.bounds[1], aggregation.items_better_up(higher_is_better)
    return None if better or math.isinf(worst) or aggregation.encode is None else worst


def _accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    keywords = parameters(function)
    return {key: value for key, value in arguments.items() if keywords is None or key in keywords}


def _refuse_unknown_arguments(
    name: str, arguments: Mapping[str, Any], function: Callable[..., Any], aggregation: str
) -> None:
    keywords = parameters(function)
    if keywords is None:
        return
    entry = AGGREGATIONS.get(aggregation)
    known = keywords | (
        parameters(entry.function) or frozenset() if entry is not None and entry.builds else frozenset()
    )
    for key in arguments:
        if key not in known:
            raise ConfigError(
                f"metric {name!r} takes no argument {key!r}{nearest(key, known)}"
                f" (it takes {', '.join(sorted(known)) or 'none'})"
            )


def _computed_elsewhere() -> None:
    """Stands where a metric's values come from elsewhere."""
