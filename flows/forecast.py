"""What a run would send and compute, found without running it: for ``--dry-run``, and for the preflight.

Follows the chain of cached records; where a record is missing, items and requests are made in memory.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from flows.plan import Cell, PairPlan, Plan
from scorers.base import ALL_FILTERS
from tasks.answered import Answered
from tasks.benchmarks.config import open_benchmark
from tasks.caching import Workspace, peek
from tasks.filter import filter_responses
from tasks.infer import infer, missing_requests
from tasks.load import load
from tasks.render import render
from tasks.rows.items import item_batches, read_items, request_batches
from tasks.score import process_results, score, score_processed
from tasks.store.refs import ArtifactRef


@dataclass(frozen=True)
class Forecast:
    """Requests that would be sent and that are answered already, by model; pairs by name, and whether all
    is cached."""

    items: int
    send: dict[str, int]
    answered: dict[str, int]
    pairs: dict[str, bool]

    def as_dict(self) -> dict[str, Any]:
        """As ``--dry-run --json`` prints it."""
        return {
            "items": self.items,
            "requests": {"to_send": sum(self.send.values()), "cached": sum(self.answered.values())},
            "models": {
                name: {"to_send": self.send[name], "cached": self.answered[name]} for name in self.send
            },
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
    known: dict[Cell, tuple[ArtifactRef, Answered]] = {}
    cells = plan.cells(count)
    for cell in cells:
        _, missing, total = _cell(plan, workspace, items, cell, known)
        send[cell.model] += missing
        answered[cell.model] += total - missing
    pairs = {pair.name: _is_cached(plan, workspace, pair, cells, known) for pair in plan.pairs()}
    return Forecast(items=count, send=send, answered=answered, pairs=pairs)


def unanswered(plan: Plan, workspace: Workspace) -> list[str]:
    """Models with at least one request that has no answer yet: those whose endpoint will be asked."""
    items = peek(load, plan.load, workspace=workspace)
    if items is None and not _could_be_answered(plan, workspace):
        return [name for name, step in plan.models.items() if step.setup.model.type != "replay"]
    count = items.rows if items is not None else sum(batch.num_rows for batch in _items(plan))
    found: dict[str, None] = {}
    for cell in plan.cells(count):
        if cell.model not in found and _cell(plan, workspace, items, cell, {})[1]:
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
) -> tuple[ArtifactRef | None, int, int]:
    """The requests artifact of a cell if it is there, how many requests are missing, and how many there
    are."""
    step = plan.models[cell.model]
    asked = None
    if items is not None:
        asked = peek(render, plan.prompts[cell.prompt], items, cell.start, cell.stop, workspace=workspace)
    if asked is not None:
        answered = peek(infer, step, asked, workspace=workspace)
        if answered is not None:
            known[cell] = asked, answered
            return asked, 0, int(answered.accounts.tally["requests"])
    missing, total = missing_requests(step, _requests(plan, workspace, items, asked, cell), workspace)
    return asked, missing, total


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


def _is_cached(
    plan: Plan,
    workspace: Workspace,
    pair: PairPlan,
    cells: list[Cell],
    known: dict[Cell, tuple[ArtifactRef, Answered]],
) -> bool:
    """Whether the pair's statistics are there for every cell (of a score across filters: never said to
    be)."""
    if pair.source == ALL_FILTERS:
        return False
    entry = next(entry for entry in plan.filters if entry.name == pair.source)
    for cell in cells:
        if cell not in known:
            return False
        asked, answered = known[cell]
        predicted = peek(filter_responses, entry.step, asked, answered, workspace=workspace)
        if predicted is None:
            return False
        place = asked, predicted, answered
        if entry.process is None:
            scored = peek(score, pair.score, *place, workspace=workspace)
        else:
            processed = peek(process_results, entry.process, *place, workspace=workspace)
            if processed is None:
                return False
            scored = peek(score_processed, pair.score, *place, processed, workspace=workspace)
        if scored is None:
            return False
    return True
