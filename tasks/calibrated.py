"""Scorers whose numbers rest on a calibration: answers that people judged, and a judge's grades of them."""

from typing import Protocol, runtime_checkable

import numpy as np

from metrics.types import Scores
from scorers.base import Batch, SampleScores, Scorer
from tasks.pair import PairSetup
from tasks.store.refs import ArtifactRef
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
