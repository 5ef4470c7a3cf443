"""The server goes on while its garbage is collected."""

import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
SCRIPT = """
import gc, sqlite3, sys, threading, time
from flows.server.app import collect_beside

collect_beside()
begun = threading.Event()
gc.callbacks.append(lambda phase, info: begun.set())
holder = sqlite3.connect(sys.argv[1], isolation_level=None)
holder.execute("CREATE TABLE t (a)")
waits = sqlite3.connect(sys.argv[1], timeout=120, isolation_level=None, check_same_thread=False)

def leave_garbage():
    cursor = waits.execute("SELECT 1 UNION ALL SELECT 2")
    cursor.fetchone()
    cycle = [cursor]  # an unfinished cursor that only a collection finds
    cycle.append(cycle)

def write():
    try:
        waits.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        print("the time-out was over")

leave_garbage()
begun.clear()
holder.execute("BEGIN IMMEDIATE")
writer = threading.Thread(target=write)
writer.start()
writer.join(0.5)  # by then it waits inside SQLite
work, deadline = [], time.monotonic() + 100
while not begun.is_set() and time.monotonic() < deadline:
    work.append([])
for _ in range(100):
    work = [[] for _ in range(1_000)]
print("went on" if writer.is_alive() and begun.is_set() else "stood still")
holder.execute("COMMIT")
writer.join()
"""


def test_a_thread_that_works_does_not_wait_for_a_cursor_that_is_garbage(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "x.db")],
        cwd=PROJECT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.stdout == "went on\n", done.stderr
