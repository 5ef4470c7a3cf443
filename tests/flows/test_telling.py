"""What a night leaves in its record, and that it tells people once what came of it, whoever delivers it."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4, uuid5

import pytest
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Scheduled

from flows.accept import accept
from flows.suite import flow
from flows.suite.judging import judge_night
from flows.suite.order import next_in_turn
from flows.suite.plan import PlannedNight, SuiteOptions, load_suite, plan_night
from flows.suite.telling import (
    begin,
    leave_record,
    notice,
    record_judged,
    record_night_stopped,
    tell,
)
from flows.suite.words import headline
from flows.watch.nights import night_key
from tasks.history.nights import Night, NightEvaluation, find_night, past_nights, record_night
from tasks.history.notices import NotDelivered, Unanswered, deliver, outstanding, pause_after, post_to
from tasks.run_page import VERDICT_LABEL
from tasks.store.storage import Store
from tests.flows.made_nights import DONE, Judge, suite_file
from tests.loopback import answering

DEPLOYMENT = UUID("01a2022f-0000-70e6-ae1e-e78c36160d08")
PAIRS = [{"benchmark": "sums", "pair": "exact_match,none", "verdict": "regression", "difference": -0.2}]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    return suite_file(tmp_path, items=1)


@pytest.fixture
def plan(suite: Path, tmp_path: Path) -> Callable[[str], PlannedNight]:
    options = SuiteOptions(store=str(tmp_path / "store"), output=str(tmp_path / "out"))
    return lambda unique: plan_night(load_suite(suite), options, unique)


def due(hour: int) -> str:
    return f"2026-11-23T{hour:02}:30:00.000000+00:00"


def run(deployment: UUID | None = DEPLOYMENT, **about: Any) -> FlowRun:
    due = datetime(2026, 11, 23, 2, 30, tzinfo=UTC)
    about = {"id": uuid4(), "name": "uber-duck", "expected_start_time": due, **about}
    return FlowRun(flow_id=uuid4(), deployment_id=deployment, **about)


def id_of(planned: PlannedNight) -> UUID:
    """The id of the flow run that a night is."""
    return uuid5(DEPLOYMENT, planned.run_id)


def ended(planned: PlannedNight, hour: int, verdict: str | None = "regression") -> Night:
    """A night that was judged, and is recorded with what it has to tell."""
    begun = begin(planned, due(hour))
    night = begun.own.model_copy(update={"ended": True, "verdict": verdict, "evaluations": DONE})
    told = notice(
        run(id=id_of(planned)), begun.own, "regression", "Failed: lost", verdict=verdict, pairs=PAIRS,
        cost={"USD": 0.25},
    )  # fmt: skip
    record_judged(planned, night, told if verdict == "regression" else None)
    return night


def record_of(planned: PlannedNight) -> Night:
    found = find_night(Store(planned.store), planned.slug, planned.run_id)
    assert found is not None
    return found


def test_a_night_posts_verdict_pairs_link_cost_and_key_and_has_a_receipt(
    plan: Any, webhook: str, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_WEBHOOK", webhook)
    planned = plan("1")
    ended(planned, 2)
    assert outstanding(record_of(planned))
    for _ in range(2):  # a second time there is nothing to send
        tell.fn(planned, ())
    (message,) = told
    assert message["key"] == f"{id_of(planned)}:regression"
    assert message["text"] == "night 2026-11-23 02:30 UTC ended Failed: lost"
    assert (message["verdict"], message["pairs"], message["cost"]) == ("regression", PAIRS, {"USD": 0.25})
    assert {"url"} < set(message)
    (receipt,) = record_of(planned).notices
    assert receipt.delivered is not None


def test_the_next_night_delivers_what_the_one_before_could_not(
    plan: Any,
    webhook: str,
    told: list[dict[str, Any]],
    refusing: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NIGHTJAR_WEBHOOK", webhook)
    first, second = plan("1"), plan("2")
    ended(first, 2)
    refusing.set()
    with pytest.raises(NotDelivered, match="HTTP 503"):
        tell.fn(first, ())
    assert outstanding(record_of(first))
    refusing.clear()
    begun = begin(second, due(3))
    tell.fn(second, begun.past)
    assert [message["key"] for message in told] == [f"{id_of(first)}:regression"]
    assert not outstanding(record_of(first))


def test_who_can_not_be_reached_is_said_without_the_address() -> None:
    with pytest.raises(NotDelivered) as raised:
        post_to("http://127.0.0.1:9/secret-path")({"key": "k"})
    assert "secret-path" not in str(raised.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_webhook_that_redirects_has_not_taken_the_message_and_its_target_is_named(status: int) -> None:
    asked: list[str] = []

    class Moved(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append("POST")
            self.send_response(status)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/secret-path")
            self.end_headers()

        def do_GET(self) -> None:
            asked.append("GET")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Moved)
    port = server.server_address[1]
    with answering(server), pytest.raises(NotDelivered) as raised:
        post_to(f"http://127.0.0.1:{port}/")({"key": "k"})
    assert f"(HTTP {status}: redirected to http://localhost:{port}" in str(raised.value)
    assert "secret" not in str(raised.value)
    assert asked == ["POST"]


@contextmanager
def receiver(answer: Callable[[Any], None]) -> Iterator[tuple[str, list[str]]]:
    """A webhook that reads each message whole and then answers as told; its address, and the keys it read."""
    read: list[str] = []

    class Slow(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            read.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["key"])
            with suppress(OSError):  # nobody waits for the answer any more
                answer(self)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.daemon_threads = True
    with answering(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/", read


def test_a_message_that_was_read_and_not_answered_is_sent_again_at_growing_intervals_and_holds_up_no_other(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.history.notices.ANSWER_SECONDS", 0.05)
    planned, released = plan("1"), threading.Event()
    ended(planned, 2)
    store = Store(planned.store)
    accept(store, planned.run_id, "meant", "ada")
    with receiver(lambda _: released.wait(60)) as (address, read):
        for _ in range(3):
            with suppress(NotDelivered):
                deliver(store, "night", planned.run_id, post_to(address))
        released.set()
    assert read == [entry.key for entry in record_of(planned).notices]
    assert {entry.tries for entry in outstanding(record_of(planned))} == {1}
    assert [pause_after(tries).total_seconds() for tries in (1, 2, 3, 7, 99)] == [60, 120, 240, 3600, 3600]
    long_ago = {"tried": "2026-01-01T00:00:00+00:00"}
    night = record_of(planned)
    notices = tuple(entry.model_copy(update=long_ago) for entry in night.notices)
    record_night(store, night.model_copy(update={"notices": notices}))
    with receiver(lambda handler: handler.send_response(200) or handler.end_headers()) as (address, again):
        assert deliver(store, "night", planned.run_id, post_to(address)) == 2
    assert again == read
    assert not outstanding(record_of(planned))


@pytest.mark.parametrize("drips", [b"X-A: 1\r\n", b"x"])
def test_a_webhook_that_drips_its_answer_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, drips: bytes
) -> None:
    monkeypatch.setattr("tasks.history.notices.ANSWER_SECONDS", 0.2)
    released = threading.Event()

    def answer(handler: Any) -> None:
        handler.send_response(200)
        handler.flush_headers()
        while not released.wait(0.01):
            handler.wfile.write(drips)

    with receiver(answer) as (address, read):
        with pytest.raises(Unanswered, match="no answer in time"):
            post_to(address)({"key": "k"})
        released.set()
    assert read == ["k"]


@pytest.mark.parametrize("answer", [b"hello\r\n\r\n", b""], ids=["none of HTTP", "none at all"])
def test_a_message_that_was_read_and_answered_by_nothing_of_http_may_have_been_taken(answer: bytes) -> None:
    with (
        receiver(lambda handler: handler.wfile.write(answer)) as (address, read),
        pytest.raises(Unanswered),
    ):
        post_to(address)({"key": "k"})
    assert read == ["k"]


@pytest.mark.parametrize("key", ["pool:gpu pool", "pool:Größe", "pool:夜", "pool:a\nb", "1:Failed"])
def test_a_message_is_sent_whatever_its_key_is_made_of(key: str) -> None:
    headers: list[str] = []

    def answer(handler: Any) -> None:
        headers.append(handler.headers["Idempotency-Key"])
        handler.send_response(200)
        handler.end_headers()

    with receiver(answer) as (address, read):
        post_to(address)({"key": key})
    assert read == [key]
    assert headers == [quote(key, safe=" :")]


def test_several_that_deliver_at_once_send_a_message_once(
    plan: Any, webhook: str, told: list[dict[str, Any]]
) -> None:
    planned = plan("1")
    ended(planned, 2)
    store = Store(planned.store)
    with ThreadPoolExecutor(4) as pool:
        sent = list(pool.map(lambda _: deliver(store, "night", planned.run_id, post_to(webhook)), range(4)))
    assert sorted(sent) == [0, 0, 0, 1]
    assert len(told) == 1


def test_a_message_that_the_webhook_refuses_keeps_no_other_of_its_night_waiting(plan: Any) -> None:
    planned = plan("1")
    ended(planned, 2)
    store, taken = Store(planned.store), list[str]()
    accept(store, planned.run_id, "meant", "ada")

    def post(message: Mapping[str, Any]) -> None:
        if message["key"].endswith(":regression"):
            raise NotDelivered("the webhook did not take the message (HTTP 413); it is sent again later")
        taken.append(message["text"])

    for _ in range(2):
        with pytest.raises(NotDelivered, match="HTTP 413"):
            deliver(store, "night", planned.run_id, post)
    assert taken == [f"{planned.run_id} was accepted by ada as the baseline of night: meant"]
    assert [notice.key for notice in outstanding(record_of(planned))] == [f"{id_of(planned)}:regression"]


def test_a_retry_with_the_same_outcome_is_not_told_again_and_another_outcome_is(
    plan: Any, webhook: str, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_WEBHOOK", webhook)
    planned = plan("1")
    for _ in range(2):
        ended(planned, 2)
        tell.fn(planned, ())
    assert len(told) == 1
    begin(planned, due(5))
    leave_record(planned, State(type=StateType.CRASHED, name="Crashed", message="gone"), run())
    tell.fn(planned, ())
    assert [message["key"].rpartition(":")[2] for message in told] == ["regression", "Crashed"]


def test_a_retry_that_can_not_be_decided_is_told_behind_an_attempt_that_lacked_something(
    night: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow, "_own_run", run)
    night(of=42)
    attempts = [night(failed="boom"), night(wrong=[1], of=42, margin=0.02)]
    assert [judged.outcome for judged in attempts] == ["inconclusive", "inconclusive"]
    told = [flow._notice(judged) for judged in attempts]
    assert [entry and entry.key.rpartition(":")[2] for entry in told] == ["Failed", "inconclusive"]
    assert [entry and entry.verdict for entry in told] == ["inconclusive", "inconclusive"]
    ended = {"id": str(uuid4()), "labels": {VERDICT_LABEL: "inconclusive"}, "state": {"name": "Failed"}}
    assert night_key(ended) == f"{ended['id']}:Failed"


@pytest.mark.parametrize(("former", "now"), [("regression", "regression"), ("incomplete", "Failed")])
def test_a_retry_of_a_night_that_was_told_under_the_key_of_before_is_not_told_again(
    plan: Any,
    webhook: str,
    told: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    former: str,
    now: str,
) -> None:
    monkeypatch.setenv("NIGHTJAR_WEBHOOK", webhook)
    planned = plan("1")
    night = begin(planned, due(2)).own.model_copy(update={"ended": True, "evaluations": DONE})
    key = {"key": f"{planned.run_id}:{former}"}
    before = notice(run(id=id_of(planned)), night, former, "Failed: lost")
    assert before is not None
    record_night(Store(planned.store), night.model_copy(update={"notices": (before.model_copy(update=key),)}))
    tell.fn(planned, ())
    again = begin(planned, due(2)).own.model_copy(update={"ended": True, "evaluations": DONE})
    assert record_judged(planned, again, notice(run(id=id_of(planned)), again, now, "Failed: lost"))
    tell.fn(planned, ())
    assert [message["key"] for message in told] == [f"{planned.run_id}:{former}"]


@pytest.mark.parametrize("name", ["Crashed", "Cancelled", "TimedOut", "Failed"])
def test_a_night_that_was_stopped_is_recorded_and_told_once(
    suite: Path,
    plan: Any,
    webhook: str,
    told: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    monkeypatch.setenv("NIGHTJAR_WEBHOOK", webhook)
    parameters = {"suite": str(suite), "options": {"store": plan("x").store}}
    stopped = run(parameters=parameters)
    planned = plan(str(stopped.id))
    begin(planned, due(2))
    state = State(type=StateType.FAILED, name=name, message="its process is gone")
    for _ in range(2):
        record_night_stopped(None, stopped, state)  # type: ignore[arg-type]
    (message,) = told
    assert message["text"] == f"night 2026-11-23 02:30 UTC ended {name}: its process is gone"
    assert (message["verdict"], message["pairs"]) == (None, [])
    night = record_of(planned)
    assert night.ended
    assert not night.passed
    assert [entry.message for entry in night.evaluations] == [f"{name}: its process is gone"]


def test_a_night_that_is_being_cancelled_is_told_and_recorded_as_cancelled(plan: Any) -> None:
    planned = plan("1")
    state = State(type=StateType.CANCELLING, name="Cancelling", message="Flow run was cancelled.")
    leave_record(planned, state, run(id=id_of(planned)))
    night = record_of(planned)
    (told,) = night.notices
    assert (told.key, told.text) == (
        f"{id_of(planned)}:Cancelled", "night 2026-11-23 02:30 UTC ended Cancelled: Flow run was cancelled."
    )  # fmt: skip
    assert [entry.message for entry in night.evaluations] == ["Cancelled: Flow run was cancelled."]


def test_a_stopped_night_that_can_not_be_told_now_is_left_to_the_watch(
    suite: Path, plan: Any, webhook: str, refusing: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_WEBHOOK", webhook)
    refusing.set()
    stopped = run(parameters={"suite": str(suite), "options": {"store": plan("x").store}})
    state = State(type=StateType.CRASHED, name="Crashed", message="gone")
    record_night_stopped(None, stopped, state)  # type: ignore[arg-type]
    assert [entry.key for entry in outstanding(record_of(plan(str(stopped.id))))] == [f"{stopped.id}:Crashed"]


def test_the_failure_of_a_night_that_was_judged_is_not_told_a_second_time(
    suite: Path, plan: Any, webhook: str, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_WEBHOOK", webhook)
    failed = run(parameters={"suite": str(suite), "options": {"store": plan("x").store}})
    planned = plan(str(failed.id))
    judged = ended(planned, 2)
    state = State(type=StateType.FAILED, name="Failed", message="against …: regression")
    record_night_stopped(None, failed, state)  # type: ignore[arg-type]
    assert [message["verdict"] for message in told] == ["regression"]
    assert record_of(planned).verdict == judged.verdict


def test_a_run_by_hand_tells_nobody(plan: Any) -> None:
    assert notice(run(deployment=None), begin(plan("1")).own, "regression", "Failed: lost") is None


def test_what_is_told_of_a_night_has_nothing_that_a_terminal_obeys(plan: Any) -> None:
    state = State(type=StateType.CRASHED, name="Crashed", message="\x1b[2Jgone")
    leave_record(plan("1"), state, run())
    assert record_of(plan("1")).notices[0].text == "night 2026-11-23 02:30 UTC ended Crashed: \\u001b[2Jgone"


def test_the_baseline_of_a_night_is_fixed_when_it_is_first_due(plan: Any) -> None:
    first, second, third = plan("1"), plan("2"), plan("3")
    ended(first, 1, verdict=None)
    ended(second, 2, verdict="regression")
    assert record_of(second).baseline == (first.run_id,)
    ended(third, 3, verdict="pass")
    again = begin(second, due(9))  # a retry comes later, and is of the same night
    assert again.baseline is not None
    assert [night.run_id for night in again.baseline] == [first.run_id]
    assert [night.run_id for night in again.past] == [first.run_id]
    assert (again.own.due, again.own.attempt, again.own.ended) == (due(2), 2, False)
    assert record_of(second).baseline == (first.run_id,)


def test_a_night_that_had_no_baseline_has_none_on_a_retry_either(plan: Any) -> None:
    first, second = plan("1"), plan("2")
    ended(first, 1, verdict=None)
    ended(second, 2, verdict="pass")
    assert begin(first, due(8)).baseline == ()


def test_only_nights_due_earlier_are_looked_back_on(plan: Any) -> None:
    early, late = plan("1"), plan("2")
    ended(late, 4, verdict=None)  # it overtook the other one
    begun = begin(early, due(2))
    assert (begun.past, begun.baseline, begun.own.behind) == ((), (), None)


def test_a_retry_of_a_night_whose_clock_was_set_back_knows_it(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(plan("1"), 1, verdict=None)
    with monkeypatch.context() as clock:
        clock.setattr("flows.suite.telling.now", lambda: "2020-11-18T02:30:00.000000+00:00")
        assert begin(plan("2")).own.behind == plan("1").run_id
    assert begin(plan("2")).own.behind == plan("1").run_id


@pytest.mark.parametrize("start_time", [None, datetime(2026, 11, 23, 2, 31, tzinfo=UTC)])
def test_a_night_that_ended_before_it_could_begin_is_due_on_its_retry_when_it_was_due(
    plan: Any, start_time: datetime | None
) -> None:
    first, second = plan("1"), plan("2")
    ended(first, 1, verdict="pass")
    never = run(created=datetime(2026, 11, 20, 2, 30, tzinfo=UTC), start_time=start_time)
    leave_record(second, State(type=StateType.CRASHED, name="Crashed", message="no place"), never)
    begun = begin(second, due(2))
    assert begun.baseline is not None
    assert (
        [night.run_id for night in begun.baseline] == [night.run_id for night in begun.past] == [first.run_id]
    )
    own = record_of(second)
    assert (own.due, own.attempt, own.ended) == (due(2), 1, False)
    assert own.started > due(2)
    assert [entry.key for entry in own.notices] == [f"{never.id}:Crashed"]


def test_a_night_that_never_began_is_ahead_of_none_and_one_that_begins_on_a_retry_may_be_behind(
    plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = State[Any](type=StateType.CANCELLED, name="Cancelled", message="not wanted")
    leave_record(plan("1"), state, run(expected_start_time=datetime(2999, 1, 1, tzinfo=UTC)))
    assert begin(plan("2"), due(2)).own.behind is None
    ended(plan("2"), 2, verdict="pass")
    leave_record(plan("3"), State(type=StateType.CRASHED, name="Crashed", message="no place"), run())
    monkeypatch.setattr("flows.suite.telling.now", lambda: "2020-11-18T02:30:00.000000+00:00")
    assert begin(plan("3"), due(3)).own.behind == plan("2").run_id


def test_a_night_of_before_keeps_the_baseline_that_it_was_judged_against(plan: Any) -> None:
    store = Store(plan("1").store)
    for number, verdict in ((1, None), (2, "regression"), (3, "pass")):
        planned = plan(str(number))
        evaluations = (NightEvaluation(name="sums × own", run_id=f"r{number}"),)
        baseline = (plan("1").run_id,) if number == 2 else ()
        started = datetime(2026, 11, number, tzinfo=UTC).isoformat()
        record_night(
            store,
            Night(suite="night", run_id=planned.run_id, started=started, evaluations=evaluations,
                  verdict=verdict, baseline=baseline),
        )  # fmt: skip
    again = begin(plan("2"), due(9))
    assert again.baseline is not None
    assert [night.run_id for night in again.baseline] == [plan("1").run_id]


def test_a_night_that_has_only_begun_is_no_baseline_and_no_past_night(plan: Any) -> None:
    first = plan("1")
    begin(first, due(1))
    assert not record_of(first).passed
    assert past_nights(Store(first.store), "night") == []
    assert begin(plan("2"), due(2)).baseline == ()


def test_a_retry_says_what_it_asked_itself(plan: Any) -> None:
    planned = plan("1")
    begin(planned, due(1))
    begun = begin(planned, due(2))
    entry = NightEvaluation(
        name="sums × own", run_id="r1", requests={"sent": 0, "cached": 300, "same_night": 300}
    )
    judged = judge_night(planned, (entry,), begun)
    assert "asked 0, kept 300 from earlier in this night, reused 0" in headline(judged)


def test_records_of_nights_are_read_once_a_night(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 6):
        ended(plan(str(number)), number, verdict="pass")
    read: list[str] = []
    real = Store.document
    monkeypatch.setattr(
        Store, "document", lambda self, name, *rest: read.append(name) or real(self, name, *rest)
    )
    planned = plan("9")
    begun = begin(planned, due(9))
    judged = judge_night(planned, (), begun)
    record_judged(planned, judged.night, None)
    others = [name for name in read if name.startswith("suites/") and planned.run_id not in name]
    assert len(others) == len(set(others)) == 5


def waiting(hour: int, run_count: int = 0, scheduled: int | None = None, name: str | None = None) -> FlowRun:
    """A night that was to begin at an hour, and that is now ``scheduled`` at another."""
    due, begins = (datetime(2026, 11, 23, at, tzinfo=UTC) for at in (hour, scheduled or hour))
    state: State[Any] = Scheduled(name=name, scheduled_time=begins)
    return run(state=state, expected_start_time=due, run_count=run_count)


def test_the_night_that_was_due_first_goes_first_although_it_gave_its_place_back_before() -> None:
    moment = datetime(2026, 11, 23, 12, tzinfo=UTC)
    first, second, later = waiting(3, run_count=1), waiting(4), waiting(20)
    assert next_in_turn(waiting(5), [second, first, later], moment) is first
    assert next_in_turn(waiting(2), [second, first, later], moment) is None
    assert next_in_turn(waiting(21), [later], moment) is None  # it is not due yet


def test_what_could_not_be_told_for_a_week_is_no_news(
    plan: Any, webhook: str, told: list[dict[str, Any]]
) -> None:
    planned = plan("1")
    ended(planned, 2)
    store, night = Store(planned.store), record_of(planned)
    (old,) = night.notices
    longer_ago = old.model_copy(update={"written": "2026-01-01T00:00:00+00:00"})
    record_night(store, night.model_copy(update={"notices": (longer_ago,)}))
    assert deliver(store, "night", planned.run_id, post_to(webhook)) == 0
    assert told == []


def test_nights_that_were_brought_forward_wait_in_the_order_in_which_they_were_due() -> None:
    moment = datetime(2026, 11, 23, 12, tzinfo=UTC)
    brought = [waiting(hour, scheduled=11) for hour in (20, 21, 22)]
    assert next_in_turn(brought[2], [brought[1], brought[0]], moment) is brought[0]
    assert next_in_turn(brought[2], [waiting(20)], moment) is None  # which stayed where it was


def test_a_night_that_was_put_off_is_not_called_before_its_time() -> None:
    moment = datetime(2026, 11, 23, 12, tzinfo=UTC)
    put_off = waiting(3, scheduled=15)
    gave_its_place_back = waiting(4, scheduled=15, name="AwaitingConcurrencySlot")
    assert next_in_turn(waiting(5), [put_off], moment) is None
    assert next_in_turn(waiting(5), [put_off, gave_its_place_back], moment) is gave_its_place_back
