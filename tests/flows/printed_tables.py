"""Prints a table of each command on standard output: what `test_narrow_terminals` looks at."""

import fcntl
import struct
import sys
import termios
from typing import Any

import numpy as np
import pyarrow as pa

from flows import history, power
from flows.compare.runs import ComparisonTable, compare_opened, comparison_document
from flows.suite.scores import scores_table
from tasks.comparison.compare import Gate
from tasks.comparison.matching import GroupKey, ItemGroup
from tasks.comparison.runs import ComparedRun
from tasks.history.query import QueryResult
from tasks.reporting.terminal import console, results_table
from tasks.store.schemas import RESULTS

MODEL = "a_model_with_quite_a_long_name"


def result(**fields: Any) -> dict[str, Any]:
    return dict.fromkeys(RESULTS.names) | {
        "benchmark": "sums", "model_name": MODEL, "prompt_template": "p", "filter": "flexible-extract",
        "metric": "exact_match", "reduction": "pass@8", "facets": "{}", "value": 0.6905, "stderr": 0.0722,
        "ci_low": 0.5397, "ci_high": 0.8093, "n_items": 1319, "n_samples": 1319, "n_scored": 1319,
        "n_unscored": 0, "higher_is_better": True, "status": "ok",
    } | fields  # fmt: skip


def run(name: str, right: int) -> ComparedRun:
    """A run of 300 items on one model, the first ``right`` of them right."""
    key = GroupKey("my_benchmark", "last-number", "exact_match", "mean", None, (("model_name", "qwen"),))
    names = np.array([f"q{n}" for n in range(300)], dtype=object)
    value = (np.arange(300) < right).astype(float)
    items = ItemGroup(names, names, None, value, value[:, None], None, np.ones(300, dtype=bool))
    row = result(
        benchmark="my_benchmark", filter="last-number", reduction="mean", value=right / 300, ci_low=0.2815,
        ci_high=0.3885, facets='{"model_name": "qwen"}', model_name="qwen", prompt_template=None,
    )  # fmt: skip
    return ComparedRun(name, {key: items}, (row,))


BEFORE, AFTER = run("monday", 200), run("tuesday", 100)
COMPARED = compare_opened(BEFORE, AFTER, Gate(margin=0.05))
PLANNED = power.PairPower(
    "exact_match,none", "own", "assumed", 200, 1, 0.01, 0.05, 0.1, True,
    (power.Design(16, 1319, False, power.Cost(21104, 2110400, 1055200, 1234.5)),),
)  # fmt: skip
ROWS = QueryResult(("run_id", "metric", "value", "n"), [("sums-0123456789abcdef", "bleu", 0.6905123, 123456)])
TABLES = {
    "eval": lambda: results_table(
        pa.Table.from_pylist(
            [result(), result(metric="bleu", value=7.6771, error="too few units", n_unscored=3)], RESULTS
        )
    ),
    "compare": lambda: ComparisonTable(COMPARED),
    "suite": lambda: scores_table([AFTER], comparison_document(COMPARED)["pairs"]),
}


def main() -> None:
    """All tables at each of the widths that are given, each under the width and its name."""
    for width in map(int, sys.argv[1:]):
        fcntl.ioctl(sys.stdout, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
        for name, table in TABLES.items():
            print(f"== {width} {name}", flush=True)
            console().print(table())
        print(f"== {width} sql")
        history.print_rows(ROWS, as_json=False)
        print(f"== {width} power")
        power._show("sums", [PLANNED], "USD")


if __name__ == "__main__":
    main()
