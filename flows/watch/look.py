"""What is wrong, as findings: one for each trouble, under a key that stays the same while the trouble lasts.

Each ``look`` takes the server as it is now and the times that are waited, and changes nothing.
"""

import asyncio
import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from flows.compare.runs import STATE_NAMES
from flows.server.view import UNDER_WAY, View, dead_letters, moment
from metrics.errors import ConfigError
from tasks.history.nights import Notice
from tasks.history.notices import message_of
from tasks.run_page import PAIRS_LABEL, VERDICT_LABEL

NIGHTLY: Final = "nightly"
"""Tag of the deployments whose nights are waited for."""
USUAL: Final = {"MISSED": "26h", "LATE": "10m", "WORKER": "5m", "PROCESS": "5m", "PENDING": "60s"}
"""How long is waited before somebody is told; NIGHTJAR_MISSED_AFTER and so on say otherwise."""
UNITS: Final = {"s": 1, "m": 60, "h": 3600}
WAITING: Final = ("AwaitingConcurrencySlot", "AwaitingRetry", "Resuming")
"""Names of scheduled states in which a run waits for something else than a worker."""
BACK: Final = timedelta(days=7)
"""How far back a watch that was away looks for runs that ended, and nights that did not come."""
UNTOLD_SECONDS: Final = 20.0
"""A run that ended has so long to tell it itself."""
AGAIN_SECONDS: Final = 25.0
"""A run that a lost worker left Pending has another one so soon, or somebody is told: workers ask twice in
that time."""


@dataclass(frozen=True)
class Times:
    """How long is waited, in seconds, and the same in words."""

    seconds: Mapping[str, float]
    words: Mapping[str, str]

    @classmethod
    def from_environment(cls) -> "Times":
        """NIGHTJAR_LATE_AFTER and its like, else the usual times; raises ConfigError."""
        words = {name: os.environ.get(f"NIGHTJAR_{name}_AFTER") or usual for name, usual in USUAL.items()}
        return cls({name: _seconds(name, text) for name, text in words.items()}, words)


def _seconds(name: str, text: str) -> float:
    match = re.fullmatch(r"(\d+)\s*([smh])", text)
    if match is None or int(match[1]) == 0:
        raise ConfigError(
            f"NIGHTJAR_{name}_AFTER: expected a time such as 90s, 10m or 26h, got '{text}'; correct it"
        )
    return float(int(match[1]) * UNITS[match[2]])


@dataclass(frozen=True)
class Finding:
    """Something that people are told, once as long as it lasts."""

    key: str
    text: str
    url: str | None = None
    verdict: str | None = None
    pairs: tuple[Mapping[str, Any], ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)

    @property
    def message(self) -> dict[str, Any]:
        """The body that the webhook gets."""
        return message_of(Notice(**vars(self), written=""))


def late_runs(view: View, times: Times, taken: Mapping[str, int]) -> Iterator[Finding]:
    """Runs that were due and that no worker has taken; ``taken`` are those that a lost worker had."""
    for run in view.runs("SCHEDULED", deployment_id={"is_null_": False}):
        state = run.get("state") or {}
        due = (state.get("state_details") or {}).get("scheduled_time") or run.get("expected_start_time")
        if state.get("name") in WAITING:
            continue
        late = f"{run['name']} is {times.words['LATE']} late and has not started"
        said, patience = late, times.seconds["LATE"]
        if run["id"] in taken:
            said = f"{run['name']} was left Pending by a worker that is gone, and no other has taken it"
            patience = AGAIN_SECONDS if view.pool_has_a_worker(run) else 0.0
        if view.age(due) >= patience:
            yield Finding(
                f"late:{run['id']}", f"{said}: does a worker take runs of its pool?", view.run_link(run)
            )


def pools_without_a_worker(view: View, times: Times) -> Iterator[Finding]:
    """Pools of deployments in which no worker has lived for a while."""
    used = {str(deployment.get("work_pool_name")) for deployment in view.deployments.values()}
    for name, pool in view.pools.items():
        if (
            name not in used
            or pool.get("is_paused")
            or str(pool.get("type", "")).endswith((":push", ":managed"))
        ):
            continue
        beats = [moment(worker.get("last_heartbeat_time")) for worker in view.workers(name)]
        last = max((beat for beat in beats if beat is not None), default=moment(pool.get("created")))
        if last is not None and (view.now - last).total_seconds() > times.seconds["WORKER"]:
            text = f"The work pool {name} has no worker: prefect worker start --pool {shlex.quote(name)}"
            yield Finding(f"pool:{name}", text, view.link("work-pools/work-pool", name))


def missed_nights(view: View, times: Times) -> Iterator[Finding]:
    """Deployments of nights that have ended none for too long, however it ended, and have none under way."""
    for deployment in view.deployments.values():
        plans = [entry for entry in deployment.get("schedules") or () if entry.get("active")]
        if NIGHTLY not in (deployment.get("tags") or ()) or not plans or deployment.get("paused"):
            continue
        body = {
            "deployments": {"id": {"any_": [deployment["id"]]}},
            "flow_runs": {
                "state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED", "CANCELLED", *UNDER_WAY]}}
            },
            "sort": "EXPECTED_START_TIME_DESC",
            "limit": 20,
        }
        nights = view.ask("/flow_runs/filter", body)
        if any(night["state_type"] in UNDER_WAY for night in nights):
            continue
        last = max([str(night["end_time"]) for night in nights if night.get("end_time")], default=None)
        begun = (last, deployment.get("created"), deployment.get("updated"))
        if any(_is_missed(plan, (*begun, plan.get("updated")), view.now, times) for plan in plans):
            said = f"No night of {deployment['name']} has ended for {times.words['MISSED']}"
            yield Finding(
                f"missed:{deployment['id']}:{last or 'never'}",
                f"{said}: is it scheduled, and is there a worker?",
                view.link("deployments/deployment", str(deployment["id"])),
            )


def _is_missed(plan: Mapping[str, Any], begun: Iterable[Any], now: datetime, times: Times) -> bool:
    """Whether a schedule had a night begin that has had its time to end, what the usual wait leaves of a day,
    and that none did for too long. It counts since the last of some moments: when a night ended, when the
    deployment was made, resumed or changed, and when the schedule was; and no longer than a server surely
    remembers runs."""
    usual = timedelta(seconds=times.seconds["MISSED"])
    since = max([now - usual - BACK, *filter(None, map(moment, begun))])
    if now - since <= usual:
        return False
    if not (schedule := plan.get("schedule")):
        return True
    from prefect.server.schemas.schedules import SCHEDULE_TYPES
    from pydantic import TypeAdapter

    until = now - max(timedelta(), usual - timedelta(days=1))
    try:
        found = TypeAdapter(SCHEDULE_TYPES).validate_python(schedule)
        return bool(asyncio.run(found.get_dates(1, start=since, end=until)))
    except ValueError:  # one that this version of Prefect does not know, or without another date
        return True


def runs_that_ended(view: View, since: str) -> Iterator[tuple[dict[str, Any], Finding]]:
    """Runs of deployments that ended since then without all of their results, or whose gate did not pass."""
    ended: dict[str, Any] = {"deployment_id": {"is_null_": False}, "end_time": {"after_": since}}
    found = view.runs("FAILED", "CRASHED", "CANCELLED", **ended)
    found += view.runs("COMPLETED", names=list(STATE_NAMES.values()), **ended)
    for run in found:
        if view.age(run.get("end_time")) < UNTOLD_SECONDS:
            continue
        state, labels = run.get("state") or {}, run.get("labels") or {}
        yield (
            run,
            Finding(
                key=f"{run['id']}:{run['run_count']}:{state.get('name')}",
                text=f"{run['name']} ended {state.get('name')}: {state.get('message') or ''}",
                url=view.run_link(run),
                verdict=labels.get(VERDICT_LABEL) or None,
                pairs=_pairs(labels.get(PAIRS_LABEL)),
            ),
        )


def _pairs(text: Any) -> tuple[Mapping[str, Any], ...]:
    return tuple(json.loads(text)) if text else ()


def given_up_events(folder: Path, today: str) -> Iterator[Finding]:
    """Events that the server could not handle and put aside: automations of your own did not see them."""
    if count := dead_letters(folder):
        text = f"The Prefect server gave up {count} events, which its automations did not see"
        yield Finding(f"dead-letters:{today}", f"{text}: look at {folder}, then empty it")
