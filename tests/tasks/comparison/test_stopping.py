"""A gate that stops: what it makes of a run that asked a part of its items, in a random order."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from metrics.aggregation import build_aggregation
from metrics.statistics.sequence import SequenceLevels
from tasks.comparison.compare import ComparedRuns, ComparisonRules, Gate, compare_runs, stop_rule
from tasks.comparison.matching import GroupKey, ItemGroup, match_runs
from tasks.comparison.runs import ComparedRun
from tasks.comparison.stopping import Stopping
from tasks.datasets.item import Item
from tasks.datasets.selection import Selection, place_in_order

KEY = GroupKey("sums", "none", "exact_match", "mean")
SEED = 7


def group(values: "np.ndarray[Any, Any]", clusters: list[str] | None = None) -> ItemGroup:
    names = np.array([f"q{n}" for n in range(len(values))], dtype=object)
    return ItemGroup(
        item_ids=names,
        digests=names,
        clusters=None if clusters is None else np.array(clusters, dtype=object),
        value=values,
        statistics=values.reshape(-1, 1),
        objects=None,
        scored=~np.isnan(values),
    )


def first_of(whole: ItemGroup, asked: int, seed: int = SEED) -> ItemGroup:
    """The rows that come first in a random order."""
    units = whole.digests if whole.clusters is None else whole.clusters
    order = sorted(range(len(whole)), key=lambda row: (place_in_order(seed, units[row]), row))
    return whole.take(np.array(sorted(order[:asked]), dtype=np.intp))


def compared(base: ItemGroup, candidate: ItemGroup, asked: int | None = None, **keys: Any) -> ComparedRuns:
    """``asked``: the candidate stopped after so many; None: it could have, and asked all."""
    part = candidate if asked is None else first_of(candidate, asked)
    stopping = Stopping(SEED, asked, None if asked is None else len(candidate))
    runs = ComparedRun("base", {KEY: base}), ComparedRun("new", {KEY: part}, stopping={KEY: stopping})
    shares = replace(build_aggregation("mean"), bounds=(0.0, 1.0))
    gate = Gate.model_validate({"margin": 0.05, "stop": "decided", **keys})
    matches = match_runs(*(run.groups for run in runs))
    return compare_runs(*runs, matches, ComparisonRules(lambda *_: shares, gate=gate))


RIGHT = (np.arange(1000) % 5 > 0).astype(float)
WRONG = (np.arange(1000) % 5 > 2).astype(float)


def test_what_was_not_asked_is_no_item_of_the_run_and_the_sequence_decides() -> None:
    (pair,) = compared(group(RIGHT), group(RIGHT), 300).pairs
    assert pair.verdict == "pass"
    assert pair.joined is not None
    assert (pair.joined.coverage, pair.joined.n_base, pair.joined.missing) == (1.0, 300, 0)
    assert pair.reason == "300 of 1,000 items, stopped: decided"
    assert pair.comparison is not None
    assert -0.05 < pair.comparison.ci_low < 0 < pair.comparison.ci_high


def test_a_large_loss_is_a_regression_and_the_interval_says_so() -> None:
    (pair,) = compared(group(RIGHT), group(WRONG), 100).pairs
    assert pair.verdict == "regression"
    assert pair.comparison is not None
    assert pair.comparison.ci_high < -0.05


def test_fewer_items_than_decide_are_inconclusive_where_the_run_stopped() -> None:
    (pair,) = compared(group(RIGHT), group(RIGHT), 60).pairs
    assert pair.verdict == "inconclusive"


def test_a_gate_that_does_not_stop_decides_nothing_of_a_part() -> None:
    (pair,) = compared(group(RIGHT), group(RIGHT), 300, stop=None).pairs
    assert pair.verdict == "inconclusive"
    assert pair.reason is not None
    assert "takes the gate with stop: decided" in pair.reason


def test_lost_items_among_those_that_were_asked_count_against_coverage() -> None:
    asked = first_of(group(RIGHT), 300)
    lost = RIGHT.copy()
    lost[[int(name[1:]) for name in asked.digests[:30]]] = np.nan
    (pair,) = compared(group(RIGHT), group(lost), 300).pairs
    assert (pair.verdict, pair.joined.coverage if pair.joined else None) == ("inconclusive", 0.9)


def test_the_last_look_has_what_is_left_of_alpha() -> None:
    """A loss that is just a regression at alpha is none at four fifths of it."""
    base, candidate = np.ones(400), np.ones(400)
    verdicts = {}
    for losses in range(20, 60):
        candidate[:losses] = 0.0
        full, stopped = (
            compared(group(base), group(candidate.copy()), None, **keys).pairs[0].verdict
            for keys in ({"stop": None}, {})
        )
        verdicts[losses] = full, stopped
    assert ("regression", "inconclusive") in verdicts.values() or (
        "pass",
        "inconclusive",
    ) in verdicts.values()
    assert all(stopped != "regression" or full == "regression" for full, stopped in verdicts.values())


def test_an_open_cluster_waits_for_its_items() -> None:
    clusters = [f"passage {n // 4}" for n in range(1000)]
    whole, closed = (compared(group(RIGHT, clusters), group(RIGHT, clusters), n).pairs[0] for n in (402, 400))
    assert whole.look is not None
    assert closed.look is not None
    assert whole.look.units == closed.look.units == 100


def test_a_verdict_about_the_benchmark_alone_says_so_and_takes_fewer_items() -> None:
    about_all = {"stop": {"when": "decided", "population": "benchmark"}}
    differ = RIGHT.copy()
    differ[::20] = 1 - differ[::20]
    (whole,), (others,) = (
        compared(group(RIGHT), group(differ), 600, **keys).pairs for keys in (about_all, {})
    )
    assert whole.look is not None
    assert others.look is not None
    assert whole.look.ci_low > others.look.ci_low
    assert whole.reason is not None
    assert "population: benchmark" in whole.reason


def test_more_gated_pairs_take_more_to_be_a_regression() -> None:
    several = {GroupKey("sums", "none", name, "mean"): group(RIGHT) for name in "abc"}
    gate = Gate.model_validate({"stop": "decided", "alpha_over": {"nights": 2}})
    rule = stop_rule(gate, ComparedRun("base", several), 0)
    assert rule is not None
    assert rule.levels(0.05) == SequenceLevels.of_gate(0.05, 6)


def test_stop_and_fail_on_worse_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="leave one of them out"):
        Gate.model_validate({"stop": "decided", "fail_on": "worse"})


def items(count: int, cluster: int | None = None) -> list[Item]:
    groups = (None if cluster is None else str(n // cluster) for n in range(count))
    return [Item(str(n), n, {"n": n}, cluster=of) for n, of in zip(range(count), groups, strict=False)]


def test_blocks_are_a_random_order_that_keeps_clusters_together_and_rises_within() -> None:
    made = list(Selection(order=1, blocks=4).of(items(100, cluster=5)))
    assert sorted(item.doc_id for item in made) == list(range(100))
    for start in range(0, 100, 25):
        block = [item.doc_id for item in made[start : start + 25]]
        assert block == sorted(block)
        assert len({item.cluster for item in made[start : start + 25]}) == 5
    assert [item.doc_id for item in made] != list(range(100))
    other = list(Selection(order=2, blocks=4).of(items(100, cluster=5)))
    assert [item.doc_id for item in other] != [item.doc_id for item in made]


def test_an_item_more_leaves_the_order_of_the_others() -> None:
    before, after = (
        [item.doc_id for item in Selection(order=1, blocks=count).of(items(count))] for count in (50, 51)
    )
    assert [number for number in after if number < 50] == before
    assert all(one != other for one, other in itertools.pairwise(after))
