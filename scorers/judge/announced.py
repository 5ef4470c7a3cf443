"""Where a judge's reply says its verdict: "Grade: B", "the score is 7", "**Winner** = A"."""

from typing import Final

MARKS: Final = r"\s*_`\"'“”‘’"
"""White space, and what emphasises or quotes a word, inside a class of characters."""
_AFTER: Final = rf"(?:\s*\([^()\n]{{0,20}}\))?[{MARKS}]*(?:[:：=]|is\b)[{MARKS}(\[]*"
_VERDICTS: Final = r"grade|verdict|rating|score|judge?ment|decision|winner"
_OTHERS: Final = r"answer|choice|result"

FIRST: Final = rf"(?:\b(?:{_VERDICTS})\b{_AFTER}|\b(?:grade|verdict|rating|score)[ \t]+of\b[{MARKS}(\[]*)"
"""Speaks of the verdict itself."""
SECOND: Final = rf"\b(?:{_OTHERS})\b{_AFTER}"
"""May speak of the answer that is judged, or of the reference."""


class Unsettled(Exception):
    """A reply settles on no verdict; the text says why."""
