"""Rows of local files are those that ``datasets`` reads: types by Arrow for JSON, by pandas for CSV."""

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metrics.errors import ConfigError
from tasks.benchmarks.lm_eval.documents import json_value
from tasks.benchmarks.lm_eval.files import load_local, read_csv
from tasks.datasets.config import DatasetError


def rows(builder: str, folder: Path, data_files: Any, **options: Any) -> dict[str, list[dict[str, Any]]]:
    splits = load_local(builder, {"data_files": data_files, **options}, folder)
    return {name: docs.to_list() for name, docs in splits.items()}


def lines(path: Path, *values: Any) -> None:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")


def test_fields_that_a_line_lacks_are_none_and_numbers_are_of_one_type(tmp_path):
    lines(tmp_path / "a.jsonl", {"x": 1, "y": "a"}, {"x": 2.5}, {"z": [1]})
    assert rows("json", tmp_path, "a.jsonl")["train"] == [
        {"x": 1.0, "y": "a", "z": None},
        {"x": 2.5, "y": None, "z": None},
        {"x": None, "y": None, "z": [1]},
    ]


def test_values_without_a_common_type_stay_as_they_were(tmp_path):
    lines(
        tmp_path / "a.jsonl",
        {"x": 1, "d": {"k": 1}},
        {"x": "one", "d": {"other": [2]}},
        {"x": None, "d": None},
    )
    assert rows("json", tmp_path, "a.jsonl")["train"] == [
        {"x": 1, "d": {"k": 1}},
        {"x": "one", "d": {"other": [2]}},
        {"x": None, "d": None},
    ]


def test_mixed_values_inside_lists_stay_as_they_were(tmp_path):
    lines(tmp_path / "a.jsonl", {"l": [{"a": 1}, {"b": 2}]}, {"l": [{"a": "x"}]})
    assert rows("json", tmp_path, "a.jsonl")["train"] == [{"l": [{"a": 1}, {"b": 2}]}, {"l": [{"a": "x"}]}]


def test_dates_are_shown_as_a_template_shows_them(tmp_path):
    lines(tmp_path / "a.jsonl", {"d": "2020-01-02"}, {"d": "2021-03-04T05:06:07"})
    values = [json_value(row)["d"] for row in rows("json", tmp_path, "a.jsonl")["train"]]
    assert values == ["2020-01-02 00:00:00", "2021-03-04 05:06:07"]


def test_a_list_of_objects_of_texts_or_one_field_are_rows(tmp_path):
    (tmp_path / "a.json").write_text('[{"x": 1},\n {"x": 2}]')
    (tmp_path / "b.json").write_text('["one", "two"]')
    (tmp_path / "c.json").write_text('{"version": 1,\n "data": [{"x": 3}]}')
    assert rows("json", tmp_path, "a.json")["train"] == [{"x": 1}, {"x": 2}]
    assert rows("json", tmp_path, "b.json")["train"] == [{"text": "one"}, {"text": "two"}]
    assert rows("json", tmp_path, "c.json", field="data")["train"] == [{"x": 3}]


def test_splits_lists_patterns_and_compressed_files(tmp_path):
    lines(tmp_path / "p1.jsonl", {"x": 1})
    lines(tmp_path / "p2.jsonl", {"x": 2})
    (tmp_path / "z.jsonl.gz").write_bytes(gzip.compress(b'{"x": 3}\n'))
    found = rows(
        "json", tmp_path, {"test": "p*.jsonl", "train": ["z.jsonl.gz", "p1.jsonl"]}, trust_remote_code=True
    )
    assert found == {"test": [{"x": 1}, {"x": 2}], "train": [{"x": 3}, {"x": 1}]}


def test_columns_are_those_of_the_first_file(tmp_path):
    lines(tmp_path / "a.jsonl", {"x": 1, "y": "a"})
    lines(tmp_path / "b.jsonl", {"x": 2})
    lines(tmp_path / "c.jsonl", {"x": 2, "extra": 1})
    assert rows("json", tmp_path, {"train": "a.jsonl", "test": "b.jsonl"})["test"] == [{"x": 2, "y": None}]
    with pytest.raises(
        DatasetError, match="has the column 'extra', which the dataset's first file does not have"
    ):
        rows("json", tmp_path, {"train": "a.jsonl", "test": "c.jsonl"})


CSV = [
    "a,b,c\n1,2.5,x\n2,,y\n",
    "n\n1\n\n3\n",
    "flag,other\nTrue,1e3\nfalse,NA\n",
    'flag\nTrue\n""\n',
    "q\n\"two\nlines\"\n'single'\n",
    "mixed\n1\nx\n",
    "big\n18446744073709551615\n1\n",
    "same,same,\n1,2,3\n",
    "short,row\n1\n2,3\n",
    "empty,x\n,1\n,2\n",
    "inf\ninf\n-inf\n",
    "space\n 1\n2 \n",
    "nulls\nNone\nnull\nN/A\nreal\n",
    'text\n"NA"\nx\n',
]


@pytest.mark.parametrize("text", CSV)
def test_csv_is_typed_as_pandas_types_it(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(text)
    frame = pd.read_csv(path)
    expected = pa.Table.from_pandas(frame, preserve_index=False).to_pylist()
    assert read_csv(path.read_bytes(), {}).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a;b\n1;2\n", {"delimiter": ";"}, [{"a": 1, "b": 2}]),
        ("1\tx\n", {"sep": "\t", "column_names": ["n", "s"]}, [{"n": 1, "s": "x"}]),
        ("h\n1\n", {"names": ["n"], "header": 0}, [{"n": 1}]),
        ("1,2\n", {"header": None}, [{"0": 1, "1": 2}]),
        ("a\nNA\n", {"keep_default_na": False}, [{"a": "NA"}]),
    ],
)
def test_options_of_csv(text, options, expected):
    assert read_csv(text.encode(), options).to_pylist() == expected


def test_parquet_and_text(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "d": [{"k": "v"}, None]}), tmp_path / "a.parquet")
    (tmp_path / "a.txt").write_text("one\n\nthree\n")
    assert rows("parquet", tmp_path, "a.parquet")["train"] == [{"x": 1, "d": {"k": "v"}}, {"x": 2, "d": None}]
    assert rows("text", tmp_path, "a.txt")["train"] == [{"text": "one"}, {"text": ""}, {"text": "three"}]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["a\u2028b\x85c", "\x0cd", "", "e"]),
        ({"keep_linebreaks": True}, ["a\u2028b\x85c\n", "\x0cd\n", "\n", "e\n"]),
        ({"sample_by": "paragraph"}, ["a\u2028b\x85c\n\x0cd", "e\n"]),
        ({"sample_by": "document"}, ["a\u2028b\x85c\n\x0cd\n\ne\n"]),
    ],
)
def test_lines_of_text_end_as_those_of_a_file_that_python_opens(tmp_path, options, expected):
    (tmp_path / "a.txt").write_bytes("a\u2028b\x85c\r\n\x0cd\r\n\r\ne\r".encode())
    assert [row["text"] for row in rows("text", tmp_path, "a.txt", **options)["train"]] == expected


@pytest.mark.parametrize(
    ("builder", "files", "options", "error", "message"),
    [
        ("json", "gone.jsonl", {}, DatasetError, r"data file 'gone\.jsonl' is not in "),
        ("json", None, {}, ConfigError, "needs dataset_kwargs.data_files"),
        (
            "json",
            "bad.jsonl",
            {},
            DatasetError,
            r"bad\.jsonl can't be read as json: malformed JSON at line 2",
        ),
        (
            "json",
            "bad.jsonl",
            {"lines": True},
            ConfigError,
            "dataset_kwargs.lines of dataset_path json is not supported",
        ),
        ("json", "ok.json", {"field": "x"}, DatasetError, "there is no field 'x'"),
        ("csv", "wide.csv", {}, DatasetError, "row 2 has 3 fields, and there are 2 columns"),
        (
            "csv",
            "wide.csv",
            {"engine": "c"},
            ConfigError,
            "dataset_kwargs.engine of dataset_path csv is not supported",
        ),
        ("parquet", "bad.jsonl", {}, DatasetError, r"bad\.jsonl can't be read as parquet"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, builder, files, options, error, message):
    (tmp_path / "bad.jsonl").write_text('{"x": \n')
    (tmp_path / "ok.json").write_text('{"y": []}')
    (tmp_path / "wide.csv").write_text("a,b\n1,2,3\n")
    with pytest.raises(error, match=message):
        rows(builder, tmp_path, files, **options)
