"""Stages are declared once: what is added to the declarations, everything follows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.graph import stages
from flows.graph.stage import Graph, Node, Stage, stage
from flows.plan.steps import Cell
from tasks.caching import Workspace, artifact_task
from tasks.filter import filter_responses
from tasks.store.keys import Step, Unkeyed
from tasks.store.schemas import PREDICTIONS
from tasks.store.storage import ArtifactRef

Evaluate = Callable[..., Any]
PROJECT = Path(__file__).resolve().parents[2]


@artifact_task("forget", PREDICTIONS)
def forget(step: Step[Unkeyed], predictions: ArtifactRef, workspace: Workspace) -> Iterator[pa.RecordBatch]:
    """Predictions without what was predicted."""
    for batch in workspace.open().batches(predictions):
        place = batch.schema.get_field_index("prediction")
        yield batch.set_column(place, "prediction", pa.nulls(batch.num_rows, pa.string()))


@stage(computes=[forget])
def predictions(graph: Graph, predictions: Mapping[tuple[Cell, str], Node]) -> dict[tuple[Cell, str], Node]:
    """Predictions that are forgotten."""
    return {
        (cell, name): graph.submit(
            forget, Step(name=f"forget {name}{cell.suffix}", identity={}, setup=Unkeyed()), node
        )
        for (cell, name), node in predictions.items()
    }


def with_stage(added: Stage) -> tuple[Stage, ...]:
    place = next(n for n, entry in enumerate(stages.GRAPH) if entry.gives == added.gives)
    return (*stages.GRAPH[: place + 1], added, *stages.GRAPH[place + 1 :])


def states(planned: Any) -> set[str]:
    return {pair["state"] for pair in planned.document["pairs"]}


def test_a_stage_that_is_added_runs_is_cached_planned_refreshed_and_explained(
    begin: Evaluate, evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = "filter_list=[{name: strict, filter: [take_first], metric_list: [rougeL]}]"
    before = begin("one pair", "--set", filters, "--json")
    assert before.value("rougeL,strict") > 0
    assert states(evaluate("--set", filters, "--dry-run", "--json")) == {"cached"}

    monkeypatch.setattr(stages, "GRAPH", with_stage(predictions))
    assert states(evaluate("--set", filters, "--dry-run", "--json")) == {"depends on forget strict"}
    ran = evaluate("--set", filters, "--json")
    assert ran.value("rougeL,strict") == 0
    assert (ran.steps("forget"), ran.steps("score")) == ((1, 0), (1, 0))

    again = evaluate("--set", filters, "--json")
    assert (again.steps("forget"), again.steps("score")) == ((0, 1), (0, 1))
    assert states(evaluate("--set", filters, "--dry-run", "--json")) == {"cached"}
    assert evaluate("--set", filters, "--refresh", "forget", "--json").steps("forget") == (1, 0)

    refused = evaluate("--set", filters, "--refresh", "forgett")
    assert refused.code == 2
    assert "did you mean 'forget'?" in refused.err


def test_stage_is_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.catalog import stages_page

    assert "Predictions that are forgotten." not in stages_page()
    monkeypatch.setattr(stages, "GRAPH", with_stage(predictions))
    assert "| predictions | Predictions that are forgotten. | forget | predictions |" in stages_page()


def test_task_that_its_stage_does_not_declare_is_refused(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = replace(predictions, computes=(filter_responses,))
    monkeypatch.setattr(stages, "GRAPH", with_stage(silent))
    with pytest.raises(
        LookupError, match="forget is submitted by the stage 'predictions', whose @stage lacks"
    ):
        evaluate("--dry-run")


def test_each_stage_waits_only_for_what_is_given_before_it() -> None:
    given: set[str] = set()
    for entry in stages.GRAPH:
        assert set(entry.waits_for) <= given, entry.gives
        given.add(entry.gives)
