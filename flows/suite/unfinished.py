"""What a night leaves behind that did not come to its end: a record among the suite's nights, not passed."""

from typing import Any

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State

from flows.suite.config import load_suite
from flows.suite.plan import PlannedNight, SuiteOptions, plan_night
from tasks.history.record import Night, NightEvaluation, past_nights, record_night
from tasks.store.storage import Store


def record_night_stopped(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Records that a night ended in ``state`` and why, unless it was judged before.

    Prefect calls it when a night was cancelled or crashed, in its process or, where that was killed, in the
    worker's.
    """
    options = SuiteOptions.model_validate(flow_run.parameters.get("options") or {})
    night = plan_night(load_suite(flow_run.parameters["suite"]), options, str(flow_run.id))
    started = flow_run.start_time or flow_run.created
    leave_record(night, state, started.isoformat(timespec="seconds") if started else "")


def leave_record(night: PlannedNight, state: State[Any], started: str) -> None:
    """The night with none of its evaluations complete, unless there is a record already."""
    store = Store(night.store)
    if night.run_id in {past.run_id for past in past_nights(store, night.slug)}:
        return
    reason = f"{state.name}: {state.message}"
    evaluations = tuple(
        NightEvaluation(name=entry.name, run_id=str(entry.options.run_id), ok=False, message=reason)
        for entry in night.evaluations
    )
    record_night(
        store, Night(suite=night.slug, run_id=night.run_id, started=started, evaluations=evaluations)
    )
