from collections.abc import Callable
from typing import Any

import orjson
import pytest

from metrics.config import StatisticsConfig
from tasks.evaluation.config import EvaluationMetricConfig
from tasks.evaluation.metric_rows import aggregate_metric
from tasks.evaluation.metrics import build_evaluation_metric, reduce_metric
from tasks.reduction import Part

OPTIONS = StatisticsConfig()


def rows_of(config: dict[str, Any], parts: list[Part]) -> list[dict[str, Any]]:
    metric = build_evaluation_metric(
        EvaluationMetricConfig.model_validate(config), lambda _: None, ["model_name"]
    )
    batches = aggregate_metric(metric, "demo", reduce_metric(metric, "demo", parts), OPTIONS)
    return [
        {**row, "facets": orjson.loads(row["facets"]), **orjson.loads(row["values_json"])}
        for batch in batches
        for row in batch.to_pylist()
    ]


@pytest.fixture
def worked_example(asking: Any, judged: Callable[..., Part]) -> Part:
    items = asking({"a": "1", "b": "2"})
    return judged("exact_match", items, {"a": ["1", "1", "1"], "b": ["2", "2", "no"]})


def test_the_worked_example_gives_pass_at_1_over_three_trials(worked_example: Part) -> None:
    params = {"k": 1, "num_trials": 3, "aggregation": "mean"}
    [row] = rows_of({"name": "pass@1", "type": "pass_at_k", "params": params}, [worked_example])

    assert row["pass_at_k"] == row["value"] == pytest.approx(5 / 6)
    assert (row["n_items"], row["n_samples"], row["label"], row["status"]) == (2, 6, "exact_match", "ok")


def test_the_worked_example_gives_the_mean(worked_example: Part) -> None:
    [row] = rows_of({"name": "mean"}, [worked_example])

    assert row["mean"] == row["value"] == pytest.approx(5 / 6)
