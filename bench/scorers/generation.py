"""Generated text at scale: filters and exact_match over a million responses, batch by batch, on one core.

Run: ``python -m bench.scorers.generation [RESPONSES]``. Prints CPU seconds for the pipeline of GSM8K's
strict-match and for the score, and the peak memory of the whole process.
"""

import resource
import sys
import time

import numpy as np

from scorers.base import Batch
from scorers.config import ScoringConfig
from scorers.factory import build_pipelines, build_scorer

BATCH = 4096
CONFIG = {
    "filter_list": [
        {
            "name": "strict-match",
            "filter": [{"function": "regex", "regex_pattern": r"#### (\-?[0-9\.\,]+)"}, "normalize_number"],
            "metric_list": [{"metric": "exact_match", "ignore_case": True}],
        }
    ]
}


def main(responses: int) -> None:
    config = ScoringConfig.model_validate(CONFIG)
    (pipeline,), scorer = build_pipelines(config, None), build_scorer(config, None)
    (metric,) = scorer.get_metrics("strict-match")
    rng = np.random.default_rng(0)
    filtering = scoring = right = 0.0
    for start in range(0, responses, BATCH):
        n = min(BATCH, responses - start)
        numbers, answers = rng.integers(0, 9, n).tolist(), rng.integers(0, 9, n).tolist()
        texts = [f"She has {number} and buys some more.\n" * 5 + f"#### {number}," for number in numbers]
        docs = [{}] * n
        started = time.process_time()
        predictions = [item[0] for item in pipeline.apply([[text] for text in texts], docs)]
        filtering += time.process_time() - started
        batch = Batch(
            item_ids=[str(start + row) for row in range(n)],
            sample_index=np.zeros(n, dtype=np.int32),
            scored=np.ones(n, dtype=np.bool_),
            predictions=predictions,
            references=[[str(answer)] for answer in answers],
            docs=docs,
            responses=texts,
        )
        started = time.process_time()
        right += float(scorer.score(batch, metric).scores.score.sum())
        scoring += time.process_time() - started
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{responses:,} responses, one core, {right / responses:.4f} right")
    print(f"  filter {filtering:6.2f} s  {responses / filtering:>10,.0f} responses/s")
    print(f"  score  {scoring:6.2f} s  {responses / scoring:>10,.0f} responses/s")
    print(f"  peak memory {megabytes:,.0f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
