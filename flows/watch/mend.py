"""Runs that hang between two states: those that a lost worker left Pending are taken again, those whose
process is gone are ended.

Only Pending and Running runs are touched, never Paused or Suspended ones: each is looked at once more, by
itself, before its state is changed.
"""

from collections.abc import Iterator, MutableMapping
from typing import Any, Final

from flows.server.view import View
from flows.watch.look import Finding, Times

TRIES: Final = 2
"""How often a run is taken again before somebody is told instead."""
PATIENT: Final = 5
"""A run whose process or worker lives may be Pending so many times longer."""


def pending_runs(view: View, times: Times, taken: MutableMapping[str, int]) -> Iterator[Finding]:
    """Schedules the Pending runs again whose worker is gone; yields those that are Pending all the same.

    ``taken`` counts how often that was done for a run.
    """
    for run in view.runs("PENDING", deployment_id={"is_null_": False}):
        waited = view.age(run["state"]["timestamp"])
        if waited <= times.seconds["PENDING"]:
            continue
        if _is_lost(view, run) and taken.get(run["id"], 0) < TRIES:
            if _is_still(view, run, "PENDING"):
                taken[run["id"]] = taken.get(run["id"], 0) + 1
                _schedule(view, run)
        elif taken.get(run["id"], 0) >= TRIES or waited > PATIENT * times.seconds["PENDING"]:
            text = f"{run['name']} has been Pending for {waited / 60:.0f} minutes"
            advice = "look at its worker's log, then cancel it or restart the worker"
            yield Finding(f"pending:{run['id']}", f"{text}: {advice}", view.run_link(run))


def _is_lost(view: View, run: dict[str, Any]) -> bool:
    """Whether nobody is about to start the run: no process of it here, and no worker that might be.

    A container's or a cluster's job may be on its way whatever becomes of its worker.
    """
    if view.processes(run["id"]) or not view.is_of_a_process_pool(run):
        return False
    return view.is_of_this_machine(run) or not view.worker_lives(run)


def _schedule(view: View, run: dict[str, Any]) -> None:
    state = {
        "type": "SCHEDULED",
        "name": "Scheduled",
        "message": "the worker that took it is gone; another one takes it",
        "state_details": {"scheduled_time": view.now.isoformat()},
    }
    view.ask(f"/flow_runs/{run['id']}/set_state", {"state": state, "force": True})


def running_runs(view: View, times: Times) -> int:
    """Sets runs to Crashed whose process is gone; how many. Raises, after the last one, what the server said
    to one that it could not tell of."""
    ended, failed = 0, None
    for run in view.runs("RUNNING"):
        if view.age(run["state"]["timestamp"]) <= times.seconds["PROCESS"]:
            continue
        try:
            ended += _ended(view, run, times)
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed
    return ended


def _ended(view: View, run: dict[str, Any], times: Times) -> bool:
    """Ends a run whose process is gone; whether it is one."""
    reason = _why_dead(view, run, times)
    if reason is None or not _is_still(view, run, "RUNNING"):
        return False
    message = f"its process is gone: {reason}; a retry computes only what is missing"
    state = {"type": "CRASHED", "name": "Crashed", "message": message}
    view.ask(f"/flow_runs/{run['id']}/set_state", {"state": state})
    return True


def _why_dead(view: View, run: dict[str, Any], times: Times) -> str | None:
    """What shows that nobody works at a run any more; None where it may live."""
    if run.get("parent_task_run_id"):
        parent = view.ask(f"/task_runs/{run['parent_task_run_id']}").get("flow_run_id")
        whole = view.run(str(parent)) if parent else None
        if whole is None or whole["state_type"] in (
            "RUNNING",
            "PENDING",
            "PAUSED",
            "CANCELLING",
            "SCHEDULED",
        ):
            return None  # it shares the process of the run that it is part of
        return f"the run that it is part of ended {whole['state_name']}"
    if view.processes(run["id"]):
        return None
    last = view.last_sign(run)
    if last is not None and (view.now - last).total_seconds() <= times.seconds["PROCESS"]:
        return None
    if view.is_of_this_machine(run):
        return "this machine has none of it"
    return f"no heartbeat for {times.words['PROCESS']}" if last is not None else None


def _is_still(view: View, run: dict[str, Any], kind: str) -> bool:
    """Whether a run is in the state that it was found in."""
    there = view.run(run["id"])
    return bool(there["state_type"] == kind and there.get("state_id") == run.get("state_id"))
