"""Scores that came with recorded responses: another program gave them, and none is computed here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from metrics.metric import Metric
from metrics.types import number_of
from scorers.base import Batch, ModelReply, SampleScores, score_values
from scorers.generation import GenerationScorer

RECORDED: Final = "recorded"
"""The metric that the scorer adds."""
SCORE: Final = "score"
"""Where a dictionary has the number; it is also the default of the metric's ``field``."""


@dataclass(frozen=True)
class RecordedScorer(GenerationScorer):
    """Adds the metric ``recorded`` to those of a benchmark; all others are scored as generated text.

    Its argument ``field`` is a dotted path into what a recorded row has beside its response. There stands a
    number, or a dictionary with the number as ``score`` and anything else, which becomes the sample's
    details. Where there is no number, the sample is unscored, and ``error`` of the dictionary says why.
    """

    def takes_answer(self, metric: Metric) -> bool:
        """The answer's metadata hold the scores."""
        return metric.entry == RECORDED or super().takes_answer(metric)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """The recorded numbers, row for row."""
        if metric.entry != RECORDED:
            return super().score(batch, metric, replies)
        path = str(metric.arguments.get("field", SCORE))
        found = [_found(answer.metadata, path) if answer else None for answer in batch.answers or ()]
        found = found or [None] * len(batch)
        values = [one.get(SCORE) if isinstance(one, Mapping) else one for one in found]
        numbers = [number_of(value) for value in values]
        errors = [_reason(one, path) for one in found]
        return score_values(batch, metric, numbers, errors, [_details(one) for one in found])


def _found(metadata: Mapping[str, Any], path: str) -> Any:
    """What stands at a dotted path; None where nothing does."""
    place: Any = metadata
    for name in path.split("."):
        if not isinstance(place, Mapping) or name not in place:
            return None
        place = place[name]
    return place


def _reason(found: Any, path: str) -> str:
    if isinstance(found, Mapping) and found.get("error"):
        return str(found["error"])
    return f"the recorded row has no number at {path}"


def _details(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, Mapping):
        return None
    return {name: value for name, value in found.items() if name not in (SCORE, "error")} or None
