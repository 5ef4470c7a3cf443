"""Rewards beside the benchmark's metrics: a user's function, or a model that is asked for a number."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from metrics.errors import described, users_code
from metrics.metric import Metric
from scorers.base import Batch, ModelReply, SampleScores, ScorerError, ScorerRequest, score_values
from scorers.generation import GenerationScorer
from scorers.grading import GradingPrompt, prompt_variables
from scorers.judge.reading import read_number

REWARD = "reward"
"""The metric that a reward model adds."""


@dataclass(frozen=True)
class RewardModelScorer(GenerationScorer):
    """Adds the metric ``reward`` to those of a benchmark; all others are scored as generated text.

    Either ``function(responses, docs, **params)`` gives one number per response (None: unscored), or the
    model ``model`` is asked with ``prompt`` and its reply holds the number.
    """

    function: Callable[..., Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    prompt: GradingPrompt | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def needs(self, metric: Metric) -> str | None:
        """Name of the set of requests that ``metric`` waits for; None if it waits for none."""
        return REWARD if self._asks(metric) else None

    def requests(self, batch: Batch, metric: Metric) -> Sequence[ScorerRequest]:
        """One request per scored row where the reward comes from an endpoint."""
        if not self._asks(metric) or self.prompt is None:
            return ()
        return [
            ScorerRequest(
                row,
                self.model,
                0,
                self.prompt.render(prompt_variables(batch, row), batch.name(row)),
                self.sampling,
            )
            for row in np.flatnonzero(batch.scored).tolist()
        ]

    def count_requests(self, batch: Batch, metric: Metric) -> int:
        """The scored rows, where the reward comes from an endpoint."""
        asks = self._asks(metric) and self.prompt is not None
        return int(np.count_nonzero(batch.scored)) if asks else 0

    def unreadable(
        self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None]
    ) -> Sequence[bool]:
        """Replies that hold no number."""
        return [reply is not None and reply.text is not None and _read(reply)[0] is None for reply in replies]

    def code(self) -> tuple[Callable[..., Any], ...]:
        """The user's function where the reward is one."""
        return () if self.function is None else (self.function,)

    def score(self, batch: Batch, metric: Metric, replies: Sequence[ModelReply | None] = ()) -> SampleScores:
        """Rewards row for row; a reply that holds no number leaves its row unscored."""
        if metric.entry != REWARD:
            return super().score(batch, metric)
        if self.function is not None:
            return score_values(
                batch, metric, self._function_rewards(batch), ["the reward model gave no number"] * len(batch)
            )
        rows = np.flatnonzero(batch.scored).tolist()
        if len(replies) != len(rows):
            raise ScorerError(
                f"{len(replies)} replies of the reward model for {len(rows)} requests; expected one each"
            )
        values: list[float | None] = [None] * len(batch)
        errors: list[str | None] = [None] * len(batch)
        for row, reply in zip(rows, replies, strict=True):
            values[row], errors[row] = _read(reply)
        return score_values(batch, metric, values, errors)

    def _asks(self, metric: Metric) -> bool:
        return metric.entry == REWARD and self.function is None

    def _function_rewards(self, batch: Batch) -> list[Any]:
        assert self.function is not None
        rows = np.flatnonzero(batch.scored).tolist()
        texts = ["" if batch.lacks_answer(row) else batch.responses[row] for row in rows]
        try:
            with users_code():
                rewards = (
                    list(
                        self.function(texts, [dict(batch.docs[row]) for row in rows], **deepcopy(self.params))
                    )
                    if rows
                    else []
                )
        except Exception as error:
            raise ScorerError(f"the reward model raised {described(error)}") from error
        if len(rewards) != len(rows):
            raise ScorerError(
                f"the reward model returned {len(rewards)} numbers for {len(rows)} responses; expected one "
                "each"
            )
        values: list[Any] = [None] * len(batch)
        for row, reward in zip(rows, rewards, strict=True):
            values[row] = _number(reward, batch, row)
        return values


def _number(reward: Any, batch: Batch, row: int) -> float | None:
    if reward is None:
        return None
    try:
        if np.iscomplexobj(reward):
            raise TypeError
        return float(reward)
    except (TypeError, ValueError, OverflowError):
        raise ScorerError(
            f"{batch.name(row)}: the reward model returned {reward!r:.60}, not a number"
        ) from None


def _read(reply: ModelReply | None) -> tuple[float | None, str | None]:
    if reply is None or reply.text is None:
        return None, f"the reward model did not answer: {reply.error if reply else 'the request failed'}"
    grade = read_number(reply.text, cut=reply.cut)
    return grade.value, None if grade.error is None else f"the reward model's reply: {grade.error}"
