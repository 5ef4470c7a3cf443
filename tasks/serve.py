"""Tasks about a model itself, before and after its requests: "serve" and "release" of a server of its own,
and "canaries", which asks kept requests again before a suite reuses their answers.

None keeps its result: what a server was in an earlier run, or what a model answered then, is of no use in
this one. A server is no child of the task's thread but of a supervisor, which ends it with the process of
the flow.
"""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact

from metrics.errors import printable
from tasks.caching import Workspace
from tasks.infer import InferSetup, Served
from tasks.models.answers.segments import AnswerStore
from tasks.models.canaries import CanaryReport, ask_canaries, note_statement
from tasks.models.connection import Statement
from tasks.models.engine import check_interrupted
from tasks.models.identity import EXPANDED
from tasks.server import hold, if_possible
from tasks.serving.launch import Launch
from tasks.serving.records import log_text
from tasks.serving.servers import ServerFailed, forget_server, start_server, stop_server
from tasks.store.keys import Step, Unkeyed
from tasks.store.storage import ArtifactRef

SHOWN = 4_000
"""Characters of a log's end on the run's page."""


class ServeSetup(Unkeyed):
    """The model, where its log goes, and the run and the process that its server is for."""

    infer: InferSetup
    output: str
    run_id: str
    owner: int


def launch_of(setup: InferSetup) -> Launch:
    """What starts the server of a model that is served here."""
    model, server = setup.model, setup.model.server
    if server is None or model.path is None:
        raise ValueError(f"model {model.name!r} is not served here")
    return Launch(model.name, model.served_name, server, model.path, setup.base_dir)


@task(name="serve", task_run_name="{step.name}", persist_result=False)
def serve(step: Step[ServeSetup]) -> Served:
    """Starts the model's server and returns once it is ready; waits while others hold the GPUs.

    Raises ServerFailed with the end of the server's log.
    """
    setup, launch = step.setup, launch_of(step.setup.infer)

    def admit(folder: Path) -> None:
        if launch.serve.concurrency_limit is not None:
            hold(launch.serve.concurrency_limit, max(1, launch.gpus), folder.is_dir, check_interrupted)

    try:
        running = start_server(launch, setup.owner, check_interrupted, setup.run_id, admit)
    except ServerFailed as failed:
        if failed.folder is not None:
            _keep_log(setup, failed.folder)
            forget_server(failed.folder)
        raise
    get_run_logger().info("%s answers at %s", running.model, running.base_url)
    return Served(server=running)


@task(name="release", task_run_name="{step.name}", persist_result=False)
def release(step: Step[ServeSetup], server: Served) -> None:
    """Ends the model's server, and keeps its log."""
    if server.server is None:
        return
    folder = Path(server.server.folder)
    stop_server(folder)
    _keep_log(step.setup, folder)
    forget_server(folder)


def log_file(output: str, model: str) -> Path:
    """Where the log of a model's server is kept in a run's folder."""
    return Path(output) / "servers" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', model).strip('-.') or 'model'}.log"


def _keep_log(setup: ServeSetup, folder: Path) -> None:
    """The server's log among the run's files, and its end on the run's page."""
    text = log_text(folder)
    file = log_file(setup.output, setup.infer.model.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    name = setup.infer.model.name
    page = f"The end of {file}:\n\n```\n{printable(text[-SHOWN:])}\n```"
    key = "server-" + (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model")
    if_possible(lambda: create_markdown_artifact(page, key=key, description=f"Log of the server of {name}"))


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
