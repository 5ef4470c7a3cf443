"""Where the flow's tasks run: threads of its process, processes, or a Dask cluster.

The thread runner's futures know their state by themselves. Prefect's ask the server for the state of a future
that has not ended, once for every pair of tasks that hang together: a call that costs milliseconds, and the
whole run when the server is away just then.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.states import Pending
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner

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


R = TypeVar("R")


class LocalFuture(PrefectConcurrentFuture[R]):
    """A future of this process: its state is what its thread returned, Pending until then."""

    @property
    def state(self) -> State[Any]:
        """The final state, or Pending."""
        if self._final_state is None and self.wrapped_future.done() and not self.wrapped_future.cancelled():
            self.wait()
        return self._final_state or Pending()


class LocalThreads(ThreadPoolTaskRunner[Any]):
    """Prefect's thread pool with futures that need no server."""

    def submit(
        self,
        task: "Task[Any, Any]",
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> LocalFuture[Any]:
        """As Prefect's."""
        future = super().submit(task, parameters, wait_for, dependencies)
        return LocalFuture(future.task_run_id, future.wrapped_future)
