"""Suites over checkpoints: what is new is evaluated, once, when it is whole."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.eval.start import remember_checkpoints
from flows.plan.build import make_plan
from flows.suite import __main__ as command
from flows.suite.plan import SuiteOptions, load_suite, plan_night
from metrics.errors import ConfigError

Step = Callable[[], object]
Watch = Callable[[Iterable[Step]], list[list[str]]]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    benchmark = {
        "name": "sums", "dataset": "items.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}",
        "models": [{"name": "m", "checkpoints": {"glob": "runs/step-*", "new_only": True}}],
        "metric_list": ["exact_match"],
    }  # fmt: skip
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": "1", "question": "1?", "answer": "1"}))
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(benchmark))
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump({"name": "sweep", "benchmarks": ["sums.yaml"]}))
    (tmp_path / "runs").mkdir()
    checkpoint(tmp_path, 100)
    return tmp_path / "suite.yaml"


def checkpoint(folder: Path, step: int, content: bytes = b"") -> Path:
    place = folder / "runs" / f"step-{step}"
    place.mkdir(exist_ok=True)
    (place / "model.safetensors").write_bytes(content or b"weights %d" % step)
    return place


def options(tmp_path: Path) -> SuiteOptions:
    return SuiteOptions(store=str(tmp_path / "store"))


def evaluated(night: Any) -> list[str]:
    return [entry.name for entry in night.evaluations]


def complete(night: Any) -> None:
    """As the flow does when an evaluation is complete."""
    for entry in night.evaluations:
        remember_checkpoints(make_plan(entry.config, entry.options), entry.options)


def test_a_night_evaluates_what_is_new_since_those_before(suite: Path, tmp_path: Path) -> None:
    first = plan_night(load_suite(suite), options(tmp_path), "one")
    assert evaluated(first) == ["sums × m-step-100"]
    complete(first)
    assert evaluated(plan_night(load_suite(suite), options(tmp_path), "one")) == evaluated(first)  # a retry
    assert evaluated(plan_night(load_suite(suite), options(tmp_path), "two")) == []
    checkpoint(tmp_path, 200)
    checkpoint(tmp_path, 100, b"trained anew")
    second = plan_night(load_suite(suite), options(tmp_path), "two")
    assert evaluated(second) == ["sums × m-step-100", "sums × m-step-200"]


def test_the_same_weights_served_otherwise_are_new(suite: Path, tmp_path: Path) -> None:
    complete(plan_night(load_suite(suite), options(tmp_path), "one"))
    benchmark = yaml.safe_load((tmp_path / "sums.yaml").read_text())
    checkpoints = {"glob": "runs/step-*", "new_only": True}
    benchmark["models"] += [
        {"name": "int4", "checkpoints": checkpoints, "serve": {"args": ["--int4"]}},
        {"name": "brief", "checkpoints": checkpoints, "reasoning": {"effort": "low"}},
    ]
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(benchmark))
    second = plan_night(load_suite(suite), options(tmp_path), "two")
    assert evaluated(second) == ["sums × int4-step-100", "sums × brief-step-100"]
    complete(second)
    assert evaluated(plan_night(load_suite(suite), options(tmp_path), "three")) == []


def test_weights_are_told_apart_also_where_the_config_names_what_stands_for_them(
    suite: Path, tmp_path: Path
) -> None:
    benchmark = yaml.safe_load((tmp_path / "sums.yaml").read_text())
    benchmark["models"][0]["identity"] = "ours"
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(benchmark))
    complete(plan_night(load_suite(suite), options(tmp_path), "one"))
    checkpoint(tmp_path, 200)
    assert evaluated(plan_night(load_suite(suite), options(tmp_path), "two")) == ["sums × m-step-200"]


def test_a_night_on_a_part_of_the_items_counts_for_nights_on_that_part(suite: Path, tmp_path: Path) -> None:
    part = options(tmp_path).model_copy(update={"limit": 1})
    complete(plan_night(load_suite(suite), part, "one"))
    assert evaluated(plan_night(load_suite(suite), part, "two")) == []
    more = options(tmp_path).model_copy(update={"limit": 2})
    assert evaluated(plan_night(load_suite(suite), more, "two")) == ["sums × m-step-100"]
    whole = plan_night(load_suite(suite), options(tmp_path), "two")
    assert evaluated(whole) == ["sums × m-step-100"]
    complete(whole)
    assert evaluated(plan_night(load_suite(suite), more, "three")) == []


def test_weights_that_replace_those_under_evaluation_are_new(suite: Path, tmp_path: Path) -> None:
    (entry,) = plan_night(load_suite(suite), options(tmp_path), "one").evaluations
    plan = make_plan(entry.config, entry.options)
    checkpoint(tmp_path, 100, b"trained anew")
    remember_checkpoints(plan, entry.options)
    assert evaluated(plan_night(load_suite(suite), options(tmp_path), "two")) == ["sums × m-step-100"]
    checkpoint(tmp_path, 100)
    assert evaluated(plan_night(load_suite(suite), options(tmp_path), "two")) == []


@pytest.fixture
def watch(suite: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[str]]]:
    """Watches the suite, with a step between two looks each, until there is none: what its nights
    evaluated."""

    def watched(steps: Iterable[Step], failing: str | None = None) -> list[list[str]]:
        looks: list[list[str]] = []
        left = iter(steps)

        def wait(_: float) -> None:
            step = next(left, None)
            if step is None:
                raise KeyboardInterrupt
            step()

        def run(chosen: Any) -> tuple[int, bool]:
            night = plan_night(load_suite(suite), chosen, f"night {len(looks)}")
            looks.append(evaluated(night))
            sound = [entry for entry in night.evaluations if failing is None or failing not in entry.name]
            complete(replace(night, evaluations=tuple(sound)))
            return (0, True) if failing is None else (1, False)

        monkeypatch.setattr(command.time, "sleep", wait)
        with pytest.raises(KeyboardInterrupt):
            command._watch(load_suite(suite), options(tmp_path), run)
        return looks

    return watched


def test_watching_evaluates_each_checkpoint_once_when_it_is_whole(watch: Watch, tmp_path: Path) -> None:
    looks = watch(
        [
            lambda: None,  # the second look finds it as it was
            lambda: checkpoint(tmp_path, 200, b"half"),
            lambda: checkpoint(tmp_path, 200, b"half and the rest"),
            lambda: None,
            lambda: None,
        ]
    )
    assert looks == [["sums × m-step-100"], ["sums × m-step-200"]]


def test_watching_goes_on_beside_checkpoints_that_are_being_written_or_removed(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = tmp_path / "runs" / "step-200"
    half.mkdir()
    (half / "config.json").write_text("{}")

    def removed(_: Any) -> Any:
        monkeypatch.setattr(command, "_files", files)
        raise FileNotFoundError("step-100")

    files = command._files
    looks = watch(
        [
            lambda: None,
            lambda: (half / "model.safetensors").write_bytes(b""),
            lambda: monkeypatch.setattr(command, "_files", removed),
            lambda: checkpoint(tmp_path, 200),
            lambda: None,
            lambda: None,
        ]
    )
    assert looks == [["sums × m-step-100"], ["sums × m-step-200"]]


def test_watching_outlives_a_suite_that_is_being_saved_when_a_night_begins(
    suite: Path, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = suite.read_text()
    looks = watch(
        [lambda: suite.write_text("name: [half"), lambda: None, lambda: suite.write_text(whole), lambda: None]
    )
    assert looks == [["sums × m-step-100"]]
    assert caplog.text.count("looking again: suite.yaml:2: not valid YAML") == 1


def test_watching_evaluates_what_is_whole_beside_what_grows_and_what_failed(
    watch: Callable[..., list[list[str]]], tmp_path: Path
) -> None:
    """A checkpoint that grows at every look, and one that fails, cost their own points alone."""
    checkpoint(tmp_path, 200, b"it fails")
    grown = iter(range(1, 100))

    def growing(step: Step = lambda: None) -> Step:
        def both() -> None:
            step()
            checkpoint(tmp_path, 300, b"x" * next(grown))

        return both

    steps = [growing(), growing(lambda: checkpoint(tmp_path, 400)), growing(), growing(), growing()]
    looks = watch(steps, failing="200")
    assert looks == [["sums × m-step-100", "sums × m-step-200"], ["sums × m-step-400"]]


def test_watching_what_could_never_be_new_is_refused(suite: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((tmp_path / "sums.yaml").read_text())
    config["models"] = [{"name": "m", "checkpoints": "runs/step-*"}]
    (tmp_path / "sums.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match="--watch needs a model with checkpoints"):
        command._watch(load_suite(suite), options(tmp_path), lambda _: (0, True))
