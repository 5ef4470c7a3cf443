"""The label that a judge's reply settles on, or why it settles on none."""

import re
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Final

from scorers.articles import may_be_word, next_word
from scorers.judge.evidence import (
    FIRST,
    JOINS,
    MARKS,
    SAME_LINE,
    SECOND,
    Unsettled,
    begins_as_refusal,
    is_bound,
    is_denied_announcement,
    is_named,
    is_ordinary,
    is_taken_back,
    is_weakened,
    numbers_a_list,
)
from scorers.judge.numbers import ENDS, NUMBER

_AROUND_LABEL: Final = " \t\r\n*_`\"'“”‘’()[]{}.:#<>"
"""What may stand around a label that is alone."""
_END: Final = rf"[{MARKS}\])]*(?:[.!;。]|\Z|\n)"
_ENDED: Final = re.compile(_END)
"""Behind a label: nothing more in its sentence."""
_UNSETTLED: Final = re.compile(rf"[{MARKS}]*(?:[+/?]|-(?!\w))")
"""Behind a label: that it is half of another one (B+, A/B), or a question."""


def find_label(text: str, labels: Collection[str], cut: bool = False) -> str:
    """The label that a reply settles on; raises Unsettled.

    In turn: the whole reply; the last label in double brackets; the last one behind a word for a verdict
    (``Grade: A``, ``the verdict is A``); the only one that begins the reply or is alone on its last line; the
    last one behind "the answer is" that ends its sentence; the only one that occurs as a word of its own, in
    its own case, and is not denied. A label that is joined to another one (``A < B``, ``A and B``) or taken
    back (``A is worse``) settles nothing, nor does one that the sentence has as an ordinary word (``no
    mistakes``). Of a reply that was ``cut`` the last rule does not count, nor does a label that could have
    gone on.
    """
    if whole := label_of(text.strip(_AROUND_LABEL), labels):
        return _complete_label(whole, labels, cut)
    patterns = _patterns(tuple(labels))
    if bracketed := [said for said in patterns.bracketed.finditer(text) if label_of(said[1], labels)]:
        return _last_bracketed(bracketed, labels, patterns)
    if announced := [said for said in patterns.first.finditer(text) if not _is_word(said, labels)]:
        return _settled(announced[-1], labels, patterns, cut)
    if other := patterns.other.search(text):
        raise Unsettled(f"{other[0].strip()!r} is none of the labels {', '.join(labels)}")
    if alone := set(_alone(text, labels, patterns)):
        return _single(alone)
    if answered := [said for said in patterns.second.finditer(text) if _ENDED.match(text, said.end(1))]:
        return _complete_label(answered[-1][1], labels, cut and answered[-1].end() == len(text))
    return _standing(text, labels, patterns, cut)


def label_of(said: str, labels: Collection[str]) -> str | None:
    """The label that a text is, in whatever case; None: none, or no single one."""
    if said in labels:
        return said
    found = [
        label
        for label in labels
        if label.casefold() == said.casefold() or re.fullmatch(re.escape(label), said, re.IGNORECASE)
    ]
    return found[0] if len(found) == 1 else None


def _last_bracketed(
    bracketed: "Sequence[re.Match[str]]", labels: Collection[str], patterns: "_Patterns"
) -> str:
    text, label = bracketed[-1].string, label_of(bracketed[-1][1], labels)
    joined = any(patterns.joined.match(text, before.end()) for before in bracketed[-2:-1])
    if label is None or joined or _in_doubt(bracketed[-1], labels, patterns):
        raise Unsettled(f"{bracketed[-1][0]!r} can't be told without a guess")
    return label


def _settled(said: "re.Match[str]", labels: Collection[str], patterns: "_Patterns", cut: bool) -> str:
    """The label that was announced last; what is in doubt is not made up for by another one."""
    text, end = said.string, said.end(1)
    label = label_of(said[1], labels)
    doubtful = _is_doubtful(said) or is_denied_announcement(said) or numbers_a_list(text, said.start(1), end)
    if label is None or doubtful or _in_doubt(said, labels, patterns):
        raise Unsettled(f"{said[0].strip()!r} can't be told without a guess")
    return _complete_label(label, labels, cut and end == len(text))


def _alone(text: str, labels: Collection[str], patterns: "_Patterns") -> Iterator[str]:
    """Labels that are alone on the first or last line, or are the reply's first word before a comma or
    point."""
    lines = text.strip().splitlines()
    for line in (lines[0], lines[-1]) if lines else ():
        if label := label_of(line.strip(_AROUND_LABEL), labels):
            yield label
    begun = re.match(rf"[{MARKS}]*(\w\w+(?:[ \t]\w+){{0,5}})[{MARKS}]*[,.!;–—]", text)
    if begun and (label := label_of(begun[1], labels)):
        if _in_doubt(begun, labels, patterns):
            raise Unsettled(f"{begun[1]!r} can't be told without a guess")
        yield label


def _single(found: Collection[str]) -> str:
    if len(found) > 1:
        raise Unsettled(f"several of the labels ({', '.join(sorted(found))})")
    return next(iter(found))


def _standing(text: str, labels: Collection[str], patterns: "_Patterns", cut: bool) -> str:
    places = [said for said in patterns.standing.finditer(text) if not _is_word(said, labels)]
    named = {said[1] for said in places}
    if not named or (len(named) == 1 and all(map(_is_no_verdict, places))):
        raise Unsettled(f"none of the labels {', '.join(labels)}")
    label = _single(named)
    if begins_as_refusal(text):
        raise Unsettled("the reply refuses")
    if any(is_weakened(text, said.start()) for said in places):
        raise Unsettled(f"label {label} is denied or weakened")
    bound = re.fullmatch(NUMBER, label) and any(is_bound(text, said.start(1)) for said in places)
    if bound or any(_in_doubt(said, labels, patterns) for said in places):
        raise Unsettled(f"label {label} can't be told without a guess")
    if cut:
        raise Unsettled("the reply was cut off before a label")
    return label


def _is_word(said: "re.Match[str]", labels: Collection[str]) -> bool:
    """Whether what looks like a label is the article: small where the label is not, or before another
    label."""
    text, end = said.string, said.end(1)
    return said[1] in ("A", "a") and (
        next_word(text, end) in labels or (said[1] not in labels and may_be_word(said[1], text, end))
    )


def _is_no_verdict(said: "re.Match[str]") -> bool:
    return _is_doubtful(said) or is_ordinary(said[1], said.string, *said.span(1))


def _is_doubtful(said: "re.Match[str]") -> bool:
    """Whether an A, or an I, may be a word of the sentence."""
    named = is_named(said.string, said.start(1))
    return not named and may_be_word(said[1], said.string, said.end(1))


def _in_doubt(said: "re.Match[str]", labels: Collection[str], patterns: "_Patterns") -> bool:
    """Whether what follows a label makes it half of another one, names another one beside it, or takes it
    back."""
    text, end = said.string, said.end(1)
    other = patterns.joined.match(text, end)
    return bool(
        _UNSETTLED.match(text, end) or (other and not _is_word(other, labels)) or is_taken_back(text, end)
    )


def _complete_label(label: str, labels: Collection[str], cut: bool) -> str:
    """The label, unless the reply ends in it by a limit and it may be the beginning of another one."""
    if cut and any(other != label and other.casefold().startswith(label.casefold()) for other in labels):
        raise Unsettled(f"the reply was cut off behind {label}, which may have gone on")
    return label


class _Patterns:
    """What finds the labels of a config in a reply."""

    def __init__(self, labels: Collection[str]) -> None:
        either = "|".join(_guarded(label) for label in sorted(labels, key=len, reverse=True))
        word = rf"(?<!\w)(?<!\w[-\u2010\u2011])({either})(?!\w|[-\u2010\u2011]\w)"
        list_of = rf",(?:[ \t]*but\b)?(?={SAME_LINE}(?:{either})(?:,|{_END}))"
        self.bracketed = re.compile(rf"\[\[\s*({either})\s*\]\]", re.IGNORECASE)
        self.joined = re.compile(rf"{SAME_LINE}(?:{JOINS}|{list_of}){SAME_LINE}{word}", re.IGNORECASE)
        self.first = re.compile(FIRST + word, re.IGNORECASE)
        self.other = re.compile(FIRST + _other(labels), re.IGNORECASE)
        self.second = re.compile(rf"(?i:{SECOND}){word}")
        self.standing = re.compile(word)


def _guarded(label: str) -> str:
    """A label as a pattern; one that is a number is no part of another one."""
    if re.fullmatch(NUMBER, label):
        return rf"(?<![\w.,+\u2212-]){re.escape(label)}{ENDS}"
    return re.escape(label)


def _other(labels: Collection[str]) -> str:
    """A verdict that is none of the labels: a number where they are numbers, a letter where they are."""
    digits = r"[-+\u2212]?\.?\d[\d.,]*" if any(label.isdigit() for label in labels) else r"(?!)"
    letter = r"(?-i:[A-Z])(?![\w'’]|[ \t]+\w)" if any(len(label) == 1 for label in labels) else r"(?!)"
    return rf"(?:{digits}|{letter})"


_patterns = lru_cache(maxsize=64)(_Patterns)
