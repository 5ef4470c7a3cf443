"""What holds for every test: a home and a Prefect of the tests' own, without a server."""

import atexit
import gc
import os
import shutil
import tempfile
from pathlib import Path

import pytest

# What tests and Prefect are made of stays: looking through it for garbage takes a sixth of the time.
gc.set_threshold(50_000)

# Before Prefect is imported: it reads its settings then, and its logger keeps the stderr of that moment.
_folder = Path(tempfile.mkdtemp(prefix="nightjar-tests-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
os.environ |= {
    "NIGHTJAR_HOME": str(_folder / "nightjar"),
    "PREFECT_HOME": str(_folder / "prefect"),
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "DO_NOT_TRACK": "1",
}
for _name in ("NIGHTJAR_STORE", "PREFECT_API_URL", "PREFECT_PROFILE"):
    os.environ.pop(_name, None)

# Setting its logging up, Prefect closes the handlers that are there. One of them (absl's, which rouge-score
# brings) would take pytest's own file for what a test prints with it, if it was imported while a test runs.
import prefect.main  # noqa: E402, F401


def pytest_collection_finish() -> None:
    """Hides what the tests import from the search for garbage, which every run in this process ends with: it
    takes half a second to look through."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Before Python ends: libraries made with nanobind list what is hidden then."""
    gc.unfreeze()


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test registers as a metric or a filter is forgotten after it."""
    from metrics.registry import METRICS
    from scorers.filters import FILTERS

    for registry in (METRICS, FILTERS):
        monkeypatch.setattr(registry, "_entries", {name: registry[name] for name in registry})
