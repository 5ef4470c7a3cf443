"""Workers of Dask as jobs of a queueing system, by dask-jobqueue: Slurm, PBS, LSF, SGE, HTCondor, OAR, Moab.

Scheduler and workers speak TLS with certificates made for the run, and refuse everybody else. These lie in
NIGHTJAR_HOME, which the nodes have to see, and go with the run.
"""

import inspect
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import dask
from distributed import Security, Status

from metrics.errors import ConfigError, nearest
from tasks.store.home import home

# Its import has Ctrl-C end the process at once, without what a run still writes down.
_interrupted = signal.getsignal(signal.SIGINT)
import dask_jobqueue  # noqa: E402

signal.signal(signal.SIGINT, _interrupted)

SUBMIT_SECONDS: Final = 300
"""How long a queueing system may take to accept a job."""
LOOPBACK: Final = "127.0.0.1:0"
"""Where Dask's pages are: they answer everybody who reaches them."""


def queues() -> dict[str, Callable[..., Any]]:
    """The class of a cluster by the name of its queueing system: all that dask-jobqueue knows."""
    found = (getattr(dask_jobqueue, name) for name in dir(dask_jobqueue) if name.endswith("Cluster"))
    return {one.job_cls.default_config_name(): one for one in found if hasattr(one, "job_cls")}


@dataclass(frozen=True)
class QueueAddress:
    """``slurm://QUEUE?jobs=4&cores=8&memory=32GB&walltime=02:00:00``: so many jobs, each with a worker
    process a core.

    What else stands there goes to the class of dask-jobqueue, a word that stands twice as a list; what does
    not is taken from its configuration (``jobqueue.slurm``).
    """

    text: str
    system: str
    jobs: int
    arguments: dict[str, Any]

    @classmethod
    def of(cls, address: str) -> "QueueAddress":
        """Raises ConfigError for an unknown system, and where the number of jobs is not there."""
        url = urlsplit(address)
        known = queues()
        if url.scheme not in known:
            hint = nearest(url.scheme, known)
            said = f"no queueing system {url.scheme!r}{hint} (known: {', '.join(known)})"
            raise ConfigError(f"{address}: {said}")
        try:
            words = parse_qs(url.query, strict_parsing=True) if url.query else {}
        except ValueError as error:
            raise ConfigError(f"{address}: {error}") from error
        values = {
            key.replace("-", "_"): [int(one) if one.isdigit() else one for one in given]
            for key, given in words.items()
        }
        found: dict[str, Any] = {key: one if len(one) > 1 else one[0] for key, one in values.items()}
        jobs = found.pop("jobs", 0)
        if not isinstance(jobs, int) or jobs < 1:
            raise ConfigError(f"{address}: say how many jobs, such as {url.scheme}://{url.netloc}?jobs=4")
        for key in ("job_extra_directives", "worker_extra_args"):
            if key in found and not isinstance(found[key], list):
                found[key] = [found[key]]
        if url.netloc:
            found["queue"] = url.netloc
        if "cores" in found:
            found.setdefault("processes", found["cores"])  # steps hold Python's lock
        return cls(address, url.scheme, jobs, found)


@contextmanager
def queue_cluster(address: QueueAddress) -> Iterator[Any]:
    """A block with the cluster of an address, of which the queueing system accepted a job; at its end the
    jobs are cancelled.

    Raises ConfigError for an argument that its class does not take, and where a job is not accepted.
    """
    cluster_class: Any = queues()[address.system]
    accepted: Future[None] = Future()
    usual = dask.config.get(f"jobqueue.{address.system}.worker-extra-args", [])
    extra = address.arguments.get("worker_extra_args", usual)
    with ExitStack() as stack:
        home().mkdir(parents=True, exist_ok=True)
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="certificates-", dir=home())))
        if shlex.quote(str(folder)) != str(folder):
            said = f"NIGHTJAR_HOME ({home()}) has a blank or a sign that a job's command can't pass on"
            raise ConfigError(f"{address.text}: {said}; name another folder")
        # The command line of a job is put together without quotes.
        python = dask.config.get(f"jobqueue.{address.system}.python", None)
        arguments = (
            {"python": python or shlex.quote(sys.executable)}
            | address.arguments
            | {
                "security": _certificates(folder),
                "scheduler_options": {"dashboard": False, "dashboard_address": LOOPBACK},
                "worker_extra_args": [*extra, "--no-dashboard", "--dashboard-address", LOOPBACK],
            }
        )
        of_cluster = inspect.signature(dask_jobqueue.core.JobQueueCluster.__init__).parameters
        try:
            # A job alone first: a cluster that could not be made complains again when it is forgotten.
            cluster_class.job_cls(
                "", name="", **{key: one for key, one in arguments.items() if key not in of_cluster}
            )
            cluster = cluster_class(job_cls=_reporting(cluster_class.job_cls, accepted), **arguments)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{address.text}: {error}") from error
        stack.callback(cluster.close)
        try:
            cluster.scale(jobs=address.jobs)
            accepted.result(SUBMIT_SECONDS)
        except (OSError, RuntimeError, ValueError) as error:  # a time that ran out is an OSError
            said = f"{address.text}: the job was not accepted: {error or 'no answer'}"
            raise ConfigError(said) from error
        yield cluster


def _certificates(folder: Path) -> Security:
    """New ones, in files of ``folder`` that this user alone reads."""
    made: Any = Security.temporary()  # type: ignore[no-untyped-call]
    names = {name for role in ("scheduler", "worker", "client") for name in (f"{role}_cert", f"{role}_key")}
    paths = {}
    for name in (*sorted(names), "ca_file"):
        file = folder / f"{name}.pem"
        file.touch(mode=0o600)
        file.write_text(getattr(made, f"tls_{name}"))
        paths[f"tls_{name}"] = str(file)
    return Security(require_encryption=True, **paths)  # type: ignore[no-untyped-call]


def _reporting(job_class: Any, accepted: "Future[None]") -> Any:
    """The class of jobs, whose first one tells ``accepted`` whether the queueing system took it: Dask goes on
    without a job that it did not take, and would wait for it forever."""

    class Reporting(job_class):  # type: ignore[misc]
        async def start(self) -> None:
            try:
                await super().start()
            except BaseException as error:
                self.status = Status.failed  # else the cluster can't be closed
                if not accepted.done():
                    accepted.set_exception(error)
                raise
            if not accepted.done():
                accepted.set_result(None)

    return Reporting
