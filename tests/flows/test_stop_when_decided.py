"""A run that stops asking once its gate is decided: by command, against an endpoint that counts."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.accept import accept
from metrics.errors import ConfigError
from tasks.store.storage import Store
from tests.flows.endpoints import chat_endpoint, says

PROJECT = Path(__file__).resolve().parents[2]
ITEMS = 1000
Evaluate = Callable[..., Any]


def benchmark(folder: Path, address: str, identity: str, items: int = ITEMS, **keys: Any) -> Path:
    """Sums, asked of the model at ``address``, whose answers are kept under ``identity``."""
    rows = (json.dumps({"question": f"{n}+1", "answer": str(n + 1), "passage": n // 4}) for n in range(items))
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
    assert f"{told[1]['asked_items']} of 300 items, stopped: decided" in documents[1]["headline"]
    with pytest.raises(ConfigError, match="stopped before it had asked all items"):
        accept(Store(str(tmp_path / "store")), second, "as it should be", "somebody")
