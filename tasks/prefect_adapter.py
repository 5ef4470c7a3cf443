"""What is used of Prefect beyond its documented interface, all of it: an upgrade that breaks something breaks
a test of ``tests/tasks/test_prefect_adapter.py``, which says what and for whom.

**Futures that know their state by themselves.** Prefect's ask the server for the state of a future that has
not ended, once for every pair of tasks that hang together: a call that costs milliseconds, and the whole run
when the server is away just then.

**A pool of processes in which tasks may fail.** Prefect's knows no upstream task that is allowed to fail, and
where one failed that is not, it raises in the flow, with which all other tasks end. Here a task behind a
failed one is NotReady, as among threads. **Its processes end with the run's**, killed too, and hear that no
more is asked. Prefect's would go on to the end of their tasks.

**Flows that find a server.** A flow that is called where no server is named makes Prefect start a temporary
one for the call, which a loaded machine gives up waiting for. Here it enters a block first.

**The form of a flow's parameters** is made when it is asked for. Prefect makes it where a flow is defined,
which takes a quarter of a second for an evaluation's config, and only a deployment shows it. **The parameters
themselves** go to the server as pydantic writes them: Prefect's way is the same, by FastAPI's encoder, whose
import takes a tenth of a second before the first request.

**Storage of result records** that is called from threads and loops, and **settings** that hold in threads
which Prefect starts for itself.
"""

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from copy import copy
from functools import update_wrapper
from multiprocessing.connection import Connection
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import prefect.context
from prefect import Flow, Task
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, SettingsContext
from prefect.exceptions import UpstreamTaskError
from prefect.filesystems import WritableFileSystem
from prefect.futures import PrefectConcurrentFuture, PrefectFuture
from prefect.results import ResultRecord  # type: ignore[attr-defined]
from prefect.settings import PREFECT_API_URL
from prefect.states import Completed, Pending
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner
from prefect.utilities.callables import ParameterSchema, parameter_schema
from pydantic import TypeAdapter

from tasks.processes.endings import interrupted
from tasks.processes.workers import clear_away_quietly, exit_with_parent, hold_interrupts

P = ParamSpec("P")
R = TypeVar("R")


class ServedFlow(Flow[P, R]):
    """A flow that enters ``block`` where it is called outside of a flow run and no server is named."""

    block: Callable[[], AbstractContextManager[Any]]
    prepare: Callable[[], object]
    """What may take long before the block: it is called in a thread, so that a notebook's loop goes on."""

    def __init__(self, function: Callable[P, R], **options: Any) -> None:
        super().__init__(_unannotated(function), **options)
        self._runs(function)

    @property
    def parameters(self) -> ParameterSchema:
        """The form of what the flow takes."""
        return parameter_schema(self.fn)

    @parameters.setter
    def parameters(self, _of_unannotated: ParameterSchema) -> None:
        """Prefect's own, of a function that says no types, is not kept."""

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """As Prefect's: JSON of each parameter, or the name of its type where it has none."""
        return {name: _jsonable(value) for name, value in parameters.items()}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As Prefect's."""
        call = super().__call__
        if FlowRunContext.get() is not None or PREFECT_API_URL.value():
            return call(*args, **kwargs)
        if self.isasync:
            return self._served(call, args, kwargs)
        with self.block():
            return call(*args, **kwargs)

    async def _served(self, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        await asyncio.to_thread(self.prepare)
        with self.block():
            return await call(*args, **kwargs)

    def with_options(self, *args: Any, **kwargs: Any) -> Any:
        """As Prefect's, which makes a plain flow."""
        bare = copy(self)
        bare.fn = _unannotated(self.fn)
        made = Flow.with_options(bare, *args, **kwargs)
        served = type(self).__new__(type(self))
        vars(served).update(vars(made), block=self.block, prepare=self.prepare)
        served._runs(self.fn)
        return served

    def _runs(self, function: Callable[P, R]) -> None:
        self.fn = function
        update_wrapper(self, function)


def _jsonable(value: Any) -> Any:
    if not isinstance(value, PrefectFuture | State):  # of which nobody asks what they hold
        with suppress(TypeError, ValueError, RecursionError):
            return TypeAdapter(Any).dump_python(value, mode="json", by_alias=True)
    return f"<{type(value).__name__}>"


def _unannotated(function: Any) -> Callable[..., Any]:
    """The function without its types, of which Prefect would make a form at once."""
    bare = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    bare.__kwdefaults__, bare.__doc__ = function.__kwdefaults__, function.__doc__
    bare.__module__, bare.__qualname__ = function.__module__, function.__qualname__
    return bare


def served_flow(
    block: Callable[[], AbstractContextManager[Any]], prepare: Callable[[], object], **options: Any
) -> Callable[[Callable[P, R]], Flow[P, R]]:
    """A decorator as Prefect's ``flow`` with these options; ``block`` and ``prepare``: see ``ServedFlow``."""

    def decorate(function: Callable[P, R]) -> Flow[P, R]:
        made: ServedFlow[P, R] = ServedFlow(function, **options)
        made.block, made.prepare = block, prepare
        return made

    return decorate


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
    """Prefect's process pool, with upstream tasks that may fail, of processes that end with this one."""

    _stop: Connection | None = None

    def __enter__(self) -> "LocalProcesses":
        self._stopping = threading.Lock()  # not before: a runner may be sent to another process
        clear_away_quietly()
        told, self._stop = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self._initializer, self._initargs = _begin, (told,)
        super().__enter__()
        # These threads start the processes.
        self._resolver_executor = ThreadPoolExecutor(self._max_workers, initializer=hold_interrupts)
        return self

    def stop_asking(self) -> None:
        """Has the processes ask no more, these and any that begin later: what is answered is kept."""
        if self._stop is not None:
            with self._stopping:
                self._stop.close()

    def cancel_all(self) -> None:
        """As Prefect's, which waits for the tasks that run: nobody else does any more."""
        self.stop_asking()
        super().cancel_all()

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


def _begin(told: Connection) -> None:
    """Makes a new process one of the run's."""
    exit_with_parent()
    threading.Thread(target=_ask_no_more_after, args=(told,), daemon=True).start()


def _ask_no_more_after(told: Connection) -> None:
    with suppress(EOFError, OSError):  # nothing is ever sent: the other end is closed
        told.recv_bytes()
    interrupted.set()


def _allowed(upstream: Any) -> PrefectFuture[Any]:
    """A future whose failure is allowed as one that only ends; any other as it is."""
    if isinstance(upstream, PrefectFuture):
        return upstream
    future: PrefectConcurrentFuture[Any] = upstream.unwrap()
    return EndedFuture(future.task_run_id, future.wrapped_future)


class ClusterThreads(LocalThreads):
    """Threads that wait for what a cluster computes, which is there from the beginning of the flow run to its
    end."""

    def __init__(self, cluster: Callable[[], AbstractContextManager[Any]], max_workers: int) -> None:
        super().__init__(max_workers=max_workers)
        self._new_cluster = cluster
        self._block = ExitStack()
        self.cluster: Any = None

    def duplicate(self) -> "ClusterThreads":
        """Another with a cluster of its own."""
        return type(self)(self._new_cluster, self._max_workers)

    def __enter__(self) -> "ClusterThreads":
        self._ending = threading.Lock()  # not before: a runner may be sent to another process
        self.cluster = self._block.enter_context(self._new_cluster())
        super().__enter__()
        return self

    def end_cluster(self) -> None:
        """Ends the cluster before the flow run: threads may wait for a worker that never comes."""
        with self._ending:
            self._block.close()

    def __exit__(self, *error: Any) -> None:
        with ExitStack() as last:
            last.callback(self.end_cluster)
            last.callback(super().__exit__, *error)
            if error[0] is not None:
                self.end_cluster()


class RecordStorage(WritableFileSystem):
    """Where Prefect keeps result records, for a subclass that has ``read_path`` and ``write_path``.

    Prefect calls the plain names with ``_sync=True`` from threads and the a-names from a loop.
    """

    def _resolve_path(self, _path: str) -> None:
        """Keys are paths already: Prefect must not make them absolute."""

    async def aread_path(self, path: str) -> bytes:
        """As ``read_path``."""
        content: bytes = self.read_path(path)  # type: ignore[assignment]
        return content

    async def awrite_path(self, path: str, content: bytes) -> Any:
        """As ``write_path``."""
        return self.write_path(path, content)


def recorded_result(record: bytes) -> Any:
    """The result in a record that ``RecordStorage`` was given."""
    return ResultRecord.deserialize(record).result


@contextmanager
def settings_of_all_threads() -> Iterator[None]:
    """A block in which the current settings hold in threads, too, that Prefect starts for itself: they have
    no context of ours, and would start a server."""
    before = prefect.context.GLOBAL_SETTINGS_CONTEXT
    prefect.context.GLOBAL_SETTINGS_CONTEXT = SettingsContext.get() or before
    try:
        yield
    finally:
        prefect.context.GLOBAL_SETTINGS_CONTEXT = before


def secret_block(name: str) -> str:
    """The value of a Secret block; raises ValueError where the server has none of the name."""
    from prefect.blocks.system import Secret

    return str(Secret.load(name, _sync=True).get())  # type: ignore[call-arg, union-attr]
