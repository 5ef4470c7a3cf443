"""rouge-score's default tokens, of many texts at once and kept for a while."""

from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import numpy as np

from metrics.ngrams import Sequences
from metrics.porter import stem
from metrics.words import Words

_KEPT = 8  # batches of pairs
_WORDS = b"abcdefghijklmnopqrstuvwxyz0123456789"
_SPACED = bytes(byte if byte in _WORDS else 32 for byte in range(256))
_turn = Lock()


@dataclass(frozen=True)
class Tokenizer:
    """rouge-score's default tokenisation, in the form that its scorer takes."""

    stemming: bool

    def tokenize(self, text: str) -> list[bytes]:
        """Lower-case runs of ASCII letters and digits, stemmed if asked for."""
        words = _spaced(text).split()
        return list(map(_stem, words)) if self.stemming else words


def token_pairs(texts: tuple[str, ...], golds: tuple[str, ...], stemming: bool) -> Sequences:
    """The tokens of pairs (text, gold) as documents of two sides.

    What was made last is kept: rouge1, rouge2 and rougeL are asked for one after the other, or in threads at
    the same time, over the same texts.
    """
    with _turn:  # a thread that wants what another one is making waits for it
        return _token_pairs(texts, golds, stemming)


@lru_cache(maxsize=_KEPT)
def _token_pairs(texts: tuple[str, ...], golds: tuple[str, ...], stemming: bool) -> Sequences:
    n = len(texts)
    words = Words.of([_spaced(text) for pair in zip(texts, golds, strict=True) for text in pair])
    tokens, lengths = (
        words.tokens(lambda word: (_stem(word),)) if stemming else (words.numbers, words.lengths)
    )
    return Sequences(tokens, lengths, np.repeat(np.arange(n), 2), np.tile([0, 1], n), n)


def forget() -> None:
    """Drops what is kept, for those who measure what making it costs."""
    _token_pairs.cache_clear()
    _stem.cache_clear()


def _spaced(text: str) -> bytes:
    """The text's words with spaces between them; what is beyond ASCII has no byte of ASCII in UTF-8."""
    return text.lower().encode("utf-8", "surrogatepass").translate(_SPACED)


@lru_cache(maxsize=1 << 18)
def _stem(word: bytes) -> bytes:
    """The stem of a word, each distinct one stemmed once; rouge-score leaves words of three letters alone."""
    return stem(word.decode()).encode() if len(word) > 3 else word
