"""A folder is a dataset whose format and splits its files' names tell."""

import json
from pathlib import Path

import pytest

from tasks.benchmarks.lm_eval.files import dataset_of, folder_at
from tasks.benchmarks.lm_eval.splits import Splits
from tasks.datasets.config import DatasetError


def folder_of(place: Path, *names: str) -> Path:
    for name in names:
        path = place / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"x": name}) + "\n")
    return place / "data"


# What datasets.load_dataset (5.2.0) makes of folders with these files.
@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["test.jsonl", "train.jsonl"], {"test": ["test.jsonl"], "train": ["train.jsonl"]}),
        (["my-dev.jsonl", "eval_1.jsonl"], {"validation": ["my-dev.jsonl"], "test": ["eval_1.jsonl"]}),
        (["a.jsonl", "b.jsonl"], {"train": ["a.jsonl", "b.jsonl"]}),
        (["latest.jsonl", "contested.jsonl"], {"train": ["contested.jsonl", "latest.jsonl"]}),
        (["test/a.jsonl", "training/b.jsonl"], {"test": ["test/a.jsonl"], "train": ["training/b.jsonl"]}),
        (["test/train.jsonl"], {"test": ["test/train.jsonl"]}),
        (["data/odd-00000-of-00001.jsonl"], {"odd": ["data/odd-00000-of-00001.jsonl"]}),
        (["test.jsonl", "README.md", ".hidden.jsonl", "config.json"], {"test": ["test.jsonl"]}),
        (["test.jsonl", "test.csv", "test2.jsonl"], {"test": ["test.jsonl", "test2.jsonl"]}),
    ],
    ids=[
        "names",
        "words",
        "none",
        "parts of words",
        "folders",
        "folders first",
        "shards",
        "no data",
        "formats",
    ],
)
def test_splits_are_those_of_the_library(tmp_path, names, splits):
    folder = folder_of(tmp_path, *names)
    builder, options = dataset_of(folder, {})
    assert builder == "json"
    found = {
        split: [str(Path(name).relative_to(folder)) for name in files]
        for split, files in options["data_files"].items()
    }
    assert found == splits


def test_a_definition_reads_a_folder_beside_it(tmp_path):
    folder_of(tmp_path, "test.jsonl", "sub/one.jsonl", "sub/two.jsonl")
    whole = Splits({"dataset_path": "data", "test_split": "test"}, tmp_path, "b")
    assert whole.evaluated() == [{"x": "test.jsonl"}]
    options = {"data_dir": "sub", "data_files": {"test": "two.jsonl"}}
    part = Splits({"dataset_path": "data", "dataset_kwargs": options, "test_split": "test"}, tmp_path, "b")
    assert part.evaluated() == [{"x": "sub/two.jsonl"}]
    before = whole.source.digest()
    (tmp_path / "data" / "test.jsonl").write_text('{"x": "changed"}\n')
    again = Splits({"dataset_path": "data", "test_split": "test"}, tmp_path, "b")
    assert again.source.digest() != before


def test_a_folder_without_data_says_what_data_are(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(DatasetError, match=r"holds no data files; known are \.parquet"):
        dataset_of(tmp_path / "data", {})
    assert folder_at("org/dataset", tmp_path) is None
