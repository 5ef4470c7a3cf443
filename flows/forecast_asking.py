"""What scorers that ask models would send: the attempts at a set of requests, followed through what is kept.

As ``flows.asking`` goes about it, with records in place of task runs. Requests about responses that are not
there yet can't be counted.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from prefect import Task

from flows.plan import AskedModel, PairPlan, Plan
from tasks.ask import ask, ask_calibration
from tasks.caching import Workspace, peek
from tasks.infer import infer, missing_requests
from tasks.pair import PairSetup
from tasks.steps import Answered, Step
from tasks.store.storage import ArtifactRef

Place = tuple[ArtifactRef, ArtifactRef, Answered]
"""Requests, predictions and answers at one place of the grid."""


@dataclass
class Dialogue:
    """A set of requests as far as the store knows it: what was asked and replied, and what is still to be
    sent, by model."""

    requests: list[ArtifactRef] = field(default_factory=list)
    replies: list[Answered] = field(default_factory=list)
    send: dict[str, int] = field(default_factory=dict)
    answered: dict[str, int] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nothing is to be sent."""
        return not any(self.send.values())


def about_responses(plan: Plan, workspace: Workspace, pair: PairPlan, place: Place) -> Dialogue:
    """What the pair's set of requests about one place comes to."""
    return _Following(plan, workspace, ask, pair.score, place).dialogue()


def about_calibration(plan: Plan, workspace: Workspace) -> Dialogue | None:
    """What a judge would still be asked about the answers of its calibration; None where there is none."""
    score = next((pair.calibration for pair in plan.pairs() if pair.calibration is not None), None)
    return None if score is None else _Following(plan, workspace, ask_calibration, score, ()).dialogue()


@dataclass(frozen=True)
class _Following:
    plan: Plan
    workspace: Workspace
    task: Task[..., ArtifactRef]
    score: Step[PairSetup]
    inputs: tuple[Any, ...]

    def dialogue(self) -> Dialogue:
        found = Dialogue()
        attempt = 0
        while self._attempt(found, attempt):
            attempt += 1
        return found

    def _attempt(self, found: Dialogue, attempt: int) -> bool:
        """Adds an attempt; False where the dialogue ends with it."""
        given = *self.inputs, list(found.requests), list(found.replies)
        kept = [self._kept(model, attempt, given) for model in self.plan.asked]
        if attempt and all(ref is not None and not ref.rows for ref, _ in kept):
            return False  # nothing was unreadable
        for model, (ref, reply) in zip(self.plan.asked, kept, strict=True):
            self._count(found, model, reply, self._rows(model, attempt, given, ref))
        refs, replies = zip(*kept, strict=True)
        if None in replies:
            return False  # as far as a run goes: what it asks now it reads again only in the next
        found.requests += refs
        found.replies += replies
        return True

    def _kept(
        self, model: AskedModel, attempt: int, given: Sequence[Any]
    ) -> tuple[ArtifactRef | None, Answered | None]:
        step = model.ask(self.score, "", attempt)
        ref = peek(self.task, step, *given, workspace=self.workspace)
        return ref, None if ref is None else peek(infer, model.infer, ref, workspace=self.workspace)

    def _rows(
        self, model: AskedModel, attempt: int, given: Sequence[Any], ref: ArtifactRef | None
    ) -> Iterable[pa.RecordBatch]:
        if ref is not None:
            return self.workspace.open().batches(ref)
        rows: Iterator[pa.RecordBatch] = inspect.unwrap(self.task.fn)(
            model.ask(self.score, "", attempt), *given, workspace=self.workspace
        )
        return rows

    def _count(
        self, found: Dialogue, model: AskedModel, reply: Answered | None, rows: Iterable[pa.RecordBatch]
    ) -> None:
        name = model.infer.setup.model.name
        if reply is not None:
            missing, total = 0, int(reply.accounts.tally["requests"])
        else:
            missing, total = missing_requests(model.infer, rows, self.workspace)
        found.send[name] = found.send.get(name, 0) + missing
        found.answered[name] = found.answered.get(name, 0) + total - missing
