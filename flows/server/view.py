"""What the server says at one moment, asked for when it is first needed; and which processes live here."""

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tasks.store.machine import processes_with

Ask = Callable[..., Any]
"""``ask(path)`` is a GET, ``ask(path, body)`` a POST; raises OSError while the server is away."""
PAGE: Final = 200
UNDER_WAY: Final = ("PENDING", "RUNNING", "PAUSED", "CANCELLING")
"""Types of the states of a run that has begun and goes on."""
RUN_ID: Final = "PREFECT__FLOW_RUN_ID"
"""By this variable a worker tells a process which run it is."""


def local_processes(run_id: str) -> list[int]:
    """Processes of this machine, and of this user, that are a worker's run."""
    return processes_with(RUN_ID, run_id)


def moment(text: Any) -> datetime | None:
    """A time as the server writes it."""
    return datetime.fromisoformat(str(text)) if text else None


@dataclass(frozen=True)
class View:
    """The server as it is now. ``ui`` is where its pages are; ``processes`` finds a run's on this machine."""

    ask: Ask
    ui: str
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    processes: Callable[[str], list[int]] = local_processes
    host: str = field(default_factory=socket.gethostname)

    def age(self, text: Any) -> float:
        """Seconds since a time that the server wrote; 0 where there is none."""
        then = moment(text)
        return (self.now - then).total_seconds() if then is not None else 0.0

    def link(self, kind: str, name: str) -> str:
        """The page of a run, a deployment, a work pool."""
        return f"{self.ui}/{kind}/{quote(name, safe='')}"

    def run_link(self, run: Mapping[str, Any]) -> str:
        """The page of a run."""
        return self.link("runs/flow-run", str(run["id"]))

    def runs(self, *types: str, names: Sequence[str] = (), **others: Any) -> list[dict[str, Any]]:
        """Flow runs whose state is of one of these types and names; ``others`` are filters of the API."""
        state = {"type": {"any_": list(types)}, **(named(names) if names else {})}
        wanted = {"state": state, **others}
        return self._all("/flow_runs/filter", {"flow_runs": wanted, "sort": "ID_DESC"})

    def run(self, run_id: str) -> dict[str, Any]:
        """A run as it is at this very moment."""
        return dict(self.ask(f"/flow_runs/{run_id}"))

    @cached_property
    def deployments(self) -> dict[str, dict[str, Any]]:
        """All deployments, by id."""
        return {str(entry["id"]): entry for entry in self._all("/deployments/filter", {})}

    @cached_property
    def pools(self) -> dict[str, dict[str, Any]]:
        """All work pools, by name."""
        return {str(entry["name"]): entry for entry in self._all("/work_pools/filter", {})}

    def workers(self, pool: str) -> list[dict[str, Any]]:
        """The workers that a pool ever had, as far as the server remembers them."""
        return list(self.ask(f"/work_pools/{quote(pool, safe='')}/workers/filter", {"limit": PAGE}))

    def worker_lives(self, run: Mapping[str, Any]) -> bool:
        """Whether the worker that took a run still sends heartbeats."""
        labels = run.get("labels") or {}
        pool, name = labels.get("prefect.work-pool.name"), labels.get("prefect.worker.name")
        known = self.workers(str(pool)) if pool in self.pools else []
        return any(worker["name"] == name and self.beats(worker) for worker in known)

    def pool_has_a_worker(self, run: Mapping[str, Any]) -> bool:
        """Whether any worker of a run's pool still sends heartbeats."""
        pool = str(run.get("work_pool_name"))
        return pool in self.pools and any(map(self.beats, self.workers(pool)))

    def beats(self, worker: Mapping[str, Any]) -> bool:
        """Whether a worker's last three heartbeats did not all fail to come."""
        interval = worker.get("heartbeat_interval_seconds") or 30
        last = worker.get("last_heartbeat_time")
        return last is not None and self.age(last) <= 3 * interval

    def is_of_a_process_pool(self, run: Mapping[str, Any]) -> bool:
        """Whether a run is a process that its worker starts."""
        return self.pools.get(str(run.get("work_pool_name")), {}).get("type") == "process"

    def is_of_this_machine(self, run: Mapping[str, Any]) -> bool:
        """Whether a process worker of this machine took the run, so that its process would be seen here."""
        worker = (run.get("labels") or {}).get("prefect.worker.name")
        return self.is_of_a_process_pool(run) and worker == self.host

    def last_sign(self, run: Mapping[str, Any]) -> datetime | None:
        """When a run was last heard of: a heartbeat or a line of its log."""
        run_id = str(run["id"])
        beat = {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{run_id}"]},
            "order": "DESC",
        }
        events = self.ask("/events/filter", {"filter": beat, "limit": 1})["events"]
        logged = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_DESC", "limit": 1}
        signs = [moment(event["occurred"]) for event in events]
        signs += [moment(line["timestamp"]) for line in self.ask("/logs/filter", logged)]
        return max((sign for sign in signs if sign is not None), default=None)

    def events(self, name: str, seconds: float) -> list[dict[str, Any]]:
        """The events of a name within so many seconds, the newest first."""
        since = (self.now - timedelta(seconds=seconds)).isoformat()
        wanted = {"event": {"name": [name]}, "occurred": {"since": since}, "order": "DESC"}
        return list(self.ask("/events/filter", {"filter": wanted, "limit": 50})["events"])

    def _all(self, path: str, body: Mapping[str, Any]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            page = self.ask(path, {**body, "limit": PAGE, "offset": len(found)})
            found += page
            if len(page) < PAGE:
                return found


def named(names: Iterable[str]) -> dict[str, Any]:
    """A filter of states by their names."""
    return {"name": {"any_": list(names)}}


def dead_letters(folder: Path) -> int:
    """How many events the own server gave up, which nobody looks at again."""
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0
