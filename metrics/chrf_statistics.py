"""chrF's n-gram statistics of each document: sacrebleu's numbers, counted for many documents at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from metrics.ngrams import Sequences, matches, possible
from metrics.packed_ngrams import fits, packed_matches
from metrics.ragged import offsets_of, segment_argmax
from metrics.texts import batches
from metrics.types import Floats, Ints
from metrics.words import Words

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
    sizes = [len(text) + len(gold) for text, gold in pairs]
    parts = [_pairs(pairs[own], options) for own in batches(sizes)]
    table = np.concatenate(parts) if parts else np.empty((0, 3 * (options.char_order + options.word_order)))
    offsets = offsets_of(np.array([len(golds) for golds in references], dtype=np.int64))
    return np.asarray(table[offsets[:-1] + segment_argmax(f_score(table, 1.0), offsets)])


def _pairs(pairs: Sequence[tuple[str, str]], options: Options) -> Floats:
    lines = list(chain.from_iterable(pairs))
    columns = [np.empty((len(pairs), 0))]
    if options.char_order:
        shown = lines if options.whitespace else ["".join(line.split()) for line in lines]
        points = np.frombuffer("".join(shown).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        lengths = np.array([len(line) for line in shown], dtype=np.int64)
        columns.append(_counted(_dense(points), lengths, options.char_order))
    if options.word_order:
        spaced = [" ".join(line.split()).encode("utf-8", "surrogatepass") for line in lines]
        columns.append(_counted(*Words.of(spaced).tokens(_parts), options.word_order))
    return np.concatenate(columns, axis=1)


def _dense(points: NDArray[np.uint32]) -> Ints:
    """Code points as the numbers 0, 1, … of those that occur."""
    occurs = np.bincount(points) > 0
    return np.asarray((np.cumsum(occurs) - 1)[points])


def _counted(tokens: Ints, lengths: Ints, order: int) -> Floats:
    """Triples (hypothesis, reference, matches) of each order (n, 3 * order); the two sides take turns."""
    n = len(lengths) // 2
    if fits(int(tokens.max(initial=0)) + 1, n, order):
        matched = packed_matches(tokens, lengths, order)
    else:
        sides = np.tile([0, 1], n)
        matched = matches(Sequences(tokens, lengths, np.repeat(np.arange(n), 2), sides, n), order)
    own, reference = possible(lengths[::2], order), possible(lengths[1::2], order)
    own = np.where(reference > 0, own, 0.0)  # sacrebleu counts nothing where the reference has no such n-gram
    return np.stack([own, reference, matched], axis=2).reshape(n, 3 * order)


def _parts(data: bytes) -> tuple[str, ...]:
    """A word with one trailing, else one leading, punctuation mark set apart, as chrF++ has it."""
    word = data.decode("utf-8", "surrogatepass")
    if len(word) > 1 and word[-1] in _PUNCTUATION:
        return (word[:-1], word[-1])
    if len(word) > 1 and word[0] in _PUNCTUATION:
        return (word[0], word[1:])
    return (word,)
