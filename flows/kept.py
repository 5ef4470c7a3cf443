"""What the store holds of a plan from the responses on, and what that leaves to be asked and scored."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from flows.forecast_asking import Dialogue, Place, about_calibration, about_responses
from flows.plan import Cell, PairPlan, Plan
from scorers.base import ALL_FILTERS
from tasks.ask import score_replies
from tasks.caching import Workspace, peek
from tasks.filter import filter_responses
from tasks.score import process_results, score, score_processed
from tasks.steps import Answered
from tasks.store.storage import ArtifactRef


@dataclass(frozen=True)
class Count:
    """Requests that would be sent, and that are answered already; None where it takes responses to know."""

    send: int | None
    answered: int

    def as_dict(self) -> dict[str, int | None]:
        """As ``--dry-run --json`` prints it."""
        return {"to_send": self.send, "cached": self.answered}


@dataclass
class Kept:
    """What the store holds of a plan, from the responses on."""

    plan: Plan
    workspace: Workspace
    cells: list[Cell]
    answered: dict[Cell, tuple[ArtifactRef, Answered]] = field(default_factory=dict)
    _dialogues: dict[tuple[Cell, str, str], Dialogue | None] = field(default_factory=dict)

    def judges(self) -> dict[str, Count]:
        """Requests of every model that scorers ask."""
        pairs = [pair for pair in self.plan.pairs() if pair.asks is not None]
        dialogues = [about_calibration(self.plan, self.workspace)] if pairs and self._calibrates() else []
        for pair in pairs:
            for cell in self.cells:
                self._dialogue(pair, cell)
        dialogues += self._dialogues.values()
        names = dict.fromkeys(model.infer.setup.model.name for model in self.plan.asked)
        return {name: _counted(name, dialogues) for name in names}

    def holds(self, pair: PairPlan) -> bool:
        """Whether the pair's statistics are there for every cell (of a score across filters: never said to
        be)."""
        return pair.source != ALL_FILTERS and all(self._holds(pair, cell) for cell in self.cells)

    def _calibrates(self) -> bool:
        return any(pair.calibration is not None for pair in self.plan.pairs())

    def _holds(self, pair: PairPlan, cell: Cell) -> bool:
        place = self._place(pair, cell)
        if place is None:
            return False
        if pair.asks is not None:
            asked = self._dialogue(pair, cell)
            if asked is None or not asked.over:
                return False
            given = asked.requests, asked.replies
            return peek(score_replies, pair.score, *place, *given, workspace=self.workspace) is not None
        process = next(entry.process for entry in self.plan.filters if entry.name == pair.source)
        if process is None:
            return peek(score, pair.score, *place, workspace=self.workspace) is not None
        processed = peek(process_results, process, *place, workspace=self.workspace)
        return (
            processed is not None
            and peek(score_processed, pair.score, *place, processed, workspace=self.workspace) is not None
        )

    def _place(self, pair: PairPlan, cell: Cell) -> Place | None:
        if cell not in self.answered:
            return None
        asked, answered = self.answered[cell]
        step = next(entry.step for entry in self.plan.filters if entry.name == pair.source)
        predicted = peek(filter_responses, step, asked, answered, workspace=self.workspace)
        return None if predicted is None else (asked, predicted, answered)

    def _dialogue(self, pair: PairPlan, cell: Cell) -> Dialogue | None:
        """What is asked about a cell for the pair; None where its responses or predictions are not there."""
        key = cell, pair.source, str(pair.asks)
        if key not in self._dialogues:
            place = self._place(pair, cell)
            self._dialogues[key] = (
                None if place is None else about_responses(self.plan, self.workspace, pair, place)
            )
        return self._dialogues[key]


def _counted(name: str, dialogues: Iterable[Dialogue | None]) -> Count:
    known = [dialogue for dialogue in dialogues if dialogue is not None]
    send = sum(dialogue.send.get(name, 0) for dialogue in known)
    is_whole = all(dialogue is not None for dialogue in dialogues)
    return Count(send if is_whole else None, sum(dialogue.answered.get(name, 0) for dialogue in known))
