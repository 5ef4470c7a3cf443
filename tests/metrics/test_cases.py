"""Every registered metric against numbers worked by hand or taken from its source."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from metrics.registry import AGGREGATIONS, METRICS, REDUCTIONS

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())


def _scores(case: dict[str, Any], metric: Any, batch_of: Any) -> Any:
    if "lls" not in case:
        return metric.evaluate(case["references"], case["predictions"])
    fields = ("lls", "gold", "choices", "greedy", "unconditional")
    return metric.evaluate_choices(batch_of(*(case.get(field) for field in fields)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["metric"])
def test_metric_gives_the_numbers_of_its_source(case: dict[str, Any], build: Any, batch_of: Any) -> None:
    metric = build({"metric": case["metric"], **case.get("kwargs", {})})
    scores = _scores(case, metric, batch_of)
    if "scores" in case:
        np.testing.assert_allclose(scores.score, case["scores"], rtol=1e-12)
    if "value" in case:
        values = scores.values if scores.values is not None else scores.score
        assert metric.aggregation.value(scores.statistics, values) == pytest.approx(case["value"], rel=1e-12)
    assert "scores" in case or "value" in case


def test_every_metric_has_a_case_with_a_source() -> None:
    own = {name for name in METRICS if METRICS[name].function.__module__.startswith("metrics.")}
    assert {case["metric"] for case in CASES} == own
    assert all(case["source"] for case in CASES)


@pytest.mark.parametrize("registry", [METRICS, AGGREGATIONS, REDUCTIONS], ids=lambda registry: registry.kind)
def test_every_entry_says_what_it_is(registry: Any) -> None:
    own = [name for name in registry if registry[name].function.__module__.startswith("metrics.")]
    assert own
    for name in own:
        assert len(registry[name].summary) > 20, name


def test_every_aggregation_that_a_metric_names_exists() -> None:
    assert all(METRICS[name].aggregation in AGGREGATIONS for name in METRICS)
