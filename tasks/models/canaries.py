"""Canaries: a few kept requests are asked again before kept answers are reused, so that a model that was
exchanged behind its address is noticed.

Only requests whose answer is settled will do: log-likelihoods, which have to be equal within
``TOLERANCE``, and greedy generations (temperature 0). What a canary is answered is kept nowhere. What the
endpoint says of itself is compared whatever there is to ask.
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
from metrics.statistics.intervals import beta_quantile
from metrics.statistics.power import POWER
from tasks.models.answers.journal import AnswerWriter
from tasks.models.answers.reading import read_replies
from tasks.models.answers.segments import AnswerStore
from tasks.models.config import ModelConfig, RunLimits
from tasks.models.connection import open_connection
from tasks.models.engine import Engine, InferenceState
from tasks.models.limits.spending import Spending
from tasks.models.providers.provider import AskedProvider, provider_of
from tasks.models.records import InferenceOptions, KeptAnswer, Request
from tasks.models.respond import Inference
from tasks.models.statements import Statement, contradictions, keep_statement, kept_statements, said_at
from tasks.models.tally import RequestTally

TOLERANCE = 1e-3
"""Log-likelihoods that are closer are equal: servers batch, and sums of floats depend on it."""
FEWEST = 2
"""So many canaries have to differ: one may, since greedy decoding is not quite the same in every batch."""
LOOKED_AT = 2_048
"""Rows among which canaries are looked for."""


@dataclass(frozen=True)
class CanaryReport:
    """How many kept requests were asked again, how many came out different, and what else the answers and
    the endpoint say of who gives them; ``failure`` is why they could not be asked, ``says`` what the endpoint
    says of itself now."""

    asked: int = 0
    differing: int = 0
    identity: tuple[str, ...] = field(default=())
    failure: str | None = None
    says: Statement = field(default_factory=dict)

    @property
    def is_another(self) -> bool:
        """Whether another model seems to answer now."""
        return bool(self.identity) or (self.asked > 0 and self.differing >= min(FEWEST, self.asked))

    @property
    def finds(self) -> float | None:
        """Share of all answers whose change so many canaries notice with a chance of .8; None without any.

        >>> [round(CanaryReport(asked).finds, 2) for asked in (5, 29)]
        [0.49, 0.1]
        """
        needed = min(FEWEST, self.asked)
        return beta_quantile(POWER, needed, self.asked - needed + 1) if self.asked else None

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
    """Asks up to ``count`` requests again whose kept answers would serve, and compares; also what the
    endpoint says of itself, with what it said when these answers were asked for.

    Models without an address of their own are not asked: the embedded server is known by its version.
    """
    provider = provider_of(model, options.base_dir)
    if not isinstance(provider, AskedProvider) or provider.stays or count < 1:
        return CanaryReport()
    inference = Inference.of(provider, answers, options)
    chosen, asked_at = _looked_at(inference, requests, options, count)
    if not asked_at:
        return CanaryReport()
    try:
        said = said_at(kept_statements(answers.store, inference.kept.folder), asked_at)
        says = provider.statement(options.secret)
        given = asyncio.run(_ask(options, inference, chosen)) if chosen else {}
    except (NightjarError, OSError) as error:
        return CanaryReport(failure=str(error))
    doubts = dict.fromkeys(doubt for before in said if says for doubt in contradictions(before, says))
    if not chosen:
        return CanaryReport(identity=tuple(doubts), says=says)
    if not given:
        return CanaryReport(identity=tuple(doubts), failure="the endpoint answered none of them", says=says)
    table, position = inference.snapshot().rows([request.key for request in chosen])
    there = [request for request, at in zip(chosen, position.tolist(), strict=True) if at >= 0]
    rows = read_replies(inference.codec_of, there, table.take(pa.array(position[position >= 0])))
    pairs = [
        (row, given[request.key])
        for request, row in zip(there, rows.to_pylist(), strict=True)
        if request.key in given
    ]
    differing = sum(not _same(kept, now) for kept, now in pairs)
    return CanaryReport(len(pairs), differing, (*doubts, *_identities(pairs)), says=says)


def _looked_at(
    inference: Inference, requests: Iterable[pa.RecordBatch], options: InferenceOptions, count: int
) -> tuple[list[Request], set[float]]:
    """Kept requests whose answers are settled, log-likelihoods first, spread by their keys; and when the
    answers to these and others were asked for, in seconds since 1970."""
    snapshot, found, asked_at = inference.snapshot(), list[Request](), set[float]()
    for rows in islice(inference.expanded(requests), LOOKED_AT // 1_024):
        wanted = [request for row in rows for request in row]
        times = snapshot.asked_at([request.key for request in wanted]).tolist()
        kept = [(request, at) for request, at in zip(wanted, times, strict=True) if not math.isnan(at)]
        settled = options.sampling.temperature == 0
        found += [request for request, _ in kept if settled or request.kind != "generate"]
        asked_at.update(at for _, at in kept)
    found.sort(key=lambda request: (request.kind == "generate", request.key))
    return list({request.key: request for request in found}.values())[:count], asked_at


def note_statement(
    model: ModelConfig, answers: AnswerStore, options: InferenceOptions, says: Statement
) -> None:
    """Keeps beside a model's answers what its endpoint says of itself, before it is asked for more."""
    provider = provider_of(model, options.base_dir)
    if isinstance(provider, AskedProvider) and not provider.stays:
        folder = Inference.of(provider, answers, options).kept.folder
        keep_statement(answers.store, folder, says)


async def _ask(
    options: InferenceOptions, inference: Inference, chosen: Sequence[Request]
) -> dict[bytes, KeptAnswer]:
    writer = _Collected(inference, options.journal_dir)
    state = InferenceState(writer, RequestTally(), Spending(RunLimits()))
    # Requests that go together are given together; each kind by itself.
    groups: Iterator[Sequence[Request]] = ([request] for request in chosen)
    async with open_connection(inference.provider, options) as connection:
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
