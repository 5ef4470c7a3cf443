"""Multiple choice at scale: a million items with four choices, batch by batch, on one core.

Run: ``python -m bench.scorers.multiple_choice [ITEMS]``. Prints CPU seconds from Arrow columns to statistics
for each metric, and the peak memory of the whole process; exits with 1 beyond a target.
"""

import resource
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from scorers.base import Batch
from scorers.choices import ChoiceColumns, choice_batch
from scorers.config import ScoringConfig
from scorers.factory import build_scorer

METRICS = ("acc", "acc_norm", "acc_bytes", "acc_mutual_info", "brier_score")
CHOICES, BATCH, LIMIT_SECONDS, LIMIT_MEGABYTES = 4, 4096, 60.0, 1000.0


def main(items: int) -> int:
    pa.set_cpu_count(1)
    config = ScoringConfig.model_validate({"output_type": "multiple_choice", "metric_list": list(METRICS)})
    scorer = build_scorer(config, None)  # nothing in it is a user's
    seconds = dict.fromkeys(("ChoiceBatch from Arrow", *METRICS), 0.0)
    totals = dict.fromkeys(METRICS, 0.0)
    for columns in arrow_columns(items):
        started = time.process_time()
        batch = as_batch(columns)
        seconds["ChoiceBatch from Arrow"] += time.process_time() - started
        for metric in scorer.get_metrics("none"):
            started = time.process_time()
            scores = scorer.score(batch, metric)
            totals[metric.name] += float(np.nansum(scores.scores.score))
            seconds[metric.name] += time.process_time() - started
    return report(items, seconds, totals)


def arrow_columns(items: int) -> Iterator[ChoiceColumns]:
    """Batches of columns as the store gives them; texts of a few words, one in a hundred requests failed."""
    rng = np.random.default_rng(0)
    words = [" ".join(["answer"] * int(n)) for n in rng.integers(1, 9, 512)]
    for start in range(0, items, BATCH):
        n = min(BATCH, items - start)
        offsets = pa.array(np.arange(0, (n + 1) * CHOICES, CHOICES, dtype=np.int32))
        texts = pa.array(words).take(pa.array(rng.integers(0, len(words), n * CHOICES)))
        listed = pa.ListArray.from_arrays(offsets, texts)
        floats = [
            pa.ListArray.from_arrays(offsets, pa.array(-rng.exponential(9, n * CHOICES))) for _ in range(2)
        ]
        greedy = pa.ListArray.from_arrays(offsets, pa.array(rng.random(n * CHOICES) < 0.1))
        gold = pa.ListArray.from_arrays(
            pa.array(np.arange(n + 1, dtype=np.int32)), pa.array(rng.integers(0, CHOICES, n).astype(np.int32))
        )
        yield ChoiceColumns(
            item_ids=[str(start + row) for row in range(n)],
            scored=rng.random(n) > 0.01,
            lls=floats[0],
            is_greedy=greedy,
            gold=gold,
            continuations=listed,
            choices=listed,
            unconditional=listed,
            unconditional_lls=floats[1],
        )


def as_batch(columns: ChoiceColumns) -> Batch:
    n = len(columns.item_ids)
    nothing: list[None] = [None] * n
    return Batch(
        item_ids=columns.item_ids,
        sample_index=np.zeros(n, dtype=np.int32),
        scored=columns.scored,
        predictions=nothing,
        references=[[]] * n,
        docs=[{}] * n,
        responses=nothing,
        choices=choice_batch(columns),
    )


def report(items: int, seconds: dict[str, float], totals: dict[str, float]) -> int:
    whole = sum(seconds.values())
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{items:,} items × {CHOICES} choices, one core")
    for name, spent in seconds.items():
        mean = f"   mean {totals[name] / items:.4f}" if name in totals else ""
        print(f"  {name:<24} {spent:7.2f} s  {items / max(spent, 1e-9):>12,.0f} items/s{mean}")
    print(f"  {'all':<24} {whole:7.2f} s  (target: under {LIMIT_SECONDS:.0f} s)")
    print(f"  peak memory {megabytes:,.0f} MB (target: under {LIMIT_MEGABYTES:,.0f} MB)")
    return int(whole > LIMIT_SECONDS or megabytes > LIMIT_MEGABYTES)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
