"""The mapped part of the flow: every (filter, metric) pair is scored, reduced and aggregated by tasks of
its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flows.asking import AskedSets
from flows.plan import Cell, FilterPlan, PairPlan
from flows.responses import Responses
from flows.run import Future, Run, completed
from scorers.base import ALL_FILTERS
from tasks.aggregate import aggregate
from tasks.ask import score_replies
from tasks.filter import filter_responses
from tasks.reduce import reduce
from tasks.score import process_results, score, score_across, score_processed


@dataclass(frozen=True)
class Scored:
    """A pair's statistics, cell by cell, and the judged calibration that its numbers rest on, if any."""

    pair: PairPlan
    statistics: Mapping[Cell, Future]
    calibration: Future | None = None


@dataclass(frozen=True)
class Numbers:
    """A pair's item rows (None: it has none) and results."""

    items: Future | None
    results: Future


def filter_all(run: Run, responses: Responses) -> dict[tuple[Cell, str], Future]:
    """Predictions of every filter at every cell."""
    return {
        (cell, entry.name): run.submit(
            filter_responses, entry.step.at(cell.suffix, **cell.about), *responses.at(cell)
        )
        for cell in responses.cells
        for entry in run.plan.filters
        if entry.name != ALL_FILTERS
    }


@dataclass(frozen=True)
class Scoring:
    """All that scores are computed from."""

    responses: Responses
    predictions: Mapping[tuple[Cell, str], Future]
    asked: AskedSets

    def inputs(self, cell: Cell, filter_name: str) -> tuple[Future, Future, Future]:
        """Requests, predictions and answers of a cell."""
        asked, answered = self.responses.at(cell)
        return asked, self.predictions[cell, filter_name], answered


def score_all(run: Run, scoring: Scoring) -> list[Scored]:
    """Statistics of every pair at every cell."""
    scored = []
    for entry in run.plan.filters:
        processed = _processed(run, entry, scoring)
        for pair in entry.pairs:
            statistics = {
                cell: _score(run, pair, cell, scoring, processed) for cell in scoring.responses.cells
            }
            scored.append(Scored(pair, statistics, scoring.asked.calibration_of(pair)))
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
            entry.calibration,
            pair=entry.pair,
        )
        failed = run.failed_parts(cells, futures)
        results = run.submit(
            aggregate, entry.pair.aggregate, items, failed, entry.calibration, pair=entry.pair
        )
        numbers[entry.pair.name] = Numbers(items, results)
    return numbers


def _processed(run: Run, entry: FilterPlan, scoring: Scoring) -> dict[Cell, Future]:
    """What ``process_results`` makes of a filter's predictions, for all its pairs at once."""
    step = entry.process
    if step is None or not entry.pairs:
        return {}
    return {
        cell: run.submit(
            process_results, step.at(cell.suffix, **cell.about), *scoring.inputs(cell, entry.name)
        )
        for cell in scoring.responses.cells
    }


def _score(
    run: Run, pair: PairPlan, cell: Cell, scoring: Scoring, processed: Mapping[Cell, Future]
) -> Future:
    step = pair.score.at(cell.suffix, **cell.about)
    if pair.source == ALL_FILTERS:
        asked, answered = scoring.responses.at(cell)
        everything = {name: future for (at, name), future in scoring.predictions.items() if at == cell}
        return run.submit(score_across, step, asked, everything, answered, pair=pair)
    inputs = scoring.inputs(cell, pair.source)
    if cell in processed:
        return run.submit(score_processed, step, *inputs, processed[cell], pair=pair)
    if pair.asks is not None:
        replies = scoring.asked.sets[cell, pair.source, pair.asks]
        return run.submit(score_replies, step, *inputs, replies.requests, replies.replies, pair=pair)
    return run.submit(score, step, *inputs, pair=pair)
