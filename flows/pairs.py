"""The mapped part of the flow: every (filter, metric) pair is scored, reduced and aggregated by tasks of
its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flows.plan import Cell, FilterPlan, PairPlan
from flows.run import Future, Run, completed
from scorers.base import ALL_FILTERS
from tasks.aggregate import aggregate
from tasks.filter import filter_responses
from tasks.reduce import reduce
from tasks.score import process_results, score, score_across, score_processed


@dataclass(frozen=True)
class Responses:
    """What was asked and what came back, place by place."""

    cells: Sequence[Cell]
    requests: Mapping[tuple[str, int], Future]
    answers: Mapping[Cell, Future]

    def at(self, cell: Cell) -> tuple[Future, Future]:
        """The requests and the answers of a cell."""
        return self.requests[cell.place], self.answers[cell]


@dataclass(frozen=True)
class Scored:
    """A pair's statistics, cell by cell."""

    pair: PairPlan
    statistics: Mapping[Cell, Future]


@dataclass(frozen=True)
class Numbers:
    """A pair's item rows (None: it has none) and results."""

    items: Future | None
    results: Future


def filter_all(run: Run, responses: Responses) -> dict[tuple[Cell, str], Future]:
    """Predictions of every filter at every cell."""
    return {
        (cell, entry.name): run.submit(filter_responses, entry.step.at(cell.suffix), *responses.at(cell))
        for cell in responses.cells
        for entry in run.plan.filters
        if entry.name != ALL_FILTERS
    }


def score_all(run: Run, responses: Responses, predictions: Mapping[tuple[Cell, str], Future]) -> list[Scored]:
    """Statistics of every pair at every cell."""
    scored = []
    for entry in run.plan.filters:
        processed = _processed(run, entry, responses, predictions)
        for pair in entry.pairs:
            statistics = {
                cell: _score(run, pair, cell, responses, predictions, processed) for cell in responses.cells
            }
            scored.append(Scored(pair, statistics))
    return scored


def aggregate_all(run: Run, responses: Responses, scored: Sequence[Scored]) -> dict[str, Numbers]:
    """Item rows and numbers of every pair that has statistics anywhere.

    A pair whose score failed for one model goes on with the others: the numbers of what is lost are named
    as failed.
    """
    numbers = {}
    for entry in scored:
        cells, futures = list(entry.statistics), list(entry.statistics.values())
        worked = [cell for cell, done in zip(cells, completed(futures), strict=True) if done]
        if not worked:
            continue
        items = run.submit(
            reduce,
            entry.pair.reduce,
            [run.origin(cell) for cell in worked],
            [entry.statistics[cell] for cell in worked],
            [responses.requests[cell.place] for cell in worked],
            [responses.answers[cell] for cell in worked],
            pair=entry.pair,
        )
        failed = run.failed_parts(cells, futures)
        results = run.submit(aggregate, entry.pair.aggregate, items, failed, pair=entry.pair)
        numbers[entry.pair.name] = Numbers(items, results)
    return numbers


def _processed(
    run: Run, entry: FilterPlan, responses: Responses, predictions: Mapping[tuple[Cell, str], Future]
) -> dict[Cell, Future]:
    """What ``process_results`` makes of a filter's predictions, for all its pairs at once."""
    if entry.process is None or not entry.pairs:
        return {}
    return {
        cell: _submit_process(run, entry, cell, responses, predictions[cell, entry.name])
        for cell in responses.cells
    }


def _submit_process(
    run: Run, entry: FilterPlan, cell: Cell, responses: Responses, predicted: Future
) -> Future:
    assert entry.process is not None
    asked, answered = responses.at(cell)
    return run.submit(process_results, entry.process.at(cell.suffix), asked, predicted, answered)


def _score(
    run: Run,
    pair: PairPlan,
    cell: Cell,
    responses: Responses,
    predictions: Mapping[tuple[Cell, str], Future],
    processed: Mapping[Cell, Future],
) -> Future:
    step, (asked, answered) = pair.score.at(cell.suffix), responses.at(cell)
    if pair.source == ALL_FILTERS:
        everything = {name: future for (at, name), future in predictions.items() if at == cell}
        return run.submit(score_across, step, asked, everything, answered, pair=pair)
    predicted = predictions[cell, pair.source]
    if cell in processed:
        return run.submit(score_processed, step, asked, predicted, answered, processed[cell], pair=pair)
    return run.submit(score, step, asked, predicted, answered, pair=pair)
