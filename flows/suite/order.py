"""Waiting nights go in the order in which they were due.

Prefect gives a free place of a deployment's limit to whichever waiting run asks next. So a night that got the
place while an earlier one waits gives it back before it begins, and has the earlier one ask now.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from prefect import get_client
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import Pause
from prefect.states import Scheduled

BACK_SECONDS: Final = 30.0
"""When a night that gave its place back asks again: after the worker's next looks for the earlier one."""
TRIES: Final = 5
"""A night that has begun so often goes ahead, even if an earlier one waits: that one may have no worker."""
WAITING: Final = "AwaitingConcurrencySlot"


async def let_earlier_nights_go_first(run: FlowRun | None) -> None:
    """Returns if it is this night's turn; raises Pause once its place is given back."""
    if run is None or run.deployment_id is None or run.run_count > TRIES:
        return
    async with get_client() as client:
        deployment = await client.read_deployment(run.deployment_id)
        if deployment.global_concurrency_limit is None:
            return
        waiting = await client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[run.deployment_id])),
            flow_run_filter=FlowRunFilter(
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
            ),
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        )
        earlier = next_in_turn(run, waiting, datetime.now(UTC))
        if earlier is None:
            return
        state = await _give_place(client, run, earlier)
    raise Pause(f"{earlier.name} was due before and goes first", state=state)


def next_in_turn(run: FlowRun, waiting: Sequence[FlowRun], moment: datetime) -> FlowRun | None:
    """The night that was due first among those that wait, if that is before ``run``."""
    if run.expected_start_time is None:
        return None
    called = [night for night in waiting if _may_begin(night, moment)]
    due = [(night.expected_start_time, night) for night in called if night.expected_start_time is not None]
    earlier = [(at, night) for at, night in due if at < run.expected_start_time]
    return min(earlier, key=lambda entry: entry[0])[1] if earlier else None


def _may_begin(night: FlowRun, moment: datetime) -> bool:
    """Whether a night waits for nothing but a place. When it was due doesn't say so: people bring nights
    forward and put them off, and Prefect keeps the time that they were due."""
    if night.state is None or night.state.name == WAITING:
        return True
    begins = night.state.state_details.scheduled_time
    return begins is None or begins <= moment


async def _give_place(client: PrefectClient, run: FlowRun, earlier: FlowRun) -> State[Any]:
    moment = datetime.now(UTC)
    later: State[Any] = Scheduled(name=WAITING, scheduled_time=moment + timedelta(seconds=BACK_SECONDS))
    later.message = f"{earlier.name} was due before and goes first"
    await client.set_flow_run_state(run.id, later, force=True)
    await client.set_flow_run_state(earlier.id, Scheduled(name=WAITING, scheduled_time=moment), force=True)
    return later
