"""docs/operations.md walked word by word: every command of the page, on a fresh clone, against a server on
PostgreSQL that asks for a password."""

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

CHECKOUT = Path(__file__).resolve().parents[3]
PAGE = CHECKOUT / "docs" / "operations.md"
SECRET = "somebody:with-a-password-8c1f"
# What this page says and no test can do here: the units are started by test_local.py, containers by nobody.
ELSEWHERE = ("systemctl", "loginctl", "cd ~/nightjar", "deployments/work-pools.sh local &&", "docker")


def shell_lines(page: str) -> list[str]:
    """The commands of the page's shell blocks, in order, without their comments."""
    found, language = [], None
    for line in page.splitlines():
        if line.startswith("```"):
            language = line[3:] if language is None else None
        elif language == "" and (command := re.sub(r"\s+#.*", "", line).strip()):
            found.append(command)
    return found


def settings(page: str) -> dict[str, str]:
    """The settings of the table "The server for real" that have a value."""
    table = page.partition("## The server for real")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return dict(
        found for row in rows for found in re.findall(r"`(PREFECT_SERVER_\w+|DO_NOT_TRACK)=([^`]+)`", row)
    )


@dataclass
class Walk:
    """A clone of the checkout, and the environment that commands are typed in."""

    folder: Path
    environment: dict[str, str]

    def type(self, line: str, codes: tuple[int, ...] = (0,)) -> str:
        """Runs a line as a person at the shell of the clone would."""
        # The clone borrows the environment of the checkout: nothing is installed again.
        line = re.sub(r"^make ", "make -o .venv/.base-installed ", line)
        done = subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self.environment, capture_output=True, text=True,
            timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode in codes, f"{line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The last commit in a folder of its own."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(folder)], check=True, timeout=120)
    (folder / ".venv").symlink_to((CHECKOUT / ".venv").resolve())
    return folder


@pytest.fixture
def walk(
    clone: Path,
    tmp_path: Path,
    database: str,
    process: Callable[..., Any],
    free_port: Callable[[], int],
    until: Callable[..., Any],
) -> Iterator[Walk]:
    """A server as the page says, and a shell that knows where it is."""
    port = free_port()
    told = settings(PAGE.read_text(encoding="utf-8"))
    assert told["PREFECT_SERVER_CSRF_PROTECTION_ENABLED"] == "true"
    told |= {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database,
        "PREFECT_SERVER_API_AUTH_STRING": SECRET,
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port}",
        "PREFECT_UI_URL": f"http://127.0.0.1:{port}",
        "PREFECT_HOME": str(tmp_path / "server"),
    }
    command = [str(CHECKOUT / ".venv/bin/python"), "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    process(command, tmp_path / "server.log", told)
    api = f"http://127.0.0.1:{port}/api"
    until(lambda: _answers(api), "the server answers")
    path = f"{clone / '.venv/bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PREFECT_API_URL": api, "PREFECT_API_AUTH_STRING": SECRET}
    environment |= {"PREFECT_HOME": str(tmp_path / "client"), "NIGHTJAR_HOME": str(tmp_path / "home")}
    environment.pop("PYTHONPATH", None)
    walk = Walk(clone, environment)
    try:
        yield walk
    finally:
        walk.type("make stop")


def _answers(api: str) -> bool:
    try:
        assert httpx.get(f"{api}/work_pools/local", timeout=5).status_code in (401, 403)
        return bool(httpx.get(f"{api}/health", timeout=5, auth=tuple(SECRET.split(":"))).is_success)
    except httpx.HTTPError:
        return False


@pytest.mark.nights
def test_every_command_of_the_page_works_on_a_fresh_clone(
    walk: Walk, webhook: str, told: list[dict[str, Any]], until: Callable[..., Any]
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    lines = shell_lines(page)
    waiting = {line for line in lines if not line.startswith(ELSEWHERE)}

    def done(line: str, **placeholders: str) -> str:
        """Types a line of the page with its placeholders filled in, and strikes it off."""
        waiting.remove(line)
        for name, value in placeholders.items():
            line = line.replace(name, value)
        return walk.type(line)

    done("make ui")
    done("make deploy")
    assert "suite/nightly" in walk.type("prefect deployment ls")
    done("NIGHTJAR_WEBHOOK=https://… python deployments/automations.py", **{"https://…": webhook})
    done("prefect global-concurrency-limit create qwen-endpoint --limit 64")
    done('eval "$(python -m flows.server env)"')
    started = done("prefect deployment run suite/nightly")
    run = re.findall(r"[0-9a-f]{8}-[0-9a-f-]{27}", started)[0]
    until(lambda: "Completed" in walk.type(f"prefect flow-run inspect {run}"), "the night completes", 300)

    nightly = "deployments/suites/nightly.yaml"
    night = json.loads(walk.type(f"python -m flows.suite {nightly} --json", (0, 3)))
    assert night["evaluations"][0]["ok"]
    evaluation = night["evaluations"][0]["run_id"]
    done("python -m flows.why RUN", RUN=evaluation)
    done("python -m flows.why RUN exact_match", RUN=evaluation)
    runs = json.loads(walk.type('python -m flows.history "SELECT run_id FROM runs ORDER BY started" --json'))
    assert len(runs) == 2
    gate = "deployments/suites/gate.yaml"
    walk.type(f"python -m flows.compare {runs[0]['run_id']} {runs[1]['run_id']} --gate {gate} --json", (0, 3))
    (query,) = re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    walk.type(
        f"python -m flows.history '{query.replace(chr(39), chr(39) + chr(34) + chr(39) + chr(34) + chr(39))}'"
    )
    walk.type("python -m flows.history --compact")
    walk.type("python -m flows.history --prune --dry-run")
    pair = night["comparison"]["pairs"][0]["pair"]
    done('nightjar accept NIGHT --reason "the new checkpoint is meant"', NIGHT=night["run_id"])
    done(
        'nightjar mute "exact_match,none" --until 2026-12-01 --reason "its references are being fixed"',
        **{"exact_match,none": pair, "2026-12-01": "2999-01-01"},
    )
    done("make stop")
    assert waiting == set(), "commands of the page that this test does not walk"
    # A good night tells nobody; what was said of nights the watch may have told by now.
    assert not [message for message in told if not re.search("accepted by|muted until", message["text"])]


def test_every_module_that_the_page_names_has_a_command_line() -> None:
    page = PAGE.read_text(encoding="utf-8")
    modules = set(re.findall(r"python -m (flows\.\w+)", page))
    assert modules
    for module in modules:
        place = CHECKOUT / module.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), module
