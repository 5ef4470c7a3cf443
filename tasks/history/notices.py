"""What people are told of nights: messages to a webhook, with receipts in the nights' records.

A message is written into its night's record before it is sent, and gets its receipt once the webhook took it.
So a message that could not be delivered is known to what looks next: a retry, the next night, the watch. A
process that dies between post and receipt has it sent again, under the same ``key``; else it is sent once.
"""

import json
import string
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from http.client import HTTPException
from typing import Any, Final, TypeVar
from urllib.parse import quote, urljoin, urlsplit
from uuid import UUID

from metrics.errors import NightjarError, printable
from tasks.history.nights import Night, Notice, find_night, read_nights, record_night, suites_with
from tasks.store.claims import claim
from tasks.store.storage import Store

REACH_SECONDS: Final = 20.0
"""So long a message may take to be sent."""
ANSWER_SECONDS = 60.0
"""So long the webhook may take to answer what it was sent, with all of its headers."""
LONGEST_PAUSE: Final = timedelta(hours=1)
STALE: Final = timedelta(days=7)
"""What could not be delivered for so long is no news any more."""
Post = Callable[[Mapping[str, Any]], None]
_IN_HEADERS: Final = string.punctuation + " "
"""With letters and digits of English all that a header holds; the names of pools may have others."""


Part = TypeVar("Part")


class NotDelivered(NightjarError):
    """The webhook did not take a message."""


class NotReached(NotDelivered):
    """The webhook does not answer: no other message would reach it now."""


class Unanswered(NotDelivered):
    """A message was sent, and whether the webhook took it is not known."""


def post_to(address: str) -> Post:
    """What posts a message to a webhook as JSON, and raises NotDelivered where that does not take it."""

    def post(message: Mapping[str, Any]) -> None:
        body, sent, reached = json.dumps(message).encode(), threading.Event(), threading.Event()
        answer: Future[str | None] = Future()
        answer.add_done_callback(lambda _: reached.set())

        def parts() -> Iterator[bytes]:
            yield body
            sent.set()
            reached.set()

        def ask() -> None:
            key, length = quote(str(message.get("key", "")), safe=_IN_HEADERS), str(len(body))
            headers = {"Content-Type": "application/json", "Content-Length": length, "Idempotency-Key": key}
            try:
                answer.set_result(_refusal(address, parts(), headers))
            except BaseException as error:
                answer.set_exception(error)

        # A socket's time-out is for each read, and a webhook may drip its answer: the thread is left alone.
        threading.Thread(target=ask, name="post", daemon=True).start()
        refused: type[NotDelivered] = NotDelivered
        try:
            reason = answer.result(ANSWER_SECONDS if reached.wait(REACH_SECONDS) else 0)
            if reason is None:
                return
        except (OSError, ValueError, HTTPException) as error:
            late = isinstance(error, TimeoutError)
            # What reads the message and then ends the connection, or answers no HTTP, may have taken it.
            unknown = late or isinstance(error, HTTPException)
            refused = Unanswered if unknown and sent.is_set() else NotReached
            reason = "no answer in time" if late else str(getattr(error, "reason", error))
        # The address itself may let its readers in: it is in no log.
        raise refused(f"the webhook did not take the message ({reason}); it is sent again later")

    return post


def _refusal(address: str, body: Iterable[bytes], headers: Mapping[str, str]) -> str | None:
    """Why a webhook refuses a message; None: it took it. Raises OSError, ValueError, HTTPException."""
    try:
        request = urllib.request.Request(address, body, dict(headers), method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=ANSWER_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        reason = f"HTTP {error.code}"
        if target := error.headers.get("Location"):
            reason += f": redirected to {_site(address, target)}; set the address that it leads to"
        error.close()
        return reason


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET without the message, which any page answers."""

    def redirect_request(self, *_: Any) -> None:
        """None: the redirect is the answer."""


def _site(address: str, target: str) -> str:
    """Scheme and host of a redirect's target: the rest of it may let its readers in."""
    try:
        parts = urlsplit(urljoin(address, target))
    except ValueError:
        return "what is no address"
    return printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}")


def notice_key(flow_run: UUID | str, outcome: str) -> str:
    """The key of what is told of a night: the teller knows its flow run, and how that ended."""
    return f"{flow_run}:{outcome}"


def told_as(verdict: str | None, state: str) -> str:
    """The outcome that a night is told under: its verdict, else the name of its state. One that failed
    because something is missing is not told as one that could not be decided: its retry may be."""
    return state if not verdict or (verdict, state) == ("inconclusive", "Failed") else verdict


def is_among(notices: Iterable[Notice], notice: Notice) -> bool:
    """Whether a night's notices have one of the same outcome. Keys of before begin with the night's own id,
    and call a night incomplete that now is Failed."""
    former = {"incomplete": "Failed"}
    outcome = notice.key.partition(":")[2]
    known = (entry.key.partition(":")[2] for entry in notices)
    return outcome in {former.get(entry, entry) for entry in known}


def message_of(notice: Notice) -> dict[str, Any]:
    """The body that the webhook gets."""
    return notice.model_dump(mode="json", exclude={"written", "delivered", "tries", "tried"})


def now() -> str:
    """This moment, as records have it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def change_night(store: Store, suite: str, run_id: str, change: Callable[[Night | None], Night]) -> Night:
    """Changes a night's record; one process at a time does, on whatever machine. Raises StoreError."""
    with claim(store, _turn(run_id)):
        before = find_night(store, suite, run_id)
        after = change(before)
        if after != before:
            record_night(store, after)
        return after


def outstanding(night: Night) -> tuple[Notice, ...]:
    """What nobody was told yet, and is still worth telling."""
    oldest = (datetime.now(UTC) - STALE).isoformat()
    return tuple(entry for entry in night.notices if entry.delivered is None and entry.written > oldest)


def pause_after(tries: int) -> timedelta:
    """How long a message that was sent so often without an answer is not sent again: the webhook may have
    taken it each time."""
    return min(timedelta(minutes=1 << min(tries - 1, 10)), LONGEST_PAUSE)


def _waits(notice: Notice) -> bool:
    if notice.tried is None:
        return False
    return datetime.now(UTC) < datetime.fromisoformat(notice.tried) + pause_after(notice.tries)


def with_notice(night: Night, notice: Notice) -> Night:
    """The night with something to tell, unless that is told or about to be."""
    if is_among(night.notices, notice):
        return night
    return night.model_copy(update={"notices": (*night.notices, notice)})


def deliver(store: Store, suite: str, run_id: str, post: Post) -> int:
    """Sends what a night has not told yet, and returns how much that was. What was sent without an answer
    waits for its turn. Raises NotDelivered, StoreError."""
    with claim(store, _turn(run_id)):
        night = find_night(store, suite, run_id)
        if night is None:
            return 0
        told = night

        def note(notice: Notice, **what: Any) -> None:
            nonlocal told
            told = _with_changed(told, notice.key, what)
            record_night(store, told)

        def send(notice: Notice) -> int:
            if _waits(notice):
                return 0
            try:
                post(message_of(notice))
            except Unanswered:
                note(notice, tries=notice.tries + 1, tried=now())
                raise
            note(notice, delivered=now())
            return 1

        return send_each(send, outstanding(night))


def send_each(send: Callable[[Part], int], parts: Iterable[Part]) -> int:
    """How much was sent of all parts. One that is refused keeps none behind it waiting; a webhook that does
    not answer is not waited for once more. Raises NotDelivered with every reason, after the last part."""
    sent, reasons = 0, dict[str, None]()
    for part in parts:
        try:
            sent += send(part)
        except NotReached:
            raise
        except NightjarError as error:
            reasons[str(error)] = None
    if reasons:
        raise NotDelivered("; ".join(reasons))
    return sent


def receipts(store: Store) -> tuple[str | None, int]:
    """When a message of any night of the store was last delivered, and how many are outstanding."""
    suites = {suite for suite, _ in suites_with(store)}
    nights = [night for suite in suites for night in read_nights(store, suite).found.values()]
    delivered = [notice.delivered for night in nights for notice in night.notices if notice.delivered]
    return max(delivered, default=None), sum(len(outstanding(night)) for night in nights)


def _with_changed(night: Night, key: str, what: Mapping[str, Any]) -> Night:
    notices = tuple(
        notice.model_copy(update=what) if notice.key == key else notice for notice in night.notices
    )
    return night.model_copy(update={"notices": notices})


def _turn(run_id: str) -> str:
    return f"night-{run_id}"
