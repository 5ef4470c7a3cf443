"""Scores the harness's own sample logs again and compares every number with its.

    python bench/lm_eval/rescoring.py [FOLDER] [--peer PYTHON]

The peer evaluates a made-up model on the definitions of FOLDER (default: those of the tests) and logs its
samples; they are scored again here, with nothing but the logs and the definitions. Means have to agree within
1e-6, standard errors of means too; bootstrapped ones are shown only. Without lm-eval in the peer's Python the
comparison is skipped, saying so.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).parent))

from prompts import CASES  # noqa: E402

from bench.lm_eval.peer import ABSENT, peer_python  # noqa: E402


def run_peer(python: str, folder: Path, output: Path, names: list[str]) -> dict[str, Any]:
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(output / "cache"),
        "LMEVAL_LOG_LEVEL": "ERROR",
        "DISABLE_MULTIPROC": "1",
    }
    command = [python, str(Path(__file__).with_name("peer_run.py")), str(folder), str(output), *names]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"the peer failed:\n{run.stderr[-3000:]}")
    return json.loads((output / "peer.json").read_text())


def run_ours(folder: Path, logs: Path, workspace: Path, names: list[str]) -> dict[str, Any]:
    from tasks.benchmarks.lm_eval import rescoring_configs, select

    definitions = select(names, [folder]).benchmarks
    paths = []
    for config in rescoring_configs(logs, workspace, definitions):
        path = workspace / f"{config['name']}.yaml"
        path.write_text(yaml.safe_dump({**config, "statistics": {"bootstrap_iters": 1000}}, sort_keys=False))
        paths.append(str(path))
    output = workspace / "out"
    command = [
        sys.executable,
        "-m",
        "flows.eval",
        *paths,
        "--output",
        str(output),
        "--store",
        str(workspace / "store"),
        "--json",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        print(f"exit {run.returncode}\n{run.stderr[-2500:]}")
    found: dict[str, Any] = {}
    for file in sorted(output.rglob("results.json")):
        found |= json.loads(file.read_text())["results"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=CASES)
    parser.add_argument("--peer")
    options = parser.parse_args()
    python = peer_python(options.peer)
    if python is None:
        print(f"skipped: {ABSENT}")
        return
    from tasks.benchmarks.lm_eval import build_index

    index = build_index([options.folder])
    names = sorted(name for name, entry in index.entries.items() if entry.kind == "benchmark")
    with tempfile.TemporaryDirectory() as temporary:
        logs, workspace = Path(temporary, "logs"), Path(temporary, "ours")
        logs.mkdir()
        workspace.mkdir()
        theirs = run_peer(python, options.folder, logs, names)
        ours = run_ours(options.folder, logs, workspace, names)
    worst = 0.0
    for name, numbers in theirs.items():
        for key, value in numbers.items():
            if not isinstance(value, float):
                continue
            own = ours.get(name, {}).get(key)
            gap = abs(own - value) if isinstance(own, float | int) else math.inf
            bootstrapped = "_stderr" in key and not key.startswith(("acc", "exact", "ratio"))
            worst = worst if bootstrapped else max(worst, gap)
            print(
                f"{name:28} {key:36} {value:12.8f} {own!s:>20} "
                f"{'' if gap < 1e-6 else 'bootstrap' if bootstrapped else 'DIFFERS'}"
            )
    print(f"largest difference {worst:.2e}")
    raise SystemExit(worst > 1e-6)


if __name__ == "__main__":
    main()
