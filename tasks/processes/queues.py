"""Workers of Dask as jobs of a queueing system, by dask-jobqueue: Slurm, PBS, LSF, SGE, HTCondor, OAR, Moab.

Scheduler and workers speak TLS with certificates made for the run, and refuse everybody else. These are in
NIGHTJAR_HOME, which the nodes have to see, and go with the run.
"""

import inspect
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import dask
from distributed import Security, Status

from metrics.aliases import nearest
from metrics.errors import ConfigError
from tasks.processes.endings import ended_with_process
from tasks.store.home import home

# Its import has Ctrl-C end the process at once, without what a run still writes down.
_interrupted = signal.getsignal(signal.SIGINT)
import dask_jobqueue  # noqa: E402

signal.signal(signal.SIGINT, _interrupted)

SUBMIT_SECONDS: Final = 300
"""How long a queueing system may take to accept a job."""
LOOPBACK: Final = "127.0.0.1:0"
"""Where Dask's pages are: they answer everybody who reaches them."""


def queues() -> dict[str, Any]:
    """The class of a cluster by the name of its queueing system: all that dask-jobqueue knows."""
    found = (getattr(dask_jobqueue, name) for name in dir(dask_jobqueue) if name.endswith("Cluster"))
    return {one.job_cls.default_config_name(): one for one in found if hasattr(one, "job_cls")}


@dataclass(frozen=True)
class QueueAddress:
    """``slurm://QUEUE?jobs=4&cores=8&memory=32GB&walltime=02:00:00``: so many jobs, each with a worker
    process a core.

    What else stands there goes to the job's class of dask-jobqueue, as it is written; that of which it takes
    several may stand there several times. What does not stand there is taken from its configuration
    (``jobqueue.slurm``).
    """

    text: str
    system: str
    jobs: int
    arguments: dict[str, Any]

    @classmethod
    def of(cls, address: str) -> "QueueAddress":
        """Raises ConfigError for an unknown system, where the number of jobs is not there, and for what its
        jobs do not take."""
        try:
            url = urlsplit(address)
            # A plus sign is one: this is no form of a browser.
            words = parse_qs(url.query.replace("+", "%2B"), strict_parsing=True) if url.query else {}
        except ValueError as error:
            raise ConfigError(f"{address}: {error}") from error
        known = queues()
        if url.scheme not in known:
            hint = nearest(url.scheme, known)
            said = f"no queueing system {url.scheme!r}{hint} (known: {', '.join(known)})"
            raise ConfigError(f"{address}: {said}")
        job_class = known[url.scheme].job_cls
        try:
            found = dict(_argument(job_class, key.replace("-", "_"), given) for key, given in words.items())
            jobs = found.pop("jobs", None)
            if not isinstance(jobs, int):
                raise ValueError(f"say how many jobs, such as {url.scheme}://{url.netloc}?jobs=4")
            if url.netloc:
                found["queue"] = url.netloc
            if "cores" in found:
                found.setdefault("processes", found["cores"])  # steps hold Python's lock
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of old names: told when the cluster begins
                job_class("", name="", **found).job_script()
        except Exception as error:  # whatever a job makes of words it does not expect
            raise ConfigError(f"{address}: {error}") from error
        return cls(address, url.scheme, jobs, found)


_COUNTS: Final = ("jobs", "cores", "processes")
_OLD_LISTS: Final = ("env_extra", "extra", "header_skip", "job_extra")
"""Names that dask-jobqueue gave up and still takes."""


def _argument(job_class: Any, name: str, given: list[str]) -> tuple[str, Any]:
    """An argument of a job by the words of an address. Raises ValueError for what it can't be."""
    of_cluster = inspect.signature(dask_jobqueue.core.JobQueueCluster.__init__).parameters
    of_job = inspect.signature(dask_jobqueue.core.Job.__init__).parameters
    if name in ("scheduler", "name", "security") or (name in of_cluster and name not in of_job):
        raise ValueError(f"{name} is no argument of a job")
    usual = dask.config.merge(*dask.config.defaults)["jobqueue"][job_class.default_config_name()]
    kind = list if name in _OLD_LISTS else type(usual.get(name.replace("_", "-")))
    if kind is list:
        return name, given
    if kind is dict:
        if unnamed := [one for one in given if "=" not in one]:
            raise ValueError(f"{name}={unnamed[0]}: expected NAME=VALUE")
        return name, dict(one.split("=", 1) for one in given)
    if len(given) > 1:
        raise ValueError(f"{name} stands there twice")
    (word,) = given
    if name == "config_name" and dask.config.get(f"jobqueue.{word}", None) is None:
        raise ValueError(f"{name}={word}: Dask's configuration has no jobqueue.{word}")
    # Digits with a zero before them are a name, an account's or so.
    number = int(word) if re.fullmatch("[1-9][0-9]*", word) else None
    if name in _COUNTS and number is None:
        raise ValueError(f"{name}={word}: expected a whole number from 1 on")
    return name, {"true": True, "false": False}.get(word, word if number is None else number)


@contextmanager
def queue_cluster(address: QueueAddress) -> Iterator[Any]:
    """A block with the cluster of an address, of which the queueing system accepted a job; at its end, and
    where Ctrl-C ends the process, the jobs are cancelled.

    Raises ConfigError for an argument that the cluster does not take, and where a job is not accepted.
    """
    cluster_class = queues()[address.system]
    accepted: Future[None] = Future()
    usual = dask.config.get(f"jobqueue.{address.system}.worker-extra-args", [])
    extra = address.arguments.get("worker_extra_args", usual)
    with ended_with_process(ExitStack()) as stack:
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
        try:
            cluster = cluster_class(job_cls=_reporting(cluster_class.job_cls, accepted), **arguments)
        except Exception as error:  # whatever becomes of words that it does not expect
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
