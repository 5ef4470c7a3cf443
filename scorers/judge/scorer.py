"""A model grades the responses: the requests to each judge, and the score that their replies make.

Places that were swapped are swapped back, then a judge's repeats are combined, then the judges. A sample of
which too few judges can be read stays unscored.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from metrics.config import MetricConfig, StatisticsConfig
from metrics.metric import Metric
from metrics.types import Estimate, Floats, Ints
from scorers.base import Batch, ModelReply, SampleScores, ScorerError, ScorerRequest, score_values
from scorers.generation import GenerationScorer
from scorers.grading import GradingPrompt, prompt_variables, render
from scorers.judge.calibration import (
    Calibration,
    Labelled,
    corrected_estimate,
    corrected_rate,
    krippendorff_alpha,
    ppi_estimate,
)
from scorers.judge.config import ChoiceReading, JudgeConfig, grade_range
from scorers.judge.reading import Grade, read_grade

JUDGE, AGREEMENT, CORRECTED = "llm_judge", "llm_judge_agreement", "llm_judge_corrected"


class Place(NamedTuple):
    """One of the requests about a row: to which judge, which repeat, and whether the answers of a pairwise
    grading changed places."""

    judge: str
    repeat: int
    swapped: bool


@dataclass(frozen=True)
class Verdicts:
    """One sample's verdicts: ``grades[judge]`` has a number per repeat, None where the reply could not be
    read.

    ``score`` is None, with ``error`` saying why, where too few judges could be read.
    """

    grades: dict[str, list[float | None]]
    replies: dict[str, list[str | None]]
    score: float | None
    error: str | None

    def unit(self) -> list[float | None]:
        """All grades side by side, for the judges' agreement."""
        return [grade for grades in self.grades.values() for grade in grades]

    def details(self) -> dict[str, Any]:
        """What a person wants to see beside the score."""
        return {"verdicts": self.grades, "replies": self.replies}


@dataclass(frozen=True)
class LLMJudgeScorer(GenerationScorer):
    """Adds a judge's metrics to those of a benchmark; all others are scored as generated text.

    ``llm_judge`` is the combined grade of a sample, ``llm_judge_agreement`` Krippendorff's alpha over several
    verdicts, ``llm_judge_corrected`` the rate of positive verdicts without the judge's bias, given a
    calibration. A reply that cannot be read leaves its sample unscored, never zero.
    """

    config: JudgeConfig
    prompt: GradingPrompt
    calibration: Calibration | Labelled | None = None

    def needs(self, metric: Metric) -> str | None:
        """All of the judge's metrics wait for the same verdicts."""
        return JUDGE if _is_judge_metric(metric) else None

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """For each scored row: both orders (if places change), each judge, each repeat. There is nothing to
        show of an answer that was cut off before it began, or refused: its grade is the scale's worst.
        """
        if not _is_judge_metric(metric):
            return ()
        places = self._places()
        return [
            request for row in _judged_rows(batch) for request in self._sample_requests(batch, row, places)
        ]

    def count_requests(self, batch: Batch, metric: Metric) -> int:
        """As many for each row as there are orders × judges × repeats."""
        return len(_judged_rows(batch)) * len(self._places()) if _is_judge_metric(metric) else 0

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """Replies that hold no grade, or none that can be told without guessing."""
        return [
            reply is not None and reply.text is not None and read_reply(reply, self.config).error is not None
            for reply in replies
        ]

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """The grades of ``metric`` row for row; ``replies`` stand beside ``requests(batch, metric)``."""
        if not _is_judge_metric(metric):
            return super().score(batch, metric)
        if metric.entry == CORRECTED and not isinstance(self.config.calibration, tuple):
            raise ScorerError(f"metric {metric.name!r} needs the calibration: its rows are not read")
        given = self._verdicts(batch, metric, replies)
        for row in np.flatnonzero(batch.scored).tolist():
            if batch.lacks_answer(row):
                given[row] = self._without_answer(metric, batch.lacking[row] if batch.lacking else None)
        values, errors = (
            zip(*(self._sample_value(one, metric) for one in given), strict=True) if given else ((), ())
        )
        return score_values(batch, metric, values, errors, [one.details() if one else None for one in given])

    def estimate(
        self, metric: Metric, statistics: Floats | None, clusters: Ints | None, options: StatisticsConfig
    ) -> Estimate | None:
        """The corrected rate with the calibration's share of its error; None for all other metrics."""
        if metric.entry != CORRECTED or self.calibration is None or statistics is None:
            return None
        column, level = statistics[:, 0], options.ci_level
        if isinstance(self.calibration, Labelled):
            estimate = ppi_estimate(self.calibration, column, clusters, level)
        else:
            estimate = corrected_estimate(self.calibration, column, clusters, level)
        if options.bootstrap_iters > 0:
            return estimate
        return replace(estimate, stderr=np.nan, stderr_method="none", ci_low=np.nan, ci_high=np.nan)

    def calibration_batch(self) -> Batch | None:
        """The calibration's answers that the judge has not judged yet; None if there are none."""
        rows = self.config.calibration
        if self.calibration is not None or not isinstance(rows, tuple) or not rows:
            return None
        docs: list[Mapping[str, Any]] = [row.model_extra or {} for row in rows]
        texts = [row.response or "" for row in rows]
        return Batch(
            item_ids=[f"calibration-{place}" for place in range(len(rows))],
            sample_index=np.zeros(len(rows), dtype=np.int32),
            scored=np.ones(len(rows), dtype=np.bool_),
            predictions=texts,
            references=[_references(doc) for doc in docs],
            docs=docs,
            responses=texts,
        )

    def calibrated(self, judged: SampleScores) -> "LLMJudgeScorer":
        """The scorer that knows how the judge did on ``calibration_batch``; unscored rows do not count."""
        rows = self.config.calibration
        assert isinstance(rows, tuple)
        scored_rows = np.flatnonzero(judged.scored).tolist()
        grades = [float(judged.scores.score[row]) for row in scored_rows]
        if not self.config.graded:
            grades = [float(grade >= self.config.threshold) for grade in grades]
        human = [float(rows[row].human) for row in scored_rows]
        calibration = calibration_of(self.config, human, grades)
        metrics = {
            name: tuple(judge_metric(metric, calibration, self.config) for metric in own)
            for name, own in self.metrics.items()
        }
        return replace(self, metrics=metrics, calibration=calibration)

    def _places(self) -> list[Place]:
        """The requests about each row, in order."""
        swaps = self.config.pairwise is not None and self.config.pairwise.swap
        return [
            Place(judge.name, repeat, swapped)
            for swapped in ((False, True) if swaps else (False,))
            for judge in self.config.judges
            for repeat in range(self.config.repeats)
        ]

    def _sample_requests(self, batch: Batch, row: int, places: Sequence[Place]) -> list[ScorerRequest]:
        variables = prompt_variables(batch, row)
        orders = [variables]
        pairwise = self.config.pairwise
        if pairwise is not None:
            a, b = variables["prediction"], render(pairwise.baseline, variables, batch.name(row))
            orders = [{**variables, "answer_a": a, "answer_b": b}]
            if pairwise.swap:
                orders.append({**variables, "answer_a": b, "answer_b": a})
        prompts = [self.prompt.render(order, batch.name(row)) for order in orders]
        return [
            ScorerRequest(
                row,
                place.judge,
                place.repeat,
                prompts[place.swapped],
                self.config.sample_params,
                swapped=place.swapped,
                sample_index=place.repeat,
                repeats=self.config.repeats,
            )
            for place in places
        ]

    def _verdicts(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> list[Verdicts | None]:
        rows, places = _judged_rows(batch), self._places()
        if len(replies) != len(rows) * len(places):
            raise ScorerError(
                f"{len(replies)} replies of judges for {len(rows) * len(places)} requests; expected one each"
            )
        given: list[Verdicts | None] = [None] * len(batch)
        for at, row in enumerate(rows):
            own = replies[at * len(places) : (at + 1) * len(places)]
            given[row] = read_verdicts(self.config, places, own)
        return given

    def _without_answer(self, metric: Metric, why: str | None) -> Verdicts:
        """What is said of an answer that was cut off before it began, or refused: the worst grade."""
        bounds, what = grade_range(self.config.parse), "refused" if why == "refused" else "cut off"
        if bounds is None:
            said = f"the answer was {what}, and the judge's scale has no worst grade: give parse min and max"
            return Verdicts({}, {}, None, said)
        worst = bounds[0] if metric.higher_is_better else bounds[1]
        return Verdicts({}, {}, worst, f"the answer was {what}: no judge saw it")

    def _sample_value(self, given: Verdicts | None, metric: Metric) -> tuple[Any, str | None]:
        if given is None:
            return None, None
        if metric.entry == AGREEMENT:
            unit = given.unit()
            rated = sum(grade is not None for grade in unit)
            return (
                ([unit], None)
                if rated > 1
                else (None, given.error or "one verdict alone agrees with nothing")
            )
        if given.score is None:
            return None, given.error
        if metric.entry == CORRECTED and not self.config.graded:
            return float(given.score >= self.config.threshold), None
        return given.score, None


def judge_metrics(config: JudgeConfig) -> tuple[MetricConfig, ...]:
    """The metrics that a judge adds: agreement where there are several verdicts, the corrected rate where
    there is a calibration."""
    own = [MetricConfig(metric=JUDGE)]
    if len(config.judges) * config.repeats > 1:
        level = "nominal" if isinstance(config.parse, ChoiceReading) else "interval"
        own.append(MetricConfig(metric=AGREEMENT, kwargs={"level": level}))
    if config.calibration is not None:
        own.append(MetricConfig(metric=CORRECTED))
    return tuple(own)


def calibration_of(
    config: JudgeConfig, human: Sequence[float], judge: Sequence[float]
) -> Calibration | Labelled:
    """What people's verdicts (1, 0) or grades and the judge's of the same answers come to; raises ConfigError
    for too few, or for error rates without verdicts of either kind."""
    if config.graded:
        return Labelled.of(human, judge, grade_range(config.parse) or (-math.inf, math.inf))
    if config.calibration_method == "ppi":
        return Labelled.of(human, judge)
    return Calibration.of([right == 1 for right in human], [positive == 1 for positive in judge])


def judge_metric(metric: Metric, calibration: Calibration | Labelled | None, config: JudgeConfig) -> Metric:
    """The metric with the aggregation that only a judge's metrics have, grades with their range where the
    config says one; others as they are.

    The calibration is among the arguments, by which results are distinguished.
    """
    if metric.entry == AGREEMENT:
        aggregation = krippendorff_alpha(level=metric.arguments["level"])
    elif metric.entry == CORRECTED:
        aggregation = corrected_rate(calibration, config.labels)
    else:
        bounds = grade_range(config.parse)
        return metric if metric.entry != JUDGE or bounds is None else metric.within(bounds)
    reductions = tuple(reduction.bound(aggregation) for reduction in metric.reductions)
    arguments = {**metric.arguments, **aggregation.parameters}
    return replace(metric, aggregation=aggregation, reductions=reductions, arguments=arguments)


def read_verdicts(
    config: JudgeConfig, places: Sequence[Place], replies: Sequence[ModelReply | None]
) -> Verdicts:
    """The verdicts in the replies to one sample's requests, whose places are these.

    With places changed, a verdict is the mean of both orders: a judge that prefers a place rather than an
    answer says nothing. A judge counts if all its verdicts could be read.
    """
    found: dict[tuple[str, int], list[Grade]] = {}
    texts: dict[str, list[str | None]] = {}
    for place, reply in zip(places, replies, strict=True):
        grade = _unswapped(read_reply(reply, config), place.swapped, config)
        found.setdefault((place.judge, place.repeat), []).append(grade)
        texts.setdefault(place.judge, []).append(None if reply is None else reply.text)
    grades: dict[str, list[float | None]] = {}
    errors: dict[str, str] = {}
    for (judge, repeat), orders in found.items():
        problem = next((grade.error for grade in orders if grade.error), None)
        if problem:
            errors.setdefault(judge, f"judge {judge!r}, verdict {repeat + 1} of {config.repeats}: {problem}")
        values = [grade.value for grade in orders if grade.value is not None]
        grades.setdefault(judge, []).append(None if problem else sum(values) / len(values))
    score, error = _combine_judges(config, grades, errors)
    return Verdicts(grades, texts, score, error)


def read_reply(reply: ModelReply | None, config: JudgeConfig) -> Grade:
    """The grade in a reply; a request that failed has none."""
    if reply is None or reply.text is None:
        return Grade(
            None, error=f"no reply: {reply.error if reply and reply.error else 'the request failed'}"
        )
    return read_grade(reply.text, config.parse, reply.cut)


def combine_votes(votes: Sequence[float], how: Literal["mean", "majority"]) -> float:
    """Mean of the votes, or the most frequent one; equally frequent ones are averaged.

    >>> combine_votes([1, 0, 1], "majority"), combine_votes([1, 0], "majority")
    (1, 0.5)
    """
    if how == "mean":
        return sum(votes) / len(votes)
    counts = Counter(votes)
    top = max(counts.values())
    winners = [vote for vote, count in counts.items() if count == top]
    return winners[0] if len(winners) == 1 else sum(winners) / len(winners)


def _unswapped(grade: Grade, swapped: bool, config: JudgeConfig) -> Grade:
    """A grade given with places changed speaks of the other answer: mirrored within the range of grades."""
    bounds = grade_range(config.parse)
    if not swapped or grade.value is None or bounds is None:
        return grade
    return Grade(bounds[0] + bounds[1] - grade.value, grade.label)


def _combine_judges(
    config: JudgeConfig, grades: dict[str, list[float | None]], errors: dict[str, str]
) -> tuple[float | None, str | None]:
    readable = {
        judge: [g for g in given if g is not None] for judge, given in grades.items() if judge not in errors
    }
    needed = config.quorum or len(config.judges)
    if len(readable) < needed:
        return None, next(iter(errors.values()), "no verdict")
    if config.combine == "majority":
        return combine_votes([vote for votes in readable.values() for vote in votes], "majority"), None
    return combine_votes([combine_votes(votes, "mean") for votes in readable.values()], "mean"), None


def _is_judge_metric(metric: Metric) -> bool:
    return metric.entry in (JUDGE, AGREEMENT, CORRECTED)


def _judged_rows(batch: Batch) -> list[int]:
    return [row for row in np.flatnonzero(batch.scored).tolist() if not batch.lacks_answer(row)]


def _references(doc: Mapping[str, Any]) -> list[Any]:
    """A calibration row may say what is right, under the names of a dataset's row."""
    if "references" in doc:
        return list(doc["references"])
    given = doc.get("reference", doc.get("ground_truth"))
    return [] if given is None else [given]
