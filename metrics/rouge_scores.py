"""Precision, recall and F of ROUGE for each document: rouge-score's numbers, without its loops."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

import numpy as np

from metrics.ngrams import Sequences, fits, matches, possible
from metrics.porter import stem
from metrics.types import Floats, Ints

_CHUNK = 4096  # pairs of texts
_KEPT = 4 * _CHUNK  # texts
_TOKEN = re.compile(r"[a-z0-9]+")


@lru_cache(maxsize=1 << 18)
def _stem(word: str) -> str:
    """The stem of a word, each distinct one stemmed once; rouge-score leaves words of three letters alone."""
    return stem(word) if len(word) > 3 else word


@lru_cache(maxsize=_KEPT)
def _tokens(text: str, stemming: bool) -> tuple[str, ...]:
    words = _TOKEN.findall(text.lower())
    return tuple(map(_stem, words)) if stemming else tuple(words)


@dataclass(frozen=True)
class Tokenizer:
    """rouge-score's default tokenisation, in the form that its scorer takes.

    Texts are kept for a while: a reference comes back with every repeat, and all with every kind of ROUGE.
    """

    stemming: bool

    def tokenize(self, text: str) -> tuple[str, ...]:
        """Lower-case runs of ASCII letters and digits, stemmed if asked for."""
        return _tokens(text, self.stemming)


def rouge_table(
    kind: str, references: Sequence[Sequence[str]], texts: Sequence[str], stemming: bool
) -> Floats:
    """Precision, recall, F measure (n, 3) against each document's best reference by F measure, the first of
    several."""
    tokenizer = Tokenizer(stemming)
    counts = np.array([len(golds) for golds in references], dtype=np.int64)
    if kind == "rougeLsum":
        table = _summaries(references, texts, tokenizer)
    else:
        pairs = [
            (own, tokenizer.tokenize(gold))
            for golds, own in zip(references, map(tokenizer.tokenize, texts), strict=True)
            for gold in golds
        ]
        table = _table(kind, pairs)
    if not len(counts) or counts.max() == 1:
        return table
    owner = np.repeat(np.arange(len(counts)), counts)
    best = np.lexsort((np.arange(len(owner)), -table[:, 2], owner))
    return np.asarray(table[best[np.concatenate([[0], np.cumsum(counts)[:-1]])]])


def _table(kind: str, pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> Floats:
    lengths = np.array([(len(own), len(gold)) for own, gold in pairs], dtype=np.int64).reshape(-1, 2)
    if kind == "rougeL":
        common = np.array([common_subsequence(own, gold) for own, gold in pairs], dtype=np.float64)
        return _measures(common, lengths[:, 0], lengths[:, 1])
    order = int(kind[len("rouge") :])
    parts = [_overlaps(pairs[start : start + _CHUNK], order) for start in range(0, len(pairs), _CHUNK)]
    shared = np.concatenate(parts) if parts else np.empty(0)
    return _measures(shared, possible(lengths[:, 0], order)[:, -1], possible(lengths[:, 1], order)[:, -1])


def _measures(shared: Floats, own: Floats | Ints, gold: Floats | Ints) -> Floats:
    precision, recall = shared / np.maximum(own, 1), shared / np.maximum(gold, 1)
    total = precision + recall
    f = np.where(total > 0, 2 * precision * recall / np.where(total > 0, total, 1), 0.0)
    return np.column_stack([precision, recall, f])


def _overlaps(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], order: int) -> Floats:
    """Shared n-grams of one order for each pair (n,)."""
    padding = [0] * (order - 1)
    flat: list[int] = []
    most = 0
    for own, gold in pairs:
        distinct = dict.fromkeys(chain(own, gold))
        numbers = dict(zip(distinct, range(1, len(distinct) + 1), strict=True))
        most = max(most, len(numbers))
        for tokens in (own, gold):
            flat.extend(map(numbers.__getitem__, tokens))
            flat.extend(padding)
    n = len(pairs)
    if not fits(most, n, 2, order):
        middle = n // 2
        return np.concatenate([_overlaps(pairs[:middle], order), _overlaps(pairs[middle:], order)])
    lengths = np.array([len(tokens) for pair in pairs for tokens in pair], dtype=np.int64)
    sequences = Sequences(
        np.array(flat, dtype=np.int64),
        lengths,
        np.repeat(np.arange(n), 2),
        np.tile(np.arange(2), n),
        order - 1,
        n,
    )
    return matches(sequences, order)[:, -1]


def common_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, a row of the table at a time as the bits of an integer (Hyyrö
    2004)."""
    if not first or not second:
        return 0
    if len(second) > len(first):
        first, second = second, first
    places: dict[str, int] = {}
    bit = 1
    for token in second:
        places[token] = places.get(token, 0) | bit
        bit <<= 1
    full = bit - 1
    row = full
    for token in first:
        place = places.get(token)
        if place is not None:
            shared = row & place
            row = ((row + shared) | (row - shared)) & full
    return len(second) - row.bit_count()


def _summaries(references: Sequence[Sequence[str]], texts: Sequence[str], tokenizer: Tokenizer) -> Floats:
    """ROUGE-Lsum: of two single lines it is ROUGE-L; else rouge-score works out the union of subsequences."""
    rows: list[Floats | tuple[float, float, float]] = []
    for golds, text in zip(references, texts, strict=True):
        for gold in golds:
            if "\n" in text or "\n" in gold:
                rows.append(by_rouge_score("rougeLsum", [[gold]], [text], tokenizer)[0])
            else:
                rows.append(_table("rougeL", [(tokenizer.tokenize(text), tokenizer.tokenize(gold))])[0])
    return np.asarray(rows, dtype=np.float64).reshape(-1, 3)


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
