"""Where the flow's tasks run: threads of its process, processes, or a Dask cluster."""

from collections.abc import Sequence
from typing import Any

from prefect.context import FlowRunContext
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from flows.plan.steps import Cell
from metrics.errors import ConfigError
from tasks.prefect_adapter import LocalProcesses, LocalThreads, warm_dask
from tasks.processes.workers import cores
from tasks.store.thresholds import Threshold

MANY_RESPONSES = Threshold("responses_for_processes", 50_000)
"""From so many on, processes are worth what it takes to start them, as measured (``bench.pipeline``)."""
MOST_PROCESSES = 8
"""Unless more are asked for: each takes some 150 MB."""
THREADS = 12
"""Tasks at once: an inference has an event loop of its own, the others are bound by two or so cores."""


def task_runner_named(name: str) -> TaskRunner[Any]:
    """The runner of ``threads``, ``processes``, ``dask`` or ``dask:ADDRESS``; raises ConfigError for
    another name."""
    kind, _, address = name.partition(":")
    if kind == "threads" and not address:
        return LocalThreads(max_workers=THREADS)
    if kind == "processes" and not address:
        return LocalProcesses()
    if kind == "dask":
        return _dask(address)
    raise ConfigError(f"--task-runner {name}: expected threads, processes, dask or dask:ADDRESS")


def processes_for(asked: int | None, cells: Sequence[Cell]) -> int:
    """How many processes compute what the flow run's threads wait for: as many as were asked for, else one a
    core where there are many responses; none beside threads of other processes and machines."""
    run = FlowRunContext.get()
    if run is None or not isinstance(run.task_runner, LocalThreads):
        return 1
    if asked is not None:
        return asked
    many = sum(cell.stop - cell.start for cell in cells) >= MANY_RESPONSES
    return min(cores(), len(cells), MOST_PROCESSES) if many else 1


def as_parameter(step: Any) -> Any:
    """A step as the runner of the current flow run is given it.

    Quoted for threads and processes here: Prefect looks for futures in all that a task is given, and a step
    has none and much to look at. Dask takes a quote for a tuple.
    """
    run = FlowRunContext.get()
    here = run is not None and isinstance(run.task_runner, ThreadPoolTaskRunner | ProcessPoolTaskRunner)
    return quote(step) if here else step


def _dask(address: str) -> TaskRunner[Any]:
    # On any free port: by itself Dask takes 8787, and warns where another cluster has it.
    options = {"address": address} if address else {"cluster_kwargs": {"dashboard_address": "127.0.0.1:0"}}
    try:
        return warm_dask(**options)
    except ImportError as error:
        raise ConfigError("--task-runner dask needs the extra: pip install 'nightjar[dask]'") from error
