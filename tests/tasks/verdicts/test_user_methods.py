import sys
from collections.abc import Callable
from typing import Any

import pytest

from metrics.errors import ConfigError, NightjarError
from tasks.rows.parts import Origin, Part, from_batches
from tasks.verdicts.config import EvaluationMethodConfig
from tasks.verdicts.methods import build_method
from tasks.verdicts.rows import evaluate

ORIGIN = Origin("qwen", "cot", {"model_id": "Qwen/Qwen3-8B", "sampling": {"temperature": 0.5}})
OWN = {"name": "quality", "function": "eval.py:judge"}


def rows(part: Part) -> list[dict[str, Any]]:
    columns = ["item_id", "sample_index", "label", "scored", "score", "passed", "error", "evaluation_time"]
    return [row for batch in part.statistics(columns) for row in batch.to_pylist()]


def test_a_method_sees_the_response_the_truth_and_everything_about_the_inference(
    asking: Any, judged: Callable[..., Part]
) -> None:
    seen: list[dict[str, Any]] = []

    def judge(
        response: str, ground_truth: Any, inference_result: dict[str, Any], weight: int
    ) -> dict[str, Any]:
        seen.append({"response": response, "truth": ground_truth, "weight": weight, **inference_result})
        return {"label": "fine", "result": {"passed": True}}

    items = asking({"a": "1"}, {"a": {"subject": "maths"}})
    judged(
        {**OWN, "params": {"weight": 3}},
        items,
        {"a": [{"response": "eins", "finish_reason": "stop"}]},
        ORIGIN,
        judge,
    )

    [call] = seen
    assert (call["response"], call["truth"], call["weight"], call["item_id"]) == ("eins", "1", 3, "a")
    assert call["item"] == {"question": "a", "subject": "maths"}
    assert call["metadata"]["model_id"] == "Qwen/Qwen3-8B"
    assert call["metadata"]["finish_reason"] == "stop"
    assert (call["model_name"], call["prompt_template"]) == ("qwen", "cot")


def test_a_method_is_given_the_ground_truth_as_the_item_has_it(
    asking: Any, judged: Callable[..., Part]
) -> None:
    seen = []

    def judge(response: str, ground_truth: Any, inference_result: Any) -> dict[str, Any]:
        seen.append(ground_truth)
        return {"result": {"passed": True}}

    truths = [["1", "2"], ["1"], [], {"x": 1}, [{"x": 1}], [["a", "b"]], 18, 0.5, True, False, [1, 2], "s"]
    ids = [str(number) for number in range(len(truths))]
    judged(OWN, asking(dict(zip(ids, truths, strict=True))), {name: ["r"] for name in ids}, ORIGIN, judge)
    assert [(truth, type(truth)) for truth in seen] == [(truth, type(truth)) for truth in truths]


@pytest.mark.parametrize(
    ("references", "given"), [(["to"], "to"), (["to", "too"], ["to", "too"]), ([], None)]
)
def test_an_item_without_ground_truth_has_the_target_s_answers(
    asking: Any, judged: Callable[..., Part], references: list[str], given: Any
) -> None:
    seen = []

    def judge(response: str, ground_truth: Any, inference_result: Any) -> dict[str, Any]:
        seen.append(ground_truth)
        return {"result": {"passed": True}}

    items = asking({"a": None}, references={"a": references})
    judged(OWN, items, {"a": ["r"]}, ORIGIN, judge)
    assert seen == [given]


def test_what_a_method_does_to_its_arguments_is_not_seen_in_its_next_call(
    asking: Any, judged: Callable[..., Part]
) -> None:
    def judge(
        response: str, ground_truth: Any, inference_result: dict[str, Any], wanted: list[str]
    ) -> dict[str, Any]:
        temperature = inference_result["metadata"]["sampling"].pop("temperature", None)
        return {"result": {"passed": ground_truth["answers"].pop() == wanted.pop() and temperature == 0.5}}

    items = asking({"a": {"answers": ["x"]}, "b": {"answers": ["x"]}})
    part = judged(
        {**OWN, "params": {"wanted": ["x"]}}, items, {"a": ["r", "r"], "b": ["r", "r"]}, ORIGIN, judge
    )

    assert [(row["passed"], row["error"]) for row in rows(part)] == [(True, None)] * 4
    assert ORIGIN.metadata["sampling"] == {"temperature": 0.5}


def test_several_labels_are_several_rows(asking: Any, judged: Callable[..., Part]) -> None:
    def judge(response: str, **_: Any) -> dict[str, Any]:
        return {
            "labels": [{"label": name, "result": {"score": n}} for n, name in enumerate(("short", "kind"))]
        }

    part = judged(OWN, asking({"a": "1"}), {"a": ["x", "y"]}, ORIGIN, judge)
    assert [(row["sample_index"], row["label"], row["score"]) for row in rows(part)] == [
        (0, "short", 0.0), (0, "kind", 1.0), (1, "short", 0.0), (1, "kind", 1.0),
    ]  # fmt: skip


def test_a_method_that_raises_leaves_that_row_unscored_and_goes_on(
    asking: Any, judged: Callable[..., Part]
) -> None:
    def judge(response: str, ground_truth: Any, inference_result: Any) -> dict[str, Any]:
        return {"label": "n", "result": {"score": 1 / int(response)}}

    part = judged(OWN, asking({"a": "1"}), {"a": ["2", "0", "zwei", "4"]}, ORIGIN, judge)

    assert [row["score"] for row in rows(part)] == [0.5, None, None, 0.25]
    assert [row["scored"] for row in rows(part)] == [True, False, False, True]
    assert rows(part)[1]["error"] == "evaluation method 'quality': ZeroDivisionError: division by zero"
    assert "ValueError" in rows(part)[2]["error"]


def test_a_method_is_never_called_for_a_failed_request(asking: Any, judged: Callable[..., Part]) -> None:
    called = []

    def judge(response: str, ground_truth: Any, inference_result: Any) -> dict[str, Any]:
        called.append(response)
        return {"label": "n", "result": {"passed": True}}

    part = judged(OWN, asking({"a": "1"}), {"a": [None, "x"]}, ORIGIN, judge)

    assert called == ["x"]
    assert [(row["label"], row["scored"], row["evaluation_time"] is None) for row in rows(part)] == [
        (None, False, True),
        ("n", True, False),
    ]


def test_a_failed_request_keeps_the_label_of_a_built_in(asking: Any, judged: Callable[..., Part]) -> None:
    part = judged("exact_match", asking({"a": "1"}), {"a": [None]})
    assert [(row["label"], row["scored"], row["score"]) for row in rows(part)] == [
        ("exact_match", False, None)
    ]


@pytest.mark.parametrize(
    ("function", "params", "said"),
    [
        (
            lambda answer, truth, row: None,
            {},
            "must take response, ground_truth, inference_result by these names",
        ),
        (
            lambda response, weight=1: None,
            {"wieght": 2},
            "does not take the argument 'wieght'; did you mean 'weight'",
        ),
        (
            lambda response, ground_truth, strict: None,
            {},
            "needs the argument 'strict'; give it under params:",
        ),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_before_anything_runs(
    function: Callable[..., Any], params: dict[str, Any], said: str
) -> None:
    config = EvaluationMethodConfig.model_validate({**OWN, "params": params})
    with pytest.raises(ConfigError, match=said):
        build_method(config, lambda _: function)


def test_the_function_decides_the_fingerprint_and_built_ins_have_none() -> None:
    def judge(response: str) -> None: ...

    assert build_method(EvaluationMethodConfig.model_validate(OWN), lambda _: judge).code() == (judge,)
    assert build_method(EvaluationMethodConfig.model_validate("contains"), lambda _: judge).code() == ()


def test_artifacts_that_do_not_belong_together_are_refused(asking: Any) -> None:
    method = build_method(EvaluationMethodConfig.model_validate("contains"), lambda _: None)
    answers = asking({"a": "1", "b": "2"}).answered({"b": ["2"]})
    requests = from_batches([asking({"a": "1"}).requests])
    with pytest.raises(NightjarError, match="do not belong together"):
        list(evaluate(method, ORIGIN, requests, from_batches([answers])))


def test_a_method_that_exits_leaves_a_response_unscored(asking: Any, judged: Callable[..., Part]) -> None:
    def judge(response: str, ground_truth: Any, inference_result: Any) -> None:
        sys.exit(0)

    [row] = rows(judged(OWN, asking({"a": "1"}), {"a": ["r"]}, ORIGIN, judge))
    assert (row["scored"], row["error"]) == (False, "evaluation method 'quality': SystemExit: 0")
