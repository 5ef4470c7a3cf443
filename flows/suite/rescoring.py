"""An upgrade that moves numbers is told from a model that does: where other code scored the baseline or the
anchor, its answers are scored again, by its own config and tonight's code.

The gate then compares tonight with these numbers, and says how much of a difference is code. Nothing is asked
for that, and nothing of it stays in the history.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from flows.config.schema import EvalConfig, Phase, RunOptions
from flows.eval.start import replayed
from flows.plan.build import scored_by
from flows.suite.names import pair_names
from flows.suite.plan import PlannedEvaluation, PlannedNight
from flows.suite.telling import BegunNight
from metrics.errors import ConfigError, NightjarError
from tasks.comparison.compare import ComparedPair, ComparedRuns
from tasks.comparison.runs import ComparedRun, open_run
from tasks.history.layout import find_manifest, unrecord
from tasks.history.nights import FIRST, Night, NightEvaluation
from tasks.store.outputs import RESPONSES
from tasks.store.storage import Store

LEAST = 1e-12
"""A number that moves by less is the same."""


ANSWERED: Final = ("models", "judges", "currency", "started")
"""What a manifest says of those that answered, what they cost, and when that was."""


@dataclass(frozen=True)
class Rescoring:
    """An evaluation of a night that tonight is compared with, and the run that scores its answers again."""

    night: str
    name: str
    planned: PlannedEvaluation

    @property
    def output(self) -> Path:
        """Where its numbers are."""
        return Path(str(self.planned.options.output))


def fixed_nights(planned: PlannedNight, past: Sequence[Night]) -> list[Night]:
    """The gate's anchor; without one the first night that passed, which drift is counted from.

    Raises ConfigError for an anchor that is not there.
    """
    anchor = planned.suite.gate.anchor if planned.suite.gate is not None else None
    return planned.nights_called(anchor or FIRST, past)


def to_rescore(planned: PlannedNight, begun: BegunNight) -> list[Rescoring]:
    """The evaluations of the baseline and of the fixed nights that tonight's code may score otherwise; none
    without a gate."""
    if planned.suite.gate is None:
        return []
    nights = [*(begun.baseline or ())]
    with suppress(ConfigError):  # judging the night raises it
        nights += fixed_nights(planned, begun.past)
    tonight = {entry.name for entry in planned.evaluations}
    known = [
        (night, entry)
        for night in {night.run_id: night for night in nights}.values()
        for entry in night.evaluations
        if entry.name in tonight and entry.ok
    ]
    return [found for night, entry in known if (found := _rescoring(planned, night, entry)) is not None]


def _rescoring(planned: PlannedNight, night: Night, entry: NightEvaluation) -> Rescoring | None:
    """None where the code is the same, and where the answers are not there any more."""
    try:
        manifest = find_manifest(Store(planned.store), entry.run_id)
        document, before = manifest.get("config"), manifest.get("scored_by")
        if not document or not before:
            return None
        answers = Path(str(manifest.get("output"))) / RESPONSES
        if not answers.is_file():
            return None
        config = EvalConfig.model_validate(document)
        if scored_by(document) in (None, before):
            return None
    except (NightjarError, ValidationError):
        return None
    output = Path(planned.output) / "baseline" / entry.run_id
    models = tuple(replayed(model, answers) for model in config.models)
    config = config.model_copy(update={"models": models, "canaries": 0})
    options = RunOptions(
        **_selection(manifest),
        output=str(output),
        store=planned.store,
        run_name=f"{planned.suite.name}: {entry.name}, answers of {night.run_id}, tonight's code",
        run_id=f"{entry.run_id}_rescored",  # no evaluation's id ends so: a slug has no such sign
        phase=Phase.SCORE,
    )
    name = f"{entry.name}, answers of {night.run_id}"
    return Rescoring(night.run_id, entry.name, PlannedEvaluation(name, options, config))


def _selection(manifest: Mapping[str, Any]) -> dict[str, Any]:
    names = ("limit", "samples", "shuffle")
    return {name: manifest[name] for name in names if manifest.get(name)}


def as_night(planned: PlannedNight, found: Sequence[Rescoring]) -> PlannedNight:
    """What scores them, as evaluations of a night."""
    return replace(planned, evaluations=tuple(entry.planned for entry in found))


def forget(store: Store, found: Sequence[Rescoring]) -> None:
    """Takes the runs out of the history: they are nobody's news, and their folders have the numbers."""
    for entry in found:
        with suppress(NightjarError):
            unrecord(store, str(entry.planned.options.run_id))


def with_tonights_code(
    night: Night, runs: Mapping[str, ComparedRun], found: Sequence[Rescoring], store: Store
) -> Mapping[str, ComparedRun]:
    """A night that tonight is compared with, with the numbers that tonight's code makes of its answers.

    The models stay those that answered then: what scored them again only replays their answers.
    """
    rescored = dict(_rescored(night, found, store))
    return {**runs, **{name: _answered_by(runs.get(name), run) for name, run in rescored.items()}}


def _answered_by(then: ComparedRun | None, rescored: ComparedRun) -> ComparedRun:
    if then is None:
        return rescored
    answered = {name: then.manifest[name] for name in ANSWERED if name in then.manifest}
    return replace(rescored, manifest={**rescored.manifest, **answered})


def _rescored(night: Night, found: Sequence[Rescoring], store: Store) -> Iterator[tuple[str, ComparedRun]]:
    for entry in found:
        if entry.night == night.run_id:
            with suppress(NightjarError):  # it came to nothing: the numbers of then stay
                yield entry.name, open_run(str(entry.output), store)


def split_by_code(then: ComparedRuns, now: ComparedRuns) -> ComparedRuns:
    """``now`` with how much of each difference is code: it is compared with the baseline's answers as
    tonight's code scores them, ``then`` with the numbers of then."""
    before = {pair.key: pair for pair in then.pairs}
    return replace(now, pairs=tuple(_split(before.get(pair.key), pair) for pair in now.pairs))


def _split(then: ComparedPair | None, now: ComparedPair) -> ComparedPair:
    if then is None or then.comparison is None or now.comparison is None:
        return now
    code = now.comparison.base - then.comparison.base
    if not abs(code) > LEAST:
        return now
    total, model = then.comparison.difference, now.comparison.difference
    said = f"of {total:+.4g}, {code:+.4g} is code and {model:+.4g} is the model"
    return replace(now, code=code, reason="; ".join(filter(None, (now.reason, said))))


def code_sentence(compared: ComparedRuns) -> str | None:
    """What tonight's code makes of kept answers, in words; None where it moves nothing."""
    named = pair_names(compared.pairs)
    moved = [f"{named(pair)} {pair.code:+.4g}" for pair in compared.pairs if pair.code is not None]
    return f"tonight's code moves kept answers: {', '.join(moved)}" if moved else None
