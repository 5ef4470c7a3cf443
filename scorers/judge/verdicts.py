"""From the replies about one sample to its score: places changed back, repeats and judges combined."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from scorers.judge.config import JudgeConfig, grade_range
from scorers.judge.reading import Grade, read
from scorers.records import Reply, ScorerRequest


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


def verdicts(
    config: JudgeConfig, requests: Sequence[ScorerRequest], replies: Sequence[Reply | None]
) -> Verdicts:
    """The verdicts in the replies to one sample's requests.

    With places changed, a verdict is the mean of both orders: a judge that prefers a place rather than an
    answer says nothing. A judge counts if all its verdicts could be read.
    """
    found: dict[tuple[str, int], list[Grade]] = {}
    texts: dict[str, list[str | None]] = {}
    for request, reply in zip(requests, replies, strict=True):
        grade = _turned(read_reply(reply, config), request.swapped, config)
        found.setdefault((request.judge, request.repeat), []).append(grade)
        texts.setdefault(request.judge, []).append(None if reply is None else reply.text)
    grades: dict[str, list[float | None]] = {}
    errors: dict[str, str] = {}
    for (judge, repeat), orders in found.items():
        problem = next((grade.error for grade in orders if grade.error), None)
        if problem:
            errors.setdefault(judge, f"judge {judge!r}, verdict {repeat + 1} of {config.repeats}: {problem}")
        values = [grade.value for grade in orders if grade.value is not None]
        grades.setdefault(judge, []).append(None if problem else sum(values) / len(values))
    score, error = _combined(config, grades, errors)
    return Verdicts(grades, texts, score, error)


def read_reply(reply: Reply | None, config: JudgeConfig) -> Grade:
    """The grade in a reply; a request that failed has none."""
    if reply is None or reply.text is None:
        return Grade(
            None, error=f"no reply: {reply.error if reply and reply.error else 'the request failed'}"
        )
    return read(reply.text, config.parse)


def combine(votes: Sequence[float], how: Literal["mean", "majority"]) -> float:
    """Mean of the votes, or the most frequent one; equally frequent ones are averaged.

    >>> combine([1, 0, 1], "majority"), combine([1, 0], "majority")
    (1, 0.5)
    """
    if how == "mean":
        return sum(votes) / len(votes)
    counts = Counter(votes)
    top = max(counts.values())
    winners = [vote for vote, count in counts.items() if count == top]
    return winners[0] if len(winners) == 1 else sum(winners) / len(winners)


def _turned(grade: Grade, swapped: bool, config: JudgeConfig) -> Grade:
    """A grade given with places changed speaks of the other answer: mirrored within the range of grades."""
    bounds = grade_range(config.parse)
    if not swapped or grade.value is None or bounds is None:
        return grade
    return Grade(bounds[0] + bounds[1] - grade.value, grade.label)


def _combined(
    config: JudgeConfig, grades: dict[str, list[float | None]], errors: dict[str, str]
) -> tuple[float | None, str | None]:
    readable = {
        judge: [g for g in given if g is not None] for judge, given in grades.items() if judge not in errors
    }
    needed = config.quorum or len(config.judges)
    if len(readable) < needed:
        return None, next(iter(errors.values()), "no verdict")
    if config.combine == "majority":
        return combine([vote for votes in readable.values() for vote in votes], "majority"), None
    return combine([combine(votes, "mean") for votes in readable.values()], "mean"), None
