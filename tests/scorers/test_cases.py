"""Every registered filter and every scorer type does what its row in cases.yaml says."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from scorers.base import ModelReply
from scorers.config import SCORER_CONFIGS, FilterConfig, ScoringConfig
from scorers.factory import build_scorer
from scorers.filters import FILTERS, FilterPipeline

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))


def test_every_registered_filter_has_a_row():
    shipped = {name for name in FILTERS if FILTERS[name].function.__module__.startswith("scorers.")}
    assert {case["filter"] for case in CASES["filters"]} == shipped


def test_every_scorer_type_has_a_row():
    assert set(SCORER_CONFIGS) <= {case["type"] for case in CASES["scorers"]}


def test_every_row_names_its_source():
    assert all(case["source"] for case in CASES["filters"] + CASES["scorers"])


@pytest.mark.parametrize("case", CASES["filters"], ids=lambda case: case["filter"])
def test_filter_gives_the_predictions_of_its_row(case, resolve):
    step = {"function": case["filter"], **case.get("kwargs", {})}
    pipeline = FilterPipeline.build(FilterConfig(name="case", filter=[step]), resolve)
    docs = case.get("docs") or [{} for _ in case["resps"]]
    assert pipeline.apply(case["resps"], docs) == case["predictions"]


@pytest.mark.parametrize("case", CASES["filters"], ids=lambda case: case["filter"])
def test_filter_keeps_as_many_repeats_as_it_says(case, resolve):
    step = {"function": case["filter"], **case.get("kwargs", {})}
    pipeline = FilterPipeline.build(FilterConfig(name="case", filter=[step]), resolve)
    for before, after in zip(case["resps"], case["predictions"], strict=True):
        assert pipeline.keeps(len(before)) in (None, len(after))


@pytest.mark.parametrize("case", CASES["scorers"], ids=lambda case: case["type"])
def test_scorer_gives_the_scores_of_its_row(case, resolve, make_batch):
    scorer = build_scorer(ScoringConfig.model_validate(case["config"]), resolve)
    if "filters" in case:
        batch = scorer.combine({name: make_batch(values) for name, values in case["filters"].items()})
        metric = scorer.get_metrics("*")[0]
    else:
        batch = make_batch(**case["batch"])
        metric = next(one for one in scorer.get_metrics("none") if one.name == case["metric"])
    scores = scorer.score(batch, metric, [ModelReply(text) for text in case.get("replies", ())])
    expected = np.array([np.nan if value is None else value for value in case["score"]], dtype=float)
    np.testing.assert_allclose(scores.scores.score, expected, rtol=1e-12)
    assert scores.scored.tolist() == [value is not None for value in case["score"]]
