"""What a row of RESULTS says about where it belongs."""

from collections.abc import Mapping
from typing import Any

from tasks.reduction.facets import parse_facets
from tasks.reduction.records import PairIdentity

Row = dict[str, Any]


def base_row(pair: PairIdentity, reduction: str, label: str | None, facets: str) -> Row:
    """What a row of RESULTS says about where it belongs."""
    values: Mapping[str, Any] = parse_facets(facets)
    return {
        "run_id": None,
        "benchmark": pair.benchmark,
        "model_name": _text(values.get("model_name")),
        "prompt_template": _text(values.get("prompt_template")),
        "filter": pair.filter,
        "metric": pair.metric.name,
        "reduction": reduction,
        "label": label,
        "facets": facets,
        "higher_is_better": pair.metric.higher_is_better,
    }


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
