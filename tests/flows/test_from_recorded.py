"""``--from-lighteval`` and ``--from-opencompass``: evaluations of other programs as runs of our own.

The files are made as those programs write them: lighteval's ``EvaluationTracker.save`` and OpenCompass's
inferencers and ``OpenICLEvalTask``. Files of those programs themselves are in ``test_recorded_logs.py``.
"""

import json
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.compare.__main__ import main as compare
from tasks.benchmarks.recorded import PROGRAMS

Evaluate = Callable[..., Any]
DATE = "2026-11-23T10-57-04.203304"


def details(folder: Path, task: str, rows: Sequence[Mapping[str, Any]], model: str = "org/model") -> Path:
    """A file of details where lighteval puts it, its columns by name."""
    path = folder / "details" / model / DATE / f"details_{task}_{DATE}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(list(rows))
    pq.write_table(table.select(sorted(table.column_names)), path)
    return path


def detail(place: int, text: Sequence[str], metric: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A row as lighteval 0.10 and later write it."""
    return {
        "doc": {
            "query": f"{place} + 1?",
            "choices": [str(place + 1)],
            "gold_index": 0,
            "instruction": None,
            "id": f"d{place}",
            "task_name": "sums|0",
            "num_samples": len(text),
            **more.pop("doc", {}),
        },
        "model_response": {
            "input": f"{place} + 1?",
            "input_tokens": [1, 2],
            "text": list(text),
            "text_post_processed": None,
            "logprobs": [],
            **more.pop("model_response", {}),
        },
        "metric": dict(metric),
    }


def made_details(folder: Path, seed: int, model: str = "org/model") -> tuple[Path, dict[str, float]]:
    """A file of details, and lighteval's number for each metric: the mean over samples."""
    draw = random.Random(seed)
    rows = [
        detail(place, [draw.choice("ab")], {"em": float(draw.random() < 0.6), "f1": draw.random()})
        for place in range(draw.randint(3, 12))
    ]
    numbers = {name: statistics.fmean(row["metric"][name] for row in rows) for name in ("em", "f1")}
    return details(folder, f"made{seed}|0", rows, model), numbers


def opencompass(
    folder: Path,
    dataset: str,
    predictions: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    model: str = "qwen",
) -> Path:
    """Files of predictions (parts, where there are several) and of results where OpenCompass puts them."""
    beside = folder / "predictions" / model
    beside.mkdir(parents=True, exist_ok=True)
    if isinstance(predictions, Mapping):
        (beside / f"{dataset}.json").write_text(json.dumps(predictions))
    else:
        for place, part in enumerate(predictions):
            (beside / f"{dataset}_{place}.json").write_text(json.dumps(part))
    path = folder / "results" / model / f"{dataset}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return path


def answered(place: int, text: str) -> dict[str, Any]:
    """A prediction as the inferencer for texts writes it."""
    prompt = [{"role": "HUMAN", "prompt": f"{place} + 1?"}]
    return {"origin_prompt": prompt, "prediction": text, "gold": str(place + 1)}


def made_results(folder: Path, seed: int, model: str = "qwen") -> tuple[Path, float]:
    """Results with details of several replicas, and OpenCompass's accuracy, in percent."""
    draw = random.Random(seed)
    count, times = draw.randint(3, 12), draw.randint(1, 3)
    correct = [[draw.random() < 0.6 for _ in range(times)] for _ in range(count)]
    texts = {
        str(time * count + place): answered(place, f"{place}@{time}")
        for time in range(times)
        for place in range(count)
    }
    found = [
        {
            "example_abbr": f"made{seed}_{place}",
            "pred": [f"{place}@{time}" for time in range(times)],
            "answer": [str(place + 1)] * times,
            "correct": own,
        }
        for place, own in enumerate(correct)
    ]
    accuracy = 100 * statistics.fmean(statistics.fmean(own) for own in correct)
    result = {("accuracy" if times == 1 else f"accuracy ({times} runs average)"): accuracy, "details": found}
    return opencompass(folder, f"made{seed}", texts, result, model), accuracy


def answers_of(ran: Any) -> list[dict[str, Any]]:
    lines = (Path(ran.document["output"]) / "responses.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_details_of_lighteval_have_its_numbers_and_nothing_is_asked(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    for seed in range(3):
        path, numbers = made_details(tmp_path / str(seed), seed)
        ran = evaluate("--from-lighteval", path, "--json")
        assert ran.code == 0, ran.err
        assert ran.document["requests"]["sent"] == 0
        assert ran.document["benchmark"] == f"made{seed}-0"
        for name, number in numbers.items():
            assert ran.value(f"{name},none") == pytest.approx(number, rel=1e-12), (seed, name)


def test_results_of_opencompass_have_its_accuracy_and_nothing_is_asked(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    for seed in range(3):
        path, accuracy = made_results(tmp_path / str(seed), seed)
        ran = evaluate("--from-opencompass", path, "--json")
        assert ran.code == 0, ran.err
        assert ran.document["requests"]["sent"] == 0
        assert 100 * ran.value("correct,none") == pytest.approx(accuracy, rel=1e-12), seed


@pytest.mark.parametrize("program", ["lighteval", "opencompass"])
def test_two_runs_are_compared_and_gated_by_the_ids_of_their_samples(
    program: str, evaluate: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for model, right in (("first", (0, 1, 2, 3, 4, 5)), ("second", (1, 2, 3))):
        # The second was scored in another order.
        places = range(6) if model == "first" else reversed(range(6))
        if program == "lighteval":
            rows = [detail(place, ["x"], {"em": float(place in right)}) for place in places]
            source = details(tmp_path / model, "sums|0", rows, model)
        else:
            order = list(range(6))
            texts = {str(place): answered(place, "x") for place in order}
            found = {"type": "GEN"} | {
                str(place): {"predictions": "x", "references": "y", "correct": place in right}
                for place in (order if model == "first" else reversed(order))
            }
            source = opencompass(tmp_path / model, "sums", texts, {"accuracy": 0.0, "details": found}, model)
        outputs.append(tmp_path / f"out-{model}")
        gate = tmp_path / "gate.yaml"
        gate.write_text("margin: 0.05\n")
        against = ("--against", outputs[0], "--gate", gate) if model == "second" else ()
        ran = evaluate(f"--from-{program}", source, "--output", outputs[-1], *against, "--json")
        assert ran.code in (0, 3), ran.err
    with pytest.raises(SystemExit):
        compare([*map(str, outputs), "--json"])
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert (pair["n_items"], pair["difference"]) == (6, -0.5)


def test_a_folder_stands_for_all_runs_below_it(evaluate: Evaluate, tmp_path: Path) -> None:
    for seed, model in enumerate(("org/one", "two")):
        made_details(tmp_path, seed, model)
        made_results(tmp_path, seed, model.replace("/", "-"))
    for program, models in (("lighteval", ["org/one", "two"]), ("opencompass", ["org-one", "two"])):
        ran = evaluate(f"--from-{program}", tmp_path, "--json", "--dry-run")
        assert ran.code == 0, ran.err
        found = json.loads(ran.out)
        assert len(found["runs"]) == 2
        assert [model in ran.out for model in models] == [True, True]


def test_choices_several_answers_and_metrics_of_a_corpus_of_lighteval_are_read(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    rows = [
        detail(
            place,
            ["a", "b"] if place else [],
            {"acc": place, "bleu": {"golds": ["a"], "preds": ["b"]}},
            doc={"choices": ["x", "y"], "gold_index": [1]},
            model_response={"logprobs": [-2.0, -0.5]},
        )
        for place in range(2)
    ]
    ran = evaluate("--from-lighteval", details(tmp_path, "leaderboard|mmlu:law|5", rows), "--json")
    assert ran.code == 0, ran.err
    assert ran.document["benchmark"] == "leaderboard-mmlu-law-5"
    assert [row["metric"] for row in ran.document["results"]] == ["acc"]
    assert "'bleu' has no number for a sample" in ran.err
    answers = answers_of(ran)
    assert [one["response"] for one in answers] == ["y", "a"]
    assert [one["item_id"] for one in answers] == ["d0", "d1"]


def test_documents_of_a_second_split_are_items_of_their_own(evaluate: Evaluate, tmp_path: Path) -> None:
    rows = [detail(place, ["a"], {"em": place}, doc={"id": "0"}) for place in range(2)]
    ran = evaluate("--from-lighteval", details(tmp_path, "t|0", rows), "--json")
    assert ran.code == 0, ran.err
    assert ran.value("em,none") == 0.5
    assert [one["item_id"] for one in answers_of(ran)] == ["0", "0@2"]


def results(details: Path, numbers: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> None:
    """The file of results that lighteval writes with details."""
    path = Path(*details.parts[: details.parts.index("details")]) / "results" / "org" / f"results_{DATE}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    task = details.stem.removeprefix("details_").removesuffix(f"_{DATE}")
    path.write_text(json.dumps({"results": {task: numbers}, "config_tasks": {task: {"metrics": metrics}}}))


def test_a_number_that_is_no_mean_has_another_name(evaluate: Evaluate, tmp_path: Path) -> None:
    rows = [detail(place, ["a"], {"em": place % 2, "f1": 0.5, "f1_mean": 0.25}) for place in range(4)]
    path = details(tmp_path, "drop|0", rows)
    functions = [{"metric_name": ["em", "f1"], "corpus_level_fn": {"em": "max", "f1": "max"}}]
    results(path, {"em": 1.0, "f1": 0.5, "f1_mean": 0.25}, functions)
    ran = evaluate("--from-lighteval", path, "--json")
    assert ran.code == 0, ran.err
    assert "'em' is 1.0 by 'max', and 0.5 the mean, which is 'em_mean' here" in ran.err
    assert "'f1' is 0.5 by 'max', and 0.5 the mean of its samples: it is left out" in ran.err
    found = {row["metric"]: row["value"] for row in ran.document["results"]}
    assert found == {"em_mean": 0.5, "f1_mean": 0.25}


def test_details_without_results_are_read_and_it_is_said(evaluate: Evaluate, tmp_path: Path) -> None:
    path, numbers = made_details(tmp_path, 1)
    ran = evaluate("--from-lighteval", path, "--json")
    assert ran.value("em,none") == pytest.approx(numbers["em"])
    assert "whether lighteval's numbers are means is not known" in ran.err
    results(path, numbers, [{"metric_name": "em", "corpus_level_fn": None}, "f1"])  # as earlier versions
    ran = evaluate("--from-lighteval", path, "--json")
    assert ran.value("em,none") == pytest.approx(numbers["em"])
    assert "not known" not in ran.err
    (written,) = tmp_path.rglob("results_*.json")
    written.write_text("{")
    ran = evaluate("--from-lighteval", path)
    assert ran.code == 2
    assert f"{written.name}: malformed JSON" in ran.err


def test_two_metrics_of_one_name_are_refused(evaluate: Evaluate, tmp_path: Path) -> None:
    rows = [detail(place, ["a"], {"g.5": 1.0, "g,5": 0.0}) for place in range(2)]
    ran = evaluate("--from-lighteval", details(tmp_path, "t|0", rows))
    assert ran.code == 2
    assert "two metrics would be called 'g_5'" in ran.err


def test_a_document_asked_in_two_ways_is_one_item(evaluate: Evaluate, tmp_path: Path) -> None:
    ways = [({"em": place, "acc": None}, ["a"], []) for place in (0, 1)]
    ways += [({"em": None, "acc": 1 - place}, [], [-1.0]) for place in (0, 1)]
    rows = [
        detail(number % 2, text, metric, doc={"id": str(number % 2)}, model_response={"logprobs": logprobs})
        for number, (metric, text, logprobs) in enumerate(ways)
    ]
    ran = evaluate("--from-lighteval", details(tmp_path, "t|0", rows), "--json")
    said = ("metric", "value", "n_items", "n_unscored")
    found = {tuple(row[name] for name in said) for row in ran.document["results"]}
    assert found == {("em", 0.5, 2, 0), ("acc", 0.5, 2, 0)}


def test_what_has_no_scores_is_left_out_of_a_folder(evaluate: Evaluate, tmp_path: Path) -> None:
    made_results(tmp_path, 1)
    opencompass(tmp_path, "bare", {"0": answered(0, "a")}, {"accuracy": 0.0})
    opencompass(
        tmp_path, "plain", {"0": answered(0, "a")}, {"accuracy": 0.0, "details": {"0": {"pred": "a"}}}
    )
    for folder in (tmp_path, tmp_path / "results", tmp_path / "results" / "qwen"):
        ran = evaluate("--from-opencompass", folder, "--json", "--dry-run")
        assert ran.code == 0, ran.err
        assert (
            "bare.json: has no details; run OpenCompass with --dump-eval-details; it is left out" in ran.err
        )
        assert "plain.json: its details have no score for each sample" in ran.err


def test_repeats_without_details_of_their_own_are_samples_of_one_item(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    golds = "ABA" * 2
    asked = {
        str(place): {
            "label: A": {"testing input": f"Which, {place % 3}?", "PPL": 1.0},
            "prediction": "A",
            "gold": gold,
        }
        for place, gold in enumerate(golds)
    }
    right = [True, False, False, True, True, False]
    found = {str(place): {"predictions": "A", "correct": one} for place, one in enumerate(right)}
    path = opencompass(tmp_path, "which", asked, {"accuracy": 200 / 3, "details": {"type": "PPL", **found}})
    ran = evaluate("--from-opencompass", path, "--json")
    (row,) = ran.document["results"]
    assert (row["value"], row["n_items"], row["n_samples"]) == (0.5, 3, 6)
    assert (
        "the mean of 'correct' over samples, 0.5, is none of OpenCompass's numbers: 'accuracy' is 66.6667"
        in ran.err
    )
    assert [one["prompt"] for one in answers_of(ran)] == [f"Which, {place}?" for place in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("as_text", [True, False])
def test_flat_details_of_earlier_versions_of_lighteval_are_read(
    as_text: bool, evaluate: Evaluate, tmp_path: Path
) -> None:
    rows: list[dict[str, Any]] = [
        {"example": "q?", "full_prompt": "Q: q?", "gold": ["a"], "choices": [], "gold_index": [],
         "predictions": ["a" if place else "b"], "metrics": {"qem": place}, "specifics": {"x": 1}}
        for place in range(3)
    ]  # fmt: skip
    if as_text:
        rows = [{name: str(value) for name, value in row.items()} for row in rows]
    rows = [{**row, "metrics": str({"qem": int(place > 0)}) if as_text else {"qem": int(place > 0)}}
            for place, row in enumerate(rows)]  # fmt: skip
    ran = evaluate("--from-lighteval", details(tmp_path, "lighteval|q|0", rows), "--json")
    assert ran.code == 0, ran.err
    assert ran.value("qem,none") == pytest.approx(2 / 3)
    answers = answers_of(ran)
    assert [one["response"] for one in answers] == ["b", "a", "a"]
    assert answers[0]["prompt"] == "Q: q?"


def test_predictions_in_parts_and_likelihoods_of_opencompass_are_read(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    asked = [
        {
            "origin_prompt": "Which?",
            "label: A": {"testing input": "Which?", "prompt": "Which? A", "PPL": 1.0},
            "label: B": {"testing input": "Which?", "prompt": "Which? B", "PPL": 2.0},
            "prediction": "A",
            "gold": gold,
        }
        for gold in "ABA"
    ]
    found = {"type": "PPL"} | {
        str(place): {"predictions": "A", "references": one["gold"], "correct": one["gold"] == "A"}
        for place, one in enumerate(asked)
    }
    parts = [{"0": asked[0], "1": asked[1]}, {"0": asked[2]}]
    path = opencompass(tmp_path, "which", parts, {"accuracy": 66.7, "details": found})
    ran = evaluate("--from-opencompass", path, "--json")
    assert ran.code == 0, ran.err
    assert ran.value("correct,none") == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("program", "make", "told"),
    [
        ("lighteval", lambda folder: folder, "expected details of lighteval"),
        ("lighteval", lambda folder: details(folder, "t|0", [{"a": 1}]), "no column 'metric'"),
        ("lighteval", lambda folder: details(folder, "t|0", [detail(0, ["a"], {"x": "t"})]), "has a score"),
        ("opencompass", lambda folder: folder, "expected a folder of OpenCompass"),
        ("opencompass", lambda folder: opencompass(folder, "d", {}, {"accuracy": 1}), "has no details"),
        ("opencompass", lambda folder: opencompass(folder, "d", [], {"details": []}), "no predictions"),
        ("opencompass", lambda folder: opencompass(
            folder, "d", {"0": answered(0, "a")}, {"details": {"0": {"predictions": "a"}}}
        ), "no score for each sample"),
        ("opencompass", lambda folder: opencompass(
            folder, "d", {"1": answered(0, "a")}, {"details": {"0": {"correct": True}}}
        ), "no prediction '0'"),
        ("opencompass", lambda folder: opencompass(
            folder, "d", {"0": answered(0, "a")}, {"details": {place: {"correct": True} for place in "01"}}
        ), "2 samples × 1, and there are 1 predictions"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    program: str, make: Callable[[Path], Path], told: str, evaluate: Evaluate, tmp_path: Path
) -> None:
    ran = evaluate(f"--from-{program}", make(tmp_path))
    assert ran.code == 2
    assert told in ran.err


def test_each_program_has_a_flag_and_two_are_refused(evaluate: Evaluate, tmp_path: Path) -> None:
    flags = [text for program in PROGRAMS for text in (f"--from-{program}", str(tmp_path))]
    ran = evaluate(*flags)
    assert ran.code == 2
    assert " and ".join(f"--from-{program}" for program in PROGRAMS) in ran.err
