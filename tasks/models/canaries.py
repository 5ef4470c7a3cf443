"""Canaries: a few kept requests are asked again before kept answers are reused, so that a model that was
exchanged behind its address is noticed.

Only requests whose answer is settled will do: log-likelihoods, which have to be equal within ``TOLERANCE``,
and greedy generations (temperature 0). What a canary is answered is kept nowhere.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from metrics.errors import NightjarError
from tasks.models.answers.journal import AnswerWriter
from tasks.models.answers.segments import AnswerStore
from tasks.models.config import EndpointConfig, ModelConfig, RunLimits
from tasks.models.connection import open_connection
from tasks.models.engine import Engine, InferenceState
from tasks.models.options import InferenceOptions, RequestTally, Spending
from tasks.models.records import KeptAnswer, Request
from tasks.models.respond import Inference

TOLERANCE = 1e-3
"""Log-likelihoods that are closer are equal: servers batch, and sums of floats depend on it."""
FEWEST = 2
"""So many canaries have to differ: one may, since greedy decoding is not quite the same in every batch."""
LOOKED_AT = 2_048
"""Rows among which canaries are looked for."""


@dataclass(frozen=True)
class CanaryReport:
    """How many kept requests were asked again, how many came out different, and what else the answers say of
    who gave them; ``failure`` is why they could not be asked."""

    asked: int = 0
    differing: int = 0
    identity: tuple[str, ...] = field(default=())
    failure: str | None = None

    @property
    def is_another(self) -> bool:
        """Whether another model seems to answer now."""
        return bool(self.identity) or (self.asked > 0 and self.differing >= min(FEWEST, self.asked))

    @property
    def sentence(self) -> str | None:
        """What is worth telling; None: all is as it was."""
        if self.failure is not None:
            return f"no canary could be asked: {self.failure}"
        said = [*self.identity]
        if self.asked and self.differing >= min(FEWEST, self.asked):
            said.append(f"{self.differing} of {self.asked} canaries were answered otherwise than before")
        return "; ".join(said) or None


def ask_canaries(
    model: ModelConfig,
    requests: Iterable[pa.RecordBatch],
    answers: AnswerStore,
    options: InferenceOptions,
    count: int,
) -> CanaryReport:
    """Asks up to ``count`` requests again whose kept answers would serve, and compares.

    Models without an address of their own are not asked: the embedded server is known by its version.
    """
    if not isinstance(model.config, EndpointConfig) or count < 1:
        return CanaryReport()
    inference = Inference.of(model, answers, options)
    chosen = _chosen(inference, requests, options, count)
    if not chosen:
        return CanaryReport()
    try:
        given = asyncio.run(_ask(model, options, inference, chosen))
    except (NightjarError, OSError) as error:
        return CanaryReport(failure=str(error))
    if not given:
        return CanaryReport(failure="the endpoint answered none of them")
    table, position = inference.snapshot().rows([request.key for request in chosen])
    rows = table.to_pylist()
    pairs = [
        (rows[at], given[request.key])
        for request, at in zip(chosen, position.tolist(), strict=True)
        if at >= 0 and request.key in given
    ]
    differing = sum(not _same(kept, now) for kept, now in pairs)
    return CanaryReport(len(pairs), differing, tuple(_identities(pairs)))


def _chosen(
    inference: Inference, requests: Iterable[pa.RecordBatch], options: InferenceOptions, count: int
) -> list[Request]:
    """Kept requests whose answers are settled: log-likelihoods first, spread by their keys."""
    snapshot, found = inference.snapshot(), list[Request]()
    for rows in islice(inference.expanded(requests), LOOKED_AT // 1_024):
        settled = [request for row in rows for request in row if _is_settled(request, options)]
        held = snapshot.holds([request.key for request in settled])
        found += [request for request, there in zip(settled, held, strict=True) if there]
    found.sort(key=lambda request: (request.kind == "generate", request.key))
    return list({request.key: request for request in found}.values())[:count]


def _is_settled(request: Request, options: InferenceOptions) -> bool:
    return request.kind != "generate" or options.sampling.temperature == 0


async def _ask(
    model: ModelConfig, options: InferenceOptions, inference: Inference, chosen: Sequence[Request]
) -> dict[bytes, KeptAnswer]:
    writer = _Collected(inference, options.journal_dir)
    state = InferenceState(writer, RequestTally(), Spending(RunLimits()))
    # Requests that go together are given together; each kind by itself.
    groups: Iterator[Sequence[Request]] = ([request] for request in chosen)
    async with open_connection(model, options) as connection:
        await Engine(connection.endpoint, state).run(await connection.prepare(groups), lambda: None)
    return writer.answers


class _Collected(AnswerWriter):
    """Keeps answers in memory only."""

    def __init__(self, inference: Inference, journal_dir: Path) -> None:
        super().__init__(inference.kept, journal_dir)
        self.answers: dict[bytes, KeptAnswer] = {}

    def append(self, answer: KeptAnswer) -> None:
        """Notes an answer."""
        self.answers[answer.key] = answer


def _same(kept: dict[str, Any], now: KeptAnswer) -> bool:
    if kept["status"] != now.status:
        return False
    if kept["ll"] is None or now.ll is None:
        return bool(kept["response"] == now.response)
    return kept["ll"] == now.ll or math.isclose(kept["ll"], now.ll, rel_tol=0.0, abs_tol=TOLERANCE)


def _identities(pairs: Sequence[tuple[dict[str, Any], KeptAnswer]]) -> Iterator[str]:
    """What all answers now say of who gave them, where it is not what any of the kept ones said."""
    for name in ("served_model", "system_fingerprint"):
        before = {kept[name] for kept, _ in pairs} - {None}
        now = {getattr(answer, name) for _, answer in pairs} - {None}
        if before and now and before.isdisjoint(now):
            yield f"{name} was {', '.join(sorted(before))} and is {', '.join(sorted(now))}"
