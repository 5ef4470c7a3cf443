"""One look after another: what each does, and that one that fails does not keep the others from looking."""

import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from flows.server.memory import Memory, this_moment
from flows.server.view import View
from flows.watch import look, mend
from flows.watch.look import Finding, Times
from flows.watch.nights import Receipts, WatchedSuite, is_night, night_key, settle_night, suites_of
from tasks.history.notices import NotDelivered, Post, Unanswered, pause_after, post_to, send_each

LOOKED: Final = "nightjar.watch.looked"
"""The event of every look: an automation of the server tells that it stays away."""
GONE_SECONDS: Final = 300.0
VOICE_SECONDS: Final = 180.0
"""An older watch that has not looked for so long leaves it to the next one to tell."""
SLOW_SECONDS: Final = 10.0


def say(text: str) -> None:
    """A line of the watch's log."""
    print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text}", file=sys.stderr, flush=True)


@dataclass
class Watch:
    """``address`` says where notifications go; ``letters`` is the folder of events that the server gave up.

    One that is away for a while goes on from its memory. Of several watches on a server the one that began
    first tells; the others repair and note what it tells: they stand by until it has not looked for a while.
    One that ``stands_by`` to begin with sees others that began at the same time.
    """

    times: Times
    memory: Memory
    address: Callable[[], str | None]
    letters: Path
    receipts: Receipts = field(default_factory=Receipts)
    known_address: str | None = None
    away_since: float | None = None
    answers_since: datetime | None = None
    stands_by: bool = False
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    name: str = field(default_factory=lambda: str(uuid.uuid4()))
    looks: int = 0
    elder_looked: str = ""
    gave_back: bool = False
    unanswered: dict[str, tuple[int, datetime]] = field(default_factory=dict)

    def look(self, view: View) -> bool:
        """Looks once at everything, repairs, tells; whether all of it could be looked at."""
        if not self._answers(view):
            return False
        steps: tuple[Callable[[View], object], ...] = (
            *(self._voice, self._find_address),
            *(self._pending, self._running, self._ended, self._receipts),
            *(self._late, self._pools, self._missed, self._given_up),
        )
        done = [self._attempted(step, view) for step in steps]
        complete = all(done)
        self.memory.looked = view.now.isoformat(timespec="seconds")
        self.looks += 1
        self._attempted(self._beat, view)
        if complete:
            self._attempted(_ping, view)
        self._attempted(self._save, view)
        return complete

    def _attempted(self, step: Callable[[View], object], view: View) -> bool:
        try:
            step(view)
        except Exception as error:  # whatever it is, the other steps look, and the watch lives
            say(f"{step.__name__.strip('_')}: {type(error).__name__}: {error}")
            return False
        return True

    def _answers(self, view: View) -> bool:
        begun = time.monotonic()
        try:
            view.ask("/health")
        except OSError as error:
            self.away_since, self.answers_since = self.away_since or begun, None
            say(f"the Prefect server does not answer: {error}")
            if begun - self.away_since > GONE_SECONDS:
                self._lasting(
                    [Finding("server", f"The Prefect server does not answer at {view.ui}", view.ui)]
                )
            return False
        finally:
            if (took := time.monotonic() - begun) > SLOW_SECONDS:
                self.memory.slow.append(f"{datetime.now(UTC).isoformat(timespec='seconds')} {took:.0f} s")
        self.away_since = None
        self.answers_since = self.answers_since or view.now
        self.memory.lasting.pop("server", None)
        return True

    def _save(self, view: View) -> None:
        self.memory.save()

    def _find_address(self, view: View) -> None:
        self.known_address = self.address()

    def _voice(self, view: View) -> None:
        """Decides who tells: the watch that began first, of those that looked lately. One that stands by
        waits until the server shows its own look: a busy one shows events late, those of others as well."""
        try:
            beats = view.events(LOOKED, VOICE_SECONDS)
            shown = any(beat["payload"].get("watch") == self.name for beat in beats)
        except OSError as error:  # told twice is better than not at all
            say(f"other watches can't be seen: {error}")
            beats, shown = [], True
        elders = [
            beat["occurred"]
            for beat in beats
            if (began := beat["payload"].get("began")) and (began, beat["payload"]["watch"]) < self._own
        ]
        if elders:
            self.elder_looked, self.stands_by = max(elders), True
        elif self.stands_by and self.looks and (shown or self._waited(view)):
            self.stands_by = False
            # What is noted has no fractions of a second.
            since = datetime.fromisoformat(self.elder_looked or self.began).replace(microsecond=0)
            for noted in (self.memory.told, self.memory.lasting):
                for key in [key for key, at in noted.items() if datetime.fromisoformat(at) >= since]:
                    del noted[key]  # nobody has told it

    def _waited(self, view: View) -> bool:
        """Whether the server had time to show events: one that never does keeps nobody from telling."""
        return (view.now - datetime.fromisoformat(self.began)).total_seconds() > VOICE_SECONDS

    def seconds_to_next_look(self, usual: float) -> float:
        """How long the watch waits now: less where it waits for a worker to take a run again."""
        return min(usual, look.AGAIN_SECONDS) if self.gave_back else usual

    @property
    def _own(self) -> tuple[str, str]:
        return self.began, self.name

    @property
    def _post(self) -> Post | None:
        return post_to(self.known_address) if self.known_address and not self.stands_by else None

    def _beat(self, view: View) -> None:
        event = {
            "id": str(uuid.uuid4()),
            "occurred": datetime.now(UTC).isoformat(),
            "event": LOOKED,
            "resource": {"prefect.resource.id": "nightjar.watch"},
            "payload": {"watch": self.name, "began": self.began},
        }
        view.ask("/events", [event])

    def _pending(self, view: View) -> None:
        before = dict(self.memory.taken)
        self._lasting(mend.pending_runs(view, self.times, self.memory.taken), "pending:")
        self.gave_back = self.memory.taken != before

    def _running(self, view: View) -> None:
        # While the server was away, no sign of life could reach it.
        if self.answers_since is not None and view.age(self.answers_since) > self.times.seconds["PROCESS"]:
            mend.running_runs(view, self.times)

    def _ended(self, view: View) -> None:
        since = max(self.memory.since, (view.now - look.BACK).isoformat(timespec="seconds"))
        for run, finding in look.runs_that_ended(view, since):
            if finding.key in self.memory.told:
                continue
            if is_night(view, run):
                try:
                    settle_night(run, self._post)
                except NotDelivered as error:
                    say(f"{finding.key}: {error}")
                    continue
                except Exception as error:  # its suite can't be read, or worse: what the server says is told
                    say(f"{run['name']}: {type(error).__name__}: {error}")
                    if not self._told(replace(finding, key=night_key(run))):
                        continue
            elif run["state_type"] != "CANCELLED" and not self._told(finding):
                continue
            self.memory.told[finding.key] = this_moment()

    def _receipts(self, view: View) -> None:
        post = self._post
        if post is None:
            return

        def send(watched: WatchedSuite) -> int:
            if sent := self.receipts.deliver(watched, post):
                self.memory.delivered = this_moment()
            return sent

        suites = {(suite.store, suite.folder): suite for suite in suites_of(view)}
        send_each(send, suites.values())

    def _late(self, view: View) -> None:
        self._lasting(look.late_runs(view, self.times, self.memory.taken), "late:")

    def _pools(self, view: View) -> None:
        self._lasting(look.pools_without_a_worker(view, self.times), "pool:")

    def _missed(self, view: View) -> None:
        self._lasting(look.missed_nights(view, self.times), "missed:")

    def _given_up(self, view: View) -> None:
        self._lasting(look.given_up_events(self.letters, f"{view.now:%Y-%m-%d}"), "dead-letters:")

    def _lasting(self, findings: Iterable[Finding], kind: str = "") -> None:
        """Tells what is new among the findings of a kind, and forgets those that are over."""
        found = {finding.key: finding for finding in findings}
        for key in [key for key in self.memory.lasting if kind and key.startswith(kind) and key not in found]:
            del self.memory.lasting[key]
        for key, finding in found.items():
            if key not in self.memory.lasting and self._told(finding):
                self.memory.lasting[key] = this_moment()

    def _told(self, finding: Finding) -> bool:
        """Tells a finding; whether nobody needs to try again."""
        tries, last = self.unanswered.get(finding.key, (0, None))
        if last is not None and datetime.now(UTC) < last + pause_after(tries):
            return False
        say(finding.text)
        if self._post is None:
            return True
        try:
            self._post(finding.message)
        except Unanswered as error:
            self.unanswered[finding.key] = (tries + 1, datetime.now(UTC))
            say(str(error))
            return False
        except NotDelivered as error:
            say(str(error))
            return False
        self.unanswered.pop(finding.key, None)
        self.memory.delivered = this_moment()
        return True


def _ping(view: View) -> None:
    """Tells the outside switches that the suites name that somebody watches."""
    watched = (entry.suite.watch for entry in suites_of(view))
    for address in dict.fromkeys(one.ping_url for one in watched if one is not None):
        with urllib.request.urlopen(address, timeout=10):
            pass
