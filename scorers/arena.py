"""Answers of two models to one item are compared by a judge: what it is asked, and what its verdicts say.

A *matchup* is a batch whose predictions are the answers of both models; each verdict on it is a game. Equal
answers are a tie, and an answer beats none, without a judge being asked. A model's metric ``win_rate`` is the
share of its games that it won, ties counting half; its strength is ``metrics.statistics.ratings``'s affair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from metrics.metric import Metric
from scorers.base import Batch, ModelReply, SampleScores, ScorerError, ScorerRequest, score_values
from scorers.config import ArenaConfig
from scorers.generation import GenerationScorer
from scorers.grading import GradingPrompt, prompt_variables
from scorers.judge.config import grade_range
from scorers.judge.reading import read_grade

WIN_RATE = "win_rate"
"""The metric that an arena adds."""


@dataclass(frozen=True)
class Answers:
    """Two models' answers, as a judge sees them; None where there is none (it was cut off, or a filter found
    nothing)."""

    first: str | None
    second: str | None

    @property
    def decided(self) -> float | None:
        """What the first model's answer is worth where that needs no judge: equal answers tie, and an answer
        beats none."""
        if self.first == self.second:
            return 0.5
        if self.first is None or self.second is None:
            return float(self.second is None)
        return None

    def swaps(self, both_orders: bool) -> tuple[bool, ...]:
        """In which orders they are shown: True, the second model's first. One order is chosen by the texts
        alone, so that it is the same whichever model is called the first."""
        if both_orders:
            return False, True
        digests = [sha256((text or "").encode("utf-8", "surrogatepass")).digest() for text in self._texts()]
        chance = sha256(b"".join(sorted(digests))).digest()[0] % 2
        return (bool(chance) != (digests[0] < digests[1]),)

    def _texts(self) -> tuple[str | None, str | None]:
        return self.first, self.second


@dataclass(frozen=True)
class Game:
    """A verdict on the answers of a matchup's row: ``value`` is the first model's share, 1 for a win, 0.5 for
    a tie; None, with ``error`` saying why, where there is none.

    ``swapped`` says that the second model's answer was shown first, ``asked`` that a judge saw them at all.
    """

    row: int
    judge: str
    swapped: bool
    value: float | None
    asked: bool = True
    reply: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Played:
    """What a model's games on one sample come to: ``value`` is its share, None with ``error`` where a verdict
    is missing. ``details`` are for people."""

    value: float | None
    error: str | None
    details: dict[str, Any]


def matchup(first: Batch, second: Batch) -> Batch:
    """The samples of two models side by side, those of an item by their order; each prediction is
    ``Answers``.

    A row is scored if both are. What only one of the models has is left out.
    """
    pairs = list(zip(*_matched(first, second), strict=True))
    rows, others = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Batch(
        item_ids=[first.item_ids[row] for row in rows],
        sample_index=repeats(first)[rows] if rows else np.zeros(0, dtype=np.int32),
        scored=first.scored[rows] & second.scored[others] if rows else np.zeros(0, dtype=np.bool_),
        predictions=[Answers(_shown(first, row), _shown(second, other)) for row, other in pairs],
        references=[first.references[row] for row in rows],
        docs=[first.docs[row] for row in rows],
        responses=[None] * len(rows),
    )


def repeats(batch: Batch) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """(n,): how many samples of the same item stand before each row."""
    seen: dict[str, int] = {}
    places = np.empty(len(batch), dtype=np.int32)
    for row, item in enumerate(batch.item_ids):
        places[row] = seen[item] = seen.get(item, -1) + 1
    return places


def _matched(first: Batch, second: Batch) -> tuple[list[int], list[int]]:
    places = {
        (item, int(repeat)): row
        for row, (item, repeat) in enumerate(zip(second.item_ids, repeats(second), strict=True))
    }
    keys = zip(first.item_ids, repeats(first).tolist(), strict=True)
    found = [(row, places[key]) for row, key in enumerate(keys) if key in places]
    return [row for row, _ in found], [other for _, other in found]


def _shown(batch: Batch, row: int) -> str | None:
    prediction = batch.predictions[row]
    return prediction if prediction is None or isinstance(prediction, str) else str(prediction)


@dataclass(frozen=True)
class ArenaScorer(GenerationScorer):
    """Adds the metric ``win_rate`` to those of a benchmark; all others are scored as generated text.

    ``requests`` and ``games`` look at matchups, ``score_games`` at one model's samples and what its games
    came to. A reply that can't be read is no verdict, and leaves the samples that it is about unscored.
    """

    config: ArenaConfig
    prompt: GradingPrompt

    def needs(self, metric: Metric) -> str | None:
        """The games are the same for all of an arena's metrics."""
        return "arena" if is_arena(metric) else None

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """For each scored row of a matchup that is not decided: each judge, each order."""
        if not is_arena(metric):
            return ()
        return [request for row in _open_rows(batch) for request in self._row_requests(batch, row)]

    def count_requests(self, batch: Batch, metric: Metric) -> int:
        """As many as there are undecided rows × judges × orders."""
        return len(self._places(batch)) if is_arena(metric) else 0

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """Replies that hold no verdict, or none that can be told without guessing."""
        return [
            reply is not None and reply.text is not None and self._read(reply)[0] is None for reply in replies
        ]

    def games(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]) -> list[Game]:
        """The verdicts on a matchup, row by row; ``replies`` stand beside its ``requests``.

        Each row has one a judge and order, those without a judge too, so that all rows count alike.
        """
        places = self._places(batch) if is_arena(metric) else []
        if len(replies) != len(places):
            raise ScorerError(
                f"{len(replies)} replies of judges for {len(places)} requests; expected one each"
            )
        found = [self._game(*place, reply) for place, reply in zip(places, replies, strict=True)]
        found += [
            Game(row, judge.name, swapped, batch.predictions[row].decided, asked=False)
            for row in np.flatnonzero(batch.scored).tolist()
            if batch.predictions[row].decided is not None
            for judge in self.config.judges
            for swapped in batch.predictions[row].swaps(self.config.both_orders)
        ]
        return sorted(found, key=lambda game: game.row)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """Scores of a metric beside ``win_rate``, which needs what came of the games."""
        if is_arena(metric):
            raise ScorerError(f"metric {metric.name!r} needs what came of the games")
        return super().score(batch, metric, replies)

    def score_games(self, batch: Batch, metric: Metric, played: Sequence[Played | None]) -> SampleScores:
        """The win rates of one model's samples; None beside a sample that had no game."""
        values = [None if one is None else one.value for one in played]
        errors = [
            "no opponent has an answer beside this sample" if one is None else one.error for one in played
        ]
        return score_values(batch, metric, values, errors, [one.details if one else None for one in played])

    def _row_requests(self, batch: Batch, row: int) -> list[ScorerRequest]:
        answers: Answers = batch.predictions[row]
        seen = prompt_variables(batch, row)
        variables = {name: value for name, value in seen.items() if name not in ("response", "prediction")}
        shown = answers.first, answers.second
        found = []
        for swapped in answers.swaps(self.config.both_orders):
            a, b = shown[::-1] if swapped else shown
            prompt = self.prompt.render({**variables, "answer_a": a, "answer_b": b}, batch.name(row))
            found += [
                ScorerRequest(row, judge.name, 0, prompt, self.config.sample_params, swapped=swapped)
                for judge in self.config.judges
            ]
        return found

    def _places(self, batch: Batch) -> list[tuple[int, str, bool]]:
        """Row, judge and whether answers changed places, of each of the ``requests``."""
        return [
            (row, judge.name, swapped)
            for row in _open_rows(batch)
            for swapped in batch.predictions[row].swaps(self.config.both_orders)
            for judge in self.config.judges
        ]

    def _game(self, row: int, judge: str, swapped: bool, reply: ModelReply | None) -> Game:
        value, error = self._read(reply)
        if value is not None and swapped:
            value = 1 - value
        text = None if reply is None else reply.text
        return Game(row, judge, swapped, value, reply=text, error=error)

    def _read(self, reply: ModelReply | None) -> tuple[float | None, str | None]:
        """The share of the answer shown first, or why there is none."""
        if reply is None or reply.text is None:
            return None, f"no reply: {reply.error if reply and reply.error else 'the request failed'}"
        grade = read_grade(reply.text, self.config.parse, reply.cut)
        if grade.value is None:
            return None, grade.error
        bounds = grade_range(self.config.parse)
        assert bounds is not None, "the config sees to it"
        return (grade.value - bounds[0]) / (bounds[1] - bounds[0]), None


def is_arena(metric: Metric) -> bool:
    """Whether the metric waits for games."""
    return metric.entry == WIN_RATE


def _open_rows(batch: Batch) -> list[int]:
    """Scored rows that no rule has decided."""
    return [row for row in np.flatnonzero(batch.scored).tolist() if batch.predictions[row].decided is None]


def played(games: Mapping[str, Sequence[tuple[Game, bool]] | None], failed: str = "") -> Played:
    """What a sample's games against each opponent come to; with each game, whether the model was the first.

    An opponent without a game (None) has no answer that could be compared. All verdicts count: were those
    left out that could not be read, the rate would be one over the games that are easily judged.
    """
    values: list[float] = []
    error, details = None, []
    for opponent, own in games.items():
        if not own:
            error = error or f"no game against {opponent}: {failed or 'it has no answer to this item'}"
            continue
        for game, is_first in own:
            value = game.value if game.value is None or is_first else 1 - game.value
            if value is None:
                error = error or f"against {opponent}, judge {game.judge!r}: {game.error}"
            else:
                values.append(value)
            about: dict[str, Any] = {"against": opponent, "judge": game.judge, "value": value}
            about["shown"] = "first" if game.swapped != is_first else "second"
            if not game.asked:
                about["judge"] = "none was asked"
            details.append({**about, "reply": game.reply} if game.reply is not None else about)
    value = None if error or not values else sum(values) / len(values)
    return Played(value, error, {"games": details})
