"""Requests a second of several clients against one server, in one run side by side.

``python -m bench.inference.throughput [--count 2000] [--concurrency 32,128,512] [--lm-eval PATH]``. The
embedded server runs in a process of its own with 50 ms of latency; the request phase goes from its first
request to its last answer, so that it means the same for every client. ``--lm-eval`` names the ``lm-eval``
program of an environment that has it.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.inference.prompts import question

CLIENTS = ("aiohttp", "official", "official, aiohttp", "nightjar")
TASK = """
task: throughput
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["</s>"], max_gen_toks: 256, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


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


@contextmanager
def server(latency: float) -> Iterator[str]:
    """The embedded server in a process of its own."""
    command = [sys.executable, "-m", "tasks.models.demo", "--latency", str(latency)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    return Measured(client, concurrency, stats["answered"] / stats["seconds"], wall, cpu, stats["peak"])


def lm_eval(program: str, base_url: str, count: int, concurrency: int, folder: Path) -> Measured:
    """lm-evaluation-harness's ``local-chat-completions`` over the same prompts, whole process."""
    data = folder / "items.jsonl"
    data.write_text(
        "".join(json.dumps({"question": question(i), "answer": "0"}) + "\n" for i in range(count))
    )
    (folder / "throughput.yaml").write_text(TASK.format(data=data))
    arguments = f"model=demo,base_url={base_url}/chat/completions,num_concurrent={concurrency},max_retries=3"
    command = [
        program, "--model", "local-chat-completions", "--model_args", arguments, "--tasks", "throughput",
        "--include_path", str(folder), "--apply_chat_template",
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    return measure(
        "lm-evaluation-harness", command, base_url, concurrency, env={**os.environ, **offline}, cwd=folder
    )


def table(measured: list[Measured]) -> str:
    """A Markdown table; the share is of the bare aiohttp loop at the same concurrency."""
    bound = {m.concurrency: m.rate for m in measured if m.client == "aiohttp"}
    lines = [
        "| client | in flight | requests/s | share of aiohttp | process wall s | process CPU s | peak |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {m.client} | {m.concurrency} | {m.rate:,.0f} | {m.rate / bound[m.concurrency]:.2f} "
        f"| {m.wall:.1f} | {m.cpu:.1f} | {m.peak} |"
        for m in measured
    ]
    return "\n".join(lines)


def main() -> None:
    """Parses arguments, measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--concurrency", default="32,128,512")
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--lm-eval", default=shutil.which("lm-eval"))
    args = parser.parse_args()
    measured = []
    with server(args.latency) as base_url, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)

        def client(name: str, concurrency: int) -> list[str]:
            place = folder / f"{name}-{concurrency}-{time.time_ns()}"
            command = [sys.executable, "-m", "bench.inference.clients", name, base_url]
            return [*command, str(args.count), str(concurrency), str(place)]

        measure("warm-up", client("aiohttp", 32), base_url, 32)
        for concurrency in map(int, args.concurrency.split(",")):
            measured += [measure(name, client(name, concurrency), base_url, concurrency) for name in CLIENTS]
            if args.lm_eval:
                measured.append(lm_eval(args.lm_eval, base_url, args.count, concurrency, folder))
    print(table(measured))


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
