"""Where a judge's reply says its verdict: "Grade: B", "the score is 7", "**Winner** = A"."""

import re
from typing import Final

from metrics.text.refusal import refuses

MARKS: Final = r"\s*_`\"'“”‘’"
"""White space, and what emphasises or quotes a word, inside a class of characters."""
SAME_LINE: Final = r"[ \t*_`\"'“”‘’\[\]()]*"
JOINS: Final = r"-*[<>=≈≠≤≥~|&→]+|\b(?:and|or|vs|versus|to|equals)\b\.?"
"""Between two verdicts of which a reply names both."""
_AFTER: Final = rf"(?:\s*\([^()\n]{{0,20}}\))?[{MARKS}]*(?:[:：=]|is\b)[{MARKS}(\[]*"
_VERDICTS: Final = r"grade|verdict|rating|score|judge?ment|decision|winner"
_OTHERS: Final = r"answer|choice|result"

FIRST: Final = rf"(?:\b(?:{_VERDICTS})\b{_AFTER}|\b(?:grade|verdict|rating|score)[ \t]+of\b[{MARKS}(\[]*)"
"""Speaks of the verdict itself."""
SECOND: Final = rf"\b(?:{_OTHERS})\b{_AFTER}"
"""May speak of the answer that is judged, or of the reference."""

_UP_TO_THREE_WORDS: Final = r"(?:[ \t*_`\"']+\w+){0,3}[ \t*_`\"']+\Z"
_DENIES: Final = re.compile(
    rf"(?:\b(?:not|never|neither|nor|cannot|unable|refuse)|n['’]t){_UP_TO_THREE_WORDS}", re.IGNORECASE
)
_WEAKENS: Final = re.compile(
    r"\b(?:no(?!\s+doubt)|partially|partly|mostly|hardly|barely|nearly|almost|if|whether|far[ \t]+from"
    rf"|anything[ \t]+but|fails?[ \t]+to[ \t]+be){_UP_TO_THREE_WORDS}",
    re.IGNORECASE,
)
_OF: Final = re.compile(r"\w+[ \t]+of\b")
_SORRY: Final = re.compile(
    r"\W*(?:(?:i['’]?m |i am )?(?:(?:very|so|really) )?sorry"
    r"|i (?:can['’]t|cannot|can not|am unable to) (?:rate|judge|grade|score|evaluate|assess))\b",
    re.IGNORECASE,
)


def is_denied(text: str, start: int) -> bool:
    """Whether the words before a place take back what is said there."""
    return bool(_DENIES.search(text, max(0, start - 80), start))


def is_weakened(text: str, start: int) -> bool:
    """Whether the words before a place take back or weaken what is said there, or leave it open."""
    return is_denied(text, start) or bool(_WEAKENS.search(text, max(0, start - 80), start))


def is_denied_announcement(said: "re.Match[str]") -> bool:
    """Whether "a score of" is denied; what is behind a colon is said whatever comes before."""
    return bool(_OF.match(said[0])) and is_denied(said.string, said.start())


def begins_as_refusal(text: str) -> bool:
    """Whether the first sentence says that the judge won't judge."""
    sentence = re.split(r"[.!?\n]", text.strip(), maxsplit=1)[0]
    return bool(_SORRY.match(sentence)) or refuses(sentence)


class Unsettled(Exception):
    """A reply settles on no verdict; the text says why."""
