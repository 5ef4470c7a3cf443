"""What a night asks an S3 store for does not grow with the nights before it."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from tasks.history.layout import record_run
from tasks.history.nights import past_nights, record_night
from tasks.history.query import LOOSE_RUNS, query
from tasks.store.schemas import ITEM_ROWS, RESULTS
from tasks.store.storage import Store
from tests.loopback import s3_with_bucket
from tests.tasks.history.test_nights_index import night

pytestmark = pytest.mark.services
HISTORY = "SELECT count(*) FROM results"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A URI in a bucket of an S3 API on loopback."""
    server = s3_with_bucket(monkeypatch)
    yield f"s3://nightjar/{uuid4().hex}"
    server.stop()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each operation was asked for."""
    client = pytest.importorskip("aiobotocore.client").AioBaseClient
    found: Counter[str] = Counter()
    call = client._make_api_call

    async def counted(self: Any, operation: str, arguments: Any) -> Any:
        found[operation] += 1
        return await call(self, operation, arguments)

    monkeypatch.setattr(client, "_make_api_call", counted)
    return found


def filled(uri: str, nights: int) -> Store:
    store = Store(uri)
    for number in range(nights):
        record_night(store, night(number))
        manifest = {"run_id": f"run-{number:03}", "benchmark": "sums", "models": {"demo": {}}}
        record_run(store, manifest, [RESULTS.empty_table()], [ITEM_ROWS.empty_table()])
    return store


def requests(asked: Counter[str], work: Callable[[], Any]) -> dict[str, int]:
    asked.clear()
    work()
    return dict(asked)


def test_a_hundred_nights_more_are_no_request_more(bucket: str, asked: Counter[str]) -> None:
    few, many = (f"{bucket}/{count}" for count in (LOOSE_RUNS + 5, LOOSE_RUNS + 105))
    found = []
    for uri, count in ((few, LOOSE_RUNS + 5), (many, LOOSE_RUNS + 105)):
        filled(uri, count)
        past_nights(Store(uri), "night")  # the first time puts them into one file
        query(Store(uri), HISTORY)
        found.append(
            [
                requests(asked, lambda uri=uri: past_nights(Store(uri), "night")),  # type: ignore[misc]
                requests(asked, lambda uri=uri: record_night(Store(uri), night(500))),  # type: ignore[misc]
                requests(asked, lambda uri=uri: query(Store(uri), HISTORY)),  # type: ignore[misc]
            ]
        )
    assert found[0] == found[1]
    assert sum(sum(part.values()) for part in found[1]) < 30


def test_a_file_of_a_run_is_looked_up_three_times_at_most_by_a_query(
    bucket: str, asked: Counter[str]
) -> None:
    filled(bucket, 8)
    assert requests(asked, lambda: query(Store(bucket), HISTORY))["HeadObject"] <= 3 * 8
