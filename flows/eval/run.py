"""One run of the flow: submits steps as tasks, and knows afterwards what became of each; which servers of
model weights it starts, in which order, and when each is ended.

A model that is served here gets a server only if an answer of it is missing. As many run at once as the
machine has places for: models in turn on one GPU, side by side on several. A judge's server starts once
all models of the evaluation are released.
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import pyarrow as pa
from prefect import Task, allow_failure
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from flows.config.schema import FAILED_REQUESTS, EvalConfig, Phase, RunOptions
from flows.eval.batches import RunBatches
from flows.eval.runners import as_parameter
from flows.graph.forecast import Forecast
from flows.graph.stage import Graph
from flows.graph.stages import known_stages
from flows.plan.steps import AskedModel, Cell, PairPlan, Plan
from metrics.errors import ConfigError
from scorers.config import split_result_name
from tasks.caching import Workspace, in_workspace, references
from tasks.infer import InferSetup, infer, missing_requests
from tasks.models.canaries import CanaryReport
from tasks.models.control import RunControl
from tasks.models.tally import RequestTally, spent_before
from tasks.preflight import Checks, ServeSetup, canaries, launch_of, note_said, release, serve
from tasks.rows.parts import PairSetup
from tasks.rows.predictions import FilterSetup
from tasks.serving.launch import gpu_count, visible_gpus
from tasks.serving.servers import end_leftovers, end_servers
from tasks.store.keys import Answered, Step
from tasks.store.reasons import read_observed, read_reason
from tasks.store.storage import Store
from tasks.usercode.observed import EDITED
from tasks.usercode.sources import entries_in

Future = PrefectFuture[Any]


@dataclass(frozen=True)
class Submitted:
    """A task run: its stage, its step, and the task runs it waits for."""

    stage: str
    step: Step[Any]
    future: Future
    inputs: tuple[Future, ...]


@dataclass
class Run(Graph):
    """Submits the steps of a plan as Prefect tasks and remembers them."""

    plan: Plan
    options: RunOptions
    workspace: Workspace
    started: float
    """When the flow run began, in seconds since 1970."""
    served: dict[str, Any] = field(default_factory=dict)
    """What the endpoints said they serve."""
    canaries: dict[str, CanaryReport] = field(default_factory=dict)
    """What kept requests that were asked again came to, by model."""
    submitted: list[Submitted] = field(default_factory=list)
    control: RunControl = field(default_factory=RunControl)
    """Whether people let it go on."""
    lacking: Sequence[str] = ()
    """Models that at least one request has no answer of."""
    earlier_seconds: float = 0.0
    """How long earlier attempts of the flow run took."""
    began: float = field(default_factory=time.monotonic)
    """When this attempt began, by the clock that never jumps."""

    def __post_init__(self) -> None:
        self.servers = Servers(self)
        self.model_batches = RunBatches(self)

    @property
    def wall_seconds(self) -> float:
        """How long the run has taken so far, with earlier attempts of it."""
        return self.earlier_seconds + time.monotonic() - self.began

    def about(self, flow_run_id: str) -> dict[str, Any]:
        """What a record says of the run whatever became of it."""
        return {
            "run_id": self.options.run_id,
            "run_name": self.options.run_name or self.options.run_id,
            "flow_run_id": flow_run_id,
            "benchmark": self.plan.config.name,
            "started": self.started,
        }

    def _submit(
        self, task: Task[..., Any], step: Step[Any], *inputs: Any, pair: PairPlan | None = None, **named: Any
    ) -> Future:
        # Futures among the inputs draw the edges of the UI's graph.
        self.control.check()  # raises Interrupted once the run is stopped
        placed = in_workspace(task, self.workspace, refresh=self._refreshed(task.name, pair))
        future: Future = placed.submit(as_parameter(step), *inputs, workspace=self.workspace, **named)
        waits = tuple(_futures([*inputs, *named.values()]))
        self.submitted.append(Submitted(task.name, step, future, waits))
        return future

    def submit_uncached(
        self, task: Task[..., Any], step: Step[Any], *inputs: Future, after: Sequence[Any] = ()
    ) -> Future:
        """Submits a task that keeps no result, once the task runs in ``after`` have ended."""
        self.control.check()
        future: Future = task.submit(as_parameter(step), *inputs, wait_for=list(after))
        self.note(task.name, step, future, inputs)
        return future

    def note(self, stage: str, step: Step[Any], future: Future, inputs: Sequence[Future]) -> None:
        """Remembers a task run that was submitted beside the stages."""
        self.submitted.append(Submitted(stage, step, future, tuple(inputs)))

    def check(self, preflight: Task[..., Any], checks: Checks) -> None:
        """Runs the preflight, and keeps what the models' endpoints say of themselves; raises what it
        refuses."""
        found = preflight.submit(checks).result()
        self.served.update(found.served)
        for name in {setup.model.name for setup in checks.endpoints} & found.served.keys():
            note_said(self.plan.models[name].setup, found.served[name]["says"], self.workspace)

    def reuse_or_ask(self, cells: Sequence[Cell], requests: Mapping[tuple[str, int], Future]) -> None:
        """Asks canaries where kept answers may be reused.

        Where another model answers and answers of an age were wanted, those of this night alone serve from
        here on."""
        config = self.plan.config
        if not config.canaries or config.answers == "fresh" or self.options.phase is Phase.SCORE:
            return
        if self.canaries:  # of an earlier block
            return
        models = dict(self.plan.models)
        for name, step in self.plan.models.items():
            places = dict.fromkeys(cell.place for cell in cells if cell.model == name)
            if step.setup.model.server is not None:
                continue  # its weights are in its key, and no server is started for canaries
            asked = [requests[place].result() for place in places]
            named = step.model_copy(update={"name": f"canaries {name}"})
            found = canaries.submit(named, asked, config.canaries, self.workspace).result()
            self.canaries[name] = found
            if found.is_another and config.answers != "reuse":
                lookup = replace(step.setup.lookup, night=str(self.options.night))
                setup = step.setup.model_copy(update={"lookup": lookup})
                models[name] = step.model_copy(update={"setup": setup})
                note_said(setup, found.says, self.workspace)
        self.plan = replace(self.plan, models=models)

    def _refreshed(self, stage: str, pair: PairPlan | None) -> bool:
        named = {f"{pair.identity.filter}:{pair.identity.metric.name}", pair.name} if pair else set()
        if stage == "infer" and FAILED_REQUESTS in self.options.refresh:
            return True
        return not {stage, *named}.isdisjoint(self.options.refresh)

    def infer_models(
        self, cells: Sequence[Cell], requests: Mapping[tuple[str, int], Future]
    ) -> dict[Cell, Future]:
        """Asks canaries first, and puts the servers of weights around the inference that needs them."""
        self.reuse_or_ask(cells, requests)
        batched = self.model_batches.send_models(cells, requests, self.lacking)
        found = self.servers.ask_all(
            [cell for cell in cells if cell.model not in batched], requests, self.lacking
        )
        self.model_batches.wait()  # the others are asked meanwhile
        for cell in (cell for cell in cells if cell.model in batched):
            given = self.model_batches.given(self.plan.models[cell.model])
            found[cell] = self.submit(infer, self.plan.asking(cell), requests[cell.place], **given)
        self.model_batches.close()
        return {cell: found[cell] for cell in cells}

    def infer_for_scorer(self, model: AskedModel, purpose: str, requests: Future) -> Future:
        """With the model's server, where it needs one, or with what its batches came to."""
        judge = self.servers.of_judge(model, requests)
        batched = self.model_batches.given(model.infer)
        reply: Future = self.submit(
            infer, model.infer.at(purpose), requests, **given(judge.future), **batched
        )
        judge.replies.append(reply)
        return reply

    def batch_for_scorers(self, asked: Sequence[tuple[AskedModel, Future]]) -> None:
        """Sends batches to those that are asked by such, and waits for them."""
        self.model_batches.send_judges(asked)
        self.model_batches.wait()

    def scorers_have_asked(self) -> None:
        """Ends the servers of judges, and forgets their batches."""
        self.servers.release_judges()
        self.model_batches.close()

    def rows(self, node: Future) -> int | None:
        """Waits for the task run."""
        return int(node.result().rows) if finished(node).is_completed() else None

    def is_cached(self, node: Future) -> bool:
        """Waits for the task run."""
        return finished(node).name == "Cached"

    def replied_earlier(self, replies: Sequence[Future]) -> bool:
        """Waits for the task runs. Requests that failed now may stand among the replies, but not alone: what
        no run got a reply to is not asked under another number."""
        asked = [reply for reply in replies if not self.is_cached(reply)]
        if not asked:
            return True
        if not all(finished(reply).is_completed() for reply in asked):
            return False
        # A cached step's tally is of the run that made it.
        if any(reply.result().accounts.tally["answered"] for reply in asked):
            return False
        given: list[Answered] = [reply.result() for reply in replies]
        store = self.workspace.open()
        rows = (batch for one in given for batch in store.batches(one.responses, ["status"]))
        return any(status != "infra_error" for batch in rows for status in batch.column("status").to_pylist())

    def batches(self, node: Future, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Waits for the task run."""
        if finished(node).is_completed():
            yield from self.workspace.open().batches(node.result(), columns)

    def failure(self, node: Future) -> str | None:
        """Waits for the task run; of one that never ran, says what stopped it."""
        state = finished(node)
        if state.is_completed():
            return None
        entry = next(entry for entry in self.submitted if entry.future is node)
        if not state.is_failed() and not state.is_crashed():
            earlier = [reason for source in entry.inputs if (reason := self.failure(source)) is not None]
            if earlier:
                return earlier[0]
        return f"{entry.step.name}: {reason_of(state)}"

    def steps(self) -> dict[str, dict[str, int]]:
        """Stage → how many task runs were computed, cached, failed, and skipped because an earlier one
        failed."""
        counts: dict[str, Counter[str]] = {stage: Counter() for stage in known_stages()}
        for entry in self.submitted:
            counts.setdefault(entry.stage, Counter())[_outcome(finished(entry.future))] += 1
        kinds = ("computed", "cached", "failed", "skipped")
        return {stage: {kind: count[kind] for kind in kinds} for stage, count in counts.items() if count}

    def artifacts(self) -> dict[str, list[dict[str, Any]]]:
        """Stage → the artifacts that the run's results rest on."""
        found: dict[str, list[dict[str, Any]]] = {}
        for entry in self.submitted:
            state = finished(entry.future)
            if state.is_completed():
                refs = references(entry.future.result())
                about = {"step": entry.step.name, **entry.step.about, **_names_of_setup(entry.step.setup)}
                found.setdefault(entry.stage, []).extend(ref.model_dump() | about for ref in refs)
        return found

    def task_runs(self) -> list[dict[str, Any]]:
        """Every task run in the order of submission: its stage and step, whose rows it makes, what became of
        it, under which key, and why it was computed ("cached" if it was not)."""
        store = self.workspace.open()
        return [_described(entry, store) for entry in self.submitted]

    def edited(self) -> list[dict[str, str]]:
        """Files that users' code read in several states while the run's steps were computed: whose, and
        which."""
        by_users: defaultdict[str, list[Submitted]] = defaultdict(list)
        for entry in self.submitted:
            if entries_in(entry.step.identity) and finished(entry.future).is_completed():
                named = _names_of_setup(entry.step.setup) or {"step": entry.step.name}
                by_users[" × ".join(named.values())].append(entry)
        found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        for names, entries in by_users.items():
            if all(self.is_cached(entry.future) for entry in entries):
                continue  # whatever is served was looked at
            for entry in entries:
                ref = next(references(entry.future.result()))
                observed = read_observed(self.workspace.open(), f"{entry.stage}-{ref.key}")
                for file, state in observed.files.items() if observed is not None else ():
                    found[names, file].add(state)
        several = [place for place, states in found.items() if len(states) > 1 or EDITED in states]
        return [{"of": of, "file": file} for of, file in several]

    def answered(self, role: str) -> list[tuple[str, Answered, bool]]:
        """Of each inference by models in a role ("model", "judge") that gave something: the model, what was
        answered, and whether it came from the cache."""
        return [
            (entry.step.setup.model.name, entry.future.result(), state.name == "Cached")
            for entry in self.submitted
            if entry.stage == "infer" and entry.step.setup.role == role
            if (state := finished(entry.future)).is_completed()
        ]

    def spent(self, role: str) -> list[tuple[str, RequestTally]]:
        """Of each inference by models in a role that failed: the model, and what it had asked before."""
        failed = [
            (entry.step.setup.model.name, entry.future.result(raise_on_failure=False))
            for entry in self.submitted
            if entry.stage == "infer" and entry.step.setup.role == role
            if finished(entry.future).is_failed()
        ]
        return [(model, tally) for model, error in failed if (tally := spent_before(error)) is not None]


def finished(future: Future) -> State[Any]:
    """The final state of a task run."""
    future.wait()
    return future.state


def reason_of(state: State[Any]) -> str:
    """A final state's reason in one line, without Prefect's preamble."""
    message = (state.message or state.name or "no reason given").strip()
    return message.removeprefix("Task run encountered an exception ").removeprefix(
        "Task run encountered an exception: "
    )


def _names_of_setup(setup: Any) -> dict[str, str]:
    """Filter and metric of a pair's step, the filter of a filter's; whom an inference asks, and as what."""
    if isinstance(setup, InferSetup):
        return {"asks": setup.model.name, "role": setup.role}
    if isinstance(setup, PairSetup) and setup.metric:
        metric, filter_name = split_result_name(setup.metric, setup.filter)
        return {"filter": filter_name, "metric": metric}
    return {"filter": setup.config.name} if isinstance(setup, FilterSetup) else {}


def _described(entry: Submitted, store: Store) -> dict[str, Any]:
    state = finished(entry.future)
    outcome = _outcome(state)
    refs = list(references(entry.future.result())) if state.is_completed() else []
    key = refs[0].key if refs else None
    why = outcome if outcome in ("cached", "skipped") else reason_of(state)
    if outcome == "computed":
        kept = read_reason(store, entry.stage, key) if key is not None else None
        why = kept.because if kept is not None else "computed"
    return {
        "stage": entry.stage, "step": entry.step.name, **entry.step.about, "outcome": outcome, "key": key,
        "why": why,
    }  # fmt: skip


def _outcome(state: State[Any]) -> str:
    if state.is_completed():
        return "cached" if state.name == "Cached" else "computed"
    return "failed" if state.is_failed() or state.is_crashed() else "skipped"


def _futures(inputs: Any) -> Iterable[Future]:
    for entry in inputs:
        if isinstance(entry, PrefectFuture):
            yield entry
        elif isinstance(entry, (list, tuple)):
            yield from _futures(entry)


CPU_SERVERS = 1
"""How many servers without a GPU run at once."""


@dataclass
class JudgeServer:
    """A judge's server, and the task runs that ask it; no server where none is needed."""

    step: Step[ServeSetup] | None = None
    future: Future | None = None
    replies: list[Future] = field(default_factory=list)


@dataclass
class Servers:
    """The servers of a run, as task runs."""

    run: Run
    _judges: dict[str, JudgeServer] = field(default_factory=dict)
    _released: list[Future] = field(default_factory=list)

    def ask_all(
        self, cells: Sequence[Cell], requests: Mapping[tuple[str, int], Future], lacking: Sequence[str]
    ) -> dict[Cell, Future]:
        """Submits the inference of every cell; around those of a model in ``lacking`` that is served here
        stand its server's start and end."""
        plan = self.run.plan
        served = [name for name in lacking if plan.models[name].setup.model.server is not None]
        found: dict[Cell, Future] = {}
        # What needs no server first: it keeps threads busy while the first server starts.
        for cell in (cell for cell in cells if cell.model not in served):
            found[cell] = self._infer(cell, requests, None)
        before: list[Future] = []
        for wave in _waves([plan.models[name].setup for name in served]):
            steps = {name: self._step(plan.models[name].setup) for name in wave}
            # One after the other in a place, and all tasks in the order in which they can run: a thread that
            # waits never waits for one that has not begun.
            servers = {
                name: self._serve(step, _place(before, n)) for n, (name, step) in enumerate(steps.items())
            }
            own = [[cell for cell in cells if cell.model == name] for name in wave]
            for cell in (cell for together in zip_longest(*own) for cell in together if cell is not None):
                found[cell] = self._infer(cell, requests, servers[cell.model])
            before = [
                self._release(steps[name], servers[name], [found[cell] for cell in of_model])
                for name, of_model in zip(wave, own, strict=True)
            ]
        return {cell: found[cell] for cell in cells}

    def of_judge(self, model: AskedModel, requests: Future) -> "JudgeServer":
        """The server of a model that a scorer asks: there is one if it is served here and one of these
        requests has no answer yet."""
        setup = model.infer.setup
        name = setup.model.name
        if setup.model.server is None:
            return JudgeServer()
        if name in self._judges:
            return self._judges[name]
        if not finished(requests).is_completed():
            return JudgeServer()
        rows = self.run.workspace.open().batches(requests.result())
        if not missing_requests(model.infer, rows, self.run.workspace)[0].sent:
            return JudgeServer()
        self.release_judges()  # one at a time: another judge may be in its place
        step = self._step(setup)
        self._judges[name] = JudgeServer(step, self._serve(step, self._released))
        return self._judges[name]

    def release_judges(self) -> None:
        """Ends the servers of judges once they have answered what was submitted."""
        for judge in self._judges.values():
            if judge.step is not None and judge.future is not None:
                self._release(judge.step, judge.future, judge.replies)
        self._judges.clear()

    def _step(self, setup: InferSetup) -> Step[ServeSetup]:
        options = self.run.options
        serving = ServeSetup(
            infer=setup, output=str(options.output), run_id=str(options.run_id), owner=os.getpid()
        )
        return Step(name=f"serve {setup.model.name}", identity={}, setup=serving)

    def _serve(self, step: Step[ServeSetup], after: Sequence[Future]) -> Future:
        return self.run.submit_uncached(serve, step, after=[allow_failure(future) for future in after])

    def _release(self, step: Step[ServeSetup], server: Future, replies: Iterable[Future]) -> Future:
        named = step.model_copy(update={"name": step.name.replace("serve", "release", 1)})
        after = [allow_failure(future) for future in replies]
        done = self.run.submit_uncached(release, named, server, after=after)
        self._released.append(done)
        return done

    def _infer(self, cell: Cell, requests: Mapping[tuple[str, int], Future], server: Future | None) -> Future:
        step = self.run.plan.asking(cell)
        answers: Future = self.run.submit(infer, step, requests[cell.place], **given(server))
        return answers


def given(server: Future | None) -> dict[str, Any]:
    """The server as an argument of the inference; nothing where there is none, which is in no key either."""
    return {"server": server} if server is not None else {}


def _place(before: Sequence[Future], number: int) -> Sequence[Future]:
    """What a server of the next wave waits for: the one that is in its place."""
    return before[number : number + 1] if number < len(before) else before


def _waves(setups: Sequence[InferSetup]) -> Iterator[list[str]]:
    """Names of the models whose servers run at the same time, as many as there are GPUs for."""
    wave: list[str] = []
    gpus, places = 0, 0
    for setup in setups:
        wanted = launch_of(setup).gpus
        fits = gpus + wanted <= gpu_count() if wanted else places < CPU_SERVERS
        if wave and not fits:
            yield wave
            wave, gpus, places = [], 0, 0
        wave.append(setup.model.name)
        gpus, places = gpus + wanted, places + (not wanted)
    if wave:
        yield wave


@contextmanager
def servers_end_with(run: Run) -> Iterator[None]:
    """A block that none of the run's servers outlives; what crashed runs left is ended first."""
    end_leftovers()
    try:
        yield
    finally:
        end_servers(str(run.options.run_id))


def forecast_servers(plan: Plan, found: Forecast) -> list[dict[str, Any]]:
    """The servers that a run would start, in their order: of which model, with what, on how many GPUs, and
    for how many requests (None: as many as the responses need)."""
    needed = [(step.setup, found.models[name].send) for name, step in plan.models.items()]
    needed += [(model.infer.setup, found.judges[model.infer.setup.model.name].send) for model in plan.asked]
    return [
        {
            "model": setup.model.name,
            "server": server.preset_name if server.by_name else " ".join(server.command or ()),
            "path": setup.model.path,
            "gpus": (gpus := launch_of(setup).gpus),
            "candidates": [gpu.place for gpu in visible_gpus()] if gpus else [],
            "requests": requests,
        }
        for setup, requests in needed
        if requests != 0 and (server := setup.model.server) is not None
    ]


def check_servers(config: EvalConfig) -> None:
    """Raises ConfigError for what rules out servers of weights: conversations, whose later turns are asked
    for when the server is gone."""
    served = [model.name for model in config.models if model.server is not None]
    if served and config.turns is not None:
        raise ConfigError(
            f"model '{served[0]}': the run stops its server after the first turn, and the benchmark has "
            "several; start the server yourself and name its base_url"
        )
