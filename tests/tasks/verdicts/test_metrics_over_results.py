import math
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.config import StatisticsConfig
from metrics.reductions.reduction import Repeats
from metrics.statistics.estimate import estimate
from tasks.reduction.estimators import mean_of_samples, quantile_of_samples, trials
from tasks.reduction.verdict_metrics import (
    METRIC_ROWS,
    aggregate_metric,
    build_evaluation_metric,
    reduce_metric,
)
from tasks.rows.parts import FailedPart, Origin, Part
from tasks.store.schemas import RESULTS
from tasks.verdicts.config import EvaluationMetricConfig

OPTIONS = StatisticsConfig()


def rows_of(
    config: dict[str, Any], parts: list[Part], failed: tuple[FailedPart, ...] = ()
) -> list[dict[str, Any]]:
    metric = build_evaluation_metric(EvaluationMetricConfig.model_validate(config), lambda _: None, [])
    batches = list(aggregate_metric(metric, "demo", reduce_metric(metric, "demo", parts), OPTIONS, failed))
    assert all(batch.schema == METRIC_ROWS for batch in batches)
    return [
        {**row, "facets": orjson.loads(row["facets"]), **orjson.loads(row["values_json"] or "{}")}
        for batch in batches
        for row in batch.to_pylist()
    ]


def pass_at(k: int, trials: int | None, aggregation: str = "mean", **more: Any) -> dict[str, Any]:
    params = {"k": k, "aggregation": aggregation} | ({} if trials is None else {"num_trials": trials})
    return {"name": f"pass@{k}", "type": "pass_at_k", "params": params, **more}


def unbiased(k: int) -> dict[str, Any]:
    return {"name": f"pass@{k}", "type": "pass_at_k", "params": {"k": k, "estimator": "unbiased"}}


@pytest.fixture
def worked_example(asking: Any, judged: Callable[..., Part]) -> Part:
    return judged("exact_match", asking({"a": "1", "b": "2"}), {"a": ["1", "1", "1"], "b": ["2", "2", "no"]})


def test_the_worked_example_gives_pass_at_1_over_three_trials(worked_example: Part) -> None:
    [row] = rows_of(pass_at(1, 3), [worked_example])

    assert row["pass_at_k"] == row["value"] == pytest.approx(5 / 6)
    assert row["stderr"] == pytest.approx(np.std([1, 2 / 3], ddof=1) / np.sqrt(2))
    assert (row["n_items"], row["n_samples"], row["label"], row["status"]) == (2, 6, "exact_match", "ok")


def test_no_interval_of_a_share_leaves_zero_to_one(worked_example: Part) -> None:
    for metric in (pass_at(1, 3), unbiased(1), {"name": "pass_rate"}):
        [row] = rows_of(metric, [worked_example])
        assert 0 <= row["ci_low"] < row["value"] < row["ci_high"] <= 1


def test_the_worked_example_gives_the_mean(worked_example: Part) -> None:
    [row] = rows_of({"name": "mean"}, [worked_example])
    assert row["mean"] == row["value"] == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ({"name": "median"}, 1.0),
        ({"name": "median", "params": {"estimator": "items"}}, 5 / 6),
        ({"name": "percentile", "params": {"percentile": 0}}, 0.0),
        ({"name": "percentile", "params": {"percentile": 0, "estimator": "items"}}, 2 / 3),
        ({"name": "percentile"}, 1.0),
        ({"name": "percentile", "params": {"percentile": 100}}, 1.0),
        ({"name": "pass_rate"}, 5 / 6),
        ({"name": "count"}, 6.0),
        (pass_at(3, 1), 1.0),
        (pass_at(1, 3, "min"), 0.5),
        (pass_at(1, 3, "median"), 1.0),
        (pass_at(1, 3, "max"), 1.0),
        (pass_at(1, None), 1.0),
        (unbiased(1), 5 / 6),
        (unbiased(2), 1.0),
    ],
)
def test_built_in_metrics_of_the_worked_example(
    worked_example: Part, metric: dict[str, Any], value: float
) -> None:
    [row] = rows_of(metric, [worked_example])

    kind = metric.get("type", metric["name"])
    assert row["value"] == pytest.approx(value)
    assert row[kind] == row["value"]


@pytest.mark.parametrize(
    ("percentile", "items", "samples"), [(50, 15, 1), (50, 15, 4), (95, 15, 1), (95, 100, 4)]
)
def test_the_interval_of_a_percentile_of_all_samples_holds_as_it_says(
    percentile: float, items: int, samples: int
) -> None:
    aggregation = quantile_of_samples(percentile / 100).aggregation
    rng, true, held = np.random.default_rng(items), -math.log(1 - percentile / 100), []
    for _ in range(200):
        own, other = rng.exponential(size=(2, items, samples))
        scores = np.where(rng.random((items, 1)) < 0.5, own[:, :1], other)  # half of the items are alike
        made = estimate(aggregation, None, scores.tolist(), None, OPTIONS)
        held.append(made.ci_low <= true <= made.ci_high)
    assert np.mean(held) >= 0.95 - 3 * (0.95 * 0.05 / 200) ** 0.5


def test_a_high_percentile_of_the_samples_of_few_items_has_no_upper_end() -> None:
    scores = np.random.default_rng(1).exponential(size=(12, 16)).tolist()
    aggregation = quantile_of_samples(0.95).aggregation
    made = estimate(aggregation, None, scores, None, OPTIONS)
    assert (made.n_items, made.ci_high, made.stderr_method) == (12, math.inf, "woodruff")
    assert made.ci_low < made.value
    assert made.warning == "12 items are too few for an interval of this level"
    clustered = estimate(aggregation, None, scores, np.arange(12) // 2, OPTIONS)
    assert clustered.stderr_method == "woodruff, clustered"
    assert "only 6 clusters" in str(clustered.warning)


@pytest.mark.parametrize(("items", "warns"), [(30, True), (150, False)])
def test_few_items_with_most_of_the_samples_of_numbers_carry_a_warning(items: int, warns: bool) -> None:
    """They cover .87 to .91: such a mean is a ratio, as that of weighted items is."""
    counts = np.where(np.arange(items) % 2, 20, 1)
    scores = np.random.default_rng(2).lognormal(size=counts.sum())
    estimator = mean_of_samples((-math.inf, math.inf))
    ones, none = np.ones(len(scores), dtype=bool), np.full(len(scores), -1)
    reduced = estimator.reduce(Repeats(scores, ones, none, np.cumsum([0, *counts])))
    made = estimate(estimator.aggregation, reduced.statistics, None, None, OPTIONS)
    assert made.value == pytest.approx(scores.mean())
    assert ("weigh as 16 equal ones" in str(made.warning)) == warns


@pytest.mark.parametrize("metric", ["median", "percentile"])
def test_samples_that_are_all_alike_have_no_interval_of_a_quantile(
    asking: Any, judged: Callable[..., Part], metric: str
) -> None:
    names = [f"i{number}" for number in range(100)]
    part = judged("exact_match", asking(dict.fromkeys(names, "1")), {name: ["1", "1"] for name in names})
    [row] = rows_of({"name": metric}, [part])
    assert (row["value"], row["ci_low"], row["ci_high"]) == (1.0, None, None)
    assert "nothing varies" in row["warning"]


def test_two_models_and_two_templates_give_four_rows_per_label_and_metric(
    asking: Any, judged: Callable[..., Part]
) -> None:
    items = asking({"a": "1", "b": "2"})
    parts = [
        judged(
            "exact_match",
            items,
            {"a": ["1"], "b": [answer]},
            Origin(model, prompt, {"model_id": f"org/{model}"}),
        )
        for model, answer in (("x", "2"), ("y", "3"))
        for prompt in ("plain", "cot")
    ]
    for config in (pass_at(1, 1), {"name": "mean", "type": "mean"}):
        rows = rows_of({**config, "facets": ["metadata.model_id", "prompt_template"]}, parts)
        assert [(*row["facets"].values(), row["value"]) for row in rows] == [
            ("org/x", "plain", 1.0), ("org/x", "cot", 1.0), ("org/y", "plain", 0.5), ("org/y", "cot", 0.5),
        ]  # fmt: skip


def test_samples_of_several_models_are_repeats_of_an_item_where_no_facet_holds_them_apart(
    asking: Any, judged: Callable[..., Part]
) -> None:
    items = asking({"a": "1"})
    parts = [
        judged("exact_match", items, {"a": [answer]}, Origin(answer, "plain")) for answer in ("1", "2", "1")
    ]

    [row] = rows_of(pass_at(1, 3, facets=[]), parts)
    assert (row["value"], row["n_items"], row["n_samples"]) == (pytest.approx(2 / 3), 1, 3)


def test_an_item_that_lacks_samples_is_unscored_named_and_counted_and_never_zero(
    asking: Any, judged: Callable[..., Part]
) -> None:
    items = asking({"a": "1", "b": "2"})
    part = judged("exact_match", items, {"a": ["1", "1", "1"], "b": ["2", None, "2"]})

    [row] = rows_of(pass_at(1, 3), [part])
    assert (row["value"], row["n_items"], row["n_samples"], row["n_unscored"]) == (1.0, 2, 6, 1)
    assert "1 of 2 items are unscored: b" in row["error"]

    [mean] = rows_of({"name": "mean"}, [part])
    assert mean["value"] == 1.0


def test_nothing_scored_has_failed_and_is_no_number(asking: Any, judged: Callable[..., Part]) -> None:
    [row] = rows_of({"name": "mean"}, [judged("exact_match", asking({"a": "1"}), {"a": [None, None]})])
    assert (row["status"], row["value"], row["mean"], row["n_unscored"]) == ("failed", None, None, 2)
    assert row["error"].startswith("nothing could be scored; 1 of 1 items are unscored: a")


def test_a_sample_that_was_never_judged_counts_under_every_label_of_its_method(
    asking: Any, judged: Callable[..., Part]
) -> None:
    def judge(response: str, ground_truth: Any, inference_result: Any) -> Any:
        return [{"label": label, "result": {"passed": True}} for label in ("kind", "short")]

    own = {"name": "quality", "function": "f.py:judge"}
    items = asking({"a": "1", "b": "2"})
    parts = [
        judged(own, items, {"a": ["x", None], "b": [None, None]}, function=judge),
        judged("exact_match", items, {"a": ["1", "1"], "b": ["2", "2"]}),
    ]

    rows = {row["label"]: row for row in rows_of({"name": "mean"}, parts)}
    assert list(rows) == ["kind", "short", "exact_match"]
    assert [(row["n_items"], row["n_samples"], row["n_unscored"]) for row in rows.values()] == [
        (2, 4, 3), (2, 4, 3), (2, 4, 0),
    ]  # fmt: skip


def test_a_method_that_never_judged_anything_stands_under_its_own_name(
    asking: Any, judged: Callable[..., Part]
) -> None:
    own = {"name": "quality", "function": "f.py:judge"}
    [row] = rows_of(
        {"name": "mean"}, [judged(own, asking({"a": "1"}), {"a": [None]}, function=lambda response: None)]
    )
    assert (row["label"], row["status"]) == ("quality", "failed")


def test_labels_are_included_or_excluded(asking: Any, judged: Callable[..., Part]) -> None:
    items = asking({"a": "1"})
    parts = [judged(kind, items, {"a": ["1"]}) for kind in ("exact_match", "contains")]

    assert [row["label"] for row in rows_of({"name": "mean"}, parts)] == ["exact_match", "contains"]
    for labels in ({"include": ["contains"]}, {"exclude": ["exact_match"]}):
        assert [row["label"] for row in rows_of({"name": "mean", "labels": labels}, parts)] == ["contains"]


def test_a_metric_that_looks_at_no_label_there_is_has_failed(
    asking: Any, judged: Callable[..., Part]
) -> None:
    parts = [judged("exact_match", asking({"a": "1"}), {"a": ["1"]})]
    [row] = rows_of({"name": "mean", "labels": {"include": ["none"]}}, parts)
    assert (row["status"], row["value"], row["label"], row["n_samples"]) == ("failed", None, None, 0)
    assert row["error"] == "there is no evaluation result under the labels that metric 'mean' looks at"


def test_a_failed_part_fails_its_groups_and_no_others(asking: Any, judged: Callable[..., Part]) -> None:
    items = asking({"a": "1"})
    part = judged("exact_match", items, {"a": ["1"]}, Origin("x", "plain"))
    failed = (FailedPart(Origin("y", "plain"), "boom"),)

    rows = rows_of({"name": "mean", "facets": ["model_name"]}, [part], failed)
    assert [(row["model_name"], row["status"], row["value"]) for row in rows] == [
        ("x", "ok", 1.0),
        ("y", "failed", None),
    ]
    assert rows[1]["error"] == "boom"
    [pooled] = rows_of({"name": "mean", "facets": []}, [part], failed)
    assert (pooled["status"], pooled["value"]) == ("failed", None)


def test_a_failed_method_leaves_the_labels_of_others_alone(asking: Any, judged: Callable[..., Part]) -> None:
    origin = Origin("x", "plain")
    part = judged("exact_match", asking({"a": "1"}), {"a": ["1"]}, origin)
    failed = (FailedPart(origin, "boom", label="contains"),)

    rows = rows_of({"name": "mean", "facets": ["model_name"]}, [part], failed)
    assert [(row["label"], row["status"], row["value"]) for row in rows] == [
        ("exact_match", "ok", 1.0),
        ("contains", "failed", None),
    ]
    chosen = {"name": "mean", "facets": ["model_name"], "labels": {"exclude": ["contains"]}}
    assert [(row["label"], row["status"]) for row in rows_of(chosen, [part], failed)] == [
        ("exact_match", "ok")
    ]


def test_metric_rows_are_results_with_values_of_their_own(worked_example: Part) -> None:
    metric = build_evaluation_metric(
        EvaluationMetricConfig.model_validate("mean"), lambda _: None, ["model_name"]
    )
    [batch] = aggregate_metric(metric, "demo", reduce_metric(metric, "demo", [worked_example]), OPTIONS)

    assert batch.select(RESULTS.names).schema == RESULTS
    [row] = batch.to_pylist()
    assert (row["model_name"], row["filter"], row["metric"], row["reduction"]) == (
        "model",
        "none",
        "mean",
        "mean",
    )
    assert row["signature"].startswith("mean|agg:mean of samples")


def test_groups_with_fewer_samples_than_the_trials_need_have_failed(worked_example: Part) -> None:
    [row] = rows_of(pass_at(2, 2), [worked_example])
    assert (row["status"], row["value"]) == ("failed", None)
    assert "needs 4 samples of every item (k × num_trials), and 2 items have 6 together" in row["error"]
    assert "Too few have 2 of them, the least 3: a, b." in row["error"]
    rows = rows_of(pass_at(2, None, facets=["sample_index"]), [worked_example])
    assert [row["status"] for row in rows] == ["failed"] * 3


def test_one_item_with_too_few_samples_fails_the_number(asking: Any, judged: Callable[..., Part]) -> None:
    """The others' samples do not make up for it, and no count says that something is unscored."""
    items = asking({"a": "1", "b": "2"})
    part = judged("exact_match", items, {"a": ["1", "1", "1", "1"], "b": ["2"]})
    for config in (pass_at(1, 2), unbiased(2)):
        [row] = rows_of(config, [part])
        assert (row["status"], row["value"], row["n_unscored"]) == ("failed", None, 0)
        assert "Too few have 1 of them, the least 1: b." in row["error"]


def test_a_response_without_the_label_is_a_sample_too_few(asking: Any, judged: Callable[..., Part]) -> None:
    def judge(response: str, **_: Any) -> Any:
        labels = ["both", *(["some"] if response != "3" else [])]
        return [{"label": label, "result": {"passed": True}} for label in labels]

    own = {"name": "j", "function": "f.py:judge"}
    part = judged(own, asking({"a": "1", "b": "2"}), {"a": ["1", "1"], "b": ["2", "3"]}, function=judge)
    rows = {row["label"]: row for row in rows_of(pass_at(1, 2), [part])}
    assert (rows["both"]["status"], rows["both"]["value"]) == ("ok", 1.0)
    assert (rows["some"]["status"], rows["some"]["value"]) == ("failed", None)


def test_a_row_that_the_recording_lacks_is_no_sample(asking: Any, judged: Callable[..., Part]) -> None:
    """The framework's own numbers: the first row of each item in the file is right."""
    absent = {"status": "infra_error", "error": "no recorded response", "recorded_row": 0}
    other = [
        {"response": text, "recorded_row": place} for text, place in (("n", 2), ("n", 3), ("1", 1), ("n", 4))
    ]
    here = [{"response": text, "recorded_row": place} for text, place in (("n", 7), ("n", 6), ("2", 5))]
    part = judged("exact_match", asking({"a": "1", "b": "2"}), {"a": other, "b": [*here, absent]})
    [row] = rows_of(pass_at(1, None, facets=["status"]), [part])
    assert (row["value"], row["facets"]) == (1.0, {"status": "ok"})
    assert (row["n_samples"], row["n_items"], row["n_unscored"]) == (7, 2, 0)
    [whole] = rows_of(pass_at(4, None), [part])
    assert whole["status"] == "failed"


def test_a_field_of_a_label_is_a_facet_by_either_path(asking: Any, judged: Callable[..., Part]) -> None:
    def judge(response: str, **_: Any) -> Any:
        fields = {"why": response, "deep": {"n": len(response)}}
        return {"label": "x", "result": {"passed": True, "custom_fields": fields}}

    part = judged(
        {"name": "j", "function": "f.py:judge"}, asking({"a": "1"}), {"a": ["p", "qq"]}, function=judge
    )
    for place in ("detailed_results", "detailed_results.custom_fields"):
        rows = rows_of({"name": "count", "facets": [f"{place}.why", f"{place}.deep.n"]}, [part])
        assert [tuple(row["facets"].values()) for row in rows] == [("p", 1), ("qq", 2)]


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({}, "percentile_95.0"),
        ({"percentile": 95}, "percentile_95"),
        ({"percentile": 99.5}, "percentile_99.5"),
    ],
)
def test_a_percentile_stands_under_its_number_as_it_was_given(
    worked_example: Part, params: dict[str, Any], key: str
) -> None:
    [row] = rows_of({"name": "percentile", "params": params}, [worked_example])
    assert row[key] == row["value"]


def test_trials_follow_the_order_of_the_file(asking: Any, judged: Callable[..., Part]) -> None:
    samples = [{"response": text, "recorded_row": place} for text, place in (("1", 4), ("1", 2), ("x", 1))]
    other = [{"response": text, "recorded_row": place} for text, place in (("2", 3), ("y", 5), ("y", 6))]
    part = judged("exact_match", asking({"a": "1", "b": "2"}), {"a": samples, "b": other})
    [first] = rows_of(pass_at(1, None), [part])
    assert first["value"] == 0.5  # item a's first row of the file is wrong
    [best] = rows_of(pass_at(1, 3, "max"), [part])
    assert best["value"] == 0.5


def test_the_mean_is_over_samples_and_over_items_by_name(asking: Any, judged: Callable[..., Part]) -> None:
    part = judged("exact_match", asking({"a": "1", "b": "2"}), {"a": ["1"], "b": ["x", "x", "x"]})
    for name in ("mean", "pass_rate"):
        [row] = rows_of({"name": name}, [part])
        assert (row["value"], row["stderr"] > 0) == (0.25, True)
        [row] = rows_of({"name": name, "params": {"estimator": "items"}}, [part])
        assert row["value"] == 0.5


@pytest.mark.parametrize("samples", [["1", "1"], ["1"]])
def test_the_mean_of_verdicts_has_the_interval_of_a_share(
    asking: Any, judged: Callable[..., Part], samples: list[str]
) -> None:
    ids = [f"i{number}" for number in range(10)]
    responses = {name: ["1", "x"] for name in ids} | {"i0": ["x", "x"], "i1": samples}
    part = judged("exact_match", asking(dict.fromkeys(ids, "1")), responses)
    [mean], [rate] = (rows_of({"name": name}, [part]) for name in ("mean", "pass_rate"))
    of = ("value", "stderr", "ci_low", "ci_high")
    assert [mean[name] for name in of] == [rate[name] for name in of]
    assert 0 < mean["ci_low"] < mean["ci_high"] < 1


def test_facets_are_those_of_the_rows_of_results(asking: Any, judged: Callable[..., Part]) -> None:
    answered = {
        "a": [{"response": "1", "response_id": "r", "metadata_json": '{"n": 0, "deep": {"flag": false}}'}]
    }
    part = judged("exact_match", asking({"a": "1"}), answered)
    wanted = [
        "response_id",
        "metadata.response_id",
        "metadata.n",
        "metadata.deep.flag",
        "passed",
        "sample_index",
    ]
    [row] = rows_of({"name": "mean", "facets": wanted}, [part])
    assert [row["facets"][name] for name in wanted] == ["unknown", "r", "unknown", "unknown", True, 0]


@settings(deadline=None)
@given(
    passed=st.lists(st.lists(st.booleans(), min_size=1, max_size=8), min_size=1, max_size=6),
    k=st.integers(1, 3),
    num_trials=st.integers(1, 3),
    aggregation=st.sampled_from(["mean", "median", "min", "max"]),
)
def test_trials_are_what_a_loop_over_them_gives(
    passed: list[list[bool]], k: int, num_trials: int, aggregation: str
) -> None:
    flat = np.array([float(one) for item in passed for one in item])
    repeats = Repeats(
        score=flat,
        scored=np.ones(len(flat), dtype=bool),
        codes=np.full(len(flat), -1),
        offsets=np.cumsum([0, *map(len, passed)]),
    )
    estimator = trials(k, num_trials, aggregation)
    reduced = estimator.reduce(repeats)
    enough = [item for item in passed if len(item) >= k * num_trials]
    assert reduced.valid.tolist() == [len(item) >= k * num_trials for item in passed]
    if enough:
        rates = [np.mean([any(item[t * k : (t + 1) * k]) for item in enough]) for t in range(num_trials)]
        value = estimator.aggregation.value(reduced.statistics[reduced.valid], None)
        assert value == pytest.approx(float(getattr(np, aggregation)(rates)))
