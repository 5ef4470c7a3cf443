"""The batches of a run: what is missing of each model that is asked by them is sent at once, and the run
sleeps until they have ended, with a short task run for each look.

A run that is stopped while it waits leaves its batches to the next one, which takes them up.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from prefect import get_run_logger
from prefect.futures import PrefectFuture

from flows.command_line import warn
from flows.eval.runners import as_parameter
from flows.plan.steps import AskedModel, Cell, Plan
from tasks.batches import BatchesAsked, close_batches, look_at_batches, send_batches
from tasks.caching import Workspace
from tasks.infer import InferSetup
from tasks.models.control import RunControl, check_interrupted
from tasks.models.jobs import Waiting
from tasks.models.progress import Progress
from tasks.reporting.progress import board_is_open, reporter
from tasks.store.keys import Step

Future = PrefectFuture[Any]
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 300.0
PAUSE_SHARE: Final = 0.05
"""Of the time waited so far is the pause until the next look: a day takes some 450 looks."""
TICK_SECONDS: Final = 0.25
ROUNDS: Final = 3
"""How often requests that expired in a batch are sent in another."""


@dataclass
class ModelBatches:
    """The batches of one model: the step that asks it, its requests, and the task run that knew last how far
    they are; ``asked`` is what that said, None where it failed."""

    step: Step[InferSetup]
    requests: Sequence[Future]
    known: Future
    asked: BatchesAsked | None = None
    rounds: int = 1


class Asks(Protocol):
    """What of a run its batches need."""

    plan: Plan
    workspace: Workspace
    control: RunControl
    submitted: list[Any]

    def note(self, stage: str, step: Step[Any], future: Future, inputs: Sequence[Future]) -> None:
        """Remembers a task run that was submitted beside the stages."""
        ...


class RunBatches:
    """The batches of a run, by model and by what it is asked for."""

    def __init__(self, run: Asks) -> None:
        self._run = run
        self._open: dict[str, ModelBatches] = {}

    def send_models(
        self, cells: Sequence[Cell], requests: Mapping[tuple[str, int], Future], lacking: Sequence[str]
    ) -> set[str]:
        """Sends what the models lack that are asked by batches; gives their names."""
        models = self._run.plan.models
        sent = {name for name in lacking if models[name].setup.by_batch}
        for name in sorted(sent):
            places = dict.fromkeys(cell.place for cell in cells if cell.model == name)
            self._send(models[name], [requests[place] for place in places])
        return sent

    def send_judges(self, asked: Sequence[tuple[AskedModel, Future]]) -> None:
        """Sends what scorers ask of models that are asked by batches."""
        by_step: dict[str, tuple[Step[InferSetup], list[Future]]] = {}
        for model, future in asked:
            if model.infer.setup.by_batch:
                by_step.setdefault(_key(model.infer), (model.infer, []))[1].append(future)
        for step, futures in by_step.values():
            self._send(step, futures)

    def given(self, step: Step[InferSetup]) -> dict[str, Any]:
        """What the inference of a model is given of its batches; nothing where it has none."""
        found = self._open.get(_key(step))
        return {} if found is None else {"batched": found.known}

    def wait(self) -> None:
        """Returns when all batches have ended. Raises Interrupted where the run is stopped."""
        for entry in self._open.values():
            self._learn(entry)
        began = time.monotonic()
        while waiting := [entry for entry in self._open.values() if _waits(entry)]:
            self._sleep(min(LONGEST_PAUSE, max(FIRST_PAUSE, PAUSE_SHARE * (time.monotonic() - began))))
            for entry in waiting:
                self._look(entry)

    def close(self) -> None:
        """Forgets the batches whose answers are kept, once the inference that takes them has ended well."""
        for entry in self._open.values():
            asks = [
                submitted.future
                for submitted in self._run.submitted
                if submitted.stage == "infer" and entry.known in submitted.inputs
            ]
            if entry.asked is not None and entry.asked.names:
                self._submit(close_batches, entry.step, entry.asked, wait_for=asks)
        self._open.clear()

    def _send(self, step: Step[InferSetup], requests: Sequence[Future]) -> None:
        whole = [future for future in requests if _finished(future)]
        known = self._submit(send_batches, step, whole)
        self._open[_key(step)] = ModelBatches(step, whole, known)
        self._run.note(send_batches.name, step, known, whole)

    def _look(self, entry: ModelBatches) -> None:
        self._run.control.check()
        entry.known = self._submit(look_at_batches, entry.step, entry.asked)
        self._learn(entry)

    def _learn(self, entry: ModelBatches) -> None:
        """What the last task run said; rows that expired are sent once more while there is time."""
        entry.asked = entry.known.result() if _finished(entry.known) else None
        if entry.asked is None:
            if not any(submitted.future is entry.known for submitted in self._run.submitted):
                self._run.note(look_at_batches.name, entry.step, entry.known, ())
            return
        found = entry.asked.waiting
        if not found.open and found.expired and time.time() < found.until and entry.rounds < ROUNDS:
            if found.said:
                _tell(entry.step.setup.model.name, found)
            entry.rounds += 1
            entry.known = self._submit(send_batches, entry.step, entry.requests, since=found.since)
            self._learn(entry)
            return
        if found.names:
            _tell(entry.step.setup.model.name, found)

    def _submit(self, what: Any, step: Step[InferSetup], *inputs: Any, **options: Any) -> Future:
        self._run.control.check()
        named = step.model_copy(update={"name": f"batch {step.setup.model.name}"})
        future: Future = what.submit(as_parameter(named), *inputs, workspace=self._run.workspace, **options)
        return future

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        with self._run.control.waiting():
            while (left := until - time.monotonic()) > 0:
                check_interrupted()
                self._run.control.check()
                time.sleep(min(TICK_SECONDS, left))


def _tell(model: str, found: Waiting) -> None:
    """Says how far batches are, and once what went wrong: in the run's log, and on the terminal that has a
    board."""
    said = f"; {found.said}" if found.said else ""
    said += "".join(f"\nTo have them answered, run:\n  {command}" for command in found.commands)
    get_run_logger().info(
        "%s: %d of %d requests in %d batches are done%s",
        model, found.done, found.requests, len(found.names), said,
    )  # fmt: skip
    if board_is_open():
        if found.said:
            warn(f"{model} (batches): {found.said}")
        reporter(f"{model} (batches)")(
            Progress(done=found.done, expected=found.requests, in_flight=found.requests - found.done)
        )


def _key(step: Step[InferSetup]) -> str:
    setup = step.setup
    return f"{setup.model.name}\0{setup.sampling.model_dump_json()}\0{setup.role}"


def _waits(entry: ModelBatches) -> bool:
    return entry.asked is not None and entry.asked.waiting.open > 0


def _finished(future: Future) -> bool:
    future.wait()
    return future.state.is_completed()
