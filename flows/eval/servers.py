"""Which servers of model weights a run starts, in which order, and when each is ended.

A model that is served here gets a server only if an answer of it is missing. As many run at once as the
machine has places for: models in turn on one GPU, side by side on several. A judge's server starts once all
models of the evaluation are released.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from prefect import allow_failure
from prefect.context import FlowRunContext

from flows.config.schema import EvalConfig
from flows.eval.run import Future, Run, finished
from flows.plan.forecast import Forecast
from flows.plan.steps import AskedModel, Cell, Plan
from metrics.errors import ConfigError
from tasks.infer import InferSetup, infer, missing_requests
from tasks.serve import ServeSetup, launch_of, release, serve
from tasks.serving.launch import gpu_count, visible_gpus
from tasks.serving.servers import end_leftovers, end_servers
from tasks.store.steps import Step

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
        if not missing_requests(model.infer, rows, self.run.workspace)[0]:
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
        step = self.run.plan.models[cell.model].at(cell.suffix, **cell.about)
        return self.run.submit(infer, step, requests[cell.place], **given(server))


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
def servers_of(run: Run) -> Iterator[Servers]:
    """The servers of a run, none of which outlives the block; what crashed runs left is ended first."""
    end_leftovers()
    try:
        yield Servers(run)
    finally:
        end_servers(str(run.options.run_id))


def forecast_servers(plan: Plan, found: Forecast) -> list[dict[str, Any]]:
    """The servers that a run would start, in their order: of which model, with what, on how many GPUs, and
    for how many requests (None: as many as the responses call for)."""
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


def check_runner(config: EvalConfig, runner: str | None = None) -> None:
    """Raises ConfigError for what servers of weights can't be had with: tasks that run on other machines
    (``runner`` is the command line's, else the running flow's), and conversations, whose later turns are
    asked for when the server is gone."""
    context = FlowRunContext.get()
    name = runner or (type(context.task_runner).__name__ if context is not None else "")
    served = [model.name for model in config.models if model.server is not None]
    if served and config.turns is not None:
        raise ConfigError(
            f"model '{served[0]}' is served for one turn, and the benchmark has turns; start the server "
            "yourself and name its base_url"
        )
    if served and "dask" in name.lower():
        raise ConfigError(
            f"model '{served[0]}' is served on the machine of the run, and Dask's workers may be on others; "
            "use --task-runner threads or processes, or start the server yourself and name its base_url"
        )
