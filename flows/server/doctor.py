"""``python -m flows.server doctor``: what is wrong with the server and around it, and what to do about each.

It looks at what the watch looks at, at this moment and without changing anything, and at the watch itself.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Final

from flows.server.memory import Memory, memory_file
from flows.server.view import UNDER_WAY, View, dead_letters
from metrics.errors import NightjarError
from tasks.history.notices import receipts
from tasks.store.home import default_store, home
from tasks.store.storage import Store

STUCK_SECONDS: Final = 300.0
"""A run may be Pending, or Running without a sign of life, so long."""
WATCH_SECONDS: Final = 300.0
DAY: Final = timedelta(days=1)


@dataclass(frozen=True)
class Diagnosis:
    """One thing looked at: how it is, and what to do where it is not well."""

    about: str
    said: str
    advice: str | None = None

    def __str__(self) -> str:
        mark = "ok " if self.advice is None else "BAD"
        return f"{mark}  {self.about}: {self.said}" + (f"\n     {self.advice}" if self.advice else "")


def diagnose(view: View, letters: Path) -> list[Diagnosis]:
    """All that there is to say; a part that can't be looked at says so."""
    try:
        server = str(view.ask("/admin/version"))
    except OSError as error:
        advice = "start it: python -m flows.server start"
        return [
            Diagnosis("server", f"does not answer at {view.ui}: {error}", advice),
            *_without_server(letters),
        ]
    found = [Diagnosis("server", f"answers at {view.ui}"), _versions(server)]
    for part in (_pending, _running, _slots):
        found += _attempted(part.__name__.strip("_"), part, view)
    return [*found, *_without_server(letters)]


def _attempted(about: str, part: Callable[[View], Iterator[Diagnosis]], view: View) -> list[Diagnosis]:
    try:
        return list(part(view))
    except OSError as error:
        return [Diagnosis(about, f"can't be looked at: {error}", "try again, then look at the server's log")]


def _versions(server: str) -> Diagnosis:
    here = version("prefect")
    said = f"nightjar {version('nightjar')}, prefect {here}, the server has {server}"
    advice = (
        None if server == here else "start the server again with this environment: make stop, make deploy"
    )
    return Diagnosis("versions", said, advice)


def _pending(view: View) -> Iterator[Diagnosis]:
    runs = [run for run in view.runs("PENDING") if view.age(run["state"]["timestamp"]) > STUCK_SECONDS]
    advice = "look at its worker, or cancel it; the watch schedules those again whose worker is gone"
    for run in runs:
        waited = view.age(run["state"]["timestamp"]) / 60
        yield Diagnosis("stuck run", f"{run['name']} is Pending for {waited:.0f} minutes", advice)
    if not runs:
        yield Diagnosis("pending runs", "none is stuck")


def _running(view: View) -> Iterator[Diagnosis]:
    silent = 0
    for run in view.runs("RUNNING", deployment_id={"is_null_": False}):
        last = view.last_sign(run)
        if view.processes(run["id"]) or last is None or view.age(last) <= STUCK_SECONDS:
            continue
        silent += 1
        said = f"{run['name']} is Running, and nothing was heard of it for {view.age(last) / 60:.0f} minutes"
        yield Diagnosis("stuck run", said, "if its process is gone, set it to Crashed, then retry it")
    if not silent:
        yield Diagnosis("running runs", "all that run are heard of")


def _slots(view: View) -> Iterator[Diagnosis]:
    """Places of deployments' limits that no run of theirs holds."""
    held = 0
    for limit in view.ask("/v2/concurrency_limits/filter", {"limit": 200}):
        kind, _, deployment = str(limit["name"]).partition(":")
        held += limit["active_slots"]
        if kind != "deployment" or not limit["active_slots"]:
            continue
        # A run that waits for its retry sleeps in its process, and keeps its place.
        waiting = [run for run in view.runs("SCHEDULED") if run["state"]["name"] == "AwaitingRetry"]
        active = (*view.runs(*UNDER_WAY), *waiting)
        holders = [run for run in active if str(run.get("deployment_id")) == deployment]
        if limit["active_slots"] > len(holders):
            taken = f"{limit['active_slots']} of {limit['limit']}"
            said = f"{taken} of {_name(view, deployment)}, by {len(holders)} runs"
            advice = (
                "they come free when their lease ends, after 5 minutes; else: "
                f"prefect global-concurrency-limit update {limit['name']} --active-slots {len(holders)}"
            )
            yield Diagnosis("places held", said, advice)
    yield Diagnosis("places of limits", f"{held:g} taken")


def _name(view: View, deployment: str) -> str:
    return str(view.deployments.get(deployment, {}).get("name", deployment))


def _without_server(letters: Path) -> list[Diagnosis]:
    """What is known without asking the server."""
    memory = Memory.load()
    return [_dead_letters(letters), _watch(memory), _freezes(memory), _webhook(memory)]


def _dead_letters(letters: Path) -> Diagnosis:
    count = dead_letters(letters)
    advice = f"automations of your own did not see them; look at {letters}, then empty it" if count else None
    return Diagnosis("dead letters", f"{count} events given up", advice)


def _watch(memory: Memory) -> Diagnosis:
    advice = "start it: make deploy, or python -m flows.watch"
    if memory.looked is None:
        return Diagnosis("watch", f"has never looked ({memory_file()})", advice)
    ago = (datetime.now(UTC) - datetime.fromisoformat(memory.looked)).total_seconds()
    said = f"looked {ago:.0f} s ago"
    return Diagnosis("watch", said, advice if ago > WATCH_SECONDS else None)


def _freezes(memory: Memory) -> Diagnosis:
    since = (datetime.now(UTC) - DAY).isoformat()
    seen = [entry for entry in memory.slow if entry > since]
    advice = "take load off the machine, or give the server PostgreSQL (docs/operations.md)" if seen else None
    return Diagnosis("freezes", f"{len(seen)} in a day" + (f", the last {seen[-1]}" if seen else ""), advice)


def _webhook(memory: Memory) -> Diagnosis:
    try:
        delivered, outstanding = receipts(Store(default_store()))
    except NightjarError as error:
        return Diagnosis("webhook", str(error), "see to the store: python -m flows.store --verify")
    last = max(filter(None, (delivered, memory.delivered)), default="never")
    said = f"last delivered {last}, {outstanding} outstanding"
    advice = "see why in NIGHTJAR_HOME/watch.log; is the address right? (docs/operations.md, Being told)"
    return Diagnosis("webhook", said, advice if outstanding else None)


def main() -> int:
    """Prints the diagnosis; 1 where something is to be done."""
    from flows.server.connection import ask, use_server

    ui = use_server() if os.environ.get("PREFECT_API_URL") else _own()
    found = diagnose(View(ask, ui), home() / "server" / "dlq")
    print("\n".join(map(str, found)))
    return 1 if any(entry.advice for entry in found) else 0


def _own() -> str:
    """The address of the project's own server, which is not started for this."""
    from flows.server.connection import status, use_server

    return use_server() if status() is not None else "the project's own address (it does not run)"
