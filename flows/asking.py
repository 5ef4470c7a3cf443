"""Scorers that ask models first: their requests go through the same inference, before the pair is scored."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flows.plan import Cell, PairPlan
from flows.responses import Responses
from flows.run import Future, Run, finished
from tasks.ask import ask
from tasks.infer import infer


@dataclass
class Asked:
    """What the models of one set of requests were asked at one cell, attempt by attempt, and what they
    replied."""

    pair: PairPlan
    cell: Cell
    inputs: tuple[Future, Future, Future]
    requests: list[Future] = field(default_factory=list)
    replies: list[Future] = field(default_factory=list)


AskedSets = Mapping[tuple[Cell, str, str], Asked]
"""By cell, filter and name of the set of requests: metrics that need the same requests share them."""


def ask_all(run: Run, responses: Responses, predictions: Mapping[tuple[Cell, str], Future]) -> AskedSets:
    """Asks what is not answered; what the run before could not read is asked once more."""
    sets: dict[tuple[Cell, str, str], Asked] = {}
    for pair in run.plan.pairs():
        for cell in responses.cells if pair.asks is not None else ():
            key = (cell, pair.source, str(pair.asks))
            if key not in sets:
                asked, answered = responses.at(cell)
                sets[key] = Asked(pair, cell, (asked, predictions[cell, pair.source], answered))
    for entry in sets.values():
        _attempt(run, entry, 0)
    for entry in sets.values():
        _ask_again(run, entry)
    return sets


def _attempt(run: Run, entry: Asked, attempt: int) -> list[Future]:
    """One attempt: what is still to be asked of each model. Returns the inferences."""
    before = list(entry.requests), list(entry.replies)
    made = []
    for model in run.plan.asked:
        step = model.ask(entry.pair, attempt).at(entry.cell.suffix)
        wanted = run.submit(ask, step, *entry.inputs, *before, pair=entry.pair)
        made.append((wanted, run.submit(infer, model.infer.at(_place(entry, attempt)), wanted)))
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


def _place(entry: Asked, attempt: int) -> str:
    again = f" (attempt {attempt + 1})" if attempt else ""
    return f" for {entry.pair.source}{entry.cell.suffix}{again}"
