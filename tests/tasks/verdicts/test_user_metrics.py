import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import numpy as np
import orjson
import pytest

from metrics.errors import ConfigError, MetricError
from tasks.reduction.verdict_metrics import build_evaluation_metric, call_metric, reduce_metric
from tasks.reporting.exports import metric_line
from tasks.rows.parts import FailedPart, Origin, Part
from tasks.verdicts.config import EvaluationMetricConfig
from tasks.verdicts.rows import JudgedPart, evaluation_rows, method_labels

OWN = {"name": "spread", "function": "metrics.py:spread"}
ORIGIN = Origin("qwen", "cot", {"model_id": "Qwen/Qwen3-8B", "sampling": {"temperature": 0.5}})


def called(
    function: Callable[..., Any], parts: list[Part], failed: tuple[FailedPart, ...] = (), **more: Any
) -> Any:
    metric = build_evaluation_metric(
        EvaluationMetricConfig.model_validate({**OWN, **more}), lambda _: function, []
    )
    labels = method_labels(parts)
    judged = [JudgedPart(part, labels[str(part.method)]) for part in parts]
    assert list(reduce_metric(metric, "demo", parts)) == []
    rows = [row for batch in call_metric(metric, "demo", judged, failed) for row in batch.to_pylist()]
    return [
        {**row, "facets": orjson.loads(row["facets"]), "own": orjson.loads(row["values_json"] or "{}")}
        for row in rows
    ]


@pytest.fixture
def parts(asking: Any, judged: Callable[..., Part]) -> list[Part]:
    items = asking({"a": "1", "b": "2"}, {"a": {"subject": "maths"}})
    answers = {"a": ["1", "x"], "b": ["2", None]}
    return [judged("exact_match", items, answers, ORIGIN), judged("contains", items, answers, ORIGIN)]


def test_a_user_s_metric_sees_one_group_at_a_time_with_its_facets(parts: list[Part]) -> None:
    seen = []

    def spread(evaluation_results: list[dict[str, Any]], facets: Any, scale: int) -> dict[str, Any]:
        seen.append((list(facets), facets.values()))
        scores = [row["score"] for row in evaluation_results if row["status"] == "ok"]
        return {"spread": scale * (max(scores) - min(scores)), "n": len(evaluation_results)}

    rows = called(
        spread, parts, facets=["item.subject", "metadata.sampling.temperature"], params={"scale": 2}
    )

    names = ["item.subject", "metadata.sampling.temperature"]
    assert seen == [
        (names, {"item.subject": subject, "metadata.sampling.temperature": 0.5, "label": label})
        for label in ("exact_match", "contains")
        for subject in ("maths", "unknown")
    ]
    assert [row["value"] for row in rows] == [2.0, 0.0, 2.0, 0.0]
    assert rows[0]["own"] == {"spread": 2.0, "n": 2}
    assert [(row["n_items"], row["n_samples"], row["n_scored"], row["n_unscored"]) for row in rows[:2]] == [
        (1, 2, 2, 0), (1, 2, 1, 1),
    ]  # fmt: skip


def test_facets_of_a_user_s_metric_are_fields_of_the_rows(parts: list[Part]) -> None:
    rows = called(
        lambda evaluation_results: {"n": len(evaluation_results)},
        parts[:1],
        facets=["attempts", "metadata.attempts", "label"],
    )
    assert [(row["facets"], row["value"]) for row in rows] == [
        ({"attempts": "unknown", "metadata.attempts": 1}, 4.0)
    ]


def test_the_params_of_each_group_are_those_of_the_config(parts: list[Part]) -> None:
    rows = called(
        lambda evaluation_results, wanted: {"n": wanted.pop()}, parts[:1], params={"wanted": [1, 2]},
        facets=["item.subject"],
    )  # fmt: skip
    assert [row["value"] for row in rows] == [2.0, 2.0]


def test_a_number_alone_is_a_value(parts: list[Part]) -> None:
    assert [row["value"] for row in called(lambda evaluation_results: 7, parts)] == [7.0, 7.0]


@pytest.mark.parametrize(
    ("returned", "value", "stderr"),
    [
        ({"significant": True, "accuracy": 0.25}, 0.25, None),
        ({"accuracy": 0.25, "value": True}, 1.0, None),
        ({"accuracy": 0.25, "spread": False}, 0.0, None),
        ({"accuracy": 0.25, "stderr": True}, 0.25, None),
        ({"stderr": 0.5, "accuracy": 0.25}, 0.25, 0.5),
    ],
)
def test_a_truth_value_is_not_the_first_number(
    parts: list[Part], returned: Any, value: float | None, stderr: float | None
) -> None:
    [row, _] = called(lambda evaluation_results: returned, parts)
    assert (row["value"], row["stderr"]) == (value, stderr)


@pytest.mark.parametrize("returned", [{}, {"value": "0.5"}, {"significant": True, "stderr": 0.5}])
def test_a_group_of_which_no_number_is_returned_has_failed_and_says_what_came(
    parts: list[Part], returned: Any
) -> None:
    [row, _] = called(lambda evaluation_results: returned, parts)
    assert (row["status"], row["value"], row["own"]) == ("failed", None, returned)
    assert row["error"] == f"metric 'spread' (metrics.py:spread) returned no number: {returned}"


def test_an_array_of_several_numbers_is_none_and_stays_among_what_was_returned(parts: list[Part]) -> None:
    [row, _] = called(lambda evaluation_results: {"counts": np.array([3, 1]), "x": 0.5}, parts)
    assert (row["value"], row["own"]) == (0.5, {"counts": [3, 1], "x": 0.5})
    [row, _] = called(lambda evaluation_results: np.array([0.5]), parts)
    assert row["value"] == 0.5
    with pytest.raises(MetricError, match="must return a dictionary, or a list of one, not ndarray"):
        called(lambda evaluation_results: np.array([3, 1]), parts)


def test_a_list_of_one_dictionary_is_that_dictionary(parts: list[Part]) -> None:
    [row, _] = called(lambda evaluation_results, facets: [{"n": 2, "label": facets["label"]}], parts)
    assert (row["value"], row["label"], row["own"]) == (2.0, "exact_match", {"n": 2, "label": "exact_match"})
    with pytest.raises(MetricError, match="a list of one, not list of 2"):
        called(lambda evaluation_results: [{"n": 2}, {"n": 3}], parts)


def test_what_a_metric_returns_never_takes_the_place_of_the_line(parts: list[Part]) -> None:
    def told(evaluation_results: Any) -> dict[str, Any]:
        return {"share": 0.5, "label": "mine", "facets": "all", "status": "odd", "n": 3}

    metric = build_evaluation_metric(EvaluationMetricConfig.model_validate(OWN), lambda _: told, [])
    judged = [JudgedPart(parts[0], ["exact_match"])]
    [row] = [row for batch in call_metric(metric, "demo", judged) for row in batch.to_pylist()]
    line = metric_line(row)
    assert (line["label"], line["facets"], line["status"], line["value"], line["n"]) == (
        "exact_match", [], "ok", 0.5, 3,
    )  # fmt: skip
    returned = {name: line[f"returned_{name}"] for name in ("label", "facets", "status")}
    assert returned == {"label": "mine", "facets": "all", "status": "odd"}


def test_a_value_that_json_has_no_number_for_is_said(parts: list[Part]) -> None:
    [row, _] = called(lambda evaluation_results: {"x": float("inf"), "y": float("nan")}, parts)
    assert (row["value"], row["status"]) == (float("inf"), "ok")
    assert "the value is inf" in row["error"]
    assert row["own"] == {"x": "inf", "y": "nan"}


def test_labels_choose_what_a_user_s_metric_sees(parts: list[Part]) -> None:
    rows = called(
        lambda evaluation_results: {"n": len(evaluation_results)}, parts, labels={"exclude": ["contains"]}
    )
    assert [(row["label"], row["value"]) for row in rows] == [("exact_match", 4.0)]


def test_a_metric_that_raises_names_itself_and_the_group(parts: list[Part]) -> None:
    def spread(evaluation_results: Any) -> dict[str, Any]:
        raise KeyError("nope")

    with pytest.raises(
        MetricError, match=r"metric 'spread' \(metrics.py:spread\) on label 'exact_match' .*nope"
    ):
        called(spread, parts)
    with pytest.raises(MetricError, match="must return a dictionary, or a list of one, not str"):
        called(lambda evaluation_results: "high", parts)
    with pytest.raises(MetricError, match="not JSON"):
        called(lambda evaluation_results: {"value": 1, "more": object()}, parts)


def test_a_function_that_takes_no_evaluation_results_is_refused(parts: list[Part]) -> None:
    with pytest.raises(
        ConfigError, match="must take evaluation_results, facets by these names; it takes rows"
    ):
        called(lambda rows: {}, parts)


def test_a_failed_part_fails_the_group_without_calling_the_metric(parts: list[Part]) -> None:
    def spread(evaluation_results: Any) -> dict[str, Any]:
        raise AssertionError

    rows = called(spread, parts, (FailedPart(ORIGIN, "boom"),), facets=["model_name"])
    assert [(row["status"], row["error"], row["value"]) for row in rows] == [("failed", "boom", None)] * 2


def test_evaluation_rows_carry_the_item_the_response_s_metadata_and_the_method(
    asking: Any, judged: Callable[..., Part]
) -> None:
    def judge(response: str, ground_truth: Any, inference_result: Any) -> Any:
        result = {
            "passed": response == ground_truth,
            "details": {"why": "gleich"},
            "custom_fields": {"tp": 1},
        }
        label = {"name": "right", "description": "Equal"}
        return {"labels": [{"label": label, "result": result}], "custom_fields": {"version": 7}}

    began = time.time()
    items = asking({"a": "1"}, {"a": {"subject": "maths"}})
    part = judged(
        {**OWN, "name": "mine"}, items, {"a": [{"response": "1", "response_id": "r-1"}, None]}, ORIGIN, judge
    )
    first, failed = evaluation_rows(JudgedPart(part, ["right"], "Looks alike", {"strict": True}))
    judged_at = datetime.fromisoformat(first["timestamp"])
    assert judged_at.tzinfo is not None
    assert judged_at.timestamp() == pytest.approx(first["timestamp_unix"], abs=1e-3)
    assert began - 1 <= first["timestamp_unix"] <= time.time() + 1

    assert first == {
        "item_id": "a",
        "sample_id": "a_sample_0",
        "sample_index": 0,
        "label": "right",
        "model_name": "qwen",
        "prompt_template": "cot",
        "passed": True,
        "score": 1.0,
        "status": "ok",
        "error": None,
        "detailed_results": {"description": "Equal", "why": "gleich", "tp": 1},
        "evaluation_time": first["evaluation_time"],
        "timestamp": first["timestamp"],
        "timestamp_unix": first["timestamp_unix"],
        "metadata": {
            "model_id": "Qwen/Qwen3-8B",
            "prompt_template": "cot",
            "sampling": {"temperature": 0.5},
            "response_id": "r-1",
            "attempts": 1,
            "evaluation_method": {"name": "mine", "description": "Looks alike", "params": {"strict": True}},
            "custom_fields": {"version": 7},
        },
        "item": {"question": "a", "subject": "maths"},
    }
    assert (failed["label"], failed["status"], failed["error"]) == ("right", "infra_error", "timed out")
    assert (failed["passed"], failed["score"]) == (None, None)


def test_labels_of_a_method_are_those_it_gave_anywhere(parts: list[Part]) -> None:
    assert method_labels(parts) == {"exact_match": ["exact_match"], "contains": ["contains"]}


def test_a_metric_that_exits_is_named(parts: list[Part]) -> None:
    def spread(evaluation_results: list[dict[str, Any]]) -> None:
        sys.exit(0)

    with pytest.raises(MetricError, match=r"metric 'spread' .*: SystemExit: 0$"):
        called(spread, parts)
