"""What is in a cache key: a field that can change an answer changes the keys of the steps it reaches, and
of no others; names, limits and time-outs change none."""

from itertools import pairwise
from typing import Any

import pytest

from flows.config.load import load_config
from flows.config.schema import RunOptions
from flows.plan.build import make_plan
from flows.plan.steps import Plan
from tasks.store.keys import digest

ALL_PAIRS = (
    "exact_match,strict-match",
    "exact_match,flexible-extract",
    "bleu,none",
    "rouge1,none",
    "rouge2,none",
    "rougeL,none",
)


def identities(plan: Plan) -> dict[str, str]:
    found: dict[str, Any] = {"load": plan.load.identity}
    found |= {f"render {name}": step.identity for name, step in plan.prompts.items()}
    found |= {f"infer {place}": step.identity for place, step in enumerate(plan.models.values())}
    for entry in plan.filters:
        found[f"filter {entry.name}"] = entry.step.identity
        for pair in entry.pairs:
            found[f"score {pair.name}"] = pair.score.identity
            found[f"reduce {pair.name}"] = pair.reduce.identity
            found[f"aggregate {pair.name}"] = pair.aggregate.identity
    return {name: digest(identity) for name, identity in found.items()}


def changed_by(*overrides: str, **options: Any) -> set[str]:
    before = identities(make_plan(load_config(), RunOptions()))
    after = identities(make_plan(load_config(None, overrides), RunOptions(**options)))
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def steps(stages: str, pairs: tuple[str, ...]) -> set[str]:
    return {f"{stage} {pair}" for stage in stages.split() for pair in pairs}


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("prompt_template=Say {{question}}", {"render default"}),
        ("target='{{answer}}!'", {"render default"}),
        ("fewshot={num: 1}", {"render default"}),
        ("system_prompt=Be brief", {"render default"}),
        ("models.0.config={error_rate: 0.5}", {"infer 0"}),
        ("models.0.config={api: completions}", {"infer 0"}),
        ("sample_params.temperature=0.5", {"infer 0"}),
        ("sample_params.max_tokens=17", {"infer 0"}),
        ("sample_params.seed=3", {"infer 0"}),
        ("sample_params.num_samples=2", {"infer 0"}),
        ("models.0.sample_params={top_p: 0.5}", {"infer 0"}),
        ("cluster=question", {"load"}),
        (
            "filter_list.0.filter.0.group_select=1",
            {"filter strict-match"},  # what is scored are its predictions, whatever made them
        ),
        (
            "filter_list.2.metric_list.0={metric: bleu, lowercase: true}",
            steps("score aggregate", ALL_PAIRS[2:3]),
        ),
        (
            "filter_list.0.metric_list.0.ignore_numbers=true",
            steps("score aggregate", ALL_PAIRS[:1]),
        ),
        ("filter_list.0.metric_list.0.reduction=[mean, max]", steps("reduce", ALL_PAIRS[:1])),
        ("filter_list.0.metric_list.0.higher_is_better=false", steps("aggregate", ALL_PAIRS[:1])),
        ("facets=[model_name]", steps("reduce aggregate", ALL_PAIRS)),
        ("statistics.seed=5", steps("aggregate", ALL_PAIRS)),
        ("statistics.ci_level=0.9", steps("aggregate", ALL_PAIRS)),
        ("name=another", steps("reduce aggregate", ALL_PAIRS)),
    ],
)  # fmt: skip
def test_field_changes_the_keys_that_it_reaches_and_no_others(override: str, expected: set[str]) -> None:
    assert changed_by(override) == expected


@pytest.mark.parametrize(
    "override",
    [
        "models.0.name=renamed",
        "errors.max_rate=0.5",
        "limits.max_seconds=60",
        "limits.max_tokens=1000000",
        "prices={demo: {prompt: 1.0}}",
        "models.0.config={max_concurrency: 2}",
        "models.0.config={timeout: 5}",
        "models.0.config={latency: 0.01}",
    ],
)
def test_names_limits_and_timeouts_are_in_no_key(override: str) -> None:
    assert changed_by(override) == set()


def test_limit_is_a_matter_of_loading() -> None:
    assert changed_by(limit=3) == {"load"}


@pytest.mark.parametrize(
    ("items", "partitions"), [(1, 1), (2_000, 1), (2_001, 2), (20_000, 2), (100_000, 8), (1_000_000, 64)]
)
def test_large_evaluations_are_cut_into_a_bearable_number_of_partitions(items: int, partitions: int) -> None:
    plan = make_plan(load_config(), RunOptions())
    assert plan.partitions(items) == partitions
    cells = plan.cells(items)
    assert [(cells[0].start, cells[-1].stop)] == [(0, items)]
    assert all(one.stop == other.start for one, other in pairwise(cells))
