"""BLEU's n-gram statistics of each document: sacrebleu's numbers, without its loops where the tokeniser is
13a."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from metrics.errors import ConfigError, nearest
from metrics.ngrams import Sequences, matches, possible
from metrics.ragged import offsets_of, row_of
from metrics.texts import batches
from metrics.types import Floats, Ints
from metrics.words import Words

_KEPT = 1 << 18  # distinct words

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
    tokens_of = lru_cache(_KEPT)(_tokens)
    sizes = [len(text) + sum(map(len, golds)) for golds, text in zip(references, texts, strict=True)]
    parts = [_batch(references[own], texts[own], lowercase, order, tokens_of) for own in batches(sizes)]
    return np.concatenate(parts) if parts else np.empty((0, 2 + 2 * order))


def _batch(
    references: Sequence[Sequence[str]],
    texts: Sequence[str],
    lowercase: bool,
    order: int,
    tokens_of: Callable[[bytes], tuple[str, ...]],
) -> Floats:
    lines = [
        _line(line, lowercase).encode("utf-8", "surrogatepass")
        for golds, text in zip(references, texts, strict=True)
        for line in (text, *golds)
    ]
    tokens, lengths = Words.of(lines).tokens(tokens_of)
    per_document = offsets_of(np.array([1 + len(golds) for golds in references], dtype=np.int64))
    owners = row_of(per_document)
    sides = np.arange(len(lines)) - per_document[owners]
    matched = matches(Sequences(tokens, lengths, owners, sides, len(texts)), order)
    hypothesis = lengths[sides == 0]
    closest = _closest(hypothesis, lengths[sides > 0], owners[sides > 0])
    return np.column_stack([hypothesis, closest, matched, possible(hypothesis, order)])


def _line(text: str, lowercase: bool) -> str:
    """A segment as sacrebleu's 13a has it before it takes words apart."""
    line = (text.lower() if lowercase else text).rstrip()
    if "<" in line:
        line = line.replace("<skipped>", "")
    if "\n" in line:
        line = line.replace("-\n", "").replace("\n", " ")
    if "&" in line:
        for entity, symbol in (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")):
            line = line.replace(entity, symbol)
    return line


def _tokens(data: bytes) -> tuple[str, ...]:
    """The tokens of what stands between two spaces."""
    word = data.decode("utf-8", "surrogatepass")
    if word.isalnum():
        return (word,)
    if word[-1:] in (".", ",") and word[:-1].isalnum():
        return (word[:-1], word[-1])
    text = f" {word} ".translate(_SYMBOLS)
    if "." in text or "," in text:
        text = _AFTER_OTHER.sub(r"\1 \2 ", text)
        text = _BEFORE_OTHER.sub(r" \1 \2", text)
    if "-" in text:
        text = _DIGIT_DASH.sub(r"\1 \2 ", text)
    return tuple(text.split())


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
