"""Workers as jobs of a queueing system, whose commands are scripts here that start the job beside."""

import re
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import psutil
import pytest

from metrics.errors import ConfigError
from tasks.processes.cluster import cluster_at
from tasks.processes.endings import ending_all
from tests.waiting import until

queues = pytest.importorskip("tasks.processes.queues", reason="the extra queues is not installed")
pytestmark = pytest.mark.services

ACCEPTED = """#!/bin/sh
cp "$1" {folder}/job.sh
setsid sh {folder}/job.sh >{folder}/job.log 2>&1 &
echo "Submitted batch job $!"
"""
CANCEL = """#!/bin/sh
echo "$1" >>{folder}/cancelled
kill -TERM -- "-$1"
"""
REFUSED = """#!/bin/sh
echo "sbatch: error: invalid partition specified" >&2
exit 1
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of commands, before all others."""
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    return folder


def command(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(text.format(folder=folder))
    file.chmod(0o755)


def queue_here(folder: Path) -> None:
    """The commands of a queue of Slurm whose jobs start at once, on this machine."""
    folder.mkdir(exist_ok=True)
    command(folder, "sbatch", ACCEPTED)
    command(folder, "scancel", CANCEL)


def test_steps_are_computed_by_jobs_that_end_with_the_run(commands: Path, tmp_path: Path) -> None:
    queue_here(commands)
    address = (
        "slurm://normal?jobs=1&cores=2&memory=2GB&walltime=01:00:00&account=evals"
        "&job_extra_directives=--gres=none"
    )
    with cluster_at(address)() as client:
        assert client.submit(sum, [1, 2]).result(timeout=120) == 3
        client.wait_for_workers(2, timeout=120)  # a process a core
        listening = [own.laddr for own in psutil.Process().net_connections("tcp") if own.status == "LISTEN"]
        reached = {own.port for own in listening if own.ip != "127.0.0.1"}
        assert reached == {int(client.scheduler.address.rpartition(":")[2])}
        assert client.scheduler.address.startswith("tls://")
        script = (commands / "job.sh").read_text()
        modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "home").glob("certificates-*/*")}
    for line in ("-p normal", "-A evals", "--cpus-per-task=2", "-t 01:00:00", "--gres=none"):
        assert f"#SBATCH {line}\n" in script
    assert modes == {0o600}
    until(lambda: (commands / "cancelled").exists(), "the job is cancelled")
    assert not list((tmp_path / "home").glob("certificates-*"))


def test_jobs_and_certificates_end_with_a_process_that_is_ended_meanwhile(
    commands: Path, tmp_path: Path
) -> None:
    queue_here(commands)
    with cluster_at("slurm://normal?jobs=1&cores=1&memory=1GB")():
        with ending_all(60):
            pass
        assert (commands / "cancelled").exists()
        assert not list((tmp_path / "home").glob("certificates-*"))


def test_a_job_that_is_not_accepted_is_told_and_not_waited_for(commands: Path) -> None:
    command(commands, "sbatch", REFUSED)
    with (
        pytest.raises(ConfigError, match=r"(?s)slurm://nowhere.*not accepted.*invalid partition"),
        cluster_at("slurm://nowhere?jobs=2&cores=1&memory=1GB")(),
    ):
        pass


def test_a_machine_without_the_queue_says_so(commands: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"not accepted.*sbatch"),
        cluster_at("slurm://?jobs=1&cores=1&memory=1GB")(),
    ):
        pass


def test_ctrl_c_does_what_it_did() -> None:
    """dask-jobqueue has it end the process at once when it is imported."""
    code = (
        "import signal; before = signal.getsignal(signal.SIGINT); import tasks.processes.queues; "
        "assert signal.getsignal(signal.SIGINT) is before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("slurrm://normal?jobs=1", r"no queueing system 'slurrm'; did you mean 'slurm'\?.*known: .*pbs"),
        ("slurm://normal", r"say how many jobs, such as slurm://normal\?jobs=4"),
        ("slurm://normal?jobs=none", "jobs=none: expected a whole number from 1 on"),
        ("slurm://normal?jobs=2", "must specify how much cores and memory"),
        ("slurm://normal?jobs=2&cores=1&memory=1GB&wall_time=1", "wall_time"),
        ("slurm://normal?jobs", "bad query field"),
        ("slurm://[gpu?jobs=1", "Invalid IPv6 URL"),
        ("slurm://normal?jobs=²", "jobs=²: expected a whole number from 1 on"),
        ("slurm://normal?jobs=2&cores=0&memory=1GB", "cores=0: expected a whole number from 1 on"),
        ("slurm://normal?jobs=2&cores=two&memory=1GB", "cores=two: expected a whole number from 1 on"),
        ("slurm://normal?jobs=2&cores=2&processes=²&memory=1GB", "processes=²: expected a whole number"),
        ("slurm://normal?jobs=2&cores=1&memory=lots", "lots"),
        ("slurm://normal?jobs=2&cores=1&memory=1GB&config_name=zzz", "has no jobqueue.zzz"),
        ("slurm://normal?jobs=2&cores=1&memory=1GB&account=a&account=b", "account stands there twice"),
        (
            "slurm://normal?jobs=2&cores=1&memory=1GB&asynchronous=true",
            "asynchronous is no argument of a job",
        ),
        ("htcondor://?jobs=2&cores=1&memory=1GB", "how much disk"),
        ("htcondor://?jobs=2&cores=1&memory=1GB&disk=1GB&job_extra_directives=a", "a: expected NAME=VALUE"),
    ],
)
def test_an_address_that_can_not_be_is_refused_before_a_run_begins(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){re.escape(address)}.*{said}"):
        cluster_at(address)


def test_what_the_cluster_itself_refuses_names_the_address(commands: Path) -> None:
    address = "slurm://normal?jobs=2&cores=1&memory=1GB&interface=none0"
    with pytest.raises(ConfigError, match=f"{re.escape(address)}: .*none0"), cluster_at(address)():
        pass


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ("account=0042&walltime=0300", ["#SBATCH -A 0042", "#SBATCH -t 0300"]),
        ("job_script_prologue=export%20X=1", ["export X=1"]),
        ("job_script_prologue=module%20load%20a&job_script_prologue=b", ["module load a", "b"]),
        ("job_directives_skip=-t", ["#SBATCH -n 1", "#SBATCH -p normal"]),
        ("job_extra_directives=--constraint=a+b", ["#SBATCH --constraint=a+b"]),
        ("job_extra_directives=7&job-cpu=3", ["#SBATCH 7", "#SBATCH --cpus-per-task=3"]),
        ("env_extra=export%20X=1", ["export X=1"]),
    ],
)
def test_words_of_an_address_stand_in_the_job_as_they_are_written(words: str, lines: list[str]) -> None:
    script = job_script(f"slurm://normal?jobs=1&cores=2&memory=1GB&{words}").splitlines()
    assert [line for line in lines if line in script] == lines
    assert ("#SBATCH -t 00:30:00" in script) is not ("-t" in words or "walltime" in words)


def test_a_jobs_worker_has_no_nanny_where_an_address_says_so() -> None:
    address = "slurm://normal?jobs=1&cores=2&memory=1GB"
    assert " --nanny " in job_script(address)
    assert " --no-nanny " in job_script(f"{address}&nanny=false")


def test_directives_of_htcondor_have_names_and_values() -> None:
    address = "htcondor://?jobs=1&cores=1&memory=1GB&disk=1GB&job_extra_directives=requirements=a=b"
    assert "requirements = a=b\n" in job_script(address)


def job_script(address: str) -> str:
    found = queues.QueueAddress.of(address)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of names that dask-jobqueue gave up
        return str(queues.queues()[found.system].job_cls("", name="", **found.arguments).job_script())
