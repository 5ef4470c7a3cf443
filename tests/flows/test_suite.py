"""A suite's file, its nights and what they are held against; no server is needed for any of it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.accept import accept
from flows.config import load_config
from flows.suite.plan import SuiteOptions, check_margins, check_suite, load_suite, plan_night
from flows.suite.rescoring import fixed_nights
from flows.suite.second_look import asked_anew
from flows.suite.telling import begin
from metrics.errors import ConfigError
from tasks.history.nights import (
    Night,
    NightEvaluation,
    baseline_nights,
    nights_before,
    read_nights,
    record_night,
)
from tasks.store.storage import Store
from tests.flows.made_nights import DONE, suite_file


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a suite on one benchmark of two items."""

    def written(**keys: Any) -> Path:
        path = suite_file(tmp_path, 2)
        path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
        return path

    return written


def test_a_night_is_benchmarks_times_models_under_ids_that_a_retry_shares(write: Any, tmp_path: Path) -> None:
    models = [{"name": name, "type": "demo"} for name in ("a", "b")]
    suite = load_suite(write(models=models))
    options = SuiteOptions(store=str(tmp_path / "store"), limit=1)
    night = plan_night(suite, options, "0123456789")
    assert [entry.name for entry in night.evaluations] == ["sums × a", "sums × b"]
    assert [entry.options.run_id for entry in night.evaluations] == [
        "night-0123456789-sums-a",
        "night-0123456789-sums-b",
    ]
    assert {entry.options.limit for entry in night.evaluations} == {1}
    assert [model.name for entry in night.evaluations if entry.config for model in entry.config.models] == [
        "a",
        "b",
    ]
    assert plan_night(suite, options, "0123456789") == night


def test_what_is_set_of_one_benchmark_stands_over_what_the_suite_says_of_all(
    write: Any, tmp_path: Path
) -> None:
    def planned(own: dict[str, Any], **keys: Any) -> Any:
        path = write(benchmarks=[{"config": "sums.yaml", "set": own}], **keys)
        options = SuiteOptions(store=str(tmp_path / "store"))
        return [entry.config for entry in plan_night(load_suite(path), options, "x").evaluations]

    models = [{"name": name, "type": "demo"} for name in ("a", "b")]
    first, _ = planned({"models.0.config.timeout": 7}, models=models)
    assert (first.models[0].name, first.models[0].config.timeout) == ("a", 7)
    (only,) = planned({"models": [{"name": "c", "type": "demo"}]}, models=models)
    assert only.models[0].name == "c"
    (one,) = planned({"answers.max_age": "20h", "canaries": 29}, answers="fresh", canaries=40)
    assert (one.answers.max_age, one.canaries) == (72_000, 29)
    assert [planned({}, **keys)[0].canaries for keys in ({}, {"canaries": 40})] == [5, 40]
    suite = load_suite(suite_file(tmp_path, 2, benchmark={"canaries": 29}))
    (entry,) = plan_night(suite, SuiteOptions(store=str(tmp_path / "store")), "x").evaluations
    assert entry.config is not None
    assert entry.config.canaries == 29


def test_evaluations_whose_names_differ_only_in_what_no_folder_holds_are_apart(
    write: Any, tmp_path: Path
) -> None:
    names = ("sums_a", "sums-a", "数学", "阅读", "plain")
    path = write(
        benchmarks=[{"config": "sums.yaml", "set": {"name": name}} for name in names],
        models=[{"name": name, "type": "demo"} for name in ("qwen_2", "qwen-2", "own")],
    )
    night = plan_night(load_suite(path), SuiteOptions(store=str(tmp_path / "store")), "x")
    assert len({entry.options.run_id for entry in night.evaluations}) == len(night.evaluations) == 15
    assert len({entry.options.output for entry in night.evaluations}) == 15
    assert {Path(str(entry.options.output)).parent for entry in night.evaluations} == {Path(night.output)}
    own = next(entry for entry in night.evaluations if entry.name == "plain × own")
    assert (own.options.run_id, Path(str(own.options.output)).name) == ("night-x-plain-own", "plain-own")
    alone = SuiteOptions(store=str(tmp_path / "store"), only=("sums-a × own",))
    (chosen,) = plan_night(load_suite(path), alone, "x").evaluations
    assert chosen in night.evaluations


def test_what_is_asked_again_or_scored_anew_never_takes_the_place_of_another_evaluation(
    write: Any, tmp_path: Path
) -> None:
    models = [{"name": name, "type": "demo"} for name in ("a", "a-again")]
    night = plan_night(load_suite(write(models=models)), SuiteOptions(store=str(tmp_path / "store")), "x")
    anew = asked_anew(night, {"sums × a"}).evaluations
    for name in ("run_id", "output"):
        places = {getattr(entry.options, name) for entry in (*night.evaluations, *anew)}
        assert len(places) == 3


def test_without_models_each_benchmark_brings_its_own(write: Any) -> None:
    night = plan_night(load_suite(write()), SuiteOptions(), "x")
    assert [entry.name for entry in night.evaluations] == ["sums × own"]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda file: file.write_text("name: broken\nprompt_templat: x\n"), r"broken\.yaml:2"),
        (lambda file: None, r"benchmark 'broken\.yaml' is not there: .*broken\.yaml"),
        (lambda file: file.mkdir(), r"benchmark 'broken\.yaml' is not there: .*broken\.yaml"),
    ],
)
def test_a_benchmark_that_is_refused_fails_alone_in_the_night_and_loudly_on_the_command_line(
    write: Any, tmp_path: Path, made: Callable[[Path], object], said: str
) -> None:
    path = write(benchmarks=["sums.yaml", "broken.yaml"])
    made(tmp_path / "broken.yaml")
    suite = load_suite(path)
    good, broken = plan_night(suite, SuiteOptions(), "x").evaluations
    assert good.config is not None
    assert broken.config is None
    assert re.search(said, str(broken.refusal))
    with pytest.raises(ConfigError, match=said):
        check_suite(suite, SuiteOptions(store=str(tmp_path / "store")))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"benchmark": "x"}, "did you mean 'benchmarks'"),
        ({"gate": "nowhere.yaml"}, "is not there"),
        ({"gate": {"margin": -1}}, r"gate\.margin"),
        ({"models": [{"name": "a", "type": "demo"}] * 2}, "there twice"),
        ({"nights": 1}, "nights"),
        ({"watch": {"ping_url": "host/ping"}}, "ping_url: expected an http:// or https:// address"),
    ],
)
def test_a_suite_file_that_can_not_be_used_is_refused(write: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_suite(write(**keys))


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"gate": "nowhere.yaml"}, "gate"),
        ({"gate": "\0"}, "gate"),
        ({"gate": ""}, "gate"),
        ({"base_dir": "\0"}, "base_dir"),
    ],
)
def test_what_is_wrong_in_a_suite_is_told_with_its_file_and_key(
    write: Any, keys: dict[str, Any], place: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^suite\.yaml:1: {place}: "):
        load_suite(write(**keys))


def test_a_key_that_a_suite_sets_is_told_by_the_benchmark_that_it_is_set_of(write: Any) -> None:
    suite = load_suite(write(benchmarks=[{"config": "sums.yaml", "set": {"nope.x": 1}}]))
    (refused,) = plan_night(suite, SuiteOptions(), "x").evaluations
    assert str(refused.refusal).startswith("suite 'night', benchmark 'sums.yaml': set nope.x: ")
    assert "--set" not in str(refused.refusal)


def test_a_suite_and_a_benchmark_are_told_apart(write: Any, tmp_path: Path) -> None:
    path = write(baseline="last", retries=1)
    said = f"suite.yaml: holds a suite, not one benchmark; run it: python -m flows.suite {path}"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        load_config(path)
    path = tmp_path / "sums.yaml"
    said = f"sums.yaml: holds one benchmark, not a suite; run it: python -m flows.eval {path}"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        load_suite(path)


def test_a_gate_on_a_pair_that_no_benchmark_has_is_refused_before_the_night(
    write: Any, tmp_path: Path
) -> None:
    options = SuiteOptions(store=str(tmp_path / "store"))
    check_suite(load_suite(write(gate={"pairs": {"exact_match,none": {}}})), options)
    with pytest.raises(ConfigError, match="did you mean 'exact_match,none'"):
        check_suite(load_suite(write(gate={"pairs": {"exact_match,non": {}}})), options)


def test_an_unknown_baseline_is_refused_before_the_night(write: Any, tmp_path: Path) -> None:
    options = SuiteOptions(store=str(tmp_path / "store"), baseline="last-pased")
    with pytest.raises(ConfigError, match="did you mean 'last-passed'"):
        check_suite(load_suite(write()), options)


def a_night(number: int, ok: bool = True, verdict: str | None = "pass") -> Night:
    evaluation = NightEvaluation(name="sums × own", run_id=f"r{number}", ok=ok)
    started = f"2026-01-{number:02}T02:30:00+00:00"
    return Night(
        suite="night", run_id=f"n{number}", started=started, evaluations=(evaluation,), verdict=verdict
    )


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("last", ["n4"]),
        ("last-passed", ["n2"]),
        ("rolling", ["n1", "n2"]),
        ("n3", ["n3"]),
    ],
)
def test_a_night_is_held_against_the_nights_that_the_suite_names(
    tmp_path: Path, wanted: str, expected: list[str]
) -> None:
    store = Store(str(tmp_path))
    for night in (
        a_night(2),
        a_night(1, verdict=None),
        a_night(3, ok=False),
        a_night(4, verdict="regression"),
    ):
        record_night(store, night)
    record_night(store, a_night(5))
    past = nights_before(read_nights(store, "night").found.values(), a_night(5))
    assert [night.run_id for night in past] == ["n1", "n2", "n3", "n4"]
    assert [night.run_id for night in baseline_nights(store, past, wanted, 3)] == expected


@pytest.mark.parametrize("wanted", ["last", "last-passed", "rolling", "first"])
def test_a_night_that_ended_before_it_evaluated_anything_is_no_baseline(tmp_path: Path, wanted: str) -> None:
    nothing = a_night(2, verdict=None).model_copy(update={"evaluations": ()})
    store = Store(str(tmp_path))
    assert baseline_nights(store, [nothing], wanted, 3) == []
    assert baseline_nights(store, [a_night(1), nothing], wanted, 3) == [a_night(1)]
    record_night(store, nothing)
    with pytest.raises(ConfigError, match="night 'n2' is not complete"):
        accept(store, "n2", "it is better", "ada")


def test_an_inconclusive_night_is_not_one_that_passed() -> None:
    assert not a_night(1, verdict="inconclusive").passed
    assert a_night(1, verdict=None).passed


AGAINST = [
    ("last-passed", "2", "4"),
    ("last", "2", "4"),
    ("rolling", "2", "2 3 4"),
    ("first", "2", "2"),
    ("night-1", "1", "1"),  # somebody wants just that
]
"""Which of five nights, the second whole, a baseline means for a night of all and for one of a part."""


@pytest.mark.parametrize(
    ("baseline", "of_all", "of_some"),
    AGAINST,
)
def test_a_night_of_the_first_items_is_no_baseline_of_one_that_asks_more(
    write: Any, tmp_path: Path, baseline: str, of_all: str, of_some: str
) -> None:
    suite, store = load_suite(write(gate={"anchor": "first"})), str(tmp_path / "store")

    def passed(number: int, limit: int | None, against: str = "last-passed") -> tuple[str, str]:
        """Which nights this one and its anchor are held against; it passes."""
        planned = plan_night(suite, SuiteOptions(store=store, limit=limit, baseline=against), f"{number}")
        begun = begin(planned, f"2026-11-2{number}T02:30:00")
        record_night(Store(store), begun.own.model_copy(update={"ended": True, "evaluations": DONE}))
        fixed = fixed_nights(planned, begun.past)
        names = [entry.run_id for entry in fixed]
        return tuple(" ".join(own).replace("night-", "") for own in (begun.own.baseline, names))

    assert [passed(1, 100), passed(2, None)] == [("", ""), ("", "")]
    assert passed(3, 200) == ("2", "2"), "which holds these items as well"
    assert passed(4, None, baseline) == (of_all, "2")
    assert passed(5, 200, baseline) == (of_some, "2")
    accept(Store(store), "night-1", "meant", "ada")
    assert passed(6, None) == ("1", "1")


@pytest.mark.parametrize(
    ("baseline", "of_all", "of_one"),
    AGAINST,
)
def test_a_night_of_some_evaluations_is_no_baseline_of_one_of_others_and_is_not_accepted(
    write: Any, tmp_path: Path, baseline: str, of_all: str, of_one: str
) -> None:
    models = [{"name": name, "type": "demo"} for name in ("a", "b", "c")]
    suite = load_suite(write(models=models, gate={"anchor": "first"}))
    store = str(tmp_path / "store")

    def passed(number: int, of: str = "abc", against: str = "last-passed") -> tuple[str, str]:
        """Which nights this one and its anchor are held against; it passes."""
        only = None if of == "abc" else tuple(f"sums × {name}" for name in of)
        planned = plan_night(suite, SuiteOptions(store=store, only=only, baseline=against), f"{number}")
        begun = begin(planned, f"2026-11-2{number}T02:30:00")
        record_night(Store(store), begun.own.model_copy(update={"ended": True, "evaluations": DONE}))
        names = [entry.run_id for entry in fixed_nights(planned, begun.past)]
        return tuple(" ".join(own).replace("night-", "") for own in (begun.own.baseline, names))

    assert [passed(1, "a"), passed(2)] == [("", ""), ("", "")]
    assert passed(3, "ab") == ("2", "2")
    assert passed(4, "abc", baseline) == (of_all, "2")
    assert passed(5, "b", baseline) == (of_one, "2")
    with pytest.raises(ConfigError, match="'night-1' is of a part of its suite"):
        accept(Store(store), "night-1", "meant", "ada")
    assert passed(6) == ("4", "2")


def test_a_night_whose_options_name_every_evaluation_is_a_whole_one(write: Any, tmp_path: Path) -> None:
    options = SuiteOptions(store=str(tmp_path / "store"), only=("sums × own",))
    assert plan_night(load_suite(write()), options, "x").only is None


def test_an_evaluation_that_the_suite_does_not_have_is_refused(write: Any, tmp_path: Path) -> None:
    options = SuiteOptions(store=str(tmp_path / "store"), only=("sums × own", "sum × own"))
    with pytest.raises(ConfigError, match=r"no evaluation 'sum × own'; did you mean 'sums × own'"):
        plan_night(load_suite(write()), options, "x")
    (tmp_path / "sums.yaml").write_text("{}")
    with pytest.raises(ConfigError, match=r"no evaluation 'sums × own'.*\n.*sums.yaml"):
        plan_night(load_suite(tmp_path / "suite.yaml"), options, "x")


def test_checkpoints_that_come_and_go_make_no_part_of_a_night(write: Any, tmp_path: Path) -> None:
    new = {"name": "sft", "checkpoints": {"glob": "runs/step-*", "new_only": True}}
    path = write(models=[{"name": "a", "type": "demo"}, new])
    for step in (1, 2):
        folder = tmp_path / "runs" / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")

    def partly(*names: str) -> tuple[str, ...] | None:
        options = SuiteOptions(store=str(tmp_path / "store"), only=tuple(f"sums × {name}" for name in names))
        return plan_night(load_suite(path), options, "x").only

    assert partly("a", "sft-step-1") is None
    assert partly("a", "sft-step-0") is None, "its trainer has removed it"
    assert partly("sft-step-1") == ("sums × sft-step-1",)


def test_nights_that_the_scheduler_makes_in_one_go_have_ids_of_their_own(write: Any) -> None:
    # Prefect's scheduler makes three runs ahead; the first 48 bits of their ids are the time of making.
    ids = [f"0199c0de-0000-7{end}00-8000-00000000000{end}" for end in (2, 0, 1)]
    nights = [plan_night(load_suite(write()), SuiteOptions(), unique) for unique in ids]
    for names in (
        [night.run_id for night in nights],
        [night.output for night in nights],
        [night.evaluations[0].options.run_id for night in nights],
    ):
        assert len(set(names)) == 3


def test_what_no_gate_can_stop_is_said_when_the_suite_is_loaded(write: Any, tmp_path: Path) -> None:
    path = write(gate={"stop": "decided", "margin": 1})
    config = tmp_path / "sums.yaml"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"metric_list": ["exact_match", "bleu"]}))
    night = plan_night(load_suite(path), SuiteOptions(store=str(tmp_path / "store")), "x")
    sentences = [line for line in check_margins(night) if "stop" in line]
    assert sentences == [
        "gate: stop: all items of sums are asked: 'bleu,none' is no mean of its items' numbers"
    ]


@pytest.mark.parametrize("names", [("夜间甲", "夜间乙"), ("My nightly", "My_nightly")])
def test_suites_that_share_a_folder_of_the_store_know_their_own_nights_only(
    write: Any, tmp_path: Path, names: tuple[str, str]
) -> None:
    options = SuiteOptions(store=str(tmp_path / "store"))

    def passed(name: str, number: int) -> tuple[str, ...]:
        """What this night is held against; it passes."""
        planned = plan_night(load_suite(write(name=name)), options, f"{number}")
        begun = begin(planned, f"2026-11-2{number}T02:30:00")
        record_night(Store(planned.store), begun.own.model_copy(update={"ended": True, "evaluations": DONE}))
        assert begun.own.baseline == tuple(entry.run_id for entry in begun.past[-1:])
        return begun.own.baseline

    first, second = (plan_night(load_suite(write(name=name)), options, "1") for name in names)
    assert first.slug == second.slug
    assert [passed(name, number) for number, name in enumerate(names)] == [(), ()]
    assert passed(names[0], 3) == (f"{first.slug}-0",)
    with pytest.raises(ConfigError, match=f"'{first.slug}-0'"):
        check_suite(second.suite, options.model_copy(update={"baseline": f"{first.slug}-0"}))


def test_a_night_that_was_recorded_without_its_suites_name_stays_one_of_the_suites(
    write: Any, tmp_path: Path
) -> None:
    options = SuiteOptions(store=str(tmp_path / "store"))
    before = Night(suite="My-nightly", run_id="of-before", started="2026-11-01", evaluations=DONE)
    record_night(Store(str(options.store)), before)
    planned = plan_night(load_suite(write(name="My nightly")), options, "1")
    assert [begin(planned).own.baseline for _ in ("the first time", "a retry")] == [("of-before",)] * 2
