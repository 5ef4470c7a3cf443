"""A scorer class of a user's own that looks at the predictions of all filters at once."""

from typing import Any

import pytest

from metrics.errors import ConfigError
from scorers.base import ALL_FILTERS, AcrossFilters, ScorerError
from scorers.config import ScoringConfig
from scorers.factory import build_scorer


class AnyRight:
    """1 where some filter's prediction is a reference."""

    across_filters = True

    def get_metrics(self, filter_name: str) -> list[str]:
        return ["any_right"] if filter_name == ALL_FILTERS else ["right"]

    def score(self, batch: Any, metric: Any) -> list[float]:
        if metric.name == "right":
            return [
                float(prediction in references)
                for prediction, references in zip(batch.predictions, batch.references, strict=True)
            ]
        return [
            float(any(prediction in references for prediction in predictions.values()))
            for predictions, references in zip(batch.predictions, batch.references, strict=True)
        ]


def built(made: type) -> Any:
    config = ScoringConfig.model_validate(
        {
            "output_type": "generate_until",
            "filter_list": [{"name": "a", "filter": ["strip"]}, {"name": "b", "filter": ["lower"]}],
            "scorer": {"type": "mine.py:Made"},
        }
    )
    return build_scorer(config, lambda reference: made)


def test_a_class_of_ones_own_sees_all_filters(make_batch: Any) -> None:
    scorer = built(AnyRight)
    assert isinstance(scorer, AcrossFilters)
    [metric] = scorer.get_metrics(ALL_FILTERS)
    batch = scorer.combine(
        {
            "a": make_batch(["x", "y"], references=[["x"], ["z"]]),
            "b": make_batch(["X", "z"], references=[["x"], ["z"]]),
        }
    )
    assert batch.predictions == [{"a": "x", "b": "X"}, {"a": "y", "b": "z"}]
    assert scorer.score(batch, metric).scores.score.tolist() == [1.0, 1.0]
    [own] = scorer.get_metrics("b")
    alone = make_batch(["X", "z"], references=[["x"], ["z"]])
    assert scorer.score(alone, own).scores.score.tolist() == [0.0, 1.0]


def test_a_class_that_names_no_metrics_for_all_filters_is_refused() -> None:
    class Nameless:
        across_filters = True

        def score(self, batch: Any) -> list[float]:
            return [0.0] * len(batch)

    with pytest.raises(ConfigError, match="looks across filters and has no method get_metrics"):
        built(Nameless)


class Agreement:
    """Reads the answers of all filters; ``get_metrics`` names its metric for each filter as well."""

    across_filters = True

    def get_metrics(self, filter_name: str) -> list[str]:
        return ["agreement"]

    def score_instances(self, instances: Any, filter_name: str) -> dict[str, float]:
        first, second = instances[0].filtered_resps.values() if filter_name == ALL_FILTERS else (1, 2)
        list(instances[0].filtered_resps.keys())
        return {"agreement": float(first == second)}


def test_a_class_that_names_a_metric_of_all_filters_for_one_is_told_so(make_batch: Any) -> None:
    scorer = built(Agreement)
    [metric] = scorer.get_metrics("b")
    said = "let get_metrics name 'agreement' for \"\\*\" alone: it names it for 'b' as well"
    with pytest.raises(ScorerError, match=said):
        scorer.score(make_batch(["x"]), metric)


def test_equal_metrics_of_several_filters_are_told_apart(make_batch: Any) -> None:
    scorer = built(Agreement)
    [metric] = scorer.get_metrics(ALL_FILTERS)
    batch = scorer.combine({"a": make_batch(["x", "y"]), "b": make_batch(["x", "z"])})
    assert scorer.score(batch, metric).scores.score.tolist() == [1.0, 0.0]
