import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tasks.datasets.config import DatasetConfig, DatasetError
from tasks.datasets.item import Item
from tasks.datasets.items import content_digest, dataset_digest, open_dataset, row_places
from tasks.store.schemas import cluster_ways

ROWS = [{"id": "a", "question": "2+2?", "answer": "4"}, {"id": "b", "question": "3+3?", "answer": "6"}]


def write(folder: Path, name: str, rows: list[dict]) -> str:
    path = folder / name
    if name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    elif name.endswith(".json"):
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif name.endswith(".csv"):
        lines = [",".join(rows[0])] + [",".join(f'"{value}"' for value in row.values()) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return name


def read(folder: Path, config: str | dict, cluster: Any = None) -> list[Item]:
    return list(open_dataset(DatasetConfig.model_validate(config), folder, cluster))


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_every_format_yields_the_same_items(tmp_path: Path, suffix: str) -> None:
    items = read(tmp_path, {"path": write(tmp_path, f"x.{suffix}", ROWS), "ground_truth": "answer"})
    assert [(item.item_id, item.doc_id, item.data["question"], item.ground_truth) for item in items] == [
        ("a", 0, "2+2?", "4"),
        ("b", 1, "3+3?", "6"),
    ]


def test_nested_rows_hold_their_data_under_data_and_keep_what_stands_beside_it(tmp_path: Path) -> None:
    rows = [{"id": 7, "data": {"question": "2+2?"}, "ground_truth": ["4", "four"], "source": "book"}]
    (item,) = read(tmp_path, write(tmp_path, "x.jsonl", rows))
    assert item == Item("7", 0, {"source": "book", "question": "2+2?"}, ["4", "four"])


def test_flat_rows_keep_every_field(tmp_path: Path) -> None:
    (item,) = read(tmp_path, write(tmp_path, "x.jsonl", [{"id": "a", "q": "x", "ground_truth": 4}]))
    assert item == Item("a", 0, {"id": "a", "q": "x", "ground_truth": 4}, 4)


def test_named_fields_may_be_dotted_paths_into_the_row(tmp_path: Path) -> None:
    name = write(tmp_path, "x.jsonl", [{"meta": {"key": 3}, "answers": {"text": ["yes", "no"]}}])
    (item,) = read(tmp_path, {"path": name, "id": "meta.key", "ground_truth": "answers.text.0"})
    assert (item.item_id, item.ground_truth) == ("3", "yes")


def test_an_id_is_derived_from_the_content_and_from_nothing_else(tmp_path: Path) -> None:
    first = read(tmp_path, write(tmp_path, "x.jsonl", [{"q": "one"}, {"q": "two"}]))
    second = read(tmp_path, write(tmp_path, "y.jsonl", [{"q": "two"}, {"q": "three"}, {"q": "one"}]))
    assert first[0].item_id == second[2].item_id
    assert first[1].item_id == second[0].item_id
    assert len({item.item_id for item in second}) == 3


def test_cluster_is_the_text_of_a_field(tmp_path: Path) -> None:
    name = write(tmp_path, "x.jsonl", [{"q": "a", "passage": {"id": 4}}, {"q": "b", "passage": {"id": "4"}}])
    assert [item.cluster for item in read(tmp_path, name, "passage.id")] == ["4", "4"]


def test_values_that_json_lacks_become_the_text_a_prompt_would_show(tmp_path: Path) -> None:
    import datetime
    import decimal

    row = {
        "day": datetime.date(2024, 2, 29),
        "price": decimal.Decimal("1.50"),
        "score": float("nan"),
        "image": b"\x00\xff",
        "parts": [{"n": 1}],
    }
    (item,) = read(tmp_path, write(tmp_path, "x.parquet", [row]))
    assert item.data == {
        "day": "2024-02-29",
        "price": "1.50",
        "score": None,
        "image": "AP8=",
        "parts": [{"n": 1}],
    }


def test_integers_beyond_64_bits_are_kept_digit_by_digit(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"n": 123456789012345678901234567890}\n')
    assert read(tmp_path, "x.jsonl")[0].data["n"] == "123456789012345678901234567890"


def test_a_byte_order_mark_and_blank_lines_are_no_items(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'\xef\xbb\xbf{"q": "\xc3\xa4"}\n\n   \n{"q": "b"}')
    assert [item.data["q"] for item in read(tmp_path, "x.jsonl")] == ["ä", "b"]


def test_csv_fields_may_hold_line_breaks_and_long_documents(tmp_path: Path) -> None:
    document = "word " * 50_000
    (tmp_path / "x.csv").write_text(f'q,text\none,"a\nb"\ntwo,"{document}"\n')
    assert [item.data["text"] for item in read(tmp_path, "x.csv")] == ["a\nb", document]


def test_rows_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"q": 1}\n{"q": 2}\nnot json\n')
    items = open_dataset(DatasetConfig(path="x.jsonl"), tmp_path)
    assert next(items).data == {"q": 1}
    assert next(items).data == {"q": 2}
    with pytest.raises(DatasetError):
        next(items)


REFUSED = {
    "malformed line": (
        "x.jsonl",
        '{"q": 1}\n{"q": \n{"q": 3}\n',
        "x.jsonl:2: malformed JSON at column 6: Expecting value",
    ),
    "not a number of JSON": (
        "x.jsonl",
        '{"q": NaN}\n',
        "x.jsonl:1: malformed JSON: NaN is not a JSON value; write null",
    ),
    "not UTF-8": (
        "x.jsonl",
        b'{"q": "\xff"}\n',
        "x.jsonl:1: is not UTF-8 (byte 0xff); save the file as UTF-8, or name its encoding: "
        "{path: …, encoding: cp1252}",
    ),
    "not UTF-8 in a table": (
        "x.csv",
        b"q,a\n1,2\n\xe9,3\n",
        "x.csv:3: is not UTF-8 (byte 0xe9); save the file as UTF-8, or name its encoding: "
        "{path: …, encoding: cp1252}",
    ),
    "semicolons": (
        "x.csv",
        "q;a\n1;2\n",
        "x.csv:1: the header has no comma, and 1 times ';'; if that parts the columns, say so: "
        "{path: …, delimiter: ';'}",
    ),
    "several": (
        "x.jsonl",
        '{"id": 1}\n{\n{"id": 2}\n[]\n{"id": 1}\n',
        "x.jsonl:2: malformed JSON at column 2: Expecting property name enclosed in double quotes\n"
        "x.jsonl:4: an item is a mapping of fields, got a list\n"
        "x.jsonl:5: item id '1' was already used at x.jsonl:1; every item needs its own",
    ),
    "many": ("x.csv", "q,a\n" + "1\n" * 30, None),
    "a row that is no mapping": ("x.jsonl", "[1]\n", "x.jsonl:1: an item is a mapping of fields, got a list"),
    "empty": ("x.jsonl", "", "x.jsonl holds no items; a dataset needs at least one"),
    "blank": ("x.jsonl", "\n\n", "x.jsonl holds no items; a dataset needs at least one"),
    "the same id": (
        "x.jsonl",
        '{"id": "a", "q": 1}\n{"id": "b"}\n\n{"id": "a", "q": 2}\n',
        "x.jsonl:4: item id 'a' was already used at x.jsonl:1; every item needs its own",
    ),
    "the same content without ids": (
        "x.jsonl",
        '{"q": 1}\n{"q": 1}\n',
        "x.jsonl:2: the same item stands at x.jsonl:1, and neither has an id; remove one or give both an id",
    ),
    "an id that is no name": (
        "x.jsonl",
        '{"id": 1.5}\n',
        "x.jsonl:1: an id is text or an integer, got a number 1.5",
    ),
    "no list": ("x.json", '{"q": 1}', "x.json: expected a JSON list of items, got a mapping"),
    "malformed file": (
        "x.json",
        '[{"q": 1}\n{"q": 2}]',
        "x.json: malformed JSON at line 2, column 1: Expecting ',' delimiter",
    ),
    "short row": ("x.csv", "q,a\n1,2\n3\n", "x.csv:3: 1 fields, but the header has 2 columns"),
    "column twice": ("x.csv", "q,q\n1,2\n", "x.csv:1: column 'q' stands in the header twice"),
    "unclosed quote": ("x.csv", 'q\n"a\n', "x.csv:2: malformed CSV: unexpected end of data"),
    "not Parquet": ("x.parquet", "text", None),
    "unknown suffix": (
        "x.tsv",
        "q\n",
        "x.tsv: a dataset file ends in .jsonl, .json, .csv, .parquet; got '.tsv'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_dataset_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path, case: str) -> None:
    name, content, message = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DatasetError) as refused:
        read(tmp_path, name)
    if message is not None:
        assert str(refused.value) == message
    assert str(refused.value).startswith(name)


def test_a_missing_file_says_where_it_was_expected(tmp_path: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"^nope\.jsonl is not there: expected a dataset at .*nope\.jsonl$"
    ):
        read(tmp_path, "nope.jsonl")


def test_a_folder_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").mkdir()
    with pytest.raises(DatasetError, match="is a folder, not a file"):
        read(tmp_path, "x.jsonl")


@pytest.mark.parametrize("key", ["id", "ground_truth"])
def test_a_named_field_that_a_row_lacks_is_refused(tmp_path: Path, key: str) -> None:
    name = write(tmp_path, "x.jsonl", ROWS)
    with pytest.raises(DatasetError) as refused:
        read(tmp_path, {"path": name, key: "nope"})
    expected = f"x.jsonl:1: no field 'nope' ({key} in the dataset's config); it has id, question, answer"
    assert str(refused.value).splitlines()[0] == expected
    assert str(refused.value).splitlines()[1].startswith("x.jsonl:2: no field 'nope'")


def test_an_empty_id_is_refused_where_the_config_names_the_field(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"^x\.jsonl:1: the id is empty"):
        read(tmp_path, {"path": write(tmp_path, "x.jsonl", [{"key": "", "q": 1}]), "id": "key"})


def test_two_cluster_fields_make_a_text_that_can_be_told_apart_again(tmp_path: Path) -> None:
    rows = [{"id": n, "question": f"q{n // 2}", "wording": {"id": n % 2}, "answer": 1} for n in range(4)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    clusters = [item.cluster for item in read(tmp_path, "x.jsonl", ("question", "wording.id"))]
    assert [cluster_ways(text) for text in clusters if text] == [
        ("q0", "0"), ("q0", "1"), ("q1", "0"), ("q1", "1"),
    ]  # fmt: skip
    with pytest.raises(DatasetError) as refused:
        read(tmp_path, "x.jsonl", ("question", "passage"))
    assert "no field 'passage' (cluster)" in str(refused.value)


def test_a_cluster_field_that_a_row_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as refused:
        read(tmp_path, write(tmp_path, "x.jsonl", ROWS), "passage")
    lines = str(refused.value).splitlines()
    assert lines[0] == "x.jsonl:1: no field 'passage' (cluster); it has id, question, answer"


def test_digest_changes_with_everything_that_decides_the_items_and_not_with_the_name(tmp_path: Path) -> None:
    base = DatasetConfig(path=write(tmp_path, "x.jsonl", ROWS))
    digest = dataset_digest(base, tmp_path)
    assert dataset_digest(DatasetConfig(path=write(tmp_path, "y.jsonl", ROWS)), tmp_path) == digest
    others = [
        dataset_digest(DatasetConfig(path=write(tmp_path, "z.jsonl", ROWS[:1])), tmp_path),
        dataset_digest(base.model_copy(update={"id": "question"}), tmp_path),
        dataset_digest(base.model_copy(update={"ground_truth": "answer"}), tmp_path),
        dataset_digest(base, tmp_path, cluster="question"),
    ]
    assert len({digest, *others}) == 5


def test_content_digest_leaves_id_and_position_out() -> None:
    assert content_digest(Item("a", 0, {"q": 1}, 2)) == content_digest(Item("b", 9, {"q": 1}, 2))
    assert content_digest(Item("a", 0, {"q": 1}, 2)) != content_digest(Item("a", 0, {"q": 1}, 3))


def test_twenty_mistakes_are_listed_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("q,a\n" + "1\n" * 30)
    with pytest.raises(DatasetError) as refused:
        read(tmp_path, "x.csv")
    lines = str(refused.value).splitlines()
    assert [line.partition(":")[2].partition(":")[0] for line in lines[:20]] == [str(n) for n in range(2, 22)]
    assert lines[20:] == ["x.csv: these are the first 20 mistakes; there may be more"]


@pytest.mark.parametrize(
    ("name", "form", "content"),
    [
        ("x.csv", {"encoding": "cp1252"}, "q,a\nGröße,1\n".encode("cp1252")),
        ("x.csv", {"delimiter": ";"}, "q;a\nGröße;1\n".encode()),
        ("x.csv", {"delimiter": "\t", "encoding": "utf-16"}, "q\ta\nGröße\t1\n".encode("utf-16")),
        ("x.jsonl", {"encoding": "cp1252"}, '{"q": "Größe", "a": "1"}\n'.encode("cp1252")),
        ("x.json", {"encoding": "utf-16"}, '[{"q": "Größe", "a": "1"}]'.encode("utf-16")),
    ],
)
def test_encoding_and_delimiter_are_what_the_config_says(
    tmp_path: Path, name: str, form: dict[str, str], content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    config = DatasetConfig.model_validate({"path": name, **form})
    (item,) = open_dataset(config, tmp_path)
    assert (item.data["q"], str(item.data["a"])) == ("Größe", "1")
    assert dataset_digest(config, tmp_path) != dataset_digest(DatasetConfig(path=name), tmp_path)
    assert row_places(tmp_path / name, [0], config.form)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"path": "x.jsonl", "delimiter": ";"}, "belongs to a .csv file"),
        ({"path": "x.csv", "encoding": "utf8-nonsense"}, "is not known"),
        ({"function": "a.py:b", "encoding": "cp1252"}, "encoding: belongs to path, and there is none"),
        ({"path": "x.parquet", "encoding": "cp1252"}, "belongs to a file of text"),
    ],
)
def test_encoding_and_delimiter_are_checked_with_the_config(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DatasetConfig.model_validate(wrong)
