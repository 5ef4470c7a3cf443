"""Translation edit rate, equal to sacrebleu's.

``metrics.text._ter_numba`` counts the edits where numba is installed, sacrebleu where it is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation, Count, Total, aggregation_factory
from metrics.errors import MetricError
from metrics.registry import metric
from metrics.text.edits import edit_rate
from metrics.text.inputs import hypotheses, read_text_pairs, reference_lists
from metrics.types import Floats, Ints, Scores

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
    options = TerOptions(normalized, no_punct, asian_support, case_sensitive)
    statistics = ter_statistics(reference_lists(references, "ter"), hypotheses(predictions, "ter"), options)
    return Scores(statistics=statistics, values=None, score=_rate(statistics, 1.0))


@aggregation_factory(
    "ter",
    source=SNOVER,
    takes="a pair (reference, prediction)",
    example=(("a b c", "a c"), (["x"], "y")),
)
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

    return edit_rate("ter", _rate, read)


def _rate(total: Total, n: Count) -> Floats:
    """100 · edits / length; 100 for edits without any reference word, 0 where both are empty."""
    edits, length = total[..., 0], total[..., 1]
    return np.asarray(
        100 * np.where(length > 0, edits / np.where(length > 0, length, 1), np.where(edits > 0, 1.0, 0.0))
    )


@dataclass(frozen=True)
class TerOptions:
    """How sacrebleu's tokeniser prepares a segment."""

    normalized: bool = False
    no_punct: bool = False
    asian_support: bool = False
    case_sensitive: bool = False


def ter_statistics(references: Sequence[Sequence[str]], texts: Sequence[str], options: TerOptions) -> Floats:
    """Edits to the closest reference and mean length of the references (n, 2)."""
    from sacrebleu.tokenizers.tokenizer_ter import TercomTokenizer

    tokenizer = TercomTokenizer(
        normalized=options.normalized,
        no_punct=options.no_punct,
        asian_support=options.asian_support,
        case_sensitive=options.case_sensitive,
    )
    edits = edit_counter()
    table = np.empty((len(texts), 2))
    for row, (golds, text) in enumerate(zip(references, texts, strict=True)):
        own = tokenizer(text.rstrip()).split()
        counted = [_edits(edits, own, tokenizer(gold.rstrip()).split(), row) for gold in golds]
        table[row] = min(count for count, _ in counted), sum(length for _, length in counted) / len(counted)
    return table


Edits = Callable[[list[str], list[str]], tuple[int, int]]


@cache
def edit_counter() -> Edits:
    """Fastest counter available: (words of hypothesis, words of reference) → (edits, reference length)."""
    try:
        from metrics.text._ter_numba import edits
    except ImportError:  # numba is an extra
        return by_sacrebleu

    def compiled(own: list[str], gold: list[str]) -> tuple[int, int]:
        if not gold:
            return len(own), 0
        first, second = _numbered(own, gold)
        counted = int(edits(first, second))
        return (counted, len(gold)) if counted >= 0 else by_sacrebleu(own, gold)

    return compiled


def by_sacrebleu(own: list[str], gold: list[str]) -> tuple[int, int]:
    """The same by sacrebleu's own loops."""
    from sacrebleu.metrics.lib_ter import translation_edit_rate

    counted: Any = translation_edit_rate(own, gold)
    return int(counted[0]), int(counted[1])


def _edits(counter: Edits, own: list[str], gold: list[str], row: int) -> tuple[int, int]:
    try:
        return counter(own, gold)
    except MetricError:
        raise
    except Exception as error:  # sacrebleu raises a bare Exception where its beam misses every path
        raise MetricError(f"ter: row {row}: the edits cannot be traced ({error})", row) from error


def _numbered(own: Sequence[str], gold: Sequence[str]) -> tuple[Ints, Ints]:
    numbers: dict[str, int] = {}
    coded = [[numbers.setdefault(word, len(numbers)) for word in words] for words in (own, gold)]
    return np.array(coded[0], dtype=np.int64), np.array(coded[1], dtype=np.int64)
