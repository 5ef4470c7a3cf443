"""Fingerprints change with what code does, and with nothing else."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from tasks.store import fingerprint as module
from tasks.store.fingerprint import PROJECT, closure, fingerprint
from tasks.usercode.load import load_function


def of(path: Path, name: str = "metric") -> str:
    return fingerprint(load_function(f"{path.name}:{name}", path.parent))


def test_comments_docstrings_and_layout_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def metric(references, predictions):\n    return 1\n")
    before = of(file)
    file.write_text(
        '"""A module."""\n\n\ndef metric(references,\n           predictions):\n'
        '    """What it means."""\n    # why\n    return 1\n'
    )
    assert of(file) == before


def test_changed_code_changes_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def metric(references, predictions):\n    return 1\n")
    before = of(file)
    file.write_text("def metric(references, predictions):\n    return 2\n")
    assert of(file) != before


def test_edited_neighbour_that_is_imported_changes_it(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def half(x):\n    return x / 2\n")
    (tmp_path / "stranger.py").write_text("VALUE = 1\n")
    file = tmp_path / "mine.py"
    file.write_text("from helper import half\n\n\ndef metric(references, predictions):\n    return half(1)\n")
    before = of(file)
    (tmp_path / "stranger.py").write_text("VALUE = 2\n")
    assert of(file) == before
    (tmp_path / "helper.py").write_text("def half(x):\n    return x / 3\n")
    assert of(file) != before


def test_place_of_the_folder_does_not_matter(tmp_path: Path) -> None:
    prints = []
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "mine.py").write_text("def metric(references, predictions):\n    return 1\n")
        prints.append(of(folder / "mine.py"))
    assert prints[0] == prints[1]


def test_scoring_does_not_depend_on_the_code_that_asks_models() -> None:
    files = {path.relative_to(PROJECT).as_posix() for path in closure(PROJECT / "tasks" / "score.py")}
    assert "scorers/generation.py" in files
    assert not [file for file in files if file.startswith(("tasks/models", "tasks/reporting"))]


def test_metric_does_not_depend_on_its_siblings() -> None:
    from metrics.registry import METRICS

    files = {
        path.relative_to(PROJECT).as_posix()
        for path in closure(Path(sys.modules[METRICS["exact_match"].function.__module__].__file__ or ""))
    }
    assert not [file for file in files if "rouge" in file or "bleu" in file]


def test_unknown_module_is_an_error() -> None:
    with pytest.raises(LookupError, match="not a module of this project"):
        fingerprint("tasks.no_such_module")


def test_threads_may_ask_at_the_same_time() -> None:
    names = [path.stem for path in sorted((PROJECT / "tasks").glob("*.py")) if path.stem != "__init__"]
    module._read_source.cache_clear()
    with ThreadPoolExecutor(max_workers=12) as threads:
        together = list(threads.map(lambda name: fingerprint(f"tasks.{name}"), names * 3))
    assert together == [fingerprint(f"tasks.{name}") for name in names * 3]


def test_module_object_and_its_name_are_the_same_code() -> None:
    assert isinstance(module, ModuleType)
    assert fingerprint(module) == fingerprint("tasks.store.fingerprint")
