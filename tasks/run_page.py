"""What a run says of itself in the Prefect UI: how far inference is, and what a gate decided."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.context import TaskRunContext

from tasks.models.progress import Progress
from tasks.patience import if_possible
from tasks.reporting.progress import (
    PLAIN_SECONDS,
    board_is_open,
    in_notebook,
    notebook_board,
    percent,
    progress_line,
    progress_markdown,
    reporter,
)
from tasks.store.beside import beside

_log = logging.getLogger(__name__)
VERDICT_LABEL, PAIRS_LABEL = "nightjar.verdict", "nightjar.pairs"
"""Labels of a flow run that a gate judged: its verdict, and as JSON the pairs that did not pass."""


def label_verdict(flow_run_id: str, verdict: str | None, pairs: Sequence[Mapping[str, Any]]) -> None:
    """Writes a gate's verdict on the flow run, where automations read it whatever state the run ends in."""
    labels: dict[str, bool | int | float | str] = {
        VERDICT_LABEL: verdict or "",
        PAIRS_LABEL: json.dumps(list(pairs)),
    }

    def write() -> None:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(UUID(flow_run_id), labels)

    if_possible(write)


SECONDS_BETWEEN_UPDATES = 5.0


@contextmanager
def progress_of(model: str, partition: str) -> Iterator[Callable[[Progress], None]]:
    """What the inference of one partition reports its progress to."""
    if board_is_open():
        yield reporter(model, partition)
    elif in_notebook():
        with notebook_board() as board:
            yield board.reporter(model, partition)
    elif TaskRunContext.get() is None:  # a cluster's worker: no run of this process has a page
        yield lambda _: None
    else:
        with _artifact(model) as report:
            yield report


@contextmanager
def _artifact(model: str) -> Iterator[Callable[[Progress], None]]:
    """Updates a progress artifact from a thread of its own: the engine's loop never waits for the server.

    An inference that ends before the first update needs none.
    """
    latest: dict[str, Progress] = {}
    log = _run_log()

    def publish(done: threading.Event) -> None:
        identifier: UUID | None = None
        told, since = "", time.monotonic()
        while not done.wait(SECONDS_BETWEEN_UPDATES):
            identifier = _update(identifier, dict(latest))
            if time.monotonic() - since < PLAIN_SECONDS:
                continue
            since = time.monotonic()
            for name, progress in dict(latest).items():
                if (line := progress_line(name, progress)) != told:
                    log.info("%s", line)
                    told = line
        if identifier is not None:
            _update(identifier, dict(latest))

    def report(progress: Progress) -> None:
        latest[model] = progress

    with beside(publish, f"progress of {model}", patience=2 * SECONDS_BETWEEN_UPDATES):
        yield report


def _run_log() -> "logging.Logger | logging.LoggerAdapter[Any]":
    """The log of the task run that is under way, which a worker prints and the server keeps; else our own."""
    from prefect import get_run_logger
    from prefect.exceptions import MissingContextError

    try:
        return get_run_logger()
    except MissingContextError:
        return _log


def _update(identifier: UUID | None, models: dict[str, Progress]) -> UUID | None:
    from prefect.artifacts import create_progress_artifact, update_progress_artifact

    if not models:
        return identifier
    share, said = percent(models), progress_markdown(models)
    try:
        if identifier is None:
            created = create_progress_artifact(progress=share, description=said)
            return created if isinstance(created, UUID) else None
        update_progress_artifact(identifier, progress=share, description=said)
    except Exception as error:  # the server may be away: inference goes on, and so does the next update
        _log.debug("progress artifact: %s", error)
    return identifier
