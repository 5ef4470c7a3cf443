"""Precision, recall and F of ROUGE for each document: rouge-score's numbers, without its loops."""

from collections.abc import Sequence

import numpy as np

from metrics.ngrams import matches, possible
from metrics.ragged import offsets_of, segment_argmax
from metrics.rouge_tokens import Tokenizer, token_pairs
from metrics.subsequences import common_subsequences
from metrics.texts import batches
from metrics.types import Floats, Ints


def rouge_table(
    kind: str, references: Sequence[Sequence[str]], texts: Sequence[str], stemming: bool
) -> Floats:
    """Precision, recall, F measure (n, 3) against each document's best reference by F measure, the first of
    several."""
    own = [text for golds, text in zip(references, texts, strict=True) for _ in golds]
    golds = [gold for golds in references for gold in golds]
    table = np.empty((len(own), 3))
    for batch in batches([len(text) + len(gold) for text, gold in zip(own, golds, strict=True)]):
        table[batch] = _table(kind, own[batch], golds[batch], stemming)
    offsets = offsets_of(np.array([len(golds) for golds in references], dtype=np.int64))
    return np.asarray(table[offsets[:-1] + segment_argmax(table[:, 2], offsets)])


def _table(kind: str, texts: Sequence[str], golds: Sequence[str], stemming: bool) -> Floats:
    if kind == "rougeLsum":
        return _summaries(texts, golds, stemming)
    pairs = token_pairs(tuple(texts), tuple(golds), stemming)
    own, gold = pairs.lengths[::2], pairs.lengths[1::2]
    if kind == "rougeL":
        return _measures(common_subsequences(pairs), own, gold)
    order = int(kind.removeprefix("rouge"))
    return _measures(matches(pairs, order)[:, -1], possible(own, order)[:, -1], possible(gold, order)[:, -1])


def _measures(shared: Floats | Ints, own: Floats | Ints, gold: Floats | Ints) -> Floats:
    precision, recall = shared / np.maximum(own, 1), shared / np.maximum(gold, 1)
    total = precision + recall
    f = np.where(total > 0, 2 * precision * recall / np.where(total > 0, total, 1), 0.0)
    return np.column_stack([precision, recall, f])


def _summaries(texts: Sequence[str], golds: Sequence[str], stemming: bool) -> Floats:
    """ROUGE-Lsum: of two single lines it is ROUGE-L; else rouge-score works out the union of subsequences."""
    table = np.empty((len(texts), 3))
    lined = [row for row in range(len(texts)) if "\n" in texts[row] or "\n" in golds[row]]
    for row in lined:
        table[row] = by_rouge_score("rougeLsum", [[golds[row]]], [texts[row]], Tokenizer(stemming))[0]
    single = np.setdiff1d(np.arange(len(texts)), lined).tolist()
    table[single] = _table("rougeL", [texts[row] for row in single], [golds[row] for row in single], stemming)
    return table


def by_rouge_score(
    kind: str,
    references: Sequence[Sequence[str]],
    texts: Sequence[str],
    tokenizer: Tokenizer | None = None,
    stemming: bool = False,
) -> Floats:
    """The same through rouge-score itself."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=stemming, tokenizer=tokenizer)
    rows = [scorer.score_multi(golds, text)[kind] for golds, text in zip(references, texts, strict=True)]
    return np.asarray(rows, dtype=np.float64).reshape(len(texts), 3)
