"""What the words around a place of a judge's reply say of it: that the verdict stands there ("Grade: B", "the
score is 7", "**Winner** = A"), that it is denied, left open or taken back, or that it is something else."""

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
_WORSE: Final = r"not|worse|weaker|inferior|wrong|equal(?:ly)?"
_TAKEN_BACK: Final = re.compile(
    rf"{SAME_LINE}(?:lose[sd]?|lost|(?:is|was|does|did|would|could|can)"
    rf"(?:n['’]t|not|(?:[ \t]+\w+){{0,2}}?[ \t]+(?:{_WORSE})))\b"
)
_NAMED: Final = re.compile(
    rf"\b(?:answer|response|assistant|option|candidate|choice|model|output)[{MARKS}(]+\Z", re.IGNORECASE
)
_ATTRIBUTE: Final = re.compile(r"[ \t]+(?!(?:because|since|and|it|this|the)\b)\w")
_BEGINS: Final = re.compile(rf"(?:\A|[.!?:;\n])[{MARKS}]*\Z")
_LISTED: Final = re.compile(r"[.)]\s+[^\W\d](?s:.*?)\d")
_BOUND: Final = re.compile(
    rf"(?:(?<![\w\"'])[<>≤≥≠]|\b(?:than|least|most|above|below|under|over)\b){SAME_LINE}\Z", re.IGNORECASE
)
"""The end of a tag before a number is no bound."""
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


def is_taken_back(text: str, end: int) -> bool:
    """Whether the words behind a label say that it is the worse one, or not the verdict."""
    return _TAKEN_BACK.match(text, end) is not None


def is_named(text: str, start: int) -> bool:
    """Whether the words before an A name what is judged, so that it is no article: "answer A"."""
    return _NAMED.search(text, max(0, start - 40), start) is not None


def is_ordinary(label: str, text: str, start: int, end: int) -> bool:
    """Whether a label is an ordinary word, by its small letters, and belongs to the next one: "no
    mistakes"."""
    begins = _BEGINS.search(text, max(0, start - 40), start)
    ordinary = len(label) > 1 and (label.islower() or (label.istitle() and begins is not None))
    return ordinary and _ATTRIBUTE.match(text, end) is not None


def numbers_a_list(text: str, start: int, end: int) -> bool:
    """Whether a number begins a line as that of a list, and more numbers follow: "1. Accuracy: 9"."""
    begins = text.rfind("\n", 0, start) + 1
    return begins > 0 and not text[begins:start].strip() and _LISTED.match(text, end) is not None


def is_bound(text: str, start: int) -> bool:
    """Whether the words before a number make it a limit of the grade: "less than 3"."""
    return _BOUND.search(text, max(0, start - 40), start) is not None


def begins_as_refusal(text: str) -> bool:
    """Whether the first sentence says that the judge won't judge."""
    sentence = re.split(r"[.!?\n]", text.strip(), maxsplit=1)[0]
    return bool(_SORRY.match(sentence)) or refuses(sentence)


class Unsettled(Exception):
    """A reply settles on no verdict; the text says why."""
