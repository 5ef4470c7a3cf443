"""Workers as jobs of a queueing system, whose commands are scripts here that start the job beside."""

import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from metrics.errors import ConfigError
from tasks.processes.cluster import cluster_at
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
        ("slurm://normal?jobs=none", "say how many jobs"),
        ("slurm://normal?jobs=2", "must specify how much cores and memory"),
        ("slurm://normal?jobs=2&cores=1&memory=1GB&wall_time=1", "wall_time"),
        ("slurm://normal?jobs", "bad query field"),
    ],
)
def test_an_address_that_can_not_be_is_refused(address: str, said: str, commands: Path) -> None:
    with pytest.raises(ConfigError, match=f"(?s){said}"), cluster_at(address)():
        pass
