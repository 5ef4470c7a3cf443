"""A regression is looked at again before anybody is told (``confirm: 1``): what regressed is asked again, in
full, and compared with the same baseline.

Each look has half of the night's alpha, and both must say regression. Where the second does not, the pair is
inconclusive.
"""

from collections.abc import Sequence
from dataclasses import replace

from flows.compare.runs import name_of
from flows.suite.plan import PlannedEvaluation, PlannedNight
from tasks.comparison.compare import ComparedPair, ComparedRuns, verdict_of
from tasks.comparison.matching import GroupKey
from tasks.comparison.runs import key_with_model, open_night
from tasks.history.nights import Night
from tasks.reporting import numbers
from tasks.store.storage import Store

ANEW = "again"
"""Stands in ids and folders behind a sign that no slug has, so that no other evaluation's end with it."""


def regressed(compared: ComparedRuns) -> list[ComparedPair]:
    """The pairs of which somebody would be told that they regressed."""
    return [pair for pair in compared.pairs if pair.verdict == "regression" and pair.muted is None]


def evaluations_of(night: Night, pairs: Sequence[ComparedPair], store: Store) -> set[str]:
    """The names of the evaluations that these pairs' numbers come from."""
    wanted = [pair.match.candidate for pair in pairs if pair.match.candidate is not None]

    def has(key: GroupKey) -> bool:
        return any(want.holds(key) for want in wanted)

    return {
        name
        for name, run in open_night(night, store).items()
        if any(has(key_with_model(key, run)) for key in run.groups)
    }


def asked_anew(night: PlannedNight, names: set[str]) -> PlannedNight:
    """These evaluations as a night of their own, which takes no kept answer; a retry goes on with it."""
    again = f"{night.night}-{ANEW}"
    return replace(
        night,
        night=again,
        evaluations=tuple(_anew(entry, again) for entry in night.evaluations if entry.name in names),
    )


def _anew(planned: PlannedEvaluation, night: str) -> PlannedEvaluation:
    own = planned.options
    options = own.model_copy(
        update={
            "night": night,
            "run_id": f"{own.run_id}_{ANEW}",
            "run_name": f"{own.run_name}, {ANEW}",
            "output": f"{own.output}_{ANEW}",
            "against": None,  # in full, whatever the gate says
        }
    )
    config = planned.config
    if config is not None:
        config = config.model_copy(update={"answers": "fresh", "canaries": 0})
    return replace(planned, options=options, config=config)


def with_second_look(first: ComparedRuns, second: ComparedRuns) -> ComparedRuns:
    """The first comparison, whose regressions the second confirms or not."""
    anew = {pair.key: pair for pair in second.pairs}
    pairs = tuple(_looked_at_again(pair, anew.get(pair.key)) for pair in first.pairs)
    return replace(first, pairs=pairs, verdict=verdict_of(pairs, first.gate, first.outcomes))


def _looked_at_again(pair: ComparedPair, other: ComparedPair | None) -> ComparedPair:
    if pair.verdict != "regression" or pair.muted is not None:
        return pair
    if other is None or other.comparison is None:
        why = other.reason if other is not None else None
        return replace(pair, reason=f"could not be asked again: {why or f'no {name_of(pair)} came of it'}")
    found = other.comparison
    said = f"{found.difference:+.4g}, interval {numbers.interval(found.ci_low, found.ci_high)}"
    if other.verdict == "regression":
        return replace(pair, reason=f"confirmed: asked again, the difference is {said}")
    assert pair.comparison is not None
    lost = f"{pair.comparison.difference:+.4g}"
    reason = f"a difference of {lost} was not confirmed: asked again, it is {said}"
    return replace(pair, verdict="inconclusive", reason=reason)
