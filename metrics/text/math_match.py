"""Equality of mathematical answers, as math-verify sees it; parsing and simplifying may take for ever."""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from metrics.errors import ConfigError
from metrics.registry import metric
from metrics.text.inputs import hypotheses, reference_lists
from metrics.text.math_normalisation import NORMALISATIONS, last_boxed
from metrics.types import Scores, scalar_scores

ANSWERS: Final = ("auto", "boxed", "whole")


@metric(
    "math_match",
    batched=True,
    endless=True,
    extra="math",
    libraries=("math-verify", "sympy", "latex2sympy2_extended"),
    source="huggingface/Math-Verify; lm-evaluation-harness, tasks minerva_math and hendrycks_math",
)
def math_match(
    references: Sequence[Sequence[Any]],
    predictions: Sequence[Any],
    *,
    answer: str = "auto",
    normalise: str | None = None,
    drop_units: bool = True,
    precision: int = 6,
    strict: bool = True,
) -> Scores:
    r"""1 if the answer equals any of the references as mathematics, else 0: numbers, formulas, percentages,
    intervals, tuples, sets, matrices.

    ``answer`` says where it stands: ``auto`` takes ``\boxed{}``, else what is announced as final, else the
    last formula; ``boxed`` only the last box (without one it is wrong); ``whole`` all that the filter left.
    Numbers are equal to ``precision`` decimals; not ``strict``: variables may have other names, sets equal
    tuples. ``drop_units``: ``5 \text{ cm}`` is 5. ``normalise``: ``hendrycks`` compares texts as that
    normalisation leaves them, nothing else; ``minerva`` the normalised texts, then as formulas. The details
    hold what was read.
    """
    if answer not in ANSWERS:
        raise ConfigError(f"math_match: answer is one of {', '.join(ANSWERS)}, not {answer!r}")
    if normalise is not None and normalise not in NORMALISATIONS:
        known = ", ".join(NORMALISATIONS)
        raise ConfigError(f"math_match: normalise is one of {known}, not {normalise!r}")
    golds = reference_lists(references, "math_match")
    score = np.zeros(len(predictions))
    details: list[dict[str, Any] | None] = [None] * len(predictions)
    for row, text in enumerate(hypotheses(predictions, "math_match")):
        own = None if predictions[row] is None else _answer(text, answer)
        if own is None:
            details[row] = {"answer": None}
            continue
        if normalise is not None:
            score[row] = any(_same_text(gold, own, normalise) for gold in golds[row])
            details[row] = {"answer": _plain(_bare(own), normalise)}
        if not score[row] and normalise != "hendrycks":
            readings = [_parsed(_rewritten(one, normalise), drop_units) for one in (own, *golds[row])]
            score[row] = any(_equal(gold, readings[0], precision, strict) for gold in readings[1:])
            details[row] = {"answer": [str(found[-1])[:_LONGEST] for found in readings[0]]}
    column = scalar_scores(score)
    return Scores(column.statistics, None, column.score, details)


def _answer(text: str, answer: str) -> str | None:
    if answer == "auto":
        return text
    inside = text if answer == "whole" else last_boxed(text)
    return None if inside is None else f"\\boxed{{{inside.strip().strip('$')}}}"


_FINAL = "Final Answer: The final answer is"


def _bare(text: str) -> str:
    """The answer of a text for those who compare texts: the last box, what is announced, what stands between
    the outer dollar signs, else all of it."""
    if (boxed := last_boxed(text)) is not None:
        return boxed
    if _FINAL in text:
        return text.partition(_FINAL)[2].partition(". I hope it is correct")[0].strip()
    first, last = text.find("$"), text.rfind("$")
    return text[first + 1 : last] if first < last else text


def _plain(text: str, normalise: str) -> str:
    try:
        return NORMALISATIONS[normalise](text)
    except ValueError:
        return text


def _same_text(gold: str, own: str, normalise: str) -> bool:
    rewrite = NORMALISATIONS[normalise]
    try:
        return rewrite(_bare(gold)) == rewrite(_bare(own))
    except ValueError:
        return _bare(gold) == _bare(own)


def _rewritten(text: str, normalise: str | None) -> str:
    return text if normalise is None else f"${_plain(_bare(text), normalise)}$"


_DELIMITERS: Final = re.compile(r"\$|\\\(|\\\[|\\boxed|\n")
_COMMAND: Final = re.compile(r"\\[a-zA-Z]+(\{[a-zA-Z ]*\})?")
_WORD: Final = re.compile(r"[a-zA-Z]{4,}")
_WORDS: Final = re.compile(r"[a-zA-Z]{2,}( [a-zA-Z]+)*")
_LONGEST: Final = 200

Readings = list[list[Any]]


@lru_cache(maxsize=512)  # an item's references are those of all its samples
def _parsed(text: str, drop_units: bool) -> Readings:
    """What math-verify reads in a text; of one that is a bare formula also what it reads between dollar
    signs."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    latex = LatexExtractionConfig(boxed_match_priority=0)
    latex = replace(latex, normalization_config=replace(latex.normalization_config, units=drop_units))
    targets = (latex, ExprExtractionConfig())
    # Without its clocks, which work in a process's main thread alone: ours is the kernel's.
    found = [parse(one, targets, parsing_timeout=None) for one in _forms(text.strip())]
    return [reading for reading in found if reading] or [[text.strip()]]


def _forms(text: str) -> list[str]:
    """What math-verify is given: a formula, or a word, that stands alone between dollar signs, since outside
    of them it reads the last number of ``(2, 4)``."""
    if len(text) > _LONGEST or _DELIMITERS.search(text):
        return [text]
    if _WORDS.fullmatch(text):
        return [f"$\\text{{{text}}}$"]
    if _WORD.search(_COMMAND.sub("", text)):
        return [text]
    signs = re.search(r"[][\\(){}^_=<>]", text)
    return [f"${text}$"] if signs else [text, f"${text}$"]


def _equal(gold: Readings, own: Readings, precision: int, strict: bool) -> bool:
    from math_verify import verify

    return any(
        verify(one, other, float_rounding=precision, strict=strict, timeout_seconds=None)
        for one in gold
        for other in own
    )
