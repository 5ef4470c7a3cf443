"""Batches as task runs: sending them, one look at them, and forgetting them once their answers are kept.

Each is short. The flow sleeps between two looks, so that hours of waiting hold no thread of its runner.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from prefect import task

from tasks.caching import Workspace
from tasks.infer import Batched, InferSetup
from tasks.models.answers.segments import AnswerStore
from tasks.models.jobs import Waiting, close_jobs, look_at_jobs, send_jobs
from tasks.store.keys import Step
from tasks.store.storage import ArtifactRef, Store


class BatchesAsked(Batched):
    """How far the batches of a model are."""

    waiting: Waiting

    @classmethod
    def of(cls, waiting: Waiting) -> "BatchesAsked":
        """As they are known by their names."""
        return cls(names=waiting.names, left_out=waiting.left_out, waiting=waiting)


@dataclass(frozen=True)
class RequestRows:
    """The rows of several artifacts of requests; can be read more than once."""

    store: Store
    refs: Sequence[ArtifactRef]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for ref in self.refs:
            yield from self.store.batches(ref)


@task(name="batch", task_run_name="{step.run_name}", persist_result=False)
def send_batches(
    step: Step[InferSetup], requests: Sequence[ArtifactRef], workspace: Workspace, since: float | None = None
) -> BatchesAsked:
    """Sends what has no answer and is in no batch yet; takes up the batches of runs that were ended."""
    store = workspace.open()
    rows, options = RequestRows(store, requests), step.setup.options(workspace)
    return BatchesAsked.of(send_jobs(step.setup.model, rows, AnswerStore(store), options, since))


@task(name="batch", task_run_name="{step.run_name}", persist_result=False)
def look_at_batches(step: Step[InferSetup], asked: BatchesAsked, workspace: Workspace) -> BatchesAsked:
    """Looks at a model's batches once, and keeps the rows of those that have ended."""
    answers, options = AnswerStore(workspace.open()), step.setup.options(workspace)
    found = look_at_jobs(step.setup.model, asked.names, answers, options)
    return BatchesAsked.of(replace(found, left_out=found.left_out or asked.left_out))


@task(name="batch", task_run_name="{step.run_name}", persist_result=False)
def close_batches(step: Step[InferSetup], asked: BatchesAsked, workspace: Workspace) -> None:
    """Forgets batches whose rows are answers now."""
    answers, options = AnswerStore(workspace.open()), step.setup.options(workspace)
    close_jobs(step.setup.model, asked.names, answers, options)
