"""The program's own code in keys: packages by what stages' imports reach, libraries by version."""

import importlib.metadata
import inspect
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flows.graph.stages import GRAPH
from tasks.store import fingerprint
from tasks.store.fingerprint import (
    APART,
    CARRIERS,
    is_below,
    module_file,
    modules_behind,
    package_digest,
    packages_behind,
    stage_code,
)
from tasks.store.home import PROJECT
from tasks.store.imports import PACKAGES, imports_of

FUNCTIONS = sorted(
    {inspect.unwrap(task.fn) for stage in GRAPH for task in stage.tasks}, key=lambda f: f.__qualname__
)
BEHIND = frozenset(module for function in FUNCTIONS for module in modules_behind(function.__module__))
Edit = Callable[[Callable[[str], bool]], None]


def forget() -> None:
    """As if this process had read none of the program's files."""
    for cached in (fingerprint._source, fingerprint._imported, package_digest, fingerprint._libraries_of):
        cached.cache_clear()
    for cached in (fingerprint._code_behind, fingerprint.modules_behind):
        cached.cache_clear()


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """Makes files of the program look edited; says by their names relative to the project which."""

    def apply(chosen: Callable[[str], bool]) -> None:
        def read(path: Path) -> bytes:
            edited = chosen(path.relative_to(PROJECT).as_posix())
            return path.read_bytes() + (b"\n# edited\n" if edited else b"")

        monkeypatch.setattr(fingerprint, "read_source", read)
        forget()

    yield apply
    forget()


def code_of_all() -> dict[str, Any]:
    return {f"{entry.__module__}.{entry.__name__}": stage_code(entry) for entry in FUNCTIONS}


def test_every_stage_is_found_and_counts() -> None:
    names = {function.__module__ for function in FUNCTIONS}
    assert {
        "tasks.load",
        "tasks.render",
        "tasks.infer",
        "tasks.filter",
        "tasks.score",
        "tasks.reduce",
    } <= names
    assert all(function.__module__ in stage_code(function).packages for function in FUNCTIONS)


def test_what_asks_and_what_shows_is_in_no_key(edit: Edit) -> None:
    before = code_of_all()
    assert not [name for code in before.values() for name in code.packages if is_below(name, APART)]
    edit(lambda name: name.startswith(("flows/", "tasks/reporting/")))
    assert code_of_all() == before


def test_only_files_of_tasks_itself_know_how_things_are_shown() -> None:
    """What makes rows lies below reporting, as import-linter holds; of the stages' own files those do that
    carry progress and logs."""
    knowing = {name for name in BEHIND if any(map(_is_shown, _named_in(name)))}
    assert knowing <= {"tasks.caching", "tasks.run_page"}


def _named_in(module: str) -> list[str]:
    file = module_file(module)
    assert file is not None
    return [entry.module for entry in imports_of(file.read_bytes()).statements]


def _is_shown(module: str) -> bool:
    return is_below(module, APART)


def test_a_change_in_a_package_moves_the_stages_that_reach_it(edit: Edit) -> None:
    before = code_of_all()
    edit(lambda name: name == "metrics/text/bleu.py")
    after = code_of_all()
    assert before["tasks.score.score"].packages != after["tasks.score.score"].packages
    edit(lambda name: name == "tasks/models/http.py")
    after = code_of_all()
    assert before["tasks.infer.infer"] != after["tasks.infer.infer"]
    assert before["tasks.score.score"] == after["tasks.score.score"]
    assert before["tasks.load.load"] == after["tasks.load.load"]


def test_scoring_does_not_depend_on_the_code_that_asks_models() -> None:
    assert not [name for name in packages_behind("tasks.score") if name.startswith("tasks.models")]


def test_modules_that_a_text_names_are_reached() -> None:
    assert "scorers.filters.pipeline" in modules_behind("tasks.rows.predictions")
    assert "scorers.factory" in modules_behind("scorers"), "which loads its names when they are used"


def test_a_registry_that_lists_a_package_reaches_all_of_it() -> None:
    own = {name for name in fingerprint._modules() if is_below(name, ["metrics"])}
    assert own <= modules_behind("metrics.registry")
    own = {name for name in fingerprint._modules() if is_below(name, ["scorers.filters"])}
    assert own <= modules_behind("scorers.filters.pipeline")


def test_what_only_types_name_is_not_reached() -> None:
    text = b"from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import flows\nelse:\n    import tasks\n"
    assert [entry.module for entry in imports_of(text).statements] == ["typing", "tasks"]


IMPORTING_BY_NAME = {
    "metrics.registry": "all modules of its package, which count",
    "scorers": "the names of modules stand in it as texts, which count",
    "tasks.sandboxes.killable": "who names what is called has that name as a text, which counts",
    "tasks.usercode.load": "users' files, which have sources of their own",
    "tasks.usercode.surroundings": "the library that a stand-in stands for",
    "tasks.processes.workers": "what the caller of a task imports, or early what a stage imports",
}


def test_imports_by_a_name_that_is_no_text_are_known() -> None:
    """A new one fails here: its modules must be reached in a way that can be derived."""
    found = {
        name
        for name in BEHIND
        if (file := module_file(name)) is not None and imports_of(file.read_bytes()).unknown
    }
    assert found == set(IMPORTING_BY_NAME)


def test_libraries_that_decide_numbers_count_by_version() -> None:
    libraries = stage_code(_function("tasks.score", "score")).libraries
    for name in ("numpy", "sacrebleu", "rouge-score", "math-verify", "sympy", "jinja2", "pyarrow"):
        assert libraries[name] == importlib.metadata.version(name)
    assert libraries["python"] == f"Python {sys.version_info.major}.{sys.version_info.minor}"


def test_libraries_that_only_carry_do_not() -> None:
    assert not {name for code in code_of_all().values() for name in code.libraries} & CARRIERS
    contracts = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = [entry for entry in contracts if entry["name"] == "metrics and scorers are pure"]
    assert set(pure["forbidden_modules"]) - sys.stdlib_module_names == CARRIERS


def test_another_version_of_a_library_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = stage_code(_function("tasks.score", "score"))
    known = fingerprint.library_version
    monkeypatch.setattr(
        fingerprint,
        "library_version",
        lambda *arguments, **named: known(*arguments, **named) | {"numpy": "0"},
    )
    forget()
    after = stage_code(_function("tasks.score", "score"))
    forget()
    assert (before.packages, after.libraries["numpy"]) == (after.packages, "0")


def _function(module: str, name: str) -> Callable[..., Any]:
    (found,) = [entry for entry in FUNCTIONS if (entry.__module__, entry.__name__) == (module, name)]
    return found


def test_threads_may_ask_at_the_same_time() -> None:
    forget()
    with ThreadPoolExecutor(max_workers=12) as threads:
        together = list(threads.map(stage_code, FUNCTIONS * 2))
    forget()
    assert together == [stage_code(function) for function in FUNCTIONS * 2]


def test_data_beside_modules_counts(edit: Edit) -> None:
    before = package_digest("tasks.models.demo")
    edit(lambda name: name == "tasks/models/demo/corpus.txt")
    assert package_digest("tasks.models.demo") != before


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_lies_in_a_package_that_can_be_named(package: str) -> None:
    for module in fingerprint._modules():
        if is_below(module, [package]):
            assert len(package_digest(fingerprint._package_of(module))) == 16
