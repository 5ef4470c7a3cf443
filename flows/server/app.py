"""The process of the own server: Prefect's application behind ``flows.server.boundary``, on loopback.

``flows.server.connection`` starts it with Prefect's settings in the environment; the credential is read from
its file, and is in no environment and no list of processes.
"""

import gc
import os
import threading
import time
from typing import Final

from flows.server.boundary import HOST, Address, Boundary, credential

SECONDS_TO_CLOSE = 5
COLLECT_SECONDS: Final = 0.5


def settings(port: int, ui_url: str | None) -> dict[str, str]:
    """Prefect's settings of a server that answers its own pages and its own user only."""
    return {
        "PREFECT_SERVER_API_HOST": HOST,
        # The port as a setting: the UI asks the API at the address the settings hold.
        "PREFECT_SERVER_API_PORT": str(port),
        "PREFECT_SERVER_API_AUTH_STRING": credential(),
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(sorted(Address.of(port, ui_url).origins)),
        "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
        # In memory, as they are by default, leases are forgotten by a restart while their places stay taken.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
        "PREFECT_UI_URL": ui_url or f"http://{HOST}:{port}",  # links in notifications
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def collect_beside() -> None:
    """Has a thread of its own collect the process's garbage.

    A collection that finishes an unfinished cursor of SQLite waits for its connection, and where that waits
    for SQLite's lock, for the whole busy time-out. On the event loop's thread that stops the server, and the
    lock's holder needs the loop to commit: once in twenty nights on a busy machine it stood still for 60 s.
    """
    gc.disable()
    threading.Thread(target=_collect, name="garbage", daemon=True).start()


def _collect() -> None:
    while True:
        time.sleep(COLLECT_SECONDS)
        due = [count > most for count, most in zip(gc.get_count(), gc.get_threshold(), strict=True)]
        if any(due):
            gc.collect(max(generation for generation, is_due in enumerate(due) if is_due))


def main() -> None:
    """Serves until it is told to end."""
    port, ui_url = int(os.environ["PREFECT_SERVER_API_PORT"]), os.environ.get("PREFECT_UI_URL")
    os.environ.update(settings(port, ui_url))

    import uvicorn
    from prefect.server.api.server import create_app

    inner = create_app(final=True)
    # From here on the database and its like are made; the files of the UI, before, belong to the environment.
    os.umask(0o077)
    collect_beside()
    uvicorn.run(
        Boundary(inner, credential(), port, ui_url),
        host=HOST,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=SECONDS_TO_CLOSE,
    )


if __name__ == "__main__":
    main()
