"""Two ways of writing a mathematical answer plainly, as lm-evaluation-harness has them, by the names of the
papers that they come from: ``hendrycks`` (MATH, 2021) and ``minerva`` (Lewkowycz et al. 2022, appendix D).

Both are rewritings of text, in an order that matters. What a rewriting can't take raises ValueError, and the
texts are then compared as they are.
"""

import re
from collections.abc import Callable
from typing import Final

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
        return text[start:].partition(" ")[2].partition("$")[0].strip() or None
    depth = 0
    for place in range(opened, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opened + 1 : place]
    return None
