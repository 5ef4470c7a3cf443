"""What people and time do to a run that is under way: cancelled in the UI, paused, over its time-out.

Prefect tells a flow run's process only by a signal, and of that only the main thread hears. ``under_control``
asks the server for the state of the run instead, and passes it on to the run's ``RunControl``;
``stopped_state`` is how such a run ends. Either way it leaves a record in the store's history: the flow's own
where it knows why it ends, else that of ``record_run_stopped``, which Prefect calls.
"""

import contextvars
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect import Flow, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Pause, PrefectException
from prefect.states import Cancelled, Failed

from flows.eval.start import run_id_of
from metrics.printable import printable
from tasks.history.layout import known_runs
from tasks.history.record import record_run
from tasks.models.control import Interrupted, RunControl, controlled
from tasks.store.durations import duration_text
from tasks.store.home import default_store
from tasks.store.storage import Store

POLL_SECONDS = 1.5
"""How often the state is asked for: a run that is cancelled stops asking within 5 seconds."""


@contextmanager
def under_control(run_id: str, flow_run_id: str, timeout: float | None = None) -> Iterator[RunControl]:
    """A block in which a flow run can be cancelled and paused, and may take ``timeout`` seconds.

    Gives its control. A run that is stopped leaves the block early and without an error: its control says so.
    """
    over = threading.Event()
    with controlled(run_id) as control:
        context = contextvars.copy_context()  # Prefect's settings: which server to ask
        watcher = threading.Thread(
            target=context.run,
            args=(_watch, UUID(flow_run_id), control, timeout, over),
            name=f"watch {flow_run_id}",
            daemon=True,  # a server that does not answer must not keep the run from ending
        )
        watcher.start()
        try:
            yield control
        except Interrupted:
            if control.stopped is None:
                raise
        finally:
            over.set()
            watcher.join(POLL_SECONDS)


def _watch(flow_run_id: UUID, control: RunControl, timeout: float | None, over: threading.Event) -> None:
    began = time.monotonic()
    with get_client(sync_client=True) as client:
        while not over.wait(POLL_SECONDS):
            if timeout is not None and time.monotonic() - began >= timeout:
                control.stop("timed out", f"timeout: {duration_text(timedelta(seconds=timeout))} is over")
            try:
                state = client.read_flow_run(flow_run_id).state
            except (httpx.HTTPError, PrefectException):
                continue  # the server is away: nobody can have told it anything
            if state is not None and not over.is_set():
                hear(state, control)


def hear(state: State[Any], control: RunControl) -> None:
    """Passes on what the state of a run in progress says."""
    if state.is_cancelling() or state.is_cancelled():
        control.stop("cancelled", "the run was cancelled")
    elif state.is_paused() and state.state_details.pause_reschedule:
        control.stop("suspended", "the run was suspended")
    elif state.is_final():
        control.stop("cancelled", f"the run was set to {state.name}")
    control.pause(state.is_paused())


async def stopped_state(control: RunControl, flow_run_id: str) -> State[Any]:
    """How a run that was stopped ends; what only stopped with the run that it is part of is cancelled.

    Raises Prefect's Pause for a run that is suspended: its process ends, and resuming it starts another.
    """
    stop = control.own_stop or control.stopped
    reason = stop.reason if stop else "stopped"
    message = printable(f"{reason}; what was answered is kept, a retry asks only for the rest")
    if control.own_stop is not None and control.own_stop.kind == "timed out":
        return Failed(name="TimedOut", message=message)
    if control.own_stop is not None and control.own_stop.kind == "suspended":
        async with get_client() as client:
            raise Pause(message, state=(await client.read_flow_run(UUID(flow_run_id))).state)
    return Cancelled(message=message)


def record_run_stopped(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Records that an evaluation ended in ``state`` and why, unless it has published its results before.

    Prefect calls it for a run that was cancelled or crashed, in its process or, where that was killed, in the
    worker's.
    """
    parameters: Mapping[str, Any] = flow_run.parameters
    config, options = (_plain(parameters.get(name)) for name in ("config", "options"))
    name = str(config.get("name", "evaluation"))
    run_id = str(options.get("run_id") or run_id_of(options.get("run_name") or name, str(flow_run.id)))
    started = flow_run.start_time or flow_run.created
    about = {"run_id": run_id, "run_name": options.get("run_name") or run_id, "benchmark": name}
    about |= {"flow_run_id": str(flow_run.id), "started": started.timestamp() if started else None}
    leave_record(Store(str(options.get("store") or default_store())), about, state)


def leave_record(store: Store, about: Mapping[str, Any], state: State[Any]) -> None:
    """Adds a run without results to the history: ``about`` it, its state and why; unless it is there."""
    if about["run_id"] not in known_runs(store):
        record_run(store, {**about, "status": state.name, "message": state.message}, [], [])


def _plain(parameter: Any) -> dict[str, Any]:
    """A parameter as JSON has it: a flow run of this process still holds the models."""
    if parameter is None:
        return {}
    return dict(parameter) if isinstance(parameter, Mapping) else parameter.model_dump(mode="json")
