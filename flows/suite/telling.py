"""What a night leaves in its record, and how it tells people what came of it.

The record is there from the moment that the night is first due: it holds the baseline, which retries keep.
``note`` adds a message to it, ``tell`` is the night's last step and sends what is outstanding, its own and of
nights before. A night that was stopped is recorded and told by ``record_night_stopped``, which Prefect calls.
What nobody could deliver is left to the next night and to ``python -m flows.watch``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from prefect import Flow, get_run_logger, task
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import PrefectException
from prefect.logging import get_logger
from prefect.utilities.urls import url_for

from flows.suite.names import dated
from flows.suite.plan import PlannedNight, plan_night, suite_of
from metrics.errors import ConfigError, NightjarError, printable
from tasks.history.layout import Skipped
from tasks.history.nights import (
    Night,
    NightEvaluation,
    Notice,
    baseline_nights,
    night_ahead,
    nights_before,
    read_nights,
)
from tasks.history.notices import (
    change_night,
    deliver,
    is_among,
    notice_key,
    now,
    post_to,
    send_each,
    with_notice,
)
from tasks.secrets import webhook_address
from tasks.store.storage import Store

DELAYS = [2.0, 5.0, 10.0, 20.0, 40.0]
"""Seconds before a message is sent again by the night itself."""


@dataclass(frozen=True)
class BegunNight:
    """A night that is due: its own record, the nights before it, and those that it is compared with.

    ``baseline`` is None where it names a run that is not there; ``skipped`` are records that nobody can read.
    """

    own: Night
    past: tuple[Night, ...]
    baseline: tuple[Night, ...] | None
    skipped: tuple[Skipped, ...] = ()


def begin(planned: PlannedNight, due: str | None = None) -> BegunNight:
    """Records that a night is due, with its baseline; on a retry, what was recorded the first time stays.

    Only nights that were due before it are candidates, and only those that had ended when it first began.
    """
    store = Store(planned.store)
    recorded = read_nights(store, planned.slug)
    began = now()
    known = recorded.found.get(planned.run_id)
    if known is not None and not known.attempt:
        known = None  # it ended before it could begin
    if known is None:
        own = Night(
            suite=planned.slug, run_id=planned.run_id, started=began, evaluations=(), due=due or began
        )
        again: dict[str, Any] = {}
    else:
        own, again = known, {"due": known.due or due or known.started, "attempt": known.attempt + 1}
    about = {"suite_name": planned.suite.name, "limit": planned.limit, "only": planned.only}
    own = own.model_copy(update={**again, "ended": False, **about})
    if known is None and (ahead := night_ahead(recorded.found.values(), own)) is not None:
        own = own.model_copy(update={"behind": ahead.run_id})
    past = tuple(nights_before(recorded.found.values(), own))
    try:
        if known is None or (known.due is None and not known.baseline):
            baseline = tuple(planned.nights_called(planned.baseline, past))
        else:
            baseline = tuple(
                night for name in known.baseline for night in baseline_nights(store, past, name, 1)
            )
    except ConfigError:  # judging the night raises it: what can be evaluated is
        return BegunNight(own, past, None, recorded.skipped)
    fixed = own.model_copy(update={"baseline": tuple(night.run_id for night in baseline)})
    own = change_night(store, planned.slug, planned.run_id, lambda there: _kept(fixed, there))
    return BegunNight(own, past, baseline, recorded.skipped)


def _kept(night: Night, there: Night | None) -> Night:
    """The night with what was told of it, and said to it, by now."""
    said = {} if there is None else {"notices": there.notices, "accepted": there.accepted}
    return night.model_copy(update=said)


def record_judged(planned: PlannedNight, night: Night, notice: Notice | None) -> bool:
    """Records how a night ended, with what is to be told of it; whether that was told before."""
    before: list[Notice] = []

    def change(there: Night | None) -> Night:
        kept = _kept(night, there)
        before.extend(kept.notices)
        return kept if notice is None else with_notice(kept, notice)

    change_night(Store(planned.store), planned.slug, planned.run_id, change)
    return notice is not None and is_among(before, notice)


def notice(
    run: FlowRun,
    night: Night,
    outcome: str,
    said: str,
    *,
    verdict: str | None = None,
    pairs: Sequence[Mapping[str, Any]] = (),
    cost: Mapping[str, float] | None = None,
) -> Notice | None:
    """What is told of a night that came to ``outcome``, the same outcome of the same night once.

    None for runs by hand: who started them sees how they end.
    """
    if run.deployment_id is None:
        return None
    # Prefect's own name of the run is a random one until it has begun, and knows the suite's file only.
    due = run.expected_start_time
    name = night.title if due is None else dated(night.title, due)
    return Notice(
        key=notice_key(run.id, outcome),
        text=printable(f"{name} ended {said}"),
        url=url_for("flow-run", obj_id=str(run.id)),
        verdict=verdict,
        pairs=tuple(dict(pair) for pair in pairs),
        cost=dict(cost or {}),
        written=now(),
    )


@task(
    name="tell", task_run_name="tell", persist_result=False, retries=len(DELAYS), retry_delay_seconds=DELAYS
)
def tell(night: PlannedNight, earlier: Sequence[Night]) -> None:
    """Sends what the night has to tell, and what nights before it could not. Raises NotDelivered."""
    address = webhook_address()
    if address is None:
        get_run_logger().info("nobody is told: NIGHTJAR_WEBHOOK is not set, and the server keeps no webhook")
        return
    store, post = Store(night.store), post_to(address)
    runs = (night.run_id, *(entry.run_id for entry in earlier))
    send_each(lambda run_id: deliver(store, night.slug, run_id, post), runs)


def record_night_stopped(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Records that a night ended in ``state`` and why, unless it was judged before, and tells it.

    Prefect calls it when a night failed, was cancelled or crashed, in its process or, where that was killed,
    in the worker's.
    """
    night = plan_night(*suite_of(flow_run.parameters), str(flow_run.id))
    leave_record(night, state, flow_run)
    if flow_run.deployment_id is not None:
        tell_now(night)


def leave_record(night: PlannedNight, state: State[Any], run: FlowRun) -> None:
    """Records that no evaluation of the night is complete, and what is told of it; once an attempt."""
    # Prefect calls the hook while the run is being cancelled: it ends as Cancelled.
    outcome = "Cancelled" if state.is_cancelling() else str(state.name)
    reason = f"{outcome}: {state.message}" if state.message else outcome
    evaluations = tuple(
        NightEvaluation(name=entry.name, run_id=str(entry.options.run_id), ok=False, message=reason)
        for entry in night.evaluations
    )
    fresh = Night(
        suite=night.slug,
        suite_name=night.suite.name,
        limit=night.limit,
        only=night.only,
        run_id=night.run_id,
        started=run.start_time.isoformat(timespec="seconds") if run.start_time else now(),
        evaluations=(),
        due=due_time(run),
        ended=False,
        attempt=0,
    )
    told = notice(run, fresh, outcome, reason)

    def change(there: Night | None) -> Night:
        known = there or fresh
        if known.ended:
            return known
        ended = known.model_copy(update={"evaluations": evaluations, "verdict": None, "ended": True})
        return ended if told is None else with_notice(ended, told)

    change_night(Store(night.store), night.slug, night.run_id, change)


def due_time(run: FlowRun | None) -> str | None:
    """When a run was to begin: that stays, whatever it waits for and however often it is retried."""
    due = run.expected_start_time if run is not None else None
    return due.isoformat(timespec="microseconds") if due is not None else None


def tell_now(night: PlannedNight) -> None:
    """Sends what the night has to tell, once; what can't be delivered now is left to the watch."""
    try:
        address = webhook_address()
        if address is not None:
            deliver(Store(night.store), night.slug, night.run_id, post_to(address))
    except (NightjarError, httpx.HTTPError, PrefectException) as error:
        get_logger("nightjar").warning("nobody was told yet: %s", error)
