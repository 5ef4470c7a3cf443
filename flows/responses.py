"""What was asked of the models and what came back, as the task runs that make it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flows.plan import Cell
from flows.run import Future


@dataclass(frozen=True)
class Responses:
    """What was asked and what came back, place by place."""

    cells: Sequence[Cell]
    requests: Mapping[tuple[str, int], Future]
    answers: Mapping[Cell, Future]

    def at(self, cell: Cell) -> tuple[Future, Future]:
        """The requests and the answers of a cell."""
        return self.requests[cell.place], self.answers[cell]
