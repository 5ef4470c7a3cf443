"""Environment variables say what their pages say, whatever an env file leaves around or in them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from metrics.errors import ConfigError
from scorers.config import ProgramLimits
from tasks.sandboxes.interpreters import interpreter_at
from tasks.sandboxes.kinds import IMAGE, Container
from tasks.secrets import webhook_address
from tasks.store.home import PROJECT, default_store, home, results_folder
from tasks.usercode import load


@pytest.mark.parametrize(
    ("said", "place"),
    [
        ("~/there", Path("~/there").expanduser()),
        (" /srv/there ", Path("/srv/there")),
        ("/srv/the re", Path("/srv/the re")),
    ],
)
def test_folders_are_those_of_a_shell(monkeypatch: pytest.MonkeyPatch, said: str, place: Path) -> None:
    for name in ("HOME", "RESULTS", "TRUST"):
        monkeypatch.setenv(f"NIGHTJAR_{name}", said)
    assert home() == results_folder() == place
    assert place in load._trusted()
    monkeypatch.setenv("NIGHTJAR_STORE", " s3://bucket/nights ")
    assert default_store() == "s3://bucket/nights"


def test_blanks_are_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "RESULTS", "STORE", "WEBHOOK"):
        monkeypatch.setenv(f"NIGHTJAR_{name}", " ")
    assert home() == PROJECT / ".nightjar"
    assert (results_folder(), default_store()) == (Path("results"), str(home() / "store"))


def test_a_home_of_nobody_trusts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NIGHTJAR_TRUST", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "~nobody-at-all/x")
    assert load._trusted() == [Path.cwd() / "~nobody-at-all/x"]


def test_an_image_of_no_name_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTJAR_SANDBOX_IMAGE", "")
    assert IMAGE in Container("docker").start(interpreter_at(), ProgramLimits(), b"").command


@pytest.mark.parametrize("said", ["hooks.example.org/secret", "secret"])
def test_a_webhook_that_is_no_address_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("NIGHTJAR_WEBHOOK", said)
    with pytest.raises(ConfigError, match=r"^NIGHTJAR_WEBHOOK: expected an address") as refused:
        webhook_address()
    assert "secret" not in str(refused.value)
    script = [sys.executable, str(PROJECT / "deployments" / "automations.py")]
    own = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(script, cwd=PROJECT, env=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"{refused.value}\n")
