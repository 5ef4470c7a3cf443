"""What error bars and comparisons cost at 10,000 items, by default: ``python -m bench.statistics``.

None should take more than a second; the last column says which does. CPU seconds of one call, the best of
three, so that what else runs on the machine does not count.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation, build_aggregation
from metrics.config import StatisticsConfig
from metrics.statistics.comparison import compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.estimate import estimate
from metrics.statistics.unpaired import compare_unpaired
from scorers.judge.calibration import Labelled, ppi_estimate

ITEMS = 10_000
MOST = 1.0
OPTIONS = StatisticsConfig()
Rng = np.random.Generator


def tables(rng: Rng) -> Iterator[tuple[str, Aggregation, Any]]:
    """Aggregations with the statistics, or values, of two runs of 10,000 items."""
    shares = replace(build_aggregation("mean"), bounds=(0.0, 1.0))
    right = rng.random((2, ITEMS)) < 0.7
    yield "mean of 0 and 1", shares, right.astype(np.float64)[:, :, None]
    yield "mean of 16 repeats", shares, rng.binomial(16, rng.beta(2, 1, (2, ITEMS)))[:, :, None] / 16
    yield "mean of numbers", build_aggregation("mean"), rng.lognormal(0, 1, (2, ITEMS, 1))
    length = rng.integers(60, 200, (2, ITEMS))
    possible = np.stack([length - order for order in range(4)], axis=2)
    matched = rng.binomial(possible, 0.6)
    sizes = np.stack([length, length + rng.integers(-8, 9, (2, ITEMS))], axis=2)
    yield "BLEU", build_aggregation("bleu"), np.concatenate([sizes, matched, possible], axis=2).astype(float)
    errors = np.stack([rng.binomial(length, 0.1), length], axis=2).astype(np.float64)
    yield "WER", build_aggregation("wer"), errors
    yield "F1", build_aggregation("f1"), np.eye(4)[rng.integers(0, 4, (2, ITEMS))]
    macro = build_aggregation("f1", {"average": "macro"})
    for count in (30, 100):
        labels = rng.integers(0, count, ITEMS)
        given = np.where(rng.random((2, ITEMS)) < 0.7, labels, rng.integers(0, count, (2, ITEMS)))
        pairs = [list(zip(labels.tolist(), own, strict=True)) for own in given.tolist()]
        yield f"macro F1 of {count} labels", macro, pairs
    yield "perplexity", build_aggregation("perplexity"), rng.normal(-2, 0.5, (2, ITEMS, 1))
    yield "median", build_aggregation("median"), rng.exponential(1, (2, ITEMS))
    own = build_aggregation("own.py:fn", None, lambda _: lambda values: float(np.mean(values)))
    yield "own function", own, rng.exponential(1, (2, ITEMS))
    yield "own function that differs", own, rng.exponential([[1.0], [1.2]], (2, ITEMS))


def _column(run: Any, sums: bool) -> ItemColumn:
    if isinstance(run, list):
        return ItemColumn(np.zeros(len(run)), values=run)
    return ItemColumn(run[:, 0] if sums else run, run if sums else None)


def calls() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is timed, by name."""
    rng = np.random.default_rng(1)
    clusters = np.arange(ITEMS) // 10
    ways = np.column_stack(np.divmod(np.arange(ITEMS), 20))
    for name, aggregation, runs in tables(rng):
        sums = aggregation.kind == "sums"
        given = (runs[0], None) if sums else (None, runs[0])
        columns = [_column(run, sums) for run in runs]
        for called, groups in (("", None), (", clustered", clusters), (", crossed", ways)):
            yield (
                f"{name}{called}: error bar",
                lambda a=aggregation, g=given, c=groups: estimate(a, *g, c, OPTIONS),
            )
            yield (
                f"{name}{called}: comparison",
                lambda a=aggregation, r=columns, c=groups: compare_items(a, r[0], r[1], c, OPTIONS),
            )
        yield (
            f"{name}: unpaired",
            lambda a=aggregation, r=columns: compare_unpaired(a, (r[0], r[1]), (None, None), OPTIONS),
        )
    human, judge = rng.normal(3, 1, 200), rng.normal(3, 1, 200)
    labelled, judged = Labelled.of(human, judge, (1.0, 5.0)), rng.normal(3, 1, ITEMS)
    yield "people's grades over a judge's", lambda: ppi_estimate(labelled, judged, None, 0.95)


def best(call: Callable[[], Any], times: int = 3) -> float:
    """CPU seconds of the fastest call."""
    found = []
    for _ in range(times):
        began = time.process_time()
        call()
        found.append(time.process_time() - began)
    return min(found)


def main() -> None:
    """Prints the table."""
    print(f"| at {ITEMS:,} items | CPU seconds | |\n|---|---|---|")
    for name, call in calls():
        seconds = best(call)
        print(f"| {name} | {seconds:.4f} | {'more than a second' if seconds > MOST else ''} |", flush=True)


if __name__ == "__main__":
    main()
