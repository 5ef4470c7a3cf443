"""ROUGE-1, -2, -L and -Lsum, equal to rouge-score's."""

from collections.abc import Sequence
from typing import Any

from metrics.errors import ConfigError
from metrics.registry import metric
from metrics.rouge_scores import rouge_table
from metrics.texts import hypotheses, reference_lists
from metrics.types import Floats

LIN = "Lin 2004; rouge-score"
MEASURES = ("precision", "recall", "fmeasure")


def _rouge(
    kind: str,
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    stem: bool,
    measure: str,
    scale: float,
) -> Floats:
    if measure not in MEASURES:
        raise ConfigError(f"{kind}: measure must be one of {', '.join(MEASURES)}, not {measure!r}")
    table = rouge_table(kind, reference_lists(references, kind), hypotheses(predictions, kind), stem)
    return scale * table[:, MEASURES.index(measure)]


@metric("rouge1", batched=True, libraries=("rouge-score", "nltk"), bounds=(0.0, 100.0), source=LIN)
def rouge1(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    use_stemmer: bool = True,
    measure: str = "fmeasure",
    scale: float = 100.0,
) -> Floats:
    """Overlap of single words, F measure on a 0-100 scale; of several references the best; higher is
    better."""
    return _rouge("rouge1", references, predictions, use_stemmer, measure, scale)


@metric("rouge2", batched=True, libraries=("rouge-score", "nltk"), bounds=(0.0, 100.0), source=LIN)
def rouge2(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    use_stemmer: bool = True,
    measure: str = "fmeasure",
    scale: float = 100.0,
) -> Floats:
    """Overlap of word pairs, F measure on a 0-100 scale; of several references the best; higher is better."""
    return _rouge("rouge2", references, predictions, use_stemmer, measure, scale)


@metric("rougeL", batched=True, libraries=("rouge-score", "nltk"), bounds=(0.0, 100.0), source=LIN)
def rouge_l(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    use_stemmer: bool = True,
    measure: str = "fmeasure",
    scale: float = 100.0,
) -> Floats:
    """Longest common subsequence of words, F measure on a 0-100 scale; the best reference; higher is
    better."""
    return _rouge("rougeL", references, predictions, use_stemmer, measure, scale)


@metric("rougeLsum", batched=True, libraries=("rouge-score", "nltk"), bounds=(0.0, 100.0), source=LIN)
def rouge_l_sum(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    use_stemmer: bool = True,
    measure: str = "fmeasure",
    scale: float = 100.0,
) -> Floats:
    """ROUGE-L over sentences (lines), union of subsequences, 0-100; the best reference; higher is better."""
    return _rouge("rougeLsum", references, predictions, use_stemmer, measure, scale)
