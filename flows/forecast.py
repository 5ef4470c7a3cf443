"""What a run would send and compute, found without running it: for ``--dry-run``, and for the preflight.

Follows the chain of cached records; where a record is missing, items and requests are made in memory.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from flows.kept import Count, Kept
from flows.options import Phase
from flows.plan import AskedModel, Cell, Plan
from tasks.benchmarks.config import open_benchmark
from tasks.caching import Workspace, peek
from tasks.infer import infer, missing_requests
from tasks.load import load
from tasks.render import render
from tasks.rows.items import item_batches, read_items, request_batches
from tasks.steps import Answered
from tasks.store.storage import ArtifactRef


@dataclass(frozen=True)
class Forecast:
    """Requests by model and by judge; pairs by name, and whether all of them is cached."""

    items: int
    models: Mapping[str, Count]
    judges: Mapping[str, Count]
    pairs: Mapping[str, bool]

    def as_dict(self) -> dict[str, Any]:
        """As ``--dry-run --json`` prints it; the sums are of what is known."""
        counts = [*self.models.values(), *self.judges.values()]
        return {
            "items": self.items,
            "requests": {
                "to_send": sum(count.send or 0 for count in counts),
                "cached": sum(count.answered for count in counts),
            },
            "models": {name: count.as_dict() for name, count in self.models.items()},
            "judges": {name: count.as_dict() for name, count in self.judges.items()},
            "pairs": [
                {"metric": name.rpartition(",")[0], "filter": name.rpartition(",")[2], "cached": cached}
                for name, cached in self.pairs.items()
            ],
        }


def forecast(plan: Plan, workspace: Workspace) -> Forecast:
    """Counts everything; reads the dataset and renders it where that is not cached."""
    items = peek(load, plan.load, workspace=workspace)
    count = items.rows if items is not None else sum(batch.num_rows for batch in _items(plan))
    send, answered = dict.fromkeys(plan.models, 0), dict.fromkeys(plan.models, 0)
    kept = Kept(plan, workspace, plan.cells(count))
    for cell in kept.cells:
        missing, total = _cell(plan, workspace, items, cell, kept.answered)
        send[cell.model] += missing
        answered[cell.model] += total - missing
    return Forecast(
        items=count,
        models={name: Count(send[name], answered[name]) for name in plan.models},
        judges=kept.judges(),
        pairs={pair.name: kept.holds(pair) for pair in plan.pairs()},
    )


@dataclass(frozen=True)
class Unanswered:
    """Models that at least one request has no answer of yet, by name; judges and reward models that will be
    asked something, or may be."""

    models: list[str]
    judges: list[AskedModel]


def unanswered(plan: Plan, workspace: Workspace, phase: Phase) -> Unanswered:
    """Whose endpoints a run of that phase will ask."""
    items = peek(load, plan.load, workspace=workspace)
    models = _unanswered_models(plan, workspace, items)
    if phase is Phase.INFER or not plan.asked:
        return Unanswered(models, [])
    if models or items is None:
        return Unanswered(models, list(plan.asked))
    kept = Kept(plan, workspace, plan.cells(items.rows))
    for cell in kept.cells:
        _cell(plan, workspace, items, cell, kept.answered)
    counts = kept.judges()
    judges = [model for model in plan.asked if counts[model.infer.setup.model.name].send != 0]
    return Unanswered(models, judges)


def _unanswered_models(plan: Plan, workspace: Workspace, items: ArtifactRef | None) -> list[str]:
    if items is None and not _could_be_answered(plan, workspace):
        return [name for name, step in plan.models.items() if step.setup.model.type != "replay"]
    count = items.rows if items is not None else sum(batch.num_rows for batch in _items(plan))
    found: dict[str, None] = {}
    for cell in plan.cells(count):
        if cell.model not in found and _cell(plan, workspace, items, cell, {})[0]:
            found[cell.model] = None
    return list(found)


def _could_be_answered(plan: Plan, workspace: Workspace) -> bool:
    store = workspace.open()
    return bool(store.fs.exists(store.path("answers")))


def _cell(
    plan: Plan,
    workspace: Workspace,
    items: ArtifactRef | None,
    cell: Cell,
    known: dict[Cell, tuple[ArtifactRef, Answered]],
) -> tuple[int, int]:
    """How many requests of a cell are missing, and how many there are; its artifacts go to ``known`` if it
    has them."""
    step = plan.models[cell.model]
    asked = None
    if items is not None:
        asked = peek(render, plan.prompts[cell.prompt], items, cell.start, cell.stop, workspace=workspace)
    if asked is not None:
        answered = peek(infer, step, asked, workspace=workspace)
        if answered is not None:
            known[cell] = asked, answered
            return 0, int(answered.accounts.tally["requests"])
    return missing_requests(step, _requests(plan, workspace, items, asked, cell), workspace)


def _requests(
    plan: Plan, workspace: Workspace, items: ArtifactRef | None, asked: ArtifactRef | None, cell: Cell
) -> Iterable[pa.RecordBatch]:
    if asked is not None:
        return workspace.open().batches(asked)
    if items is not None:
        rows = read_items(workspace.open().batches(items, rows=(cell.start, cell.stop)))
    else:
        rows = islice(read_items(_items(plan)), cell.start, cell.stop)
    benchmark = open_benchmark(plan.load.setup.benchmark)
    return request_batches(cell.prompt, benchmark.render(cell.prompt, rows))


def _items(plan: Plan) -> Iterator[pa.RecordBatch]:
    setup = plan.load.setup
    return item_batches(islice(open_benchmark(setup.benchmark).items(), setup.limit))
