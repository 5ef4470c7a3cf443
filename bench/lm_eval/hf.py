"""The request phase of the built-in server beside lm-evaluation-harness's ``hf`` model, on the same weights.

    python -m bench.lm_eval.hf [--peer PYTHON] [--documents 32] [--rounds 2]

``PYTHON`` has torch, transformers and ``lm-eval``, else that of ``NIGHTJAR_SERVE_PYTHON``. The model is a
Llama of 100 million random weights in float32 on one thread of the CPU; the benchmarks are four choices a
document, and 24 tokens a document. The harness is asked at several batch sizes, with its model loaded; this
project's phase goes from its first request to its last answer, as the kept answers say. CPU seconds are those
of the phase too, ours of server and client together: they can be compared where the machine has other work.
Both take turns, and the best of the rounds is shown. Exits 1 where the harness is faster.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from bench.inference.processes import prefect_server
from bench.lm_eval.peer import peer_python
from bench.lm_eval.runs import OFFLINE, PROJECT

PEER = Path(__file__).with_name("peer_hf.py")
BATCH_SIZES = (1, 8, 32)
WORDS = ("river", "stone", "bird", "night", "light", "water", "between", "under", "glass", "letter", "seven")
KEYS: dict[str, dict[str, Any]] = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}],
    },
    "texts": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{question}}",
        "generation_kwargs": {"until": ["\n\n\n"], "max_gen_toks": 24, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def write_benchmarks(folder: Path, documents: int) -> None:
    """Both benchmarks, on the same documents of 4 to 16 words."""
    folder.mkdir()
    draw = random.Random(5)
    rows = [
        {
            "question": " ".join(draw.choices(WORDS, k=draw.randint(4, 16))),
            "choices": [" " + " ".join(draw.choices(WORDS, k=draw.randint(1, 4))) for _ in range(4)],
            "gold": draw.randrange(4),
        }
        for _ in range(documents)
    ]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = {"data_files": {"test": str(folder / "data.jsonl")}}
    for name, keys in KEYS.items():
        about = {"task": name, "dataset_path": "json", "dataset_kwargs": files, "test_split": "test"}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**about, **keys}))


Spent = tuple[float, float]
"""Seconds on the clock, and of CPU time."""


def by_the_harness(python: str, weights: Path, definitions: Path) -> dict[str, dict[str, Spent]]:
    """Batch size → benchmark → what its request phase took."""
    command = [python, str(PEER), "time", str(weights), str(definitions), *map(str, BATCH_SIZES), "--", *KEYS]
    done = subprocess.run(command, env={**os.environ, **OFFLINE}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the peer failed:\n{done.stderr[-3000:]}")
    found: dict[str, dict[str, Spent]] = json.loads(done.stdout.splitlines()[-1])
    return found


class CpuProbe:
    """CPU seconds of a command and of the server that it starts, noted all the while."""

    def __init__(self, command: "subprocess.Popen[str]", weights: Path) -> None:
        self._command, self._weights = command, str(weights).encode()
        self._noted: list[tuple[float, float]] = [(0.0, 0.0)]
        self._thread = threading.Thread(target=self._note)
        self._thread.start()

    def _note(self) -> None:
        while self._command.poll() is None:
            pids = [self._command.pid, *self._servers()]
            self._noted.append((time.time(), sum(map(cpu_seconds, pids))))
            time.sleep(0.2)

    def _servers(self) -> list[int]:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if self._weights in words and b"--port" in words:
                    found.append(int(entry.name))
        return found

    def between(self, start: float, end: float) -> float:
        """CPU seconds from one moment to another."""
        self._thread.join()
        before = [used for at, used in self._noted if at <= start][-1]
        return next((used for at, used in self._noted if at >= end), self._noted[-1][1]) - before


def cpu_seconds(pid: int) -> float:
    """CPU seconds that a process has used; 0 where it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def by_this_project(name: str, weights: Path, definitions: Path, store: Path, home: dict[str, str]) -> Spent:
    """What a benchmark took from its first request to its last answer."""
    import pyarrow.parquet as pq

    command = [
        sys.executable, "-m", "flows.eval", "--tasks", name, "--include-path", str(definitions),
        "--model-path", str(weights), "--set", "models.0.serve.dtype=float32",
        "--set", "models.0.serve.gpus=0",
        "--store", str(store), "--output", str(store / "results"), "--json",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=PROJECT, env=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        probe = CpuProbe(run, weights)
        said, _ = run.communicate()
    if run.returncode:
        sys.exit(f"this project failed:\n{said[-3000:]}")
    files = sorted((store / "answers").rglob("*.parquet"))
    tables = [pq.read_table(file, columns=["asked_at", "arrived"]).to_pydict() for file in files]
    start = min(min(table["asked_at"]) for table in tables)
    end = max(max(table["arrived"]) for table in tables)
    return end - start, probe.between(start, end)


def best(before: Spent | None, now: Spent) -> Spent:
    """The better of two measurements, each of its numbers by itself."""
    return now if before is None else (min(before[0], now[0]), min(before[1], now[1]))


def main() -> int:
    """Parses arguments, measures and prints the table; 1 where the harness at its best is faster."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.lm_eval.hf", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--peer", default=os.environ.get("NIGHTJAR_SERVE_PYTHON"), help="Python that has lm-eval"
    )
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    python = peer_python(options.peer, "torch", "transformers")
    if python is None:
        print("torch, transformers and lm-eval are not installed together; name a Python with --peer")
        return 0
    theirs: dict[str, dict[str, Spent]] = {}
    ours: dict[str, Spent] = {}
    with tempfile.TemporaryDirectory() as name, prefect_server(Path(name) / "home") as home:
        folder, weights, definitions = Path(name), Path(name) / "weights", Path(name) / "tasks"
        made = subprocess.run(
            [python, str(PEER), "make", str(weights)], check=True, capture_output=True, text=True
        )
        write_benchmarks(definitions, options.documents)
        for number in range(options.rounds):
            for benchmark in KEYS:
                store = folder / f"store-{benchmark}-{number}"
                environment = {**home, **OFFLINE, "NIGHTJAR_SERVE_PYTHON": python, "TMPDIR": name}
                found = by_this_project(benchmark, weights, definitions, store, environment)
                ours[benchmark] = best(ours.get(benchmark), found)
                print(f"this project, {benchmark}: {found[0]:.1f} ({found[1]:.1f})", flush=True)
            for size, took in by_the_harness(python, weights, definitions).items():
                for benchmark, spent in took.items():
                    of_all = theirs.setdefault(benchmark, {})
                    of_all[size] = best(of_all.get(size), spent)
    millions = int(made.stdout.split()[-1]) / 1e6
    print(f"{millions:.0f} million weights, {options.documents} documents; seconds (CPU seconds):\n")
    print(f"| benchmark | {' | '.join(f'hf, {size}' for size in BATCH_SIZES)} | ours | hf's best / ours |")
    print("|---" * (len(BATCH_SIZES) + 3) + "|")
    ratios = []
    for benchmark, of_sizes in theirs.items():
        ratios.append(min(wall for wall, _ in of_sizes.values()) / ours[benchmark][0])
        measured = [*(of_sizes[str(size)] for size in BATCH_SIZES), ours[benchmark]]
        cells = " | ".join(f"{wall:.1f} ({cpu:.1f})" for wall, cpu in measured)
        print(f"| {benchmark} | {cells} | {ratios[-1]:.2f} |")
    return int(min(ratios) < 1)


if __name__ == "__main__":
    raise SystemExit(main())
