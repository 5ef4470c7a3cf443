"""Stages "ask" and "score" of a calibration: a judge's own verdicts on answers that people judged.

They are asked for and read like those on any response, once a run whatever the filters; where the config
gives them, nothing is asked.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tasks.answered import Answered
from tasks.ask import AskSetup, asked_rows, replies_of
from tasks.caching import Workspace, artifact_task
from tasks.calibrated import pending
from tasks.pair import PairSetup
from tasks.rows.statistics import statistics_batch
from tasks.steps import Step
from tasks.store.refs import ArtifactRef
from tasks.store.schemas import REQUESTS, STATISTICS


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
