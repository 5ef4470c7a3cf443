"""Files of the two-phase framework as they really are: incomplete, and with their prompt in the metadata."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

Evaluate = Callable[..., Any]
METHOD = """
def judge(response, ground_truth=None, inference_result=None, **params):
    return {"passed": "y" in response, "score": float("y" in response)}
"""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def written(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def row(item: str, sample: int, response: str, model: str = "A", prompt: str = "T {{id}}") -> dict[str, Any]:
    return {
        "item_id": item, "sample_index": sample, "sample_id": f"{item}_sample_{sample}", "model_name": model,
        "response": response, "timestamp": 1750440075.59,
        "metadata": {"model_id": f"{model}-id", "prompt_template": prompt},
    }  # fmt: skip


def config(folder: Path, rows: list[dict[str, Any]], metrics: list[Any], **more: Any) -> Path:
    """A config beside its recording, two items p and q and the method above."""
    written(folder / "responses.jsonl", rows)
    written(folder / "data.jsonl", [{"id": "p"}, {"id": "q"}])
    (folder / "methods.py").write_text(METHOD, encoding="utf-8")
    models = sorted({line["model_name"] for line in rows})
    entries = [{"name": name, "type": "replay", "config": {"path": "responses.jsonl"}} for name in models]
    document = {
        "name": "theirs", "dataset": "data.jsonl", "prompt_template": "x {{id}}", "models": entries,
        "sample_params": {"num_samples": 4},
        "evaluation_methods": [{"name": "j", "function": "methods.py:judge"}], "metrics": metrics,
    }  # fmt: skip
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document | more), encoding="utf-8")
    return path


def test_a_failed_metric_is_called_as_one_that_works(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def none(evaluation_results, facets):\n    return None\n\n"
        "def text(evaluation_results, facets):\n    return {'value': '0.5'}\n"
    )
    metrics = [
        {"name": "mean"}, {"name": "X", "function": "own.py:none"}, {"name": "Y", "function": "own.py:text"}
    ]  # fmt: skip
    ran = evaluate(config(tmp_path, [row("p", 0, "y"), row("q", 0, "n")], metrics))
    assert ran.code == 1
    found = {line["metric_name"]: line for line in lines(tmp_path / "out" / "metrics.jsonl")}
    assert {name: line["status"] for name, line in found.items()} == {
        "mean": "ok",
        "X": "failed",
        "Y": "failed",
    }
    assert "not NoneType" in found["X"]["error"]
    assert (found["Y"]["returned_value"], found["Y"]["value"]) == ("0.5", None)


INCOMPLETE = [
    ("p", 2, "y"),
    ("p", 0, "n"),
    ("p", 1, "n"),
    ("p", 3, "n"),
    ("q", 2, "y"),
    ("q", 1, "n"),
    ("q", 0, "n"),
]


def test_an_absent_row_changes_no_number_and_makes_no_group(evaluate: Evaluate, tmp_path: Path) -> None:
    """The framework says 1.0 of these rows: the first of each item in the file is right. q:3 is absent."""
    trial = {"type": "pass_at_k", "params": {"k": 1, "num_trials": 1}, "facets": ["metadata.model_id"]}
    first = tmp_path / "first.py"
    first.write_text("def first(evaluation_results, facets):\n    return evaluation_results[0]['score']\n")
    metrics = [
        {"name": "p1", **trial},
        {"name": "count", "facets": []},
        {"name": "own", "function": "first.py:first", "facets": []},
    ]
    ran = evaluate(config(tmp_path, [row(*one) for one in INCOMPLETE], metrics))
    assert ran.code == 0, ran.err
    [trials, count, own] = lines(tmp_path / "out" / "metrics.jsonl")
    assert (trials["value"], trials["metadata.model_id"], trials["error"]) == (1.0, "A-id", None)
    counted = [
        trials[name] for name in ("total_sample_count", "average_sample_count", "unscored_sample_count")
    ]
    assert (counted, count["count"], own["value"]) == ([7, 3.5, 0], 7, 1.0)
    assert len(lines(tmp_path / "out" / "evaluation_results.jsonl")) == 7
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    [recording] = manifest["recordings"]
    assert (recording["rows"], recording["used"], recording["absent"]) == (7, 7, 1)
    assert "1 sample that the run asks for is not there, the first q_sample_3" in ran.out
    assert "requests: asked 0, reused 7, 0 failed" in ran.out
    assert (manifest["requests"]["failed"], recording["absent"]) == (0, 1)


def test_an_absent_row_fails_a_run_that_scores_it_and_a_model_without_any_row(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    rows = [row(*one) for one in INCOMPLETE]
    scored = evaluate(config(tmp_path, rows, ["count"], metric_list=["exact_match"], target="y"))
    assert scored.code == 1
    assert "A: 1 of 8 requests failed, errors.max_rate allows" in scored.out
    assert "leave it out; to a metric_list a sample without an answer is a failed request" in scored.out
    assert "most frequent reason" not in scored.out.lower()  # one finding a sample
    counted = {
        line["metric_name"]: (line["total_sample_count"], line["unscored_sample_count"])
        for line in lines(tmp_path / "out" / "metrics.jsonl")
    }
    assert counted == {"exact_match,none": (8, 1), "count": (7, 0)}
    (tmp_path / "none").mkdir()
    misnamed = config(tmp_path / "none", rows, ["count"])
    lost = evaluate(misnamed, "--set", "models.0.name=B")
    assert lost.code == 1
    assert "there is no response of model 'B' to judge" in lost.out
    assert "its rows are of model_name A, and this model is called 'B'" in lost.out


def test_rows_of_several_recordings_stand_in_the_order_of_the_files(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    """A's file comes first, as the config has it, whatever the numbers of the rows are."""
    (tmp_path / "own.py").write_text(
        "def order(evaluation_results, facets):\n"
        "    fields = ('model_name', 'item_id', 'sample_index')\n"
        "    said = [''.join(str(row[name]) for name in fields) for row in evaluation_results]\n"
        "    return {'order': 1.0, 'said': ' '.join(said)}\n"
    )
    best = {"type": "pass_at_k", "params": {"k": 1, "num_trials": 1}, "facets": []}
    metrics = [{"name": "first", **best}, {"name": "own", "function": "own.py:order", "facets": []}]
    own = {"A": [("p", 1, "n"), ("q", 0, "n"), ("p", 0, "y")], "B": [("q", 1, "y"), ("p", 0, "y")]}
    rows = {name: [row(*one, model=name) for one in given] for name, given in own.items()}
    written(tmp_path / "b.jsonl", rows["B"])
    entries = [
        {"name": name, "type": "replay", "config": {"path": path}}
        for name, path in (("A", "responses.jsonl"), ("B", "b.jsonl"))
    ]
    path = config(tmp_path, rows["A"], metrics, models=entries, sample_params={"num_samples": 2})
    ran = evaluate(path)
    assert ran.code == 0, ran.err
    [first, order] = lines(tmp_path / "out" / "metrics.jsonl")
    assert order["said"] == "Ap1 Aq0 Ap0 Bq1 Bp0"
    assert first["value"] == 0.0
    turned = evaluate(path, "--set", f"models={json.dumps(entries[::-1])}", "--output", tmp_path / "turned")
    assert turned.code == 0, turned.err
    [first, order] = lines(tmp_path / "turned" / "metrics.jsonl")
    assert (order["said"], first["value"]) == ("Bq1 Bp0 Ap1 Aq0 Ap0", 1.0)


PAIR = {
    "name": "p1",
    "type": "pass_at_k",
    "facets": ["metadata.model_id", "prompt_template"],
    "params": {"k": 1},
}
COUNT = {"name": "count", "facets": ["metadata.prompt_template"]}
LONG = "You are a helpful assistant.\nSolve the problem step by step and say the number alone:\n{{id}}"


def two_prompts() -> list[dict[str, Any]]:
    """Both models answered the first prompt, A the second one, too; right under the first one alone."""
    asked = [("A", "T1"), ("A", LONG), ("B", "T1")]
    return [
        row(item, sample, "y" if prompt == "T1" else "n", model, prompt)
        for model, prompt in asked
        for item in "pq"
        for sample in range(4)
    ]


def test_prompts_that_stand_in_the_metadata_alone_are_prompts(evaluate: Evaluate, tmp_path: Path) -> None:
    ran = evaluate(config(tmp_path, two_prompts(), [PAIR, COUNT]))
    assert ran.code == 0, ran.err
    found = lines(tmp_path / "out" / "metrics.jsonl")
    values = {
        (line["metadata.model_id"], line["prompt_template"][:20]): (line["value"], line["total_sample_count"])
        for line in found
        if line["metric_name"] == "p1"
    }
    assert values == {("A-id", "T1"): (1.0, 8), ("A-id", LONG[:20]): (0.0, 8), ("B-id", "T1"): (1.0, 8)}
    counts = {
        line["metadata.prompt_template"]: line["count"] for line in found if line["metric_name"] == "count"
    }
    assert counts == {"T1": 16, LONG: 8}


@pytest.mark.parametrize(
    "prompts",
    [
        {},
        {
            "prompt_template": None,
            "prompt_templates": [{"name": "T1", "template": "x"}, {"name": "steps", "template": LONG}],
        },
    ],
    ids=["of the metadata", "by name and text"],
)
def test_a_recording_of_one_prompt_answers_no_other(
    evaluate: Evaluate, tmp_path: Path, prompts: dict[str, Any]
) -> None:
    """A's file has two prompts, and B's one of them."""
    rows = two_prompts()
    written(tmp_path / "b.jsonl", [line for line in rows if line["model_name"] == "B"])
    entries = [
        {"name": name, "type": "replay", "config": {"path": path}}
        for name, path in (("A", "responses.jsonl"), ("B", "b.jsonl"))
    ]
    own = [line for line in rows if line["model_name"] == "A"]
    ran = evaluate(config(tmp_path, own, [COUNT], models=entries, **prompts))
    assert ran.code == 0, ran.err
    found = lines(tmp_path / "out" / "metrics.jsonl")
    assert {line["metadata.prompt_template"]: line["count"] for line in found} == {"T1": 16, LONG: 8}


def test_a_prompt_that_nobody_recorded_has_no_answers_of_another(evaluate: Evaluate, tmp_path: Path) -> None:
    named = [{"name": "T1", "template": "x"}, {"name": "steps", "template": LONG}]
    rows = [line for line in two_prompts() if line["metadata"]["prompt_template"] == "T1"]
    evaluate(config(tmp_path, rows, [COUNT], prompt_template=None, prompt_templates=named), "--force")
    found = lines(tmp_path / "out" / "metrics.jsonl")
    assert {line["metadata.prompt_template"]: line["count"] for line in found} == {"T1": 16}


def test_one_prompt_of_the_metadata_names_the_benchmark_s_own(evaluate: Evaluate, tmp_path: Path) -> None:
    rows = [line for line in two_prompts() if line["metadata"]["prompt_template"] == "T1"]
    ran = evaluate(config(tmp_path, rows, [PAIR]))
    assert ran.code == 0, ran.err
    assert {line["prompt_template"] for line in lines(tmp_path / "out" / "metrics.jsonl")} == {"T1"}


def test_named_prompts_are_joined_by_their_name_or_their_text(evaluate: Evaluate, tmp_path: Path) -> None:
    named = [{"name": "T1", "template": "short {{id}}"}, {"name": "steps", "template": LONG}]
    ran = evaluate(config(tmp_path, two_prompts(), [PAIR], prompt_template=None, prompt_templates=named))
    assert ran.code == 0, ran.err
    values = {line["prompt_template"]: line["value"] for line in lines(tmp_path / "out" / "metrics.jsonl")}
    assert values == {"T1": 1.0, "steps": 0.0}


CHOICES = {
    "name": "mc", "output_type": "multiple_choice", "dataset": "data.jsonl",
    "prompt_template": "{{question}}", "choices": "{{choices}}", "target": "{{answer}}",
    "models": [{"name": "A", "type": "replay", "config": {"path": "responses.jsonl"}}],
}  # fmt: skip


def likelihoods(folder: Path, **recorded: Any) -> Path:
    """Two items with two choices each; the first choice is right once."""
    items = [{"id": str(at), "question": "?", "choices": ["x", "yy"], "answer": at} for at in range(2)]
    written(folder / "data.jsonl", items)
    written(
        folder / "responses.jsonl", [{"item_id": str(at), "lls": [-1.0, -2.0], **recorded} for at in range(2)]
    )
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(CHOICES), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "recorded",
    [
        {},
        {"unconditional_lls": [-1.0, -1.0]},
        {
            "is_greedy": [True, False],
            "unconditional_lls": [-1.0, -1.0],
            "unconditional_greedy": [False, False],
        },
    ],
)
def test_a_record_has_to_hold_what_the_metric_needs_and_may_hold_more(
    evaluate: Evaluate, tmp_path: Path, recorded: dict[str, Any]
) -> None:
    path = likelihoods(tmp_path, **recorded)
    ran = evaluate(path, "--set", "metric_list=[acc, acc_norm]", "--json")
    assert ran.code == 0, ran.err
    assert (ran.value("acc,none"), ran.value("acc_norm,none")) == (0.5, 0.5)
    told = [sample["resps"] for sample in lines(tmp_path / "out" / "samples_mc.jsonl")]
    flags = ["True", "False"] if "is_greedy" in recorded else [None, None]
    assert told == [[[["-1.0", flags[0]]], [["-2.0", flags[1]]]]] * 2


def test_a_function_is_told_which_choices_without_context_are_greedy(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    path = likelihoods(
        tmp_path, is_greedy=[True, False], unconditional_lls=[-1.0, -3.0], unconditional_greedy=[False, True]
    )
    (tmp_path / "own.py").write_text(
        "def told(doc, results):\n"
        "    return {'acc_mutual_info': results[2:] == [(-1.0, False), (-3.0, True)]}\n",
        encoding="utf-8",
    )
    ran = evaluate(
        path, "--set", "process_results=own.py:told", "--set", "metric_list=[acc_mutual_info]", "--json"
    )
    assert ran.code == 0, ran.err
    assert ran.value("acc_mutual_info,none") == 1


def test_only_the_metric_that_needs_what_a_record_lacks_fails(evaluate: Evaluate, tmp_path: Path) -> None:
    lists = "metric_list=[acc, acc_mutual_info, exact_match_mc]"
    ran = evaluate(likelihoods(tmp_path, unconditional_lls=[-1.0, -1.0]), "--set", lists, "--force")
    assert ran.code == 1
    rows = {line["metric_name"]: line for line in lines(tmp_path / "out" / "metrics.jsonl")}
    assert (rows["acc,none"]["value"], rows["acc_mutual_info,none"]["value"]) == (0.5, 0.5)
    assert "exact_match_mc needs is_greedy, and the recorded response has none" in ran.out
    [first, _] = lines(tmp_path / "out" / "samples_mc.jsonl")
    assert len(first["resps"]) == 4
    bare = evaluate(likelihoods(tmp_path), "--set", lists, "--force", "--output", tmp_path / "bare")
    assert bare.code == 1
    assert "acc_mutual_info needs the choices' log-likelihoods without context" in bare.out
    [first, _] = lines(tmp_path / "bare" / "samples_mc.jsonl")
    assert first["resps"][2:] == [[None], [None]]
