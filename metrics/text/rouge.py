"""ROUGE-1, -2, -L and -Lsum, equal to rouge-score's.

The tokens of many pairs of texts are made at once and cached, since the four metrics are asked for one
after the other over the same texts. rouge-score itself scores summaries of several lines.

ROUGE-L needs the lengths of the longest common subsequences. A row of the table that everybody fills is
kept as bits, set where the length does not grow. A token moves it on by ``row = (row + met) | (row -
met)``, where ``met`` are those of its bits at which the other sequence has the token (Hyyrö 2004). Pairs
of ordinary length go side by side, a token of each at a time, in integers of 64 bits; long ones, or a
few, one after the other in Python's integers.

The stemmer is Porter's with the extensions of NLTK, which rouge-score uses: importing NLTK takes more
than a second. A test compares the two on every kind of word.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrics.errors import ConfigError
from metrics.ragged import offsets_of, segment_argmax
from metrics.registry import metric
from metrics.text.inputs import batches, hypotheses, reference_lists
from metrics.text.ngrams import Sequences, Words, match_counts, matching_ngrams, ngram_counts
from metrics.types import Floats, Ints

_VOWELS = frozenset("aeiou")
_IRREGULAR = {
    "skies": "sky",
    "sky": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "news": "news",
    "innings": "inning",
    "inning": "inning",
    "outings": "outing",
    "outing": "outing",
    "cannings": "canning",
    "canning": "canning",
    "howe": "howe",
    "proceed": "proceed",
    "exceed": "exceed",
    "succeed": "succeed",
}
Rules = Sequence[tuple[str, str]]

# Suffix and replacement, in the order in which they are tried; the first that fits ends the step.
_STEP_2: Rules = [
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),
    ("alli", "al"),
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),
]
_STEP_3: Rules = [
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
]
_SUFFIXES_2, _SUFFIXES_3 = (tuple(suffix for suffix, _ in rules) for rules in (_STEP_2, _STEP_3))
_STEP_4 = (
    "al",
    "ance",
    "ence",
    "er",
    "ic",
    "able",
    "ible",
    "ant",
    "ement",
    "ment",
    "ent",
    "ion",
    "ou",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
)


def stem(word: str) -> str:
    """The stem of a lower-case word.

    >>> [stem(word) for word in ("relational", "flies", "dies", "happy", "controlling")]
    ['relat', 'fli', 'die', 'happi', 'control']
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    word = _past_and_gerund(_plural(word))
    if word.endswith("y") and len(word) > 2 and _consonants(word)[-2]:
        word = word[:-1] + "i"
    word = _derivation(word)
    word = _replaced(word, _STEP_3, _SUFFIXES_3)
    word = _ending(word)
    return _final_l(_final_e(word))


def _plural(word: str) -> str:
    if word.endswith("ies"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("sses"):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _past_and_gerund(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        rest = word[: -len(suffix)]
        if word.endswith(suffix) and not all(_consonants(rest)):
            return _restored(rest)
    return word


def _restored(rest: str) -> str:
    """A stem that lost -ed or -ing: with its e put back, or its doubled consonant made single."""
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if len(rest) >= 2 and rest[-1] == rest[-2] and _consonants(rest)[-1]:
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if _measure(rest) == 1 and _ends_short(rest) else rest


def _derivation(word: str) -> str:
    if word.endswith("alli") and _measure(word[:-4]) > 0:
        return _derivation(word[:-2])
    if word.endswith("logi") and not word.endswith(_SUFFIXES_2):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replaced(word, _STEP_2, _SUFFIXES_2)


def _replaced(word: str, rules: Rules, suffixes: tuple[str, ...]) -> str:
    if not word.endswith(suffixes):
        return word
    for suffix, replacement in rules:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + replacement if _measure(rest) > 0 else word
    return word


def _ending(word: str) -> str:
    if not word.endswith(_STEP_4):
        return word
    for suffix in _STEP_4:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            fits = _measure(rest) > 1 and (suffix != "ion" or rest[-1] in "st")
            return rest if fits else word
    return word


def _final_e(word: str) -> str:
    if not word.endswith("e"):
        return word
    measure = _measure(word[:-1])
    return word[:-1] if measure > 1 or (measure == 1 and not _ends_short(word[:-1])) else word


def _final_l(word: str) -> str:
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _consonants(word: str) -> list[bool]:
    """Which letters are consonants; y is one unless it follows one."""
    flags: list[bool] = []
    for letter in word:
        flags.append(letter not in _VOWELS if letter != "y" else not (flags and flags[-1]))
    return flags


def _measure(word: str) -> int:
    """How many times a consonant follows a vowel: Porter's m."""
    flags = _consonants(word)
    return sum(not before and after for before, after in pairwise(flags))


def _ends_short(word: str) -> bool:
    """Ends in consonant, vowel, consonant other than w, x, y; or is a vowel and a consonant."""
    flags = _consonants(word)
    if len(word) == 2:
        return flags == [False, True]
    return flags[-3:] == [True, False, True] and word[-1] not in "wxy"


_LONG = 256  # tokens in common; beyond, Python's integers carry faster
_FEW = 64  # pairs; below, a step side by side costs more than its share


def common_subsequences(pairs: Sequences) -> Ints:
    """Length of the longest common subsequence of the two sides of each document (n,)."""
    own, gold = _in_common(pairs)
    longest = np.maximum(own.lengths, gold.lengths)
    together = np.flatnonzero((longest > 0) & (longest <= _LONG))
    if len(together) < _FEW:
        together = together[:0]
    lengths = np.zeros(pairs.n, dtype=np.int64)
    if len(together):
        together = together[np.argsort(-own.lengths[together], kind="stable")]  # the first to end come last
        lengths[together] = _side_by_side(own, gold, together)
    longest[together] = 0
    for document in np.flatnonzero(longest).tolist():
        lengths[document] = common_subsequence(own.of(document), gold.of(document))
    return lengths


def common_subsequence(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common subsequence of two sequences of tokens.

    >>> common_subsequence([1, 2, 3, 4], [2, 4, 3])
    2
    """
    places: dict[int, int] = {}
    for place, token in enumerate(second):
        places[token] = places.get(token, 0) | (1 << place)
    full = (1 << len(second)) - 1
    row = full
    for token in first:
        met = row & places.get(token, 0)
        row = ((row + met) | (row - met)) & full
    return len(second) - row.bit_count()


@dataclass(frozen=True)
class _Side:
    """One side's tokens that the other side has too: no others can be in a common subsequence."""

    tokens: Ints  # (t,); documents have none in common
    offsets: Ints  # (n + 1,)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets)

    def of(self, document: int) -> list[int]:
        chosen: list[int] = self.tokens[self.offsets[document] : self.offsets[document + 1]].tolist()
        return chosen

    def places(self, chosen: Ints) -> tuple[Ints, Ints, Ints]:
        """The chosen documents' tokens; of each, its document's place among the chosen, and its own in
        that."""
        lengths = self.lengths[chosen]
        which = np.repeat(np.arange(len(chosen)), lengths)
        within = np.arange(len(which)) - offsets_of(lengths)[which]
        return self.tokens[self.offsets[chosen][which] + within], which, within


def _in_common(pairs: Sequences) -> tuple[_Side, _Side]:
    tokens: tuple[list[Ints], list[Ints]] = ([], [])
    lengths: tuple[list[Ints], list[Ints]] = ([], [])
    known = 0
    for block in pairs.blocks:
        common = match_counts(block.words, block.sides) > 0
        kept = np.flatnonzero(common[block.words])
        numbers = (np.cumsum(common) - 1 + known)[block.words[kept]]
        sizes = np.diff(np.searchsorted(kept, block.starts))
        cut = int(np.searchsorted(kept, block.sides[1]))
        for side, own in enumerate((slice(None, cut), slice(cut, None))):
            tokens[side].append(numbers[own])
            lengths[side].append(sizes[side * block.n : (side + 1) * block.n])
        known += int(common.sum())
    first, second = (
        _Side(np.concatenate(tokens[side]), offsets_of(np.concatenate(lengths[side]))) for side in (0, 1)
    )
    return first, second


def _side_by_side(own: _Side, gold: _Side, chosen: Ints) -> Ints:
    """The lengths (n,) for the chosen documents; a later one's own side is no longer than an earlier's."""
    words, distinct = -(-int(gold.lengths[chosen].max()) // 64), int(own.tokens.max()) + 1
    tokens, _, within = gold.places(chosen)
    bits = np.zeros(words * distinct, dtype=np.uint64)
    # No two tokens of a document share a place, so that adding bits is setting them.
    np.add.at(bits, within // 64 * distinct + tokens, np.uint64(1) << (within % 64).astype(np.uint64))
    tokens, which, within = own.places(chosen)
    steps = np.zeros((int(own.lengths[chosen].max()), len(chosen)), dtype=np.int64)
    steps[within, which] = tokens
    rows = np.full((words, len(chosen)), ~np.uint64(0))
    for step, going in zip(steps, np.bincount(within).tolist(), strict=True):
        _advance(rows[:, :going], bits.reshape(words, distinct), step[:going])
    grown = np.unpackbits((~rows).view(np.uint8).reshape(words, len(chosen), 8), axis=-1)
    return np.asarray(grown.sum(axis=(0, 2), dtype=np.int64))


def _advance(rows: NDArray[np.uint64], bits: NDArray[np.uint64], tokens: Ints) -> None:
    """Moves the rows (words, n) on by a token each (n,), in place; ``bits`` (words, t) are those of each
    token."""
    carry = None
    for row, of_token in zip(rows, bits, strict=True):
        met = of_token.take(tokens)
        met &= row
        total = row + met
        if carry is not None:
            total += carry
        carry = (met | (row & ~total)) >> np.uint64(63)  # what leaves the word in row + met + carry
        row ^= met  # row - met, met being part of it
        row |= total


LIN = "Lin 2004; rouge-score"
MEASURES = ("precision", "recall", "fmeasure")


def _rouge(
    kind: str,
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    stem: bool,
    measure: str,
    scale: float,
) -> Floats:
    if measure not in MEASURES:
        raise ConfigError(f"{kind}: measure must be one of {', '.join(MEASURES)}, not {measure!r}")
    table = rouge_table(kind, reference_lists(references, kind), hypotheses(predictions, kind), stem)
    return scale * table[:, MEASURES.index(measure)]


@metric("rouge1", batched=True, libraries=("rouge-score", "nltk"), bounds=(0.0, 100.0), source=LIN)
def rouge1(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    use_stemmer: bool = True,
    measure: str = "fmeasure",
    scale: float = 100.0,
) -> Floats:
    """Overlap of single words, F measure on a 0-100 scale; of several references the best; higher is
    better."""
    return _rouge("rouge1", references, predictions, use_stemmer, measure, scale)


@metric("rouge2", batched=True, libraries=("rouge-score", "nltk"), bounds=(0.0, 100.0), source=LIN)
def rouge2(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    use_stemmer: bool = True,
    measure: str = "fmeasure",
    scale: float = 100.0,
) -> Floats:
    """Overlap of word pairs, F measure on a 0-100 scale; of several references the best; higher is better."""
    return _rouge("rouge2", references, predictions, use_stemmer, measure, scale)


@metric("rougeL", batched=True, libraries=("rouge-score", "nltk"), bounds=(0.0, 100.0), source=LIN)
def rouge_l(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    use_stemmer: bool = True,
    measure: str = "fmeasure",
    scale: float = 100.0,
) -> Floats:
    """Longest common subsequence of words, F measure on a 0-100 scale; the best reference; higher is
    better."""
    return _rouge("rougeL", references, predictions, use_stemmer, measure, scale)


@metric("rougeLsum", batched=True, libraries=("rouge-score", "nltk"), bounds=(0.0, 100.0), source=LIN)
def rouge_l_sum(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    use_stemmer: bool = True,
    measure: str = "fmeasure",
    scale: float = 100.0,
) -> Floats:
    """ROUGE-L over sentences (lines), union of subsequences, 0-100; the best reference; higher is better."""
    return _rouge("rougeLsum", references, predictions, use_stemmer, measure, scale)


_CACHED_BATCHES = 8  # batches of pairs
_WORDS = b"abcdefghijklmnopqrstuvwxyz0123456789"
_SPACED = bytes(byte if byte in _WORDS else 32 for byte in range(256))
_turn = Lock()


@dataclass(frozen=True)
class RougeTokenizer:
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


@lru_cache(maxsize=_CACHED_BATCHES)
def _token_pairs(texts: tuple[str, ...], golds: tuple[str, ...], stemming: bool) -> Sequences:
    n = len(texts)
    words = Words.of([_spaced(text) for pair in zip(texts, golds, strict=True) for text in pair])
    tokens, lengths = (
        words.tokens(lambda word: (_stem(word),)) if stemming else (words.numbers, words.lengths)
    )
    return Sequences(tokens, lengths, np.repeat(np.arange(n), 2), np.tile([0, 1], n), n)


def clear_caches() -> None:
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
    return _measures(
        matching_ngrams(pairs, order)[:, -1],
        ngram_counts(own, order)[:, -1],
        ngram_counts(gold, order)[:, -1],
    )


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
        table[row] = by_rouge_score("rougeLsum", [[golds[row]]], [texts[row]], RougeTokenizer(stemming))[0]
    single = np.setdiff1d(np.arange(len(texts)), lined).tolist()
    table[single] = _table("rougeL", [texts[row] for row in single], [golds[row] for row in single], stemming)
    return table


def by_rouge_score(
    kind: str,
    references: Sequence[Sequence[str]],
    texts: Sequence[str],
    tokenizer: RougeTokenizer | None = None,
    stemming: bool = False,
) -> Floats:
    """The same through rouge-score itself."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer([kind], use_stemmer=stemming, tokenizer=tokenizer)
    rows = [scorer.score_multi(golds, text)[kind] for golds, text in zip(references, texts, strict=True)]
    return np.asarray(rows, dtype=np.float64).reshape(len(texts), 3)
