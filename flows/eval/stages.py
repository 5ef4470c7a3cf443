"""The mapped part of the flow: every (filter, metric) pair is scored, reduced and aggregated by tasks of
its own."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect import Task

from flows.eval.run import Future, Run, completed, finished
from flows.plan.steps import Cell, FilterPlan, MethodPlan, MetricPlan, PairPlan
from scorers.base import ALL_FILTERS
from tasks.aggregate import aggregate
from tasks.ask import ask, ask_calibration, score_calibration, score_replies
from tasks.filter import filter_responses
from tasks.infer import infer
from tasks.judge import aggregate_verdicts, call_user_metric, judge_responses, reduce_verdicts
from tasks.pair import PairSetup
from tasks.reduce import reduce
from tasks.reduction import FailedPart
from tasks.score import process_results, score, score_across, score_processed
from tasks.steps import Step
from tasks.verdicts.judge import TALLIED, VerdictTally, tally_verdicts


@dataclass(frozen=True)
class GridResponses:
    """What was asked and what came back, place by place."""

    cells: Sequence[Cell]
    requests: Mapping[tuple[str, int], Future]
    answers: Mapping[Cell, Future]

    def at(self, cell: Cell) -> tuple[Future, Future]:
        """The requests and the answers of a cell."""
        return self.requests[cell.place], self.answers[cell]


@dataclass
class ScorerExchange:
    """What the models of one set of requests were asked, attempt by attempt, and what they replied.

    ``task`` makes the requests that ``score`` waits for, from ``inputs``.
    """

    pair: PairPlan
    task: Task[..., Any]
    score: Step[PairSetup]
    purpose: str
    inputs: tuple[Future, ...] = ()
    requests: list[Future] = field(default_factory=list)
    replies: list[Future] = field(default_factory=list)

    def purpose_of(self, attempt: int) -> str:
        """What an attempt's task runs are for, as their names say it."""
        return self.purpose + (f" (attempt {attempt + 1})" if attempt else "")


@dataclass(frozen=True)
class ScorerExchanges:
    """All that was asked: by cell, filter and name of the set of requests, which metrics that need the same
    share; and how judges graded the answers of their calibration, if they had to."""

    sets: Mapping[tuple[Cell, str, str], ScorerExchange]
    calibration: Future | None

    def calibration_of(self, pair: PairPlan) -> Future | None:
        """The judged calibration that a pair's numbers rest on."""
        return self.calibration if pair.calibration is not None else None


def ask_all(
    run: Run, responses: GridResponses, predictions: Mapping[tuple[Cell, str], Future]
) -> ScorerExchanges:
    """Asks what is not answered; what the run before could not read is asked once more."""
    sets: dict[tuple[Cell, str, str], ScorerExchange] = {}
    for pair in run.plan.pairs():
        for cell in responses.cells if pair.asks is not None else ():
            key = (cell, pair.source, str(pair.asks))
            if key not in sets:
                asked, answered = responses.at(cell)
                inputs = asked, predictions[cell, pair.source], answered
                sets[key] = ScorerExchange(pair, ask, pair.score, f" for {pair.source}{cell.suffix}", inputs)
    calibration = _calibration(run.plan.pairs())
    everything = [*sets.values(), *([calibration] if calibration is not None else [])]
    for entry in everything:
        _send(run, entry, _ask(run, entry, 0), 0)
    _ask_again(run, everything)
    _prepare(run, everything)
    return ScorerExchanges(sets, _judged(run, calibration) if calibration is not None else None)


def _calibration(pairs: Iterable[PairPlan]) -> ScorerExchange | None:
    """A judge's calibration is the same for all filters, and so is asked about once."""
    for pair in pairs:
        if pair.calibration is not None:
            return ScorerExchange(pair, ask_calibration, pair.calibration, " for the calibration")
    return None


def _judged(run: Run, entry: ScorerExchange) -> Future:
    return run.submit(score_calibration, entry.score, entry.requests, entry.replies, pair=entry.pair)


def _ask(run: Run, entry: ScorerExchange, attempt: int) -> list[Future]:
    """Makes the requests of one attempt, to each model what is still to be asked of it."""
    return [
        run.submit(
            entry.task,
            model.ask(entry.score, entry.purpose_of(attempt), attempt),
            *entry.inputs,
            list(entry.requests),
            list(entry.replies),
            pair=entry.pair,
        )
        for model in run.plan.asked
    ]


def _send(run: Run, entry: ScorerExchange, wanted: Sequence[Future], attempt: int) -> None:
    """Sends the requests of one attempt."""
    purpose = entry.purpose_of(attempt)
    entry.replies += [
        run.submit(infer, model.infer.at(purpose), future)
        for model, future in zip(run.plan.asked, wanted, strict=True)
    ]
    entry.requests += wanted


def _ask_again(run: Run, entries: Sequence[ScorerExchange]) -> None:
    """Further attempts, as long as the one before is from an earlier run and left something unreadable.

    An attempt with nothing to ask leaves no trace: the scores rest on the same replies as before.
    """
    attempt, models = 0, len(run.plan.asked)
    while entries := [entry for entry in entries if _from_before(entry.replies[-models:])]:
        attempt += 1
        wanted = [_ask(run, entry, attempt) for entry in entries]
        open_ones = [(entry, asked) for entry, asked in zip(entries, wanted, strict=True) if _some(asked)]
        for entry, asked in open_ones:
            _send(run, entry, asked, attempt)
        entries = [entry for entry, _ in open_ones]


def _prepare(run: Run, entries: Sequence[ScorerExchange]) -> None:
    """Makes the requests that the next run will send, so that it finds all steps cached where there are
    none."""
    models = len(run.plan.asked)
    for entry in entries:
        if not _from_before(entry.replies[-models:]):
            _ask(run, entry, len(entry.replies) // models)


def _from_before(replies: Sequence[Future]) -> bool:
    return all(finished(replied).name == "Cached" for replied in replies)


def _some(wanted: Sequence[Future]) -> bool:
    """Whether there is anything to ask; requests that could not be made count, so that what waits for them
    fails with their reason."""
    return any(not finished(future).is_completed() or future.result().rows for future in wanted)


@dataclass(frozen=True)
class PairStatistics:
    """A pair's statistics, cell by cell, and the judged calibration that its numbers rest on, if any."""

    pair: PairPlan
    statistics: Mapping[Cell, Future]
    calibration: Future | None = None


@dataclass(frozen=True)
class PairResults:
    """A pair's item rows (None: it has none) and results."""

    items: Future | None
    results: Future


def filter_all(run: Run, responses: GridResponses) -> dict[tuple[Cell, str], Future]:
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
class ScoreInputs:
    """All that scores are computed from."""

    responses: GridResponses
    predictions: Mapping[tuple[Cell, str], Future]
    asked: ScorerExchanges

    def inputs(self, cell: Cell, filter_name: str) -> tuple[Future, Future, Future]:
        """Requests, predictions and answers of a cell."""
        asked, answered = self.responses.at(cell)
        return asked, self.predictions[cell, filter_name], answered


def score_all(run: Run, scoring: ScoreInputs) -> list[PairStatistics]:
    """Statistics of every pair at every cell."""
    scored = []
    for entry in run.plan.filters:
        processed = _processed(run, entry, scoring)
        for pair in entry.pairs:
            statistics = {
                cell: _score(run, pair, cell, scoring, processed) for cell in scoring.responses.cells
            }
            scored.append(PairStatistics(pair, statistics, scoring.asked.calibration_of(pair)))
    return scored


def aggregate_all(
    run: Run, responses: GridResponses, scored: Sequence[PairStatistics]
) -> dict[str, PairResults]:
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
        failed = [*run.failed_parts(cells, futures), *_unread(run, entry)]
        results = run.submit(
            aggregate, entry.pair.aggregate, items, failed, entry.calibration, pair=entry.pair
        )
        numbers[entry.pair.name] = PairResults(items, results)
    return numbers


def _unread(run: Run, entry: PairStatistics) -> list[FailedPart]:
    """The models and prompts of which a model that is asked to grade said nothing that can be read."""
    if entry.pair.asks is None:
        return []
    readings: dict[tuple[str, str], list[tuple[bool, str | None]]] = {}
    for cell, future in entry.statistics.items():
        if run.failure(future) is None:
            table = run.workspace.open().table(future.result(), ["scored", "error"])
            pairs = zip(*(table.column(name).to_pylist() for name in ("scored", "error")), strict=True)
            readings.setdefault((cell.model, cell.prompt), []).extend(pairs)
    lost = []
    for cell in entry.statistics:
        read = readings.pop((cell.model, cell.prompt), [])
        reason = next((error for _, error in read if error), None)
        if reason and not any(scored for scored, _ in read):
            said = f"nothing that {entry.pair.asks} said of {len(read)} responses could be read"
            lost.append(FailedPart(run.origin(cell), f"{said}; the first: {reason}"))
    return lost


def _processed(run: Run, entry: FilterPlan, scoring: ScoreInputs) -> dict[Cell, Future]:
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
    run: Run, pair: PairPlan, cell: Cell, scoring: ScoreInputs, processed: Mapping[Cell, Future]
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


@dataclass(frozen=True)
class JudgedBy:
    """A method's verdicts, cell by cell."""

    method: MethodPlan
    verdicts: Mapping[Cell, Future]


def judge_all(run: Run, responses: GridResponses) -> list[JudgedBy]:
    """Verdicts of every evaluation method at every cell."""
    judged = []
    for method in run.plan.methods:
        verdicts = {
            cell: run.submit(
                judge_responses,
                method.of(run.origin(cell)).at(cell.suffix, **cell.about),
                *responses.at(cell),
            )
            for cell in responses.cells
        }
        judged.append(JudgedBy(method, verdicts))
    return judged


def count_all(run: Run, responses: GridResponses, judged: Sequence[JudgedBy]) -> dict[str, PairResults]:
    """Item rows and results of every metric over the verdicts of all methods.

    What a method failed on, as a task run or on more of its responses than ``errors.max_rate`` allows, is
    left out, and the numbers that it would be part of are named as failed.
    """
    worked, failed = [], []
    tallies = {entry.method.name: _tallies(run, entry) for entry in judged}
    labels = {
        name: list(dict.fromkeys(label for tally in own.values() for label in tally.labels))
        for name, own in tallies.items()
    }
    for entry in judged:
        name = entry.method.name
        reasons = _broken(run, entry, tallies[name])
        # What a method lost is lost for its own labels. Where it gave none, a built-in's is its name.
        own: list[str | None] = [*labels[name]] or ([None] if entry.method.knows_model else [name])
        others = tuple(label for other, given in labels.items() if other != name for label in given)
        for cell, future in entry.verdicts.items():
            if cell in reasons:
                origin, reason = run.origin(cell), reasons[cell]
                failed += [FailedPart(origin, reason, label, name, others) for label in own]
            else:
                worked.append((name, cell, future))
    if not worked and not failed:
        return {}
    inputs = (
        [(name, run.origin(cell)) for name, cell, _ in worked],
        [future for *_, future in worked],
        [responses.requests[cell.place] for _, cell, _ in worked],
        [responses.answers[cell] for _, cell, _ in worked],
    )
    return {entry.name: _count(run, entry, inputs, failed) for entry in run.plan.metrics}


Tallies = Mapping[tuple[str, str], VerdictTally]
"""By model and prompt: partitions stand and fall together."""


def _tallies(run: Run, entry: JudgedBy) -> Tallies:
    """What a method made of the responses of each model to each prompt, as far as its task runs worked."""
    tallies: dict[tuple[str, str], VerdictTally] = {}
    for cell, future in entry.verdicts.items():
        tally = tallies.setdefault((cell.model, cell.prompt), VerdictTally())
        if run.failure(future) is None:
            tally_verdicts(tally, run.workspace.open().batches(future.result(), TALLIED))
    return tallies


def _broken(run: Run, entry: JudgedBy, tallies: Tallies) -> dict[Cell, str]:
    """The cells of which a method's verdicts can't be used, and why."""
    broken = {}
    for cell, future in entry.verdicts.items():
        tally, allowed = tallies[cell.model, cell.prompt], run.plan.config.errors.max_rate
        reason = run.failure(future) or tally.failure(entry.method.name, allowed)
        if reason is not None:
            broken[cell] = reason
    return broken


def _count(run: Run, entry: MetricPlan, inputs: tuple[object, ...], failed: Sequence[object]) -> PairResults:
    if entry.is_users:
        return PairResults(None, run.submit(call_user_metric, entry.aggregate, *inputs, failed))
    items = run.submit(reduce_verdicts, entry.reduce, *inputs)
    return PairResults(items, run.submit(aggregate_verdicts, entry.aggregate, items, failed))
