"""What it costs to begin: ``python -m bench.start [--rounds 5]``.

Ten items of the embedded default from command to report, and the same again with nothing to send, beside an
empty flow of one task, which is what Prefect takes by itself. Above them stand their parts, each a process of
its own and each with those before it: Python, Prefect's imports, the evaluation's, and a dry run, which has
read config and data, planned and checked. CPU is that of the process and of those it started. The Prefect
server runs already, and bytecode is kept, as it is for a user, whatever this shell says of it; of several
rounds the median is shown.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
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
PARTS = {
    "Python": ["-c", "pass"],
    "importing Prefect": ["-c", "from prefect import flow, task"],
    "importing the evaluation": ["-c", "import flows.eval.session"],
    "dry run": ["-m", "flows.eval", "--json", "--limit", "10", "--dry-run"],
    "empty flow": ["-c", EMPTY],
}
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
"""With it every start compiles the project's own modules, and not those of libraries: a third more."""
EVALUATE = ["-m", "flows.eval", "--json", "--limit", "10"]


@dataclass(frozen=True)
class Took:
    """Seconds of a process: by the clock, and of CPU."""

    wall: float
    cpu: float


def took(arguments: list[str], environment: dict[str, str]) -> Took:
    """What a process of this interpreter took; it has to end well."""
    start, before = time.perf_counter(), children_cpu()
    subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)
    return Took(time.perf_counter() - start, children_cpu() - before)


def children_cpu() -> float:
    """CPU seconds of all processes that were waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Parses arguments, measures and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.start", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    measured: dict[str, list[Took]] = {name: [] for name in (*PARTS, "ten items", "unchanged rerun")}
    with tempfile.TemporaryDirectory() as folder, prefect_server(Path(folder) / "home") as environment:
        environment = {name: value for name, value in environment.items() if name != NO_BYTECODE}
        environment["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        took(["-c", EMPTY], environment)  # starts the server
        took([*EVALUATE, "--store", f"{folder}/first", "--output", f"{folder}/results"], environment)
        for number in range(rounds):
            place = ["--store", f"{folder}/{number}", "--output", f"{folder}/results"]
            for name, arguments in PARTS.items():
                measured[name].append(took(arguments, environment))
            for name in ("ten items", "unchanged rerun"):
                measured[name].append(took([*EVALUATE, *place], environment))
    floor = statistics.median(entry.wall for entry in measured["empty flow"])
    prefect = statistics.median(entry.cpu for entry in measured["importing Prefect"])
    print("| work | s | CPU s | of an empty flow | CPU, of importing Prefect |\n|---|---|---|---|---|")
    for work, entries in measured.items():
        wall, cpu = (statistics.median(getattr(entry, name) for entry in entries) for name in ("wall", "cpu"))
        print(f"| {work} | {wall:.2f} | {cpu:.2f} | {wall / floor:.2f} | {cpu / prefect:.2f} |")


if __name__ == "__main__":
    main()
