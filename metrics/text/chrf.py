"""Corpus chrF and chrF++, equal to sacrebleu's; the n-grams of many documents are counted at once.

Over a small alphabet one sort counts them: every place of the texts becomes one integer of its document, the
next ``order`` tokens (0 past the text's end) and its side (0 the reference, 1 the hypothesis). Sorted, equal
n-grams of all orders lie side by side, and the highest bit in which neighbours differ says at which orders a
new run starts. ``metrics.text.ngrams`` counts what does not fit into such an integer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrics.aggregation import Aggregation, Count, Total, aggregation_factory
from metrics.ragged import offsets_of, segment_argmax
from metrics.registry import metric
from metrics.text.inputs import batches, hypotheses, read_text_pairs, reference_lists
from metrics.text.ngrams import Sequences, Words, matching_ngrams, ngram_counts
from metrics.types import Floats, Ints, Scores

POPOVIC = "Popović 2015, 2017; sacrebleu"
_EPSILON = 1e-16  # sacrebleu's precision and recall of an order without n-grams


@metric(
    "chrf", batched=True, aggregation="chrf", libraries=("sacrebleu",), bounds=(0.0, 100.0), source=POPOVIC
)
def chrf(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    char_order: int = 6,
    word_order: int = 0,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Scores:
    """Corpus chrF on a 0-100 scale, equal to ``sacrebleu.corpus_chrf``; higher is better.

    Statistics (n, 3 * orders): n-grams of hypothesis and reference and matches for each character order, then
    each word order, against the reference with the best F. No prediction is an empty hypothesis. A sample's
    score is its own chrF.
    """
    options = ChrfOptions(char_order, word_order, lowercase, whitespace)
    finish = f_score(char_order + word_order, beta, eps_smoothing)
    statistics = chrf_statistics(
        reference_lists(references, "chrf"), hypotheses(predictions, "chrf"), options, finish
    )
    return Scores(statistics=statistics, values=None, score=finish(statistics, 1.0))


@metric(
    "chrf++",
    batched=True,
    aggregation="chrf++",
    libraries=("sacrebleu",),
    bounds=(0.0, 100.0),
    source=POPOVIC,
)
def chrf_plus_plus(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    char_order: int = 6,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Scores:
    """chrF with words and word pairs besides characters (word_order 2), 0-100; higher is better."""
    return chrf(
        references,
        predictions,
        char_order=char_order,
        word_order=2,
        beta=beta,
        lowercase=lowercase,
        whitespace=whitespace,
        eps_smoothing=eps_smoothing,
    )


@aggregation_factory(
    "chrf",
    source=POPOVIC,
    takes="a pair (reference, prediction)",
    example=(("abc", "abd"), (["x"], "y")),
)
def chrf_aggregation(
    *,
    char_order: int = 6,
    word_order: int = 0,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Aggregation:
    """Corpus chrF of added-up n-gram statistics, or of (reference, prediction) pairs; 0-100."""

    def read(values: Sequence[Any]) -> Scores:
        references, predictions = read_text_pairs(values, "chrf")
        return chrf(
            references,
            predictions,
            char_order=char_order,
            word_order=word_order,
            beta=beta,
            lowercase=lowercase,
            whitespace=whitespace,
            eps_smoothing=eps_smoothing,
        )

    orders = char_order + word_order
    return Aggregation(
        "chrf++" if word_order == 2 else "chrf",
        k=3 * orders,
        compute=f_score(orders, beta, eps_smoothing),
        read=read,
        bounds=(0.0, 100.0),
        weight=(0, 1),
    )


@aggregation_factory(
    "chrf++",
    source=POPOVIC,
    takes="a pair (reference, prediction)",
    example=(("abc", "abd"), (["x"], "y")),
)
def chrf_plus_plus_aggregation(
    *,
    char_order: int = 6,
    beta: float = 2,
    lowercase: bool = False,
    whitespace: bool = False,
    eps_smoothing: bool = False,
) -> Aggregation:
    """As chrf, with words and word pairs besides characters."""
    return chrf_aggregation(
        char_order=char_order,
        word_order=2,
        beta=beta,
        lowercase=lowercase,
        whitespace=whitespace,
        eps_smoothing=eps_smoothing,
    )


def f_score(orders: int, beta: float, eps_smoothing: bool) -> Callable[[Total, Count], Floats]:
    """chrF of sums (..., 3 * orders), with the operations in sacrebleu's order, so that the bits agree."""
    factor = beta**2

    def finish(total: Total, n: Count) -> Floats:
        smoothed = np.zeros(total.shape[:-1])
        precision, recall, effective = smoothed.copy(), smoothed.copy(), smoothed.copy()
        for order in range(orders):
            own, reference, matched = (total[..., 3 * order + j] for j in range(3))
            share = np.where(own > 0, matched / np.where(own > 0, own, 1), _EPSILON)
            found = np.where(reference > 0, matched / np.where(reference > 0, reference, 1), _EPSILON)
            denominator = factor * share + found
            ratio = (1 + factor) * share * found / np.where(denominator > 0, denominator, 1)
            smoothed = smoothed + np.where(denominator > 0, ratio, _EPSILON)
            counted = (own > 0) & (reference > 0)
            precision = precision + np.where(counted, share, 0.0)
            recall = recall + np.where(counted, found, 0.0)
            effective = effective + counted
        if eps_smoothing:
            return np.asarray(100 * smoothed / orders)
        divisor = np.where(effective > 0, effective, 1)
        precision, recall = precision / divisor, recall / divisor
        some = precision + recall > 0
        score = (1 + factor) * precision * recall / np.where(some, factor * precision + recall, 1)
        return np.where(some, 100 * score, 0.0)

    return finish


_PUNCTUATION = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


@dataclass(frozen=True)
class ChrfOptions:
    """What changes the n-grams that are counted."""

    char_order: int = 6
    word_order: int = 0
    lowercase: bool = False
    whitespace: bool = False


def chrf_statistics(
    references: Sequence[Sequence[str]],
    texts: Sequence[str],
    options: ChrfOptions,
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


def _pairs(pairs: Sequence[tuple[str, str]], options: ChrfOptions) -> Floats:
    lines = list(chain.from_iterable(pairs))
    columns = [np.empty((len(pairs), 0))]
    if options.char_order:
        shown = lines if options.whitespace else ["".join(line.split()) for line in lines]
        points = np.frombuffer("".join(shown).encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
        lengths = np.array([len(line) for line in shown], dtype=np.int64)
        columns.append(_counted(_dense(points), lengths, options.char_order))
    if options.word_order:
        spaced = [" ".join(line.split()).encode("utf-8", "surrogatepass") for line in lines]
        columns.append(_counted(*Words.of(spaced).tokens(_word_parts), options.word_order))
    return np.concatenate(columns, axis=1)


def _dense(points: NDArray[np.uint32]) -> Ints:
    """Code points as the numbers 0, 1, … of those that occur."""
    occurs = np.bincount(points) > 0
    return np.asarray((np.cumsum(occurs) - 1)[points])


def _counted(tokens: Ints, lengths: Ints, order: int) -> Floats:
    """Triples (hypothesis, reference, matches) of each order (n, 3 * order); the two sides take turns."""
    n = len(lengths) // 2
    if fits_one_integer(int(tokens.max(initial=0)) + 1, n, order):
        matched = packed_matches(tokens, lengths, order)
    else:
        sides = np.tile([0, 1], n)
        matched = matching_ngrams(Sequences(tokens, lengths, np.repeat(np.arange(n), 2), sides, n), order)
    own, reference = ngram_counts(lengths[::2], order), ngram_counts(lengths[1::2], order)
    own = np.where(reference > 0, own, 0.0)  # sacrebleu counts nothing where the reference has no such n-gram
    return np.stack([own, reference, matched], axis=2).reshape(n, 3 * order)


def _word_parts(data: bytes) -> tuple[str, ...]:
    """A word with one trailing, else one leading, punctuation mark set apart, as chrF++ has it."""
    word = data.decode("utf-8", "surrogatepass")
    if len(word) > 1 and word[-1] in _PUNCTUATION:
        return (word[:-1], word[-1])
    if len(word) > 1 and word[0] in _PUNCTUATION:
        return (word[0], word[1:])
    return (word,)


_BLOCK = 1 << 14  # tokens counted at once: what is worked out for them stays in the processor's cache
_BITS = 63


def fits_one_integer(tokens: int, documents: int, order: int) -> bool:
    """Whether so many distinct tokens and documents can be packed into one integer."""
    return order * tokens.bit_length() + documents.bit_length() + 1 <= _BITS


def packed_matches(tokens: Ints, lengths: Ints, order: int) -> Floats:
    """Matching n-grams of the orders 1 … ``order`` of each document (n, order).

    ``tokens`` (t,) are numbers from 0; ``lengths`` (2n,) those of the documents' texts, the hypothesis before
    its reference.
    """
    bits = (int(tokens.max(initial=0)) + 1).bit_length()
    ends = offsets_of(lengths)
    parts = [
        _block(tokens[ends[first] : ends[last]] + 1, lengths[first:last], order, bits)
        for first, last in _cut(ends)
    ]
    return np.concatenate([np.empty((0, order)), *parts])


def _cut(ends: Ints) -> Iterator[tuple[int, int]]:
    """Runs of texts, whole documents of them, of about so many tokens as are counted at once."""
    documents = ends[::2]
    cuts = np.flatnonzero(np.diff(documents[:-1] // _BLOCK)) + 1
    yield from pairwise([0, *(2 * cuts).tolist(), len(ends) - 1])


def _block(tokens: Ints, lengths: Ints, order: int, bits: int) -> Floats:
    counted = np.zeros((len(lengths) // 2, order))
    if not len(tokens):
        return counted
    keys = _packed(tokens, lengths, order, bits)
    keys.sort()
    hypothesis = offsets_of(keys & 1)
    change = keys[1:] ^ keys[:-1]
    starts = np.concatenate([[0], np.flatnonzero(change > 1) + 1])
    level = np.append(change, np.iinfo(np.int64).max)[starts - 1]  # the first place starts everything
    first = keys[starts]
    documents = np.arange(len(counted) + 1) << (order * bits + 1)
    for n in range(order, 0, -1):
        shift = (order - n) * bits + 1
        kept = np.flatnonzero(level >= 1 << shift)
        starts, level, first = starts[kept], level[kept], first[kept]
        bounds = np.append(starts, len(keys))
        own = np.diff(hypothesis[bounds])
        shared = np.minimum(own, np.diff(bounds) - own)
        shared *= first & (((1 << bits) - 1) << shift) != 0  # else the text ends before the n-gram does
        counted[:, n - 1] = np.diff(offsets_of(shared)[np.searchsorted(first, documents)])
    return counted


def _packed(tokens: Ints, lengths: Ints, order: int, bits: int) -> Ints:
    texts = np.arange(len(lengths))
    owner = np.repeat(texts, lengths)
    places = np.arange(len(tokens)) + owner * (order - 1)  # each text is followed by zeros
    padded = np.zeros(len(tokens) + (len(lengths) + 1) * (order - 1), dtype=np.int64)
    padded[places] = tokens
    length = len(padded) - (order - 1)
    window = padded[:length].copy()
    for place in range(1, order):
        window <<= bits
        window |= padded[place : length + place]
    keys = window[places]
    keys <<= 1
    keys |= np.repeat(((texts >> 1) << (order * bits + 1)) | (texts & 1 ^ 1), lengths)
    return np.asarray(keys)
