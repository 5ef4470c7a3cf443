"""A comparison as one JSON document: what ``--json`` prints and ``comparison.json`` holds."""

import math
from dataclasses import asdict
from typing import Any

from metrics.statistics.comparison import Comparison
from tasks.comparison.compare import ComparedPair, ComparedRuns
from tasks.comparison.matching import JoinedItems


def comparison_document(compared: ComparedRuns) -> dict[str, Any]:
    """Everything that a comparison found, JSON-able; NaN becomes null."""
    return {
        "base": compared.base,
        "candidate": compared.candidate,
        "verdict": compared.verdict,
        "gate": compared.gate.model_dump(mode="json") if compared.gate is not None else None,
        "pairs": [_pair(pair) for pair in compared.pairs],
        "changes": [asdict(change) for change in compared.changes],
    }


def _pair(pair: ComparedPair) -> dict[str, Any]:
    key = pair.key
    document = {
        "pair": key.pair,
        "benchmark": key.benchmark,
        "filter": key.filter,
        "metric": key.metric,
        "reduction": key.reduction,
        "label": key.label,
        "facets": dict(key.facets),
        "candidate_facets": dict(pair.match.candidate.facets) if pair.match.candidate is not None else None,
        "higher_is_better": pair.higher_is_better,
        "verdict": pair.verdict,
        "reason": pair.reason,
        "p_adjusted": _finite(pair.p_adjusted),
        "terms": asdict(pair.terms) if pair.terms is not None else None,
    }
    return document | _numbers(pair.comparison) | _counts(pair.joined) | {
        "flipped": [asdict(item) for item in pair.flipped]
    }  # fmt: skip


def _numbers(comparison: Comparison | None) -> dict[str, Any]:
    names = [name for name in Comparison.__dataclass_fields__ if name not in ("ends", "chance")]
    if comparison is None:
        return dict.fromkeys(names)
    return {name: _finite(getattr(comparison, name)) for name in names}


def _counts(joined: JoinedItems | None) -> dict[str, Any]:
    if joined is None:
        return dict.fromkeys(
            ("coverage", "n_base", "n_candidate", "missing", "unscored", "unscored_base", "new")
        )
    return {
        "coverage": _finite(joined.coverage),
        "n_base": joined.n_base,
        "n_candidate": joined.n_candidate,
        "missing": joined.missing,
        "unscored": joined.unscored,
        "unscored_base": joined.unscored_base,
        "new": joined.new,
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
