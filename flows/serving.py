"""The Prefect server while a command line uses it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.server import ServerError, use_server


@contextmanager
def serving() -> Iterator[str]:
    """A block that talks to the server of ``use_server``; gives the address of its UI.

    Raises ServerError where the server that the user's settings name does not answer.
    """
    named = os.environ.get("PREFECT_API_URL") or PREFECT_API_URL.value()
    ui = use_server()
    api = os.environ.get("PREFECT_API_URL", f"{ui}/api")
    with temporary_settings({PREFECT_API_URL: api}):
        if named:
            _check_answers(api)
        yield ui


def _check_answers(api: str) -> None:
    try:
        with get_client(sync_client=True) as client:
            client.api_version()
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ServerError(
            f"no Prefect server can be used at {api} ({reason}); start it, or unset PREFECT_API_URL and the "
            "project's own is used"
        ) from error
