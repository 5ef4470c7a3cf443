"""What many cells cost, and many pairs: ``python -m bench.wide`` prints the table.

    python -m bench.wide [--benchmarks 15,60] [--models 3] [--items 100000] [--pairs 5,20]

*Suites*: two nights of so many benchmarks on so many models, each with recorded answers to 20 items and two
pairs. The second is compared with the first. *Pairs*: one evaluation of recorded answers by so many pairs, of
which every five share a filter. Both are commands as a user gives them, against a Prefect server that runs
already. A unit is a benchmark on a model, or a pair's item. *Task runs* are those in Prefect's graph, *page*
is the largest HTML file. A unit of a wider work may take 1.25 of the CPU of one of the narrowest, and the
work 1.5 GB of memory: the exit code is 1 where one takes more.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.inference.processes import prefect_server
from bench.pipeline import Spent, recorded, spent, text
from tasks.store.home import PROJECT

ITEMS = 20
"""Of each benchmark of a suite."""
GROWTH, MEMORY = 1.25, 1.5e9
METRICS = ("exact_match", "bleu", "chrf", "rouge1", "rougeL")
"""Of each filter; the filters of a bench's pairs differ in nothing but their arguments."""
BENCHMARK = """
prompt_template: "Question: {{ question }}\\nAnswer:"
target: "{{ answer }}"
models: [{name: recorded, type: replay, config: {path: RESPONSES}}]
metric_list: [{metric: exact_match}, {metric: rougeL}]
"""
COLUMNS = "work | units | CPU s | CPU of a unit | of the smallest's | wall s | peak MB | task runs | page MB"


@dataclass(frozen=True)
class Wide:
    """A command, what it does so many units of, and the folder that its pages go to."""

    name: str
    command: list[str]
    units: int
    output: Path


def suite(folder: Path, benchmarks: int, models: int) -> Callable[[int], Wide]:
    """Makes the suite; given the number of a night, that night."""
    folder.mkdir()
    rows = ((str(item), {"response": str(item + item % 3 // 2)}) for item in range(ITEMS))
    shared = recorded(folder, BENCHMARK, rows, ITEMS)  # of all benchmarks: they differ in their names alone
    paths = []
    for number in range(benchmarks):
        config = folder / f"benchmark-{number}.yaml"
        body = (folder / "config.yaml").read_text()
        config.write_text(body.replace("name: pipeline", f"name: benchmark-{number}"))
        paths.append(config.name)
    named = [
        {"name": f"model-{number}", "type": "replay", "config": {"path": shared.inputs[1]}}
        for number in range(models)
    ]
    path = folder / "suite.yaml"
    about = {"name": f"wide-{benchmarks}", "benchmarks": paths, "models": named, "gate": {"margin": 0.05}}
    path.write_text(json.dumps({**about, "answers": "fresh", "baseline": "last"}))

    def night(number: int) -> Wide:
        output = folder / f"night-{number}"
        command = [
            sys.executable, "-m", "flows.suite", str(path), "--json",
            "--store", str(folder / "store"), "--output", str(output),
        ]  # fmt: skip
        name = f"{benchmarks} benchmarks × {models} models, night {number}"
        return Wide(name, command, benchmarks * models, output)

    return night


def pairs(folder: Path, items: int, count: int) -> Wide:
    """An evaluation by so many pairs."""
    folder.mkdir()
    made = text(folder, items)
    path = folder / "config.yaml"
    config = path.read_text()
    filters = [
        {
            "name": f"filter-{number}",
            "filter": [{"function": "regex", "regex_pattern": f"^(?s:.{{{number},}})$"}],
            "metric_list": [{"metric": metric} for metric in METRICS[: count - len(METRICS) * number]],
        }
        for number in range(-(-count // len(METRICS)))
    ]
    body = config[: config.index("metric_list:")]
    path.write_text(body + f"filter_list: {json.dumps(filters)}\n")
    output = folder / "out"
    command = [
        sys.executable, "-m", "flows.eval", str(made.folder / "config.yaml"), "--json",
        "--store", str(folder / "store"), "--output", str(output),
    ]  # fmt: skip
    return Wide(f"{items:,} items × {count} pairs", command, items * count, output)


def task_runs(environment: dict[str, str]) -> int:
    """How many task runs the server of an environment knows."""
    told = _said([sys.executable, "-m", "flows.server", "env"], environment)
    named = dict(line.removeprefix("export ").split("=", 1) for line in told.splitlines())
    server = {name: "".join(shlex.split(value)) for name, value in named.items()}
    code = "from flows.server.connection import ask; print(ask('/task_runs/count', {}))"
    return int(_said([sys.executable, "-c", code], {**environment, **server}))


def _said(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(
        command, env=environment, cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def measured(wide: Wide, environment: dict[str, str], smallest: float | None) -> tuple[float, bool]:
    """Prints a row; the CPU seconds of a unit, and whether it is as cheap as wanted."""
    before = task_runs(environment)
    taken: Spent = spent(wide.command, environment)
    submitted = task_runs(environment) - before
    unit = taken.cpu / wide.units
    share = unit / (smallest or unit)
    page = max(path.stat().st_size for path in wide.output.rglob("*.html"))
    print(
        f"| {wide.name} | {wide.units:,} | {taken.cpu:.1f} | {_short(unit)} | {share:.2f} | "
        f"{taken.wall:.1f} | {taken.peak / 1e6:,.0f} | {submitted:,} | {page / 1e6:.2f} |",
        flush=True,
    )
    return unit, share <= GROWTH and taken.peak <= MEMORY


def _short(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.01 else f"{seconds * 1e6:.1f} µs"


def main() -> int:
    """Parses arguments, measures and prints row by row; 1 where something takes more than wanted."""
    parser = argparse.ArgumentParser(prog="python -m bench.wide", description=__doc__.partition("\n")[0])
    parser.add_argument("--benchmarks", default="15,60", help="of a suite; nothing leaves suites out")
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--pairs", default="5,20", help="nothing leaves them out")
    options = parser.parse_args()
    print(f"| {COLUMNS} |\n|{'---|' * (COLUMNS.count('|') + 1)}")
    held = []
    with tempfile.TemporaryDirectory() as temporary, prefect_server(Path(temporary) / "home") as environment:
        folder = Path(temporary)
        # The first command starts the server, and Python's own files of the imports are there after it.
        spent(pairs(folder / "start", 1, 1).command, environment)
        nights: dict[int, float] = {}
        for count in _numbers(options.benchmarks):
            night = suite(folder / f"suite-{count}", count, options.models)
            for number in (1, 2):
                unit, holds = measured(night(number), environment, nights.get(number))
                nights.setdefault(number, unit)
                held.append(holds)
        smallest = None
        for count in _numbers(options.pairs):
            unit, holds = measured(
                pairs(folder / f"pairs-{count}", options.items, count), environment, smallest
            )
            smallest = smallest or unit
            held.append(holds)
    return 0 if all(held) else 1


def _numbers(named: str) -> list[int]:
    return [int(number) for number in named.split(",") if number]


if __name__ == "__main__":
    sys.exit(main())
