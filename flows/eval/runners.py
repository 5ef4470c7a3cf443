"""Where the flow's tasks run: threads of its process, processes, or a Dask cluster.

The thread runner's futures know their state by themselves. Prefect's ask the server for the state of a future
that has not ended, once for every pair of tasks that hang together: a call that costs milliseconds, and the
whole run when the server is away just then.

Its process pool knows no upstream task that is allowed to fail, and where one failed that is not, it raises
in the flow, with which all other tasks end. Here a task behind a failed one is NotReady, as among threads.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from prefect import Task
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.exceptions import UpstreamTaskError
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.states import Completed, Pending
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner, ThreadPoolTaskRunner
from prefect.utilities.annotations import quote

from flows.plan.steps import Cell
from metrics.errors import ConfigError
from tasks.thresholds import Threshold
from tasks.workers import cores, import_stages

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
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise ConfigError("--task-runner dask needs the extra: pip install 'nightjar[dask]'") from error
    from distributed import Client, fire_and_forget

    class WarmDask(DaskTaskRunner):
        """Prefect's, whose workers import what steps need side by side, and not one after another when the
        first step comes to each: that takes longer than a small step."""

        @property
        def client(self) -> Any:
            new = self._client is None
            client = super().client
            for worker in client.scheduler_info()["workers"] if new else ():
                imported = Client.submit(client, import_stages, workers=[worker], pure=False)
                fire_and_forget(imported)  # type: ignore[no-untyped-call]
            return client

    if address:
        return WarmDask(address=address)
    # On any free port: by itself Dask takes 8787, and warns where another cluster has it.
    return WarmDask(cluster_kwargs={"dashboard_address": "127.0.0.1:0"})


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


class ProcessFuture(LocalFuture[R]):
    """A future of another process: a task that never began, since one before it failed, is NotReady."""

    def wait(self, timeout: float | None = None) -> None:
        """As Prefect's, but raises nothing for what failed upstream."""
        try:
            super().wait(timeout)
        except UpstreamTaskError as error:
            self._final_state = Pending(name="NotReady", message=str(error))


class EndedFuture(ProcessFuture[R]):
    """A future that is waited for and not asked how it ended."""

    @property
    def state(self) -> State[Any]:
        """Completed, as the task run that it is of; with data, without which a result is a missing one."""
        return Completed(data="ended", state_details=super().state.state_details)


class LocalProcesses(ProcessPoolTaskRunner):
    """Prefect's process pool, with upstream tasks that may fail."""

    def submit(
        self,
        task: "Task[Any, Any]",
        parameters: dict[str, Any],
        wait_for: Iterable[PrefectFuture[Any]] | None = None,
        dependencies: dict[str, set[Any]] | None = None,
    ) -> ProcessFuture[Any]:
        """As Prefect's, for futures of its own."""
        upstream = [_allowed(entry) for entry in wait_for or ()]
        future = super().submit(task, parameters, upstream, dependencies)
        return ProcessFuture(future.task_run_id, future.wrapped_future)


def _allowed(upstream: Any) -> PrefectFuture[Any]:
    """A future whose failure is allowed as one that only ends; any other as it is."""
    if isinstance(upstream, PrefectFuture):
        return upstream
    future: PrefectConcurrentFuture[Any] = upstream.unwrap()
    return EndedFuture(future.task_run_id, future.wrapped_future)
