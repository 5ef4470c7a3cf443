"""What people say of nights: one is accepted as the baseline, a pair is muted for a while; both are told."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import flows.accept
import flows.mute
from flows.accept import accept
from flows.mute import mute
from flows.suite.plan import SuiteOptions, load_suite, plan_night
from flows.suite.telling import begin
from flows.suite.words import headline, noteworthy_pairs, summary_markdown
from metrics.errors import ConfigError
from tasks.history.nights import Mute, add_mute, find_night, mutes_of, past_nights
from tasks.history.notices import deliver, post_to
from tasks.store.storage import Store

Judge = Callable[..., Any]
LOST = range(60)
FAR = "2999-01-01"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_an_accepted_night_is_the_baseline_until_a_later_one_passes(
    night: Judge, store: Store, webhook: str, told: list[dict[str, Any]]
) -> None:
    first = night(margin=0.02)
    worse = night(wrong=LOST, margin=0.02)
    back = night(margin=0.02)
    assert (worse.outcome, back.night.baseline) == ("regression", (first.night.run_id,))
    accept(store, worse.night.run_id, "the new checkpoint is meant", "ada")
    judged = night(wrong=LOST, margin=0.02)
    assert (judged.outcome, judged.night.baseline) == ("pass", (worse.night.run_id,))
    assert "by ada: the new checkpoint is meant" in headline(judged)
    assert "the new checkpoint is meant" in summary_markdown(judged)
    assert night(wrong=LOST, margin=0.02).night.baseline == (judged.night.run_id,)
    deliver(store, "night", worse.night.run_id, post_to(webhook))
    (message,) = told
    assert "was accepted by ada as the baseline of night: the new checkpoint is meant" in message["text"]
    kept = find_night(store, "night", worse.night.run_id)
    assert kept is not None
    assert kept.accepted is not None
    assert kept.accepted.reason == "the new checkpoint is meant"


def test_a_rolling_baseline_begins_anew_with_the_night_that_was_accepted(night: Judge, store: Store) -> None:
    for _ in range(3):
        night(baseline="rolling")
    worse = night(wrong=LOST, baseline="rolling", margin=0.02)
    accept(store, worse.night.run_id, "meant", "ada")
    again = night(wrong=LOST, baseline="rolling", margin=0.02)
    assert again.night.baseline == (worse.night.run_id,)
    third = night(wrong=LOST, baseline="rolling", margin=0.02)
    assert third.night.baseline == (worse.night.run_id, again.night.run_id)


def test_a_retry_of_an_accepted_night_stays_accepted(night: Judge, store: Store, tmp_path: Path) -> None:
    run_id = night().night.run_id
    accept(store, run_id, "meant", "ada")
    options = SuiteOptions(store=str(tmp_path / "store"), output=str(tmp_path / "out"))
    planned = plan_night(load_suite(tmp_path / "suite.yaml"), options, f"{1:032}")
    assert planned.run_id == run_id
    assert begin(planned).own.accepted is not None


def test_what_can_not_be_accepted_is_refused(night: Judge, store: Store) -> None:
    failed = night(ok=False).night.run_id
    with pytest.raises(ConfigError, match="is not complete"):
        accept(store, failed, "meant", "ada")
    with pytest.raises(ConfigError, match=f"'{failed}'"):
        accept(store, failed[:-1], "meant", "ada")
    with pytest.raises(ConfigError, match="--reason"):
        accept(store, failed, " ", "ada")


@pytest.mark.parametrize("pair", ["exact_match,none", "sums exact_match,none"])
def test_a_muted_pair_decides_nothing_is_shown_and_moves_no_baseline(
    night: Judge, store: Store, webhook: str, told: list[dict[str, Any]], pair: str
) -> None:
    first = night(margin=0.02)
    mute(store, None, pair, FAR, "its references are being mended", "ada")
    quiet = night(wrong=LOST, margin=0.02)
    assert (quiet.outcome, quiet.ok, quiet.night.passed) == ("pass", True, False)
    said = f"exact_match,none (own) is muted until {FAR} by ada: its references are being mended"
    assert f"{said} (it would say regression)" in headline(quiet)
    assert "regression (muted)" in summary_markdown(quiet)
    assert noteworthy_pairs(quiet) == []
    (kept,) = past_nights(store, "night")[-1].muted
    assert (kept.pair, kept.verdict) == ("exact_match,none (own)", "regression")
    deliver(store, "night", first.night.run_id, post_to(webhook))
    assert [message["text"] for message in told] == [f"{pair} of night is {said.partition(' is ')[2]}"]
    mute(store, None, pair, datetime.now(UTC).date().isoformat(), "they are mended", "ada")
    loud = night(wrong=LOST, margin=0.02)
    assert (loud.outcome, loud.night.baseline) == ("regression", (first.night.run_id,))


def test_a_mute_ends_as_the_day_begins_where_its_user_is(
    night: Judge, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    night(margin=0.02)
    mute(store, None, "exact_match,none", FAR, "its references are being mended", "ada")
    # A place whose day is another one than UTC's, whenever this is run.
    monkeypatch.setenv("TZ", "<+14>-14" if datetime.now(UTC).hour >= 12 else "<-12>+12")
    time.tzset()
    try:
        mute(store, None, "exact_match,none", datetime.now().date().isoformat(), "they are mended", "ada")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert night(wrong=LOST, margin=0.02).outcome == "regression"


def test_a_mute_of_before_ends_as_the_day_begins_in_utc(night: Judge, store: Store) -> None:
    judged = night(margin=0.02).night
    add_mute(store, "night", Mute(pair="a,none", until="2026-11-28", at="", by="ada", reason="meant"))
    due = {"2026-11-27T23:59:59.000000+00:00": ["a,none"], "2026-11-28T00:00:00.000000+00:00": []}
    assert {at: [*mutes_of(store, judged.model_copy(update={"due": at}))] for at in due} == due


def test_a_muted_pair_does_not_fall_behind_the_anchor(night: Judge, store: Store) -> None:
    anchor = night().night.run_id
    mute(store, "night", "exact_match,none", FAR, "meant", "ada")
    judged = night(wrong=LOST, margin=0.02, anchor=anchor)
    assert (judged.outcome, judged.losses) == ("pass", ())


def test_a_muted_loss_against_the_anchor_is_said_and_moves_no_baseline(night: Judge, store: Store) -> None:
    keys = {"baseline": "last", "margin": 0.02, "anchor": "first"}
    first = night(**keys)
    lost = night(wrong=LOST, **keys)
    assert night(wrong=LOST, **keys).outcome == "worse"
    mute(store, None, "exact_match,none", FAR, "meant", "ada")
    quiet = night(wrong=LOST, **keys)
    assert (quiet.outcome, quiet.night.passed, quiet.losses) == ("pass", False, ())
    said = f"exact_match,none (own) against the anchor first is muted until {FAR} by ada: meant"
    assert f"{said} (it would say regression)" in headline(quiet)
    assert "exact_match,none (own) is muted until" in headline(quiet)
    assert night(wrong=LOST, **(keys | {"baseline": "last-passed"})).night.baseline == (first.night.run_id,)
    accept(store, lost.night.run_id, "meant", "ada")
    assert night(wrong=LOST, **keys).night.passed, "of pairs that lost nothing the anchor says nothing"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"pair": "exact_mach,none"}, "did you mean 'exact_match,none'"),
        ({"until": "soon"}, "expected a date such as 2026-12-01"),
        ({"until": "2020-01-01"}, "expected today or a later day"),
        ({"reason": ""}, "expected (the|a) reason"),
        ({"suite": "nigth"}, "did you mean 'night'"),
    ],
)
def test_what_can_not_be_muted_is_refused(night: Judge, store: Store, keys: Any, said: str) -> None:
    night()
    given = {"suite": None, "pair": "exact_match,none", "until": FAR, "reason": "meant", "by": "ada"}
    with pytest.raises(ConfigError, match=said):
        mute(store, **(given | keys))
    assert past_nights(store, "night")[-1].notices == ()


@pytest.mark.parametrize("missing", [None, KeyError, OSError])
def test_accept_and_mute_are_commands_for_users_without_a_name_too(
    night: Judge,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: type[Exception] | None,
) -> None:
    def nameless() -> str:
        assert missing is not None
        raise missing("getpwuid(): uid not found: 123456")

    if missing is not None:
        monkeypatch.setattr("getpass.getuser", nameless)
    run_id = night().night.run_id
    given = ["--store", str(tmp_path / "store"), "--reason", "meant"]
    for main, own in (
        (flows.accept.main, [run_id]),
        (flows.mute.main, ["exact_match,none", "--until", FAR]),
    ):
        with pytest.raises(SystemExit) as ended:
            main([*own, *given])
        assert ended.value.code in (0, None)
    said = capsys.readouterr().out
    assert f"{run_id} is the baseline of 'night' from now on" in said
    assert f"exact_match,none is muted until {FAR} by " in said


def test_a_suite_is_named_as_its_file_has_it_and_its_mute_is_no_other_suites(
    night: Judge, store: Store, tmp_path: Path
) -> None:
    named = {"pair": "exact_match,none", "until": FAR, "reason": "meant", "by": "ada"}
    night(name="My nightly", margin=0.02)
    assert mute(store, "My nightly", **named).said
    assert night(wrong=LOST, name="My nightly", margin=0.02).outcome == "pass"
    night(name="My_nightly", margin=0.02)
    assert night(wrong=LOST, name="My_nightly", margin=0.02).outcome == "regression"
    with pytest.raises(ConfigError, match="'My nightly', 'My_nightly'"):
        mute(store, "My-nightly", **named)
    with pytest.raises(ConfigError, match="'My nightly', 'My_nightly'"):
        mute(store, None, **named)


def test_a_pair_is_muted_under_the_old_and_the_new_name_of_its_benchmark(night: Judge, store: Store) -> None:
    named = {"until": FAR, "reason": "meant", "by": "ada"}
    night(margin=0.02)
    assert night(wrong=LOST, margin=0.02, benchmark="sums_v2").outcome == "regression"
    mute(store, None, "sums_v2 exact_match,none", **named)
    assert night(wrong=LOST, margin=0.02, benchmark="sums_v2").outcome == "pass"
    mute(store, None, "sums_v2 exact_match,none", **(named | {"until": datetime.now(UTC).date().isoformat()}))
    assert night(margin=0.02).outcome == "pass"
    told = [entry.text for entry in past_nights(store, "night")[-2].notices]
    assert told[-1].endswith("exact_match,none of night is muted no more, by ada: meant")
    mute(store, None, "sums exact_match,none", **named)
    assert night(wrong=LOST, margin=0.02, benchmark="sums_v2").outcome == "pass"


def test_a_suite_is_found_by_the_name_of_its_folder_as_before(night: Judge, store: Store) -> None:
    run_id = night(name="My nightly", margin=0.02).night.run_id
    mute(store, "My-nightly", "exact_match,none", FAR, "meant", "ada")
    assert night(wrong=LOST, name="My nightly", margin=0.02).outcome == "pass"
    accept(store, run_id, "meant", "ada")
    texts = [entry.text for entry in past_nights(store, "My-nightly")[0].notices]
    assert [" of My nightly" in text for text in texts] == [True, True]
