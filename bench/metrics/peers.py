"""The same work as the peers do it, and a clock of CPU seconds.

What would take hours (100,000 draws that score a corpus again) is measured for some draws and multiplied;
such rows say so.
"""

import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

from metrics.types import ChoiceBatch

TEXT_DRAWS = 100  # lm-evaluation-harness caps text metrics there
DRAWS = 100_000


def seconds(work: Callable[[], Any], repeats: int = 1) -> float:
    """CPU seconds of this process, the median of some runs."""
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return median(taken)


def harness() -> Any | None:
    """lm-evaluation-harness's metrics, None where it is not installed."""
    try:
        import lm_eval.api.metrics as peer
    except ImportError:
        return None
    return peer


def score_and_bootstrap(
    aggregate: Callable[[Sequence[Any]], float], items: Sequence[Any], draws: int, tried: int
) -> float:
    """Seconds for the score and ``draws`` resamples scored anew, from ``tried`` of them."""
    rng = random.Random(0)
    one = seconds(lambda: [aggregate(rng.choices(items, k=len(items))) for _ in range(tried)]) / tried
    return one * (draws + 1)


def exact_match(peer: Any, references: list[list[str]], predictions: list[str]) -> None:
    """One call an item, as its generation tasks do."""
    for golds, text in zip(references, predictions, strict=True):
        peer.exact_match_hf_evaluate(
            predictions=[text], references=golds, regexes_to_ignore=[",", r"\$", r"\.$"], ignore_case=True
        )


def multiple_choice(batch: ChoiceBatch, names: Sequence[str]) -> None:
    """One ``process_results`` an item, as its multiple-choice tasks do."""
    from lm_eval.api.task import ConfigurableTask

    texts = ["x" * int(length) for length in batch.chars]
    task = SimpleNamespace(
        config=SimpleNamespace(process_results=None),
        _metric_fn_list=dict.fromkeys(names),
        OUTPUT_TYPE="multiple_choice",
        multiple_input=0,
        multiple_target=0,
        doc_to_choice=lambda doc: texts[4 * doc : 4 * doc + 4],
        doc_to_target=lambda doc: int(batch.gold[doc]),
    )
    results = list(zip(batch.lls.tolist(), batch.is_greedy.tolist(), strict=True))
    for item in range(len(batch)):
        ConfigurableTask.process_results(task, item, results[4 * item : 4 * item + 4])


def pass_at_k(n: Sequence[int], c: Sequence[int], k: int) -> list[float]:
    """The loop that everybody has: a product for each item."""
    import numpy as np

    return [
        1.0 if total - right < k else float(1.0 - np.prod(1.0 - k / np.arange(total - right + 1, total + 1)))
        for total, right in zip(n, c, strict=True)
    ]
