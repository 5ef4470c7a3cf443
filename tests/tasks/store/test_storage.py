"""The store: what is written whole is read whole, and what is damaged is missing."""

import stat
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tasks.store.errors import StoreError
from tasks.store.rows import ROW_GROUP
from tasks.store.schemas import TEXT
from tasks.store.storage import ArtifactMissing, ArtifactRef, Store, store_uri
from tests.loopback import s3_with_bucket

SCHEMA = pa.schema([pa.field("n", pa.int64()), pa.field("text", TEXT)])
KEY = "ab" * 32


def batches(n: int, size: int) -> list[pa.RecordBatch]:
    rows = [{"n": i, "text": f"text {i % 7}"} for i in range(n)]
    return [pa.RecordBatch.from_pylist(rows[at : at + size], schema=SCHEMA) for at in range(0, n, size)]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}-{request.param}")


def test_rows_come_back_in_order(store: Store) -> None:
    ref = store.write("score", KEY, SCHEMA, batches(1_000, 64))
    assert ref.rows == 1_000
    assert [n for batch in store.batches(ref, ["n"]) for n in batch.column("n").to_pylist()] == list(
        range(1_000)
    )


def test_bytes_depend_on_the_rows_and_not_on_the_batches(store: Store) -> None:
    digests = {store.write("score", KEY, SCHEMA, batches(500, size)).digest for size in (1, 33, 500)}
    assert len(digests) == 1


@pytest.mark.parametrize(("start", "stop"), [(0, 10), (5, ROW_GROUP + 5), (ROW_GROUP, ROW_GROUP + 1), (7, 7)])
def test_range_reads_those_rows(tmp_path: Path, start: int, stop: int) -> None:
    store = Store(str(tmp_path))
    ref = store.write("load", KEY, SCHEMA, batches(ROW_GROUP + 100, 5_000))
    found = [
        n for batch in store.batches(ref, ["n"], rows=(start, stop)) for n in batch.column("n").to_pylist()
    ]
    assert found == list(range(start, stop))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("s3://bucket//prefix", "s3://bucket/prefix"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3://bucket/", "s3://bucket"),
        ("gs://bucket/a//b", "gs://bucket/a//b"),
        ("sftp://user@host//data", "sftp://user@host/data"),
        ("memory://", "memory://"),
        ("file:///data/", "/data"),
        ("~/store", str(Path.home() / "store")),
        ("store", str(Path.cwd() / "store")),
        ("/", "/"),
    ],
)
def test_a_store_has_one_name_however_it_is_written(given: str, meant: str) -> None:
    assert store_uri(given) == meant
    assert store_uri(meant) == meant


def test_a_prefix_after_two_slashes_is_found_in_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    server = s3_with_bucket(monkeypatch)
    try:
        Store("s3://nightjar//two").put_bytes("score/x.parquet", b"1")
        assert Store("s3://nightjar//two").names("score", ".parquet") == ["x"]
        assert Store("s3://nightjar/two/").names("score", ".parquet") == ["x"]
    finally:
        server.stop()


def test_missing_artifact_is_missing(store: Store) -> None:
    ref = ArtifactRef(kind="score", key=KEY, digest="0" * 64, rows=1, bytes=1)
    assert not store.holds(ref)
    with pytest.raises(ArtifactMissing, match="is gone"):
        store.table(ref)


def test_altered_artifact_is_missing_and_out_of_the_way(tmp_path: Path) -> None:
    ref = Store(str(tmp_path)).write("score", KEY, SCHEMA, batches(100, 100))
    path = tmp_path / ref.name
    changed = bytearray(path.read_bytes())
    changed[40] ^= 1
    path.write_bytes(bytes(changed))
    fresh = Store(str(tmp_path))
    assert not fresh.holds(ref)
    assert not path.exists()


@pytest.mark.parametrize("place", ["local", "memory"])
@pytest.mark.parametrize("pattern", ["runs*", "runs[1]", "run?-other"])
def test_what_is_set_aside_is_one_file_of_this_store(tmp_path: Path, place: str, pattern: str) -> None:
    root = str(tmp_path) if place == "local" else f"memory://{tmp_path.name}"
    meant, other, like = (Store(f"{root}/{name}") for name in (pattern, "runs-other", "runs1"))
    for store in (meant, other, like):
        store.put_bytes("score/x.parquet", b"1")
    meant.set_aside("score/x.parquet")
    assert [entry.name for entry in meant.all_entries()] == ["score/x.parquet.damaged"]
    for store in (other, like):
        assert [entry.name for entry in store.all_entries()] == ["score/x.parquet"]


def test_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> object:
        yield batches(10, 10)[0]
        raise ZeroDivisionError

    store = Store(str(tmp_path))
    with pytest.raises(ZeroDivisionError):
        store.write("score", KEY, SCHEMA, failing())  # type: ignore[arg-type]
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_on_its_way_to_an_object_store_is_this_user_s_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen, put = Store(f"memory://{tmp_path.name}-modes"), [], MemoryFileSystem.put_file

    def putting(fs: MemoryFileSystem, local: str, *rest: object, **options: object) -> None:
        seen.append(
            (Path(local), stat.S_IMODE(Path(local).stat().st_mode), Path(local).parent.stat().st_mode)
        )
        put(fs, local, *rest, **options)

    monkeypatch.setattr(MemoryFileSystem, "put_file", putting)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", "")
    monkeypatch.setattr(tempfile, "tempdir", None)
    store.put_document("document.json", b'{"a": "an answer"}')
    store.write("score", KEY, SCHEMA, batches(10, 10))
    assert [(mode, stat.S_IMODE(folder)) for _, mode, folder in seen] == [(0o600, 0o700)] * 2
    assert not any(path.exists() or tmp_path in path.parents for path, *_ in seen)


def test_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match="can't create"):
        Store(str(tmp_path / "file")).write("score", KEY, SCHEMA, batches(1, 1))


def test_store_of_an_unknown_kind_says_so() -> None:
    with pytest.raises(StoreError, match=r"nope://bucket.*nope"):
        Store("nope://bucket")


@pytest.mark.parametrize(
    "uri", ["sftp://me:hunter2@host/data", "sftp://me:hunter2/x@host/data", "sftp://:hunter2@host/data"]
)
def test_a_store_with_a_password_in_its_uri_is_refused_and_does_not_show_it(uri: str) -> None:
    with pytest.raises(StoreError, match=r"@host/data.*FSSPEC_SFTP_PASSWORD") as refused:
        Store(uri)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("uri", ["sftp://me@host:22/a@b", "sftp://host:22/a@b", "abfs://box@account.net/p"])
def test_a_user_and_a_port_are_no_password(uri: str) -> None:
    assert store_uri(uri) == uri


def test_errors_of_an_object_store_name_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCredentials(Exception):
        """As botocore's: no OSError."""

    def refuse(*_: object) -> None:
        raise NoCredentials("unable to locate credentials")

    store = Store(f"memory://{tmp_path.name}")
    monkeypatch.setattr(store.fs, "put_file", refuse)
    monkeypatch.setattr(store.fs, "exists", refuse)
    for check in (store.check_writable, store.check_readable):
        with pytest.raises(StoreError, match=r"memory://.*unable to locate credentials"):
            check()
