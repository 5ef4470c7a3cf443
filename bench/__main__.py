"""``make bench``: every table, one after the other; names of tables as arguments run those alone."""

import subprocess
import sys

TABLES = {
    "start": ["bench.start"],
    "metrics": ["bench.metrics"],
    "scorers": ["bench.scorers.generation", "bench.scorers.multiple_choice"],
    "evaluation": ["bench.evaluation"],
    # With an interpreter that has lm-evaluation-harness, which NIGHTJAR_BENCH_PEER names; else they say so.
    "lm_eval": ["bench.lm_eval.served", "bench.lm_eval.random_weights"],
    "inference": ["bench.inference.throughput", "bench.inference.processes", "bench.inference.scale"],
}


def main() -> int:
    """Runs the tables in processes of their own, so that none warms another's caches."""
    wanted = sys.argv[1:] or list(TABLES)
    unknown = sorted(set(wanted) - set(TABLES))
    if unknown:
        print(f"no table named {unknown[0]}; there are {', '.join(TABLES)}", file=sys.stderr)
        return 2
    codes = []
    for name in wanted:
        for module in TABLES[name]:
            print(f"\n== {module}", flush=True)
            codes.append(subprocess.run([sys.executable, "-m", module], check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    raise SystemExit(main())
