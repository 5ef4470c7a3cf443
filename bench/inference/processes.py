"""Whole evaluations, from command to report, beside those of the peers.

``python -m bench.inference.processes [--count 2000] [--concurrency 32,128,512] [--lm-eval PATH] [--inspect
PATH]``. All ask the same prompts of the embedded server, which runs in a process of its own with 50 ms of
latency; this project's Prefect server runs already. Wall and CPU seconds are the whole process's, imports
included; *again* is the same command once more, which the peer answers from its cache (Inspect has none that
works here).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.inference.prompts import question
from bench.inference.throughput import Measured, measure, server

FEW = 10
HARNESS_NAME = "lm-evaluation-harness"
COLUMNS = (
    "work | program | in flight | requests/s | of bare | wall s | CPU s | wall / lm-eval | CPU / lm-eval"
)
HARNESS = """
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
OURS = """
name: throughput
dataset: {{path: {data}}}
prompt_template: "Question: {{{{ question }}}}\\nAnswer:"
target: "{{{{ answer }}}}"
models:
  - {{name: demo, type: openai, config: {{base_url: "{url}", max_concurrency: {concurrency}}}}}
sample_params: {{stop: ["</s>"], max_tokens: 256, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""
INSPECT = """
from inspect_ai import Task, task
from inspect_ai.dataset import FieldSpec, json_dataset
from inspect_ai.scorer import exact
from inspect_ai.solver import generate


@task
def throughput():
    fields = FieldSpec(input="prompt", target="answer")
    return Task(dataset=json_dataset("{data}", fields), solver=generate(), scorer=exact())
"""


@dataclass(frozen=True)
class Workplace:
    """A folder with the items as each program wants them, and the programs' own folders in it."""

    folder: Path
    base_url: str

    def items(self, count: int) -> Path:
        """The items as JSON lines."""
        path = self.folder / f"items-{count}.jsonl"
        if not path.exists():
            rows = (
                {"question": question(i), "prompt": f"Question: {question(i)}\nAnswer:", "answer": "0"}
                for i in range(count)
            )
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path


@contextmanager
def prefect_server(home: Path) -> Iterator[dict[str, str]]:
    """This project's environment with a Prefect server that runs already."""
    environment = {**os.environ, "NIGHTJAR_HOME": str(home)}
    stop = [sys.executable, "-m", "flows.server", "stop"]
    try:
        yield environment
    finally:
        subprocess.run(stop, env=environment, check=False, capture_output=True)


def ours(place: Workplace, count: int, concurrency: int, environment: dict[str, str]) -> Measured:
    """``python -m flows.eval``; a second time, of the same size, it finds the first's store."""
    name = f"{count}-{concurrency}"
    config = place.folder / f"ours-{name}.yaml"
    config.write_text(OURS.format(data=place.items(count), url=place.base_url, concurrency=concurrency))
    command = [
        sys.executable, "-m", "flows.eval", str(config), "--json",
        "--store", str(place.folder / f"store-{name}"), "--output", str(place.folder / f"out-{name}"),
    ]  # fmt: skip
    return measure("nightjar", command, place.base_url, concurrency, env=environment)


def harness(
    place: Workplace, program: str, count: int, concurrency: int, cache: str | None = None
) -> Measured:
    """``lm-eval``, with a cache of its responses if that has a name."""
    tasks = place.folder / f"tasks-{count}"
    tasks.mkdir(exist_ok=True)
    (tasks / "throughput.yaml").write_text(HARNESS.format(data=place.items(count)))
    url = f"{place.base_url}/chat/completions"
    command = [
        program, "--model", "local-chat-completions", "--tasks", "throughput", "--include_path", str(tasks),
        "--model_args", f"model=demo,base_url={url},num_concurrent={concurrency},max_retries=3",
        "--apply_chat_template", "--output_path", str(place.folder / "lm-eval"), "--log_samples",
    ]  # fmt: skip
    if cache is not None:
        command += ["--use_cache", str(place.folder / cache)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(place.folder / "hf")}
    environment = {**os.environ, **offline}
    return measure(HARNESS_NAME, command, place.base_url, concurrency, env=environment, cwd=place.folder)


def inspect(place: Workplace, program: str, count: int, concurrency: int) -> Measured:
    """``inspect eval`` without its display."""
    script = place.folder / f"inspect_{count}.py"
    script.write_text(INSPECT.format(data=place.items(count)))
    command = [
        program, "eval", script.name, "--model", "openai/demo", "--model-base-url", place.base_url,
        "-M", "responses_api=false", "--max-connections", str(concurrency),
        "--max-samples", str(concurrency), "--max-tokens", "256", "--temperature", "0",
        "--display", "none", "--log-dir", str(place.folder / "inspect-logs"),
    ]  # fmt: skip
    environment = {**os.environ, "OPENAI_API_KEY": "none"}
    return measure("Inspect", command, place.base_url, concurrency, env=environment, cwd=place.folder)


def bare(place: Workplace, count: int, concurrency: int) -> Measured:
    """The loop that nothing in this language gets past: its request phase is what the others' is held to."""
    command = [sys.executable, "-m", "bench.inference.clients", "aiohttp", place.base_url]
    command += [str(count), str(concurrency), str(place.folder)]
    return measure("bare aiohttp", command, place.base_url, concurrency)


def fresh(place: Workplace, args: argparse.Namespace, count: int, concurrency: int) -> list[Measured]:
    """Every program once, with nothing answered before."""
    measured = [bare(place, count, concurrency), ours(place, count, concurrency, args.environment)]
    if args.lm_eval:
        measured.append(harness(place, args.lm_eval, count, concurrency))
    if args.inspect:
        measured.append(inspect(place, args.inspect, count, concurrency))
    return measured


def again(place: Workplace, args: argparse.Namespace, count: int, concurrency: int) -> list[Measured]:
    """The programs that keep answers, once more with all of them kept."""
    measured = [ours(place, count, concurrency, args.environment)]
    if args.lm_eval:
        harness(place, args.lm_eval, count, concurrency, "kept")
        measured.append(harness(place, args.lm_eval, count, concurrency, "kept"))
    return measured


def table(place: Workplace, args: argparse.Namespace) -> Iterator[list[str]]:
    """The rows as they are measured."""
    sizes = [int(entry) for entry in args.concurrency.split(",")]
    ours(place, 1, 1, args.environment)  # starts the Prefect server
    yield from lines(f"{FEW} samples", fresh(place, args, FEW, 32))
    for concurrency in sizes:
        yield from lines(f"{args.count:,} samples", fresh(place, args, args.count, concurrency))
    yield from lines("unchanged rerun", again(place, args, args.count, sizes[-1]))


def lines(work: str, measured: list[Measured]) -> Iterator[list[str]]:
    """Rows of the table; shares are of the bare loop's rate and of the peer's seconds."""
    bound = next((m.rate for m in measured if m.client == "bare aiohttp"), 0.0)
    peer = next((m for m in measured if m.client == HARNESS_NAME), None)
    for m in measured:
        rate = [f"{m.rate:,.0f}", f"{m.rate / bound:.2f}"] if m.rate and bound else ["", ""]
        shares = [f"{m.wall / peer.wall:.2f}", f"{m.cpu / peer.cpu:.2f}"] if peer else ["", ""]
        yield [work, m.client, str(m.concurrency), *rate, f"{m.wall:.1f}", f"{m.cpu:.1f}", *shares]


def main() -> None:
    """Parses arguments, measures and prints the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.inference.processes", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--concurrency", default="32,128,512")
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--lm-eval", default=shutil.which("lm-eval"))
    parser.add_argument("--inspect", default=shutil.which("inspect"))
    args = parser.parse_args()
    for name in ("lm_eval", "inspect"):
        if not getattr(args, name):
            print(f"{name.replace('_', '-')} is not installed and not named: its rows are left out")
    columns = (
        "work | program | in flight | requests/s | of bare | wall s | CPU s | wall / lm-eval | CPU / lm-eval"
    )
    print(f"| {columns} |\n|{'---|' * len(columns.split('|'))}")
    with (
        server(args.latency) as base_url,
        tempfile.TemporaryDirectory() as temporary,
        prefect_server(Path(temporary) / "home") as args.environment,
    ):
        for row in table(Workplace(Path(temporary), base_url), args):
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
