"""The nights of the deployments, as the watch sees them: what they have not told yet, and those whose process
could not even record how they ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flows.server.view import View
from flows.suite.plan import SuiteConfig, plan_night, suite_of
from metrics.errors import NightjarError
from tasks.history.nights import SUITES, find_night
from tasks.history.notices import Post, deliver, outstanding, send_each
from tasks.store.home import default_store, slug
from tasks.store.storage import Entry, Store

ENTRYPOINT: Final = "run_suite"


def is_night(view: View, run: Mapping[str, Any]) -> bool:
    """Whether a run of a deployment is a night."""
    deployment = view.deployments.get(str(run.get("deployment_id")), {})
    return str(deployment.get("entrypoint") or "").endswith(ENTRYPOINT)


@dataclass(frozen=True)
class WatchedSuite:
    """A suite that a deployment runs, and where the records of its nights lie."""

    suite: SuiteConfig
    store: str

    @property
    def folder(self) -> str:
        """Of its nights' records, below the store's root."""
        return f"{SUITES}/{self.slug}"

    @property
    def slug(self) -> str:
        """The suite's name in file names."""
        return slug(self.suite.name)


def suites_of(view: View) -> Iterator[WatchedSuite]:
    """The suites of the deployments; one that can't be read costs itself: its night says so."""
    for deployment in view.deployments.values():
        if is_night(view, {"deployment_id": deployment["id"]}):
            try:
                suite, options = suite_of(deployment.get("parameters") or {})
            except NightjarError:
                continue
            yield WatchedSuite(suite, options.store or default_store())


@dataclass
class Receipts:
    """Delivers what nights have not told. A record is read again only after it has changed."""

    settled: dict[tuple[str, str], str] = field(default_factory=dict)

    def deliver(self, watched: WatchedSuite, post: Post) -> int:
        """Sends what is outstanding of a suite; how much that was. Raises NotDelivered, StoreError."""
        store = Store(watched.store)

        def send(entry: Entry) -> int:
            name = entry.name.rpartition("/")[2]
            place = (watched.store, f"{watched.folder}/{name}")
            if not name.endswith(".json") or self.settled.get(place) == entry.token:
                return 0
            night = find_night(store, watched.slug, name.removesuffix(".json"))
            if night is not None and outstanding(night):
                return deliver(store, watched.slug, night.run_id, post)  # its record is another now
            self.settled[place] = entry.token
            return 0

        return send_each(send, store.entries(watched.folder))


def settle_night(run: Mapping[str, Any], post: Post | None) -> None:
    """Records how a night ended that could not do so itself, and sends what it has to tell.

    Raises ConfigError for a suite that can't be read, NotDelivered, StoreError.
    """
    from prefect.client.schemas.objects import FlowRun

    from flows.suite.telling import leave_record

    ended = FlowRun.model_validate(run)
    night = plan_night(*suite_of(run.get("parameters") or {}), str(ended.id))
    store = Store(night.store)
    known = find_night(store, night.slug, night.run_id)
    if ended.state is not None and (known is None or not known.ended):
        leave_record(night, ended.state, ended)
    if post is not None:
        deliver(store, night.slug, night.run_id, post)
