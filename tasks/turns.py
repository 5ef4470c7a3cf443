"""Stages "turn" and "transcript": a conversation goes on by what the user says next, and ends as one row a
sample. Each turn is asked by an inference step of its own.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from tasks.benchmarks.prompts import Template
from tasks.caching import Workspace, artifact_task, cached_task
from tasks.models.tally import RequestTally
from tasks.rows.turns import Continuation, last_answers, next_requests, replied_requests, user_requests
from tasks.store.keys import Accounts, Answered, Step, Unkeyed
from tasks.store.schemas import ANSWERS, REQUESTS, RESPONSES
from tasks.store.storage import ArtifactRef


class TurnSetup(Unkeyed):
    """What is said in a turn: its number from 1, a role and a template, or the prompt of a simulated user and
    the pattern that ends a conversation."""

    turn: int
    role: str
    template: str
    stop: str = ""


def template_rows(
    setup: TurnSetup, requests: Iterable[pa.RecordBatch], responses: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The requests of the next turn, by a template."""
    said = Continuation(setup.role, Template(setup.template, f"turns ({setup.turn})"))
    return next_requests(said, setup.turn, requests, responses)


def user_rows(
    setup: TurnSetup, requests: Iterable[pa.RecordBatch], responses: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a simulated user is asked before the turn."""
    return user_requests(Template(setup.template, "turns.prompt"), setup.turn, requests, responses)


def reply_rows(
    setup: TurnSetup,
    requests: Iterable[pa.RecordBatch],
    responses: Iterable[pa.RecordBatch],
    replies: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The requests of the next turn, by what the simulated user said."""
    return replied_requests(re.compile(setup.stop), requests, responses, replies)


@artifact_task("turn", REQUESTS)
def next_turn(
    step: Step[TurnSetup], requests: ArtifactRef, answered: Answered, workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """``template_rows`` of what is kept."""
    store = workspace.open()
    yield from template_rows(step.setup, store.batches(requests), store.batches(answered.responses))


@artifact_task("turn", REQUESTS)
def ask_user(
    step: Step[TurnSetup], requests: ArtifactRef, answered: Answered, workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """``user_rows`` of what is kept."""
    store = workspace.open()
    yield from user_rows(step.setup, store.batches(requests), store.batches(answered.responses))


@artifact_task("turn", REQUESTS)
def reply_turn(
    step: Step[TurnSetup],
    requests: ArtifactRef,
    answered: Answered,
    replied: Answered,
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """``reply_rows`` of what is kept."""
    store, sources = workspace.open(), (requests, answered.responses, replied.responses)
    yield from reply_rows(step.setup, *map(store.batches, sources))


TRANSCRIPT: Step[Unkeyed] = Step(name="transcript", identity={}, setup=Unkeyed())
"""What makes conversations of turns: all that it depends on are its inputs."""


@cached_task("transcript")
def transcripts(
    step: Step[Unkeyed], turns: Sequence[Answered], users: Sequence[Answered], workspace: Workspace
) -> Answered:
    """The conversations as responses: the answer of the last turn, to a prompt that holds all before."""
    store = workspace.open()
    rows = last_answers(
        [store.batches(turn.responses) for turn in turns], [store.batches(user.responses) for user in users]
    )
    # What was said before is part of what metrics see, and stands in the prompt.
    ref = store.write("transcript", workspace.key, RESPONSES, rows, (*ANSWERS, "prompt"))
    retryable = sum(one.responses.retryable for one in (*turns, *users))
    return Answered(
        responses=ref.model_copy(update={"retryable": retryable}),
        accounts=Accounts(tally=RequestTally().as_dict()),
    )
