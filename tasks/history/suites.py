"""Nights: what a suite evaluated, how it ended, and which of them the next one is held against."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from metrics.errors import ConfigError, nearest
from tasks.history.layout import check_run_id, known_runs, names_in, read_json
from tasks.store.storage import Store

SUITES = "suites"
LAST, LAST_PASSED, ROLLING = "last", "last-passed", "rolling"


class NightEvaluation(BaseModel):
    """One evaluation of a night; ``name`` is the same every night, ``run_id`` its run in the history."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    run_id: str
    ok: bool = True
    message: str | None = None


class Night(BaseModel):
    """One run of a suite. ``verdict`` is the gate's, None where there was nothing to compare with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    suite: str
    run_id: str
    started: str
    evaluations: tuple[NightEvaluation, ...]
    baseline: tuple[str, ...] = ()
    verdict: str | None = None

    @property
    def passed(self) -> bool:
        """Everything was evaluated, and nothing stands against it: the next night may be held against this
        one."""
        return all(evaluation.ok for evaluation in self.evaluations) and self.verdict in (None, "pass")


def record_night(store: Store, night: Night) -> None:
    """Adds a night to its suite's history, whole or not at all; a retry replaces its own record."""
    name = f"{SUITES}/{check_run_id(night.suite)}/{check_run_id(night.run_id)}.json"
    store.put_bytes(name, night.model_dump_json(indent=1).encode())


def past_nights(store: Store, suite: str, before: str | None = None) -> list[Night]:
    """The suite's nights, oldest first, without the one called ``before`` (a retry is not its own
    baseline)."""
    folder = f"{SUITES}/{check_run_id(suite)}"
    nights = [
        Night.model_validate(read_json(store, f"{folder}/{name}.json"))
        for name in names_in(store, folder, ".json")
    ]
    return sorted((night for night in nights if night.run_id != before), key=lambda night: night.started)


def baseline_nights(store: Store, nights: Sequence[Night], wanted: str, count: int) -> list[Night]:
    """The nights that ``wanted`` names among past ones, oldest first; none if there is no such night yet.

    ``last``; ``last-passed``; ``rolling``, the last ``count`` that passed; or the id of a suite's run, or of
    a single evaluation's. Raises ConfigError for an id that nothing in the store has.
    """
    passed = [night for night in nights if night.passed]
    match wanted:
        case "last":
            return list(nights[-1:])
        case "last-passed":
            return passed[-1:]
        case "rolling":
            return passed[-count:]
    if found := [night for night in nights if night.run_id == wanted]:
        return found
    runs = known_runs(store)
    if wanted in runs:
        return [
            Night(suite="", run_id=wanted, started="", evaluations=(NightEvaluation(name="", run_id=wanted),))
        ]
    known = [LAST_PASSED, LAST, ROLLING, *(night.run_id for night in nights), *runs]
    raise ConfigError(
        f"baseline '{wanted}' is neither {LAST_PASSED}, {LAST}, {ROLLING} nor a run{nearest(wanted, known)}"
    )
