"""What holds for every test: a home and a Prefect of the tests' own, without a server."""

import atexit
import gc
import os
import re
import shutil
import tempfile
import tomllib
from itertools import combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

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

# The marks that say which of the sets a test is in; `-m` chooses among them.
_pytest = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8"))["tool"][
    "pytest"
]
SETS = {line.partition(":")[0] for line in _pytest["ini_options"]["markers"]}


def chosen_from(source: str, expression: str, fixtures: str = "") -> bool:
    """Whether ``-m`` with this expression may choose a test of a file. Each of the marks is on all its tests
    (``pytestmark`` at the margin), on none (neither the file nor its ``fixtures`` name it), or perhaps on
    some."""
    all_have = {name for name in SETS if re.search(rf"^pytestmark = .*\bmark\.{name}\b", source, re.M)}
    some_have = {name for name in SETS if f"mark.{name}" in source + fixtures} - all_have

    def is_chosen(marks: set[str]) -> bool:
        return Expression.compile(expression).evaluate(lambda name, **_: name in marks)

    return any(
        is_chosen(all_have | set(others))
        for number in range(len(some_have) + 1)
        for others in combinations(some_have, number)
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves files alone that ``-m`` can choose nothing of: every worker would import what they import and
    rewrite their assertions, half of the time that collecting takes."""
    expression = config.getoption("markexpr")
    about_sets = set(re.findall(r"\w+", expression)) <= SETS | {"and", "or", "not"}
    if not expression or not about_sets or not collection_path.name.startswith("test_"):
        return None
    source = collection_path.read_text("utf-8")
    return None if chosen_from(source, expression, _fixtures(collection_path)) else True


def _fixtures(test: Path) -> str:
    """The sources of the conftest.py files that a test's fixtures may come from, but this one."""
    between = test.resolve().relative_to(Path(__file__).resolve().parent).parents
    files = [Path(__file__).parent / folder / "conftest.py" for folder in between if folder.name]
    return "".join(file.read_text("utf-8") for file in files if file.is_file())


def pytest_collection_finish() -> None:
    """Hides what the tests import from the search for garbage, which every run in this process ends with: it
    takes half a second to look through."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Before Python ends: libraries made with nanobind list what is hidden then."""
    gc.unfreeze()


@pytest.fixture
def sandbox() -> None:
    """Skips where no sandbox works, with the sentence that a run is refused with."""
    from tasks.sandboxes.interpreters import SandboxError
    from tasks.sandboxes.run import chosen_sandbox

    try:
        chosen_sandbox()
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test registers as a metric, an aggregation or a filter is forgotten after it."""
    from metrics.registry import AGGREGATIONS, METRICS
    from scorers.filters import FILTERS

    for registry in (METRICS, AGGREGATIONS, FILTERS):
        monkeypatch.setattr(registry, "_entries", {name: registry[name] for name in registry})
