"""``python -m flows.watch [--once]``: watches the Prefect server until it is told to end.

One watch for a server is enough. ``make deploy``, systemd and compose start it beside the worker.
"""

import os
import signal
import sys
import threading
from typing import Annotated, Any

import typer

from flows.command_line import FAILED, App, examples

SECONDS: float = 60.0
"""Between two looks."""
PATIENCE: float = 75.0
"""How long an answer is waited for: the server's own waiting for its database may take a minute."""

app = App()


def connected() -> str | None:
    """The address of the server's pages; None while it does not answer, or does not prove to be the own one.

    A watch may be there before its server, which must not cost it the credential.
    """
    from flows.server import use_server
    from flows.server.connection import CREDENTIAL

    credential = os.environ.get(CREDENTIAL)
    ui = use_server()
    if credential and CREDENTIAL not in os.environ:
        os.environ[CREDENTIAL] = credential
        print(f"waiting for the Prefect server at {ui}", file=sys.stderr, flush=True)
        return None
    return ui


@app.command(epilog=examples("python -m flows.watch", "python -m flows.watch --once"))
def watch_command(
    once: Annotated[
        bool, typer.Option("--once", help="look once, then end: exit code 1 if that failed")
    ] = False,
    every: Annotated[float, typer.Option(min=0.5, help="seconds between two looks")] = SECONDS,
) -> None:
    """Tells what no run can tell of itself: lost and dead runs, late ones, missed nights, missing workers."""
    over = threading.Event()
    if not once:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
    while (ui := connected()) is None:  # before Prefect is imported
        if once or over.wait(min(every, PATIENCE / 10)):
            raise typer.Exit(FAILED if once else 0)
    import httpx
    from prefect.exceptions import PrefectException

    from flows.server import ask
    from flows.server.memory import Memory
    from flows.server.view import View
    from flows.watch.look import Times
    from flows.watch.watch import Watch, say
    from tasks.secrets import webhook_address, webhook_set
    from tasks.store.home import home

    def patient(path: str, body: Any = None) -> Any:
        return ask(path, body, PATIENCE)

    def address() -> str | None:
        try:
            return webhook_address()
        except (httpx.HTTPError, PrefectException) as error:
            raise ConnectionError(f"where notifications go is not known now: {error}") from error

    webhook_set()  # what is none is refused now, and not when there is something to tell
    watch = Watch(
        Times.from_environment(), Memory.load(), address, home() / "server" / "dlq", stands_by=not once
    )
    pages = (os.environ.get("PREFECT_UI_URL") or ui).rstrip("/")
    say(f"watching {ui}")
    while True:
        complete = watch.look(View(patient, pages))
        if once:
            raise typer.Exit(0 if complete else FAILED)
        if over.wait(watch.seconds_to_next_look(every)):
            return


main = app.main

if __name__ == "__main__":
    main()
