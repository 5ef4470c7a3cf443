"""What scorers ask models (judges, reward models), attempt by attempt, and the games that judges decide."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect import Task

from flows.graph.grid import GridResponses, sources_at
from flows.graph.stage import Graph, Node, stage
from flows.plan.steps import Cell, Matchup, PairPlan
from tasks.arena import ask_matchup, rate_models, read_games
from tasks.ask import ask, ask_calibration, score_calibration
from tasks.infer import infer
from tasks.rows.parts import PairSetup
from tasks.store.keys import Step


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
            exchange = ScorerExchange(pair, ask_matchup, arena.games, purpose, inputs)
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
        sources_at(grid, predictions, cell, filter_name) for cell in (matchup.first, matchup.second)
    )
    return requests, tuple(first), tuple(second)


@stage(computes=[read_games])
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
            step = arena.games.at(matchup.suffix, prompt_template=matchup.place[0])
            sources = _matchup_sources(grid, predictions, matchup, pair.source)
            played[matchup, pair.source] = graph.submit(
                read_games, step, *sources, exchange.requests, exchange.replies, pair=pair
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

    Requests of it that fail in every run hold nothing back. An attempt with nothing to ask leaves no trace:
    the scores rest on the same replies as before.
    """
    attempt, models = 0, len(graph.plan.asked)
    while exchanges := [entry for entry in exchanges if graph.replied_earlier(entry.replies[-models:])]:
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
        if not graph.replied_earlier(exchange.replies[-models:]):
            _make_requests(graph, exchange, len(exchange.replies) // models)


def _asks_anything(graph: Graph, requests: Sequence[Node]) -> bool:
    """Whether there is anything to ask; requests that could not be made count, so that what waits for them
    fails with their reason."""
    return any(graph.rows(node) != 0 for node in requests)
