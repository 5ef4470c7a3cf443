"""A pair, a filter's predictions under one metric: what the stages of one share."""

from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from metrics.metric import Metric
from metrics.types import CutOff, Scores
from scorers.base import Batch, SampleScores, Scorer
from scorers.config import ScoringConfig, split_result_name
from scorers.factory import build_scorer
from tasks.rows.parts import PairIdentity
from tasks.store.steps import Unkeyed
from tasks.store.storage import ArtifactRef, Store
from tasks.usercode.load import resolver


class PairSetup(Unkeyed):
    """Which pair it is, and what its scorer and metric are built from: user functions cross processes by
    name, and ``own_modules`` says that their files are imported for each step alone (see ``UserModules``)."""

    benchmark: str
    scoring: ScoringConfig
    filter: str
    metric: str
    base_dir: str
    own_modules: bool = False
    facets: tuple[str, ...] = ()

    @property
    def cut_off(self) -> CutOff:
        """How an answer is scored that was cut off before it began."""
        return self.scoring.cut_off

    def scorer(self) -> Scorer:
        """The benchmark's scorer."""
        return build_scorer(self.scoring, resolver(self.base_dir, own=self.own_modules))

    def metric_record(self, scorer: Scorer | None = None) -> Metric:
        """The pair's metric, as ``scorer`` knows it (default: the benchmark's)."""
        metrics = (scorer or self.scorer()).get_metrics(self.filter)
        return next(entry for entry in metrics if entry.name == self.metric)

    def identity(self, scorer: Scorer | None = None) -> PairIdentity:
        """The pair under the names that results bear: ``process_results`` may name a filter in its metric's
        name."""
        metric, filter_name = split_result_name(self.metric, self.filter)
        record = replace(self.metric_record(scorer), name=metric)
        return PairIdentity(benchmark=self.benchmark, filter=filter_name, metric=record)


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
