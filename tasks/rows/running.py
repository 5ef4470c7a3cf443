"""How a model does while it is being asked: one metric over the first items that are answered.

A running figure and no result. It rests on a bounded sample of the partition, is computed beside the asking
in a thread of its own, item by item once, and enters no key: nothing that is kept depends on it.
"""

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.models.progress import Progress, RunningFigure
from tasks.rows.limited import LimitedScorer
from tasks.rows.parts import PairSetup
from tasks.rows.predictions import FilterSetup, LimitedPipeline, prediction_batches
from tasks.rows.scoring import joined_rows
from tasks.store.beside import beside
from tasks.store.keys import Unkeyed

SECONDS = 2.0
"""Between two looks at what was answered."""
ATTEMPTS = 3
"""Looks in a row that may fail before no more are taken."""

_log = logging.getLogger(__name__)


class RunningScore(Unkeyed):
    """The pair whose metric is watched: a filter, and a metric that is a mean over items and asks nobody."""

    filter: FilterSetup
    pair: PairSetup

    @contextmanager
    def watching(
        self, report: Callable[[Progress], None], seconds: float = SECONDS
    ) -> Iterator[Callable[[Progress], None]]:
        """Reports of an inference, handed on to ``report`` with the figure as it is by then.

        What goes wrong here costs the figure and nothing else.
        """
        watch = _Watch(self)

        def look(over: threading.Event) -> None:
            try:
                with (
                    LimitedPipeline(
                        self.filter.pipeline(), self.filter.config, self.filter.item_timeout
                    ) as limited,
                    LimitedScorer(self.pair) as scorer,
                ):
                    while not over.wait(seconds) and watch.failed < ATTEMPTS:
                        watch.look(limited, scorer)
            except Exception:
                _log.debug("no running score of %s", self.pair.metric, exc_info=True)

        def told(progress: Progress) -> None:
            watch.latest = progress
            report(replace(progress, running=watch.figure, first=None))

        with beside(look, "running score"):
            yield told


class _Watch:
    """The items that were scored so far."""

    def __init__(self, score: RunningScore) -> None:
        self._score = score
        self._done: set[str] = set()
        self.latest: Progress | None = None
        self.figure: RunningFigure | None = None
        self.failed = 0

    def look(self, limited: LimitedPipeline, scorer: LimitedScorer) -> None:
        """Scores the items that were settled since the last look; what fails is tried at the next."""
        try:
            self._look(limited, scorer)
            self.failed = 0
        except Exception:
            self.failed += 1
            _log.debug("no running score of %s", self._score.pair.metric, exc_info=True)

    def _look(self, limited: LimitedPipeline, scorer: LimitedScorer) -> None:
        first = self.latest.first if self.latest is not None else None
        settled = first() if first is not None else None
        if settled is None:
            return
        requests, responses = settled
        new = pc.invert(pc.is_in(requests.column("item_id"), pa.array(sorted(self._done), pa.string())))
        requests = requests.filter(new)
        if not requests.num_rows:
            return
        names = requests.column("item_id")
        responses = [batch.filter(pc.is_in(batch.column("item_id"), names)) for batch in responses]
        means = item_means(self._score, limited, scorer, requests, responses)
        self._done.update(names.to_pylist())
        before = self.figure or RunningFigure(self._score.pair.metric, 0.0, 0)
        self.figure = replace(before, total=before.total + sum(means), items=before.items + len(means))


def item_means(
    score: RunningScore,
    limited: LimitedPipeline,
    scorer: LimitedScorer,
    requests: pa.RecordBatch,
    responses: Sequence[pa.RecordBatch],
) -> list[float]:
    """Of each item with a sample that is scored: the mean of its samples' scores."""
    setup = score.filter
    predictions = list(prediction_batches(limited, [requests], responses, setup.cut_as_text, setup.read()))
    found: defaultdict[str, list[float]] = defaultdict(list)
    for part in joined_rows([requests], predictions, responses, score.pair.cut_off, scorer.takes_answer):
        scored = scorer.score(part.batch)
        there = scored.scored & ~np.isnan(scored.scores.score)
        for row in np.flatnonzero(there).tolist():
            found[part.batch.item_ids[row]].append(float(scored.scores.score[row]))
    return [sum(values) / len(values) for values in found.values()]
