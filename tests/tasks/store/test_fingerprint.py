"""Fingerprints change with what code does, and with nothing else."""

import ast
import importlib.metadata
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest

from tasks.store import fingerprint as module
from tasks.store.fingerprint import closure, fingerprint, sources_of
from tasks.store.home import PROJECT
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
    assert "tasks/rows/scoring.py" in files
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
    module._source.cache_clear()
    module.closure.cache_clear()
    module._parsed_before().clear()
    with ThreadPoolExecutor(max_workers=12) as threads:
        together = list(threads.map(lambda name: fingerprint(f"tasks.{name}"), names * 3))
    assert together == [fingerprint(f"tasks.{name}") for name in names * 3]


def test_module_object_and_its_name_are_the_same_code() -> None:
    assert isinstance(module, ModuleType)
    assert fingerprint(module) == fingerprint("tasks.store.fingerprint")


def sources(folder: Path, name: str = "metric", **files: str) -> dict[str, str]:
    """The sources of a function in ``mine.py``, after the named files are written."""
    for file, text in files.items():
        path = folder / f"{file.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return sources_of(load_function(f"mine.py:{name}", folder))


TWO = "def metric(x):\n    return {}\n\n\ndef neighbour(x):\n    return {}\n"


def test_a_neighbour_in_the_same_file_is_not_in_the_key(tmp_path: Path) -> None:
    before = sources(tmp_path, mine=TWO.format(1, 1))
    assert list(before) == ["mine.py:metric"]
    assert sources(tmp_path, mine=TWO.format(1, 2)) == before
    assert sources(tmp_path, mine=TWO.format(2, 2)) != before


@pytest.mark.parametrize(
    ("file", "reached"),
    [
        ("LIMIT = 3\nOTHER = 4\ndef metric(x): return LIMIT\n", {"LIMIT", "metric"}),
        ("def half(x): return x\ndef metric(x): return half(x)\n", {"half", "metric"}),
        ("class Base: pass\nclass metric(Base): pass\nclass Other: pass\n", {"Base", "metric"}),
        ("def deco(f): return f\n@deco\ndef metric(x): return x\n", {"deco", "metric"}),
        ("A = B = 1\nC, D = 2, 3\ndef metric(x): return (lambda: D)()\n", {"D", "metric"}),
        (
            "STATE = {}\nSTATE['a'] = 1\ndef metric(x): return x\n",
            {"STATE", "metric", "the module's statements"},
        ),
    ],
)
def test_what_a_function_reaches_in_its_file_is_in_the_key(
    tmp_path: Path, file: str, reached: set[str]
) -> None:
    assert {name.partition(":")[2] for name in sources(tmp_path, mine=file)} == reached


@pytest.mark.parametrize(
    "file",
    [
        "from helper import *\ndef metric(x): return x\n",
        "def metric(x): return globals()['other'](x)\ndef other(x): return x\n",
        "def metric(x): return eval('other(x)')\ndef other(x): return x\n",
        "SEEN = []\ndef other(x): SEEN.append(x)\ndef metric(x): return len(SEEN)\n",
        "COUNT = 0\ndef other():\n    global COUNT\n    COUNT = 1\ndef metric(x): return COUNT\n",
        "metric = lambda x: x\n",
    ],
)
def test_where_names_cannot_be_followed_the_whole_file_counts(tmp_path: Path, file: str) -> None:
    assert "mine.py" in sources(tmp_path, helper="def helping(): return 1\n", mine=file)


@pytest.mark.parametrize(
    "importing",
    [
        "from helper import half\ndef metric(x): return half(x)\n",
        "import helper\ndef metric(x): return helper.half(x)\n",
        "from . import helper\ndef metric(x): return helper.half(x)\n",
        "from .helper import half as h\ndef metric(x): return h(x)\n",
        "def metric(x):\n    from helper import half\n    return half(x)\n",
    ],
)
def test_an_imported_neighbour_counts_by_the_function_that_is_used(tmp_path: Path, importing: str) -> None:
    helper = "def half(x): return x / {}\ndef other(x): return {}\n"
    before = sources(tmp_path, helper=helper.format(2, 1), mine=importing)
    assert set(before) == {"mine.py:metric", "helper.py:half"}
    assert sources(tmp_path, helper=helper.format(2, 9)) == before
    assert sources(tmp_path, helper=helper.format(3, 9)) != before


def test_a_partial_counts_by_its_function_and_its_arguments(tmp_path: Path) -> None:
    file = "from functools import partial\ndef scale(x, by): return x * {}\nmetric = partial(scale, by={})\n"
    found = [sources(tmp_path, mine=file.format(*numbers)) for numbers in ((1, 2), (1, 3), (5, 2))]
    assert len({str(entry) for entry in found}) == 3
    assert not any("functools" in name for entry in found for name in entry)


def test_libraries_count_by_version_and_are_never_followed(tmp_path: Path) -> None:
    found = sources(tmp_path, mine="import json, numpy\ndef metric(x): return json.loads(numpy.array(x))\n")
    assert set(found) == {"mine.py:metric", "numpy", "python"}
    assert found["numpy"] == importlib.metadata.version("numpy")


def test_a_function_of_an_installed_package_counts_by_its_version() -> None:
    assert sources_of(json.loads) == {"python": f"Python {sys.version_info.major}.{sys.version_info.minor}"}
    assert sources_of(numpy.testing.assert_allclose) == {"numpy": numpy.__version__}


def test_an_edited_neighbour_is_loaded_anew_with_the_file_that_imports_it(tmp_path: Path) -> None:
    importing = "from .helper import half\ndef metric(x): return half(x)\n"
    sources(tmp_path, helper="def half(x): return x / 2\n", mine=importing)
    assert load_function("mine.py:metric", tmp_path)(12) == 6
    sources(tmp_path, helper="def half(x): return x / 12\n")
    assert load_function("mine.py:metric", tmp_path)(12) == 1


def test_every_seam_is_there() -> None:
    assert [seam for seam in module.SEAMS if not (PROJECT / seam).exists()] == []


def test_a_parser_that_another_thread_confused_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPython 3.11 counts all threads' recursion in one place; seen once in a run of a notebook."""
    file = tmp_path / "mine.py"
    file.write_text("def metric(references, predictions):\n    return 12345\n")
    before, parse, refused = of(file), ast.parse, []

    def confused(text: Any, *arguments: Any, **keys: Any) -> ast.AST:
        if len(refused) < 2:
            refused.append(text)
            raise SystemError("AST constructor recursion depth mismatch (before=81, after=73)")
        return parse(text, *arguments, **keys)

    file.write_text(file.read_text() + "# the same\n")
    monkeypatch.setattr(ast, "parse", confused)
    assert of(file) == before
    assert len(refused) == 2
