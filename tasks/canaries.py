"""The task that asks kept requests again before a suite reuses their answers, and what it needs to know."""

from collections.abc import Sequence
from itertools import chain

from prefect import get_run_logger, task

from tasks.caching import Workspace
from tasks.infer import InferSetup
from tasks.models.answers.segments import AnswerStore
from tasks.models.canaries import CanaryReport, ask_canaries, note_statement
from tasks.models.identity import EXPANDED
from tasks.models.statement import Statement
from tasks.steps import Step
from tasks.store.storage import ArtifactRef


@task(name="canaries", task_run_name="{step.name}", persist_result=False)
def canaries(
    step: Step[InferSetup], requests: Sequence[ArtifactRef], count: int, workspace: Workspace
) -> CanaryReport:
    """Whether the model still answers some of these requests as it did; the log says what
    speaks against it."""
    store, setup = workspace.open(), step.setup
    batches = chain.from_iterable(store.batches(ref, list(EXPANDED)) for ref in requests)
    found = ask_canaries(setup.model, batches, AnswerStore(store), setup.options(workspace), count)
    if found.sentence is not None:
        get_run_logger().warning("%s: %s", setup.model.name, found.sentence)
    return found


def note_said(setup: InferSetup, says: Statement, workspace: Workspace) -> None:
    """Keeps what a model's endpoint says of itself: later runs hold it against what it says then."""
    note_statement(setup.model, AnswerStore(workspace.open()), setup.options(workspace), says)
