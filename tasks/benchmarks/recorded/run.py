"""A run of another program, and the config of ours that it becomes: a model that replays what was answered,
and pairs that take the scores which came along."""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tasks.datasets.config import DatasetError
from tasks.store.home import write_lines

FIELD: Final = "scores"
"""Where a response's metadata have what the program's scorers said."""


@dataclass(frozen=True)
class RecordedRun:
    """What was asked of one model, answered and scored.

    Items have ``id``, ``input`` and ``target``; responses are rows for a model of the type ``replay``. Scores
    stand in ``metadata`` under ``FIELD``, by the names of ``pairs``.
    """

    source: Path
    """The file that it is from: it names where items and responses are written."""
    task: str
    model: str
    items: Sequence[Mapping[str, Any]]
    responses: Sequence[Mapping[str, Any]]
    pairs: Mapping[str, bool]
    """Each score, and whether it lies between 0 and 1 by what it is."""
    lower_is_better: frozenset[str] = frozenset()
    """Scores of which less is better, as far as the program says it."""
    repeats: int = 1
    reduction: str | None = None
    notes: tuple[str, ...] = ()
    unreadable: str = ""
    """Why it has no scores of samples, where the program's files say it."""

    @property
    def refusal(self) -> str:
        """Why it can't be a run of ours; empty where it can."""
        if self.unreadable:
            return f"{self.source}: {self.unreadable}"
        if not self.responses:
            return f"{self.source}: holds no samples; was it written without them?"
        return "" if self.pairs else f"{self.source}: none of its samples has a score"


def written_config(run: RecordedRun, workspace: Path) -> dict[str, Any]:
    """The config of a run, whose items and responses are written below ``workspace``. Raises DatasetError for
    a run without samples or scores."""
    if run.refusal:
        raise DatasetError(run.refusal)
    # Named by the file's place: two models' runs of a task are two files, and the same file is one.
    mark = hashlib.sha256(str(run.source.resolve()).encode()).hexdigest()[:12]
    folder = workspace / f"{run.source.stem}_{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(folder / "items.jsonl", run.items)
    write_lines(folder / "responses.jsonl", run.responses)
    reduction = {"reduction": run.reduction} if run.reduction is not None else {}
    return {
        "name": re.sub(r"[/\\]+", "_", run.task),
        "output_type": "generate_until",
        "dataset": str((folder / "items.jsonl").resolve()),
        "prompt_template": "{{input}}",
        "target": "{{target}}",
        "models": [
            {
                "name": _model_name(run.model),
                "type": "replay",
                "config": {"path": str((folder / "responses.jsonl").resolve())},
            }
        ],
        "sample_params": {"num_samples": run.repeats},
        "scorer": {"type": "recorded"},
        "metric_list": [
            {
                "metric": "recorded",
                "alias": name,
                "field": f"{FIELD}.{name}",
                **({"range": [0, 1]} if bounded else {}),
                **({"higher_is_better": False} if name in run.lower_is_better else {}),
                **reduction,
            }
            for name, bounded in run.pairs.items()
        ],
    }


def _model_name(name: str) -> str:
    """A model's name as results may have it: one with ``..`` between its slashes would lead elsewhere."""
    return re.sub(r"[/\\]+", "_", name) if {".", ".."} & set(re.split(r"[/\\]", name)) else name


def same_number(one: float, other: float) -> bool:
    """Whether two programs' numbers are one, but for how floats were added."""
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def pair_name(name: str) -> str:
    """A score's name as a pair of ours may have it: a dot would lead into a mapping, a comma to a filter."""
    return name.replace(".", "_").replace(",", "_")
