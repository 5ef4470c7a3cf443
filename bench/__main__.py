"""``make bench``: every table, one after the other; names of tables as arguments run those alone.

    python -m bench [TABLE]… [--peer PYTHON]

``--peer``, else the variable ``NIGHTJAR_BENCH_PEER``, names a Python that has lm-evaluation-harness (the
extra ``bench``); a table that needs it and finds it nowhere says so.
"""

import argparse
import os
import subprocess
import sys

from bench.lm_eval.peer import VARIABLE

TABLES = {
    "start": ["bench.start"],
    "metrics": ["bench.metrics"],
    "statistics": ["bench.statistics"],
    "scorers": ["bench.scorers.generation", "bench.scorers.multiple_choice"],
    "evaluation": ["bench.evaluation"],
    "pipeline": ["bench.pipeline"],
    "wide": ["bench.wide"],
    "history": ["bench.history"],
    "nights": ["bench.nights"],
    "pages": ["bench.pages"],
    "execution": ["bench.execution"],
    "lm_eval": ["bench.lm_eval.served", "bench.lm_eval.random_weights"],
    "serving": ["bench.lm_eval.hf"],
    "collection": ["bench.lm_eval.made", "bench.lm_eval.zoo"],
    "inference": [
        "bench.inference.throughput",
        "bench.inference.processes",
        "bench.inference.scale",
        "bench.inference.native",
    ],
}


def main() -> int:
    """Runs the tables in processes of their own, so that none warms another's caches."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--peer", help="python that has lm-eval")
    options = parser.parse_args()
    wanted = options.tables or list(TABLES)
    unknown = sorted(set(wanted) - set(TABLES))
    if unknown:
        print(f"no table named {unknown[0]}; there are {', '.join(TABLES)}", file=sys.stderr)
        return 2
    environment = {**os.environ, **({VARIABLE: options.peer} if options.peer else {})}
    codes = []
    for name in wanted:
        for module in TABLES[name]:
            print(f"\n== {module}", flush=True)
            run = subprocess.run([sys.executable, "-m", module], env=environment, check=False)
            codes.append(run.returncode)
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main())
