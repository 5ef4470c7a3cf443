"""Precision, recall and F of ROUGE for each document, by rouge-score."""

from collections.abc import Sequence

import numpy as np

from metrics.types import Floats


def rouge_table(kind: str, references: Sequence[Sequence[str]], texts: Sequence[str], stem: bool) -> Floats:
    """Precision, recall, F measure (n, 3) against each document's best reference by F measure."""
    return by_rouge_score(kind, references, texts, stem)


def by_rouge_score(kind: str, references: Sequence[Sequence[str]], texts: Sequence[str], stem: bool) -> Floats:
    """The same through rouge-score itself."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=stem)
    rows = [scorer.score_multi(golds, text)[kind] for golds, text in zip(references, texts, strict=True)]
    return np.asarray(rows, dtype=np.float64).reshape(len(texts), 3)
