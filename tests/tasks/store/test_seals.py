"""Seals: every byte of a document and of a table is checked."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.store import seals
from tasks.store.seals import Broken, check_table, open_document, proven_groups, seal_document, sealed_table

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", pa.string())])


def table(rows: int = 40, group: int = 10, block: int = 512) -> bytes:
    sink = io.BytesIO()
    with sealed_table(sink, SCHEMA, 2, block, compression="zstd") as writer:
        numbers = list(range(rows))
        given = pa.table({"n": numbers, "text": [f"{n * 7919 % 1009:04d}" * 9 for n in numbers]}, SCHEMA)
        writer.write_table(given, row_group_size=group)
    return sink.getvalue()


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


@pytest.mark.parametrize("document", [{}, {"a": 1}, {"nested": {"b": [1, "x}"]}, "e": "ü"}])
def test_a_sealed_document_comes_back_and_stays_json(document):
    content = json.dumps(document, indent=1, ensure_ascii=False).encode()
    sealed = seal_document(content, 2)
    found, version = open_document(sealed)
    assert (json.loads(found), version) == (document, 2)
    assert {**json.loads(sealed), "nightjar_seal": None} == {**document, "nightjar_seal": None}


def test_what_is_no_json_object_is_not_sealed():
    for content in (b"", b"[1]", b'"text"'):
        with pytest.raises(ValueError, match="expected a JSON object"):
            seal_document(content, 2)


def test_every_flipped_bit_of_a_document_is_damage():
    sealed = seal_document(b'{"run_id": "monday", "rows": 150}', 2)
    for bit in range(8 * len(sealed)):
        with pytest.raises(Broken):
            open_document(flipped(sealed, bit))


def test_a_document_that_was_cut_is_not_taken_for_one():
    sealed = seal_document(b'{"run_id": "monday", "rows": 150}', 2)
    for size in range(len(sealed)):
        try:
            found, _ = open_document(sealed[:size])
        except Broken:
            continue
        with pytest.raises(ValueError, match=r"."):
            json.loads(found)


def test_documents_and_tables_without_a_seal_are_of_a_version_before():
    assert open_document(b'{"a": 1}') == (b'{"a": 1}', None)
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}), sink)
    assert check_table(sink) is None


@pytest.mark.parametrize(("rows", "block"), [(0, 512), (1, 512), (40, 512), (40, 1 << 20), (40, 1)])
def test_a_sealed_table_is_a_plain_parquet_file(rows, block):
    content = table(rows, block=block)
    assert pq.read_table(io.BytesIO(content)).column("n").to_pylist() == list(range(rows))
    assert check_table(io.BytesIO(content)) == 2


def test_every_flipped_bit_of_a_table_is_damage():
    content = table()
    for bit in range(8 * len(content)):
        with pytest.raises(Broken):
            check_table(io.BytesIO(flipped(content, bit)))


def test_a_table_that_was_cut_or_added_to_is_damaged():
    content = table()
    for changed in (*(content[:size] for size in range(0, len(content), 7)), content + b"x", content * 2):
        with pytest.raises(Broken):
            check_table(io.BytesIO(changed))


def test_of_a_damaged_table_the_row_groups_whose_blocks_are_sound_are_proven():
    content = table(rows=400, group=40, block=256)
    middle = len(content) // 3
    damaged = flipped(content, 8 * middle)
    proven, version = proven_groups(io.BytesIO(damaged))
    assert version == 2
    assert 7 <= len(proven) < 10
    with pq.ParquetFile(io.BytesIO(damaged)) as file, pq.ParquetFile(io.BytesIO(content)) as written:
        for group in proven:
            assert file.read_row_group(group).equals(written.read_row_group(group))


def test_of_a_table_with_a_damaged_footer_nothing_is_proven():
    content = table()
    with pytest.raises(Broken):
        proven_groups(io.BytesIO(flipped(content, 8 * (len(content) - 200))))


def test_a_seal_is_not_written_where_arrow_puts_the_footer_elsewhere(monkeypatch):
    monkeypatch.setattr(seals, "_footer_start", lambda _: 7)
    with pytest.raises(RuntimeError, match="footer"):
        table()
