"""The own server as a process: what is there is found and ended, and its files are its user's alone."""

import json
import os
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_SSL_CERT_FILE, temporary_settings

from flows.server import connection
from flows.server.boundary import credential
from flows.server.connection import CREDENTIAL, link, serving, shell_exports, use_server
from tests.flows.conftest import MigratedDatabase

PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, without a server."""
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "no-profile"))
    for name in ("PREFECT_API_URL", CREDENTIAL):
        monkeypatch.setenv(name, "")
    return tmp_path / "home"


def serving_on(home: Path) -> list[int]:
    """Processes of the system that serve this home."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"PREFECT_HOME={home / 'server'}".encode() in environment:
                found.append(int(entry.name))
    return found


@pytest.fixture
def unrecorded(place: Path) -> Callable[[list[str]], "subprocess.Popen[bytes]"]:
    """Starts a process as the own server is started, and records nothing."""

    def begin(command: list[str]) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PREFECT_HOME": str(place / "server")}
        return subprocess.Popen(command, env=environment, cwd=PROJECT, start_new_session=True)

    return begin


def test_an_address_of_the_ui_that_is_none_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_UI_URL", "nightjar.example.org")
    with pytest.raises(
        connection.ServerError, match=r"^PREFECT_UI_URL: expected an address such as https://"
    ):
        connection.start()
    assert serving_on(place) == []


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_server_that_starts_too_slowly_is_ended_before_the_error(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "START_SECONDS", 0.3)
    with pytest.raises(connection.ServerError, match=r"did not answer within .*server\.log"):
        connection.start()
    assert serving_on(place) == []
    assert not (place / "server" / "server.json").exists()


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_an_interrupted_start_leaves_no_server(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(port: int) -> bool:
        assert (place / "server" / "server.json").exists(), "it can be stopped from elsewhere"
        raise KeyboardInterrupt

    monkeypatch.setattr(connection, "knows_credential", interrupted)
    with pytest.raises(KeyboardInterrupt):
        connection.start()
    assert serving_on(place) == []


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-c", "import time; time.sleep(600)", "flows.server.app"],
        [sys.executable, "-c", "import time; time.sleep(600)", "prefect", "server", "start"],
    ],
    ids=["of now", "of earlier versions"],
)
def test_stop_ends_a_server_that_nothing_records(
    command: list[str], place: Path, unrecorded: Callable[[list[str]], "subprocess.Popen[bytes]"]
) -> None:
    process = unrecorded(command)
    try:
        while serving_on(place) != [process.pid]:
            assert process.poll() is None
        assert connection.stop()
        assert process.wait(30) != 0
        assert not connection.stop()
    finally:
        process.kill()


def test_a_server_that_died_is_started_again_at_its_port_and_one_that_was_stopped_is_not(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched: list[int] = []

    def launch(folder: Path, port: int) -> connection.Server:
        launched.append(port)
        return connection.Server(pid=os.getpid(), port=port, prefect=version("prefect"))

    monkeypatch.setattr(connection, "_launch", launch)
    assert not connection.start_again(), "there never was one"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (place / "server").mkdir(parents=True, exist_ok=True)
    recorded = {"pid": gone.pid, "port": port, "prefect": version("prefect")}
    (place / "server" / "server.json").write_text(json.dumps(recorded))
    assert connection.start_again()
    assert launched == [port]
    connection.stop()
    assert not connection.start_again(), "it was stopped by hand"
    connection.start()
    assert launched == [port, port], "started by hand, it is where its links and the holders of leases look"


@pytest.mark.services
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_a_port_that_somebody_took_in_the_meantime_is_given_up_for_another(
    place: Path, migrated_database: MigratedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrated_database.lend(place / "server")
    free = connection._free_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        chosen = iter([other.getsockname()[1]])
        monkeypatch.setattr(connection, "_free_port", lambda folder: next(chosen, None) or free(folder))
        server = connection.start()
        try:
            assert server.port != other.getsockname()[1]
            assert connection.status() == server
            assert serving_on(place) == [server.pid]
        finally:
            connection.stop()


def test_stop_leaves_servers_of_other_homes_alone(
    place: Path, unrecorded: Callable[[list[str]], "subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = unrecorded([sys.executable, "-c", "import time; time.sleep(600)", "flows.server.app"])
    try:
        monkeypatch.setenv("NIGHTJAR_HOME", str(place.parent / "another"))
        (place.parent / "another" / "server").mkdir(parents=True)
        recorded = {"pid": process.pid, "port": 1, "prefect": version("prefect")}
        (place.parent / "another" / "server" / "server.json").write_text(json.dumps(recorded))
        assert not connection.stop()
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_a_recorded_server_that_does_not_know_the_credential_is_not_ours(
    place: Path, unrecorded: Callable[[list[str]], "subprocess.Popen[bytes]"]
) -> None:
    """As a server of an earlier version answers: everything with 200, and asking for nothing."""
    code = """
import http.server, pathlib, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b'{"proof": "none"}')
    def log_message(self, *_): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Answer)
pathlib.Path(sys.argv[1]).write_text(str(server.server_address[1]))
server.serve_forever()
"""
    told = place.parent / "port"
    process = unrecorded([sys.executable, "-c", code, str(told), "prefect", "server", "start"])
    try:
        while not (told.exists() and told.read_text()):
            assert process.poll() is None
        credential()
        recorded = {"pid": process.pid, "port": int(told.read_text()), "prefect": version("prefect")}
        (place / "server" / "server.json").write_text(json.dumps(recorded))
        assert connection.status() is None
        assert connection.stop()
        process.wait(30)
    finally:
        process.kill()


def test_the_credential_is_one_and_its_users_alone(place: Path) -> None:
    command = [sys.executable, "-c", "from flows.server.boundary import credential; print(credential())"]
    at_once = [subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = {process.communicate(timeout=120)[0].strip() for process in at_once}
    assert said == {credential()}
    assert len(credential()) > 40
    assert [path.name for path in (place / "server").iterdir()] == ["credential"]
    assert (mode(place), mode(place / "server")) == ("0o700", "0o700")
    assert mode(place / "server" / "credential") == "0o600"
    (place / "server" / "credential").chmod(0o644)
    credential()
    assert mode(place / "server" / "credential") == "0o600"


def test_the_own_credential_is_not_sent_to_another_server(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv(CREDENTIAL, credential())  # of a shell that evaluated ``flows.server env`` before
    assert use_server() == "http://127.0.0.1:9"
    assert CREDENTIAL not in os.environ
    monkeypatch.setenv(CREDENTIAL, "somebody:of that server")
    use_server()
    assert os.environ[CREDENTIAL] == "somebody:of that server"


def test_the_own_servers_address_brings_its_credential(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(home))
    running = connection.status()
    assert running is not None
    for address in (running.api, f"http://localhost:{running.port}/api"):
        monkeypatch.setenv("PREFECT_API_URL", address)
        monkeypatch.setenv(CREDENTIAL, "")
        assert use_server() == running.url
        assert os.environ[CREDENTIAL] == credential()


@pytest.mark.services
def test_a_shell_talks_to_it_after_one_line(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(home))
    for name in ("PREFECT_API_URL", CREDENTIAL):
        monkeypatch.setenv(name, "")
    environment = dict(os.environ)
    exports = shell_exports()
    asked = subprocess.run(
        ["sh", "-c", f'{exports}\nexec "$0" -m prefect work-pool ls', sys.executable],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stdout + asked.stderr


def test_a_link_has_a_code_for_a_terminal_only(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(home))
    running = connection.status()
    assert running is not None
    page = f"{running.url}/runs/flow-run/1"
    assert link(page) == page  # nobody reads this on a terminal
    opened = link(page, always=True)
    assert opened.startswith(f"{running.url}/nightjar/open#code=")
    assert opened.endswith("&to=/runs/flow-run/1")
    assert link(page, always=True) != opened
    assert link("http://127.0.0.1:9/runs/flow-run/1", always=True) == "http://127.0.0.1:9/runs/flow-run/1"
    assert credential().partition(":")[2] not in opened


def test_files_of_the_server_are_its_users_alone(home: Path) -> None:
    files = [path for path in (home / "server").rglob("*") if path.is_file()]
    assert {"prefect.db", "server.json", "server.log", "credential"} <= {path.name for path in files}
    assert {path.name: mode(path) for path in files if path.stat().st_mode & 0o077} == {}


def test_clients_of_the_own_server_read_one_authority_and_others_all(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NIGHTJAR_HOME", str(home))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv(CREDENTIAL, "")
    with temporary_settings({PREFECT_API_SSL_CERT_FILE: str(tmp_path / "mine.pem")}):
        with serving():
            file = str(PREFECT_API_SSL_CERT_FILE.value())
            assert len(ssl.create_default_context(cafile=file).get_ca_certs()) == 1
        assert PREFECT_API_SSL_CERT_FILE.value() == str(tmp_path / "mine.pem")
