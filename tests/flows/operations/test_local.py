"""The shipped ways to run a server and a worker on a machine of one's own: make deploy, systemd."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
UNITS = sorted((CHECKOUT / "deployments" / "systemd").glob("*.service"))


def _is_alive(pid: int) -> bool:
    try:
        return "worker" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


@pytest.mark.services
def test_stop_ends_the_worker_before_the_server_and_waits_for_it(
    tmp_path: Path, migrated_database: Any, until: Callable[..., Any]
) -> None:
    migrated_database.lend(tmp_path / "server")
    environment = {**os.environ, "NIGHTJAR_HOME": str(tmp_path)}
    environment.pop("PREFECT_API_URL", None)

    def local(command: str) -> str:
        done = subprocess.run(
            ["deployments/local.sh", command], cwd=CHECKOUT, env=environment, capture_output=True, text=True,
            timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        local("deploy")
        worker = int((tmp_path / "worker.pid").read_text())
        until(lambda: _is_alive(worker), "the shell's copy has become the worker")
        watch = Path("/proc", (tmp_path / "watch.pid").read_text().strip(), "cmdline")
        until(lambda: "flows.watch" in watch.read_text(), "the shell's copy has become the watch")
    finally:
        said = local("stop")
    assert not _is_alive(worker)
    assert not (tmp_path / "watch.pid").exists()
    assert said.index("worker stopped") < said.index("stopped", said.index("worker stopped") + 14)
    assert not (tmp_path / "worker.pid").exists()


WORKER = """
import os, signal, subprocess, sys, time
run = subprocess.Popen(["sleep", "1000"], env={**os.environ, "PREFECT__FLOW_RUN_ID": "r1"})
open(os.environ["NIGHTJAR_HOME"] + "/run.pid", "w").write(str(run.pid))
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))  # as Prefect's worker does
time.sleep(1000)
"""


@pytest.fixture
def local(tmp_path: Path) -> Callable[..., str]:
    """``local.sh`` with a worker that does nothing but have a run; what it prints."""
    home, commands = tmp_path / "home", tmp_path / ".venv" / "bin"
    for folder in (home, commands, tmp_path / "deployments"):
        folder.mkdir(parents=True)
    shutil.copy(CHECKOUT / "deployments" / "local.sh", tmp_path / "deployments")
    scripts = {
        tmp_path / "worker.py": WORKER,
        commands / "prefect": f"#!/bin/sh\nexec '{sys.executable}' '{tmp_path / 'worker.py'}' \"$@\"\n",
        commands / "python": "#!/bin/sh\n",
        tmp_path / "deployments" / "work-pools.sh": "#!/bin/sh\n",
    }
    for place, text in scripts.items():
        place.write_text(text)
        place.chmod(0o755)

    def called(command: str, **settings: str) -> str:
        return subprocess.run(
            [tmp_path / "deployments" / "local.sh", command],
            env={**os.environ, "NIGHTJAR_HOME": str(home), **settings},
            stdout=subprocess.PIPE, text=True, timeout=120, check=True,
        ).stdout  # fmt: skip

    return called


def test_stop_ends_a_worker_that_interrupts_itself_and_the_runs_that_it_leaves(
    tmp_path: Path, local: Callable[..., str], until: Callable[..., Any]
) -> None:
    local("worker")
    begun = tmp_path / "home" / "run.pid"
    until(lambda: begun.is_file() and begun.read_text(), "the worker has a run")
    run = Path("/proc", begun.read_text())
    said = local("stop")
    assert "worker stopped" in said
    until(lambda: not run.exists() or ") Z " in (run / "stat").read_text(), "its run has ended")


def test_a_worker_that_runs_is_replaced_where_its_settings_are_others_and_no_value_is_shown(
    local: Callable[..., str],
) -> None:
    former = {"NIGHTJAR_WEBHOOK": "http://former/secret", "NIGHTJAR_TRUST": "/a\n/b"}
    store = {"NIGHTJAR_STORE": "/store"}
    try:
        assert "started" in local("worker", **former)
        assert "is running" in local("worker", **former)
        said = local("worker", **former | store | {"NIGHTJAR_WEBHOOK": "http://later/secret"})
        assert "settings differ (NIGHTJAR_STORE NIGHTJAR_WEBHOOK)" in said
        assert "secret" not in said
        assert "is running" not in said
        assert "whose settings differ (NIGHTJAR_TRUST NIGHTJAR_WEBHOOK)" in local("worker", **store)
        assert "is running" in local("worker", **store)
    finally:
        local("stop")


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A home folder as the units expect it: the checkout in ``nightjar``."""
    (tmp_path / "nightjar").symlink_to(CHECKOUT)
    (tmp_path / "run").mkdir(mode=0o700)
    return tmp_path


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_takes_the_units_without_a_complaint(user: Path) -> None:
    environment = {**os.environ, "HOME": str(user), "XDG_RUNTIME_DIR": str(user / "run")}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", *map(str, UNITS)], env=environment, capture_output=True,
        text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.services
def test_the_units_start_a_server_and_a_worker_of_it(
    user: Path,
    process: Callable[..., Any],
    free_port: Callable[[], int],
    until: Callable[..., Any],
    migrated_database: Any,
) -> None:
    migrated_database.lend(user / "server")
    port = free_port()
    own = {"PREFECT_SERVER_API_PORT": str(port), "PREFECT_HOME": str(user / "server")}
    api = f"http://127.0.0.1:{port}/api"
    own |= {"PREFECT_API_URL": api, "NIGHTJAR_HOME": str(user / "home")}
    for name in ("server", "worker", "watch"):
        unit = (CHECKOUT / "deployments" / "systemd" / f"nightjar-{name}.service").read_text()
        unit = unit.replace("%h", str(user)).replace("%H", "this-machine")
        named = dict(line.split("=", 1) for line in re.findall(r"^Environment=(.*)$", unit, re.MULTILINE))
        (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
        process(command.split(), user / f"{name}.log", {**named, **own})
        if name == "server":
            until(lambda: _answer(f"{api}/health"), "the server answers")
            httpx.post(f"{api}/work_pools/", json={"name": "local", "type": "process"}).raise_for_status()
    until(lambda: _answer(f"{api}/work_pools/local")["status"] == "READY", "the pool has a worker")
    until(lambda: (user / "home" / "watch.json").exists(), "the watch has looked")


def _answer(url: str) -> Any:

    try:
        return httpx.get(url, timeout=5).json()
    except httpx.HTTPError:
        return None
