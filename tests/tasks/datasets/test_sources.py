import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from metrics.errors import ConfigError
from tasks.datasets.config import DatasetConfig
from tasks.datasets.items import check_source, dataset_digest, open_dataset

LOADER = """
def load(n=2, prefix="q"):
    for i in range(n):
        yield {"id": i, "question": f"{prefix}{i}"}

def failing():
    yield {"q": 1}
    raise RuntimeError("the disk is gone")

def broken():
    raise RuntimeError("no such table")

def single():
    return {"q": 1}

def nothing():
    return []

def strange():
    return [{"q": object()}]

def of_numpy():
    import numpy
    return [{"ground_truth": numpy.float64(1.5), "n": [numpy.int64(2)], "s": numpy.str_("t")}]

def of_enums():
    import enum
    class Kind(str, enum.Enum):
        EASY = "easy"
    return [{"ground_truth": Kind.EASY, "n": [enum.IntEnum("Level", "LOW").LOW]}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loader.py").write_text(LOADER)
    return tmp_path


def test_a_function_gives_the_items(folder: Path) -> None:
    config = DatasetConfig(function="loader.py:load", params={"n": 3, "prefix": "p"})
    assert [item.data["question"] for item in open_dataset(config, folder)] == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    ("name", "truth", "data"),
    [("of_numpy", 1.5, {"n": [2], "s": "t"}), ("of_enums", "easy", {"n": [1]})],
)
def test_numbers_and_texts_of_a_class_of_their_own_are_plain(
    folder: Path, name: str, truth: Any, data: Any
) -> None:
    (item,) = open_dataset(DatasetConfig(function=f"loader.py:{name}"), folder)
    found = {key: item.data[key] for key in data}
    assert (item.ground_truth, type(item.ground_truth)) == (truth, type(truth))
    assert (found, type(found["n"][0])) == (data, int)
    assert all(type(value) is type(data[key]) for key, value in found.items())


def test_a_functions_name_alone_is_a_dataset(folder: Path) -> None:
    config = DatasetConfig.model_validate("loader.py:load")
    assert [item.item_id for item in open_dataset(config, folder)] == ["0", "1"]


def test_digest_of_a_function_is_of_the_rows_it_returns(folder: Path) -> None:
    two = dataset_digest(DatasetConfig(function="loader.py:load", params={"n": 2}), folder)
    assert two == dataset_digest(DatasetConfig(function="loader.py:load"), folder)
    assert two != dataset_digest(DatasetConfig(function="loader.py:load", params={"n": 3}), folder)


REFUSED = {
    "failing": "dataset loader.py:failing failed at item 2: RuntimeError: the disk is gone",
    "broken": "dataset loader.py:broken failed: RuntimeError: no such table",
    "single": "dataset loader.py:single must return an iterable of items, got a mapping",
    "nothing": "dataset loader.py:nothing holds no items; a dataset needs at least one",
    "strange": "dataset loader.py:strange, item 1: field 'q' is a value of type object, "
    "which JSON can't hold",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loader_that_fails_is_named(folder: Path, name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        list(open_dataset(DatasetConfig(function=f"loader.py:{name}"), folder))
    assert str(refused.value) == REFUSED[name]


def test_a_parameter_that_the_loader_does_not_take_is_refused_before_it_runs(folder: Path) -> None:
    config = DatasetConfig(function="loader.py:load", params={"size": 3})
    with pytest.raises(ConfigError) as refused:
        check_source(config, folder)
    expected = "dataset loader.py:load can't be called with size: got an unexpected keyword argument 'size'"
    assert str(refused.value) == expected


def test_a_hub_without_its_extra_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError) as refused:
        next(open_dataset(DatasetConfig(hub="openai/gsm8k", split="test"), folder))
    expected = "dataset 'openai/gsm8k' comes from a hub, which needs the extra 'hub': pip install -e '.[hub]'"
    assert str(refused.value) == expected


def test_a_hub_is_asked_for_name_split_and_revision(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, dict[str, str]]] = []

    def load_dataset(path: str, **keywords: str) -> list[dict[str, str]]:
        asked.append((path, keywords))
        return [{"question": "2+2?", "answer": "4"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    config = DatasetConfig(
        hub="openai/gsm8k", name="main", split="test", revision="abc", ground_truth="answer"
    )
    (item,) = open_dataset(config, folder)
    assert asked == [("openai/gsm8k", {"name": "main", "split": "test", "revision": "abc"})]
    assert item.ground_truth == "4"


def test_a_hub_that_cannot_be_reached_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(path: str, **keywords: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(ConfigError, match="dataset openai/gsm8k/test of the hub can't be loaded: no route"):
        next(open_dataset(DatasetConfig(hub="openai/gsm8k", split="test"), folder))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "a dataset is one of path, function or hub; found none of them"),
        ({"path": "a.jsonl", "hub": "b"}, "a dataset is one of path, function or hub; found path and hub"),
        (
            {"path": "a.jsonl", "params": {"n": 1}},
            "params: belongs to function, and there is none",
        ),
        (
            {"path": "a.jsonl", "split": "test"},
            "split: belongs to hub, and there is none",
        ),
        ({"hub": "openai/gsm8k"}, "dataset 'openai/gsm8k' of the hub needs a split, such as split: test"),
    ],
)
def test_a_dataset_has_one_source(config: dict, message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        DatasetConfig.model_validate(config)
    assert message in str(refused.value)
