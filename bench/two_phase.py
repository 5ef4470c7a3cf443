"""Made two-phase files by the framework itself and by this project: numbers that differ.

    python -m bench.two_phase --framework CHECKOUT [--files 500]

CHECKOUT is a folder with the framework's sources (pootow/een-eval-framework); without it, or the variable
``NIGHTJAR_BENCH_TWO_PHASE``, the table says so. Only the modules of its metrics are imported.
"""

import argparse
import logging
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from tests.parity.here import computed, differences
from tests.parity.made import MadeFile, Row, judge, made, own
from tests.parity.rules import Group

VARIABLE = "NIGHTJAR_BENCH_TWO_PHASE"


def metric_class(checkout: Path) -> Any:
    """The framework's ``Metric``; its packages are entered without their ``__init__``, which asks for clients
    of models."""
    root = checkout / "src" / "een_eval"
    for name, folder in (("een_eval", root), *((f"een_eval.{one}", root / one) for one in
                         ("core", "workflow", "utils"))):  # fmt: skip
        package = types.ModuleType(name)
        package.__path__ = [str(folder)]
        sys.modules[name] = package
    from een_eval.core import metrics

    return metrics


def theirs(file: MadeFile, metrics: Any) -> dict[Group, Row | None]:
    """The framework's numbers; None where it refuses. Differences on the page of two-phase files are made up
    for: a row that does not say its prompt is of the run's."""
    results = []
    for row in file.rows:
        metadata = {"prompt_template": "default"} | row["metadata"]
        for entry in judge(row["response"])["labels"]:
            said = entry["result"]
            details = {name: value for name, value in said.items() if name not in ("passed", "score")}
            results.append({
                "item_id": row["item_id"], "model_name": row["model_name"], "metadata": metadata,
                "label": entry["label"]["name"], "passed": said["passed"], "score": said["score"],
                "detailed_results": details,
            })  # fmt: skip
    found: dict[Group, Row | None] = {}
    for config in file.metrics:
        about = {"facets": config["facets"], "labels": config.get("labels", {}), **config["params"]}
        if config["type"] == "own":
            made_metric = metrics.CustomMetric(config["name"], own, **about)
        else:
            made_metric = metrics.BuiltInMetric.create(config["name"], config["type"], **about)
        for line in made_metric.calculate(results):
            key = (config["name"], line["label"], tuple(line[facet] for facet in config["facets"]))
            skip = {"facets", "label", "metric_name", "num_trials", "aggregation", *config["facets"]}
            found[key] = None if "error" in line else {k: v for k, v in line.items() if k not in skip}
    return found


def main() -> int:
    """0 where no number differs."""
    parser = argparse.ArgumentParser(prog="python -m bench.two_phase")
    parser.add_argument("--framework", type=Path, default=os.environ.get(VARIABLE))
    parser.add_argument("--files", type=int, default=500)
    options = parser.parse_args()
    if options.framework is None:
        print(f"the framework is not here: name its checkout by --framework or {VARIABLE}")
        return 0
    logging.disable(logging.ERROR)
    metrics, values, differing = metric_class(Path(options.framework)), 0, []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.files):
            file = made(seed)
            if any("+" in item for item in file.items) and any(
                "item_id" in m["facets"] for m in file.metrics
            ):
                continue  # there a "+" in a facet's value shifts the others
            wanted = theirs(file, metrics)
            values += sum(len(numbers or ()) for numbers in wanted.values())
            differing += [f"seed {seed}: {one}" for one in differences(wanted, computed(file, Path(folder)))]
    print("\n".join(differing[:20]))
    print(f"{options.files} files, {values:,} values, {len(differing)} differ")
    return int(bool(differing))


if __name__ == "__main__":
    raise SystemExit(main())
