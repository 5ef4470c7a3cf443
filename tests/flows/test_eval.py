"""The evaluation end to end, as its users run it: a real flow on a real server, requests over real HTTP."""

import json
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sacrebleu
from rouge_score.rouge_scorer import RougeScorer

from flows.compare.__main__ import main as compare

PROJECT = Path(__file__).resolve().parents[2]
DEMO = PROJECT / "deployments" / "benchmarks" / "demo"
RECORDINGS = PROJECT.parent / "shared" / "data" / "gsm8k" / "example_model_solutions.jsonl"
PAIRS = 6
Evaluate = Callable[..., Any]


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# As many items as it takes for the demo's two number filters to make different predictions: pairs with equal
# predictions share one score, and which of the two task runs computes it is chance.
ITEMS = 42


@pytest.fixture
def first(begin: Evaluate) -> Any:
    """A run of the demo, whose store and output are the test's own: what it changes there no other sees."""
    return begin("demo", "--json")


def test_second_run_sends_nothing_and_computes_nothing(
    first: Any, evaluate_process: Evaluate, tmp_path: Path
) -> None:
    requests = first.document["requests"]
    assert requests == {"sent": ITEMS, "cached": 0, "failed": 0}
    assert {row["status"] for row in first.document["results"]} == {"ok"}
    assert all(row["stderr"] > 0 for row in first.document["results"])

    second = evaluate_process("--json")
    assert second.document["requests"] == {"sent": 0, "cached": ITEMS, "failed": 0}
    assert sum(entry["computed"] for entry in second.document["steps"].values()) == 0
    assert [row["value"] for row in second.document["results"]] == [
        row["value"] for row in first.document["results"]
    ]
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files >= {
        "responses.jsonl",
        "metrics.jsonl",
        "samples_demo_gsm8k.jsonl",
        "results.json",
        "results.parquet",
        "items.parquet",
        "manifest.json",
        "report.html",
    }


def test_text_metrics_equal_the_reference_libraries(first: Any, tmp_path: Path) -> None:
    rows = lines(tmp_path / "out" / "responses.jsonl")
    items = {item["question"]: item["answer"] for item in lines(DEMO / "problems.jsonl")}
    references = [
        next(answer for question, answer in items.items() if question in row["prompt"]) for row in rows
    ]
    hypotheses = [row["response"] for row in rows]
    assert first.value("bleu,none") == sacrebleu.corpus_bleu(hypotheses, [references]).score
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    scores = [scorer.score(gold, text) for gold, text in zip(references, hypotheses, strict=True)]
    for name in ("rouge1", "rouge2", "rougeL"):
        expected = sum(score[name].fmeasure for score in scores) / len(scores)
        assert first.value(f"{name},none") == pytest.approx(100 * expected, abs=1e-12)


def test_changes_recompute_what_hangs_on_them_only(evaluate: Evaluate, first: Any) -> None:
    assert first.steps("score") == (PAIRS, 0)

    metric = evaluate("--json", "--set", "filter_list.0.metric_list.0.ignore_case=false")
    assert metric.document["requests"]["sent"] == 0
    assert metric.steps("filter") == (0, 3)
    assert metric.steps("score") == (1, PAIRS - 1)
    assert metric.steps("reduce") == (0, PAIRS)  # the scores came out as they were
    assert metric.steps("aggregate") == (1, PAIRS - 1)  # a row's signature says how it was computed

    reduced = evaluate("--json", "--set", "filter_list.0.metric_list.0.reduction=[max]")
    assert [reduced.steps(stage) for stage in ("score", "reduce")] == [(0, PAIRS), (1, PAIRS - 1)]

    filtered = evaluate("--json", "--set", "filter_list.1.filter=[strip, last_number]")
    assert filtered.steps("filter") == (1, 2)
    assert filtered.steps("score") == (0, PAIRS)  # the predictions came out as they were

    renamed = evaluate("--json", "--set", "filter_list.1.name=renamed")
    assert [renamed.steps(stage) for stage in ("score", "reduce")] == [(0, PAIRS), (1, PAIRS - 1)]

    prompted = evaluate("--json", "--set", "prompt_template=Q {{question}}")
    assert prompted.document["requests"]["sent"] == ITEMS
    assert prompted.steps("infer") == (1, 0)


@pytest.mark.usefixtures("first")
def test_second_model_recomputes_nothing_of_the_first(evaluate: Evaluate) -> None:
    models = "models=[{name: demo, type: demo}, {name: worse, type: demo, config: {error_rate: 0.9}}]"
    both = evaluate("--json", "--set", models)
    assert both.document["requests"] == {"sent": ITEMS, "cached": ITEMS, "failed": 0}
    assert both.steps("infer") == (1, 1)
    assert both.steps("filter") == (3, 3)
    assert both.steps("score") == (PAIRS, PAIRS)


def test_renamed_model_is_served_from_the_cache(evaluate: Evaluate, first: Any) -> None:
    renamed = evaluate("--json", "--set", "models.0.name=another")
    assert renamed.document["requests"]["sent"] == 0
    assert renamed.steps("score") == (0, PAIRS)
    assert renamed.value("exact_match,strict-match", "another") == first.value("exact_match,strict-match")


# What is asked does not depend on how many metrics there are.
ONE_METRIC = ("--json", "--set", "filter_list=[{name: none, metric_list: [rouge1]}]")


def test_limit_then_all_asks_for_the_rest_only(evaluate: Evaluate) -> None:
    assert evaluate(*ONE_METRIC, "--limit", "20").document["requests"]["sent"] == 20
    assert evaluate(*ONE_METRIC, "--dry-run").document["requests"] == {"to_send": 22, "cached": 20}
    everything = evaluate(*ONE_METRIC).document["requests"]
    assert everything == {"sent": 22, "cached": 20, "failed": 0}


def test_more_samples_ask_for_the_new_ones_only(evaluate: Evaluate) -> None:
    sampled = (
        *ONE_METRIC,
        "--limit",
        "5",
        "--set",
        "sample_params.temperature=0.7",
        "--set",
        "sample_params.seed=1",
    )
    assert evaluate(*sampled, "--set", "sample_params.num_samples=8").document["requests"]["sent"] == 40
    more = evaluate(*sampled, "--set", "sample_params.num_samples=16").document["requests"]
    assert more == {"sent": 40, "cached": 40, "failed": 0}


def test_process_results_gives_the_same_numbers_as_filters(evaluate: Evaluate, first: Any) -> None:
    processed = evaluate(DEMO / "gsm8k_process_results.yaml", "--json")
    assert processed.code == 0, processed.err
    assert processed.document["requests"]["sent"] == 0
    assert processed.steps("process")[0] >= 1
    names = [f"{row['metric']},{row['filter']}" for row in first.document["results"]]
    assert sorted(names) == sorted(
        f"{row['metric']},{row['filter']}" for row in processed.document["results"]
    )
    for name in names:
        assert processed.value(name) == pytest.approx(first.value(name), abs=1e-12), name


def test_scoring_recorded_responses_gives_the_same_bytes(evaluate: Evaluate, tmp_path: Path) -> None:
    methods = tmp_path / "methods.yaml"
    methods.write_text(
        f"name: phases\ndataset: {DEMO / 'problems.jsonl'}\n"
        "prompt_templates: [{name: plain, template: '{{question}}'}, "
        "{name: asked, template: 'Q: {{question}}'}]\n"
        "target: '{{answer}}'\nsample_params: {num_samples: 2, temperature: 0.5, seed: 3}\n"
        "models: [{name: a, type: demo}, {name: b, type: demo, config: {error_rate: 0.6}}]\n"
        "metric_list: [rouge1]\nevaluation_methods: [contains, numeric_match]\n"
        "metrics: [{name: pass@1, type: pass_at_k, params: {k: 1, num_trials: 2}}, mean]\n"
    )
    recorded = evaluate(methods, "--json", "--limit", "5")
    assert recorded.code == 0, recorded.err
    other = tmp_path / "other"
    other.mkdir()
    (other / "responses.jsonl").write_bytes((tmp_path / "out" / "responses.jsonl").read_bytes())
    options = ("--phase", "score", "--output", other, "--store", tmp_path / "another-store")
    scored = evaluate(methods, "--json", "--limit", "5", *options)
    assert scored.code == 0, scored.err
    assert scored.document["requests"]["sent"] == 0
    assert (other / "metrics.jsonl").read_bytes() == (tmp_path / "out" / "metrics.jsonl").read_bytes()
    named = [(row["metric_name"], row["label"]) for row in lines(other / "metrics.jsonl") if row["label"]]
    assert Counter(named) == dict.fromkeys(
        [(metric, label) for metric in ("pass@1", "mean") for label in ("contains", "numeric_match")], 4
    )


def test_files_of_an_earlier_run_in_the_folder_are_not_taken_for_this_ones(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    few = (*ONE_METRIC, "--limit", "2")
    assert evaluate(*few, "--set", "evaluation_methods=[contains]").code == 0
    assert len(lines(tmp_path / "out" / "evaluation_results.jsonl")) == 2
    assert evaluate(*few).code == 0
    assert not (tmp_path / "out" / "evaluation_results.jsonl").exists()


BROKEN = """
def flawed(references, predictions):
    if "{marker}" in predictions[0]:
        raise ZeroDivisionError("this item is too hard")
    return len(predictions[0])
"""


def test_failed_pair_leaves_the_others_and_is_computed_alone_after_the_fix(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    metric = tmp_path / "flawed.py"
    metric.write_text(BROKEN.format(marker="#### "))
    config = tmp_path / "config.yaml"
    config.write_text(
        f"name: broken\ndataset: {DEMO / 'problems.jsonl'}\n"
        'prompt_template: "Question: {{question}}\\nAnswer:"\ntarget: "{{answer}}"\n'
        "models: [{name: demo, type: demo}]\n"
        "metric_list: [bleu, {metric: flawed, function: 'flawed.py:flawed'}]\n"
    )
    refused = evaluate(config, "--json", "--limit", "6")
    assert refused.code == 2
    assert "--force" in refused.err
    failed = evaluate(config, "--json", "--limit", "6", "--force")
    assert failed.code == 1
    by_metric = {row["metric"]: row for row in failed.document["results"]}
    assert by_metric["bleu"]["status"] == "ok"
    assert by_metric["flawed"]["status"] == "failed"
    assert by_metric["flawed"]["value"] is None
    assert "this item is too hard" in by_metric["flawed"]["error"]
    table = pq.read_table(tmp_path / "out" / "results.parquet").to_pylist()
    assert {row["metric"]: row["status"] for row in table} == {"bleu": "ok", "flawed": "failed"}
    shown = evaluate(config, "--limit", "6", "--force")
    assert shown.code == 1
    assert "flawed" in shown.out
    assert "this item is too hard" in shown.out

    metric.write_text(BROKEN.format(marker="no response holds this"))
    fixed = evaluate(config, "--json", "--limit", "6")
    assert fixed.code == 0
    assert fixed.document["requests"]["sent"] == 0
    assert [fixed.steps(stage) for stage in ("filter", "score", "reduce", "aggregate")] == [
        (0, 1),
        (1, 1),
        (1, 1),
        (1, 1),
    ]


def test_deleted_and_cut_artifacts_are_computed_again(evaluate: Evaluate, first: Any, tmp_path: Path) -> None:
    scores = sorted((tmp_path / "store" / "score").glob("*.parquet"))
    scores[0].unlink()
    scores[1].write_bytes(scores[1].read_bytes()[:-20])
    changed = bytearray(scores[2].read_bytes())
    changed[50] ^= 0xFF
    scores[2].write_bytes(bytes(changed))
    again = evaluate("--json")
    assert again.code == 0
    assert again.steps("score") == (3, PAIRS - 3)
    assert again.steps("reduce") == (0, PAIRS)
    assert [row["value"] for row in again.document["results"]] == [
        row["value"] for row in first.document["results"]
    ]


@pytest.mark.usefixtures("first")
def test_moved_store_serves_everything(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    moved = evaluate("--json", "--store", tmp_path / "elsewhere")
    assert sum(entry["computed"] for entry in moved.document["steps"].values()) == 0


@pytest.mark.usefixtures("first")
def test_refresh_computes_a_stage_or_a_pair_again(evaluate: Evaluate) -> None:
    pair = evaluate("--json", "--refresh", "none:bleu")
    assert pair.steps("score") == (1, PAIRS - 1)
    asked = evaluate("--json", "--refresh", "infer")
    assert asked.document["requests"]["sent"] == ITEMS


@pytest.mark.usefixtures("first")
def test_dry_run_says_what_would_be_done_and_sends_nothing(evaluate: Evaluate, tmp_path: Path) -> None:
    before = evaluate("--dry-run", "--json", "--limit", "5", "--store", tmp_path / "another-store").document
    assert before["requests"] == {"to_send": 5, "cached": 0}
    assert [pair["cached"] for pair in before["pairs"]] == [False] * PAIRS
    after = evaluate("--dry-run", "--json").document
    assert after["requests"] == {"to_send": 0, "cached": ITEMS}
    assert [pair["cached"] for pair in after["pairs"]] == [True] * PAIRS


@pytest.mark.services
@pytest.mark.skipif(not RECORDINGS.is_file(), reason=f"the recordings are not there: {RECORDINGS}")
def test_recorded_solutions_are_right_where_their_authors_said_so(
    evaluate: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    correct = {
        "6b_finetuning": 286,
        "6b_verification": 515,
        "175b_finetuning": 458,
        "175b_verification": 742,
    }
    ran = evaluate(
        PROJECT / "deployments/benchmarks/gsm8k/recorded.yaml",
        "--json",
        "--set",
        f"dataset.path={RECORDINGS}",
    )
    assert ran.code == 0, ran.err
    for model, count in correct.items():
        assert ran.value("exact_match,final-answer", model) == pytest.approx(count / 1319, abs=1e-12)
    recorded = lines(RECORDINGS)
    items = pq.read_table(tmp_path / "out" / "items.parquet").to_pylist()
    by_model: dict[str, list[bool]] = {}
    for row in items:
        if row["metric"] == "exact_match":
            by_model.setdefault(row["model_name"], []).append(row["value"] == 1.0)
    for model in correct:
        assert by_model[model] == [item[model]["is_correct"] for item in recorded]
    with pytest.raises(SystemExit) as ended:
        compare([str(tmp_path / "out"), "--across", "model_name", "--json"])
    assert not ended.value.code
    pairs = [pair for pair in json.loads(capsys.readouterr().out)["pairs"] if pair["metric"] == "exact_match"]
    found = sorted(sorted((round(1319 * pair["base"]), round(1319 * pair["candidate"]))) for pair in pairs)
    assert found == sorted(sorted(both) for both in combinations(correct.values(), 2))


OWN = """
def worth(references, predictions):
    return {"points": 2.0, "why": "because"}


def grade(doc, results):
    return {"ll": float("-inf") if "#### 1" in results[0] else -1.0, "none": float("nan")}
"""


def test_a_dictionary_without_the_metrics_name_is_warned_about_once(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    metrics = "metric_list: ['own.py:worth']\n"
    ran = evaluate(_own_config(tmp_path, metrics), "--json", "--limit", "4")
    assert (ran.code, ran.value("worth,none")) == (0, 2.0)
    assert ran.err.count("metric 'worth' returned a dictionary without an entry of that name") == 1


@pytest.mark.services
def test_libraries_of_a_users_file_leave_no_messages_behind(
    evaluate_process: Evaluate, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(f"import duckdb\n\nconnection = duckdb.connect()\n{OWN}")
    metrics = "process_results: own.py:grade\nmetric_list: [{metric: ll, aggregation: median}]\n"
    ran = evaluate_process(_own_config(tmp_path, metrics), "--json", "--limit", "1")
    assert (ran.code, "leaked" in ran.err) == (0, False)


def test_what_process_results_returns_may_be_infinite(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    metrics = "process_results: own.py:grade\nmetric_list: [{metric: ll, aggregation: median}, none]\n"
    ran = evaluate(_own_config(tmp_path, metrics), "--json", "--limit", "12")
    rows = {row["metric"]: row for row in ran.document["results"]}
    assert (rows["ll"]["n_scored"], rows["ll"]["n_unscored"], rows["ll"]["value"]) == (12, 0, -1.0)
    items = pq.read_table(tmp_path / "out" / "items.parquet").to_pylist()
    assert float("-inf") in [row["value"] for row in items if row["metric"] == "ll"]
    assert (rows["none"]["value"], rows["none"]["n_unscored"]) == (None, 0)
    assert "12 of 12 items have a value that is not finite" in rows["none"]["error"]


def _own_config(folder: Path, metrics: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(
        f"name: own\ndataset: {DEMO / 'problems.jsonl'}\n"
        'prompt_template: "Question: {{question}}\\nAnswer:"\ntarget: "{{answer}}"\n'
        f"models: [{{name: demo, type: demo}}]\n{metrics}"
    )
    return path
