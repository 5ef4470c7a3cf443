"""Scores that may take for ever, or need a main thread: row by row in a process that can be killed.

A batch whose metric is sure to end soon is scored here, at once, as ever. What takes too much is unscored,
with the reason.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import numpy as np

from metrics.patterns import bounded
from metrics.types import Scores
from scorers.base import Batch, ModelReply, SampleScores
from scorers.config import ArenaConfig, EnsembleConfig, ScorerConfig
from scorers.judge.config import JudgeConfig, PatternReading
from scorers.process_results import ProcessResultsScorer, ResultValues
from tasks.rows.parts import PairSetup
from tasks.sandboxes.killable import ItemTimeout, KillableProcess
from tasks.usercode.surroundings import Generators, sets_alarms, stand_ins

Row = tuple[Batch, Sequence[ModelReply | None]]
OWN_ALARMS: Final = 10
"""How many times ``item_timeout`` a function may take that sets alarms itself, which are to end it first."""


class LimitedScorer(AbstractContextManager["LimitedScorer"]):
    """A pair's scorer and metric. A context manager: its process ends with the block."""

    def __init__(self, setup: PairSetup) -> None:
        self._scorer, self._metric = setup.built()
        self._process = KillableProcess("tasks.rows.limited:scoring", [setup], setup.scoring.item_timeout)

    def __exit__(self, *_: object) -> None:
        self._process.close()

    @property
    def takes_answer(self) -> bool:
        """Whether the pair looks at all that is known of an answer."""
        return self._scorer.takes_answer(self._metric)

    def requests(self, batch: Batch) -> int:
        """How many replies ``score`` has to be given for a batch."""
        return self._scorer.count_requests(batch, self._metric)

    def score(self, batch: Batch, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """The scores of a batch; raises what the scorer raises."""
        if batch.choices is not None or self._scorer.bounded(batch, self._metric):
            return self._scorer.score(batch, self._metric, replies)
        rows = np.flatnonzero(batch.scored).tolist()
        scored = self._process.map(list(self._rows(batch, rows, replies)))
        blank = self._scorer.score(replace(batch, scored=np.zeros_like(batch.scored)), self._metric)
        return _joined(blank, dict(zip(rows, scored, strict=True)))

    def _rows(self, batch: Batch, rows: Sequence[int], replies: Sequence[ModelReply | None]) -> Iterator[Row]:
        own: dict[int, list[ModelReply | None]] = {}
        for request, reply in zip(self._scorer.requests(batch, self._metric), replies, strict=True):
            own.setdefault(request.row, []).append(reply)
        whole = replace(batch, references=list(batch.references), docs=list(batch.docs))
        for row in rows:
            yield whole.only(row), own.get(row, [])


class LimitedProcessing(AbstractContextManager["LimitedProcessing"]):
    """A benchmark's ``process_results``. A context manager: its process ends with the block.

    A function that sets alarms is called in the main thread of a process: in other threads Python refuses
    signals, which many files take for a wrong answer.
    """

    def __init__(self, setup: PairSetup) -> None:
        self._scorer, self._generators = processing_scorer(setup), Generators()
        self._apart = sets_alarms(self._scorer.function)
        seconds = setup.scoring.item_timeout * OWN_ALARMS
        self._process = KillableProcess("tasks.rows.limited:processing", [setup], seconds)

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def process(self, batch: Batch) -> tuple[list[ResultValues | None], list[str | None]]:
        """What the function returned for every scored row, and why it returned nothing for one that was given
        up; raises ScorerError."""
        errors: list[str | None] = [None] * len(batch)
        if not self._apart or batch.choices is not None:
            with stand_ins(), self._generators.drawn_from():  # functions import libraries in bodies, too
                return self._scorer.process(batch), errors
        results: list[ResultValues | None] = [None] * len(batch)
        rows = np.flatnonzero(batch.scored).tolist()
        for row, said in zip(rows, self._process.map([batch.only(row) for row in rows]), strict=True):
            if isinstance(said, ItemTimeout):
                errors[row] = said.reason
            else:
                results[row] = said
        self._scorer.warn_of_undeclared(results)
        return results, errors


def processing(setup: PairSetup) -> Callable[[Batch], ResultValues | None]:
    """What the process runs on each row."""
    scorer, generators = processing_scorer(setup), Generators()

    def call(row: Batch) -> ResultValues | None:
        with stand_ins(), generators.drawn_from():
            return scorer.process(row)[0]

    return call


def processing_scorer(setup: PairSetup) -> ProcessResultsScorer:
    """The scorer of a step that the plan makes for ``process_results`` only."""
    scorer = setup.scorer()
    assert isinstance(scorer, ProcessResultsScorer), "the plan makes this step for process_results only"
    return scorer


def scoring(setup: PairSetup) -> Callable[[Row], SampleScores]:
    """What the process runs on each row."""
    scorer, metric = setup.built()
    if metric.endless:  # what it imports is not the first row's to pay for
        answers = ["2"] if metric.right_answers is None else metric.right_answers(["2"], **metric.kwargs)
        metric.evaluate([["1"]], list(answers)[:1])
    return lambda row: scorer.score(row[0], metric, row[1])


def _joined(blank: SampleScores, found: Mapping[int, SampleScores | ItemTimeout]) -> SampleScores:
    """The scores of rows put into those of a batch in which none is scored."""
    scored, codes, score = blank.scored.copy(), blank.codes.copy(), blank.scores.score.copy()
    statistics = None if blank.scores.statistics is None else blank.scores.statistics.copy()
    values = None if blank.scores.values is None else list(blank.scores.values)
    details, errors = list(blank.scores.details or [None] * len(blank)), list(blank.errors)
    for row, one in found.items():
        if isinstance(one, ItemTimeout):
            errors[row] = one.reason
            continue
        scored[row], codes[row], errors[row] = one.scored[0], one.codes[0], one.errors[0]
        score[row] = one.scores.score[0]
        if statistics is not None and one.scores.statistics is not None:
            statistics[row] = one.scores.statistics[0]
        if values is not None and one.scores.values is not None:
            values[row] = one.scores.values[0]
        details[row] = None if one.scores.details is None else one.scores.details[0]
    scores = Scores(statistics, values, score, details if any(details) else None)
    return SampleScores(scores, scored, codes, errors)


def legible(
    scorer: ScorerConfig | None, replies: Mapping[int, ModelReply], seconds: float
) -> dict[int, ModelReply]:
    """The replies of judges; one that takes too much to read, by the pattern of a config, is an error."""
    found = dict(replies)
    for pattern in _reading_patterns(scorer):
        texts = {place: reply.text for place, reply in found.items() if reply.text is not None}
        doubtful = [place for place, text in texts.items() if not bounded(pattern, [text])]
        with KillableProcess("tasks.rows.limited:reading", [pattern], seconds) as process:
            said = process.map([texts[place] for place in doubtful])
        lost = {
            place: one.reason
            for place, one in zip(doubtful, said, strict=True)
            if isinstance(one, ItemTimeout)
        }
        found |= {place: ModelReply(None, f"reading the reply {reason}") for place, reason in lost.items()}
    return found


def reading(pattern: str) -> Callable[[str], int]:
    """What the process runs on each reply: how many matches it has."""
    compiled = re.compile(pattern)
    return lambda text: len(compiled.findall(text))


def _reading_patterns(scorer: ScorerConfig | None) -> Iterator[str]:
    if isinstance(scorer, JudgeConfig | ArenaConfig) and isinstance(scorer.parse, PatternReading):
        yield scorer.parse.pattern
    elif isinstance(scorer, EnsembleConfig):
        for member in scorer.members:
            yield from _reading_patterns(member.scorer)
