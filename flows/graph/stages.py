"""The stages of an evaluation: which task runs each submits, and what they wait for.

``GRAPH`` holds them in order; a new one is a function with ``@stage`` and its place there. What failed in one
cell of the grid takes nothing else with it: later stages go on with the cells that worked.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prefect import Task

from flows.graph.stage import Graph, Node, Stage, Walk, stage
from flows.plan.steps import Cell, FilterPlan, Matchup, MethodPlan, MetricPlan, OverallPlan, PairPlan
from scorers.base import ALL_FILTERS
from tasks.aggregate import aggregate
from tasks.arena import ask_matchup, play, rate_models, score_games
from tasks.ask import ask, ask_calibration, score_calibration, score_replies
from tasks.decide import decide
from tasks.execute import execute, execute_asked, process_asked, score_asked, score_executed
from tasks.filter import filter_responses
from tasks.infer import infer
from tasks.judge import aggregate_verdicts, call_user_metric, judge_responses, reduce_verdicts
from tasks.load import load
from tasks.reduce import reduce
from tasks.render import render
from tasks.rows.parts import FailedPart, PairSetup
from tasks.score import process_results, score, score_across, score_processed
from tasks.store.keys import Step
from tasks.turns import TRANSCRIPT, ask_user, next_turn, reply_turn, transcripts
from tasks.verdicts.rows import TALLIED, VerdictTally, tally_verdicts


@dataclass(frozen=True)
class GridResponses:
    """The task runs that made requests (by prompt and partition) and responses, for each cell of the grid."""

    cells: Sequence[Cell]
    requests: Mapping[tuple[str, int], Node]
    responses: Mapping[Cell, Node]

    def at(self, cell: Cell) -> tuple[Node, Node]:
        """The requests and the responses of a cell."""
        return self.requests[cell.place], self.responses[cell]

    def __or__(self, other: "GridResponses") -> "GridResponses":
        """Together with another block's."""
        cells = in_grid_order([*self.cells, *other.cells])
        requests = {**self.requests, **other.requests}
        return GridResponses(cells, requests, {**self.responses, **other.responses})


def in_grid_order(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of several blocks as one grid has them: the partitions of a model and prompt beside each
    other."""
    places = {(cell.model, cell.prompt): None for cell in cells}
    order = {place: number for number, place in enumerate(places)}
    return sorted(cells, key=lambda cell: (order[cell.model, cell.prompt], cell.start))


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
    requests: list[Node] = field(default_factory=list)
    replies: list[Node] = field(default_factory=list)

    def purpose_of(self, attempt: int) -> str:
        """What an attempt's task runs are for, as their names say it."""
        return self.purpose + (f" (attempt {attempt + 1})" if attempt else "")


@dataclass(frozen=True)
class ScorerExchanges:
    """All exchanges of a graph.

    ``by_requests`` is keyed by cell (or matchup), filter and the name of a set of requests: metrics that need
    the same requests share them. ``calibration`` holds the judged answers of a calibration, if a judge had
    to.
    """

    by_requests: Mapping[tuple[Cell | Matchup, str, str], ScorerExchange]
    calibration: Node | None

    def calibration_of(self, pair: PairPlan) -> Node | None:
        """The judged calibration that a pair's numbers rest on."""
        return self.calibration if pair.calibration is not None else None

    def __or__(self, other: "ScorerExchanges") -> "ScorerExchanges":
        """Together with another block's."""
        return ScorerExchanges({**self.by_requests, **other.by_requests}, other.calibration)


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
        return _sources(self.grid, self.predictions, cell, filter_name)


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


@stage(makes=[load])
def items(graph: Graph) -> Node:
    """The rows of the dataset."""
    return graph.submit(load, graph.plan.load)


@stage()
def cells(graph: Graph, items: Node) -> list[Cell]:
    """The places of the grid: models × prompts × partitions of the items."""
    return graph.plan.cells(graph.rows(items) or 0)


@stage(makes=[render])
def requests(graph: Graph, cells: Sequence[Cell], items: Node) -> dict[tuple[str, int], Node]:
    """Requests of every prompt and partition: the same for every model."""
    plan = graph.plan
    return {
        cell.place: graph.submit(
            render, plan.prompts[cell.prompt].at(cell.part), items, cell.start, cell.stop
        )
        for cell in plan.once_a_prompt(cells)
    }


@stage(asks=[infer])
def responses(
    graph: Graph, cells: Sequence[Cell], requests: Mapping[tuple[str, int], Node]
) -> dict[Cell, Node]:
    """What the models answer."""
    return graph.infer_models(cells, requests)


@stage(goes_on=[next_turn, ask_user, reply_turn], asks=[infer], computes=[transcripts])
def grid(
    graph: Graph,
    cells: Sequence[Cell],
    requests: Mapping[tuple[str, int], Node],
    responses: Mapping[Cell, Node],
) -> GridResponses:
    """The responses of whole conversations, where the benchmark has turns.

    Each turn is asked for once those before it are answered. Recorded responses are of whole conversations
    as they are.
    """
    talked = {
        cell: _conversation(graph, cell, requests[cell.place], responses[cell])
        if graph.plan.is_multi_turn(cell)
        else responses[cell]
        for cell in cells
    }
    return GridResponses(cells, requests, talked)


def _conversation(graph: Graph, cell: Cell, requests: Node, first: Node) -> Node:
    answers, replies = [first], []
    for turn in graph.plan.turns:
        if turn.ask is not None and turn.user is not None:
            asked = graph.submit(ask_user, turn.ask.at(cell.suffix, **cell.about), requests, answers[-1])
            replies.append(graph.submit(infer, turn.user.at(cell.suffix), asked))
            say = turn.say.at(cell.suffix, **cell.about)
            requests = graph.submit(reply_turn, say, requests, answers[-1], replies[-1])
        else:
            requests = graph.submit(next_turn, turn.say.at(cell.suffix, **cell.about), requests, answers[-1])
        answers.append(graph.submit(infer, turn.models[cell.model].at(cell.asked, **cell.about), requests))
    return graph.submit(transcripts, TRANSCRIPT.at(cell.suffix, **cell.about), answers, replies)


@stage(computes=[filter_responses])
def predictions(graph: Graph, grid: GridResponses) -> dict[tuple[Cell, str], Node]:
    """Predictions of every filter at every cell."""
    return {
        (cell, entry.name): graph.submit(
            filter_responses, entry.step.at(cell.suffix, **cell.about), *grid.at(cell)
        )
        for cell in grid.cells
        for entry in graph.plan.filters
        if entry.name != ALL_FILTERS
    }


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
            *_sources(grid, predictions, cell, name),
        )
        for name, step in steps.items()
        for cell in grid.cells
    }


def _sources(
    grid: GridResponses, predictions: Mapping[tuple[Cell, str], Node], cell: Cell, filter_name: str
) -> tuple[Node, Node, Node]:
    """Requests, predictions and responses of a cell."""
    requests, responses = grid.at(cell)
    return requests, predictions[cell, filter_name], responses


@stage(makes=[ask, ask_matchup, ask_calibration], asks=[infer], computes=[score_calibration])
def exchanges(
    graph: Graph, grid: GridResponses, predictions: Mapping[tuple[Cell, str], Node]
) -> ScorerExchanges:
    """What scorers ask models, and the replies.

    What is not answered yet is sent, and once more what an earlier run could not read.
    """
    by_requests: dict[tuple[Cell | Matchup, str, str], ScorerExchange] = {}
    for pair, arena in graph.plan.arenas():
        for matchup in arena.matchups(grid.cells):
            inputs = _matchup_sources(grid, predictions, matchup, pair.source)
            purpose = f" for {pair.source}{matchup.suffix}"
            exchange = ScorerExchange(pair, ask_matchup, arena.play, purpose, inputs)
            by_requests[matchup, pair.source, str(pair.asks)] = exchange
    for pair in graph.plan.pairs():
        for cell in grid.cells if pair.asks is not None and pair.arena is None else ():
            key = (cell, pair.source, str(pair.asks))
            if key not in by_requests:
                requests, responses = grid.at(cell)
                inputs = requests, predictions[cell, pair.source], responses
                purpose = f" for {pair.source}{cell.suffix}"
                by_requests[key] = ScorerExchange(pair, ask, pair.score, purpose, inputs)
    calibration = _calibration(graph.plan.pairs())
    every = [*by_requests.values(), *([calibration] if calibration is not None else [])]
    _send_all(graph, [(exchange, _make_requests(graph, exchange, 0)) for exchange in every], 0)
    _ask_again(graph, every)
    graph.scorers_have_asked()
    _prepare_next_attempt(graph, every)
    judged = _judge_calibration(graph, calibration) if calibration is not None else None
    return ScorerExchanges(by_requests, judged)


def _matchup_sources(
    grid: GridResponses, predictions: Mapping[tuple[Cell, str], Node], matchup: Matchup, filter_name: str
) -> tuple[Any, ...]:
    """What both models were asked, and the predictions and responses of each."""
    (requests, *first), (_, *second) = (
        _sources(grid, predictions, cell, filter_name) for cell in (matchup.first, matchup.second)
    )
    return requests, tuple(first), tuple(second)


@stage(computes=[play])
def games(
    graph: Graph,
    grid: GridResponses,
    predictions: Mapping[tuple[Cell, str], Node],
    exchanges: ScorerExchanges,
) -> dict[tuple[Matchup, str], Node]:
    """The games of every matchup."""
    played = {}
    for pair, arena in graph.plan.arenas():
        for matchup in arena.matchups(grid.cells):
            exchange = exchanges.by_requests[matchup, pair.source, str(pair.asks)]
            step = arena.play.at(matchup.suffix, prompt_template=matchup.place[0])
            sources = _matchup_sources(grid, predictions, matchup, pair.source)
            played[matchup, pair.source] = graph.submit(
                play, step, *sources, exchange.requests, exchange.replies, pair=pair
            )
    return played


@stage(computes=[rate_models])
def ratings(graph: Graph, grid: GridResponses, games: Mapping[tuple[Matchup, str], Node]) -> list[Node]:
    """The models' strengths at every prompt, from the matchups that could be played."""
    rated = []
    for pair, arena in graph.plan.arenas():
        for prompt in graph.plan.prompts:
            own = [
                (matchup, future)
                for (matchup, source), future in games.items()
                if source == pair.source and matchup.place[0] == prompt and graph.failure(future) is None
            ]
            if own:
                step = arena.rate.at(
                    f" × {prompt}" if len(graph.plan.prompts) > 1 else "", prompt_template=prompt
                )
                names = [matchup.names for matchup, _ in own]
                asked = [grid.requests[matchup.place] for matchup, _ in own]
                rated.append(
                    graph.submit(
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


def _judge_calibration(graph: Graph, exchange: ScorerExchange) -> Node:
    return graph.submit(
        score_calibration, exchange.score, exchange.requests, exchange.replies, pair=exchange.pair
    )


def _make_requests(graph: Graph, exchange: ScorerExchange, attempt: int) -> list[Node]:
    """The requests of one attempt: for each model those that it still has to reply to."""
    return [
        graph.submit(
            exchange.task,
            model.ask(exchange.score, exchange.purpose_of(attempt), attempt),
            *exchange.inputs,
            list(exchange.requests),
            list(exchange.replies),
            pair=exchange.pair,
        )
        for model in graph.plan.asked
    ]


def _send_all(graph: Graph, made: Sequence[tuple[ScorerExchange, Sequence[Node]]], attempt: int) -> None:
    """Sends the requests of one attempt of all exchanges."""
    models = graph.plan.asked
    graph.batch_for_scorers([pair for _, requests in made for pair in zip(models, requests, strict=True)])
    for exchange, requests in made:
        _send(graph, exchange, requests, attempt)


def _send(graph: Graph, exchange: ScorerExchange, requests: Sequence[Node], attempt: int) -> None:
    """Sends the requests of one attempt."""
    purpose = exchange.purpose_of(attempt)
    for model, future in zip(graph.plan.asked, requests, strict=True):
        exchange.replies.append(graph.infer_for_scorer(model, purpose, future))
    exchange.requests += requests


def _ask_again(graph: Graph, exchanges: Sequence[ScorerExchange]) -> None:
    """Further attempts, as long as the one before is from an earlier run and left something unreadable.

    An attempt with nothing to ask leaves no trace: the scores rest on the same replies as before.
    """
    attempt, models = 0, len(graph.plan.asked)
    while exchanges := [entry for entry in exchanges if _all_cached(graph, entry.replies[-models:])]:
        attempt += 1
        requests = [_make_requests(graph, exchange, attempt) for exchange in exchanges]
        unanswered = [
            (exchange, futures)
            for exchange, futures in zip(exchanges, requests, strict=True)
            if _asks_anything(graph, futures)
        ]
        _send_all(graph, unanswered, attempt)
        exchanges = [exchange for exchange, _ in unanswered]


def _prepare_next_attempt(graph: Graph, exchanges: Sequence[ScorerExchange]) -> None:
    """Makes the requests that the next run will send, so that it finds all steps cached where there are
    none."""
    models = len(graph.plan.asked)
    for exchange in exchanges:
        if not _all_cached(graph, exchange.replies[-models:]):
            _make_requests(graph, exchange, len(exchange.replies) // models)


def _all_cached(graph: Graph, replies: Sequence[Node]) -> bool:
    return all(graph.is_cached(reply) for reply in replies)


def _asks_anything(graph: Graph, requests: Sequence[Node]) -> bool:
    """Whether there is anything to ask; requests that could not be made count, so that what waits for them
    fails with their reason."""
    return any(graph.rows(node) != 0 for node in requests)


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
)
"""Every stage, in the order in which they submit their task runs."""


def walk(graph: Graph) -> Walk:
    """All stages, to be gone through by a graph."""
    return Walk(graph, GRAPH)


def known_stages() -> tuple[str, ...]:
    """The names of all stages' tasks, in the order of the pipeline: what ``--refresh`` takes, and what a
    manifest counts by."""
    return tuple(dict.fromkeys(task.name for entry in GRAPH for task in entry.tasks))
