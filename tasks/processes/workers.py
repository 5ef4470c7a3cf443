"""Processes that compute large steps beside this one, kept warm for as long as a run needs them.

A step goes there as the name of its stage's task and the arguments, and comes back as a reference: rows
never pass between processes, but stay in the store. Prefect's task runs stay where they are, in threads
that wait; so keys, retries and states do not know where a step was computed.

Processes are forked from the run's own before anything else runs in it, where that can be (``prepare``), and
have imported all that it has. Else they start with the first step, from one that imports the stages.
"""

import multiprocessing
import multiprocessing.context
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from multiprocessing import forkserver, resource_tracker
from typing import Any

from tasks.processes.garbage import collect_rarely, freeze_imports
from tasks.usercode.load import has_loaded

_EARLY = (
    *("render", "infer", "filter", "score", "reduce", "publish"),
    *("benchmarks.native", "models.providers.replay"),
)
# Put together here, so that a name is no import in the keys of steps: what is imported early changes no row.
STAGES = ("pandas", *(f"{__package__.rpartition('.')[0]}.{name}" for name in _EARLY))
"""What the processes have imported before their first step: the stages, and what these import when they first
need it. Arrow imports pandas, where it is installed, to see that a list is no column of it."""


class WorkerDied(OSError):
    """A process ended in the middle of a step: killed for its memory, or by the code of a library."""


class Workers:
    """Up to ``count`` processes. Below two there are none, and everything is computed in place."""

    distant = False
    """Whether they may be on other machines: these compute whatever can be taken there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._runs: list[int] = []
        self._pool: ProcessPoolExecutor | None = None
        self._lock = threading.RLock()

    @property
    def warm(self) -> bool:
        """Whether processes have computed something already, and wait for more."""
        return self._pool is not None

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        """What ``function`` returns in a process, or raises there; it is found by its name, under which
        its module may hold the task that is made of it.

        What can't be taken to another process is called here. The result raises WorkerDied where the process
        did.
        """
        call = portable_call(function, args, kwargs) if self.count > 1 else None
        if call is not None:
            return self.send(call)
        done: Future[Any] = Future()
        with _in_place:
            settle(done, lambda: function(*args, **kwargs))
        return done

    def send(self, call: bytes) -> "Future[Any]":
        """The result of a call in a process, the only one where there would be none."""
        done: Future[Any] = Future()
        with self._lock:
            if self._pool is None:
                self._pool = _new_pool(max(self.count, 1), _context())
            pool = self._pool
            try:
                reply = pool.submit(reply_to, call)
            except BrokenProcessPool as error:
                self._forget(pool)
                done.set_exception(WorkerDied(str(error)))
                return done
        reply.add_done_callback(lambda reply: settle(done, lambda: self._value(pool, reply)))
        return done

    def offer(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        """As ``submit`` where processes have computed something already; else it is called here, since to
        start them would take longer."""
        if self.warm:
            return self.submit(function, *args, **kwargs)
        done: Future[Any] = Future()
        settle(done, lambda: function(*args, **kwargs))
        return done

    def start(self) -> None:
        """Starts the processes, so that they are there when the first step is; below two there are none."""
        for _ in range(self.count if self.count > 1 else 0):
            self.submit(os.getpid)

    def fork(self, count: int) -> None:
        """Has ``count`` processes from now on, unless there are some: copies of this one as it is."""
        with self._lock:
            if self._pool is None:
                self._pool = _new_pool(count, multiprocessing.get_context("fork"))
                with _known_threads():
                    self._pool.submit(os.getpid)  # with the first call a pool of forks starts them all

    def compute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As ``submit``, and waits."""
        return self.submit(function, *args, **kwargs).result()

    @contextmanager
    def lent(self, count: int) -> Iterator["Workers"]:
        """A block that has up to ``count`` processes, beside others as many as the one that asks for most;
        they end with the last block."""
        with self._lock:
            self._runs.append(count)
            self.count = max(self._runs)
        try:
            yield self
        finally:
            with self._lock:
                self._runs.remove(count)
                self.count = max(self._runs, default=0)
                idle = not self._runs
            if idle:
                self.close()

    def close(self) -> None:
        """Ends the processes, once they have computed what they have."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    def _value(self, pool: ProcessPoolExecutor, reply: "Future[bytes]") -> Any:
        try:
            replied = reply.result()
        except BrokenProcessPool as error:
            self._forget(pool)
            raise WorkerDied(f"a process that computed a step ended: {error}") from error
        return self.value(replied)

    @staticmethod
    def value(replied: bytes) -> Any:
        """What a reply says was returned, or raises what it says was raised."""
        kind, value = pickle.loads(replied)
        if kind == "raised":
            raise value
        return value

    def _forget(self, pool: ProcessPoolExecutor) -> None:
        """The next step starts other processes: a pool of which one died takes no more."""
        with self._lock:
            if self._pool is pool:
                self._pool = None


_shared = Workers(0)
_elsewhere: ContextVar[Workers | None] = ContextVar("nightjar_workers", default=None)


def workers() -> Workers:
    """Those of the run, where it has a cluster's; else those of this process: runs side by side share them.
    None while no run asks for any."""
    return _elsewhere.get() or _shared


@contextmanager
def working_in(others: Workers) -> Iterator[Workers]:
    """A block, and the tasks submitted in it, whose steps are computed by others than this process's."""
    token = _elsewhere.set(others)
    try:
        yield others
    finally:
        _elsewhere.reset(token)


def in_main_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """As ``compute``, in the main thread of a process of this machine, also where the run has none: Python
    lets no other thread set an alarm, and those of a cluster's processes compute in others."""
    call = portable_call(function, args, kwargs)
    if call is None:
        return function(*args, **kwargs)
    with _shared.lent(1):
        return _shared.send(call).result()


def prepare(count: int) -> None:
    """Has processes for the run that this one is about to begin: forked from it where it may be, else what
    they import is imported from now on, beside whatever this one does before it needs them. For a count below
    two, nothing."""
    if count < 2 or _shared.warm:
        return
    if may_fork():
        import_stages()
        freeze_imports()
        _shared.fork(count)
    else:
        _context()


def may_fork() -> bool:
    """Whether a copy of this process can go on by itself: no other thread of Python's runs here, and no
    module of the user's was loaded, whose libraries may have started threads that a copy lacks."""
    return sys.platform == "linux" and threading.active_count() == 1 and not has_loaded()


@contextmanager
def _known_threads() -> Iterator[None]:
    """Forks without Python's warning of threads: those of Arrow and numpy know of forks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def working(count: int) -> AbstractContextManager[Workers]:
    """Has steps computed by up to ``count`` processes inside the block; they end with the last block."""
    return _shared.lent(count)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_in_place = threading.BoundedSemaphore(max(2, cores()))
"""Steps computed here at once: more would not end sooner, and each holds a batch of rows."""


def portable_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bytes | None:
    """A call as bytes; None where an argument can't be taken to another process."""
    try:
        return pickle.dumps((function.__module__, function.__qualname__, args, kwargs))
    except Exception:  # a user's object, of whatever class
        return None


def settle(done: "Future[Any]", work: Callable[[], Any]) -> None:
    """Gives a future what ``work`` returns or raises."""
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)


def import_stages() -> None:
    """Imports what steps need, as far as it is installed."""
    for name in STAGES:
        with suppress(ImportError):
            import_module(name)


def clear_away_quietly() -> None:
    """Has what processes share cleared away without a word where this one ends before it has done so itself,
    as at Ctrl-C: Python's own process for that, which is started here, warns of it."""
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


def _context() -> multiprocessing.context.ForkServerContext:
    clear_away_quietly()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(STAGES))
    before = hold_interrupts()
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _new_pool(count: int, context: multiprocessing.context.BaseContext) -> ProcessPoolExecutor:
    # The server of forks keeps the surroundings that it was started in; a run has those of its own time.
    surroundings = (dict(os.environ), list(sys.path), os.getcwd())
    return ProcessPoolExecutor(count, context, _begin, surroundings)


def _begin(environment: Mapping[str, str], path: Sequence[str], folder: str) -> None:
    """Makes a new process one of the run's."""
    exit_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    os.chdir(folder)
    collect_rarely()


def hold_interrupts() -> set[signal.Signals]:
    """Has Ctrl-C wait for processes that this thread starts from now on: in the middle of their imports it
    leaves a traceback. Returns what waited before; ``exit_with_parent`` ends it in the process."""
    return signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # type: ignore[return-value]


def exit_with_parent() -> None:
    """Has this process end with the run's, and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_the_run, daemon=True).start()


def _end_with_the_run() -> None:
    """Ends this process when the run's is gone, killed too: nothing else would wake it, since the processes
    hold each other's pipes open."""
    run = multiprocessing.parent_process()
    assert run is not None, "this is called in a process that multiprocessing started"
    run.join()
    os._exit(1)


def reply_to(call: bytes) -> bytes:
    """What a function returned or raised, as bytes that can be read where it is not known."""
    module, name, args, kwargs = pickle.loads(call)
    try:
        function = getattr(import_module(module), name)
        if hasattr(function, "fn"):  # a stage's task: what it computes, without its records
            function = function.fn.__wrapped__
        reply = "returned", function(*args, **kwargs)
    except Exception as error:
        reply = "raised", _portable(error)
    return pickle.dumps(reply)


def _portable(error: Exception) -> Exception:
    """The error, or what it says where it can't be taken to another process."""
    try:
        if isinstance(pickle.loads(pickle.dumps(error)), type(error)):
            return error
    except Exception:  # whatever its class does when it is made again
        pass
    return RuntimeError(f"{type(error).__name__}: {error}")
