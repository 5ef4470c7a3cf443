"""From the dataset to predictions: the places of a grid of models × prompts × partitions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flows.graph.stage import Graph, Node, stage
from flows.plan.steps import Cell
from scorers.base import ALL_FILTERS
from tasks.filter import filter_responses
from tasks.infer import infer
from tasks.load import load
from tasks.render import render
from tasks.turns import TRANSCRIPT, ask_user, next_turn, reply_turn, transcripts


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


def sources_at(
    grid: GridResponses, predictions: Mapping[tuple[Cell, str], Node], cell: Cell, filter_name: str
) -> tuple[Node, Node, Node]:
    """Requests, predictions and responses of a cell."""
    requests, responses = grid.at(cell)
    return requests, predictions[cell, filter_name], responses
