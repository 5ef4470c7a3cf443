"""Stages "ask" and "score" of a calibration: a judge's own verdicts on answers that people judged.

They are asked for and read like those on any response, once a run whatever the filters; where the config
gives them, nothing is asked.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from metrics.types import Scores
from scorers.base import Scorer
from scorers.records import Batch, SampleScores
from tasks.answered import Answered
from tasks.ask import AskSetup, asked_rows, replies_of
from tasks.caching import Workspace, artifact_task
from tasks.pair import PairSetup
from tasks.rows.statistics import statistics_batch
from tasks.steps import Step
from tasks.store.refs import ArtifactRef
from tasks.store.schemas import REQUESTS, STATISTICS
from tasks.store.storage import Store


@runtime_checkable
class Calibrating(Protocol):
    """A scorer whose numbers rest on how its judge does on answers that people judged."""

    def calibration_batch(self) -> Batch | None:
        """The answers that the judge has not judged yet; None if there are none."""
        ...

    def calibrated(self, judged: SampleScores) -> Scorer:
        """The scorer that knows how the judge did on ``calibration_batch``."""
        ...


@artifact_task("ask", REQUESTS)
def ask_calibration(
    step: Step[AskSetup], asked: Sequence[ArtifactRef], replied: Sequence[Answered], workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """What a judge is asked about the calibration's answers; attempts as in ``ask``."""
    batch = pending(step.setup.scorer())
    yield from asked_rows(step.setup, [batch] if batch else [], replies_of(workspace.open(), asked, replied))


@artifact_task("score", STATISTICS)
def score_calibration(
    step: Step[PairSetup], asked: Sequence[ArtifactRef], replied: Sequence[Answered], workspace: Workspace
) -> Iterator[pa.RecordBatch]:
    """The judge's grades of the calibration's answers, row for row."""
    scorer = step.setup.scorer()
    metric, batch = step.setup.metric_record(scorer), pending(scorer)
    assert batch is not None, "the plan makes this step for verdicts that are not given"
    replies = replies_of(workspace.open(), asked, replied)
    given = [replies.get(place) for place in range(len(scorer.requests(batch, metric)))]
    samples = pa.table(
        {
            "item_id": pa.array(batch.item_ids, pa.string()),
            "doc_id": pa.array(range(len(batch)), pa.int64()),
            "sample_index": pa.array(batch.sample_index, pa.int32()),
        }
    )
    yield statistics_batch(samples, scorer.score(batch, metric, given))


def pending(scorer: Scorer) -> Batch | None:
    """The calibration's answers that the scorer's judge still has to judge; None if there are none."""
    return scorer.calibration_batch() if isinstance(scorer, Calibrating) else None


def calibrated_scorer(setup: PairSetup, store: Store, judged: ArtifactRef | None) -> Scorer:
    """The pair's scorer, which knows the grades of ``judged`` where there are any.

    Raises ConfigError where too few answers were judged to say how the judge does.
    """
    scorer = setup.scorer()
    if judged is None:
        return scorer
    assert isinstance(scorer, Calibrating), "only such a scorer has a calibration to judge"
    table = store.table(judged, ["scored", "score"])
    grades = np.asarray(table.column("score").fill_null(np.nan).to_numpy(), dtype=np.float64)
    scored = np.asarray(table.column("scored").to_numpy(), dtype=np.bool_)
    return scorer.calibrated(
        SampleScores(
            scores=Scores(statistics=None, values=None, score=grades),
            scored=scored,
            codes=np.full(len(grades), -1, dtype=np.int64),
            errors=[None] * len(grades),
        )
    )
