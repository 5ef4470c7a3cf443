"""Translation edit rate, equal to sacrebleu's."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from metrics.aggregations import Aggregation, Count, Total, factory
from metrics.registry import metric
from metrics.ter_statistics import Options, ter_statistics
from metrics.texts import hypotheses, read_text_pairs, reference_lists
from metrics.types import Floats, Scores

SNOVER = "Snover et al. 2006; sacrebleu"


@metric(
    "ter",
    batched=True,
    aggregation="ter",
    higher_is_better=False,
    libraries=("sacrebleu",),
    bounds=(0.0, float("inf")),
    source=SNOVER,
)
def ter(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    normalized: bool = False,
    no_punct: bool = False,
    asian_support: bool = False,
    case_sensitive: bool = False,
) -> Scores:
    """Edits and shifts per reference word in percent, equal to ``sacrebleu.corpus_ter``; lower is better.

    Statistics (n, 2): edits to the closest reference, mean reference length. No prediction is an empty
    hypothesis. A sample's score is its own rate. With numba installed a compiled kernel does the counting.
    """
    options = Options(normalized, no_punct, asian_support, case_sensitive)
    statistics = ter_statistics(reference_lists(references, "ter"), hypotheses(predictions, "ter"), options)
    return Scores(statistics=statistics, values=None, score=_rate(statistics, 1.0))


@factory("ter", source=SNOVER)
def ter_aggregation(
    *,
    normalized: bool = False,
    no_punct: bool = False,
    asian_support: bool = False,
    case_sensitive: bool = False,
) -> Aggregation:
    """Translation edit rate of added-up edits and lengths, or of (reference, prediction) pairs; percent."""

    def read(values: Sequence[Any]) -> Scores:
        references, predictions = read_text_pairs(values, "ter")
        return ter(
            references,
            predictions,
            normalized=normalized,
            no_punct=no_punct,
            asian_support=asian_support,
            case_sensitive=case_sensitive,
        )

    return Aggregation("ter", k=2, compute=_rate, read=read, bounds=(0.0, float("inf")))


def _rate(total: Total, n: Count) -> Floats:
    """100 · edits / length; 100 for edits without any reference word, 0 where both are empty."""
    edits, length = total[..., 0], total[..., 1]
    return np.asarray(
        100 * np.where(length > 0, edits / np.where(length > 0, length, 1), np.where(edits > 0, 1.0, 0.0))
    )
