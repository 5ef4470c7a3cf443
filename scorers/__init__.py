"""Where filters and metrics meet: filters prepare responses, scorers turn predictions into statistics.

The public names are loaded when first used, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metrics.instances import GenerationScorer, GenResult, Instance, LLResults
    from scorers.base import (
        ALL_FILTERS,
        Batch,
        FilterError,
        ModelReply,
        SampleScores,
        Scorer,
        ScorerError,
        ScorerRequest,
    )
    from scorers.config import ScoringConfig
    from scorers.factory import build_pipelines, build_scorer
    from scorers.filters.pipeline import FilterPipeline, filter_step


_HOMES = {
    "ALL_FILTERS": "scorers.base",
    "Batch": "scorers.base",
    "FilterError": "scorers.base",
    "FilterPipeline": "scorers.filters.pipeline",
    "GenResult": "metrics.instances",
    "GenerationScorer": "metrics.instances",
    "Instance": "metrics.instances",
    "LLResults": "metrics.instances",
    "ModelReply": "scorers.base",
    "SampleScores": "scorers.base",
    "Scorer": "scorers.base",
    "ScorerError": "scorers.base",
    "ScorerRequest": "scorers.base",
    "ScoringConfig": "scorers.config",
    "build_pipelines": "scorers.factory",
    "build_scorer": "scorers.factory",
    "filter_step": "scorers.filters.pipeline",
}

__all__ = [
    "ALL_FILTERS",
    "Batch",
    "FilterError",
    "FilterPipeline",
    "GenResult",
    "GenerationScorer",
    "Instance",
    "LLResults",
    "ModelReply",
    "SampleScores",
    "Scorer",
    "ScorerError",
    "ScorerRequest",
    "ScoringConfig",
    "build_pipelines",
    "build_scorer",
    "filter_step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'scorers' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
