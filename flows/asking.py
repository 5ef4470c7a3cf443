"""Scorers that ask models first: their requests go through the same inference, before the pair is scored."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from prefect import Task

from flows.plan import Cell, PairPlan
from flows.responses import Responses
from flows.run import Future, Run, finished
from tasks.ask import ask
from tasks.calibrate import ask_calibration, score_calibration
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
        _attempt(run, entry, 0)
    for entry in everything:
        _ask_again(run, entry)
    return AskedSets(sets, _judged(run, calibration) if calibration is not None else None)


def _calibration(pairs: Iterable[PairPlan]) -> Asked | None:
    """A judge's calibration is the same for all filters, and so is asked about once."""
    for pair in pairs:
        if pair.calibration is not None:
            return Asked(pair, ask_calibration, pair.calibration, " for the calibration")
    return None


def _judged(run: Run, entry: Asked) -> Future:
    return run.submit(score_calibration, entry.score, entry.requests, entry.replies, pair=entry.pair)


def _attempt(run: Run, entry: Asked, attempt: int) -> list[Future]:
    """One attempt: what is still to be asked of each model. Returns the inferences."""
    before = list(entry.requests), list(entry.replies)
    purpose = entry.purpose + (f" (attempt {attempt + 1})" if attempt else "")
    made = []
    for model in run.plan.asked:
        step = model.ask(entry.score, purpose, attempt)
        wanted = run.submit(entry.task, step, *entry.inputs, *before, pair=entry.pair)
        made.append((wanted, run.submit(infer, model.infer.at(purpose), wanted)))
    entry.requests += [wanted for wanted, _ in made]
    entry.replies += [replied for _, replied in made]
    return [replied for _, replied in made]


def _ask_again(run: Run, entry: Asked) -> None:
    """Further attempts, as long as the one before is from an earlier run and left something unreadable."""
    attempt, latest = 0, entry.replies
    while latest and all(finished(replied).name == "Cached" for replied in latest):
        attempt += 1
        latest = _attempt(run, entry, attempt)
        wanted = entry.requests[-len(latest) :]
        if not any(finished(future).is_completed() and future.result().rows for future in wanted):
            return
