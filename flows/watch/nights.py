"""The nights of the deployments, as the watch sees them: what they have not told yet, and those whose process
could not even record how they ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from flows.server.view import View
from flows.suite.plan import SuiteConfig, plan_night, suite_of
from metrics.errors import NightjarError
from tasks.history.layout import HistoryError
from tasks.history.nights import SUITES, Night, find_night, suites_with
from tasks.history.notices import (
    NotDelivered,
    Post,
    deliver,
    notice_key,
    outstanding,
    send_each,
    told_as,
)
from tasks.run_page import VERDICT_LABEL
from tasks.store.home import default_store, slug
from tasks.store.storage import Entry, Store, store_uri

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

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


def night_key(run: Mapping[str, Any]) -> str:
    """The key of what a night that ended tells of itself, as far as the server knows."""
    return notice_key(run["id"], told_as(_verdict(run), str((run.get("state") or {}).get("name"))))


def _verdict(run: Mapping[str, Any]) -> str | None:
    return (run.get("labels") or {}).get(VERDICT_LABEL) or None


def settle_night(run: Mapping[str, Any], post: Post | None) -> None:
    """Records how a night ended that could not do so itself, and sends what it has to tell.

    One whose record says how it ended needs its suite no more. Raises ConfigError for a suite that can't be
    read, HistoryError for a night that was judged and has no record here, NotDelivered, StoreError.
    """
    from prefect.client.schemas.objects import FlowRun

    from flows.suite.telling import leave_record

    ended, parameters = FlowRun.model_validate(run), run.get("parameters") or {}
    store = Store(store_uri((parameters.get("options") or {}).get("store") or default_store()))
    known = _record_of(store, ended)
    if known is None and _verdict(run):
        raise HistoryError(
            f"store {store.uri}: the night has a verdict, but its record is not here; check that the watch "
            "reads the night's store"
        )
    if known is None or not known.ended:
        night = plan_night(*suite_of(parameters), str(ended.id))
        if ended.state is not None:
            leave_record(night, ended.state, ended)
        known = find_night(store, night.slug, night.run_id)
    if post is not None and known is not None:
        deliver(store, known.suite, known.run_id, post)
        known = find_night(store, known.suite, known.run_id)
        if known is not None and outstanding(known):
            # Perhaps no deployment names its suite: nobody else would send it.
            said = (
                "the webhook has not answered the message that it was sent; the message is sent again later"
            )
            raise NotDelivered(said)


def _record_of(store: Store, run: "FlowRun") -> Night | None:
    """A flow run's night, whatever its suite is called: of several, after a suite was renamed between two
    attempts, one that has not ended, else the newest."""
    places = [place for place in suites_with(store) if place[1].endswith(f"-{run.id.hex}")]
    found = [night for place in places if (night := find_night(store, *place)) is not None]
    return max(found, key=lambda night: (not night.ended, night.started), default=None)
