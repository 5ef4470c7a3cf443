"""Processes of a Dask cluster that compute steps, on this machine or on others.

Only what a step computes goes there, as to the processes beside this one (``workers``): a call by name, whose
reference comes back. Keys, states and retries, asking and its limits stay in the run's process.

A worker imports what steps need when it joins, and notes what code that was. A call of a run with other code
is refused: its key would say what did not happen. Where a worker is killed, Dask computes its steps on
another one, four times at most; a step that is lost for good is retried as one of a process that died.
"""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import dask
from distributed import Client, LocalCluster, Security, WorkerPlugin
from distributed.comm.addressing import parse_address, parse_host_port
from distributed.comm.registry import backends

from metrics.errors import ConfigError, NightjarError
from tasks.processes.garbage import collect_rarely
from tasks.processes.workers import (
    WorkerDied,
    Workers,
    clear_away_quietly,
    cores,
    import_stages,
    portable_call,
    reply_to,
    settle,
)
from tasks.store.fingerprint import whole_code

OpenClient = Callable[[], AbstractContextManager[Any]]
"""A block that has a client of a cluster. Opening it may take long."""
PLUGIN: Final = "nightjar: stages imported"
NOTICE_SECONDS: Final = 15.0
"""As often it is looked whether workers are there: people are told that none is, and those that were lost of
a cluster that was started here are replaced."""
_UNWATCHED: Final = {"distributed.worker.profile.enabled": False}
"""Workers otherwise look a hundred times a second at what they compute, for a page of Dask's."""
_log = logging.getLogger(__name__)


def cluster_at(address: str) -> OpenClient:
    """What gives a client of the cluster whose scheduler has an address; without one, of a cluster that is
    started here with a process for each core; with that of a queue (``slurm://…``), of one whose workers are
    jobs there. The last two end with the client's block.

    Raises ConfigError for what can't be an address, and for a queue that dask-jobqueue does not know. Called
    by the process's main thread.
    """
    if not address:
        return partial(_client, _local_cluster)
    scheme = address.partition("://")[0]
    if scheme == address or scheme in backends:
        _check_address(address)
        return partial(_client, lambda: nullcontext(address))
    try:
        from tasks.processes.queues import QueueAddress, queue_cluster
    except ImportError as error:
        raise ConfigError(f"{address} needs the extra queues: pip install 'nightjar[queues]'") from error
    return partial(_client, partial(queue_cluster, QueueAddress.of(address)))


def _check_address(address: str) -> None:
    """Raises ConfigError for what can't be the address of a scheduler, and where it needs certificates that
    there are none of."""
    scheme, place = parse_address(address)
    try:
        host, port = parse_host_port(place)
    except ValueError:
        host, port = "", 0
    if not host.strip() or not 0 < port < 65536:
        raise ConfigError(
            f"--task-runner dask:{address}: expected the address of a scheduler, such as tcp://host:8786, or "
            "of a queue, such as slurm://QUEUE?jobs=4"
        )
    try:
        context = Security().get_connection_args("client")["ssl_context"]  # type: ignore[no-untyped-call]
    except OSError as error:
        raise ConfigError(f"--task-runner dask:{address}: its certificates can't be read: {error}") from error
    if scheme in ("tls", "wss") and context is None:
        raise ConfigError(
            f"--task-runner dask:{address}: {scheme} needs certificates: name their files in Dask's "
            "configuration (distributed.comm.tls)"
        )


def _local_cluster() -> Any:
    # With certificates of its own: anyone who reaches a scheduler without can run code as this user.
    own: dict[str, Any] = {"security": True, "dashboard_address": "127.0.0.1:0"}
    clear_away_quietly()
    with dask.config.set(_UNWATCHED):
        return LocalCluster(n_workers=cores(), threads_per_worker=1, **own)  # type: ignore[no-untyped-call]


@contextmanager
def _client(open_cluster: Callable[[], AbstractContextManager[Any]]) -> Iterator[Client]:
    with ExitStack() as stack:
        where = stack.enter_context(open_cluster())
        yield stack.enter_context(Client(where, set_as_default=False))  # type: ignore[no-untyped-call]


class OtherCode(NightjarError):
    """A worker of the cluster has imported other code than the run's."""


class Cluster(AbstractContextManager["Cluster"]):
    """A cluster from the beginning of the block to its end; what opens it goes on beside the block. ``named``
    as ``--task-runner`` names it."""

    def __init__(self, open_client: OpenClient, named: str = "dask") -> None:
        self._open = open_client
        self._named = named
        self._stack = ExitStack()
        self._client: Future[Any] = Future()
        self._over = threading.Event()

    def __enter__(self) -> "Cluster":
        threading.Thread(target=self._begin, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(Exception):  # a cluster that could not be opened was told where it was wanted
            self._client.result()
        self._stack.close()

    def wait(self) -> None:
        """Waits until it is open; raises ConfigError where it can't be opened."""
        self._client.result()

    def compute(self, function: str, call: bytes, seen: Path | None = None) -> "Future[bytes | None]":
        """The reply to a call of ``function``, from whichever worker; None from one that does not see the
        file ``seen``. Raises ConfigError as ``wait``."""
        client = self._client.result()
        name = f"{function.rpartition('.')[2]}-{uuid.uuid4().hex}"  # the first half is what Dask's pages show
        reply: Future[bytes | None] = Future()
        try:
            reply = client.get_executor(pure=False).submit(_reply_there, whole_code(), call, seen, key=name)
        except Exception as error:  # the scheduler is away
            reply.set_exception(error)
        return reply

    def has_workers(self) -> bool:
        """Whether a worker is there now; raises ConfigError as ``wait``."""
        client = self._client.result()
        try:
            return bool(client.nthreads())
        except Exception:  # the scheduler is away
            return False

    def _begin(self) -> None:
        settle(self._client, self._opened)
        with suppress(Exception):  # what is wrong with the cluster is told where it is wanted
            client = self._client.result()
            came = False
            while not self._over.wait(NOTICE_SECONDS):
                there = bool(client.nthreads())
                came |= there
                if not there and (client.futures or not came):
                    _log.warning("no worker is at Dask's scheduler: steps wait for one")
                if isinstance(client.cluster, LocalCluster):  # Dask gives up one that is slow to come again
                    client.cluster.scale(len(client.cluster.worker_spec))  # type: ignore[no-untyped-call]

    def _opened(self) -> Any:
        """The client, once the workers that are there have imported what steps need.

        Raises ConfigError where there is no cluster, or one that has not this project.
        """
        try:
            client = self._stack.enter_context(self._open())
            client.register_plugin(Imported(), name=PLUGIN)
        except NightjarError:
            raise
        except Exception as error:  # whatever Dask makes of an address
            if self._named == "dask":  # started here, it has what this process has
                said, hint = ": ".join(dict.fromkeys((_said(error), _said(_first_cause(error))))), ""
            else:
                said, hint = _said(error), "; its scheduler and workers need this project and its extra dask"
            raise ConfigError(f"--task-runner {self._named}: {said}{hint}") from error
        whole_code()  # beside what the run begins with
        return client


def _first_cause(error: BaseException) -> BaseException:
    """What is behind Dask's words: of whatever ends a worker it says that its nanny failed to start."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _said(error: BaseException) -> str:
    return str(error).rstrip(".") or type(error).__name__


class Imported(WorkerPlugin):
    """What makes a process one of the cluster's that computes steps: a plugin of Dask's workers."""

    idempotent = True

    def setup(self, worker: Any) -> None:
        """Imports what steps need and notes its code, before the first of them."""
        import_stages()
        whole_code()
        collect_rarely()


class ClusterWorkers(Workers):
    """A cluster as the processes of a run whose results are in ``folder``."""

    distant = True

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        super().__init__(0)
        self._cluster = cluster
        self._folder = folder

    def start(self) -> None:
        """Waits until the cluster is there; raises ConfigError where it is not."""
        self._cluster.wait()

    def submit(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        """As of processes here."""
        call = portable_call(function, args, kwargs)
        if call is None:
            return super().submit(function, *args, **kwargs)
        done: Future[Any] = Future()
        reply = self._cluster.compute(function.__qualname__, call)
        reply.add_done_callback(lambda reply: settle(done, lambda: _value(reply)))
        return done

    def offer(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
        """As of processes here, where a worker is there and sees the folder of results: what is offered may
        write there. What is lost there is computed here."""
        call = portable_call(function, args, kwargs)
        if call is None or not self._cluster.has_workers():
            return super().offer(function, *args, **kwargs)
        done: Future[Any] = Future()
        self._folder.mkdir(parents=True, exist_ok=True)
        token = self._folder / f".seen-{uuid.uuid4().hex}"
        token.touch()

        def compute_here() -> None:
            settle(done, lambda: function(*args, **kwargs))

        def arrived(reply: "Future[bytes | None]") -> None:
            token.unlink(missing_ok=True)
            try:
                value = _value(reply)
            except WorkerDied:
                threading.Thread(target=compute_here, daemon=True).start()  # this one has the cluster's loop
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(value)

        self._cluster.compute(function.__qualname__, call, token).add_done_callback(arrived)
        return done


def _value(reply: "Future[bytes | None]") -> Any:
    try:
        replied = reply.result()
    except NightjarError:
        raise
    except BaseException as error:  # one worker after another ended, or the scheduler is away
        why = str(error) or "its scheduler is away"
        raise WorkerDied(f"a step was lost in Dask's cluster: {why}") from error
    if replied is None:
        raise WorkerDied("a worker of Dask does not see the folder of results")
    return Workers.value(replied)


def _reply_there(code: str, call: bytes, seen: Path | None) -> bytes | None:
    """What a worker replies to a call of a run with that code; None where it does not see a file."""
    if (own := whole_code()) != code:
        raise OtherCode(
            f"a worker of Dask on {os.uname().nodename} has imported other code or libraries "
            f"({own[:8]}) than the run ({code[:8]}): bring it to the same version and start it again"
        )
    if seen is not None and not os.access(seen, os.W_OK):
        return None
    return reply_to(call)
