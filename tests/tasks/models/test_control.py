"""People stop and pause runs: what is in flight ends, nothing new is sent, all answers are kept."""

import threading
import time

import pytest

from tasks.models.control import Interrupted, RunControl, control_of, controlled
from tests.waiting import until


def test_a_stopped_run_asks_no_more_and_keeps_what_was_answered(bench, served, endpoint, problems):
    serving = served(latency=0.1)
    model = endpoint(serving, max_concurrency=4)
    raised = []

    def ask():
        try:
            bench.ask(model, problems(400), run_id="night")
        except Interrupted as error:
            raised.append(str(error))

    with controlled("night") as control:
        thread = threading.Thread(target=ask)
        thread.start()
        until(lambda: serving.stats()["answered"] >= 8, "inference is in its middle")
        control.stop("cancelled", "the run was cancelled")
        thread.join(30)
    assert raised == ["the run was cancelled; finished responses are kept, run again to go on"]
    answered = serving.stats()["answered"]
    assert answered < 400
    again = bench.ask(endpoint(serving), problems(400))
    assert again.tally.cached >= answered - 4
    assert set(again.column("status")) == {"ok"}


def test_a_paused_run_sends_nothing_new_and_goes_on_when_resumed(bench, served, endpoint, problems):
    serving = served(latency=0.05)
    # A request may take a second: a pause is no part of that.
    model = endpoint(serving, max_concurrency=4, timeout=1.0, deadline=1.0, max_retries=0)
    outcomes = []
    with controlled("night") as control:
        thread = threading.Thread(
            target=lambda: outcomes.append(bench.ask(model, problems(60), run_id="night"))
        )
        thread.start()
        until(lambda: serving.stats()["answered"] >= 8, "inference is in its middle")
        control.pause()
        time.sleep(1.0)  # what was in flight has ended
        received = serving.stats()["received"]
        time.sleep(1.5)
        assert serving.stats()["received"] == received < 60
        control.pause(False)
        thread.join(60)
    assert outcomes[0].tally.sent == 60
    assert set(outcomes[0].column("status")) == {"ok"}


def test_a_paused_run_holds_no_place_that_another_could_use(bench, served, endpoint, problems, tmp_path):
    serving = served(latency=0.05)
    model = endpoint(serving, max_concurrency=2)
    done = []
    with controlled("paused") as control:
        control.pause()
        thread = threading.Thread(target=lambda: done.append(bench.ask(model, problems(4), run_id="paused")))
        thread.start()
        # Other requests: of the same ones each is asked by whoever claimed it first, and that one is paused.
        sampling = {"max_tokens": 99}
        other = bench.ask(model, problems(20), run_id="other", sampling=sampling)
        assert other.tally.sent == 20
        assert not done
        control.pause(False)
        thread.join(60)
    assert done


def test_what_stops_a_suite_stops_its_evaluations_and_those_that_begin_later():
    with controlled("suite") as suite:
        with controlled("first") as first:
            suite.stop("timed out", "6h are over")
            suite.stop("cancelled", "too late")
            assert first.stopped == suite.stopped == suite.own_stop
            assert first.own_stop is None
        with controlled("second"), pytest.raises(Interrupted, match="6h are over"):
            control_of("second").check()
    assert control_of("suite").stopped is None


def test_a_stopped_evaluation_leaves_its_siblings_and_the_suite():
    with controlled("suite") as suite, controlled("first") as first:
        first.stop("cancelled", "not wanted")
        assert suite.stopped is None
        suite.pause()
        assert first.paused
        assert RunControl(suite).stopped is None
