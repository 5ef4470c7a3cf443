"""Evaluation methods and the metrics over their results: the same stages, one task a method and one a
metric."""

from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa

from metrics.config import StatisticsConfig
from metrics.types import CutOff
from scorers.config import ITEM_SECONDS
from tasks.caching import Workspace, artifact_task
from tasks.reduction.verdict_metrics import (
    METRIC_ROWS,
    EvaluationMetric,
    aggregate_metric,
    build_evaluation_metric,
    call_metric,
    reduce_metric,
)
from tasks.rows.parts import FailedPart, Origin, Part
from tasks.store.keys import Answered, Step, Unkeyed
from tasks.store.schemas import ITEM_ROWS, STATISTICS
from tasks.store.storage import ArtifactRef, Store
from tasks.usercode.load import resolver
from tasks.verdicts.config import EvaluationMethodConfig, EvaluationMetricConfig
from tasks.verdicts.methods import build_method
from tasks.verdicts.rows import JudgedPart, evaluate, method_labels


class MethodSetup(Unkeyed):
    """An evaluation method, and the model and prompt whose responses it judges (None: not yet said)."""

    config: EvaluationMethodConfig
    base_dir: str
    origin: Origin | None = None
    cut_off: CutOff = "wrong"
    item_timeout: float = ITEM_SECONDS


class MetricSetup(Unkeyed):
    """A metric over evaluation results."""

    benchmark: str
    config: EvaluationMetricConfig
    methods: tuple[EvaluationMethodConfig, ...]
    facets: tuple[str, ...]
    statistics: StatisticsConfig
    base_dir: str

    def metric(self) -> EvaluationMetric:
        """The metric with its function."""
        return build_evaluation_metric(self.config, resolver(self.base_dir), self.facets)


@artifact_task("score", STATISTICS)
def judge_responses(
    step: Step[MethodSetup], requests: ArtifactRef, answered: Answered, workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """One evaluation method over the responses of one model to one prompt: a row a sample × label."""
    store, setup = workspace.open(), step.setup
    assert setup.origin is not None, "the flow says whose responses they are"
    method = build_method(setup.config, resolver(setup.base_dir), setup.item_timeout)
    asked, answers = partial(store.batches, requests), partial(store.batches, answered.responses)
    yield from evaluate(method, setup.origin, asked, answers, setup.cut_off)


@artifact_task("reduce", ITEM_ROWS)
def reduce_verdicts(
    step: Step[MetricSetup],
    verdicts: Sequence[tuple[str, Origin]],
    statistics: Sequence[ArtifactRef],
    requests: Sequence[ArtifactRef],
    answers: Sequence[Answered],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """The item rows of a metric over evaluation results; ``verdicts`` says of each artifact whose it is."""
    parts = _parts(workspace.open(), verdicts, statistics, requests, answers)
    yield from reduce_metric(step.setup.metric(), step.setup.benchmark, parts)


@artifact_task("aggregate", METRIC_ROWS)
def aggregate_verdicts(
    step: Step[MetricSetup], item_rows: ArtifactRef, failed: Sequence[FailedPart], workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """One row a label and facet group."""
    setup, rows = step.setup, workspace.open().batches(item_rows)
    yield from aggregate_metric(setup.metric(), setup.benchmark, rows, setup.statistics, failed)


@artifact_task("aggregate", METRIC_ROWS)
def call_user_metric(
    step: Step[MetricSetup],
    verdicts: Sequence[tuple[str, Origin]],
    statistics: Sequence[ArtifactRef],
    requests: Sequence[ArtifactRef],
    answers: Sequence[Answered],
    failed: Sequence[FailedPart],
    workspace: Workspace,
) -> Iterator[pa.RecordBatch]:
    """A user's function over whole evaluation results, called once a label and facet group."""
    parts = _parts(workspace.open(), verdicts, statistics, requests, answers)
    judged = judged_parts(parts, step.setup.methods)
    yield from call_metric(step.setup.metric(), step.setup.benchmark, judged, failed)


def judged_parts(parts: Sequence[Part], methods: Sequence[EvaluationMethodConfig]) -> list[JudgedPart]:
    """The parts with what their rows say about the method."""
    labels, configs = method_labels(parts), {config.name: config for config in methods}
    return [
        JudgedPart(part, labels[name], configs[name].description, configs[name].params)
        for part in parts
        if (name := part.method or "") in configs
    ]


def _parts(
    store: Store,
    verdicts: Sequence[tuple[str, Origin]],
    statistics: Sequence[ArtifactRef],
    requests: Sequence[ArtifactRef],
    answers: Sequence[Answered],
) -> list[Part]:
    return [
        Part.kept(store, origin, scored, asked, answered, method)
        for (method, origin), scored, asked, answered in zip(
            verdicts, statistics, requests, answers, strict=True
        )
    ]
