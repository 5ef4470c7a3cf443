"""BLEU's n-gram statistics of each document: sacrebleu's numbers, without its loops where the tokeniser is
13a."""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

import numpy as np

from metrics.errors import ConfigError, nearest
from metrics.ngrams import Sequences, fits, matches, possible
from metrics.types import Floats, Ints

_CHUNK = 4096  # documents

# The rules of mteval-v13a: symbols stand alone; period and comma are split off unless between digits; a dash
# is split off the digit before it. The patterns consume what they look at, as the original's do, so that a
# run of periods and commas comes apart in the same places.
_SYMBOLS = str.maketrans({symbol: f" {symbol} " for symbol in '{|}~[\\]^_`!"#$%&()*+:;<=>?@/'})
_AFTER_OTHER = re.compile(r"([^0-9])([.,])")
_BEFORE_OTHER = re.compile(r"([.,])([^0-9])")
_DIGIT_DASH = re.compile(r"([0-9])(-)")


def bleu_statistics(
    references: Sequence[Sequence[str]], texts: Sequence[str], tokenize: str, lowercase: bool, order: int
) -> Floats:
    """Statistics (n, 2 + 2 * order): lengths of hypothesis and closest reference, matches, n-grams per
    order."""
    if tokenize != "13a" or order < 1:
        return by_sacrebleu(references, texts, tokenize, lowercase, order)
    words = _Words()
    parts = [
        _chunk(references[start : start + _CHUNK], texts[start : start + _CHUNK], words, lowercase, order)
        for start in range(0, len(texts), _CHUNK)
    ]
    return np.concatenate(parts) if parts else np.empty((0, 2 + 2 * order))


class _Words(dict[str, tuple[str, ...]]):
    """Word → its tokens. 13a never looks across a space, so that each distinct word is tokenised once."""

    def __missing__(self, word: str) -> tuple[str, ...]:
        if word.isalnum():
            self[word] = alone = (word,)
            return alone
        text = f" {word} ".translate(_SYMBOLS)
        if "." in text or "," in text:
            text = _AFTER_OTHER.sub(r"\1 \2 ", text)
            text = _BEFORE_OTHER.sub(r" \1 \2", text)
        if "-" in text:
            text = _DIGIT_DASH.sub(r"\1 \2 ", text)
        self[word] = tokens = tuple(text.split())
        return tokens

    def tokens(self, text: str, lowercase: bool) -> list[str]:
        """The tokens of a text, as sacrebleu's 13a makes them of a segment."""
        line = (text.lower() if lowercase else text).rstrip()
        line = line.replace("<skipped>", "").replace("-\n", "").replace("\n", " ")
        if "&" in line:
            for entity, symbol in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
                line = line.replace(entity, symbol)
        return list(chain.from_iterable(map(self.__getitem__, line.split(" "))))


def _chunk(
    references: Sequence[Sequence[str]], texts: Sequence[str], words: _Words, lowercase: bool, order: int
) -> Floats:
    """Statistics of some documents; tokens are numbered within each document, which keeps the numbers
    small."""
    padding = [0] * (order - 1)
    flat: list[int] = []
    shape: list[tuple[int, int, int]] = []  # document, side, length
    most, sides = 0, 1
    for document, (golds, text) in enumerate(zip(references, texts, strict=True)):
        own = [words.tokens(line, lowercase) for line in (text, *golds)]
        numbers = _numbered(own)
        most, sides = max(most, len(numbers)), max(sides, len(own))
        for side, tokens in enumerate(own):
            flat.extend(map(numbers.__getitem__, tokens))
            flat.extend(padding)
            shape.append((document, side, len(tokens)))
    if not fits(most, len(texts), sides, order):
        return _halved(references, texts, words, lowercase, order)
    owners, whose, lengths = np.array(shape, dtype=np.int64).reshape(-1, 3).T
    matched = matches(
        Sequences(np.array(flat, dtype=np.int64), lengths, owners, whose, order - 1, len(texts)), order
    )
    hypothesis = lengths[whose == 0]
    closest = _closest(hypothesis, lengths[whose > 0], owners[whose > 0])
    return np.column_stack([hypothesis, closest, matched, possible(hypothesis, order)])


def _halved(
    references: Sequence[Sequence[str]], texts: Sequence[str], words: _Words, lowercase: bool, order: int
) -> Floats:
    if len(texts) == 1:
        return by_sacrebleu(references, texts, "13a", lowercase, order)
    middle = len(texts) // 2
    return np.concatenate(
        [
            _chunk(references[:middle], texts[:middle], words, lowercase, order),
            _chunk(references[middle:], texts[middle:], words, lowercase, order),
        ]
    )


def _numbered(sequences: Iterable[Sequence[str]]) -> dict[str, int]:
    """The distinct tokens, numbered from 1."""
    distinct = dict.fromkeys(chain.from_iterable(sequences))
    return dict(zip(distinct, range(1, len(distinct) + 1), strict=True))


def _closest(hypothesis: Ints, lengths: Ints, documents: Ints) -> Ints:
    """The reference length closest to the hypothesis's, the shorter of two (n,)."""
    distance = np.abs(lengths - hypothesis[documents])
    order = np.lexsort((lengths, distance, documents))
    first = np.searchsorted(documents, np.arange(len(hypothesis)))  # documents ascend, before and after
    return np.asarray(lengths[order][first])


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


def transposed(references: Sequence[Sequence[str]]) -> list[list[str]]:
    """Reference streams as sacrebleu takes them: the j-th references of all documents, None where one has
    fewer."""
    widest = max((len(golds) for golds in references), default=0)
    return [[golds[j] if j < len(golds) else None for golds in references] for j in range(widest)]  # type: ignore[misc]
