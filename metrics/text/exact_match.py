"""Exact match after optional normalisation, as ``evaluate`` and lm-evaluation-harness define it.

A batch's texts are normalised as one long text, joined by a separator that no match may cross. For that each
pattern is rewritten piece by piece: no piece consumes the separator, and ``^``, ``$``, ``\\A`` and ``\\Z``
become looks at it. Texts whose patterns have a piece that is not listed here are normalised one by one.
"""

import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, compress, repeat
from numbers import Real
from operator import eq
from typing import Any

import numpy as np

from metrics.errors import ConfigError, MetricError
from metrics.registry import each_reference, metric
from metrics.text.inputs import written
from metrics.types import Bools, Scores, scalar_scores

_ITEMS = 1024  # normalised at once: few enough for a core's cache


@metric(
    "exact_match",
    batched=True,
    version=2,
    source="huggingface/evaluate metrics/exact_match; lm-evaluation-harness",
    variants={"multiple_choice": "exact_match_mc"},
    patterns=lambda _, *, regexes_to_ignore=None, **__: [(text, 0) for text in _listed(regexes_to_ignore)],
    right_answers=each_reference,
)
def exact_match(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    regexes_to_ignore: Sequence[str] | None = None,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_numbers: bool = False,
) -> Scores:
    """1 if the prediction equals any of the references, else 0; higher is better.

    Both sides are normalised first: matches of each regular expression removed, then lower case, then ASCII
    punctuation removed, then ASCII digits removed. No prediction (None) is wrong. A reference that is not
    text is compared as text with a prediction that is. A prediction that is a number equals a reference of
    the same value, or of the same text; any other that is not text is compared as it is.
    """
    deleted = (string.punctuation if ignore_punctuation else "") + (string.digits if ignore_numbers else "")
    normalisation = Normalisation(_compiled(_listed(regexes_to_ignore)), ignore_case, deleted)
    score = np.empty(len(predictions))
    for start in range(0, len(score), _ITEMS):
        rows = slice(start, start + _ITEMS)
        score[rows] = _matches(references[rows], predictions[rows], normalisation, start)
    return scalar_scores(score)


SEPARATOR = "\x01"
"""Between, before and after the texts; no letter, no space, and nothing that lower case looks through."""

_ODD = re.compile(f"[\0{SEPARATOR}]")


@dataclass(frozen=True)
class Normalisation:
    """What is done to a text: ``patterns`` removed, then lower case, then ``deleted`` characters removed.

    Trailing NULs go after every step, since the reference implementation compares numpy string arrays, which
    cannot hold them. ``deleted`` is ASCII.
    """

    patterns: Sequence[re.Pattern[str]] = ()
    lower: bool = False
    deleted: str = ""

    def of_text(self, text: str) -> str:
        """One text, step by step: what the normalisation of many must give."""
        for pattern in self.patterns:
            text = pattern.sub("", text).rstrip("\0")
        if self.lower:
            text = text.lower()
        if self.deleted:
            text = text.translate(dict.fromkeys(map(ord, self.deleted)))
        return text.rstrip("\0")

    def of_texts(self, texts: list[str]) -> list[str]:
        """Each text normalised.

        All are joined and go through each step as one long text, where that is known to be the same; else
        each distinct text alone.
        """
        removals = [joined_removal(pattern.pattern) for pattern in self.patterns]
        known = [removal for removal in removals if removal is not None]
        if len(known) < len(removals):
            return self._each(texts)
        whole = SEPARATOR.join(["", *texts, ""])
        if "\0" in whole or whole.count(SEPARATOR) > len(texts) + 1:
            plain = self.of_texts(["" if _ODD.search(text) else text for text in texts])
            return [
                self.of_text(text) if _ODD.search(text) else done
                for text, done in zip(texts, plain, strict=True)
            ]
        for remove in known:
            whole = remove(whole)
        return self._finished(whole).split(SEPARATOR)[1:-1]

    def _each(self, texts: list[str]) -> list[str]:
        done = {text: self.of_text(text) for text in set(texts)}
        return [done[text] for text in texts]

    def _finished(self, whole: str) -> str:
        if self.lower:
            whole = whole.lower()
        if whole.isascii():
            return whole.translate(dict.fromkeys(map(ord, self.deleted))) if self.deleted else whole
        for character in self.deleted:  # faster than to look up every character of a text that is not ASCII
            whole = whole.replace(character, "")
        return whole


def _matches(
    references: Sequence[Sequence[Any]], predictions: Sequence[Any], normalisation: Normalisation, first: int
) -> Bools:
    """Whether each prediction equals a reference; ``first`` is the number of the first row."""
    counts = list(map(len, references))
    if 0 in counts:
        row = first + counts.index(0)
        raise MetricError(f"exact_match: row {row} has no reference to compare with", row)
    golds = list(chain.from_iterable(references))
    if len(golds) == len(predictions):
        return _equal(predictions, golds, normalisation)
    own = list(chain.from_iterable(map(repeat, predictions, counts)))  # one for each reference
    starts = np.cumsum([0, *counts[:-1]])
    return np.logical_or.reduceat(_equal(own, golds, normalisation), starts)


def _equal(answers: Sequence[Any], golds: Sequence[Any], normalisation: Normalisation) -> Bools:
    """Whether each answer equals its reference: texts as texts, numbers as texts or as values, and an answer
    that is neither as it is."""
    if set(map(type, answers)) <= {str}:
        texts = normalisation.of_texts([*answers, *map(str, golds)])
        return np.fromiter(map(eq, texts[: len(golds)], texts[len(golds) :]), np.bool_, count=len(golds))
    texts = list(map(written, answers))
    text = np.fromiter((isinstance(answer, str) for answer in texts), np.bool_, count=len(golds))
    equal = np.fromiter(map(_same_value, answers, golds), np.bool_, count=len(golds))
    equal[text] |= _equal(list(map(str, compress(texts, text))), list(compress(golds, text)), normalisation)
    return equal


def _same_value(answer: Any, gold: Any) -> bool:
    """Whether an answer that is no text equals the reference; what is text is read as the number's type, as
    lm-evaluation-harness does."""
    if answer is None or isinstance(answer, str):
        return False
    if isinstance(answer, Real) and isinstance(gold, str):
        if isinstance(answer, bool):  # bool("False") is True
            return False
        try:
            gold = type(answer)(gold)  # type: ignore[call-arg]
        except (ArithmeticError, TypeError, ValueError):
            return False
    return bool(answer == gold)


def _listed(patterns: Sequence[str] | None) -> Sequence[str]:
    return [patterns] if isinstance(patterns, str) else patterns or []


def _compiled(patterns: Sequence[str]) -> list[re.Pattern[str]]:
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except (re.error, TypeError) as error:
            raise ConfigError(
                f"exact_match: regexes_to_ignore holds {pattern!r}, which is no pattern: {error}"
            ) from None
    return compiled


_LEADING_FLAGS = re.compile(r"\(\?[aimsu]+\)")

_PIECE = re.compile(
    r"""
      (?P<own_class> \[ \^? \]? (?: [^]\\] | \\. )* \] )
    | (?P<group> \( (?! \? ) | \( \? (?: : | <?[=!] ) )
    | (?P<escaped> \\ . )
    | (?P<one> [^\\\[(] )
    """,
    re.VERBOSE | re.DOTALL,
)

_LITERAL = re.compile(r"(?:[^\\\[\](){}.^$*+?|]|\\[^\w\s])*")
_AS_IT_IS = frozenset("dwsbBntrfva")  # escapes that match no separator, or look at word characters only

_REWRITTEN = {
    r"\D": r"[^\d\x01]",
    r"\W": r"[^\w\x01]",
    r"\S": r"[^\s\x01]",
    r"\A": r"(?<=\x01)",
    r"\Z": r"(?=\x01)",
}


@lru_cache(maxsize=256)
def joined_removal(pattern: str) -> Callable[[str], str] | None:
    """What takes out of joined texts the matches that ``pattern`` has in each; None if no way is known.

    For texts without ``SEPARATOR``, joined by it, with one before the first and after the last.
    """
    flags = re.compile(pattern).flags
    if flags & re.VERBOSE or SEPARATOR in pattern:
        return None
    if _LITERAL.fullmatch(pattern):
        literal = re.sub(r"\\(.)", r"\1", pattern)
        return lambda whole: whole.replace(literal, "")
    rewritten = _rewritten(pattern, flags)
    return None if rewritten is None else partial(re.compile(rewritten, flags).sub, "")


def _rewritten(pattern: str, flags: int) -> str | None:
    leading = _LEADING_FLAGS.match(pattern)
    place, pieces = leading.end() if leading else 0, []
    while place < len(pattern):
        piece = _PIECE.match(pattern, place)
        rewritten = None if piece is None else _rewritten_piece(piece, flags)
        if piece is None or rewritten is None:
            return None
        pieces.append(rewritten)
        place = piece.end()
    return "".join(pieces)


def _rewritten_piece(piece: re.Match[str], flags: int) -> str | None:
    text = piece.group()
    match piece.lastgroup:
        case "own_class":
            return _rewritten_class(text, flags)
        case "escaped":
            plain = text[1] in _AS_IT_IS or (text.isascii() and not text[1].isalnum())
            return text if plain else _REWRITTEN.get(text)
        case "one":
            return _rewritten_sign(text, flags)
    return text


def _rewritten_class(text: str, flags: int) -> str | None:
    if re.fullmatch(text, SEPARATOR, flags) is None:
        return text
    # "]" and "-" mean something else where they are not the first
    return r"[^\x01" + text[2:] if text.startswith("[^") and text[2] not in "]-" else None


def _rewritten_sign(sign: str, flags: int) -> str:
    lines = bool(flags & re.MULTILINE)
    match sign:
        case ".":
            return r"[^\x01]" if flags & re.DOTALL else r"[^\n\x01]"
        case "^":
            return r"(?<=[\n\x01])" if lines else r"(?<=\x01)"
        case "$":
            return r"(?=[\n\x01])" if lines else r"(?=\n?\x01)"
    return sign
