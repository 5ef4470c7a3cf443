"""chrF's n-gram statistics of each document: sacrebleu's numbers, counted for many documents at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from metrics.ngrams import Sequences, fits, matches, possible
from metrics.types import Floats, Ints

_CHUNK = 512  # documents; bounds memory, and keeps a chunk's sort in the cache
_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@dataclass(frozen=True)
class Options:
    """What changes the n-grams that are counted."""

    char_order: int = 6
    word_order: int = 0
    lowercase: bool = False
    whitespace: bool = False


def chrf_statistics(
    references: Sequence[Sequence[str]],
    texts: Sequence[str],
    options: Options,
    f_score: Callable[[Floats, float], Floats],
) -> Floats:
    """Statistics (n, 3 * orders) against each document's reference with the best F, the first of several."""
    pairs = [(text, gold) for golds, text in zip(references, texts, strict=True) for gold in golds]
    if options.lowercase:
        pairs = [(text.lower(), gold.lower()) for text, gold in pairs]
    parts = [_pairs(pairs[start : start + _CHUNK], options) for start in range(0, len(pairs), _CHUNK)]
    table = np.concatenate(parts) if parts else np.empty((0, 3 * (options.char_order + options.word_order)))
    counts = np.array([len(golds) for golds in references], dtype=np.int64)
    if not len(counts) or counts.max() == 1:
        return table
    owner = np.repeat(np.arange(len(counts)), counts)
    best = np.lexsort((np.arange(len(owner)), -f_score(table, 1.0), owner))
    return np.asarray(table[best[np.concatenate([[0], np.cumsum(counts)[:-1]])]])


def _pairs(pairs: Sequence[tuple[str, str]], options: Options) -> Floats:
    characters = _characters(pairs, options)
    if not options.word_order:
        return characters
    return np.concatenate([characters, _words(pairs, options)], axis=1)


def _characters(pairs: Sequence[tuple[str, str]], options: Options) -> Floats:
    order = options.char_order
    lines = list(chain.from_iterable(pairs))
    if not options.whitespace:
        lines = ["".join(line.split()) for line in lines]
    lengths = np.array([len(line) for line in lines], dtype=np.int64)
    if order == 0:
        return np.empty((len(pairs), 0))
    gap = "\0" * (order - 1)
    points = np.frombuffer((gap.join(lines) + gap).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    used = np.bincount(points)
    has_nul = int(used[0]) > len(lines) * (order - 1) if len(used) else False
    used[:1] = 0
    distinct = np.flatnonzero(used)
    if has_nul or not fits(len(distinct), len(pairs), 2, order):
        return _apart(pairs, options)
    number = np.zeros(len(used), dtype=np.int64)
    number[distinct] = np.arange(1, len(distinct) + 1)
    return _counted(number[points], lengths, order, len(pairs))


def _apart(pairs: Sequence[tuple[str, str]], options: Options) -> Floats:
    """Documents whose characters together are too many for one integer: half of them at a time."""
    if len(pairs) == 1:
        return by_sacrebleu(pairs, options)[:, : 3 * options.char_order]
    middle = len(pairs) // 2
    return np.concatenate([_characters(pairs[:middle], options), _characters(pairs[middle:], options)])


def _words(pairs: Sequence[tuple[str, str]], options: Options) -> Floats:
    order = options.word_order
    parts = _Parts()
    sequences = [parts.of(line) for line in chain.from_iterable(pairs)]
    distinct = dict.fromkeys(chain.from_iterable(sequences))
    numbers = dict(zip(distinct, range(1, len(distinct) + 1), strict=True))
    if not fits(len(numbers), len(pairs), 2, order):
        if len(pairs) == 1:
            return by_sacrebleu(pairs, options)[:, 3 * options.char_order :]
        middle = len(pairs) // 2
        return np.concatenate([_words(pairs[:middle], options), _words(pairs[middle:], options)])
    padding = [0] * (order - 1)
    flat: list[int] = []
    for words in sequences:
        flat.extend(map(numbers.__getitem__, words))
        flat.extend(padding)
    lengths = np.array([len(words) for words in sequences], dtype=np.int64)
    return _counted(np.array(flat, dtype=np.int64), lengths, order, len(pairs))


def _counted(tokens: Ints, lengths: Ints, order: int, n: int) -> Floats:
    """Triples (hypothesis, reference, matches) of each order (n, 3 * order); the two sides take turns."""
    sides = np.tile(np.arange(2), n)
    matched = matches(Sequences(tokens, lengths, np.repeat(np.arange(n), 2), sides, order - 1, n), order)
    own, reference = possible(lengths[::2], order), possible(lengths[1::2], order)
    own = np.where(reference > 0, own, 0.0)  # sacrebleu counts nothing where the reference has no such n-gram
    return np.stack([own, reference, matched], axis=2).reshape(n, 3 * order)


class _Parts(dict[str, tuple[str, ...]]):
    """Word → itself with one trailing, else one leading, punctuation mark set apart, as chrF++ has it."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        parts: tuple[str, ...] = (word,)
        if len(word) > 1 and word[-1] in _PUNCTUATION:
            parts = (word[:-1], word[-1])
        elif len(word) > 1 and word[0] in _PUNCTUATION:
            parts = (word[0], word[1:])
        self[word] = parts
        return parts

    def of(self, line: str) -> list[str]:
        """The parts of all words of a line."""
        return list(chain.from_iterable(map(self.__getitem__, line.split())))


def by_sacrebleu(pairs: Sequence[tuple[str, str]], options: Options) -> Floats:
    """The statistics of pairs through sacrebleu's own extraction."""
    from sacrebleu.metrics.chrf import CHRF

    order = options.char_order + options.word_order
    scorer = CHRF(char_order=options.char_order, word_order=options.word_order, whitespace=options.whitespace)
    rows = scorer._extract_corpus_statistics([text for text, _ in pairs], [[gold for _, gold in pairs]])
    return np.asarray(rows, dtype=np.float64).reshape(len(pairs), 3 * order)
