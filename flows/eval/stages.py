"""Which task runs an evaluation submits, and what each of them waits for.

The flow calls one function for each stage, in this order: ``filter_all``, ``execute_all``, ``ask_all``,
``play_all``, ``score_all``, ``judge_all``, ``aggregate_all``, ``rate_all``, ``aggregate_verdicts_all``. What
failed in one cell of the grid takes nothing else with it: later stages go on with the cells that worked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect import Task

from flows.eval.run import Future, Run, Servers, completed, finished, given
from flows.plan.steps import Cell, Contest, FilterPlan, MethodPlan, MetricPlan, OverallPlan, PairPlan
from scorers.base import ALL_FILTERS
from tasks.aggregate import aggregate
from tasks.arena import ask_contest, play, rate_models, score_games
from tasks.ask import ask, ask_calibration, score_calibration, score_replies
from tasks.execute import execute, execute_asked, process_asked, score_asked, score_executed
from tasks.filter import filter_responses
from tasks.infer import infer
from tasks.judge import aggregate_verdicts, call_user_metric, judge_responses, reduce_verdicts
from tasks.reduce import reduce
from tasks.rows.parts import FailedPart, PairSetup
from tasks.score import process_results, score, score_across, score_processed
from tasks.store.keys import Step
from tasks.turns import TRANSCRIPT, ask_user, next_turn, reply_turn, transcripts
from tasks.verdicts.rows import TALLIED, VerdictTally, tally_verdicts


@dataclass(frozen=True)
class GridResponses:
    """The task runs that made requests (by prompt and partition) and responses, for each cell of the grid."""

    cells: Sequence[Cell]
    requests: Mapping[tuple[str, int], Future]
    responses: Mapping[Cell, Future]

    def at(self, cell: Cell) -> tuple[Future, Future]:
        """The requests and the responses of a cell."""
        return self.requests[cell.place], self.responses[cell]


@dataclass
class ScorerExchange:
    """The requests of a scorer to its models, attempt by attempt, and the replies.

    ``task`` makes the requests that ``score`` waits for, from ``inputs``.
    """

    pair: PairPlan
    task: Task[..., Any]
    score: Step[PairSetup]
    purpose: str
    inputs: tuple[Any, ...] = ()
    requests: list[Future] = field(default_factory=list)
    replies: list[Future] = field(default_factory=list)

    def purpose_of(self, attempt: int) -> str:
        """What an attempt's task runs are for, as their names say it."""
        return self.purpose + (f" (attempt {attempt + 1})" if attempt else "")


@dataclass(frozen=True)
class ScorerExchanges:
    """All exchanges of a run.

    ``by_requests`` is keyed by cell (or contest), filter and the name of a set of requests: metrics that need
    the same requests share them. ``calibration`` holds the judged answers of a calibration, if a judge had
    to.
    """

    by_requests: Mapping[tuple[Cell | Contest, str, str], ScorerExchange]
    calibration: Future | None

    def calibration_of(self, pair: PairPlan) -> Future | None:
        """The judged calibration that a pair's numbers rest on."""
        return self.calibration if pair.calibration is not None else None


@dataclass(frozen=True)
class ScoreInputs:
    """All that scores are computed from."""

    grid: GridResponses
    predictions: Mapping[tuple[Cell, str], Future]
    exchanges: ScorerExchanges
    executions: Mapping[tuple[Cell, str], Future]
    """What came of the programs of a filter's predictions, where scores wait for it."""
    games: Mapping[tuple[Contest, str], Future] = field(default_factory=dict)
    """What came of the contests over a filter's predictions, where scores wait for it."""

    def at(self, cell: Cell, filter_name: str) -> tuple[Future, Future, Future]:
        """Requests, predictions and responses of a cell."""
        return _sources(self.grid, self.predictions, cell, filter_name)


@dataclass(frozen=True)
class PairStatistics:
    """A pair's statistics, cell by cell, and the judged calibration that its numbers rest on, if any."""

    pair: PairPlan
    statistics: Mapping[Cell, Future]
    calibration: Future | None = None


@dataclass(frozen=True)
class MethodVerdicts:
    """A method's verdicts, cell by cell."""

    method: MethodPlan
    verdicts: Mapping[Cell, Future]


@dataclass(frozen=True)
class PairResults:
    """A pair's item rows (None: it has none) and results; ``overall`` are its results over all of the user's
    facets, where there are any."""

    items: Future | None
    results: Future
    overall: Future | None = None


def converse(run: Run, grid: GridResponses) -> GridResponses:
    """The responses of whole conversations, where the benchmark has turns: each turn is asked for once those
    before it are answered. Recorded responses are of whole conversations as they are."""
    talked = {
        cell: _conversation(run, cell, *grid.at(cell)) if run.plan.converses(cell) else grid.responses[cell]
        for cell in grid.cells
    }
    return GridResponses(grid.cells, grid.requests, talked)


def _conversation(run: Run, cell: Cell, requests: Future, first: Future) -> Future:
    answers, replies = [first], []
    for turn in run.plan.turns:
        if turn.ask is not None and turn.user is not None:
            asked = run.submit(ask_user, turn.ask.at(cell.suffix, **cell.about), requests, answers[-1])
            replies.append(run.submit(infer, turn.user.at(cell.suffix), asked))
            say = turn.say.at(cell.suffix, **cell.about)
            requests = run.submit(reply_turn, say, requests, answers[-1], replies[-1])
        else:
            requests = run.submit(next_turn, turn.say.at(cell.suffix, **cell.about), requests, answers[-1])
        answers.append(run.submit(infer, turn.models[cell.model].at(cell.suffix, **cell.about), requests))
    return run.submit(transcripts, TRANSCRIPT.at(cell.suffix, **cell.about), answers, replies)


def filter_all(run: Run, grid: GridResponses) -> dict[tuple[Cell, str], Future]:
    """Predictions of every filter at every cell."""
    return {
        (cell, entry.name): run.submit(
            filter_responses, entry.step.at(cell.suffix, **cell.about), *grid.at(cell)
        )
        for cell in grid.cells
        for entry in run.plan.filters
        if entry.name != ALL_FILTERS
    }


def execute_all(
    run: Run, grid: GridResponses, predictions: Mapping[tuple[Cell, str], Future]
) -> dict[tuple[Cell, str], Future]:
    """Runs of the programs of every filter whose scores wait for them."""
    steps = {pair.source: pair.execute for pair in run.plan.pairs() if pair.execute is not None}
    return {
        (cell, name): run.submit(
            execute_asked if step.setup.asking else execute,
            step.at(cell.suffix, **cell.about),
            *_sources(grid, predictions, cell, name),
        )
        for name, step in steps.items()
        for cell in grid.cells
    }


def _sources(
    grid: GridResponses, predictions: Mapping[tuple[Cell, str], Future], cell: Cell, filter_name: str
) -> tuple[Future, Future, Future]:
    """Requests, predictions and responses of a cell."""
    requests, responses = grid.at(cell)
    return requests, predictions[cell, filter_name], responses


def ask_all(
    run: Run, grid: GridResponses, predictions: Mapping[tuple[Cell, str], Future], servers: Servers
) -> ScorerExchanges:
    """Sends what scorers ask models and is not answered yet; what an earlier run could not read is sent once
    more."""
    by_requests: dict[tuple[Cell | Contest, str, str], ScorerExchange] = {}
    for pair, arena in run.plan.arenas():
        for contest in arena.contests(grid.cells):
            inputs = _contest_sources(grid, predictions, contest, pair.source)
            purpose = f" for {pair.source}{contest.suffix}"
            exchange = ScorerExchange(pair, ask_contest, arena.play, purpose, inputs)
            by_requests[contest, pair.source, str(pair.asks)] = exchange
    for pair in run.plan.pairs():
        for cell in grid.cells if pair.asks is not None and pair.arena is None else ():
            key = (cell, pair.source, str(pair.asks))
            if key not in by_requests:
                requests, responses = grid.at(cell)
                inputs = requests, predictions[cell, pair.source], responses
                purpose = f" for {pair.source}{cell.suffix}"
                by_requests[key] = ScorerExchange(pair, ask, pair.score, purpose, inputs)
    calibration = _calibration(run.plan.pairs())
    exchanges = [*by_requests.values(), *([calibration] if calibration is not None else [])]
    for exchange in exchanges:
        _send(run, exchange, _make_requests(run, exchange, 0), 0, servers)
    _ask_again(run, exchanges, servers)
    servers.release_judges()
    _prepare_next_attempt(run, exchanges)
    judged = _judge_calibration(run, calibration) if calibration is not None else None
    return ScorerExchanges(by_requests, judged)


def _contest_sources(
    grid: GridResponses, predictions: Mapping[tuple[Cell, str], Future], contest: Contest, filter_name: str
) -> tuple[Any, ...]:
    """What both models were asked, and the predictions and responses of each."""
    (requests, *first), (_, *second) = (
        _sources(grid, predictions, cell, filter_name) for cell in (contest.first, contest.second)
    )
    return requests, tuple(first), tuple(second)


def play_all(
    run: Run,
    grid: GridResponses,
    predictions: Mapping[tuple[Cell, str], Future],
    exchanges: ScorerExchanges,
) -> dict[tuple[Contest, str], Future]:
    """The games of every contest."""
    games = {}
    for pair, arena in run.plan.arenas():
        for contest in arena.contests(grid.cells):
            exchange = exchanges.by_requests[contest, pair.source, str(pair.asks)]
            step = arena.play.at(contest.suffix, prompt_template=contest.place[0])
            sources = _contest_sources(grid, predictions, contest, pair.source)
            games[contest, pair.source] = run.submit(
                play, step, *sources, exchange.requests, exchange.replies, pair=pair
            )
    return games


def rate_all(run: Run, grid: GridResponses, games: Mapping[tuple[Contest, str], Future]) -> list[Future]:
    """The models' strengths at every prompt, from the contests that could be played."""
    rated = []
    for pair, arena in run.plan.arenas():
        for prompt in run.plan.prompts:
            own = [
                (contest, future)
                for (contest, source), future in games.items()
                if source == pair.source and contest.place[0] == prompt and run.failure(future) is None
            ]
            if own:
                step = arena.rate.at(
                    f" × {prompt}" if len(run.plan.prompts) > 1 else "", prompt_template=prompt
                )
                names = [contest.names for contest, _ in own]
                asked = [grid.requests[contest.place] for contest, _ in own]
                rated.append(
                    run.submit(
                        rate_models, step, prompt, names, [future for _, future in own], asked, pair=pair
                    )
                )
    return rated


def _calibration(pairs: Iterable[PairPlan]) -> ScorerExchange | None:
    """A judge's calibration is the same for all filters, and so is asked about once."""
    for pair in pairs:
        if pair.calibration is not None:
            return ScorerExchange(pair, ask_calibration, pair.calibration, " for the calibration")
    return None


def _judge_calibration(run: Run, exchange: ScorerExchange) -> Future:
    return run.submit(
        score_calibration, exchange.score, exchange.requests, exchange.replies, pair=exchange.pair
    )


def _make_requests(run: Run, exchange: ScorerExchange, attempt: int) -> list[Future]:
    """The requests of one attempt: for each model those that it still has to reply to."""
    return [
        run.submit(
            exchange.task,
            model.ask(exchange.score, exchange.purpose_of(attempt), attempt),
            *exchange.inputs,
            list(exchange.requests),
            list(exchange.replies),
            pair=exchange.pair,
        )
        for model in run.plan.asked
    ]


def _send(
    run: Run, exchange: ScorerExchange, requests: Sequence[Future], attempt: int, servers: Servers
) -> None:
    """Sends the requests of one attempt."""
    purpose = exchange.purpose_of(attempt)
    for model, future in zip(run.plan.asked, requests, strict=True):
        judge = servers.of_judge(model, future)
        reply = run.submit(infer, model.infer.at(purpose), future, **given(judge.future))
        judge.replies.append(reply)
        exchange.replies.append(reply)
    exchange.requests += requests


def _ask_again(run: Run, exchanges: Sequence[ScorerExchange], servers: Servers) -> None:
    """Further attempts, as long as the one before is from an earlier run and left something unreadable.

    An attempt with nothing to ask leaves no trace: the scores rest on the same replies as before.
    """
    attempt, models = 0, len(run.plan.asked)
    while exchanges := [entry for entry in exchanges if _all_cached(entry.replies[-models:])]:
        attempt += 1
        requests = [_make_requests(run, exchange, attempt) for exchange in exchanges]
        unanswered = [
            (exchange, futures)
            for exchange, futures in zip(exchanges, requests, strict=True)
            if _asks_anything(futures)
        ]
        for exchange, futures in unanswered:
            _send(run, exchange, futures, attempt, servers)
        exchanges = [exchange for exchange, _ in unanswered]


def _prepare_next_attempt(run: Run, exchanges: Sequence[ScorerExchange]) -> None:
    """Makes the requests that the next run will send, so that it finds all steps cached where there are
    none."""
    models = len(run.plan.asked)
    for exchange in exchanges:
        if not _all_cached(exchange.replies[-models:]):
            _make_requests(run, exchange, len(exchange.replies) // models)


def _all_cached(replies: Sequence[Future]) -> bool:
    return all(finished(reply).name == "Cached" for reply in replies)


def _asks_anything(requests: Sequence[Future]) -> bool:
    """Whether there is anything to ask; requests that could not be made count, so that what waits for them
    fails with their reason."""
    return any(not finished(future).is_completed() or future.result().rows for future in requests)


def score_all(run: Run, inputs: ScoreInputs) -> list[PairStatistics]:
    """Statistics of every pair at every cell."""
    scored = []
    for entry in run.plan.filters:
        processed = _process(run, entry, inputs)
        for pair in entry.pairs:
            cells = inputs.grid.cells if pair.arena is None else pair.arena.scored(inputs.grid.cells)
            statistics = {cell: _score(run, pair, cell, inputs, processed) for cell in cells}
            scored.append(PairStatistics(pair, statistics, inputs.exchanges.calibration_of(pair)))
    return scored


def _process(run: Run, entry: FilterPlan, inputs: ScoreInputs) -> dict[Cell, Future]:
    """What ``process_results`` makes of a filter's predictions, for all its pairs at once."""
    step = entry.process
    if step is None or not entry.pairs:
        return {}
    asks = any(pair.execute is not None for pair in entry.pairs)
    return {
        cell: run.submit(
            process_asked if asks else process_results,
            step.at(cell.suffix, **cell.about),
            *inputs.at(cell, entry.name),
            *([inputs.executions[cell, entry.name]] if asks else []),
        )
        for cell in inputs.grid.cells
    }


def _score(
    run: Run, pair: PairPlan, cell: Cell, inputs: ScoreInputs, processed: Mapping[Cell, Future]
) -> Future:
    step = pair.score.at(cell.suffix, **cell.about)
    if pair.source == ALL_FILTERS:
        requests, responses = inputs.grid.at(cell)
        of_filters = {name: future for (at, name), future in inputs.predictions.items() if at == cell}
        return run.submit(score_across, step, requests, of_filters, responses, pair=pair)
    sources = inputs.at(cell, pair.source)
    if cell in processed:
        return run.submit(score_processed, step, *sources, processed[cell], pair=pair)
    if pair.execute is not None:
        told = score_asked if pair.execute.setup.asking else score_executed
        return run.submit(told, step, *sources, inputs.executions[cell, pair.source], pair=pair)
    if pair.arena is not None:
        own = [
            (contest, future)
            for (contest, source), future in inputs.games.items()
            if source == pair.source and cell in (contest.first, contest.second)
        ]
        opponents = [
            (contest.second.model, True) if contest.first == cell else (contest.first.model, False)
            for contest, _ in own
        ]
        return run.submit(score_games, step, *sources, [future for _, future in own], opponents, pair=pair)
    if pair.asks is not None:
        exchange = inputs.exchanges.by_requests[cell, pair.source, pair.asks]
        return run.submit(score_replies, step, *sources, exchange.requests, exchange.replies, pair=pair)
    return run.submit(score, step, *sources, pair=pair)


def judge_all(run: Run, grid: GridResponses) -> list[MethodVerdicts]:
    """Verdicts of every evaluation method at every cell."""
    judged = []
    for method in run.plan.methods:
        verdicts = {
            cell: run.submit(
                judge_responses, method.of(run.origin(cell)).at(cell.suffix, **cell.about), *grid.at(cell)
            )
            for cell in grid.cells
        }
        judged.append(MethodVerdicts(method, verdicts))
    return judged


def aggregate_all(run: Run, grid: GridResponses, scored: Sequence[PairStatistics]) -> dict[str, PairResults]:
    """Item rows and numbers of every pair that has statistics anywhere.

    A pair whose score failed for one model goes on with the others: the numbers of what is lost are named
    as failed.
    """
    numbers = {}
    for entry in scored:
        cells, futures = list(entry.statistics), list(entry.statistics.values())
        succeeded = [cell for cell, done in zip(cells, completed(futures), strict=True) if done]
        if not succeeded:
            continue
        sources = (
            [run.origin(cell) for cell in succeeded],
            [entry.statistics[cell] for cell in succeeded],
            [grid.requests[cell.place] for cell in succeeded],
            [grid.responses[cell] for cell in succeeded],
            entry.calibration,
        )
        failed = [*run.failed_parts(cells, futures), *_unreadable(run, entry)]
        items, results = _aggregated(run, entry, entry.pair, sources, failed)
        overall = entry.pair.overall
        whole = _aggregated(run, entry, overall, sources, failed)[1] if overall is not None else None
        numbers[entry.pair.name] = PairResults(items, results, whole)
    return numbers


def _aggregated(
    run: Run,
    entry: PairStatistics,
    steps: PairPlan | OverallPlan,
    sources: tuple[Any, ...],
    failed: Sequence[FailedPart],
) -> tuple[Future, Future]:
    """Item rows and numbers of a pair, by its own facets or without them."""
    items = run.submit(reduce, steps.reduce, *sources, pair=entry.pair)
    return items, run.submit(aggregate, steps.aggregate, items, failed, entry.calibration, pair=entry.pair)


def _unreadable(run: Run, entry: PairStatistics) -> list[FailedPart]:
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


def aggregate_verdicts_all(
    run: Run, grid: GridResponses, judged: Sequence[MethodVerdicts]
) -> dict[str, PairResults]:
    """Item rows and results of every metric over the verdicts of all methods.

    What a method failed on, as a task run or on more of its responses than ``errors.max_rate`` allows, is
    left out, and the numbers that it would be part of are named as failed.
    """
    succeeded, failed = [], []
    tallies = {entry.method.name: _tallies(run, entry) for entry in judged}
    labels = {
        name: list(dict.fromkeys(label for tally in own.values() for label in tally.labels))
        for name, own in tallies.items()
    }
    for entry in judged:
        name = entry.method.name
        reasons = _failures(run, entry, tallies[name])
        # What a method lost is lost for its own labels. Where it gave none, a built-in's is its name.
        own: list[str | None] = [*labels[name]] or ([None] if entry.method.knows_model else [name])
        others = tuple(label for other, given in labels.items() if other != name for label in given)
        for cell, future in entry.verdicts.items():
            if cell in reasons:
                origin, reason = run.origin(cell), reasons[cell]
                failed += [FailedPart(origin, reason, label, name, others) for label in own]
            else:
                succeeded.append((name, cell, future))
    if not succeeded and not failed:
        return {}
    inputs = (
        [(name, run.origin(cell)) for name, cell, _ in succeeded],
        [future for *_, future in succeeded],
        [grid.requests[cell.place] for _, cell, _ in succeeded],
        [grid.responses[cell] for _, cell, _ in succeeded],
    )
    return {metric.name: _aggregate_verdicts(run, metric, inputs, failed) for metric in run.plan.metrics}


Tallies = Mapping[tuple[str, str], VerdictTally]
"""By model and prompt: partitions stand and fall together."""


def _tallies(run: Run, entry: MethodVerdicts) -> Tallies:
    """What a method made of the responses of each model to each prompt, as far as its task runs worked."""
    tallies: dict[tuple[str, str], VerdictTally] = {}
    for cell, future in entry.verdicts.items():
        tally = tallies.setdefault((cell.model, cell.prompt), VerdictTally())
        if run.failure(future) is None:
            tally_verdicts(tally, run.workspace.open().batches(future.result(), TALLIED))
    return tallies


def _failures(run: Run, entry: MethodVerdicts, tallies: Tallies) -> dict[Cell, str]:
    """The cells of which a method's verdicts can't be used, and why."""
    failures = {}
    for cell, future in entry.verdicts.items():
        tally, allowed = tallies[cell.model, cell.prompt], run.plan.config.errors.max_rate
        reason = run.failure(future) or tally.failure(entry.method.name, allowed)
        if reason is not None:
            failures[cell] = reason
    return failures


def _aggregate_verdicts(
    run: Run, metric: MetricPlan, inputs: tuple[object, ...], failed: Sequence[object]
) -> PairResults:
    if metric.is_users:
        return PairResults(None, run.submit(call_user_metric, metric.aggregate, *inputs, failed))
    items = run.submit(reduce_verdicts, metric.reduce, *inputs)
    return PairResults(items, run.submit(aggregate_verdicts, metric.aggregate, items, failed))
