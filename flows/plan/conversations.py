"""What the turns of conversations would ask, as far as what was answered tells.

A turn's requests hold all that was said before. Where the answers are kept, they are made of them as the flow
makes them; a conversation with an answer missing is told by bounds: it goes on where a template speaks, may
end where a tool or a simulated user does.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from prefect import Task

from flows.plan.steps import Cell, Plan, TurnPlan
from tasks.caching import Workspace, peek
from tasks.infer import InferSetup, infer, kept_rows
from tasks.store.steps import Answered, Step
from tasks.store.storage import ArtifactRef
from tasks.turns import (
    TRANSCRIPT,
    TurnSetup,
    ask_user,
    next_turn,
    reply_rows,
    reply_turn,
    template_rows,
    transcripts,
    user_rows,
)

Rows = list[pa.RecordBatch]
Requests = ArtifactRef | Rows
Responses = Answered | Rows
"""As the store holds them where a run has made them, else made in memory."""


@dataclass(frozen=True)
class RequestCount:
    """Requests that would be sent and that are answered already.

    ``send`` is what surely would be, None where it takes responses to know; ``more`` may be sent besides, as
    conversations go on.
    """

    send: int | None
    answered: int
    more: int = 0

    def __add__(self, other: "RequestCount") -> "RequestCount":
        known = self.send is not None and other.send is not None
        send = (self.send or 0) + (other.send or 0) if known else None
        return RequestCount(send, self.answered + other.answered, self.more + other.more)

    @property
    def most(self) -> int | None:
        """The most that would be sent; None where it takes responses to know."""
        return None if self.send is None else self.send + self.more

    def as_dict(self) -> dict[str, int | None]:
        """As ``--dry-run --json`` prints it."""
        beyond = {"to_send_at_most": self.most} if self.more else {}
        return {"to_send": self.send, **beyond, "cached": self.answered}


NOTHING = RequestCount(0, 0)


@dataclass(frozen=True)
class TurnCount:
    """Requests of a turn, counted from 1, to the model that answers, or to the one that speaks for the user
    before it."""

    turn: int
    model: str
    count: RequestCount
    is_user: bool = False


@dataclass(frozen=True)
class Followed:
    """The turns after the first, and the responses of the whole where a run has put them together."""

    turns: tuple[TurnCount, ...]
    whole: Answered | None


def follow(plan: Plan, workspace: Workspace, cell: Cell, requests: Requests, answered: Responses) -> Followed:
    """How the conversations at one place go on after the first turn's requests and what is kept of their
    answers; sends nothing."""
    return _Conversations(plan, workspace, cell).followed(requests, answered)


@dataclass
class _Conversations:
    plan: Plan
    workspace: Workspace
    cell: Cell
    sure: int = 0
    """Requests of the turn to come that are surely made and that no answer is kept of: those of conversations
    whose last answer is missing."""
    unknown: int = 0
    """Conversations with an answer missing: what is said in them from there on nobody knows."""

    def followed(self, requests: Requests, answered: Responses) -> Followed:
        turns: list[TurnCount] = []
        answers, replies = [answered], []
        self.sure = self.unknown = self._unanswered(answered)
        for turn in self.plan.turns:
            name = self.plan.models[self.cell.model].setup.model.name
            if turn.ask is not None and turn.user is not None:
                asked = self._made(ask_user, user_rows, turn.ask, requests, answers[-1])
                count, reply = self._asked(turn.user, asked)
                turns.append(TurnCount(turn.number, turn.user.setup.model.name, count, is_user=True))
                replies.append(reply)
                self.sure = 0  # the user may say the end
                requests = self._made(reply_turn, reply_rows, turn.say, requests, answers[-1], reply)
            else:
                self.sure = 0 if _may_end(turn) else self.sure
                requests = self._made(next_turn, template_rows, turn.say, requests, answers[-1])
            count, answered = self._asked(turn.models[self.cell.model], requests)
            turns.append(TurnCount(turn.number, name, count))
            answers.append(answered)
        return Followed(tuple(turns), self._whole(answers, replies))

    def _made(
        self,
        task: Task[..., ArtifactRef],
        make: Callable[..., Iterator[pa.RecordBatch]],
        step: Step[TurnSetup],
        requests: Requests,
        *given: Responses,
    ) -> Requests:
        """A turn's requests: the artifact where a run has made it, else rows."""
        if isinstance(requests, ArtifactRef) and all(isinstance(one, Answered) for one in given):
            kept = peek(task, step, requests, *given, workspace=self.workspace)
            if kept is not None:
                return kept
        return list(make(step.setup, *map(self._read, (requests, *given))))

    def _asked(self, step: Step[InferSetup], requests: Requests) -> tuple[RequestCount, Responses]:
        """What asking a turn's requests comes to, with what is unknown of others; and the answers."""
        sure, unknown = self.sure, self.unknown
        if isinstance(requests, ArtifactRef):
            kept = peek(infer, step, requests, workspace=self.workspace)
            if kept is not None:
                return RequestCount(sure, requests.rows, unknown - sure), kept
        missing, rows = kept_rows(step, self._read(requests), self.workspace)
        total = sum(batch.num_rows for batch in rows)
        self.sure += missing
        self.unknown += self._unanswered(rows)
        return RequestCount(missing + sure, total - missing, unknown - sure), rows

    def _unanswered(self, responses: Responses) -> int:
        """Conversations whose answer is missing; none where a run has asked for all."""
        if isinstance(responses, Answered):
            return 0
        return sum(batch.column("status").to_pylist().count("infra_error") for batch in responses)

    def _read(self, rows: Requests | Responses) -> Iterable[pa.RecordBatch]:
        if isinstance(rows, list):
            return rows
        ref = rows.responses if isinstance(rows, Answered) else rows
        batches: Iterable[pa.RecordBatch] = self.workspace.open().batches(ref)
        return batches

    def _whole(self, answers: list[Any], replies: list[Any]) -> Answered | None:
        if not all(isinstance(one, Answered) for one in (*answers, *replies)):
            return None
        return peek(transcripts, TRANSCRIPT, answers, replies, workspace=self.workspace)


def _may_end(turn: TurnPlan) -> bool:
    """Whether nothing may be said in a turn: an answer without calls has no results of tools, and a template
    of fields or conditions alone may come out empty."""
    written = turn.say.setup.template
    return turn.say.setup.role == "tool" or "{%" in written or not _FIELDS.sub("", written).strip()


_FIELDS: Final = re.compile(r"\{\{.*?\}\}|\{#.*?#\}", re.DOTALL)
