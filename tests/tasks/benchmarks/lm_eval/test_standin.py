"""A definition's Python file may import ``datasets`` where the library is not installed."""

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.splits import Splits
from tasks.benchmarks.lm_eval.yaml import FunctionName
from tasks.usercode.load import load_function
from tasks.usercode.surroundings import Documents, library_installed, stand_ins

pytestmark = pytest.mark.skipif(library_installed(), reason="the library itself is installed")


def test_a_file_that_imports_the_library_loads_and_gets_tables(tmp_path: Path):
    (tmp_path / "utils.py").write_text(
        "import datasets\nfrom datasets import Dataset, concatenate_datasets\n"
        "def both(docs: datasets.Dataset) -> datasets.Dataset:\n"
        "    return concatenate_datasets([docs, Dataset.from_dict({'x': [3]})])\n"
    )
    both = load_function("utils.py:both", tmp_path)
    assert both(Documents.from_list([{"x": 1}, {"x": 2}]))["x"] == [1, 2, 3]


def test_nothing_stands_in_afterwards():
    with stand_ins():
        import datasets

        assert datasets.Dataset is Documents
    assert "datasets" not in sys.modules
    assert find_spec("datasets") is None


def test_what_needs_the_library_says_so_when_it_is_called(tmp_path: Path):
    (tmp_path / "more.py").write_text(
        "import datasets\nfrom datasets import Features\n"
        "def load(): return datasets.load_dataset('x')\ndef features(): return Features({})\n"
    )
    for name in ("load", "features"):
        with pytest.raises(ConfigError, match=r"datasets\.\w+ needs the library itself"):
            load_function(f"more.py:{name}", tmp_path)()


def test_a_function_that_imports_it_when_it_is_called_gets_tables_too(tmp_path: Path):
    (tmp_path / "utils.py").write_text(
        "def process(docs):\n    import datasets\n    return datasets.Dataset.from_list(list(docs)[:1])\n"
        "def custom(**_):\n    from datasets import Dataset\n"
        "    return {'test': Dataset.from_list([{'x': 5}, {'x': 6}])}\n"
    )
    config = {
        "custom_dataset": FunctionName(f"{tmp_path}/utils.py:custom"),
        "process_docs": FunctionName(f"{tmp_path}/utils.py:process"),
        "test_split": "test",
    }
    assert Splits(config, tmp_path, "benchmark b").evaluated() == [{"x": 5}]
