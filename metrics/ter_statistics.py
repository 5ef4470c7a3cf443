"""TER's edits of each document: by a compiled kernel where numba is installed, else by sacrebleu."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from metrics.errors import MetricError
from metrics.types import Floats, Ints


@dataclass(frozen=True)
class Options:
    """How sacrebleu's tokeniser prepares a segment."""

    normalized: bool = False
    no_punct: bool = False
    asian_support: bool = False
    case_sensitive: bool = False


def ter_statistics(references: Sequence[Sequence[str]], texts: Sequence[str], options: Options) -> Floats:
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
    """The fastest counter at hand: (words of hypothesis, words of reference) → (edits, reference length)."""
    try:
        from metrics.kernels.ter import edits
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
