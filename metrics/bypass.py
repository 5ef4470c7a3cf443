"""The metric of a benchmark that only wants its responses."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.registry import metric
from metrics.types import ChoiceBatch, Floats


@metric(
    "bypass",
    batched=True,
    variants=dict.fromkeys(("multiple_choice", "loglikelihood", "loglikelihood_rolling"), "bypass_choices"),
    aggregation="bypass",
    bounds=(999.0, 999.0),
    source="lm-evaluation-harness",
)
def bypass(references: Sequence[Sequence[Any]], predictions: Sequence[Any]) -> Floats:
    """The constant 999, as lm-evaluation-harness reports it: nothing is compared."""
    return np.full(len(predictions), 999.0)


@metric(
    "bypass_choices",
    style="choices",
    output_type=("multiple_choice", "loglikelihood", "loglikelihood_rolling"),
    aggregation="bypass",
    bounds=(999.0, 999.0),
    source="lm-evaluation-harness",
)
def bypass_choices(batch: ChoiceBatch) -> Floats:
    """The same for benchmarks of log-likelihoods, where ``bypass`` means this one."""
    return np.full(len(batch), 999.0)
