"""How a night is judged: against its baseline, the gate's anchor, and with the nights before it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal, cast

from flows.compare.flips import with_flapping_names
from flows.compare.runs import check_pairs, compare_night, fails
from flows.suite.names import items_sentence, pair_names
from flows.suite.plan import PlannedNight
from flows.suite.rescoring import Rescoring, fixed_nights, split_by_code, with_tonights_code
from flows.suite.second_look import ANEW, evaluations_of, regressed, with_second_look
from flows.suite.telling import BegunNight
from metrics.errors import ConfigError
from metrics.statistics.gate import Verdict, worst_of
from tasks.comparison.compare import ComparedPair, ComparedRuns, Gate
from tasks.comparison.drift import AnchorNight
from tasks.comparison.runs import (
    ComparedRun,
    baseline_run,
    merged_run,
    night_changes,
    open_night,
    reused_groups,
)
from tasks.comparison.trends import PairCourse, pair_courses
from tasks.history.layout import Skipped
from tasks.history.nights import MutedPair, Night, NightEvaluation, mutes_of
from tasks.store.storage import Store

Opened = Callable[[Night], Mapping[str, ComparedRun]]
Outcome = Literal["regression", "undecided", "inconclusive", "worse", "pass"]
"""How a night counts. Undecided is the last of too many inconclusive nights in a row."""


@dataclass(frozen=True)
class JudgedNight:
    """A night with what stands against it; ``compared`` is None where there was no baseline yet.

    ``anchored`` is the comparison with the gate's fixed second baseline, if it has one. ``inconclusive`` is
    how many nights in a row, this one included, could not be decided; ``spent`` how many of those that share
    an alpha have taken their part of it, this one included. Both count nights that ask the same items as it.
    ``skipped`` are records of earlier nights that nobody can read, ``accepted`` nights of the baseline that
    somebody accepted.
    """

    night: Night
    compared: ComparedRuns | None
    courses: tuple[PairCourse, ...]
    gate: Gate | None = None
    anchored: ComparedRuns | None = None
    inconclusive: int = 0
    spent: int = 0
    skipped: tuple[Skipped, ...] = ()
    accepted: tuple[Night, ...] = ()

    @property
    def outcome(self) -> Outcome | None:
        """The verdict, and what the nights before make of it; None without one."""
        verdict = cast(Verdict | None, self.night.verdict)
        if verdict == "inconclusive" and self.gate and self.inconclusive >= self.gate.inconclusive_nights:
            return "undecided"
        return verdict

    @property
    def complete(self) -> bool:
        """Everything was evaluated."""
        return self.night.complete

    @property
    def ok(self) -> bool:
        """Everything was evaluated, and the gate does not fail the night."""
        return self.complete and self.outcome != "undecided" and not fails(self.outcome, self.gate)

    @property
    def anchored_to(self) -> str | None:
        """The run that stays the second baseline."""
        return self.gate.anchor if self.gate is not None else None

    @property
    def losses(self) -> tuple[ComparedPair, ...]:
        """The pairs that lost more than the margin against the anchor."""
        pairs = self.anchored.pairs if self.anchored is not None else ()
        return tuple(pair for pair in pairs if _counts(pair))


def _counts(pair: ComparedPair) -> bool:
    return pair.verdict == "regression" and pair.muted is None


def to_confirm(
    planned: PlannedNight,
    evaluations: tuple[NightEvaluation, ...],
    begun: BegunNight,
    rescored: Sequence[Rescoring],
) -> set[str]:
    """The evaluations that are asked again before the night is judged: those of regressions, with
    ``confirm: 1``."""
    if planned.suite.gate is None or not planned.suite.gate.confirm:
        return set()
    try:
        judged = judge_night(planned, evaluations, begun, (), rescored)
    except ConfigError:  # judging the night raises it
        return set()
    pairs = regressed(judged.compared) if judged.compared is not None else []
    return evaluations_of(judged.night, pairs, Store(planned.store)) if pairs else set()


def judge_night(
    planned: PlannedNight,
    evaluations: tuple[NightEvaluation, ...],
    begun: BegunNight,
    again: tuple[NightEvaluation, ...] = (),
    rescored: Sequence[Rescoring] = (),
) -> JudgedNight:
    """Compares a night with its baseline and the gate's anchor, and looks back on the nights before it.

    ``again`` are evaluations that were asked again to confirm a regression, ``rescored`` those of the
    baseline and the anchor whose answers tonight's code scored. A loss against the anchor makes *worse* of a
    night that passes otherwise, and a clock that was set back an inconclusive one. Raises ConfigError for a
    baseline or an anchor that is not there.
    """
    store, gate, past = Store(planned.store), planned.suite.gate, begun.past
    night = begun.own.model_copy(update={"evaluations": evaluations, "ended": True})
    chosen = begun.baseline
    if chosen is None:
        chosen = tuple(planned.nights_called(planned.baseline, past))
    opened = _opener(store)
    tonight = opened(night)
    against = _against(planned, {pair: mute.said for pair, mute in mutes_of(store, night).items()})
    if gate is not None and chosen and night.complete:
        # Whose evaluation failed may be what the gate names.
        known = (run for entry in (night, *chosen) for run in opened(entry).values())
        check_pairs(gate, *known)

    def as_scored_now(entry: Night) -> Mapping[str, ComparedRun]:
        return with_tonights_code(entry, opened(entry), rescored, store)

    def explained(name: str, nights: Sequence[Night], now: ComparedRuns | None) -> ComparedRuns | None:
        """``now`` with how much of each difference is code, and on which items it is."""
        if now is None:
            return None
        then = against(name, [*map(opened, nights)], tonight) if rescored else None
        told = split_by_code(then, now) if then is not None else now
        return replace(told, pairs=tuple(map(_with_own_items, told.pairs)))

    base = [*map(as_scored_now, chosen)]
    compared = against(planned.baseline, base, tonight)
    asked = opened(night.model_copy(update={"run_id": f"{night.run_id}-{ANEW}", "evaluations": again}))
    anew = {name: run for name, run in asked.items() if run.groups or run.results}
    if compared is not None and anew:
        second = against(planned.baseline, base, {**tonight, **anew})
        compared = with_second_look(compared, second) if second is not None else compared
    compared = explained(planned.baseline, chosen, compared)
    fixed, anchor = fixed_nights(planned, past), gate.anchor if gate is not None else None
    anchored = None
    if anchor is not None:
        anchored = explained(anchor, fixed, against(anchor, [*map(as_scored_now, fixed)], tonight))
    compared_as = _verdict(compared, anchored)
    verdict = compared_as if night.behind is None else worst_of([compared_as or "pass", "inconclusive"])
    changes = {
        "evaluations": tuple(_with_requests(entry, tonight) for entry in evaluations),
        "again": tuple(_with_requests(entry, anew) for entry in again),
        "baseline": tuple(entry.run_id for entry in chosen),
        "verdict": verdict,
        "spending": _spending(planned) if compared_as is not None else None,
        "muted": (*_muted(compared), *_muted(anchored, anchor)),
    }
    night = night.model_copy(update=changes)
    earlier = [opened(entry) for entry in past[-(planned.suite.nights - 1) :]]
    alike = [entry for entry in past if entry.asks_just(planned.limit, planned.only)]
    judged = [night, *(entry for entry in reversed(alike) if entry.verdict is not None)]
    return JudgedNight(
        night=night,
        compared=compared,
        courses=with_flapping_names(
            pair_courses([*earlier, tonight], _since(fixed, alike, as_scored_now)), list(tonight.values())
        ),
        gate=gate,
        anchored=anchored,
        inconclusive=sum(1 for _ in takewhile(lambda night: night.verdict == "inconclusive", judged)),
        spent=_spent(night, alike, gate),
        skipped=begun.skipped,
        accepted=tuple(entry for entry in chosen if entry.accepted is not None),
    )


def _with_own_items(pair: ComparedPair) -> ComparedPair:
    said = items_sentence(pair.joined) if pair.comparison is not None else ""
    return replace(pair, reason="; ".join(filter(None, (pair.reason, said))) or None)


def _since(fixed: Sequence[Night], alike: Sequence[Night], opened: Opened) -> AnchorNight | None:
    """The night that drift is counted from: the gate's anchor, else the first that passed."""
    if not fixed:
        return None
    later = [entry for entry in alike if entry.place > fixed[0].place]
    return AnchorNight(fixed[0].run_id, opened(fixed[0]), len(later) + 1)


def _verdict(compared: ComparedRuns | None, anchored: ComparedRuns | None) -> Verdict | None:
    """The gate's verdict, at least worse where something fell behind the anchor."""
    verdict = compared.verdict if compared is not None else None
    if anchored is None or not any(map(_counts, anchored.pairs)):
        return verdict
    return "worse" if verdict is None else worst_of([verdict, "worse"])


def _muted(compared: ComparedRuns | None, anchor: str | None = None) -> tuple[MutedPair, ...]:
    """The muted pairs; against the anchor those that lost, since nothing else counts there."""
    pairs = compared.pairs if compared is not None else ()
    named = pair_names(pairs)
    return tuple(
        MutedPair(pair=named(pair), said=pair.muted, verdict=pair.verdict, anchor=anchor)
        for pair in pairs
        if pair.muted is not None and (anchor is None or pair.verdict == "regression")
    )


def _opener(store: Store) -> Opened:
    """``open_night``, which opens a night's runs once, whatever it is compared with."""
    found: dict[str, Mapping[str, ComparedRun]] = {}

    def opened(night: Night) -> Mapping[str, ComparedRun]:
        if night.run_id not in found:
            found[night.run_id] = open_night(night, store)
        return found[night.run_id]

    return opened


def _spending(planned: PlannedNight) -> str | None:
    """By what the nights that share an alpha are known; another baseline that the suite names starts over.
    None for a night that names another one itself: it takes no part."""
    gate = planned.suite.gate
    if gate is None or gate.alpha_over is None or planned.baseline != planned.suite.baseline:
        return None
    return f"{gate.alpha:g} over {gate.alpha_over.nights} nights against {planned.baseline}"


def _spent(night: Night, alike: Sequence[Night], gate: Gate | None) -> int:
    """The night's place among those that share an alpha, from 1; 0 where none is shared."""
    if gate is None or night.spending is None:
        return 0
    tested = [entry for entry in reversed(alike) if entry.verdict is not None and entry.spending is not None]
    before = sum(1 for _ in takewhile(lambda entry: entry.spending == night.spending, tested))
    return before % gate.shares + 1


def _with_requests(entry: NightEvaluation, tonight: Mapping[str, ComparedRun]) -> NightEvaluation:
    """The evaluation with what its models were asked; judges are asked what the answers need."""
    models = (tonight[entry.name].manifest.get("models") or {}) if entry.name in tonight else {}
    if not models:
        return entry
    stopped = tonight[entry.name].manifest.get("stopped")
    names = ("sent", "cached", "same_night", "batched")
    counts = {name: sum(tally.get(name) or 0 for tally in models.values()) for name in names}
    paid = tonight[entry.name].manifest.get("cost")
    cost = {str(tonight[entry.name].manifest.get("currency") or ""): float(paid)} if paid else {}
    canaries = tonight[entry.name].manifest.get("canaries") or {}
    doubts = tuple(f"{name}: {found['said']}" for name, found in canaries.items() if found.get("said"))
    return entry.model_copy(update={"requests": counts, "doubts": doubts, "cost": cost, "stopped": stopped})


Runs = Mapping[str, ComparedRun]
Against = Callable[[str, Sequence[Runs], Runs], ComparedRuns | None]


def _against(planned: PlannedNight, muted: Mapping[str, str]) -> Against:
    """What compares a night with the nights of a baseline; None where there is no such night yet."""

    def against(name: str, nights: Sequence[Runs], tonight: Runs) -> ComparedRuns | None:
        if not nights:
            return None
        # A night of which everything failed has no items to average; alone, it says why it has none.
        there = [runs for runs in nights if any(run.groups for run in runs.values())] or nights
        base, night = baseline_run(name, there), merged_run(planned.run_id, tonight)
        compared = compare_night(base, night, planned.suite.gate, reused_groups(tonight), muted)
        return replace(compared, changes=night_changes(there[-1], tonight))

    return against
