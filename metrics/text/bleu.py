"""Corpus BLEU and sentence BLEU, equal to sacrebleu's.

The n-grams of many documents are counted at once where the tokeniser is 13a; sacrebleu's own extraction
counts them for its other tokenisers.
"""

import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from metrics.aggregation import Aggregation, Count, Total, aggregation_factory
from metrics.aliases import nearest
from metrics.errors import ConfigError
from metrics.ragged import offsets_of, row_of
from metrics.registry import metric
from metrics.text.inputs import batches, hypotheses, read_text_pairs, reference_lists
from metrics.text.ngrams import Sequences, Words, matching_ngrams, ngram_counts
from metrics.types import Floats, Ints, Scores

PAPINENI = "Papineni et al. 2002; sacrebleu (Post 2018)"
SMOOTHING = {"none": None, "floor": 0.1, "add-k": 1.0, "exp": None}
_LOG_OF_ZERO = -9999999999.0  # sacrebleu's stand-in for log(0)


@metric(
    "bleu", batched=True, aggregation="bleu", libraries=("sacrebleu",), bounds=(0.0, 100.0), source=PAPINENI
)
def bleu(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    max_ngram_order: int = 4,
) -> Scores:
    """Corpus BLEU on a 0-100 scale, equal to ``sacrebleu.corpus_bleu``; higher is better.

    Statistics (n, 2 + 2 * order): hypothesis length, closest reference length, matching n-grams of each
    order, the hypothesis's n-grams of each order. The score of a sample is its sentence BLEU with effective
    order. No prediction is an empty hypothesis. Smoothing (``smooth_method`` exp, floor, add-k or none,
    ``smooth_value``) and ``effective_order`` are arguments of the aggregation.
    """

    statistics = bleu_statistics(
        reference_lists(references, "bleu"),
        hypotheses(predictions, "bleu"),
        tokenize,
        lowercase,
        max_ngram_order,
    )
    sentence = _corpus_bleu(max_ngram_order, "exp", None, True)
    return Scores(statistics=statistics, values=None, score=sentence(statistics, 1.0))


@metric("sentence_bleu", batched=True, libraries=("sacrebleu",), bounds=(0.0, 100.0), source=PAPINENI)
def sentence_bleu(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    max_ngram_order: int = 4,
) -> Floats:
    """BLEU of each sample with effective order, 0-100, equal to ``sacrebleu.sentence_bleu``; higher is
    better."""
    statistics = bleu(
        references, predictions, tokenize=tokenize, lowercase=lowercase, max_ngram_order=max_ngram_order
    ).statistics
    assert statistics is not None
    finish = bleu_point(max_ngram_order, smooth_method, smooth_value, True)
    return np.array([finish(row, 1.0) for row in statistics], dtype=np.float64)


@aggregation_factory(
    "bleu",
    source=PAPINENI,
    takes="a pair (reference, prediction)",
    example=(("a b c d e", "a b c d"), (["x y", "x z"], ["x z"])),
)
def bleu_aggregation(
    *,
    smooth_method: str = "exp",
    smooth_value: float | None = None,
    effective_order: bool = False,
    max_ngram_order: int = 4,
    tokenize: str = "13a",
    lowercase: bool = False,
) -> Aggregation:
    """Corpus BLEU of added-up n-gram statistics, or of (reference, prediction) pairs; 0-100."""
    if smooth_method not in SMOOTHING:
        raise ConfigError(f"bleu: smooth_method must be one of {', '.join(SMOOTHING)}, not {smooth_method!r}")

    def read(values: Sequence[Any]) -> Scores:
        references, predictions = read_text_pairs(values, "bleu")
        return bleu(
            references, predictions, tokenize=tokenize, lowercase=lowercase, max_ngram_order=max_ngram_order
        )

    return Aggregation(
        "bleu",
        k=2 + 2 * max_ngram_order,
        compute=_corpus_bleu(max_ngram_order, smooth_method, smooth_value, effective_order),
        point=bleu_point(max_ngram_order, smooth_method, smooth_value, effective_order),
        read=read,
        bounds=(0.0, 100.0),
        weight=(1, *range(2 + max_ngram_order, 2 + 2 * max_ngram_order)),
    )


def bleu_point(order: int, smooth_method: str, smooth_value: float | None, effective_order: bool) -> Any:
    """BLEU of one sum of statistics, operation for operation as sacrebleu's ``compute_bleu``."""
    smooth = SMOOTHING[smooth_method] if smooth_value is None else smooth_value

    def finish(total: Floats, n: float) -> float:
        lengths, counts = total[:2].tolist(), total[2:].tolist()
        matched, possible = counts[:order], counts[order:]
        if not any(matched):
            return 0.0
        logs, halvings, orders = [_LOG_OF_ZERO] * order, 1.0, order
        for i in range(order):
            right, all_ = matched[i], possible[i]
            if smooth_method == "add-k" and i > 0:
                right, all_ = right + smooth, all_ + smooth
            if all_ == 0:
                break
            if effective_order:
                orders = i + 1
            precision = 100.0 * right / all_
            if right == 0:
                halvings *= 2 if smooth_method == "exp" else 1
                lowest = {"exp": 100.0 / (halvings * all_), "floor": 100.0 * (smooth or 0.0) / all_}
                precision = lowest.get(smooth_method, 0.0)
            logs[i] = math.log(precision) if precision != 0.0 else _LOG_OF_ZERO
        return _brevity(*lengths) * math.exp(sum(logs[:orders]) / orders)

    return finish


def _brevity(hypothesis: float, reference: float) -> float:
    if hypothesis >= reference:
        return 1.0
    return math.exp(1 - reference / hypothesis) if hypothesis > 0 else 0.0


def _corpus_bleu(order: int, smooth_method: str, smooth_value: float | None, effective_order: bool) -> Any:
    """The same over many sums at once: (..., 2 + 2 * order) → (...), equal to the last few bits."""
    smooth = SMOOTHING[smooth_method] if smooth_value is None else smooth_value

    def compute(total: Total, n: Count) -> Floats:
        hypothesis, reference = total[..., 0], total[..., 1]
        matched, possible = total[..., 2 : 2 + order], total[..., 2 + order : 2 + 2 * order]
        if smooth_method == "add-k":
            added = np.where(np.arange(order) > 0, smooth or 0.0, 0.0)
            right, all_ = matched + added, possible + added
        else:
            right, all_ = matched, possible
        if right is matched and bool((matched > 0).all()):  # nothing to smooth: nearly always, in a corpus
            logs = np.log(100.0 * matched / possible)
            mean = reduce(np.add, np.moveaxis(logs, -1, 0)) / order
            brevity = np.where(hypothesis < reference, np.exp(np.minimum(1 - reference / hypothesis, 0)), 1.0)
            return np.asarray(brevity * np.exp(mean))
        reached = np.logical_and.accumulate(all_ != 0, axis=-1)
        zero = (right == 0) & reached
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            precision = 100.0 * right / all_
            if smooth_method == "exp":
                precision = np.where(zero, 100.0 / (2.0 ** np.cumsum(zero, axis=-1) * all_), precision)
            elif smooth_method == "floor":
                precision = np.where(zero, 100.0 * (smooth or 0.0) / all_, precision)
            logs = np.where(reached & (precision != 0), np.log(precision), _LOG_OF_ZERO)
            brevity = np.where(hypothesis < reference, np.exp(1 - reference / hypothesis), 1.0)
            brevity = np.where(hypothesis > 0, brevity, np.where(reference > hypothesis, 0.0, 1.0))
        orders = np.maximum(reached.sum(axis=-1), 1) if effective_order else np.full(total.shape[:-1], order)
        used = np.arange(order) < orders[..., None]
        score = brevity * np.exp(np.where(used, logs, 0.0).sum(axis=-1) / orders)
        return np.where(matched.any(axis=-1), score, 0.0)

    return compute


_CACHED_WORDS = 1 << 18  # distinct words

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
    tokens_of = lru_cache(_CACHED_WORDS)(_tokens)
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
    matched = matching_ngrams(Sequences(tokens, lengths, owners, sides, len(texts)), order)
    hypothesis = lengths[sides == 0]
    closest = _closest(hypothesis, lengths[sides > 0], owners[sides > 0])
    return np.column_stack([hypothesis, closest, matched, ngram_counts(hypothesis, order)])


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
