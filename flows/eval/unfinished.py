"""What a run leaves behind that did not come to its end: a record in the store's history.

Prefect calls ``record_run_stopped`` when an evaluation was cancelled or crashed, in its process or, where
that was killed, in the worker's; the flow leaves its record itself where it knows why it ends.
"""

from collections.abc import Mapping
from typing import Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State

from flows.eval.start import run_id_of
from tasks.history.layout import known_runs
from tasks.history.record import record_run
from tasks.store.home import default_store
from tasks.store.storage import Store


def record_run_stopped(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Records that an evaluation ended in ``state`` and why, unless it has published its results before."""
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
