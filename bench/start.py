"""What it costs to begin: ``python -m bench.start [--rounds 5]``.

Ten items of the embedded default from command to report, and the same again with nothing to send, beside an
empty flow of one task, which is what Prefect takes by itself. The Prefect server runs already; of several
rounds the median is shown.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.inference.processes import prefect_server

EMPTY = """
from flows.server import use_server

use_server()  # says where the server is: Prefect reads that when it is imported

from prefect import flow, task


@task
def nothing():
    return 1


@flow
def empty():
    return nothing.submit().result()


empty()
"""
EVALUATE = ["-m", "flows.eval", "--json", "--limit", "10"]


def seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """Wall seconds of a process of this interpreter; it has to end well."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def main() -> None:
    """Parses arguments, measures and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.start", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    took: dict[str, list[float]] = {"empty flow": [], "ten items": [], "unchanged rerun": []}
    with tempfile.TemporaryDirectory() as folder, prefect_server(Path(folder) / "home") as environment:
        seconds(["-c", EMPTY], environment)  # starts the server
        for number in range(rounds):
            place = ["--store", f"{folder}/{number}", "--output", f"{folder}/results"]
            took["empty flow"].append(seconds(["-c", EMPTY], environment))
            took["ten items"].append(seconds([*EVALUATE, *place], environment))
            took["unchanged rerun"].append(seconds([*EVALUATE, *place], environment))
    floor = statistics.median(took["empty flow"])
    print("| work | s | of an empty flow |\n|---|---|---|")
    for work, entries in took.items():
        median = statistics.median(entries)
        print(f"| {work} | {median:.2f} | {median / floor:.2f} |")


if __name__ == "__main__":
    main()
