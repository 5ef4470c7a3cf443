"""Programs a second: by the stage that runs them, by ``subprocess.run`` alone, and by evaluate's code_eval.

    python -m bench.execution [--programs N] [--peer PYTHON] [--code-eval FOLDER]

``subprocess.run`` starts a bare interpreter for each program, with no sandbox and no verdict that could be
trusted: what a sandbox costs is seen beside it. The stage runs the same programs with a journal, each by a
Python and in namespaces of its own, as many at once as there are cores; wanted are 80 a second on two quiet
ones. ``code_eval`` is the library's own (``--code-eval`` names a copy of the folder
``metrics/code_eval`` where it can't be fetched); without it its line says so.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from bench.lm_eval.peer import peer_python
from scorers.config import Program, ProgramLimits
from tasks.rows.execution import CORES, OutcomeStore, ProgramRunner
from tasks.sandboxes.kinds import SANDBOXES, Sandbox
from tasks.sandboxes.run import run_program, trouble
from tasks.store.storage import Store

PROGRAMS, WANTED = 200, 80.0
SMALL = "def add(a, b):\n    return a + b\n\nassert add({n}, 1) == {n} + 1\nassert add({n}, 2) != {n}\n"
LIMITS = ProgramLimits(seconds=30)
PEER = """
import sys, time, evaluate
folder, count, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
text = sys.stdin.read()
metric = evaluate.load(folder)
began = time.perf_counter()
programs = [text.format(n=n) for n in range(count)]
candidates = [[program] for program in programs]
value = metric.compute(references=[""] * count, predictions=candidates, k=[1], num_workers=workers)
assert value[0]["pass@1"] == 1.0
print(count / (time.perf_counter() - began))
"""


def rate(count: int, run: Callable[[], object]) -> float:
    """Programs a second."""
    began = time.perf_counter()
    run()
    return count / (time.perf_counter() - began)


def by_the_stage(programs: Sequence[Program], sandbox: Sandbox) -> float:
    """With its journal and store, as a run has them."""
    run_program(replace(programs[0], text="assert True"), sandbox)  # what is tried once a process
    with tempfile.TemporaryDirectory() as folder:
        kept = OutcomeStore(Store(str(Path(folder, "store"))), Path(folder, "journal"))
        with ProgramRunner(kept, lambda: sandbox) as runner:

            def run() -> None:
                outcomes = runner.run(programs)
                assert all(outcome is not None and outcome.verdict == "passed" for outcome in outcomes)

            return rate(len(programs), run)


def by_subprocess(programs: Sequence[Program]) -> float:
    """A bare interpreter for each, as many at once."""

    def one(program: Program) -> None:
        subprocess.run(
            [sys.executable, "-I", "-S", "-B", "-c", program.text], check=True, capture_output=True
        )

    with ThreadPoolExecutor(CORES) as pool:
        return rate(len(programs), lambda: list(pool.map(one, programs)))


def by_code_eval(count: int, peer: str | None, folder: str) -> str:
    """The library's; in words why not, where it can't be had."""
    if peer is None:
        return "evaluate is not installed"
    run = subprocess.run(
        [peer, "-c", PEER, folder, str(count), str(CORES)],
        env={**os.environ, "HF_ALLOW_CODE_EVAL": "1", "HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"},
        input=SMALL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        return f"can't be had: {(run.stderr.strip().splitlines() or ['no word'])[-1][:90]}"
    return f"{float(run.stdout):8.1f}"


def main() -> int:
    """Prints the table; exits 1 where no sandbox that is there reaches what is wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--peer", help="python that has evaluate")
    parser.add_argument("--code-eval", default="code_eval", help="folder of the metric")
    options = parser.parse_args()
    programs = [Program(SMALL.format(n=n), LIMITS) for n in range(options.programs)]
    print(f"{len(programs)} small programs, {CORES} at once: programs a second")
    reached = []
    for sandbox in SANDBOXES:
        reason = trouble(sandbox.name)
        if reason is not None:
            print(f"{sandbox.name:24} not here: {reason[:80]}")
            continue
        reached.append(by_the_stage(programs, sandbox))
        print(f"{sandbox.name:24} {reached[-1]:8.1f} (wanted {WANTED:.0f} on two quiet cores)")
    print(f"{'subprocess.run':24} {by_subprocess(programs):8.1f} (no sandbox)")
    peer = peer_python(options.peer, "evaluate")
    print(f"{'evaluate code_eval':24} {by_code_eval(len(programs), peer, options.code_eval)}")
    return int(bool(reached) and max(reached) < WANTED)


if __name__ == "__main__":
    raise SystemExit(main())
