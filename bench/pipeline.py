"""What a whole evaluation costs an item: ``python -m bench.pipeline`` prints the table.

    python -m bench.pipeline [--sizes 2000,20000,100000] [--runners "one core,threads,processes,dask"]
                             [--works text,choices,judge,million] [--rounds 3]

*Text* scores recorded responses by three pairs (exact_match, BLEU, ROUGE-L), *choices* recorded
log-likelihoods by two, *judge* the same text by a model that is asked about every response, *million* the
text of 1,000,000 items by exact_match alone, with how soon its report can be used in a browser. Each row is
one command as a user gives it, report and exports included, against a Prefect server that runs already:
*threads* with ``--workers 1``, and *one core* the same held to one core (Arrow's threads use another where
there is one), *processes* with ``--workers 2``, *dask* on a cluster of two workers of one core on this
machine, which runs already and has imported what steps need; what that takes is printed before. *Scores
alone* is what sacrebleu and rouge-score take for the same numbers in one process. CPU is that of the command
and all its processes, imports included, and what Dask's scheduler and workers took meanwhile; servers, the
embedded model's too, run beside it and do not count.
Memory is the highest sum over the command's processes, pages that several share counted once. With several
rounds the runners take turns, and the fastest of each counts: what else a machine does slows some of them.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orjson
import psutil

from bench.inference.processes import prefect_server
from bench.inference.throughput import server
from bench.metrics.workloads import documents
from bench.pages import CHROMIUM, loads

LOOKS = 0.1
"""Seconds between two looks at the processes of a command."""
MEMORY_LOOKS = 5
"""Of so many looks one is at their memory, which takes a while where there is much of it."""
ONE_CORE = "one core"
RUNNERS = {
    ONE_CORE: ("--workers", "1"),
    "threads": ("--workers", "1"),
    "processes": ("--workers", "2"),
    "dask": ("--task-runner", "dask:ADDRESS"),
}
LARGEST = (100_000,)
"""Sizes that choices and judges are measured at, unless others are asked for."""
SIZES = {"text": (2_000, 20_000, *LARGEST), "million": (1_000_000,)}

TEXT = """
prompt_template: "Question: {{ question }}\\nAnswer:"
target: "{{ answer }}"
models: [{name: recorded, type: replay, config: {path: RESPONSES}}]
metric_list: [{metric: exact_match}, {metric: bleu}, {metric: rougeL}]
"""
MILLION = TEXT.replace(
    "metric_list: [{metric: exact_match}, {metric: bleu}, {metric: rougeL}]",
    "metric_list: [{metric: exact_match}]",
)
CHOICES = """
output_type: multiple_choice
prompt_template: "Question: {{ question }}\\nAnswer:"
choices: [first, second, third, fourth]
target: "{{ answer }}"
models: [{name: recorded, type: replay, config: {path: RESPONSES}}]
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
JUDGE = """
prompt_template: "Question: {{ question }}\\nAnswer:"
target: "{{ answer }}"
models: [{name: recorded, type: replay, config: {path: RESPONSES}}]
scorer:
  type: llm_judge
  judges: [{name: judge, type: openai, config: {model: demo, base_url: "URL", max_concurrency: 128}}]
  prompt: "Reference: {{ reference }}\\nResponse: {{ response }}\\nReply with correct or incorrect.\\nGrade:"
  parse: {type: choice, choices: {correct: 1, incorrect: 0}}
metric_list: [{metric: exact_match}]
"""
SCORES_ALONE = """
import sys

import orjson
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

items, responses = ([orjson.loads(line) for line in open(path, "rb")] for path in sys.argv[1:])
pairs = [(item["answer"], row["response"]) for item, row in zip(items, responses)]
sum(answer == text for answer, text in pairs)
BLEU().corpus_score([text for _, text in pairs], [[answer for answer, _ in pairs]])
scorer = RougeScorer(["rougeL"])
sum(scorer.score(*pair)["rougeL"].fmeasure for pair in pairs)
"""


@dataclass(frozen=True)
class Spent:
    """What a command took: wall and CPU seconds, and bytes of memory at its highest, of all its processes."""

    wall: float
    cpu: float
    peak: int


@dataclass(frozen=True)
class Evaluation:
    """A config and its recorded responses in a folder, ready to be run."""

    folder: Path
    items: int

    @property
    def inputs(self) -> tuple[str, str]:
        """The files of items and of responses."""
        return str(self.folder / "items.jsonl"), str(self.folder / "responses.jsonl")

    def command(self, runner: str, address: str = "") -> list[str]:
        """The command that evaluates it into a new store; ``address`` is that of Dask's scheduler."""
        with tempfile.TemporaryDirectory(dir=self.folder) as place:
            pass  # the name of a folder that is not there
        return [
            sys.executable, "-m", "flows.eval", str(self.folder / "config.yaml"), "--json",
            "--store", f"{place}/store", "--output", f"{place}/out",
            *(word.replace("ADDRESS", address) for word in RUNNERS[runner]),
        ]  # fmt: skip


@dataclass(frozen=True)
class Cluster:
    """A Dask cluster that runs already: its scheduler's address, and its processes."""

    address: str
    processes: tuple[psutil.Process, ...]

    def seconds(self) -> float:
        """CPU seconds that its processes have taken so far, those of workers' own included."""
        every = [own for root in self.processes for own in (root, *root.children(recursive=True))]
        return sum(own.cpu_times().user + own.cpu_times().system for own in every)


@contextmanager
def dask_cluster(environment: dict[str, str]) -> Iterator[Cluster]:
    """A cluster of two workers of one core, which do not watch what they compute (docs/operations.md)."""
    environment = environment | {"DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "false"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    local = ["--host", "127.0.0.1", "--no-dashboard"]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        worker = ["worker", address, *local, "--nthreads", "1", "--no-nanny", "--local-directory", scratch]
        started = []
        for command in (["scheduler", *local, "--port", str(port)], worker, worker):
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *command], env=environment, cwd=Path(__file__).parents[1],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            started.append(psutil.Process(process.pid))
        yield Cluster(address, tuple(started))


def spent(
    command: list[str], environment: dict[str, str], one_core: bool = False, cluster: Cluster | None = None
) -> Spent:
    """Runs a command to its end, on one core or as many as there are; it has to end well. What a cluster
    takes meanwhile counts."""
    start, before = time.perf_counter(), cluster.seconds() if cluster is not None else 0.0
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said)
        if one_core:
            os.sched_setaffinity(process.pid, {min(os.sched_getaffinity(0))})
        tree = Tree(process.pid)
        while process.poll() is None:
            tree.look()
            time.sleep(LOOKS)
        said.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{said.read().decode()[-2000:]}")
    there = cluster.seconds() - before if cluster is not None else 0.0
    return Spent(time.perf_counter() - start, sum(tree.cpu.values()) + there, tree.peak)


class Tree:
    """A process and all that it started, looked at again and again: what one of them took just before its end
    is missed."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._looks = 0
        self.cpu: dict[int, float] = {}
        """CPU seconds by process, those that have ended included."""
        self.peak = 0
        """Bytes of all of them at the highest, pages that several share counted once."""

    def look(self) -> None:
        """Takes their seconds and bytes as they are now."""
        now = 0
        weighs = self._looks % MEMORY_LOOKS == 0
        self._looks += 1
        for process in self._processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                self.cpu[process.pid] = times.user + times.system
                now += process.memory_full_info().pss if weighs else 0
        self.peak = max(self.peak, now)

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            root = psutil.Process(self._root)
            return [root, *root.children(recursive=True)]
        return []


def text(folder: Path, count: int) -> Evaluation:
    """Answers of eight to 24 words, a quarter of which are not the reference's."""
    made = documents(count, length=(8, 24))
    answers = ([gold, said] for [gold], said in zip(made.references, made.texts, strict=True))
    return recorded(folder, TEXT, ((gold, {"response": said}) for gold, said in answers), count)


def million(folder: Path, count: int) -> Evaluation:
    """The same answers as *text*, compared exactly and no further."""
    made = text(folder, count)
    (folder / "config.yaml").write_text(_config(MILLION, folder))
    return made


def choices(folder: Path, count: int) -> Evaluation:
    """Four choices, the right one of which is the likeliest for three items of four."""
    likelihoods = ([-1.0 - (place + number * 3 // 4) % 4 for place in range(4)] for number in range(count))
    rows = ((number % 4, {"lls": lls, "is_greedy": [False] * 4}) for number, lls in enumerate(likelihoods))
    return recorded(folder, CHOICES, rows, count)


def judge(url: str) -> Callable[[Path, int], Evaluation]:
    """The same answers as *text*, graded by the model at an address."""

    def judged(folder: Path, count: int) -> Evaluation:
        made = text(folder, count)
        (folder / "config.yaml").write_text(_config(JUDGE.replace("URL", url), folder))
        return made

    return judged


def recorded(
    folder: Path, config: str, rows: Iterator[tuple[object, dict[str, object]]], count: int
) -> Evaluation:
    """Writes the config, and for each row, the answer and what was said, an item with its response."""
    made = Evaluation(folder, count)
    with open(made.inputs[0], "wb") as items, open(made.inputs[1], "wb") as responses:
        for number, (answer, said) in enumerate(rows):
            item = {"id": f"item-{number}", "question": f"What is number {number}?", "answer": answer}
            items.write(orjson.dumps(item) + b"\n")
            responses.write(orjson.dumps({"item_id": item["id"], **said}) + b"\n")
    (folder / "config.yaml").write_text(_config(config, folder))
    return made


def _config(body: str, folder: Path) -> str:
    """A whole config of a body that says neither name nor dataset."""
    head = f"name: pipeline\ndataset: {{path: {json.dumps(str(folder / 'items.jsonl'))}, id: id}}\n"
    return head + body.replace("RESPONSES", json.dumps(str(folder / "responses.jsonl")))


def main() -> None:
    """Parses arguments, measures and prints the table row by row."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.pipeline", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--sizes",
        help="items; default 2000,20000,100000 for text, 100000 for the others, 1000000 for million",
    )
    parser.add_argument("--runners", default="one core,threads,processes,dask")
    parser.add_argument("--works", default="text,choices,judge,million")
    parser.add_argument("--rounds", type=int, default=1, help="of each command; the fastest counts")
    options = parser.parse_args()
    sizes = options.sizes and [int(size) for size in options.sizes.split(",")]
    print(
        "| work | items | runner | CPU µs an item | CPU s | wall s | of one core's | of threads' | peak MB |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with (
        tempfile.TemporaryDirectory() as temporary,
        prefect_server(Path(temporary) / "home") as environment,
        server(0.0) as url,
        ExitStack() as stack,
    ):
        folder = Path(temporary)
        makers = {"text": text, "choices": choices, "judge": judge(url), "million": million}
        first = _place(folder, "start", 1)
        spent(text(first, 1).command("threads"), environment)  # starts the Prefect server
        dask = "dask" in options.runners.split(",") and "text" in options.works.split(",")
        cluster = stack.enter_context(dask_cluster(environment)) if dask else None
        if cluster is not None:
            begun = time.perf_counter()
            spent(text(first, 1).command("dask", cluster.address), environment)
            print(f"the first run on Dask's new workers, of one item: {time.perf_counter() - begun:.1f} s")
        for work in options.works.split(","):
            for count in sizes or SIZES.get(work, LARGEST):
                made = makers[work](_place(folder, work, count), count)
                runners = options.runners.split(",") if work == "text" else ["threads", "processes"]
                rows = list(in_turns(made, runners, environment, options.rounds, cluster).items())
                alone = [sys.executable, "-c", SCORES_ALONE, *made.inputs]
                if work == "text":
                    rows.append(("scores alone", spent(alone, environment)))
                print_rows(work, count, rows)
                if work == "text":
                    print_bound(alone, environment, dict(rows)["scores alone"])
                if work == "million":
                    print_page(next(made.folder.glob("*/out/report.html")))


def in_turns(
    made: Evaluation,
    runners: list[str],
    environment: dict[str, str],
    rounds: int,
    cluster: Cluster | None,
) -> dict[str, Spent]:
    """What each runner took at its fastest, all of them measured by turns."""
    best: dict[str, Spent] = {}
    for _ in range(rounds):
        for name in runners:
            own = cluster if name == "dask" else None
            command = made.command(name, own.address if own is not None else "")
            taken = spent(command, environment, name == ONE_CORE, own)
            if name not in best or taken.wall < best[name].wall:
                best[name] = taken
    return best


def print_bound(command: list[str], environment: dict[str, str], alone: Spent) -> None:
    """What two processes can be held to on this machine, whose cores may share what they compute with: the
    same work by each of two at once, beside one after the other."""
    start = time.perf_counter()
    both = [subprocess.Popen(command, env=environment) for _ in range(2)]
    for process in both:
        process.wait()
    share = (time.perf_counter() - start) / (2 * alone.wall)
    print(f"two processes at once take {share:.2f} of one after the other here", flush=True)


def print_page(report: Path) -> None:
    """How soon a report can be used, where there is a browser."""
    if CHROMIUM is None:
        print("no Chromium on the PATH: its report was not opened")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = loads(playwright, report, "#search", "no such word")
    first, best = found[0].drawn, min(load.drawn for load in found)
    size = report.stat().st_size / 1e6
    print(f"its report of {size:.1f} MB can be used after {first:.0f} ms, best of {len(found)} {best:.0f} ms")


def _place(folder: Path, work: str, count: int) -> Path:
    place = folder / f"{work}-{count}"
    place.mkdir()
    return place


def print_rows(work: str, count: int, rows: list[tuple[str, Spent]]) -> None:
    """The rows of one work at one size; shares are of the wall time on one core and with threads, where that
    was measured."""
    found = dict(rows)
    for name, taken in rows:
        shares = [
            f"{taken.wall / found[other].wall:.2f}" if other in found else ""
            for other in (ONE_CORE, "threads")
        ]
        print(
            f"| {work} | {count:,} | {name} | {taken.cpu / count * 1e6:,.0f} | {taken.cpu:.1f} | "
            f"{taken.wall:.1f} | {' | '.join(shares)} | {taken.peak / 1e6:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
