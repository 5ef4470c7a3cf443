"""Equality of mathematical answers, as math-verify sees it; parsing and simplifying may take for ever.

Before it, an answer can be written plainly in one of the two ways that lm-evaluation-harness has, by the
names of the papers that they come from: ``hendrycks`` (MATH, 2021) and ``minerva`` (Lewkowycz et al.
2022, appendix D). Both are rewritings of text, in an order that matters. What a rewriting can't take
raises ValueError, and the texts are then compared as they are.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from metrics.errors import ConfigError
from metrics.registry import metric
from metrics.text.inputs import hypotheses, reference_lists
from metrics.types import Scores, scalar_scores

_HENDRYCKS: Final = (
    *(("\n", ""), ("\\!", ""), ("\\\\", "\\"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\left", "")),
    *(("\\right", ""), ("^{\\circ}", ""), ("^\\circ", ""), ("\\$", "")),
)


def hendrycks(text: str) -> str:
    """An answer as MATH compares it: no units, degrees, percent signs or spaces, fractions and roots braced.

    >>> hendrycks("x = \\\\dfrac12 \\\\text{ cm}"), hendrycks(".5"), hendrycks("1/2")
    ('\\\\frac{1}{2}', '\\\\frac{1}{2}', '\\\\frac{1}{2}')
    """
    for before, after in _HENDRYCKS:
        text = text.replace(before, after)
    text, *units = text.split("\\text{ ")
    if len(units) > 1:
        raise ValueError("units in two places")
    for before, after in (("\\%", ""), (" .", " 0."), ("{.", "{0.")):
        text = text.replace(before, after)
    if not text:
        return text
    text = f"0{text}" if text.startswith(".") else text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _braced_fractions(_braced_roots(text).replace(" ", ""))
    return _as_fraction("\\frac{1}{2}" if text == "0.5" else text)


def _braced_roots(text: str) -> str:
    first, *rest = text.split("\\sqrt")
    if any(not part for part in rest):
        raise ValueError("a root of nothing")
    return first + "".join(
        f"\\sqrt{part}" if part.startswith("{") else f"\\sqrt{{{part[0]}}}{part[1:]}" for part in rest
    )


def _braced_fractions(text: str) -> str:
    first, *rest = text.split("\\frac")
    found = [first]
    for part in rest:
        if not part:
            raise ValueError("a fraction of nothing")
        if part.startswith("{"):
            found.append(part)
        elif len(part) < 2:
            return text
        else:
            below = part[1] if part[1] == "{" else f"{{{part[1]}}}"
            found.append(f"{{{part[0]}}}{below}{part[2:]}")
    return "\\frac".join(found)


def _as_fraction(text: str) -> str:
    sides = text.split("/")
    if len(sides) != 2:
        return text
    above, below = map(int, sides)  # ValueError for anything else, which ends the rewriting there, too
    return f"\\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text


_REPLACED: Final = (
    *(("an ", ""), ("a ", ""), (".$", "$"), ("\\$", ""), ("\\ ", ""), (" ", ""), ("mbox", "text")),
    *((",\\text{and}", ","), ("\\text{and}", ","), ("\\text{m}", "\\text{}")),
)
_UNITS: Final = (
    *(
        "square",
        "ways",
        "integers",
        "dollars",
        "mph",
        "inches",
        "ft",
        "hours",
        "km",
        "units",
        "sue",
        "points",
    ),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges"),
    *("students", "childrentickets", "multiples"),
)
# In the reference's order; units stand where they do there, since one removal can make another possible.
_REMOVED: Final = (
    *_UNITS[:10],
    "\\ldots",
    *_UNITS[10:],
    *("\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2", "\\text{}^3", "\\text{\n}", "\\text{}"),
    *("\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"', "\\dots"),
)
_UNWRAPPED: Final = (
    *(
        (r"(.*?)(\$)(.*?)(\$)(.*)", r"$\3$"),
        (r"(\\text\{)(.*?)(\})", r"\2"),
        (r"(\\textbf\{)(.*?)(\})", r"\2"),
    ),
    *((r"(\\overline\{)(.*?)(\})", r"\2"), (r"(\\boxed\{)(.*)(\})", r"\2")),
    *((r"(frac)([^{])(.)", r"frac{\2}{\3}"), (r"(sqrt)(\[[^\]]*\])(\w)", r"\1\2{\3}")),
    (r"(sqrt)(?!\[)([^{])", r"sqrt{\2}"),
)


def minerva(text: str) -> str:
    """An answer as Minerva compares it: the right side of an equation, no units, no dressing, no separators.

    >>> minerva("x = 1,000 dollars"), minerva("$\\\\text{even}$"), minerva("\\\\frac12")
    ('1000', 'even', '\\\\frac{1}{2}')
    """
    text = text.split("=")[-1]
    for unit in _UNITS:
        text = re.sub(rf"(?<!\\)\b{unit}\b", "", text)
    for before, after in _REPLACED:
        text = text.replace(before, after)
    for removed in _REMOVED:
        text = _without_unit(text, removed) if removed.isalpha() else text.replace(removed, "")
    for pattern, rewritten in _UNWRAPPED:
        text = re.sub(pattern, rewritten, text)
    text = text.replace("$", "")
    return text.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+", text) else text


def _without_unit(text: str, unit: str) -> str:
    """Not inside of commands: ``\\left`` ends in ft."""
    parts = re.split(r"(\\[a-zA-Z]+)", text)
    return "".join(part if place % 2 else part.replace(unit, "") for place, part in enumerate(parts))


NORMALISATIONS: Final[dict[str, Callable[[str], str]]] = {"hendrycks": hendrycks, "minerva": minerva}


_SIGN: Final = re.compile(r"(?<!\\)\$")
"""A dollar sign that begins or ends a formula; an escaped one is money."""


def last_boxed(text: str) -> str | None:
    """What stands in the last ``\\boxed`` or ``\\fbox``; None where there is none, or it is not closed.

    >>> last_boxed("so \\\\boxed{\\\\frac{1}{2}}."), last_boxed("4")
    ('\\\\frac{1}{2}', None)
    """
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    if start < 0:
        return None
    opened = text.find("{", start)
    if text.startswith("\\boxed ", start) or opened < 0:
        return _SIGN.split(text[start:].partition(" ")[2], maxsplit=1)[0].strip() or None
    depth = 0
    for place in range(opened, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opened + 1 : place]
    return None


ANSWERS: Final = ("auto", "boxed", "whole")


def _boxed_where_due(references: Sequence[Any], *, answer: str = "auto", **_: Any) -> list[Any]:
    """Every reference, in a box where the metric looks nowhere else."""
    return [
        rf"\boxed{{{gold}}}" if answer == "boxed" and last_boxed(str(gold)) is None else gold
        for gold in references
    ]


@metric(
    "math_match",
    batched=True,
    version=4,
    endless=True,
    extra="math",
    libraries=("math-verify", "sympy", "latex2sympy2_extended"),
    right_answers=_boxed_where_due,
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
    return None if inside is None else f"\\boxed{{{_without_signs(inside.strip())}}}"


def _without_signs(text: str) -> str:
    """The text without the dollar signs around it."""
    return re.sub(rf"^\$+|(?:{_SIGN.pattern})+$", "", text)


_FINAL = "Final Answer: The final answer is"


def _bare(text: str) -> str:
    """The answer of a text for those who compare texts: the last box, what is announced, what stands between
    the outer dollar signs, else all of it."""
    if (boxed := last_boxed(text)) is not None:
        return boxed
    if _FINAL in text:
        return text.partition(_FINAL)[2].partition(". I hope it is correct")[0].strip()
    signs = [found.start() for found in _SIGN.finditer(text)]
    return text[signs[0] + 1 : signs[-1]] if signs[1:] else text


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


_DELIMITERS: Final = re.compile(rf"{_SIGN.pattern}|\\\(|\\\[|\\boxed|\n")
_COMMAND: Final = re.compile(r"\\[a-zA-Z]+(\{[a-zA-Z ]*\})?")
_WORD: Final = re.compile(r"[a-zA-Z]{4,}")
_WORDS: Final = re.compile(r"[a-zA-Z]{2,}( [a-zA-Z]+)*")
_LONGEST: Final = 200
_ONE_NUMBER: Final = re.compile(
    r"""
    (?:(?:[a-zA-Z]+,?\s+)*(?:is|are|was|get|got|so)\s+)?      # prose without a long word: it is 5
    \**[-+\u2212]?\s*\\?[$€£¥₹]?
    (?:\d{1,3}(?:[ ]\d{3})+(?:\.\d+)?|\d[\d,]*(?:\.\d+)?|\.\d+)
    (?:\s*\\?%|(?P<unit>\s+(?!pi\b)(?:[a-zA-Z]{2,3}|[a-zA-Z]{1,3}/[a-zA-Z]{1,3})))?  # 2x is no 2
    \.?\**
    """,
    re.VERBOSE,
)

_RAISED: Final = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_STOP: Final = r"(?:\.(?![\d.]))?"  # the end of a sentence, which would be read into what stands before it
_SUPERSCRIPT: Final = re.compile(
    r"(?P<unit>\d\s*(?:[a-zA-Z]{1,3}/)?(?:[cdkmµ]?m|in|ft|yd|mi|s))?"
    rf"(?<=[\w)}}|])(?P<raised>[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]+){_STOP}"
)
_FRACTION: Final = re.compile(rf"(?P<whole>(?<![\d.,])\d+)?[ ]?(?P<part>[¼½¾⅐-⅞]){_STOP}")
_SIGNS: Final = str.maketrans(
    {"⁄": "/", "∕": "/", "×": "*", "·": "*", "⋅": "*", "≤": r"\leq ", "≥": r"\geq "}
)
_UNREAD: Final = re.compile(r"\d\s*(?:[–—~…]|\.\.)\s*\d|^\s*(?:[<>]|\\(?:[gl]eq?|[gl]t|neq?)(?![a-zA-Z]))")
"""A range of numbers, or a relation to one: math-verify reads the one number and drops the rest."""
_RATIO: Final = re.compile(r"\d\s*:\s*\d")

Readings = list[list[Any]]


def _typed(text: str) -> str:
    """Exponents, fractions and signs that are characters of their own as math-verify reads them, in formulas
    and in prose: it stops at what it does not know, and takes 10⁴ for 10.

    >>> _typed("3×10⁻⁸"), _typed("2½"), _typed("7⁄8")
    ('3*10^(-8)', '(2+1/2)', '7/8')
    """
    text = _SUPERSCRIPT.sub(_power, text)
    return _FRACTION.sub(_sum, text).translate(_SIGNS)


def _power(found: re.Match[str]) -> str:
    """Of a unit that the normalisation drops (5 cm²) as it stands."""
    return found[0] if found["unit"] else f"^({found['raised'].translate(_RAISED)})"


def _sum(found: re.Match[str]) -> str:
    part = unicodedata.normalize("NFKC", found["part"]).replace("⁄", "/")
    return f"({found['whole']}+{part})" if found["whole"] else f" ({part})"


@lru_cache(maxsize=512)  # an item's references are those of all its samples
def _parsed(text: str, drop_units: bool) -> Readings:
    """What math-verify reads in a text; of one that is a bare formula also what it reads between dollar
    signs."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    latex = LatexExtractionConfig(boxed_match_priority=0)
    latex = replace(latex, normalization_config=replace(latex.normalization_config, units=drop_units))
    targets = (latex, ExprExtractionConfig())
    # Without its clocks, which work in a process's main thread alone: ours is the kernel's.
    forms = _forms(_typed(text.strip()), drop_units)
    found = [_whole(parse(one, targets, parsing_timeout=None)) for one in forms]
    return [reading for reading in found if reading] or [[text.strip()]]


def _whole(reading: list[Any]) -> list[Any]:
    """What was read; of a formula of which it is one number only, the text.

    A ratio stays the quotient that it is read as, unless that is a whole number: 5 is not 5:1.
    """
    if not reading or not isinstance(reading[-1], str):
        return reading
    more = _UNREAD.search(reading[-1])
    ratio = _RATIO.search(reading[-1]) and getattr(reading[0], "is_integer", False)
    return ["".join(reading[-1].split())] if more or ratio else reading


def _forms(text: str, drop_units: bool) -> list[str]:
    """What math-verify is given: a formula, or a word, that stands alone between dollar signs, since outside
    of them it reads one number of ``(2, 4)`` and of ``9:30``; one number as it stands, too."""
    if len(text) > _LONGEST or _DELIMITERS.search(text):
        return [text]
    if _WORDS.fullmatch(text):
        return [f"$\\text{{{text}}}$"]
    if _WORD.search(_COMMAND.sub("", text)):
        return [text]
    number = _ONE_NUMBER.fullmatch(text)
    alone = number is not None and (drop_units or not number["unit"])
    return [text, f"${text}$"] if alone else [f"${text}$"]


def _equal(gold: Readings, own: Readings, precision: int, strict: bool) -> bool:
    from math_verify import verify

    return any(
        verify(one, other, float_rounding=precision, strict=strict, timeout_seconds=None)
        for one in gold
        for other in own
    )
