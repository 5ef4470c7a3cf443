"""Places of a limit that runs share, held for a server of a model's own."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.server.connection import serving
from metrics.errors import ConfigError
from tasks.limits import hold
from tests.flows.conftest import as_new_process

Api = Callable[..., Any]


@pytest.fixture
def limit(prefect_api: Api, tmp_path: Path) -> str:
    prefect_api("POST", "/v2/concurrency_limits/", {"name": tmp_path.name, "limit": 2, "active": True})
    return tmp_path.name


def taken(prefect_api: Api, name: str) -> int:
    count: int = prefect_api("GET", f"/v2/concurrency_limits/{name}")["active_slots"]
    return count


def test_places_come_free_once_the_server_is_gone_even_if_the_run_is_over(
    limit: str, prefect_api: Api, own_environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    with as_new_process(own_environment, ["flows.eval"]), serving():
        hold(limit, 2, folder.is_dir, lambda: None)
        assert taken(prefect_api, limit) == 2
    folder.rmdir()
    end = time.monotonic() + 30
    while taken(prefect_api, limit) and time.monotonic() < end:
        time.sleep(0.1)
    assert taken(prefect_api, limit) == 0


def test_more_places_than_the_limit_has_and_no_limit_are_told(
    limit: str, own_environment: dict[str, str]
) -> None:
    with as_new_process(own_environment, ["flows.eval"]), serving():
        with pytest.raises(ConfigError, match="has 2 places, and a server takes 3"):
            hold(limit, 3, lambda: True, lambda: None)
        with pytest.raises(ConfigError, match="is not on the Prefect server"):
            hold(f"{limit}-other", 1, lambda: True, lambda: None)
