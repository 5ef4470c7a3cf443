"""Memory and disk of a large partition: ``python -m bench.inference.scale [--count 100000]``.

Prints the peak memory of the process that asks, the sizes of journal, kept answers and artifact beside that
of the text, and how long it took; then the same for asking again, with every answer kept.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from bench.inference.prompts import requests
from bench.inference.throughput import server

ROWS = 2_000


class Requests:
    """A large partition made as it is read, so that it takes no memory itself."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for first in range(0, self._count, ROWS):
            yield requests(min(ROWS, self._count - first), first)


def run(base_url: str, count: int, folder: Path) -> None:
    """Asks everything and writes the artifact; prints what it took as a JSON object."""
    from tasks.models.answers.segments import AnswerStore
    from tasks.models.config import ModelConfig, SampleParams
    from tasks.models.records import InferenceOptions
    from tasks.models.respond import respond
    from tasks.store.schemas import RESPONSES
    from tasks.store.storage import Store

    store = Store(str(folder / "store"))
    config = {"model": "demo", "base_url": base_url, "max_concurrency": 128}
    model = ModelConfig.model_validate({"name": "demo", "config": config})
    options = InferenceOptions(sampling=SampleParams(max_tokens=256), journal_dir=folder / "journal")
    text = 0

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        nonlocal text
        for batch in batches:
            for name in ("prompt", "response"):
                text += sum(len(value) for value in batch.column(name).to_pylist())
            yield batch

    start = time.perf_counter()
    responded = respond(model, Requests(count), AnswerStore(store), options)
    ref = store.write("responses", "0" * 64, RESPONSES, counted(responded.batches))
    seconds = time.perf_counter() - start
    sizes = {
        "journal": size(folder / "journal"),
        "answers": size(folder / "store" / "answers"),
        "artifact": ref.bytes,
        "text": text,
    }
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"sent": responded.tally.sent, "seconds": seconds, "peak MB": peak, **sizes}))


def size(folder: Path) -> int:
    """Bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.exists() else 0


def main() -> None:
    """Runs the measured process twice against one server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--run", nargs=2, metavar=("BASE_URL", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run(args.run[0], args.count, Path(args.run[1]))
        return
    with server(0.0) as base_url, tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            command = [sys.executable, "-m", "bench.inference.scale", "--count", str(args.count)]
            subprocess.run([*command, "--run", base_url, folder], check=True)


if __name__ == "__main__":
    main()
