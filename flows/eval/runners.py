"""Where the flow's tasks run: threads of its process, processes, or a Dask cluster."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from prefect.context import FlowRunContext
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from flows.plan.steps import Cell
from metrics.errors import ConfigError
from tasks.models.config import RunLimits
from tasks.prefect_adapter import ClusterThreads, LocalProcesses, LocalThreads
from tasks.processes.garbage import collect_rarely
from tasks.processes.workers import Workers, cores, working, working_in
from tasks.store.storage import Store
from tasks.store.thresholds import Threshold

MANY_RESPONSES = Threshold("responses_for_processes", 50_000)
"""From so many on, processes are worth what it takes to start them, as measured (``bench.pipeline``)."""
MOST_PROCESSES = 8
"""Unless more are asked for: each takes some 150 MB."""
THREADS = 12
"""Tasks at once: an inference has an event loop of its own, the others are bound by two or so cores."""
CLUSTER_THREADS = 128
"""Tasks at once of which a cluster computes most: as many of its workers are busy."""


def task_runner_named(name: str) -> TaskRunner[Any]:
    """The runner of ``threads``, ``processes``, ``dask``, ``dask:ADDRESS`` or ``dask:slurm://…``; raises
    ConfigError for another name."""
    kind, _, address = name.partition(":")
    if kind == "threads" and not address:
        return LocalThreads(max_workers=THREADS)
    if kind == "processes" and not address:
        return LocalProcesses()
    if kind == "dask":
        return _dask(address)
    raise ConfigError(
        f"--task-runner {name}: expected threads, processes, dask, dask:ADDRESS or dask:slurm://…"
    )


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

    Quoted for threads and processes: Prefect looks for futures in all that a task is given, and a step has
    none and much to look at. Runners of other packages may take a quote for a tuple.
    """
    run = FlowRunContext.get()
    here = run is not None and isinstance(run.task_runner, ThreadPoolTaskRunner | ProcessPoolTaskRunner)
    return quote(step) if here else step


def _dask(address: str) -> TaskRunner[Any]:
    try:
        from tasks.processes.cluster import Cluster, cluster_at
    except ImportError as error:
        raise ConfigError("--task-runner dask needs the extra: pip install 'nightjar[dask]'") from error
    named = f"dask:{address}" if address else "dask"
    return ClusterThreads(partial(Cluster, cluster_at(address), named), CLUSTER_THREADS)


def refuse_memory(runner: str, store: str) -> None:
    """Raises ConfigError for a store that the processes of a runner would not see."""
    if Store(store).in_memory:
        raise ConfigError(
            f"--task-runner {runner}: other processes don't see the store {store}, which is in the memory of"
            " this one; leave --task-runner out, or name a folder or a bucket by --store"
        )


def refuse_spending(runner: str, limits: RunLimits) -> None:
    """Raises ConfigError for limits of a run of which each of the runner's processes would spend all."""
    if runner == "processes" and (limits.max_tokens, limits.max_cost) != (None, None):
        raise ConfigError(
            f"--task-runner {runner}: limits.max_tokens and limits.max_cost hold within one process, and"
            " here each would spend the whole; leave --task-runner out (--workers computes by processes, too)"
        )


def computing(
    asked: int | None, cells: Sequence[Cell], folder: Path, store: Store
) -> AbstractContextManager[Workers]:
    """A block in which the steps of the current flow run are computed where its runner says; ``folder`` is
    that of its results. A store in memory keeps them in this process."""
    collect_rarely()  # a deployed run comes by no command line
    run = FlowRunContext.get()
    if run is not None and isinstance(run.task_runner, ClusterThreads):
        from tasks.processes.cluster import ClusterWorkers

        return working_in(ClusterWorkers(run.task_runner.cluster, folder))
    return working(processes_for(1 if store.in_memory else asked, cells))


def stop_elsewhere() -> None:
    """Has other processes and machines go no further with the current flow run, whose control they don't see:
    its processes ask no more, and its cluster, whose workers may never come, is ended."""
    run = FlowRunContext.get()
    if run is None:
        return
    if isinstance(run.task_runner, LocalProcesses):
        run.task_runner.stop_asking()
    elif isinstance(run.task_runner, ClusterThreads):
        run.task_runner.end_cluster()
