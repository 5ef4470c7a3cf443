"""Where the flow's tasks run: threads of its process, processes, or a Dask cluster."""

from typing import Any

from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner

from flows.local_threads import LocalThreads
from metrics.errors import ConfigError

THREADS = 12
"""Tasks at once: an inference has an event loop of its own, the others are bound by two or so cores."""


def task_runner_named(name: str) -> TaskRunner[Any]:
    """The runner of ``threads``, ``processes``, ``dask`` or ``dask:ADDRESS``; raises ConfigError for
    another name."""
    kind, _, address = name.partition(":")
    if kind == "threads" and not address:
        return LocalThreads(max_workers=THREADS)
    if kind == "processes" and not address:
        return ProcessPoolTaskRunner()
    if kind == "dask":
        return _dask(address)
    raise ConfigError(f"--task-runner {name}: expected threads, processes, dask or dask:ADDRESS")


def _dask(address: str) -> TaskRunner[Any]:
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise ConfigError("--task-runner dask needs the extra: pip install 'nightjar[dask]'") from error
    runner: TaskRunner[Any] = DaskTaskRunner(address=address or None)
    return runner
