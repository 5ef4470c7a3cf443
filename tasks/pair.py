"""What the tasks of one pair share."""

from dataclasses import replace

from metrics import Metric
from scorers.base import Scorer
from scorers.config import ScoringConfig
from scorers.factory import build_scorer
from scorers.metric_lists import split_name
from tasks.reduction.records import PairIdentity
from tasks.steps import Unkeyed
from tasks.usercode import resolver


class PairSetup(Unkeyed):
    """Which pair it is, and what its scorer and metric are built from: user functions cross processes by
    name."""

    benchmark: str
    scoring: ScoringConfig
    filter: str
    metric: str
    base_dir: str
    facets: tuple[str, ...] = ()

    def scorer(self) -> Scorer:
        """The benchmark's scorer."""
        return build_scorer(self.scoring, resolver(self.base_dir))

    def metric_record(self, scorer: Scorer | None = None) -> Metric:
        """The pair's metric, as ``scorer`` knows it (default: the benchmark's)."""
        metrics = (scorer or self.scorer()).get_metrics(self.filter)
        return next(entry for entry in metrics if entry.name == self.metric)

    def identity(self, scorer: Scorer | None = None) -> PairIdentity:
        """The pair under the names that results bear: ``process_results`` may name a filter in its metric's
        name."""
        metric, filter_name = split_name(self.metric, self.filter)
        record = replace(self.metric_record(scorer), name=metric)
        return PairIdentity(benchmark=self.benchmark, filter=filter_name, metric=record)
