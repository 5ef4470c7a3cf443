"""Learning curves: in the order of steps, with paired differences, and where they turn."""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.comparison.matching import read_groups
from tasks.comparison.runs import ComparedRun
from tasks.comparison.trends import known_of_models, learning_curves, ordering_facet
from tasks.reporting.plots import learning_context

ITEMS = 200
PAIR = {"benchmark": "sums", "filter": "none", "metric": "exact_match", "reduction": "mean", "label": None}


def sweep(tmp_path: Path, right: dict[int, int], better: bool = True) -> ComparedRun:
    """A run in which the checkpoint of each step has the first so many of 200 items right, in the order of
    names and not of steps."""
    items: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for step, count in sorted(right.items(), key=lambda entry: str(entry[0])):
        place = {"model_name": f"m-step-{step}", "prompt_template": "default"}
        order = random.Random(7).sample(range(ITEMS), ITEMS)
        for item in range(ITEMS):
            value = float((order[item] < count) == better)
            items.append(
                {
                    **PAIR, **place, "cluster": None, "item_id": str(item), "item_digest": str(item),
                    "value": value, "statistics": [value], "n_samples": 1, "n_scored": 1,
                }
            )  # fmt: skip
        share = count / ITEMS if better else 1 - count / ITEMS
        results.append(
            {
                **PAIR, "model_name": place["model_name"], "prompt_template": "default", "value": share,
                "facets": "{" + ", ".join(f'"{name}": "{value}"' for name, value in place.items()) + "}",
                "ci_low": share - 0.05, "ci_high": share + 0.05, "higher_is_better": better,
                "signature": None, "status": "ok",
            }
        )  # fmt: skip
    file = tmp_path / "items.parquet"
    pq.write_table(pa.Table.from_pylist(items), file)
    return ComparedRun("run", read_groups(file, "items"), tuple(results))


def steps(right: Iterable[int]) -> dict[str, dict[str, Any]]:
    return {f"m-step-{step}": {"step": step} for step in right}


@pytest.mark.parametrize("better", [True, False], ids=["accuracy", "error rate"])
def test_the_first_checkpoint_that_is_worse_than_the_best_is_named(tmp_path: Path, better: bool) -> None:
    right = {100: 80, 200: 100, 900: 140, 1000: 138, 1100: 100, 1200: 60}
    (curve,) = learning_curves(sweep(tmp_path, right, better), steps(right))
    assert [point.x for point in curve.points] == [100, 200, 900, 1000, 1100, 1200]
    assert curve.points[curve.peak].x == 900
    assert curve.worse is not None
    assert curve.points[curve.worse].x == 1100  # 1000 is lower, and by too little
    before = curve.points[1].before
    assert before is not None
    assert before.comparison is not None
    assert abs(before.comparison.difference) == pytest.approx(0.1)
    context = learning_context([curve])
    assert context is not None
    ((said, worse),) = context["sentences"]
    assert worse
    assert "best at step 900" in said
    assert "step 1,100 (m-step-1100) is the first that is significantly worse: " in said
    assert "no significant trend" in said
    assert [row["worse"] for row in context["rows"]] == [False] * 4 + [True] * 2
    assert context["plots"][0].across == "step"


def test_a_sweep_that_rises_has_a_trend_and_no_worse_checkpoint(tmp_path: Path) -> None:
    right = {step: 60 + 10 * step for step in range(1, 9)}
    (curve,) = learning_curves(sweep(tmp_path, right), steps(right))
    assert curve.peak == 7
    assert curve.worse is None
    assert curve.trend.slope == pytest.approx(0.05)
    context = learning_context([curve])
    assert context is not None
    assert "from one checkpoint to the next +0.0500 (p < 0.001)" in context["sentences"][0][0]


def test_differences_from_the_best_are_adjusted_over_any_two_checkpoints(tmp_path: Path) -> None:
    right = {step: 100 + 13 * (step == 4) for step in range(20)}
    (curve,) = learning_curves(sweep(tmp_path, right), steps(right))
    best = curve.points[19].best
    assert best is not None
    assert best.comparison is not None
    assert best.p_adjusted == pytest.approx(best.comparison.p_value * 20 * 19 / 2)
    before = curve.points[4].before
    assert before is not None
    assert before.p_adjusted == best.p_adjusted  # whichever of the two comes first


@pytest.mark.parametrize(("one", "other", "later"), [("good", "bad", 100), ("good", "bad", 300), (1, 2, 100)])
def test_two_trainings_have_a_curve_each(tmp_path: Path, one: Any, other: Any, later: int) -> None:
    right = {1: 160, 2: 180, 3: 80, 4: 60}
    known = {
        "m-step-1": {"step": 100, "run": one}, "m-step-2": {"step": 200, "run": one},
        "m-step-3": {"step": later, "run": other}, "m-step-4": {"step": later + 100, "run": other},
    }  # fmt: skip
    curves = learning_curves(sweep(tmp_path, right), known)
    shown = [[point.model for point in curve.points] for curve in curves]
    assert shown == [["m-step-1", "m-step-2"], ["m-step-3", "m-step-4"]]
    assert [curve.points[curve.peak].value for curve in curves] == [0.9, 0.4]


def test_no_checkpoint_is_left_out_because_another_has_its_step(tmp_path: Path) -> None:
    known = {"m-step-1": {"step": 100}, "m-step-2": {"step": 100}, "m-step-3": {"step": 200}}
    (curve,) = learning_curves(sweep(tmp_path, {1: 80, 2: 180, 3: 100}), known)
    assert [(point.x, point.value) for point in curve.points] == [(100, 0.4), (100, 0.9), (200, 0.5)]
    assert learning_context([curve]) is not None


def test_a_checkpoint_whose_step_is_a_text_is_named_and_the_others_are_drawn(tmp_path: Path) -> None:
    known = steps([1, 2]) | {"m-step-3": {"step": "final"}}
    curves = learning_curves(sweep(tmp_path, {1: 80, 2: 180, 3: 100}), known)
    assert [[point.model for point in curve.points] for curve in curves] == [["m-step-1", "m-step-2"]]
    context = learning_context(curves, known)
    assert context is not None
    assert context["sentences"][0] == ("in no curve, since their step is no number: m-step-3 (final)", True)


def test_one_checkpoint_is_no_curve(tmp_path: Path) -> None:
    assert learning_curves(sweep(tmp_path, {100: 10}), steps([100])) == ()
    assert learning_context([]) is None


@pytest.mark.parametrize(
    ("known", "facet"),
    [
        ([{"step": 1, "tokens": 5}, {"step": 2, "tokens": 9}], "step"),
        ([{"tokens": 5.0}, {"tokens": 9.0}, {}], "tokens"),
        ([{"step": 3}, {"step": 3}], None),
        ([{"step": 1}, {"step": 2}, {"step": "final"}], "step"),
        ([{"step": 1}, {"step": "final"}], None),
        ([{"data": 1}, {"data": 2}, {"data": "web"}], None),
        ([{"recipe": "a"}, {"recipe": "b"}], None),
        ([], None),
    ],
)
def test_what_orders_checkpoints_is_a_number_that_differs(known: list[Any], facet: str | None) -> None:
    manifest = {"config": {"models": [{"name": str(n), "metadata": one} for n, one in enumerate(known)]}}
    assert ordering_facet(known_of_models(manifest)) == facet
