"""A backend's errors are the store's own, and a store that is away costs time only."""

import errno
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from fsspec import AbstractFileSystem

from tasks.models.answers.segments import AnswerStore
from tasks.models.records import KeptAnswer
from tasks.store import claims, errors
from tasks.store.claims import Claim, Watch
from tasks.store.errors import FileMissing, StoreError, StoreUnavailable, is_passing
from tasks.store.storage import Store
from tests.loopback import s3_with_bucket


class EndpointConnectionError(Exception):
    """As botocore's: no OSError."""


class NoCredentialsError(Exception):
    """As botocore's, too."""


class FlexibleChecksumError(Exception):
    """As botocore's: a proxy cut the body, and says that this is its length."""


class ServerError(Exception):
    """As botocore's ClientError: the status is in the response."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class HttpError(Exception):
    """As gcsfs's: the status is its code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"status {code}")
        self.code = code


PASSING = [
    EndpointConnectionError("no such endpoint"),
    FlexibleChecksumError("expected checksum a did not match calculated checksum b"),
    ConnectionRefusedError(),
    TimeoutError(),
    OSError(errno.EBUSY, "slow down"),
    OSError(errno.EIO, "we encountered an internal error"),
    OSError(errno.ESTALE, "stale handle"),
    ServerError(503),
    HttpError(429),
]
LASTING = [
    NoCredentialsError("unable to locate credentials"),
    PermissionError(errno.EACCES, "access denied"),
    OSError(errno.ENOSPC, "no space left on device"),
    ServerError(403),
    HttpError(400),
    ValueError("a mistake of ours"),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds."""
    monkeypatch.setattr(errors, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(errors, "_LONGEST_PAUSE", 0.02)


@pytest.fixture
def store() -> Iterator[Store]:
    remote = Store(f"memory://boundary-{uuid4().hex}")
    yield remote
    if remote.fs.exists(remote.root):
        remote.fs.rm(remote.root, recursive=True)


def failing(real: Callable[..., Any], error: Exception, times: float) -> Callable[..., Any]:
    """The function, which fails for so many calls first; ``calls`` counts them."""

    def call(*arguments: Any, **options: Any) -> Any:
        call.calls += 1  # type: ignore[attr-defined]
        if call.calls <= times:  # type: ignore[attr-defined]
            raise error
        return real(*arguments, **options)

    call.calls = 0  # type: ignore[attr-defined]
    return call


def ident(error: Exception) -> str:
    return f"{type(error).__name__} {error}"


@pytest.mark.parametrize("error", PASSING, ids=ident)
def test_a_passing_error_is_waited_for_and_named(
    store: Store, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.put_document("runs/a.json", b'{"a": 1}')
    monkeypatch.setattr(store.fs, "cat_file", failing(store.fs.cat_file, error, 3))
    assert store.document("runs/a.json") == b'{"a": 1}'
    first, last = [record.getMessage() for record in caplog.records]
    assert f"store {store.uri}: can't read runs/a.json: " in first
    assert "trying again for up to 300 s more" in first
    assert f"store {store.uri} answers again" in last


@pytest.mark.parametrize("error", LASTING, ids=ident)
def test_a_lasting_error_ends_at_once_and_names_the_store(
    store: Store, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = failing(store.fs.put_file, error, 9)
    monkeypatch.setattr(store.fs, "put_file", put)
    with pytest.raises(StoreError, match=r"store memory://.*: can't write runs/a\.json: ") as raised:
        store.put_document("runs/a.json", b"{}")
    assert not isinstance(raised.value, StoreUnavailable)
    assert put.calls == 1


def test_a_bucket_that_is_not_there_is_no_missing_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    error = FileNotFoundError("The specified bucket does not exist")
    monkeypatch.setattr(store.fs, "put_file", failing(store.fs.put_file, error, 9))
    said = (
        r"can't write runs/a\.json: there is no such bucket or folder \(.*The specified bucket does not exist"
    )
    with pytest.raises(StoreError, match=said) as raised:
        store.put_document("runs/a.json", b"{}")
    assert not isinstance(raised.value, FileMissing)


@pytest.mark.parametrize(
    "error", [OSError(errno.EINVAL, "Bad Request"), PermissionError(errno.EACCES, "Forbidden")], ids=ident
)
def test_a_refusal_without_a_word_asks_for_the_credentials(
    store: Store, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to a look-up has no body that could say that they have expired."""
    monkeypatch.setattr(store.fs, "cat_file", failing(store.fs.cat_file, error, 9))
    said = (
        rf"can't read runs/a\.json: {error.strerror} \(are the credentials valid, and allowed to do this\?\)"
    )
    with pytest.raises(StoreError, match=said):
        store.read("runs/a.json")


def test_a_store_that_stays_away_is_unavailable_after_a_while(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "PATIENCE", 0.1)
    put = failing(store.fs.put_file, EndpointConnectionError("gone"), float("inf"))
    monkeypatch.setattr(store.fs, "put_file", put)
    with pytest.raises(StoreUnavailable, match="EndpointConnectionError: gone"):
        store.put_document("runs/a.json", b"{}")
    assert put.calls > 2


def test_an_input_output_error_of_a_disk_is_not_waited_for() -> None:
    assert not is_passing(OSError(errno.EIO, "input/output error"), local=True)


def test_a_file_that_is_not_there_is_missing(store: Store) -> None:
    for ask in (store.read, store.document, store.size, store.checked):
        with pytest.raises(FileMissing, match=r"runs/a\.json is not there"):
            ask("runs/a.json")
    assert store.names("runs", ".json") == []


@pytest.mark.parametrize("name", ["runs/a.json", f"media/{'a' * 300}"])
def test_what_can_be_no_file_of_a_disk_is_missing(tmp_path: Path, name: str) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")
    store = Store(str(tmp_path))
    assert not store.exists(name)
    for ask in (store.read, store.document, store.size):
        with pytest.raises(FileMissing, match="is not there"):
            ask(name)


def test_a_store_that_is_away_is_not_taken_for_an_empty_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a backend of fsspec says by default of a file that it can't look up: that there is none."""
    store.put_bytes("runs/old.json", b"{}")
    monkeypatch.setattr(store.fs, "exists", partial(AbstractFileSystem.exists, store.fs))
    monkeypatch.setattr(store.fs, "info", failing(store.fs.info, ConnectionResetError(), 8))
    store.mark_format()
    assert json.loads(store.read("format.json"))["unsealed"], "its old files have no seals"
    assert store.exists("runs/old.json")
    assert not store.exists("runs/new.json")


def until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_claims_heartbeat_outlives_a_store_that_is_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.02)

    def beat(own: Claim) -> int:
        # A store in memory shows a file that is being written as an empty one.
        return int(json.loads(own.content(own.id) or b"{}").get("beat", -1))

    with Claim.made(store, "answers/model") as own:
        for error in (EndpointConnectionError("gone"), NoCredentialsError("expired")):
            put = failing(store.fs.put_file, error, 12)
            monkeypatch.setattr(store.fs, "put_file", put)
            until(lambda put=put: put.calls > 12)  # type: ignore[misc]
            until(lambda: beat(own) >= 0)
            before = max(0, beat(own))
            until(lambda before=before: beat(own) > before)  # type: ignore[misc]
    assert own.content(own.id) is None


def test_a_claim_is_not_stale_for_the_time_in_which_the_store_was_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 60.0)
    now = time.monotonic()
    with Claim.made(store, "x", {"host": "another machine"}) as other, Claim.made(store, "x") as own:
        watch = Watch(own)
        assert watch.lives(other.id)
        monkeypatch.setattr(claims.time, "monotonic", lambda: now + claims.STALE_SECONDS + 10)
        store.boundary.back = now + claims.STALE_SECONDS
        assert watch.lives(other.id)
        monkeypatch.setattr(claims.time, "monotonic", lambda: now + 2 * claims.STALE_SECONDS + 10)
        assert not watch.lives(other.id)
        monkeypatch.undo()


def test_a_large_file_of_an_object_store_is_read_on_where_the_store_was_away(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks.store import storage

    monkeypatch.setattr(storage, "IN_MEMORY", 10)
    content = bytes(range(256)) * 9_000
    store.put_bytes("media/x", content)
    opened = store.fs.open

    def open_failing(*arguments: Any, **options: Any) -> Any:
        file = opened(*arguments, **options)
        file.read = failing(file.read, TimeoutError(), 2)
        return file

    monkeypatch.setattr(store.fs, "open", open_failing)
    with store.open("media/x") as file:
        assert file.read() == content


@pytest.mark.services
def test_an_s3_server_that_is_stopped_for_seconds_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(errors, "NOTICE_SECONDS", 1.0)
    server = s3_with_bucket(monkeypatch)
    address, port = server.get_host_and_port()
    store = Store(f"s3://nightjar/{uuid4().hex}")
    kept = AnswerStore(store).of_model("model")
    kept.write([KeptAnswer(status="ok", key=b"a" * 32, response="before", arrived=1.0)])
    server.stop()
    again = type(server)(ip_address=address, port=port)
    back = threading.Timer(8, again.start)
    back.start()
    try:
        kept.write([KeptAnswer(status="ok", key=b"b" * 32, response="while it was away", arrived=2.0)])
        assert kept.snapshot().holds([b"a" * 32, b"b" * 32, b"c" * 32]) == [True, True, False]
        assert re.search("trying again|has not answered for", caplog.text)
        assert f"store {store.uri} answers again" in caplog.text
    finally:
        back.join()
        again.stop()
