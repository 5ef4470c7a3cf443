"""A run that stops asking once its gate is decided: by command, against an endpoint that counts."""

import json
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from flows.accept import accept
from flows.suite.plan import SuiteOptions, load_suite, may_stop, plan_night
from metrics.errors import ConfigError
from metrics.statistics.sequence import PairedUnits, SequenceLevels, lower_end, upper_end
from tasks.history.nights import Night, NightEvaluation
from tasks.history.query import query
from tasks.reporting.overview import glances
from tasks.store.storage import Store
from tests.flows.endpoints import chat_endpoint, says

PROJECT = Path(__file__).resolve().parents[2]
ITEMS = 1000
Evaluate = Callable[..., Any]


def benchmark(folder: Path, address: str, identity: str, items: int = ITEMS, **keys: Any) -> Path:
    """Sums, asked of the model at ``address``, whose answers are kept under ``identity``."""
    rows = (
        json.dumps({"question": f"{n}+1", "answer": str(n + 1), "passage": f"p{n // 4}"})
        for n in range(items)
    )
    (folder / "items.jsonl").write_text("\n".join(rows))
    model = {"name": "m", "identity": identity, "config": {"base_url": address, "max_concurrency": 16}}
    config = {
        "name": "sums", "output_type": "generate_until", "dataset": "items.jsonl", "target": "{{answer}}",
        "prompt_template": "{{question}}", "metric_list": ["exact_match"], "models": [model],
        "statistics": {"bootstrap_iters": 1000}, **keys,
    }  # fmt: skip
    path = folder / f"{identity}.yaml"
    path.write_text(json.dumps(config))
    return path


@contextmanager
def counting(right: Callable[[int], bool]) -> Iterator[tuple[str, Counter[str]]]:
    """An endpoint that knows the sums that ``right`` says it does; gives its address, and how often each
    question was asked."""
    asked: Counter[str] = Counter()

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        question = body["messages"][-1]["content"]
        asked[question] += 1
        number = int(question.partition("+")[0])
        return says(str(number + 1) if right(number) else "no idea")

    with chat_endpoint(answer, ["m"]) as address:
        yield address, asked


def four_of_five(number: int) -> bool:
    return number % 5 > 0


def gate_file(folder: Path, **keys: Any) -> Path:
    path = folder / "gate.yaml"
    path.write_text(json.dumps({"margin": 0.02, "stop": "decided", **keys}))
    return path


@pytest.fixture
def baseline(begin: Evaluate, tmp_path: Path) -> Path:
    """A run that asked everything."""
    with counting(four_of_five) as (address, _):
        begin("baseline", benchmark(tmp_path, address, "base"), "--json")
    return (tmp_path / "out").rename(tmp_path / "baseline")


def manifest(tmp_path: Path) -> dict[str, Any]:
    return dict(json.loads((tmp_path / "out" / "manifest.json").read_text()))


def test_a_candidate_at_half_the_accuracy_is_a_regression_after_a_part_of_the_requests(
    baseline: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    with counting(lambda number: number % 5 > 2) as (address, asked):
        config = benchmark(tmp_path, address, "half")
        ran = evaluate(config, "--against", baseline, "--gate", gate_file(tmp_path), "--json")
    assert ran.code == 1, ran.err
    (pair,) = ran.document["comparison"]["pairs"]
    assert pair["verdict"] == "regression"
    assert pair["ci_high"] < -0.02
    assert sum(asked.values()) <= 0.4 * ITEMS
    assert set(asked.values()) == {1}
    told = manifest(tmp_path)
    assert told["stopped"] == {"asked_items": len(asked), "of_items": ITEMS, "why": "decided"}
    assert told["steps"]["decide"]["computed"] >= 1
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["stopped"] == told["stopped"]
    (row,) = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    assert row["n_items"] == len(asked)
    said = f"{len(asked)} of 1,000 items, stopped: decided"
    assert said in (tmp_path / "out" / "report.html").read_text()
    assert said in (tmp_path / "out" / "comparison.html").read_text()
    assert said in pair["reason"]


def test_an_identical_candidate_passes_after_a_part_of_the_requests_and_is_no_baseline(
    baseline: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    gate = gate_file(tmp_path)
    with counting(four_of_five) as (address, asked):
        config = benchmark(tmp_path, address, "same")
        ran = evaluate(config, "--against", baseline, "--gate", gate, "--json")
        assert ran.code == 0, ran.err
        (pair,) = ran.document["comparison"]["pairs"]
        assert pair["verdict"] == "pass"
        assert len(asked) <= 0.6 * ITEMS
        assert pair["missing"] == 0  # what is not asked is no item of the run
        stopped = (tmp_path / "out").rename(tmp_path / "stopped")
        again = evaluate(config, "--against", stopped, "--gate", gate)
    assert again.code == 2
    assert "stopped: decided; name a run that asked all items" in again.err
    assert set(asked.values()) == {1}


def test_where_a_gate_asks_for_more_of_the_baselines_items_than_are_there_everything_is_asked(
    baseline: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    with counting(lambda number: number % 5 > 2) as (address, asked):
        config = benchmark(tmp_path, address, "half")
        items = (tmp_path / "items.jsonl").read_text().splitlines()
        items[::10] = [
            json.dumps({"question": f"{n}+01", "answer": str(n + 1), "passage": f"p{n // 4}"})
            for n in range(0, ITEMS, 10)
        ]
        (tmp_path / "items.jsonl").write_text("\n".join(items))
        ran = evaluate(config, "--against", baseline, "--gate", gate_file(tmp_path), "--json")
        (tmp_path / "out").rename(tmp_path / "strict")
        lenient = gate_file(tmp_path, coverage=0.8)
        covered = evaluate(config, "--against", baseline, "--gate", lenient, "--json")
    (pair,) = ran.document["comparison"]["pairs"]
    assert (pair["verdict"], len(asked)) == ("inconclusive", ITEMS)
    assert "coverage 0.9 is below the 0.99 asked for" in pair["reason"]
    told = json.loads((tmp_path / "strict" / "manifest.json").read_text())
    assert "stopped" not in told or told["stopped"] is None
    (pair,) = covered.document["comparison"]["pairs"]
    assert pair["verdict"] == "regression"
    assert manifest(tmp_path)["stopped"]["why"] == "decided"


def test_a_pair_that_is_compared_unpaired_has_everything_asked_and_a_sentence_says_so(
    baseline: Path, evaluate: Evaluate, tmp_path: Path
) -> None:
    with counting(lambda number: number % 5 > 2) as (address, asked):
        config = benchmark(tmp_path, address, "half")
        gate = gate_file(tmp_path, method="unpaired")
        ran = evaluate(config, "--against", baseline, "--gate", gate, "--json")
    (pair,) = ran.document["comparison"]["pairs"]
    assert (pair["verdict"], len(asked)) == ("regression", ITEMS)
    assert "gate: stop: all items of sums are asked: 'exact_match,none' is compared unpaired" in ran.err


def moved(number: int) -> bool:
    """As ``four_of_five``, but for one item in ten: as many gained as lost."""
    return four_of_five(number) != (number % 20 in (0, 1))


def clusters_of(name: str | None, evaluate: Evaluate, folder: Path) -> tuple[dict[str, Any], int]:
    """The pair of an identical candidate that may stop, and after how many of 800 items it did."""
    keys = {} if name is None else {"cluster": name}
    gate = gate_file(folder, margin=0.05)
    with counting(four_of_five) as (address, asked):
        base = benchmark(folder, address, f"base {name}", items=800, **keys)
        assert evaluate(base, "--output", folder / "base", "--json").code == 0
        asked.clear()
        candidate = benchmark(folder, address, f"same {name}", items=800, **keys)
        ran = evaluate(candidate, "--against", folder / "base", "--gate", gate, "--json")
    assert ran.code == 0, ran.err
    assert set(asked.values()) == {1}
    assert manifest(folder)["stopped"]["asked_items"] == len(asked)
    (pair,) = ran.document["comparison"]["pairs"]
    assert pair["verdict"] == "pass"
    return pair, len(asked)


def test_a_run_with_clusters_is_decided_by_them_where_items_would_have_stopped(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    levels = SequenceLevels.of_gate(0.05, 1)
    alone, alone_asked = clusters_of(None, evaluate, tmp_path)
    together, asked = clusters_of("passage", evaluate, tmp_path)
    assert alone_asked < 200 < asked < 800
    for pair, size, of in ((alone, 1, alone_asked), (together, 4, asked)):
        units = of // size
        known = PairedUnits.of_items(np.zeros(of), np.full(units, size), size, 1.0, 800 // size)
        assert pair["ci_low"] == pytest.approx(lower_end(known, levels.passes))
        assert pair["ci_high"] == pytest.approx(upper_end(known, levels.fails))


class TwoSamples:
    """An endpoint that knows the answer of four items in five, and of some of them every other time only."""

    def __init__(self, sometimes: Callable[[int], bool]) -> None:
        self.sometimes = sometimes
        self.asked: Counter[str] = Counter()

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        question = body["messages"][-1]["content"]
        self.asked[question] += 1
        number = int(question.partition("+")[0])
        right = four_of_five(number) and not (self.sometimes(number) and self.asked[question] % 2)
        return says(str(number + 1) if right else "no idea")


def test_repeats_of_an_item_are_one_unit_and_give_the_verdict_of_the_whole_run(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {"items": 400, "sample_params": {"num_samples": 2, "temperature": 0.7}}
    verdicts, sent = {}, {}
    base = TwoSamples(lambda number: number % 10 == 1)
    with chat_endpoint(base.answer, ["m"]) as address:
        assert evaluate(benchmark(tmp_path, address, "base", **keys), "--json").code == 0
    out = (tmp_path / "out").rename(tmp_path / "base")
    for name, stop in (("stopped", "decided"), ("whole", None)):
        other = TwoSamples(lambda number: number % 10 == 2)
        gate = gate_file(tmp_path, margin=0.1, stop=stop)
        with chat_endpoint(other.answer, ["m"]) as address:
            config = benchmark(tmp_path, address, name, **keys)
            ran = evaluate(config, "--against", out, "--gate", gate, "--json")
        assert ran.code == 0, ran.err
        (pair,) = ran.document["comparison"]["pairs"]
        verdicts[name], sent[name] = pair["verdict"], ran.document["requests"]["sent"]
        assert set(other.asked.values()) == {2}
        assert sent[name] == 2 * len(other.asked)
        if stop:
            asked = manifest(tmp_path)["stopped"]["asked_items"]
            looks = [run for run in manifest(tmp_path)["task_runs"] if run["stage"] == "decide"]
            assert len(other.asked) == asked == pair["n_base"]
            assert looks
    assert verdicts == {"stopped": "pass", "whole": "pass"}
    assert sent["stopped"] < sent["whole"] == 800


def choices(folder: Path) -> Path:
    """Colours, of which the built-in demo model says how likely they are."""
    colours = ["red", "green", "blue", "grey"]
    rows = ({"question": f"{n}, what colour?", "choices": colours, "answer": n % 4} for n in range(400))
    (folder / "colours.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": "colours", "output_type": "multiple_choice", "dataset": "colours.jsonl",
        "prompt_template": "{{question}}", "choices": "{{choices}}", "target": "{{answer}}",
        "metric_list": ["acc"], "models": [{"name": "m", "type": "demo"}],
        "statistics": {"bootstrap_iters": 1000},
    }  # fmt: skip
    path = folder / "colours.yaml"
    path.write_text(json.dumps(config))
    return path


def test_choices_by_their_likelihoods_stop_with_the_verdict_of_the_whole_run(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    config = choices(tmp_path)
    assert evaluate(config, "--store", tmp_path / "its store", "--json").code == 0
    base = (tmp_path / "out").rename(tmp_path / "base")
    verdicts, sent = {}, {}
    for name, stop in (("stopped", "decided"), ("whole", None)):
        gate = gate_file(tmp_path, margin=0.05, stop=stop)
        asks_anew = ("--store", tmp_path / f"store of {name}")
        ran = evaluate(config, "--against", base, "--gate", gate, *asks_anew, "--json")
        assert ran.code == 0, ran.err
        (pair,) = ran.document["comparison"]["pairs"]
        verdicts[name], sent[name] = pair["verdict"], ran.document["requests"]["sent"]
        if stop:
            assert manifest(tmp_path)["stopped"]["of_items"] == 400
            assert manifest(tmp_path)["stopped"]["asked_items"] == sent[name] / 4
    assert verdicts == {"stopped": "pass", "whole": "pass"}
    assert sent["stopped"] <= 0.5 * sent["whole"] == 0.5 * 4 * 400


def test_population_benchmark_by_command_asks_less_and_says_what_it_is_about(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    asked_of = {}
    with counting(four_of_five) as (address, _):
        assert evaluate(benchmark(tmp_path, address, "base", items=400), "--json").code == 0
    base = (tmp_path / "out").rename(tmp_path / "base")
    for population in ("items", "benchmark"):
        gate = gate_file(tmp_path, margin=0.05, stop={"when": "decided", "population": population})
        with counting(moved) as (address, asked):
            config = benchmark(tmp_path, address, population, items=400)
            ran = evaluate(config, "--against", base, "--gate", gate, "--json")
        asked_of[population] = len(asked)
        (pair,) = ran.document["comparison"]["pairs"]
        assert ("population: benchmark" in (pair["reason"] or "")) == (population == "benchmark")
        assert set(asked.values()) == {1}
    assert pair["verdict"] == "pass"
    assert ran.code == 0
    assert asked_of["benchmark"] < asked_of["items"]


def three(folder: Path, address: str, identity: str) -> Path:
    metrics = [{"metric": "exact_match", "alias": name} for name in "abc"]
    return benchmark(folder, address, identity, items=200, metric_list=metrics)


def test_where_one_of_three_pairs_is_never_decided_all_items_are_asked_once(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    """No item differs, and no number of such items excludes any loss at all."""
    terms = {"a,none": {}, "b,none": {}, "c,none": {"margin": 0}}
    gate = gate_file(tmp_path, margin=0.1, pairs=terms)
    with counting(four_of_five) as (address, asked):
        assert evaluate(three(tmp_path, address, "base"), "--json").code == 0
        base = (tmp_path / "out").rename(tmp_path / "base")
        ran = evaluate(three(tmp_path, address, "same"), "--against", base, "--gate", gate, "--json")
    assert ran.code == 0, ran.err
    assert len(asked) == 200
    assert set(asked.values()) == {2}  # once a run
    assert "stopped" not in manifest(tmp_path)
    assert [pair["verdict"] for pair in ran.document["comparison"]["pairs"]] == ["pass"] * 3
    looks = [run for run in manifest(tmp_path)["task_runs"] if run["stage"] == "decide"]
    assert len(looks) == 15  # from 50 of 200 items on, in twenty blocks, and none on all
    again = evaluate(three(tmp_path, address, "same"), "--against", base, "--gate", gate, "--json")
    assert again.document["requests"]["sent"] == 0
    assert again.steps("decide") == (0, 15)


def test_a_metric_without_a_sequence_has_everything_asked_and_a_sentence_says_so(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    metrics = ["exact_match", "bleu"]
    with counting(four_of_five) as (address, asked):
        config = benchmark(tmp_path, address, "base", items=100, metric_list=metrics)
        assert evaluate(config, "--json").code == 0
        base = (tmp_path / "out").rename(tmp_path / "base")
        candidate = benchmark(tmp_path, address, "same", items=100, metric_list=metrics)
        gate = gate_file(tmp_path, margin=0.1)
        planned = evaluate(candidate, "--against", base, "--gate", gate, "--dry-run", "--json")
        ran = evaluate(candidate, "--against", base, "--gate", gate, "--json")
    said = "gate: stop: all items of sums are asked: 'bleu,none' is no mean of its items' numbers"
    assert said in planned.document["warnings"]
    assert planned.document["stopping"] is None
    assert said in ran.err
    assert set(asked.values()) == {2}
    assert "stopping" not in manifest(tmp_path)


def test_of_three_pairs_that_differ_two_are_decided_early_and_all_items_are_asked_once(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    """One item in ten differs, as many gained as lost: a loss of more than nothing is never excluded."""
    terms = {"a,none": {}, "b,none": {"margin": 0.2}, "c,none": {"margin": 0}}
    gate = gate_file(tmp_path, margin=0.15, pairs=terms)
    with counting(four_of_five) as (address, _):
        assert evaluate(three(tmp_path, address, "base"), "--json").code == 0
    base = (tmp_path / "out").rename(tmp_path / "base")
    with counting(moved) as (address, asked):
        ran = evaluate(three(tmp_path, address, "moved"), "--against", base, "--gate", gate, "--json")
    assert len(asked) == 200
    assert set(asked.values()) == {1}
    assert "stopped" not in manifest(tmp_path)
    found = {pair["metric"]: pair for pair in ran.document["comparison"]["pairs"]}
    assert [found[name]["verdict"] for name in "abc"] == ["pass", "pass", "inconclusive"]
    assert {len(pair["flipped"]) for pair in found.values()} == {20}
    looks = [run for run in manifest(tmp_path)["task_runs"] if run["stage"] == "decide"]
    assert len(looks) == 15


@pytest.mark.parametrize(
    ("metric", "why"),
    [("perplexity", "is no mean of its items' numbers"), ("logprob", "has no bounds")],
)
def test_a_number_without_bounds_has_everything_asked_and_says_why(
    evaluate: Evaluate, tmp_path: Path, metric: str, why: str
) -> None:
    rows = (json.dumps({"question": f"{n} and", "answer": f" {n + 1}"}) for n in range(80))
    (tmp_path / "items.jsonl").write_text("\n".join(rows))
    config = {
        "name": "sums", "output_type": "loglikelihood", "dataset": "items.jsonl", "target": "{{answer}}",
        "prompt_template": "{{question}}", "metric_list": [metric],
        "models": [{"name": "m", "type": "demo"}], "statistics": {"bootstrap_iters": 1000},
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    assert evaluate(path, "--store", tmp_path / "its store", "--json").code == 0
    base = (tmp_path / "out").rename(tmp_path / "base")
    ran = evaluate(path, "--against", base, "--gate", gate_file(tmp_path, margin=0.5), "--json")
    assert f"gate: stop: all items of sums are asked: '{metric},none' {why}" in ran.err
    assert ran.document["requests"]["sent"] == 80
    assert "stopping" not in manifest(tmp_path)


def test_a_plan_says_which_share_is_expected(baseline: Path, evaluate: Evaluate, tmp_path: Path) -> None:
    with counting(four_of_five) as (address, asked):
        config = benchmark(tmp_path, address, "planned")
        gate = gate_file(tmp_path, margin=0.05)
        ran = evaluate(config, "--against", baseline, "--gate", gate, "--dry-run", "--json")
    assert ran.code == 0, ran.err
    expected = ran.document["stopping"]
    for name, share in expected["shares"].items():
        assert 0.05 <= share < 1
        assert expected["requests"][name] == round(share * ITEMS)
    assert "where nothing moved (and 10% of the items differ)" in expected["said"]
    assert ran.document["requests"]["to_send"] == ITEMS  # the most
    assert not asked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--against", "nobody"), "--against RUN and --gate GATE.yaml belong together"),
        (("--against", "nobody", "--gate", "gate.yaml"), "'nobody' is neither an output folder nor a run"),
    ],
)
def test_what_a_run_can_not_be_held_against_is_refused(
    evaluate: Evaluate, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    gate = gate_file(tmp_path)
    named = [str(gate) if argument == "gate.yaml" else argument for argument in arguments]
    ran = evaluate(benchmark(tmp_path, "http://127.0.0.1:9/v1", "base", items=2), *named)
    assert ran.code == 2
    assert said in ran.err


@pytest.mark.services
def test_a_run_that_is_killed_goes_on_asks_nothing_twice_and_decides_the_same(
    baseline: Path, own_environment: dict[str, str], evaluate: Evaluate, tmp_path: Path
) -> None:
    """Killed while its 120th question is asked, which nobody answers."""
    killed: list[int] = []
    answered: Counter[str] = Counter()
    process: list[subprocess.Popen[bytes]] = []

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        question = body["messages"][-1]["content"]
        if len(answered) == 120 and not killed:
            killed.append(process[0].pid)
            process[0].kill()
            process[0].wait()
            return says("nobody hears this")
        answered[question] += 1
        number = int(question.partition("+")[0])
        return says(str(number + 1) if four_of_five(number) else "no idea")

    gate = gate_file(tmp_path)
    with chat_endpoint(answer, ["m"]) as address:
        config = benchmark(tmp_path, address, "killed")
        model = json.loads(config.read_text())
        model["models"][0]["config"]["max_concurrency"] = 1
        config.write_text(json.dumps(model))
        arguments = [config, "--against", baseline, "--gate", gate]
        arguments += ["--store", tmp_path / "store", "--output", tmp_path / "out"]
        command = [sys.executable, "-m", "flows.eval", *map(str, arguments)]
        with (tmp_path / "log").open("wb") as log:
            process.append(
                subprocess.Popen(command, cwd=PROJECT, env=own_environment, stdout=log, stderr=log)
            )
            process[0].wait(timeout=240)
        assert killed, (tmp_path / "log").read_text()
        ran = evaluate(*arguments, "--json")
    assert ran.code == 0, ran.err
    assert set(answered.values()) == {1}
    assert ran.document["requests"]["sent"] < len(answered)
    assert manifest(tmp_path)["stopped"]["asked_items"] == len(answered)
    (pair,) = ran.document["comparison"]["pairs"]
    assert pair["verdict"] == "pass"


MOMENTS = tuple(
    (count + random.Random(39 + count).randrange(20), random.Random(count).random() / 2)
    for count in (30, 60, 75, 90, 105, 120)
)
"""After how many answers, and how many seconds later, a run is killed: between two blocks there is a look."""


def numbers_of(folder: Path) -> dict[str, Any]:
    """What a run says in results.json, but for when it ran, and what of its answers it asked for itself."""
    said = json.loads((folder / "results.json").read_text())
    return {name: said[name] for name in said.keys() - {"date", "run_id", "requests"}}


@pytest.mark.services
@pytest.mark.parametrize(
    ("after", "later"),
    [pytest.param(*one, marks=pytest.mark.nights if at % 2 else []) for at, one in enumerate(MOMENTS)],
)
def test_a_run_that_is_killed_at_any_moment_says_what_an_undisturbed_one_says(
    own_environment: dict[str, str], evaluate: Evaluate, tmp_path: Path, after: int, later: float
) -> None:
    """With four requests in flight, and from the fourth look on between and in the decisions."""
    process: list[subprocess.Popen[bytes]] = []
    asked: Counter[str] = Counter()
    gate = gate_file(tmp_path, margin=0.1)

    def answer(body: dict[str, Any]) -> dict[str, Any]:
        question = body["messages"][-1]["content"]
        asked[question] += 1
        if process and len(asked) == after:
            threading.Timer(later, process[0].kill).start()
        number = int(question.partition("+")[0])
        return says(str(number + 1) if moved(number) else "no idea")

    with counting(four_of_five) as (address, _):
        assert evaluate(benchmark(tmp_path, address, "base", items=400), "--json").code == 0
    base = (tmp_path / "out").rename(tmp_path / "base")
    with chat_endpoint(answer, ["m"]) as address:
        config = benchmark(tmp_path, address, "killed", items=400)
        content = json.loads(config.read_text())
        content["models"][0]["config"]["max_concurrency"] = 4
        config.write_text(json.dumps(content))
        arguments = [config, "--against", base, "--gate", gate]
        own_store = ["--store", tmp_path / "store beside", "--output", tmp_path / "beside"]
        beside = evaluate(*arguments, *own_store, "--json")
        undisturbed = set(asked)
        asked.clear()
        arguments += ["--store", tmp_path / "store", "--output", tmp_path / "out"]
        command = [sys.executable, "-m", "flows.eval", *map(str, arguments)]
        with (tmp_path / "log").open("wb") as log:
            process.append(
                subprocess.Popen(command, cwd=PROJECT, env=own_environment, stdout=log, stderr=log)
            )
            process[0].wait(timeout=240)
        assert process[0].returncode == -signal.SIGKILL, (tmp_path / "log").read_text()
        ran = evaluate(*arguments, "--json")
    assert ran.code == beside.code == 0, ran.err
    assert set(asked) == undisturbed
    assert sum(asked.values()) - len(asked) <= 4
    assert ran.document["comparison"]["pairs"] == beside.document["comparison"]["pairs"]
    assert manifest(tmp_path)["stopped"]["asked_items"] == len(asked) > after
    assert numbers_of(tmp_path / "out") == numbers_of(tmp_path / "beside")


def test_nights_stop_are_no_baseline_and_every_second_asks_all(
    suite_night: Callable[..., Any], tmp_path: Path
) -> None:
    gate = {"margin": 0.1, "stop": {"when": "decided", "blocks": 10, "full_every": 2}}
    with counting(four_of_five) as (address, _):
        config = benchmark(tmp_path, address, "base", items=300)
        suite = {"name": "stops", "benchmarks": [config.name], "gate": gate, "answers": "fresh", "seed": 3}
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        nights = [suite_night(tmp_path / "suite.yaml") for _ in range(4)]
    assert [night.code for night in nights] == [0] * 4, nights[-1].err
    documents = [night.document for night in nights]
    told = [document["evaluations"][0]["stopped"] for document in documents]
    assert [bool(entry) for entry in told] == [False, True, False, True]
    assert told[1] == told[3]
    assert told[1]["asked_items"] < 300
    assert documents[1]["evaluations"][0]["requests"]["sent"] == told[1]["asked_items"]
    first, second, third = (document["run_id"] for document in documents[:3])
    assert documents[1]["baseline"] == documents[2]["baseline"] == [first]
    assert documents[3]["baseline"] == [third]
    said = f"{told[1]['asked_items']} of 300 items, stopped: decided"
    assert said in documents[1]["headline"]
    pages = {page.name: page.read_text() for page in (tmp_path / "night-2").rglob("*.html")}
    assert {name for name, page in pages.items() if said in page} == {"suite.html", "report.html"}
    glanced = {glance.run_id: glance for glance in glances(Store(str(tmp_path / "store"))).runs}
    run = glanced[documents[1]["evaluations"][0]["run_id"]]
    assert run.stopped == said
    assert {score.n_items for score in run.scores} == {told[1]["asked_items"]}
    found = query(Store(str(tmp_path / "store")), f"SELECT count(*) FROM items WHERE run_id = '{run.run_id}'")
    assert found.rows == [(told[1]["asked_items"],)]
    with pytest.raises(ConfigError, match="stopped before it had asked all items"):
        accept(Store(str(tmp_path / "store")), second, "as it should be", "somebody")


def test_equal_nights_that_asked_all_in_blocks_pass_one_after_the_other(
    suite_night: Callable[..., Any], tmp_path: Path
) -> None:
    with counting(four_of_five) as (address, _):
        config = benchmark(tmp_path, address, "base", items=60)
        suite = {"name": "stops", "benchmarks": [config.name], "answers": "fresh"}
        suite["gate"] = {"margin": 0.02, "stop": {"when": "decided", "blocks": 4}}
        (tmp_path / "suite.yaml").write_text(json.dumps(suite))
        nights = [suite_night(tmp_path / "suite.yaml").document for _ in range(3)]
    assert [night["verdict"] for night in nights] == [None, "pass", "pass"]
    assert [night["baseline"] for night in nights[1:]] == [[night["run_id"]] for night in nights[:2]]
    assert not any(night["evaluations"][0]["stopped"] for night in nights)


def test_by_default_every_seventh_night_asks_all_whoever_tried_fewer_items_between(tmp_path: Path) -> None:
    config = benchmark(tmp_path, "http://127.0.0.1:9/v1", "base", items=2)
    suite = {"name": "stops", "benchmarks": [config.name], "gate": {"stop": "decided"}}
    (tmp_path / "suite.yaml").write_text(json.dumps(suite))
    options = SuiteOptions(store=str(tmp_path / "store"), output=str(tmp_path / "out"))
    planned = plan_night(load_suite(tmp_path / "suite.yaml"), options, "tonight")

    def night(stopped: bool, limit: int | None = None) -> Night:
        how = {"asked_items": 1, "of_items": 2, "why": "decided"} if stopped else None
        entry = NightEvaluation(name="sums", run_id="r", ok=True, message="", stopped=how)
        about = {"run_id": "n", "suite": "stops", "started": 1.0, "ended": True, "limit": limit}
        return Night.model_construct(**about, evaluations=(entry,))

    whole = night(stopped=False)
    lost = (NightEvaluation(name="sums", run_id="r", ok=False, message="Crashed"),)
    tried = night(stopped=False, limit=1)
    for nights in range(9):
        past = [whole, *[night(stopped=True)] * nights, tried]
        (entry,) = may_stop(planned, past, [whole]).evaluations
        assert (entry.options.against is not None) == (nights < 6)
    crashed = [night(stopped=False).model_copy(update={"evaluations": entries}) for entries in ((), lost)]
    for nights in range(9):
        past = [whole, *[night(stopped=True)] * nights, *crashed]
        (entry,) = may_stop(planned, past, [whole]).evaluations
        assert (entry.options.against is not None) == (nights < 4)
    (first,) = may_stop(planned, [], None).evaluations
    assert first.options.against is None
