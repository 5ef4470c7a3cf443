"""The two-phase framework's files run as they lie there and give the numbers that it recorded itself."""

import json
import random
import runpy
import shutil
import statistics
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.flows.endpoints import chat_endpoint, says

PROJECT = Path(__file__).resolve().parents[2]
COPY = PROJECT / "tests" / "fixtures" / "two-phase"
SHARED = PROJECT.parent / "shared" / "data" / "two-phase"
COUNTED = ("facets", "label", "metric_name")
Evaluate = Callable[..., Any]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def group_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """Which number a row is: the framework writes facet values as text."""
    return (row["metric_name"], row["label"], *(f"{facet}={row[facet]}" for facet in row["facets"]))


def test_the_copy_is_what_was_given() -> None:
    if not SHARED.is_dir():
        pytest.skip(f"{SHARED} is not there; the project's own copy of it is tested")
    given = [path.relative_to(SHARED) for path in SHARED.rglob("*") if path.is_file()]
    assert given
    for name in given:
        assert (COPY / name).read_bytes() == (SHARED / name).read_bytes(), name


def test_every_recorded_number_is_reached(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(COPY / "config.yaml")
    assert ran.code == 0, ran.err
    ours = {group_of(row): row for row in lines(tmp_path / "out" / "metrics.jsonl")}
    recorded = lines(COPY / "recorded_metrics.jsonl")
    assert {group_of(row) for row in recorded} == set(ours)
    for row in recorded:
        own = ours[group_of(row)]
        assert FIELDS["metrics.jsonl"] <= set(own)
        assert own["facets"] == row["facets"]
        for key, value in row.items():
            if key not in (*COUNTED, *row["facets"]):
                assert own[key] == pytest.approx(value, abs=1e-12), (group_of(row), key)
        headline = {"f1": row.get("f1")} if "f1" in row else row
        assert own["value"] in [pytest.approx(number) for number in headline.values() if _number(number)]
        assert own["status"] == "ok", own["error"]


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


@pytest.fixture
def endpoint() -> Iterator[str]:
    """A chat endpoint that answers with the last word of the prompt's first line."""

    def last_word(body: dict[str, Any]) -> dict[str, Any]:
        return says(body["messages"][-1]["content"].splitlines()[0].rpartition("q")[2])

    with chat_endpoint(last_word) as url:
        yield url


def test_the_framework_s_configs_run_phase_after_phase(
    evaluate: Evaluate, tmp_path: Path, endpoint: str
) -> None:
    """The first config asks, as its mode says; the second one, whose mode is evaluation, scores alone."""
    key = {"OPENAI_API_KEY": "none"}
    local = f"models.0={{name: local-one, endpoint: '{endpoint}'}}"
    places = ["--set", local, "--set", f"models.1.endpoint={endpoint}"]
    asked = evaluate(COPY / "configs" / "inference.yaml", *places, env=key)
    assert asked.code == 0, asked.err
    assert "inference.yaml:39: workflow.batch_size: has no meaning here" in asked.err
    responses = lines(tmp_path / "out" / "responses.jsonl")
    assert len(responses) == 7 * 6 * 2
    assert {row["total_samples"] for row in responses} == {6}
    assert {row["metadata"]["sampling"]["num_samples"] for row in responses} == {6}
    hosted = next(row for row in responses if row["model_name"] == "hosted")
    assert hosted["metadata"]["model_id"] == "some/model"
    assert hosted["metadata"]["sampling"]["max_tokens"] == 256
    assert lines(tmp_path / "out" / "evaluation_results.jsonl") == []
    whole = evaluate(COPY / "configs" / "inference.yaml", *places, "--phase", "all", "--json", env=key)
    assert whole.code == 0, whole.err
    assert whole.document["requests"]["sent"] == 0
    rows = lines(tmp_path / "out" / "metrics.jsonl")
    assert {row["metric_name"] for row in rows} == {"pass@2", "average", "weighted"}
    assert {row["value"] for row in rows if row["label"] == "exact"} >= {1.0}

    # A folder of its own: in the other one lie responses, of other models, that would be replayed.
    there = ["--set", f"models.0.endpoint={endpoint}", "--output", tmp_path / "second"]
    config = COPY / "configs" / "container.yaml"
    early = evaluate(config, *there)
    assert early.code == 2  # nothing is answered yet
    assert "container.yaml:3: models.0: no container is started: 'small-gguf' is asked at" in early.err
    assert evaluate(config, *there, "--phase", "infer").code == 0
    scored = evaluate(config, *there)
    assert scored.code == 0, scored.err
    rows = {(row["metric_name"], row["label"]): row for row in lines(tmp_path / "second" / "metrics.jsonl")}
    assert set(rows) == {("p95", "correctness"), ("p95", "cls"), ("classes", "cls")}
    assert rows["classes", "cls"]["num_trials"] == 6
    assert rows["classes", "cls"]["total_count"] == 42


def changed(folder: Path, tmp_path: Path, method: str, **more: Any) -> Path:
    """The config with another method, which stands in a file of its own, and three of the metrics."""
    (tmp_path / "own.py").write_text(method + "\n", encoding="utf-8")
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    config["dataset"] = str(folder / "dataset.jsonl")
    for model in config["models"]:
        model["config"]["path"] = str(folder / "responses.jsonl")
    config["evaluation_methods"] = [{"name": "j", "function": "own.py:judge"}, {"name": "short", **SHORT}]
    count = {"name": "sum", "function": f"{folder / 'methods.py'}:mycount", "facets": ["model_name"]}
    config["metrics"] = [{"name": "mean", "facets": ["model_name"]}, count]
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(config | more), encoding="utf-8")
    return path


SHORT = {"type": "length_check", "params": {"max_length": 100}}
RAISES = "def judge(response, **params):\n    raise KeyError('no such key')"
UNREADABLE = "def judge(response, **params):\n    return {'label': {'description': 'x'}, 'result': {}}"
OFTEN = "def judge(response, **params):\n    return 1 / (len(response) % 3)"


@pytest.mark.parametrize(
    ("method", "reason"),
    [(RAISES, "KeyError: 'no such key'"), (UNREADABLE, "a label's name must be a text")],
)
def test_a_method_that_fails_everywhere_fails_its_pairs_and_no_others(
    evaluate: Evaluate, tmp_path: Path, method: str, reason: str
) -> None:
    ran = evaluate(changed(COPY, tmp_path, method))
    assert ran.code == 1
    rows = lines(tmp_path / "out" / "metrics.jsonl")
    failed = [row for row in rows if row["label"] == "j"]
    assert {(row["metric_name"], row["model_name"]) for row in failed} == {
        (metric, model) for metric in ("mean", "sum") for model in "AB"
    }
    for row in failed:
        assert (row["status"], row["value"]) == ("failed", None)
        assert "'j' failed on every one of 42 responses" in row["error"]
        assert reason in row["error"]
    assert reason in ran.out
    assert "no reason was recorded" not in ran.out
    others = [row for row in rows if row["label"] == "short"]
    assert [(row["status"], row["value"] is None) for row in others] == [("ok", False)] * 4
    judged = lines(tmp_path / "out" / "evaluation_results.jsonl")
    assert [row["status"] for row in judged if row["label"] == "j"] == ["unscored"] * 84


def test_a_method_that_fails_too_often_fails_its_pairs(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(changed(COPY, tmp_path, OFTEN, errors={"max_rate": 0.1}))
    assert ran.code == 1
    rows = [row for row in lines(tmp_path / "out" / "metrics.jsonl") if row["label"] == "j"]
    assert {row["status"] for row in rows} == {"failed"}
    assert "more than errors.max_rate: 0.1 allows; the first: " in rows[0]["error"]
    assert "ZeroDivisionError" in rows[0]["error"]

    alone = {"errors": {"max_rate": 0.9}, "metrics": ["mean"]}
    ran = evaluate(changed(COPY, tmp_path, OFTEN, **alone))
    assert ran.code == 0, ran.err
    rows = [row for row in lines(tmp_path / "out" / "metrics.jsonl") if row["label"] == "j"]
    assert {(row["status"], row["unscored_sample_count"] > 0) for row in rows} == {("ok", True)}


def generated(seed: int) -> list[dict[str, Any]]:
    """Responses in the framework's own file, in the order in which its workers happened to finish."""
    rng = random.Random(seed)
    rows = []
    for model in "AB":
        for item in range(7):
            for sample in range(6):
                right = rng.random() < (0.6 if model == "A" else 0.3)
                text = str(item) if right else rng.choice("abc")
                finish = rng.choice(["stop", ""])
                metadata: dict[str, Any] = {"model_id": f"{model}-id", "finish_reason": finish}
                if rng.random() < 0.9:
                    metadata["sampling"] = {"temperature": rng.choice([0.0, 0.7])}
                rows.append(
                    {
                        "item_id": f"p{item}", "sample_index": sample, "model_name": model,
                        "sample_id": f"p{item}_sample_{sample}", "total_samples": 84, "prompt": "x",
                        "response": text + "w" * rng.randrange(12), "inference_time": rng.random(),
                        "timestamp": 1e9 + rng.random(), "metadata": metadata, "error": None,
                    }
                )  # fmt: skip
    rng.shuffle(rows)
    return rows


def judged_by(judge: Callable[..., Any], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The framework's evaluation results, as its documentation describes them."""
    results = []
    for row in rows:
        for entry in judge(row["response"], None, inference_result=row)["labels"]:
            told = entry["result"]
            results.append(
                {
                    "item_id": row["item_id"], "sample_index": row["sample_index"],
                    "model_name": row["model_name"], "metadata": row["metadata"],
                    "label": entry["label"]["name"], "passed": told["passed"], "score": told["score"],
                    "detailed_results": {k: v for k, v in told.items() if k not in ("passed", "score")},
                }
            )  # fmt: skip
    return results


def facet_value(result: dict[str, Any], facet: str) -> str:
    if "." not in facet:
        return str(result.get(facet, "unknown"))
    value: Any = result
    for part in facet.split("."):
        value = value.get(part, {}) if isinstance(value, dict) else {}
    return str(value) if value else "unknown"


def by_item(results: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    items: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        items.setdefault(result["item_id"], []).append(result)
    return items


def rate(items: dict[str, list[dict[str, Any]]], start: int, stop: int) -> float:
    return statistics.mean(float(any(r["passed"] for r in own[start:stop])) for own in items.values())


def linear(scores: list[float], percent: float) -> float:
    """The percentile of sorted scores, linear between the two nearest."""
    place = percent / 100 * (len(scores) - 1)
    low = int(place)
    high = min(low + 1, len(scores) - 1)
    return scores[low] + (scores[high] - scores[low]) * (place - low)


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def restated(kind: str, params: dict[str, Any], results: list[dict[str, Any]]) -> dict[str, Any]:
    """The documented rule of each built-in metric over one group, slow and plain; None: it is an error."""
    items, scores = by_item(results), sorted(result["score"] for result in results)
    if kind == "pass_at_k":
        k, trials = params["k"], params.get("num_trials", 1)
        if min(map(len, items.values())) < k * trials:
            return {}
        rates = [rate(items, t * k, (t + 1) * k) for t in range(trials)]
        over = {"mean": statistics.mean, "median": statistics.median, "max": max, "min": min}
        return {f"pass_at_{k}": over[params.get("aggregation", "mean")](rates)}
    if kind == "classification":
        first = [one["detailed_results"] for own in items.values() for one in own[:1]]
        tp, tn, fp, fn = (sum(bool(cells.get(name)) for cells in first) for name in ("tp", "tn", "fp", "fn"))
        precision, recall = ratio(tp, tp + fp), ratio(tp, tp + fn)
        return {
            "true_positives": tp, "true_negatives": tn, "false_positives": fp, "false_negatives": fn,
            "precision": precision, "recall": recall, "specificity": ratio(tn, tn + fp),
            "f1": ratio(2 * precision * recall, precision + recall),
            "balanced_accuracy": (recall + ratio(tn, tn + fp)) / 2,
            "accuracy": ratio(tp + tn, tp + tn + fp + fn),
        }  # fmt: skip
    simple: dict[str, Callable[[], dict[str, Any]]] = {
        "mean": lambda: {"mean": statistics.mean(scores)},
        "median": lambda: {"median": statistics.median(scores)},
        "percentile": lambda: {f"percentile_{params['percentile']}": linear(scores, params["percentile"])},
        "pass_rate": lambda: {"pass_rate": statistics.mean(float(r["passed"]) for r in results)},
        "count": lambda: {"count": len(results)},
    }
    return simple[kind]()


@pytest.mark.parametrize("seed", [1, 7])
def test_generated_responses_give_what_the_documented_rules_say(
    evaluate: Evaluate, tmp_path: Path, seed: int
) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    for name in ("config.yaml", "dataset.jsonl", "methods.py"):
        shutil.copy(COPY / name, folder / name)
    rows = generated(seed)
    (folder / "responses.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    ran = evaluate(folder / "config.yaml")
    ours = {group_of(row): row for row in lines(tmp_path / "out" / "metrics.jsonl")}
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    own = runpy.run_path(str(folder / "methods.py"))
    results, expected = judged_by(own["judge"], rows), set()
    for metric in config["metrics"]:
        chosen, labels = metric.get("facets", []), metric.get("labels", {})
        groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        for result in results:
            kept = labels.get("include", [result["label"]])
            if result["label"] in kept and result["label"] not in labels.get("exclude", []):
                key = (result["label"], *(f"{facet}={facet_value(result, facet)}" for facet in chosen))
                groups.setdefault(key, []).append(result)
        for key, group in groups.items():
            expected.add((metric["name"], *key))
            line, params = ours[(metric["name"], *key)], metric.get("params", {})
            if "function" in metric:
                values = own["mycount"](group, [], **params)
            else:
                values = restated(metric["type"], params, group)
            for name, value in values.items():
                assert line[name] == pytest.approx(value, abs=1e-9), (key, name)
            if not values:
                assert (line["status"], line["value"]) == ("failed", None)
                assert "samples of every item" in line["error"]
    assert expected == set(ours)
    assert ran.code == (1 if any(line["status"] == "failed" for line in ours.values()) else 0)


FIELDS = {
    "responses.jsonl": {
        *("item_id", "sample_id", "sample_index", "total_samples", "model_name", "prompt_template", "prompt"),
        *("response", "inference_time", "timestamp", "timestamp_unix", "metadata", "error", "status"),
        *("tokens_per_second", "total_tokens", "prompt_tokens", "completion_tokens"),
    },
    "evaluation_results.jsonl": {
        *(
            "item_id",
            "sample_id",
            "sample_index",
            "label",
            "model_name",
            "prompt_template",
            "passed",
            "score",
        ),
        *("status", "detailed_results", "evaluation_time", "timestamp", "timestamp_unix", "metadata"),
    },
    "metrics.jsonl": {
        *("metric_name", "facets", "label", "value", "stderr", "average_sample_count"),
        *("total_sample_count", "total_item_count"),
    },
    "samples_two_phase.jsonl": {
        *("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"),
        *("doc_hash", "prompt_hash", "target_hash", "exact_match", "exact_match_repeats"),
    },
}
"""The contract's fields, file by file; more may be there."""
COLUMNS = {
    "results.parquet": {
        *("run_id", "benchmark", "model_name", "prompt_template", "filter", "metric", "reduction", "label"),
        *("facets", "value", "stderr", "stderr_method", "ci_low", "ci_high", "n_items", "n_samples"),
        *("n_scored", "n_unscored", "higher_is_better", "status", "error", "signature"),
    },
    "items.parquet": {
        *("benchmark", "filter", "metric", "reduction", "label", "model_name", "item_id", "item_digest"),
        *("cluster", "value", "statistics", "n_samples", "n_scored"),
    },
}
DOCUMENTS = {
    "results.json": {
        *("results", "configs", "versions", "n-shot", "n-samples", "higher_is_better", "config", "date"),
    },
    "manifest.json": {
        *(
            "steps",
            "requests",
            "config",
            "config_digest",
            "dataset_digest",
            "models",
            "artifacts",
            "versions",
        ),
        *("seeds", "git_revision", "tokens", "cost", "wall_seconds"),
    },
}


def test_every_written_file_has_the_fields_of_the_contract(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(COPY / "config.yaml", "--set", "metric_list=[exact_match]", "--set", "metrics=[mean]")
    assert ran.code == 0, ran.err
    out = tmp_path / "out"
    for name, fields in FIELDS.items():
        rows = lines(out / name)
        assert rows
        assert all(fields <= set(row) for row in rows), name
    for name, fields in COLUMNS.items():
        assert fields <= set(pq.read_schema(out / name).names), name
    for name, fields in DOCUMENTS.items():
        assert fields <= set(json.loads((out / name).read_text(encoding="utf-8"))), name
    response = next(row for row in lines(out / "responses.jsonl") if row["sample_id"] == "p0_sample_1")
    assert {"model_id", "prompt_template", "sampling", "finish_reason", "response_id", "attempts"} <= set(
        response["metadata"]
    )
    assert (response["total_samples"], response["timestamp_unix"]) == (6, 1001.0)
    assert response["timestamp"] == "1970-01-01T00:16:41Z"
    assert response["metadata"]["sampling"]["num_samples"] == 6
    judged = next(row for row in lines(out / "evaluation_results.jsonl") if row["label"] == "correctness")
    assert judged["detailed_results"] == {"why": "xxx"}
    assert judged["metadata"]["custom_fields"] == {"version": 7}
    assert judged["metadata"]["evaluation_method"]["params"] == {"thr": 3}
    assert judged["metadata"]["model_id"] == "A-id"
    assert judged["timestamp_unix"] > 1.7e9
    moment = datetime.fromisoformat(judged["timestamp"])
    assert moment.timestamp() == pytest.approx(judged["timestamp_unix"], abs=1e-3)
    document = json.loads((out / "results.json").read_text(encoding="utf-8"))
    entry = document["results"]["two_phase/A/default"]
    assert {"alias", "sample_len", "exact_match,none", "exact_match_stderr,none"} <= set(entry)
    assert (out / "report.html").stat().st_size > 0


def test_recorded_rows_that_nobody_asks_for_are_counted(evaluate: Evaluate, tmp_path: Path) -> None:
    folder = tmp_path / "more"
    shutil.copytree(COPY, folder)
    rows = lines(COPY / "responses.jsonl")
    more = [rows[0] | {"model_name": "C"}, rows[1] | {"model_name": "C"}, rows[0] | {"item_id": "p99"}]
    with (folder / "responses.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in more)
    ran = evaluate(folder / "config.yaml", "--set", "metrics=[mean]")
    assert ran.code == 0, ran.err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    [recording] = manifest["recordings"]
    assert (recording["rows"], recording["used"], recording["other_models"]) == (87, 84, {"C": 2})
    [found] = [entry for entry in manifest["diagnostics"] if entry["kind"] == "recording_unused"]
    assert found["count"] == 3
    said = "3 of 87 rows were not used: 2 of models that the config does not have (C); 1 of items"
    assert said in found["message"]
