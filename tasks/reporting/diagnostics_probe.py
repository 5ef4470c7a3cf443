"""Filters and exact matches of a run's config, to be tried again on a text that no model wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from metrics.errors import NightjarError
from tasks.reporting.view import Extractor, RunView

if TYPE_CHECKING:
    from metrics.metric import Metric

STRICT: Final = "exact_match"  # of the built-in metrics the one that is all or nothing


@dataclass(frozen=True)
class Probe:
    """One filter, and the metrics that compare its predictions with references exactly."""

    apply: Extractor
    metrics: "Sequence[Metric]"

    def accepts(self, texts: Sequence[str], references: Sequence[Any]) -> bool:
        """Would one of these responses be right under one of the metrics? Raises whatever the filter
        raises.
        """
        kept = self.apply([[text] for text in texts], [{}] * len(texts))
        predictions = [entry[0] if entry else None for entry in kept]
        columns = [references] * len(texts)
        return any(1 in metric.evaluate(columns, predictions).score for metric in self.metrics)

    def outcome(self, text: str) -> Any:
        """The prediction that the filter makes of the text; None: it finds nothing."""
        kept = self.apply([[text]], [{}])[0]
        return kept[0] if kept else None


def probes(view: RunView) -> dict[str, Probe]:
    """Filter name → probe, for filters that take something from a text and are scored by exact match.

    Filters of the user's own code are left out unless the view brings their ``apply``.
    """
    config = view.manifest.get("config")
    if not isinstance(config, Mapping) or config.get("output_type", "generate_until") != "generate_until":
        return {}
    found = {}
    for entry in config.get("filter_list") or ():
        steps, name = entry.get("filter"), str(entry.get("name"))
        metrics = _strict_metrics(entry.get("metric_list") or config.get("metric_list") or [STRICT])
        apply = view.extractors.get(name) or _pipeline(entry)
        if steps and metrics and apply is not None:
            found[name] = Probe(apply, metrics)
    return found


def _pipeline(entry: Mapping[str, Any]) -> Extractor | None:
    from scorers.filters.config import FilterConfig
    from scorers.filters.pipeline import FilterPipeline

    known = {"name": entry.get("name"), "filter": entry.get("filter")}
    try:
        return FilterPipeline.build(FilterConfig.model_validate(known), _unresolved).apply
    except ValueError:  # a function of the user's own, or a step of another version
        return None


def _strict_metrics(entries: Sequence[Any]) -> "list[Metric]":
    from metrics.config import MetricConfig
    from metrics.metric import Metric

    found = []
    for entry in entries:
        try:
            config = MetricConfig.model_validate(entry)
            if config.metric == STRICT and config.function is None:
                found.append(Metric.build(config, _unresolved))
        except ValueError:
            continue
    return found


def _unresolved(reference: str) -> Any:
    raise NightjarError(f"{reference} is not looked up here")
