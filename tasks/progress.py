"""Progress of an inference: to the terminal's board if this process has one open, else to an artifact on
the run's page."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from tasks.models.options import Progress
from tasks.reporting.progress import board_is_open, percent, progress_markdown, reporter

SECONDS_BETWEEN_UPDATES = 5.0

_log = logging.getLogger(__name__)


@contextmanager
def progress_of(model: str, partition: str) -> Iterator[Callable[[Progress], None]]:
    """What the inference of one partition reports its progress to."""
    if board_is_open():
        yield reporter(model, partition)
        return
    with _artifact(model) as report:
        yield report


@contextmanager
def _artifact(model: str) -> Iterator[Callable[[Progress], None]]:
    """Updates a progress artifact from a thread of its own: the engine's loop never waits for the server.

    An inference that ends before the first update needs none.
    """
    latest: dict[str, Progress] = {}
    done = threading.Event()

    def publish() -> None:
        identifier: UUID | None = None
        while not done.wait(SECONDS_BETWEEN_UPDATES):
            identifier = _update(identifier, dict(latest))
        if identifier is not None:
            _update(identifier, dict(latest))

    def report(progress: Progress) -> None:
        latest[model] = progress

    # Daemonic: a server that is away must not keep the task from ending.
    thread = threading.Thread(target=publish, name=f"progress of {model}", daemon=True)
    thread.start()
    try:
        yield report
    finally:
        done.set()
        thread.join(timeout=2 * SECONDS_BETWEEN_UPDATES)


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
