"""BLEU's n-gram statistics of each document, by sacrebleu."""

from collections.abc import Sequence

import numpy as np

from metrics.errors import ConfigError, nearest
from metrics.types import Floats


def bleu_statistics(
    references: Sequence[Sequence[str]], texts: Sequence[str], tokenize: str, lowercase: bool, order: int
) -> Floats:
    """Statistics (n, 2 + 2 * order): lengths of hypothesis and closest reference, matches, n-grams per order."""
    return by_sacrebleu(references, texts, tokenize, lowercase, order)


def by_sacrebleu(
    references: Sequence[Sequence[str]], texts: Sequence[str], tokenize: str, lowercase: bool, order: int
) -> Floats:
    """The same through sacrebleu's own extraction: any tokeniser, any number of references."""
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in BLEU.TOKENIZERS:
        raise ConfigError(f"bleu: tokeniser {tokenize!r} is not known{nearest(tokenize, BLEU.TOKENIZERS)}")
    scorer = BLEU(lowercase=lowercase, tokenize=tokenize, max_ngram_order=order, force=True)
    rows = scorer._extract_corpus_statistics(texts, transposed(references)) if texts else []
    return np.asarray(rows, dtype=np.float64).reshape(len(texts), 2 + 2 * order)


def transposed(references: Sequence[Sequence[str]]) -> list[list[str | None]]:
    """Reference streams as sacrebleu takes them: the j-th references of all documents, None where one has fewer."""
    widest = max((len(golds) for golds in references), default=0)
    return [[golds[j] if j < len(golds) else None for golds in references] for j in range(widest)]
