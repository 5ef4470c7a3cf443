"""Files that are not what they should be: each is refused with a sentence that names the place."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrics.errors import ConfigError, DataError
from tasks.benchmarks.lm_eval.documents import document_items
from tasks.benchmarks.lm_eval.files import folder_at, load_local
from tasks.datasets.config import DatasetConfig, DatasetError
from tasks.datasets.items import dataset_digest, open_dataset
from tasks.models.config import ModelConfig
from tasks.models.identity import model_identity
from tasks.models.providers.recordings import recording_file

GOOD = b'{"question": "q", "answer": "a"}\n'


def nested(depth: int) -> bytes:
    return b'{"question": ' + b"[" * depth + b"]" * depth + b"}"


LINES = [
    (b'{"question": "cut \\ud83d"}', "data.jsonl:2: field 'question' holds half of a character"),
    (b'{"que\\ud83d": "q"}', "data.jsonl:2: a field's name holds half of a character"),
    (b'{"question": {"a": ["\\udc00"]}}', "data.jsonl:2: field 'question' holds half of a character"),
    (nested(250), "data.jsonl:2: field 'question': lists or mappings stand more than 200 deep"),
    (nested(200_000), "data.jsonl:2: malformed JSON: lists or mappings nested far too deep"),
    (
        b'{"question": "q", "question": "p"}',
        "data.jsonl:2: malformed JSON: the key 'question' is there twice",
    ),
    (b'{"question": {"a": 1, "a": 1}}', "data.jsonl:2: malformed JSON: the key 'a' is there twice"),
    (b'{"question": "\xff"}', "data.jsonl:2: is not UTF-8"),
    (b'{"question": ' + b"9" * 5000 + b"}", "data.jsonl:2: malformed JSON: "),
    (b'{"question": 1e999}', "data.jsonl:2: field 'question' is infinite"),
    (b"\x00", "data.jsonl:2: malformed JSON"),
]


@pytest.mark.parametrize(("line", "said"), LINES)
def test_a_line_is_refused_with_its_place(tmp_path: Path, line: bytes, said: str) -> None:
    (tmp_path / "data.jsonl").write_bytes(GOOD + line + b"\n")
    with pytest.raises(DatasetError) as refused:
        list(open_dataset(DatasetConfig(path="data.jsonl"), tmp_path))
    assert str(refused.value).startswith(said)
    assert len(str(refused.value)) < 400


def test_deep_nesting_is_taken_up_to_a_depth(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_bytes(nested(199))
    (item,) = open_dataset(DatasetConfig(path="data.jsonl"), tmp_path)
    assert item.item_id


def table(**columns: pa.Array) -> pa.Table:
    return pa.table(columns)


def text(raw: bytes) -> pa.Array:
    """A column of text whose second row is these bytes."""
    return pa.array([b"fine", raw], pa.binary()).view(pa.string())


def moments(*numbers: int, unit: str = "us", zone: str | None = None) -> pa.Array:
    return pa.array(numbers, pa.int64()).cast(pa.timestamp(unit, tz=zone))


COLUMNS = [
    (moments(0, 2**58, unit="ms"), 2),
    (moments(0, -(2**62), zone="UTC"), 2),
    (moments(0, 1, zone="Mars/Olympus"), 1),
    (text(b"\xff\xfe"), 2),
]


@pytest.mark.parametrize(("column", "row"), COLUMNS)
def test_a_parquet_value_that_python_lacks_is_refused_with_its_row(tmp_path, column, row) -> None:
    pq.write_table(table(question=pa.array(["p", "q"]), when=column), tmp_path / "data.parquet")
    with pytest.raises(DatasetError) as refused:
        list(open_dataset(DatasetConfig(path="data.parquet"), tmp_path))
    assert str(refused.value).startswith(f"data.parquet, row {row}: field 'when'")


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["q", "q"])
    pq.write_table(twice, tmp_path / "data.parquet")
    (tmp_path / "data.csv").write_text("q,r,q\n1,2,3\n")
    for name in ("data.parquet", "data.csv"):
        with pytest.raises(DatasetError, match="column 'q' stands in the header twice"):
            list(open_dataset(DatasetConfig(path=name), tmp_path))


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
def test_a_line_of_twenty_megabytes_is_read(tmp_path: Path, suffix: str) -> None:
    long = "x" * 20_000_000
    row = json.dumps({"question": long, "answer": "a"})
    wide = ",".join(f"c{number}" for number in range(200_000))
    text = {"jsonl": row, "json": f"[{row}]", "csv": f"question,{wide}\n{long},{wide}"}[suffix]
    (tmp_path / f"data.{suffix}").write_text(text)
    (item,) = open_dataset(DatasetConfig(path=f"data.{suffix}"), tmp_path)
    assert len(item.data["question"]) == 20_000_000


HARNESS = [
    ("json", b'{"q": "\xff"}', "data.json can't be read as json"),
    ("json", b"[" * 200_000, "data.json: lists or mappings nested far too deep"),
    ("json", b'{"q": "\\ud83d"}', "can't be"),
    ("csv", b"q,r\n\xff,1\n", "data.csv can't be read as csv"),
    ("parquet", b"PAR1", "data.parquet can't be read as parquet"),
]


@pytest.mark.parametrize(("builder", "content", "said"), HARNESS)
def test_a_harness_benchmarks_file_is_refused_in_a_sentence(tmp_path, builder, content, said) -> None:
    (tmp_path / f"data.{builder}").write_bytes(content)

    def read() -> None:
        splits = load_local(builder, {"data_files": {"test": f"data.{builder}"}}, tmp_path)
        list(document_items(iter(splits["test"]), None, "benchmark b"))

    with pytest.raises(DatasetError) as refused:
        read()
    assert said in str(refused.value)


def test_a_harness_benchmarks_row_is_refused_with_its_file(tmp_path: Path) -> None:
    pq.write_table(table(when=moments(0, 2**58, unit="ms")), tmp_path / "data.parquet")
    with pytest.raises(DatasetError, match=r"^data\.parquet, row 2: field 'when'"):
        load_local("parquet", {"data_files": {"test": "data.parquet"}}, tmp_path)


@pytest.mark.parametrize("files", [True, 3, [True], [["a"]], {"test": 1}, {"test": {"a": 1}}], ids=str)
def test_data_files_that_name_no_files_are_refused(tmp_path: Path, files: object) -> None:
    with pytest.raises(ConfigError, match="data_files: expected a file, a list of files, or these by split"):
        load_local("json", {"data_files": files}, tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "x" * 5000, "a\0b"], ids=["300", "5000", "zero"])
def test_what_can_be_no_files_name_is_not_there(tmp_path: Path, name: str) -> None:
    config = DatasetConfig(path=f"{name}.jsonl")
    for ask in (lambda: list(open_dataset(config, tmp_path)), lambda: dataset_digest(config, tmp_path)):
        with pytest.raises(DatasetError, match="is not there: expected a dataset at"):
            ask()
    assert folder_at(name, tmp_path) is None
    recorded = ModelConfig.model_validate({"name": "r", "type": "replay", "config": {"path": name}})
    with pytest.raises(ConfigError, match="can't read recorded responses"):
        model_identity(recorded, tmp_path)
    with pytest.raises(DataError, match="can't read recorded responses"):
        recording_file(tmp_path / name)


def test_a_file_that_can_not_be_read_is_refused_before_its_rows(tmp_path: Path) -> None:
    unreadable = Path("/proc/self/mem")  # even by root
    if not unreadable.exists():
        pytest.skip("needs /proc")
    with pytest.raises(DatasetError, match=r"mem can't be read: .* \(/proc/self/mem\)"):
        dataset_digest(DatasetConfig(path=str(unreadable)), tmp_path)
