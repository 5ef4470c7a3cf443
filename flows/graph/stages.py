"""The stages of an evaluation, and those from predictions to numbers: which task runs each submits, and what
they wait for.

``GRAPH`` holds them all in order; a new one is a function with ``@stage`` and its place there. What failed in
one cell of the grid takes nothing else with it: later stages go on with the cells that worked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flows.graph.asking import ScorerExchanges, exchanges, games, ratings
from flows.graph.grid import (
    GridResponses,
    cells,
    grid,
    in_grid_order,
    items,
    predictions,
    requests,
    responses,
    sources_at,
)
from flows.graph.inspected import inspected
from flows.graph.stage import Graph, Node, Stage, Walk, stage
from flows.plan.steps import Cell, FilterPlan, Matchup, MethodPlan, MetricPlan, OverallPlan, PairPlan
from scorers.base import ALL_FILTERS
from tasks.arena import score_games
from tasks.ask import score_replies
from tasks.decide import decide
from tasks.execute import execute, execute_asked, process_asked, score_asked, score_executed
from tasks.judge import aggregate_verdicts, call_user_metric, judge_responses, reduce_verdicts
from tasks.reduce import aggregate, reduce
from tasks.rows.parts import FailedPart
from tasks.score import process_results, score, score_across, score_processed
from tasks.verdicts.rows import TALLIED, VerdictTally, tally_verdicts


@dataclass(frozen=True)
class ScoreInputs:
    """All that scores are computed from."""

    grid: GridResponses
    predictions: Mapping[tuple[Cell, str], Node]
    exchanges: ScorerExchanges
    executions: Mapping[tuple[Cell, str], Node]
    """What came of the programs of a filter's predictions, where scores wait for it."""
    games: Mapping[tuple[Matchup, str], Node] = field(default_factory=dict)
    """What came of the matchups over a filter's predictions, where scores wait for it."""

    def at(self, cell: Cell, filter_name: str) -> tuple[Node, Node, Node]:
        """Requests, predictions and responses of a cell."""
        return sources_at(self.grid, self.predictions, cell, filter_name)


@dataclass(frozen=True)
class PairStatistics:
    """A pair's statistics, cell by cell, and the judged calibration that its numbers rest on, if any."""

    pair: PairPlan
    statistics: Mapping[Cell, Node]
    calibration: Node | None = None


def _of_both_blocks(
    before: Sequence[PairStatistics], after: Sequence[PairStatistics]
) -> list[PairStatistics]:
    """The pairs' statistics of earlier blocks and of the next."""
    merged = []
    for one, other in zip(before, after, strict=True):
        nodes = {**one.statistics, **other.statistics}
        own = {cell: nodes[cell] for cell in in_grid_order(list(nodes))}
        merged.append(PairStatistics(one.pair, own, other.calibration))
    return merged


@dataclass(frozen=True)
class MethodVerdicts:
    """A method's verdicts, cell by cell."""

    method: MethodPlan
    verdicts: Mapping[Cell, Node]


@dataclass(frozen=True)
class PairResults:
    """A pair's item rows (None: it has none) and results; ``overall`` are its results over all of the user's
    facets, where there are any."""

    items: Node | None
    results: Node
    overall: Node | None = None


@stage(computes=[execute, execute_asked])
def executions(
    graph: Graph, grid: GridResponses, predictions: Mapping[tuple[Cell, str], Node]
) -> dict[tuple[Cell, str], Node]:
    """Runs of the programs of every filter whose scores wait for them."""
    steps = {pair.source: pair.execute for pair in graph.plan.pairs() if pair.execute is not None}
    return {
        (cell, name): graph.submit(
            execute_asked if step.setup.asking else execute,
            step.at(cell.suffix, **cell.about),
            *sources_at(grid, predictions, cell, name),
        )
        for name, step in steps.items()
        for cell in grid.cells
    }


@stage(
    computes=[
        score, score_across, score_executed, score_asked, score_games, score_replies, score_processed,
        process_results, process_asked,
    ],
    merge=_of_both_blocks,
)  # fmt: skip
def statistics(
    graph: Graph,
    grid: GridResponses,
    predictions: Mapping[tuple[Cell, str], Node],
    exchanges: ScorerExchanges,
    executions: Mapping[tuple[Cell, str], Node],
    games: Mapping[tuple[Matchup, str], Node],
) -> list[PairStatistics]:
    """Statistics of every pair at every cell."""
    inputs = ScoreInputs(grid, predictions, exchanges, executions, games)
    scored = []
    for entry in graph.plan.filters:
        processed = _process(graph, entry, inputs)
        for pair in entry.pairs:
            cells = inputs.grid.cells if pair.arena is None else pair.arena.scored(inputs.grid.cells)
            own = {cell: _score(graph, pair, cell, inputs, processed) for cell in cells}
            scored.append(PairStatistics(pair, own, inputs.exchanges.calibration_of(pair)))
    return scored


def _process(graph: Graph, entry: FilterPlan, inputs: ScoreInputs) -> dict[Cell, Node]:
    """What ``process_results`` makes of a filter's predictions, for all its pairs at once."""
    step = entry.process
    if step is None or not entry.pairs:
        return {}
    asks = any(pair.execute is not None for pair in entry.pairs)
    return {
        cell: graph.submit(
            process_asked if asks else process_results,
            step.at(cell.suffix, **cell.about),
            *inputs.at(cell, entry.name),
            *([inputs.executions[cell, entry.name]] if asks else []),
        )
        for cell in inputs.grid.cells
    }


def _score(
    graph: Graph, pair: PairPlan, cell: Cell, inputs: ScoreInputs, processed: Mapping[Cell, Node]
) -> Node:
    step = pair.score.at(cell.suffix, **cell.about)
    if pair.source == ALL_FILTERS:
        requests, responses = inputs.grid.at(cell)
        of_filters = {name: future for (at, name), future in inputs.predictions.items() if at == cell}
        return graph.submit(score_across, step, requests, of_filters, responses, pair=pair)
    sources = inputs.at(cell, pair.source)
    if cell in processed:
        return graph.submit(score_processed, step, *sources, processed[cell], pair=pair)
    if pair.execute is not None:
        told = score_asked if pair.execute.setup.asking else score_executed
        return graph.submit(told, step, *sources, inputs.executions[cell, pair.source], pair=pair)
    if pair.arena is not None:
        own = [
            (matchup, future)
            for (matchup, source), future in inputs.games.items()
            if source == pair.source and cell in (matchup.first, matchup.second)
        ]
        opponents = [
            (matchup.second.model, True) if matchup.first == cell else (matchup.first.model, False)
            for matchup, _ in own
        ]
        return graph.submit(score_games, step, *sources, [future for _, future in own], opponents, pair=pair)
    if pair.asks is not None:
        exchange = inputs.exchanges.by_requests[cell, pair.source, pair.asks]
        return graph.submit(score_replies, step, *sources, exchange.requests, exchange.replies, pair=pair)
    return graph.submit(score, step, *sources, pair=pair)


@stage(computes=[decide])
def decision(
    graph: Graph, items: Node, grid: GridResponses, statistics: Sequence[PairStatistics]
) -> dict[int, Node]:
    """Looks of a gate that stops at all pairs that it decides, by the number of items asked.

    One follows on each block of a run that may stop, once enough items are asked and while some are left.
    """
    stopping = graph.plan.stopping
    asked = max((cell.stop for cell in grid.cells), default=0)
    if stopping is None or asked < stopping.least or asked == graph.rows(items):
        return {}
    gated = [entry for entry in statistics if entry.pair.name in stopping.pairs]
    step = stopping.decide.model_copy(update={"name": f"{stopping.decide.name} after {asked:,} items"})
    return {
        asked: graph.submit(
            decide,
            step,
            [graph.plan.origin(cell) for cell in grid.cells],
            [[entry.statistics[cell] for cell in grid.cells] for entry in gated],
            [grid.requests[cell.place] for cell in grid.cells],
            [grid.responses[cell] for cell in grid.cells],
        )
    }


@stage(computes=[judge_responses])
def verdicts(graph: Graph, grid: GridResponses) -> list[MethodVerdicts]:
    """Verdicts of every evaluation method at every cell."""
    judged = []
    for method in graph.plan.methods:
        own = {
            cell: graph.submit(
                judge_responses,
                method.of(graph.plan.origin(cell)).at(cell.suffix, **cell.about),
                *grid.at(cell),
            )
            for cell in grid.cells
        }
        judged.append(MethodVerdicts(method, own))
    return judged


@stage(computes=[reduce, aggregate])
def numbers(
    graph: Graph, grid: GridResponses, statistics: Sequence[PairStatistics]
) -> dict[str, PairResults]:
    """Item rows and numbers of every pair that has statistics anywhere.

    A pair whose score failed for one model goes on with the others: the numbers of what is lost are named
    as failed.
    """
    found = {}
    for entry in statistics:
        cells, nodes = list(entry.statistics), list(entry.statistics.values())
        succeeded = [cell for cell, node in entry.statistics.items() if graph.failure(node) is None]
        if not succeeded:
            continue
        sources = (
            [graph.plan.origin(cell) for cell in succeeded],
            [entry.statistics[cell] for cell in succeeded],
            [grid.requests[cell.place] for cell in succeeded],
            [grid.responses[cell] for cell in succeeded],
            entry.calibration,
        )
        failed = [*graph.failed_parts(cells, nodes), *_unreadable(graph, entry)]
        items, results = _aggregated(graph, entry, entry.pair, sources, failed)
        overall = entry.pair.overall
        whole = _aggregated(graph, entry, overall, sources, failed)[1] if overall is not None else None
        found[entry.pair.name] = PairResults(items, results, whole)
    return found


def _aggregated(
    graph: Graph,
    entry: PairStatistics,
    steps: PairPlan | OverallPlan,
    sources: tuple[Any, ...],
    failed: Sequence[FailedPart],
) -> tuple[Node, Node]:
    """Item rows and numbers of a pair, by its own facets or without them."""
    items = graph.submit(reduce, steps.reduce, *sources, pair=entry.pair)
    return items, graph.submit(aggregate, steps.aggregate, items, failed, entry.calibration, pair=entry.pair)


def _unreadable(graph: Graph, entry: PairStatistics) -> list[FailedPart]:
    """The models and prompts of which a model that is asked to grade said nothing that can be read."""
    if entry.pair.asks is None:
        return []
    readings: dict[tuple[str, str], list[tuple[bool, str | None]]] = {}
    for cell, future in entry.statistics.items():
        read = readings.setdefault((cell.model, cell.prompt), [])
        for batch in graph.batches(future, ["scored", "error"]):
            columns = (batch.column(name).to_pylist() for name in ("scored", "error"))
            read += zip(*columns, strict=True)
    lost = []
    for cell in entry.statistics:
        read = readings.pop((cell.model, cell.prompt), [])
        reason = next((error for _, error in read if error), None)
        if reason and not any(scored for scored, _ in read):
            said = f"no reply of {entry.pair.asks} to {len(read)} responses could be read"
            lost.append(FailedPart(graph.plan.origin(cell), f"{said}; the first: {reason}"))
    return lost


@stage(computes=[reduce_verdicts, aggregate_verdicts, call_user_metric])
def verdict_numbers(
    graph: Graph, grid: GridResponses, verdicts: Sequence[MethodVerdicts]
) -> dict[str, PairResults]:
    """Item rows and results of every metric over the verdicts of all methods.

    What a method failed on, as a task run or on more of its responses than ``errors.max_rate`` allows, is
    left out, and the numbers that it would be part of are named as failed.
    """
    succeeded, failed = [], []
    tallies = {entry.method.name: _tallies(graph, entry) for entry in verdicts}
    labels = {
        name: list(dict.fromkeys(label for tally in own.values() for label in tally.labels))
        for name, own in tallies.items()
    }
    for entry in verdicts:
        name = entry.method.name
        reasons = _failures(graph, entry, tallies[name])
        # What a method lost is lost for its own labels. Where it gave none, a built-in's is its name.
        own: list[str | None] = [*labels[name]] or ([None] if entry.method.knows_model else [name])
        others = tuple(label for other, given in labels.items() if other != name for label in given)
        for cell, future in entry.verdicts.items():
            if cell in reasons:
                origin, reason = graph.plan.origin(cell), reasons[cell]
                failed += [FailedPart(origin, reason, label, name, others) for label in own]
            else:
                succeeded.append((name, cell, future))
    if not succeeded and not failed:
        return {}
    inputs = (
        [(name, graph.plan.origin(cell)) for name, cell, _ in succeeded],
        [future for *_, future in succeeded],
        [grid.requests[cell.place] for _, cell, _ in succeeded],
        [grid.responses[cell] for _, cell, _ in succeeded],
    )
    return {metric.name: _aggregate_verdicts(graph, metric, inputs, failed) for metric in graph.plan.metrics}


Tallies = Mapping[tuple[str, str], VerdictTally]
"""By model and prompt: partitions stand and fall together."""


def _tallies(graph: Graph, entry: MethodVerdicts) -> Tallies:
    """What a method made of the responses of each model to each prompt, as far as its task runs worked."""
    tallies: dict[tuple[str, str], VerdictTally] = {}
    for cell, future in entry.verdicts.items():
        tally = tallies.setdefault((cell.model, cell.prompt), VerdictTally())
        tally_verdicts(tally, graph.batches(future, TALLIED))
    return tallies


def _failures(graph: Graph, entry: MethodVerdicts, tallies: Tallies) -> dict[Cell, str]:
    """The cells of which a method's verdicts can't be used, and why."""
    failures = {}
    answered = {model for (model, _), tally in tallies.items() if tally.rows}
    for cell, future in entry.verdicts.items():
        tally, allowed = tallies[cell.model, cell.prompt], graph.plan.config.errors.max_rate
        reason = graph.failure(future) or tally.failure(entry.method.name, allowed)
        if reason is None and cell.model not in answered:
            reason = f"there is no response of model {cell.model!r} to judge: its recording holds none"
        if reason is not None:
            failures[cell] = reason
    return failures


def _aggregate_verdicts(
    graph: Graph, metric: MetricPlan, inputs: tuple[object, ...], failed: Sequence[object]
) -> PairResults:
    if metric.is_users:
        return PairResults(None, graph.submit(call_user_metric, metric.aggregate, *inputs, failed))
    items = graph.submit(reduce_verdicts, metric.reduce, *inputs)
    return PairResults(items, graph.submit(aggregate_verdicts, metric.aggregate, items, failed))


GRAPH: Final[tuple[Stage, ...]] = (
    items,
    cells,
    requests,
    responses,
    grid,
    predictions,
    executions,
    exchanges,
    games,
    statistics,
    decision,
    verdicts,
    numbers,
    ratings,
    verdict_numbers,
    inspected,
)
"""Every stage, in the order in which they submit their task runs."""


def walk(graph: Graph) -> Walk:
    """All stages, to be gone through by a graph."""
    return Walk(graph, GRAPH)


def known_stages(last: str = GRAPH[-1].gives) -> tuple[str, ...]:
    """The names of all stages' tasks, in the order of the pipeline, up to the stage that gives ``last``: what
    ``--refresh`` takes, and what a manifest counts by."""
    end = [entry.gives for entry in GRAPH].index(last) + 1
    return tuple(dict.fromkeys(task.name for entry in GRAPH[:end] for task in entry.tasks))
