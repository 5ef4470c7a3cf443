"""Inspect's own numbers: its metric functions, called where it is, over the scores of all samples."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tasks.inspecting.config import InspectRun
from tasks.inspecting.interpreter import call_inspect

OWN: Final = "inspect"
"""Where a response's metadata have a sample's scores as Inspect gave them."""
KEPT: Final = ("value", "answer", "metadata")
"""Fields of a score that a metric may look at."""


def own_scores(sample: Mapping[str, Any]) -> dict[str, Any]:
    """What Inspect's metrics need of a sample of a log."""
    scores = {
        name: {field: given.get(field) for field in KEPT}
        for name, given in (sample.get("scores") or {}).items()
    }
    about = {"id": sample["id"], "epoch": sample["epoch"], "metadata": sample.get("metadata") or {}}
    return {OWN: {**about, "scores": scores}}


def task_numbers(
    run: InspectRun,
    metadata: Iterable[Mapping[str, Any]],
    place: Path,
    base_dir: Path,
    check: Callable[[], None],
) -> list[dict[str, Any]]:
    """What the task's metrics make of samples, of which ``metadata`` have the scores: as a log's ``results``,
    a score's name, scorer, reducer and metrics. Raises InspectFailed, and what ``check`` raises."""
    samples = [one[OWN] for one in metadata if one.get(OWN, {}).get("scores")]
    if not samples:
        return []
    request = {
        "task": run.task.task,
        "args": run.task.args,
        # As Inspect goes through them: epoch after epoch.
        "samples": [_with_nan(sample) for sample in sorted(samples, key=lambda sample: sample["epoch"])],
    }
    said: list[dict[str, Any]] = call_inspect("numbers", request, place, base_dir, check=check)["scores"]
    return said


def _with_nan(sample: Mapping[str, Any]) -> dict[str, Any]:
    """The sample with NaN in its place, which JSON has no word for: a score without a value is one."""
    scores = {name: {**given, "value": _value(given["value"])} for name, given in sample["scores"].items()}
    return {**sample, "scores": scores}


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _value(one) for name, one in value.items()}
    return math.nan if value is None else value
