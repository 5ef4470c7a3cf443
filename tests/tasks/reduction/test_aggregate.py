import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metrics.build import build_column
from metrics.config import MetricConfig, StatisticsConfig
from metrics.errors import MetricError
from metrics.statistics.estimate import estimate
from tasks.reduction.aggregate import aggregate_pair
from tasks.reduction.reduce import reduce_pair
from tasks.rows.parts import FailedPart, Origin, PairIdentity, Part
from tasks.store.schemas import RESULTS

OPTIONS = StatisticsConfig(bootstrap_iters=500)
Rows = list[dict[str, Any]]


def pair(
    aggregation: str = "mean", *reductions: str, resolve: Callable[[str], Any] = lambda _: None
) -> PairIdentity:
    config = {"metric": "score", "aggregation": aggregation, "reduction": list(reductions) or ["mean"]}
    return PairIdentity("demo", "strict", build_column(MetricConfig.model_validate(config), resolve))


def results(
    identity: PairIdentity,
    parts: Sequence[Part],
    facets: Sequence[str] = (),
    failed: Sequence[FailedPart] = (),
) -> Rows:
    batches = list(aggregate_pair(identity, reduce_pair(identity, parts, facets), OPTIONS, failed, facets))
    assert all(batch.schema == RESULTS for batch in batches)
    return [{**row, "facets": orjson.loads(row["facets"])} for batch in batches for row in batch.to_pylist()]


def test_a_mean_has_its_error_counts_and_signature(part: Callable[..., Part]) -> None:
    [row] = results(
        pair(), [part([{"doc_id": n, "samples": [score]} for n, score in enumerate((1, 0, 1, 0))])]
    )

    assert (row["value"], row["stderr"]) == (0.5, pytest.approx(0.2886751, abs=1e-7))
    assert row["ci_low"] < 0.5 < row["ci_high"]
    assert (row["n_items"], row["n_samples"], row["n_scored"], row["n_unscored"]) == (4, 4, 4, 0)
    assert (row["status"], row["error"], row["filter"], row["run_id"]) == ("ok", None, "strict", None)
    assert row["signature"].startswith("score|agg:mean")
    assert f"filter:strict|red:mean|se:{row['stderr_method']}|ci:0.95" in row["signature"]


def test_a_mean_of_repeats_says_how_much_of_its_error_is_items_and_how_much_sampling(
    part: Callable[..., Part],
) -> None:
    samples = [[1, 1, 1, 0], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]]
    [row] = results(pair(), [part([{"doc_id": n, "samples": own} for n, own in enumerate(samples)])])
    within = sum(p * (1 - p) / 3 for p in (0.75, 0.25, 1.0, 0.5))
    assert row["stderr_sampling"] == pytest.approx(within**0.5 / 4)
    assert row["stderr_items"] ** 2 + row["stderr_sampling"] ** 2 == pytest.approx(row["stderr"] ** 2)
    [single] = results(pair(), [part([{"doc_id": n, "samples": own[:1]} for n, own in enumerate(samples)])])
    assert (single["stderr_items"], single["stderr_sampling"]) == (None, None)


def test_a_row_says_what_loss_a_comparison_would_find(part: Callable[..., Part]) -> None:
    samples = [[1, 1, 1, 0], [0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]] * 30

    def mde(take: int, items: int = len(samples)) -> float | None:
        taken = enumerate(samples[:items])
        [row] = results(pair(), [part([{"doc_id": n, "samples": own[:take]} for n, own in taken])])
        found: float | None = row["mde"]
        return found

    repeated, single = mde(4), mde(1)
    assert repeated is not None
    assert single is not None
    assert 0.02 < repeated < single < 0.25
    assert mde(1, 4) is None  # four items find nothing


def test_no_loss_is_foreseen_that_the_range_does_not_have(part: Callable[..., Part]) -> None:
    rows = part([{"doc_id": n, "samples": [score]} for n, score in enumerate((1.9, 0.1, 1.8, 0.0, 2.0, 0.2))])
    [row] = results(pair("brier_score"), [rows])
    assert (row["status"], row["mde"]) == ("ok", None)


def test_a_doubt_about_the_error_bar_has_a_column_of_its_own(part: Callable[..., Part]) -> None:
    [row] = results(pair(), [part([{"doc_id": 0, "samples": [0.5]}])])
    assert row["warning"] == row["error"] == "one item has no spread"


def test_model_and_prompt_have_columns_where_facets_hold_them_apart(part: Callable[..., Part]) -> None:
    one = part([{"doc_id": 0, "samples": [1]}], Origin("x", "cot"))
    [row] = results(pair(), [one], ["model_name", "prompt_template"])
    assert (row["model_name"], row["prompt_template"]) == ("x", "cot")
    [row] = results(pair(), [one])
    assert (row["model_name"], row["prompt_template"], row["facets"]) == (None, None, {})


def test_clusters_of_two_fields_widen_the_error_twice(part: Callable[..., Part]) -> None:
    rng = np.random.default_rng(3)
    question, prompt = np.divmod(np.arange(240), 12)
    scores = (rng.normal(0, 1, 20)[question] + rng.normal(0, 1, 12)[prompt] + rng.normal(0, 1, 240) > 0) * 1.0
    texts = [f"q{q}" + "\x1f" + f"p{p}" for q, p in zip(question, prompt, strict=True)]
    items = [{"doc_id": n, "samples": [score]} for n, score in enumerate(scores)]
    rows = [[{**item, "cluster": text} for item, text in zip(items, own, strict=True)]
            for own in (texts, [text.partition("\x1f")[0] for text in texts])]  # fmt: skip
    [both], [one] = (results(pair(), [part(own)]) for own in rows)
    expected = estimate(
        pair().metric.aggregation, scores[:, None], None, np.column_stack([question, prompt]), OPTIONS
    )
    assert both["stderr"] == pytest.approx(expected.stderr)
    assert both["stderr_method"].endswith(", clustered two ways")
    assert both["stderr"] > one["stderr"]


def test_clusters_widen_the_error_and_an_item_without_one_is_its_own(part: Callable[..., Part]) -> None:
    scores = [1, 1, 1, 0, 0, 0, 1, 0]
    free = [{"doc_id": n, "samples": [score]} for n, score in enumerate(scores)]
    tied = [{**item, "cluster": f"c{item['doc_id'] // 3}" if item["doc_id"] < 6 else None} for item in free]
    clusters = np.array([0, 0, 0, 1, 1, 1, 2, 3])
    column = np.array(scores, dtype=float)[:, None]

    [loose], [clustered] = results(pair(), [part(free)]), results(pair(), [part(tied)])
    expected = estimate(pair().metric.aggregation, column, None, clusters, OPTIONS)
    assert clustered["stderr"] == pytest.approx(expected.stderr)
    assert clustered["stderr"] > loose["stderr"]
    assert clustered["value"] == loose["value"] == 0.5


def test_median_and_a_user_s_aggregation_take_the_items_values(part: Callable[..., Part]) -> None:
    items = [{"doc_id": n, "samples": [score]} for n, score in enumerate((1.0, 9.0, 4.0, None))]
    [median] = results(pair("median"), [part(items)])
    assert (median["value"], median["n_items"], median["n_unscored"]) == (4.0, 4, 1)

    seen: list[list[float]] = []

    def longest(values: list[float]) -> float:
        seen.append(values)
        return max(values)

    [own] = results(pair("f.py:longest", resolve=lambda _: longest), [part(items)])
    assert own["value"] == 9.0
    assert seen[0] == [1.0, 9.0, 4.0]


def test_what_a_user_s_aggregation_raises_is_raised(part: Callable[..., Part]) -> None:
    def broken(values: list[float]) -> float:
        raise ZeroDivisionError("no")

    with pytest.raises((MetricError, ZeroDivisionError)):
        results(pair("f.py:broken", resolve=lambda _: broken), [part([{"doc_id": 0, "samples": [1]}])])


def test_unscored_items_are_named_and_nothing_scored_is_no_number(part: Callable[..., Part]) -> None:
    items = [{"doc_id": n, "samples": [1 if n == 0 else None]} for n in range(6)]
    [row] = results(pair(), [part(items)])
    assert (row["value"], row["n_scored"], row["n_unscored"], row["status"]) == (1.0, 1, 5, "ok")
    assert "5 of 6 items are unscored: item1, item2, item3, …" in row["error"]

    [row] = results(pair(), [part(items[1:])])
    assert (row["value"], row["stderr"], row["status"], row["n_items"]) == (None, None, "failed", 5)


def test_a_group_without_a_facet_value_says_so(part: Callable[..., Part]) -> None:
    [row] = results(
        pair(), [part([{"doc_id": 0, "samples": [1]}, {"doc_id": 1, "samples": [1]}])], ["item.subject"]
    )
    assert row["facets"] == {"item.subject": "unknown"}
    # A text of the dataset may be that word, too.
    assert "no value for item.subject in these responses, or the text 'unknown'" in row["error"]


def test_every_reduction_label_and_group_has_a_row(part: Callable[..., Part]) -> None:
    samples = [{"score": n, "label": label} for n in (0, 1) for label in ("kind", "short")]
    parts = [
        part([{"doc_id": 0, "samples": samples}], Origin(name, "plain"), "quality") for name in ("x", "y")
    ]
    found = results(pair("mean", "mean", "max"), parts, ["model_name"])
    assert [(row["reduction"], row["model_name"], row["label"], row["value"]) for row in found] == [
        (reduction, model, label, value)
        for reduction, value in (("mean", 0.5), ("max", 1.0))
        for model in ("x", "y")
        for label in ("kind", "short")
    ]


def test_a_failed_partition_fails_its_group_although_others_worked(part: Callable[..., Part]) -> None:
    worked = [part([{"doc_id": 0, "samples": [1]}], Origin(name, "plain")) for name in ("x", "y")]
    failed = [FailedPart(Origin("y", "plain"), "MetricError: broken on row 3")]

    rows = results(pair(), worked, ["model_name"], failed)
    assert [(row["model_name"], row["status"], row["value"], row["error"]) for row in rows] == [
        ("x", "ok", 1.0, rows[0]["error"]), ("y", "failed", None, "MetricError: broken on row 3"),
    ]  # fmt: skip


def test_a_group_of_which_nothing_is_left_is_failed_under_every_reduction(part: Callable[..., Part]) -> None:
    failed = [FailedPart(Origin("x", "plain"), "boom")] * 2
    facets = ["model_name", "metadata.model_id", "item.x", "label"]
    rows = results(pair("mean", "mean", "max"), [], facets, failed)
    values = {"model_name": "x", "metadata.model_id": "x", "item.x": "unknown"}
    assert [(row["reduction"], row["status"], row["n_items"], row["facets"]) for row in rows] == [
        (reduction, "failed", 0, values) for reduction in ("mean", "max")
    ]


def test_no_rows_give_no_results() -> None:
    assert results(pair(), []) == []


SCORES = st.lists(st.none() | st.floats(0, 1, width=32), min_size=1, max_size=20)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SCORES, st.integers(0, 20))
def test_any_cut_into_partitions_gives_the_same_numbers(
    part: Callable[..., Part], scores: list[float | None], cut: int
) -> None:
    items = [
        {"doc_id": n, "samples": [score, 1.0 - score if score else None]} for n, score in enumerate(scores)
    ]
    [whole] = results(pair(), [part(items)])
    [merged] = results(pair(), [part(half) for half in (items[:cut], items[cut:]) if half])

    assert {**merged, "value": None, "stderr": None, "ci_low": None, "ci_high": None} == {
        **whole, "value": None, "stderr": None, "ci_low": None, "ci_high": None,
    }  # fmt: skip
    for name in ("value", "stderr"):
        one, other = (math.nan if row[name] is None else row[name] for row in (whole, merged))
        assert one == pytest.approx(other, abs=1e-12, nan_ok=True)
