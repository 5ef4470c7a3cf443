"""SQLite's lock in nights, with the server's trigger services on and off.

``python -m bench.nights [--nights 5] [--burners 0] [--rounds 1]``. Nights of a suite on recorded answers wait
for each other, beside so many processes that take all the cores that they get: a server of their own with the
shipped automations, a worker and the watch. *Locked* is how often the server's log says "database is locked",
*given up* how many events it put aside. *Waited* are times of a writer from outside, which takes the lock ten
times a second and gives it back at once: the share above 10 ms, and the longest.
"""

import argparse
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from flows.server.view import dead_letters
from tests.flows.conftest import MigratedDatabase
from tests.flows.operations.conftest import Prefect, free_port
from tests.flows.operations.test_nights_told import answer, burners, schedule, write_suite

SETTING = "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED"
LOCKED = "(sqlite3.OperationalError) database is locked"
NOBODY = "http://127.0.0.1:9/"
"""The webhook: nights that pass tell it nothing."""
PATIENCE = 900.0
NOTICEABLE = 0.01
COLUMNS = "triggers | nights | completed | seconds | locked | given up | waited > 10 ms | longest wait s"


@contextmanager
def waits(database: Path) -> Iterator[list[float]]:
    """Seconds that a writer from outside waits for the lock, until the block ends."""
    taken: list[float] = []
    over = threading.Event()

    def write() -> None:
        with closing(sqlite3.connect(database, timeout=PATIENCE, isolation_level=None)) as own:
            while not over.wait(0.1):
                start = time.perf_counter()
                own.execute("BEGIN IMMEDIATE")
                taken.append(time.perf_counter() - start)
                own.execute("ROLLBACK")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()


def measured(folder: Path, triggers: str, nights: int, busy: int) -> str:
    """A row of the table."""
    os.environ[SETTING] = triggers
    prefect = Prefect(folder, free_port(), MigratedDatabase(folder.parent / "migrated"))
    suite = write_suite(folder)
    answer(folder, 0)
    try:
        prefect.start().deploy()
        prefect.automations(NOBODY)
        with (
            burners(busy),
            prefect.worker(),
            prefect.watch(),
            waits(folder / "server" / "prefect.db") as took,
        ):
            start = time.perf_counter()
            ended = [prefect.finished(run, PATIENCE) for run in schedule(prefect, suite, nights)]
            seconds = time.perf_counter() - start
    finally:
        prefect.stop()
    completed = sum(run["state_name"] == "Completed" for run in ended)
    locked = (folder / "server.log").read_text(errors="replace").count(LOCKED)
    given_up = dead_letters(folder / "server" / "dlq")
    share = sum(wait > NOTICEABLE for wait in took) / len(took)
    counts = f"{nights} | {completed} | {seconds:.0f} | {locked} | {given_up}"
    return f"{'on' if triggers == 'true' else 'off'} | {counts} | {share:.1%} | {max(took):.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.nights")
    parser.add_argument("--nights", type=int, default=5)
    parser.add_argument("--burners", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=1, help="on and off, so often one after the other")
    options = parser.parse_args()
    print(COLUMNS, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for number, triggers in enumerate(("true", "false") * options.rounds):
            place = Path(folder) / str(number)
            place.mkdir()
            print(measured(place, triggers, options.nights, options.burners), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
