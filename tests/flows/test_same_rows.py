"""The same rows wherever a run is computed, and on both sides of every amount that decides its way.

A way is a runner, a kind of benchmark, and a side of each ``Threshold`` of the source. The amounts are those
that a first run of the kind compares with its thresholds: ``over`` is just below the largest of them,
``beyond`` below the smallest. A threshold that nothing is compared with is the size of pieces: ``over`` is a
few rows.
"""

import ast
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tasks.sandboxes.run import trouble
from tasks.store.thresholds import Threshold

Evaluate = Callable[..., Any]
PROJECT = Path(__file__).resolve().parents[2]
RECORDINGS = PROJECT.parent / "shared" / "data" / "gsm8k" / "example_model_solutions.jsonl"
RUNNERS = {
    "no option": [],
    "one worker": ["--workers", "1"],
    "threads": ["--task-runner", "threads"],
    "two workers": ["--workers", "2"],
    "processes": ["--task-runner", "processes"],
    "dask": ["--task-runner", "dask"],
}
IN_SERVICES = ("threads", "two workers", "processes", "dask")
ITEMS = 24
PIECE = 7
"""Rows of a piece where pieces are small: no divisor of the number of items."""

# What there is to try


def sources(naming: str = "") -> Iterator[tuple[str, ast.Module]]:
    """The modules of flows and tasks whose text has ``naming``: each worker parses them as it collects."""
    for path in sorted(path for root in ("flows", "tasks") for path in (PROJECT / root).rglob("*.py")):
        if naming in (text := path.read_text("utf-8")):
            yield ".".join(path.relative_to(PROJECT).with_suffix("").parts), ast.parse(text)


def constants(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            yield target.id, node.value


@dataclass(frozen=True)
class Place:
    """Where a threshold is declared, and whether its module compares something with it."""

    module: str
    constant: str
    compared: bool


def declared() -> dict[str, Place]:
    found: dict[str, Place] = {}
    for module, tree in sources(Threshold.__name__):
        compared = {
            side.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Compare)
            for side in (node.left, *node.comparators)
            if isinstance(side, ast.Name)
        }
        for constant, value in constants(tree):
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "Threshold":
                name = ast.literal_eval(value.args[0])
                assert name not in found, f"two thresholds are called {name}"
                found[name] = Place(module, constant, constant in compared)
    return found


THRESHOLDS = declared()
OF_AN_AMOUNT = re.compile(r"(ITEMS|ROWS|BYTES|RESPONSES|REQUESTS|SAMPLES|KEYS|GROUPS?|BATCH|CHUNK|AT_ONCE)$")
NO_OTHER_WAY = {
    "what is shown or said of a run": (
        "flows.config.checks.NAMED_ITEMS", "flows.suite.words.ROWS", "tasks.publish.TABLE_ROWS",
        "tasks.benchmarks.lm_eval.trial.ROWS", "tasks.models.answers.first.FIRST_ITEMS",
        "tasks.models.answers.first.FIRST_REQUESTS", "tasks.reduction.aggregate.NAMED_ITEMS",
        "tasks.reporting.page.BLOCK_BYTES", "tasks.reporting.report.PROBE_BYTES",
        "tasks.store.reasons.MOST_ROWS",
    ),
    "part of what a number means": (
        "flows.power.SAMPLES", "tasks.usercode.surroundings.BATCH",
    ),
    "no evaluation comes there": (
        "flows.server.boundary.CODES_AT_ONCE", "tasks.comparison.matching.BATCH",
        "tasks.models.answers.segments.MERGED_BYTES", "tasks.models.answers.segments.ROW_GROUP",
    ),
    "a limit of what may be used": (
        "tasks.sandboxes.killable.MEMORY_BYTES", "tasks.benchmarks.recorded.inspect_log.SAMPLE_BYTES",
    ),
    "a length of a digest": (
        "tasks.models.answers.journal.KEY_BYTES", "tasks.models.answers.segments.KEY_BYTES",
    ),
    "an amount of another program's": (
        "tasks.models.demo.protocol.BYTES_A_TOKEN", "tasks.publishers.mlflow.AT_ONCE",
        "tasks.publishers.otlp.AT_ONCE",
    ),
}  # fmt: skip


def test_every_constant_that_is_an_amount_of_data_is_a_threshold() -> None:
    known = {name for names in NO_OTHER_WAY.values() for name in names}
    forgotten = []
    for module, tree in sources():
        for constant, value in constants(tree):
            numbers = (ast.Constant, ast.BinOp)
            if not OF_AN_AMOUNT.search(constant) or not isinstance(value, numbers):
                continue
            if isinstance(value, ast.Constant) and not isinstance(value.value, int):
                continue
            if f"{module}.{constant}" not in known:
                forgotten.append(f"{module}.{constant}")
    assert forgotten == [], "make each a Threshold, or say in NO_OTHER_WAY why its two sides are one"


Way = Mapping[str, str]


def pairwise(factors: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Few ways that have every pair of values of two factors among them, the same at every call."""
    names = list(factors)
    open_pairs = {
        ((one, value), (other, second)): None
        for one, other in combinations(names, 2)
        for value, second in product(factors[one], factors[other])
    }
    ways = []
    while open_pairs:
        way = dict(next(iter(open_pairs)))
        for name in names:
            if name not in way:
                way[name] = max(
                    factors[name],
                    key=lambda value: sum(pair in open_pairs for pair in pairs_of(names, way, name, value)),
                )
        for pair in combinations(((name, way[name]) for name in names), 2):
            open_pairs.pop(pair, None)
        ways.append({name: way[name] for name in names})
    return ways


def pairs_of(
    names: Sequence[str], way: Mapping[str, str], name: str, value: str
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """The pairs that a value would make with those that the way has, the factors in their order."""
    for other in names:
        if other in way:
            first, second = sorted(
                [(other, way[other]), (name, value)], key=lambda pair: names.index(pair[0])
            )
            yield first, second


def test_pairwise_ways_have_every_pair() -> None:
    factors = {"a": "12345", "b": "xyz", "c": "uv", "d": "pq"}
    ways = pairwise(factors)
    for one, other in combinations(factors, 2):
        met = {(way[one], way[other]) for way in ways}
        assert met == set(product(factors[one], factors[other]))
    assert len(ways) < 20


# The kinds of benchmark

OWN_METRIC = """
def right(references, predictions):
    return float(predictions[0] in references)
"""


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def text(folder: Path) -> dict[str, Any]:
    """Recorded texts of two models, two a question and some missing; a metric of the user's own."""
    questions = [
        {"id": f"q{n}", "question": f"{n}? " + "so " * n, "answer": str(n % 7), "kind": "ab"[n % 2]}
        for n in range(ITEMS)
    ]
    lines(folder / "items.jsonl", questions)
    said = [
        {"item_id": f"q{n}", "model_name": model, "sample_index": sample,
         "response": f"It is {(n + sample) % size}."}
        for model, size in (("small", 3), ("large", 7))
        for n in range(ITEMS)
        for sample in range(2)
        if (n, sample) != (5, 1)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(said), folder / "said.parquet", row_group_size=10)
    (folder / "own.py").write_text(OWN_METRIC)
    regex = {"function": "regex", "regex_pattern": r"(\d+)"}
    return {
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "filter_list": [
            {"name": "number", "filter": [regex], "metric_list": ["exact_match", {"metric": "own.py:right"}]},
            {"name": "none", "metric_list": ["bleu", "chrf", "rougeL"]},
        ],
        "sample_params": {"num_samples": 2},
        "models": [
            {"name": name, "type": "replay", "config": {"path": "said.parquet"}}
            for name in ("small", "large")
        ],
        "facets": ["model_name", "item.kind"],
        "errors": {"max_rate": 0.1},
    }


def choices(folder: Path) -> dict[str, Any]:
    """Log-likelihoods of choices that a model is asked for, from a Parquet file."""
    rows = [
        {"id": f"c{n}", "statement": f"{n} and {n % 5} are", "choices": [str(n + m) for m in (0, n % 5, 9)],
         "answer": n % 3, "subject": "xyz"[n % 3]}
        for n in range(ITEMS)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / "items.parquet")
    return {
        "output_type": "multiple_choice",
        "dataset": "items.parquet",
        "prompt_template": "{{statement}}",
        "choices": "{{choices}}",
        "target": "{{answer}}",
        "models": [{"name": "demo", "type": "demo", "config": {"api": "completions"}}],
        "metric_list": ["acc", "acc_norm", "acc_mutual_info", "brier_score"],
        "facets": ["model_name", "item.subject"],
    }


def judge(folder: Path) -> dict[str, Any]:
    """Conversations of two turns, graded by a model that other answers have calibrated."""
    things = ("apples", "pears", "pens", "coins")
    rows = [
        {"id": f"j{n}", "question": f"Ann has {n} {thing}. She buys 3 {thing}. How many {thing} has she now?",
         "answer": str(n + 3)}
        for n in range(ITEMS)
        for thing in [things[n % 4]]
    ]  # fmt: skip
    lines(folder / "items.jsonl", rows)
    people = [
        {"human": n % 3 != 0, "question": f"{n}?", "reference": "4", "response": "4" if n % 4 else "5"}
        for n in range(12)
    ]
    lines(folder / "people.jsonl", people)
    return {
        "dataset": "items.jsonl",
        "prompt_template": "Question: {{question}}",
        "turns": ["You said {{answer}}. Question: {{question}}"],
        "target": "{{answer}}",
        "models": [{"name": "demo", "type": "demo", "config": {"error_rate": 0.5}}],
        "metric_list": ["exact_match"],
        "scorer": {
            "type": "llm_judge",
            "judges": [{"name": "judge", "type": "demo", "config": {"error_rate": 0.3}}],
            "system_prompt": "You grade.",
            "prompt": "Reference: {{ reference }}\nResponse: {{ response }}\n"
            'Reply with either "correct" or "incorrect".\nGrade:',
            "parse": {"type": "choice", "choices": {"correct": 1, "incorrect": 0}},
            "calibration": "people.jsonl",
        },
    }


def programs(folder: Path) -> dict[str, Any]:
    """Programs, two a problem, run by their tests."""
    bodies = ("return a + b", "return b + a", "return a - b")
    rows = [
        {"id": f"p{n}", "prompt": f"add {n}", "test": f"assert add({n}, 2) == {n + 2}",
         "answers": [f"def add(a, b):\n    {bodies[(n + m) % 3]}" for m in range(2)]}
        for n in range(PIECE + 2)
    ]  # fmt: skip
    lines(folder / "items.jsonl", rows)
    return {
        "dataset": "items.jsonl",
        "prompt_template": "{{prompt}}",
        "models": [{"name": "recorded", "type": "replay", "config": {"field": "answers"}}],
        "sample_params": {"num_samples": 2},
        "metric_list": [{"metric": "tests_passed", "reduction": ["pass@1", "pass@2"]}],
        "scorer": {
            "type": "execution",
            "program": "{{ prediction }}\n{{ test }}",
            "limits": {"seconds": 60},
        },
    }


KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    kind.__name__: kind for kind in (text, choices, judge, programs)
}


def write(kind: str, folder: Path) -> Path:
    if kind == "programs" and (reason := trouble("bubblewrap")) is not None:
        pytest.skip(f"no sandbox works here: {reason}")
    folder.mkdir()
    path = folder / f"{kind}.yaml"
    path.write_text(yaml.safe_dump({"name": kind, **KINDS[kind](folder)}), encoding="utf-8")
    return path


# What a run left

OF_ONE_RUN = {
    "run_id", "inference_time", "timestamp", "timestamp_unix", "tokens_per_second", "response_id",
}  # fmt: skip
"""Times, and ids that are given anew."""


def rows_of(output: Path, kind: str, place: Path) -> dict[str, list[Any]]:
    """The rows of results, items, responses and samples; times, ids and the benchmark's own folder aside."""
    tables = {name: pq.read_table(output / f"{name}.parquet").to_pylist() for name in ("results", "items")}
    files = {
        name: [json.loads(line) for line in (output / name).read_text("utf-8").splitlines()]
        for name in ("responses.jsonl", f"samples_{kind}.jsonl")
    }
    manifest = (output / "manifest.json").read_text("utf-8").replace(f"{place}/", "")
    findings = json.loads(manifest)["diagnostics"]
    return {name: without(rows) for name, rows in {**tables, **files, "findings": findings}.items()}


def without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without(entry) for key, entry in value.items() if key not in OF_ONE_RUN}
    return [without(entry) for entry in value] if isinstance(value, list) else value


def differences(one: Any, other: Any, at: str = "") -> list[str]:
    """Where two values are not the same, numbers to 1e-12."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one for found in differences(one[key], other[key], f"{at}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for n, pair in pairs for found in differences(*pair, f"{at}[{n}]")]
    if isinstance(one, float) and isinstance(other, float):
        same = math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12) or (
            math.isnan(one) and math.isnan(other)
        )
    else:
        same = one == other
    return [] if same else [f"{at}: {one!r} and {other!r}"]


def test_rows_that_differ_are_told() -> None:
    one = {"results": [{"value": 0.5, "run_id": "a", "n": 3}]}
    assert (
        differences(without(one), without({"results": [{"value": 0.5 + 1e-14, "run_id": "b", "n": 3}]})) == []
    )
    assert differences(without(one), without({"results": [{"value": 0.5 + 1e-9, "n": 3}]})) == [
        ".results[0].value: 0.5 and 0.500000001"
    ]
    assert differences(one, {"results": []})


# The first run of a kind


@dataclass(frozen=True)
class First:
    """The rows of a kind's first run, and what it compared with each threshold."""

    rows: dict[str, list[Any]]
    amounts: dict[str, list[int]]

    def setting(self, way: Way) -> str:
        """The thresholds of a way, as a process is told them."""
        amounts = {name: self.amount(name, side) for name, side in way.items() if name in THRESHOLDS}
        return ",".join(f"{name}={amount}" for name, amount in amounts.items() if amount is not None)

    def amount(self, name: str, side: str) -> int | None:
        found = self.amounts.get(name)
        if found is None:
            return PIECE if side != "under" else None
        return {"under": max(found) + 1, "over": max(1, max(found) - 1), "beyond": max(1, min(found) - 1)}[
            side
        ]


@pytest.fixture(scope="module")
def firsts() -> dict[str, First]:
    return {}


@pytest.fixture
def first(
    firsts: dict[str, First], evaluate: Evaluate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], First]:
    """The first run of a kind, made once a file."""

    def call(kind: str) -> First:
        if kind not in firsts:
            path, output = write(kind, tmp_path / f"first-{kind}"), tmp_path / f"first-{kind}-out"
            with monkeypatch.context() as patch:
                amounts = recorded(patch)
                ran = evaluate(path, "--json", "--store", f"{output}-store", "--output", output)
            assert ran.code == 0, ran.err
            firsts[kind] = First(rows_of(output, kind, path.parent), dict(amounts))
        return firsts[kind]

    return call


def recorded(patch: pytest.MonkeyPatch) -> Mapping[str, list[int]]:
    """By threshold, what it is compared with from now on."""
    names = {
        id(getattr(import_module(place.module), place.constant)): name for name, place in THRESHOLDS.items()
    }
    amounts: dict[str, list[int]] = defaultdict(list)

    def comparing(method: str) -> Callable[[Threshold, Any], Any]:
        plain = getattr(int, method)

        def compare(self: Threshold, other: Any) -> Any:
            if isinstance(other, int) and id(self) in names:
                amounts[names[id(self)]].append(int(other))
            return plain(self, other)

        return compare

    for method in ("__lt__", "__le__", "__gt__", "__ge__"):
        patch.setattr(Threshold, method, comparing(method), raising=False)
    return amounts


# The ways


def sides(name: str) -> tuple[str, ...]:
    return ("under", "over", "beyond") if THRESHOLDS[name].compared else ("under", "over")


FACTORS = {"runner": [*RUNNERS], "kind": [*KINDS], **{name: sides(name) for name in THRESHOLDS}}
FEW = pairwise(FACTORS)


def every_way() -> Iterator[dict[str, str]]:
    """Each runner and kind with all thresholds on one side, with each alone on the other, and in pieces."""
    under = dict.fromkeys(THRESHOLDS, "under")
    pieces = {name: "over" for name, place in THRESHOLDS.items() if not place.compared}
    alone = [{**under, name: "over"} for name in THRESHOLDS if name not in pieces]
    alone.append({**under, **pieces})
    together = [{name: sides(name)[level] for name in THRESHOLDS} for level in (0, 1, -1)]
    for runner, kind, chosen in product(RUNNERS, KINDS, [*together, *alone]):
        yield {"runner": runner, "kind": kind, **chosen}


def parameters(ways: Sequence[Way], *marks: Any) -> list[Any]:
    return [
        pytest.param(
            way,
            id=f"{number}-{way['runner']}-{way['kind']}".replace(" ", "_"),
            marks=marks or ([pytest.mark.services] if way["runner"] in IN_SERVICES else []),
        )
        for number, way in enumerate(ways)
    ]


@pytest.mark.parametrize("way", [*parameters(FEW), *parameters([*every_way()], pytest.mark.slow)])
def test_every_way_gives_the_same_rows(
    way: Way, first: Callable[[str], First], evaluate_process: Evaluate, tmp_path: Path
) -> None:
    expected = first(way["kind"])
    setting = expected.setting(way)
    ran = evaluate_process(
        write(way["kind"], tmp_path / "benchmark"), "--json", *RUNNERS[way["runner"]],
        env={"NIGHTJAR_THRESHOLDS": setting}, timeout=600,
    )  # fmt: skip
    assert ran.code == 0, f"{way['runner']}, {setting}: {ran.out}{ran.err}"
    assert not re.search("warning|error:|Traceback", ran.err), ran.err  # a slow run says how far it is
    found = differences(expected.rows, rows_of(tmp_path / "out", way["kind"], tmp_path / "benchmark"))[:5]
    assert found == [], f"{way['runner']}, {setting}: {found[0][:1000]}"


LOOKED_AT_BY_THE_CLOCK = {"bytes_flushed"}
"""Compared by what looks in now and then: not in a run that ends before."""


def test_a_run_comes_to_every_threshold_that_is_compared(
    first: Callable[[str], First],
) -> None:
    ways = [first(kind).amounts for kind in KINDS if kind != "programs"]
    met = {name for amounts in ways for name in amounts}
    expected = {name for name, place in THRESHOLDS.items() if place.compared} - LOOKED_AT_BY_THE_CLOCK
    assert expected - met == set(), "no kind comes to these: add what does"


# Recordings of others

RIGHT = {"6b_finetuning": 286, "6b_verification": 515, "175b_finetuning": 458, "175b_verification": 742}


@pytest.mark.services
@pytest.mark.skipif(not RECORDINGS.is_file(), reason=f"the recordings are not there: {RECORDINGS}")
@pytest.mark.parametrize("runner", ["one worker", "processes"])  # the ways above have all runners
def test_recorded_solutions_are_right_as_often_in_partitions_and_by_processes(
    runner: str, evaluate_process: Evaluate, tmp_path: Path
) -> None:
    config = yaml.safe_load((PROJECT / "deployments/benchmarks/gsm8k/recorded.yaml").read_text("utf-8"))
    config["dataset"]["path"] = str(RECORDINGS)
    config["filter_list"] = config["filter_list"][:1]
    (tmp_path / "recorded.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    # In partitions and by processes, as millions of rows are.
    ran = evaluate_process(
        tmp_path / "recorded.yaml", "--json", *RUNNERS[runner], timeout=600,
        env={"NIGHTJAR_THRESHOLDS": "items_uncut=1,responses_for_processes=1"},
    )  # fmt: skip
    assert ran.code == 0, ran.err
    for model, count in RIGHT.items():
        rate = ran.value("exact_match,final-answer", model)
        assert rate * 1319 == pytest.approx(count, abs=1e-9), model
