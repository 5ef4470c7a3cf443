"""Requests a second of several clients against one server, in one run side by side.

``python -m bench.inference.throughput [--count 10000] [--concurrency 32,128,512] [--rounds 3]``. The embedded
server runs in a process of its own with 50 ms of latency; the request phase goes from its first request to
its last answer, so that it means the same for every client. Of several rounds the best is shown: whatever
else the machine does only takes away. The official clients, which are several times slower, send a fifth of
the requests. With few requests the table shows how a client begins: this one opens its connections over half
a second and starts with 64 in flight, so 2,000 requests are over before 512 are.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLIENTS = ("aiohttp", "official", "official, aiohttp", "nightjar")
OFFICIAL_SHARE = 5
"""An official client sends one of so many requests."""


@dataclass(frozen=True)
class Measured:
    """A client at one concurrency: requests a second in the request phase, wall and CPU seconds of its
    process.
    """

    client: str
    concurrency: int
    rate: float
    wall: float
    cpu: float
    peak: int


def server(latency: float) -> AbstractContextManager[str]:
    """The embedded server in a process of its own."""
    return running("tasks.models.demo", "--latency", str(latency))


@contextmanager
def running(*module: str) -> Iterator[str]:
    """A server, a module with its arguments, in a process of its own; gives the address that it prints."""
    process = subprocess.Popen([sys.executable, "-m", *module], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def measure(client: str, command: list[str], base_url: str, concurrency: int, **process: Any) -> Measured:
    """Runs a client and reads at the server what it did."""
    root = base_url.removesuffix("/v1")
    urllib.request.urlopen(urllib.request.Request(f"{root}/stats/reset", method="POST")).read()
    before, start = _children_cpu(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, **process)
    wall, cpu = time.perf_counter() - start, _children_cpu() - before
    if done.returncode:
        sys.exit(f"{client} failed:\n{done.stderr[-2000:]}")
    stats = json.load(urllib.request.urlopen(f"{root}/stats"))
    rate = stats["answered"] / stats["seconds"] if stats["seconds"] else 0.0
    return Measured(client, concurrency, rate, wall, cpu, stats["peak"])


def table(measured: list[Measured]) -> str:
    """A Markdown table; the share is of the bare aiohttp loop at the same concurrency, and so is what a
    request takes beyond it."""
    bound = {m.concurrency: m.rate for m in measured if m.client == "aiohttp"}
    lines = [
        "| client | in flight | requests/s | share of aiohttp | µs more a request | process wall s "
        "| process CPU s | peak |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {m.client} | {m.concurrency} | {m.rate:,.0f} | {m.rate / bound[m.concurrency]:.2f} "
        f"| {1e6 / m.rate - 1e6 / bound[m.concurrency]:.0f} | {m.wall:.1f} | {m.cpu:.1f} | {m.peak} |"
        for m in measured
    ]
    return "\n".join(lines)


def main() -> None:
    """Parses arguments, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--concurrency", default="32,128,512")
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    measured = []
    with server(args.latency) as base_url, tempfile.TemporaryDirectory() as temporary:

        def run(name: str, concurrency: int) -> Measured:
            count = args.count // (OFFICIAL_SHARE if name.startswith("official") else 1)
            command = [sys.executable, "-m", "bench.inference.clients", name, base_url, str(count)]
            place = Path(temporary) / f"{name}-{concurrency}-{time.time_ns()}"
            return measure(name, [*command, str(concurrency), str(place)], base_url, concurrency)

        run("aiohttp", 32)  # warms the server
        for concurrency in map(int, args.concurrency.split(",")):
            rounds = [[run(name, concurrency) for name in CLIENTS] for _ in range(args.rounds)]
            measured += [max(runs, key=lambda run: run.rate) for runs in zip(*rounds, strict=True)]
    print(table(measured))


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
