"""Scorers that ask models first: their requests go through the same inference, before the pair is scored."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prefect import Task

from flows.plan import Cell, PairPlan
from flows.responses import Responses
from flows.run import Future, Run, finished
from tasks.ask import ask, ask_calibration, score_calibration
from tasks.infer import infer
from tasks.pair import PairSetup
from tasks.steps import Step


@dataclass
class Asked:
    """What the models of one set of requests were asked, attempt by attempt, and what they replied.

    ``task`` makes the requests that ``score`` waits for, from ``inputs``.
    """

    pair: PairPlan
    task: Task[..., Any]
    score: Step[PairSetup]
    purpose: str
    inputs: tuple[Future, ...] = ()
    requests: list[Future] = field(default_factory=list)
    replies: list[Future] = field(default_factory=list)

    def purpose_of(self, attempt: int) -> str:
        """What an attempt's task runs are for, as their names say it."""
        return self.purpose + (f" (attempt {attempt + 1})" if attempt else "")


@dataclass(frozen=True)
class AskedSets:
    """All that was asked: by cell, filter and name of the set of requests, which metrics that need the same
    share; and how judges graded the answers of their calibration, if they had to."""

    sets: Mapping[tuple[Cell, str, str], Asked]
    calibration: Future | None

    def calibration_of(self, pair: PairPlan) -> Future | None:
        """The judged calibration that a pair's numbers rest on."""
        return self.calibration if pair.calibration is not None else None


def ask_all(run: Run, responses: Responses, predictions: Mapping[tuple[Cell, str], Future]) -> AskedSets:
    """Asks what is not answered; what the run before could not read is asked once more."""
    sets: dict[tuple[Cell, str, str], Asked] = {}
    for pair in run.plan.pairs():
        for cell in responses.cells if pair.asks is not None else ():
            key = (cell, pair.source, str(pair.asks))
            if key not in sets:
                asked, answered = responses.at(cell)
                inputs = asked, predictions[cell, pair.source], answered
                sets[key] = Asked(pair, ask, pair.score, f" for {pair.source}{cell.suffix}", inputs)
    calibration = _calibration(run.plan.pairs())
    everything = [*sets.values(), *([calibration] if calibration is not None else [])]
    for entry in everything:
        _send(run, entry, _ask(run, entry, 0), 0)
    _ask_again(run, everything)
    _prepare(run, everything)
    return AskedSets(sets, _judged(run, calibration) if calibration is not None else None)


def _calibration(pairs: Iterable[PairPlan]) -> Asked | None:
    """A judge's calibration is the same for all filters, and so is asked about once."""
    for pair in pairs:
        if pair.calibration is not None:
            return Asked(pair, ask_calibration, pair.calibration, " for the calibration")
    return None


def _judged(run: Run, entry: Asked) -> Future:
    return run.submit(score_calibration, entry.score, entry.requests, entry.replies, pair=entry.pair)


def _ask(run: Run, entry: Asked, attempt: int) -> list[Future]:
    """Makes the requests of one attempt, to each model what is still to be asked of it."""
    return [
        run.submit(
            entry.task,
            model.ask(entry.score, entry.purpose_of(attempt), attempt),
            *entry.inputs,
            list(entry.requests),
            list(entry.replies),
            pair=entry.pair,
        )
        for model in run.plan.asked
    ]


def _send(run: Run, entry: Asked, wanted: Sequence[Future], attempt: int) -> None:
    """Sends the requests of one attempt."""
    purpose = entry.purpose_of(attempt)
    entry.replies += [
        run.submit(infer, model.infer.at(purpose), future)
        for model, future in zip(run.plan.asked, wanted, strict=True)
    ]
    entry.requests += wanted


def _ask_again(run: Run, entries: Sequence[Asked]) -> None:
    """Further attempts, as long as the one before is from an earlier run and left something unreadable.

    An attempt with nothing to ask leaves no trace: the scores rest on the same replies as before.
    """
    attempt, models = 0, len(run.plan.asked)
    while entries := [entry for entry in entries if _from_before(entry.replies[-models:])]:
        attempt += 1
        wanted = [_ask(run, entry, attempt) for entry in entries]
        open_ones = [(entry, asked) for entry, asked in zip(entries, wanted, strict=True) if _some(asked)]
        for entry, asked in open_ones:
            _send(run, entry, asked, attempt)
        entries = [entry for entry, _ in open_ones]


def _prepare(run: Run, entries: Sequence[Asked]) -> None:
    """Makes the requests that the next run will send, so that it finds all steps cached where there are
    none."""
    models = len(run.plan.asked)
    for entry in entries:
        if not _from_before(entry.replies[-models:]):
            _ask(run, entry, len(entry.replies) // models)


def _from_before(replies: Sequence[Future]) -> bool:
    return all(finished(replied).name == "Cached" for replied in replies)


def _some(wanted: Sequence[Future]) -> bool:
    """Whether there is anything to ask; requests that could not be made count, so that what waits for them
    fails with their reason."""
    return any(not finished(future).is_completed() or future.result().rows for future in wanted)
