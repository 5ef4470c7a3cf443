"""How long a regular expression may take: Python's engine backtracks, and some patterns take for ever.

``bounded`` decides from a pattern's syntax tree whether it is quick enough on every text of a length to be
run where nothing can stop it. It errs on the safe side: what it does not know may run away.

An attempt to match tries ways: each repeat may stop earlier, each alternative may be another. Where what may
follow begins with another character than what is repeated, only one way gets past that character. A repeat
whose body has several ways is exponential.
"""

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

STEPS: Final = 1e8
"""What a pattern may take at most of one text: about a second, where the engine is slow."""

_UNROLLED: Final = 64  # a repeat of up to as many is counted out, one of more is as good as endless
# Sets of characters are bits: Latin-1 one by one; of all others spaces, digits, letters and what is left.
_SPACES, _DIGITS, _LETTERS, _REST = (1 << 256 + place for place in range(4))
_OTHERS: Final = _SPACES | _DIGITS | _LETTERS | _REST
_ANY: Final = (1 << 260) - 1
_OTHER_CASE: Final = "iksåÅµßÿIKS"  # of which a letter beyond Latin-1 is another case


def bounded(pattern: str, texts: Sequence[str], flags: int = 0) -> bool:
    """Whether searching each of the texts, or finding all matches in it, is sure to end within a second or
    so.

    >>> bounded(r"#### (\\-?[0-9\\.\\,]+)", ["#### 4"]), bounded(r"(a+)+$", ["aaaa!"])
    (True, False)
    """
    cost = _cost(pattern, int(flags))
    longest = max(map(len, texts), default=0)
    return cost.whole.at(longest + 1) <= STEPS or all(cost.of(text) <= STEPS for text in texts)


@dataclass(frozen=True)
class _Growth:
    """A number that grows with the length of the text, by the powers of the length from 0 on; beyond a few
    it is as good as endless."""

    terms: tuple[float, ...] = (1.0,)

    def at(self, length: int) -> float:
        """The number for a text of this length."""
        return sum(term * float(length) ** power for power, term in enumerate(self.terms))

    def __mul__(self, other: "_Growth") -> "_Growth":
        found = [0.0] * (len(self.terms) + len(other.terms) - 1)
        for power, term in enumerate(self.terms):
            for more, factor in enumerate(other.terms):
                found[power + more] += term * factor if term and factor else 0.0
        return _Growth(tuple(found)) if len(found) < _POWERS else _ENDLESS

    def __add__(self, other: "_Growth") -> "_Growth":
        return _Growth(tuple(a + b for a, b in itertools.zip_longest(self.terms, other.terms, fillvalue=0.0)))

    def __or__(self, other: "_Growth") -> "_Growth":
        """Either, whichever is more."""
        return _Growth(
            tuple(max(a, b) for a, b in itertools.zip_longest(self.terms, other.terms, fillvalue=0.0))
        )

    def to_the(self, times: int) -> "_Growth":
        """Multiplied with itself."""
        found = _ONE
        for _ in range(times if self != _ONE else 0):
            found = found * self
        return found

    @property
    def constant(self) -> bool:
        """Whether the length has no say."""
        return not any(self.terms[1:])


_POWERS: Final = 12
_ONE: Final = _Growth()
_LENGTH: Final = _Growth((0.0, 1.0))
_ENDLESS: Final = _Growth((math.inf,))


@dataclass(frozen=True)
class _Cost:
    """The steps of finding all matches of a pattern: of a text by its length alone, and of one text by how
    often it has the word that every match has near its beginning."""

    whole: _Growth
    word: re.Pattern[str] | None = None
    before: _Growth = _ONE
    from_word: _Growth = _ENDLESS

    def of(self, text: str) -> float:
        """The steps for this text."""
        length = len(text) + 1
        if self.word is None:
            return self.whole.at(length)
        places = len(self.word.findall(text))
        return length * self.before.at(1) + (places * self.from_word.at(length) if places else 0.0)


@lru_cache(maxsize=4096)
def _cost(pattern: str, flags: int) -> _Cost:
    try:
        # Private, and the engine's own: no other parser reads exactly what it reads.
        from re import _parser  # type: ignore[attr-defined]

        tree = _parser.parse(pattern, flags)
        flags, pieces = tree.state.flags, list(tree)
        reading = _Reading(flags)
        found = reading.sequence(pieces, follow=0, last=True)
    except (AttributeError, ImportError, KeyError, RecursionError, TypeError, ValueError, re.error):
        return _Cost(_ENDLESS)
    steps = found.steps
    if found.read & found.first:  # a start inside of what an earlier start has read reads it again
        return _near_word(reading, pieces, flags, steps * _LENGTH)
    # Else only few starts can read the same stretch: those among the signs beside the long stretches.
    return _Cost(_Growth((0.0, steps.terms[0] * max([1.0, *steps.terms[1:2]]), *steps.terms[2:])))


def _near_word(reading: "_Reading", pieces: list[Any], flags: int, whole: _Growth) -> _Cost:
    """The cost by the first word of the pattern, if what stands before it is short."""
    while len(pieces) == 1 and str(pieces[0][0]) == "SUBPATTERN" and not any(pieces[0][1][1:3]):
        pieces = list(pieces[0][1][3])
    names = [str(name) for name, _ in pieces]
    start = next((place for place in range(len(names)) if names[place : place + 2] == ["LITERAL"] * 2), None)
    if start is None:
        return _Cost(whole)
    before = reading.sequence(pieces[:start], reading.sequence(pieces[start:], 0, True).first, False)
    if not (before.steps.constant and before.ways.constant):
        return _Cost(whole)
    letters = itertools.takewhile(lambda piece: str(piece[0]) == "LITERAL", pieces[start:])
    text = re.escape("".join(chr(code) for _, code in letters))
    word = re.compile(f"(?={text})", flags & re.IGNORECASE)  # one that overlaps itself is found as often
    return _Cost(whole, word, before.steps, before.ways * reading.sequence(pieces[start:], 0, True).steps)


@dataclass(frozen=True)
class _Part:
    """What is known of a piece of a pattern.

    ``first`` are the characters that it can begin with, ``empty`` whether it can match nothing. ``ways`` is
    how often what comes after it is tried beyond its first character, ``steps`` what one attempt takes.
    ``read`` are the characters of long stretches that an attempt may read in vain; ``looks``: it reads them
    without moving on.
    """

    first: int
    empty: bool
    ways: _Growth = _ONE
    steps: _Growth = _ONE
    read: int = 0
    looks: bool = False


_NOTHING: Final = _Part(first=0, empty=True)


class _Reading:
    """Reads the tree of a pattern with these flags, from its end to its beginning."""

    def __init__(self, flags: int) -> None:
        self._flags = flags

    def sequence(self, pieces: Sequence[tuple[Any, Any]], follow: int, last: bool) -> _Part:
        """Pieces one after the other. ``follow`` are the characters that what comes after can begin with;
        ``last``: what comes after is the end of the pattern, which has matched then."""
        found = _NOTHING
        for piece in reversed(pieces):
            after = found.first | (follow if found.empty else 0)
            at_end = last and found is _NOTHING
            own = self._piece(str(piece[0]), piece[1], after, at_end)
            found = _Part(
                first=own.first | (found.first if own.empty else 0),
                empty=own.empty and found.empty,
                ways=own.ways * found.ways,
                steps=own.steps + own.ways * found.steps,
                read=own.read | found.read,
                looks=own.looks or found.looks,
            )
        return found

    def _piece(self, name: str, value: Any, follow: int, last: bool) -> _Part:
        match name:
            case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
                return _Part(first=self._characters(name, value), empty=False)
            case "AT":
                return _NOTHING
            case "SUBPATTERN":
                _, added, removed, pieces = value
                return _Reading((self._flags | added) & ~removed).sequence(list(pieces), follow, last)
            case "ATOMIC_GROUP":
                inside = self.sequence(list(value), 0, False)
                return replace(inside, ways=_ONE)
            case "BRANCH":
                return self._branch([list(one) for one in value[1]], follow, last)
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeat((value[0], value[1], list(value[2])), follow, last)
            case "POSSESSIVE_REPEAT":
                return replace(self._repeat((value[0], value[1], list(value[2])), 0, False), ways=_ONE)
            case "ASSERT" | "ASSERT_NOT":
                inside = self.sequence(list(value[1]), 0, False)
                far = not inside.steps.constant
                return _Part(_ANY, True, _ONE, inside.steps, _ANY if far else 0, far)
            case "GROUPREF":
                return _Part(_ANY, True, _ONE, _LENGTH, _ANY, True)
        raise ValueError(f"{name} is not known")

    def _branch(self, alternatives: list[list[tuple[Any, Any]]], follow: int, last: bool) -> _Part:
        parts = [self.sequence(one, follow, last) for one in alternatives]
        begins = [part.first | (follow if part.empty else 0) for part in parts]
        apart = all(not one & other for i, one in enumerate(begins) for other in begins[:i])
        ways, steps = parts[0].ways, parts[0].steps
        for part in parts[1:]:
            ways = ways | part.ways if apart else ways + part.ways
            steps = steps + part.steps
        return _Part(
            first=_united(part.first for part in parts),
            empty=any(part.empty for part in parts),
            ways=ways,
            steps=steps,
            read=_united(part.read for part in parts),
            looks=any(part.looks for part in parts),
        )

    def _repeat(self, repeat: tuple[int, Any, list[Any]], follow: int, last: bool) -> _Part:
        least, times, pieces = repeat[0], int(repeat[1]), repeat[2]
        first = self.sequence(pieces, 0, False).first
        own = self.sequence(pieces, follow if times <= 1 else follow | first, last and times <= 1)
        tells = not (own.first & follow) and not own.empty  # whether to go on or to leave
        if times <= _UNROLLED:
            exits = 1.0 if tells or least == times else float(times - least + 1)
            return _Part(
                first=own.first,
                empty=least == 0 or own.empty,
                ways=own.ways.to_the(times) * _Growth((exits,)),
                steps=own.ways.to_the(max(times - 1, 0)) * own.steps * _Growth((float(max(times, 1)),)),
                read=own.read,
                looks=own.looks,
            )
        if own.empty or own.ways != _ONE:
            return _Part(own.first, least == 0 or own.empty, _ENDLESS, _ENDLESS, _ANY)
        # At the pattern's end a repeat of single characters has matched whatever it reads: none is in vain.
        single = len(pieces) == 1 and str(pieces[0][0]) in _SINGLE
        in_vain = 0 if last and single and least <= _UNROLLED else self._passed(pieces)
        return _Part(
            first=own.first,
            empty=least == 0,
            ways=_ONE if tells else _LENGTH,
            # Each of the body's steps is taken once on the way, unless it looks beyond its own place.
            steps=_LENGTH * own.steps
            if own.looks
            else _ONE + _LENGTH * _Growth((own.steps.terms[0],)) + own.steps,
            read=own.read | in_vain,
            looks=own.looks,
        )

    def _passed(self, pieces: Sequence[tuple[Any, Any]]) -> int:
        """Every character that the pieces can match."""
        found = 0
        for piece in pieces:
            name, value = str(piece[0]), piece[1]
            match name:
                case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY":
                    found |= self._characters(name, value)
                case "AT":
                    continue
                case "SUBPATTERN":
                    inner = _Reading((self._flags | value[1]) & ~value[2])
                    found |= inner._passed(list(value[3]))
                case "BRANCH":
                    found |= _united(self._passed(list(one)) for one in value[1])
                case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                    found |= self._passed(list(value[2]))
                case _:
                    return _ANY
        return found

    def _characters(self, name: str, value: Any) -> int:
        match name:
            case "LITERAL":
                return self._cased(_one(int(value)))
            case "NOT_LITERAL":
                # Without regard to case it excludes more; what it matches is not fewer for that.
                return _ANY & ~(_one(int(value)) & ~_OTHERS)
            case "ANY":
                return _ANY if self._flags & re.DOTALL else _ANY & ~_one(ord("\n"))
        return self._class(value)

    def _class(self, members: Sequence[tuple[Any, Any]]) -> int:
        found, negated = 0, False
        for member in members:
            name, value = str(member[0]), member[1]
            match name:
                case "NEGATE":
                    negated = True
                case "LITERAL":
                    found |= _one(int(value))
                case "RANGE":
                    low, high = value
                    found |= _united(1 << code for code in range(low, min(high, 255) + 1))
                    found |= _OTHERS if high > 255 else 0
                case "CATEGORY":
                    found |= self._category(str(value))
                case _:
                    return _ANY
        if not negated:
            return self._cased(found)
        whole = sum(kind for kind in (_SPACES, _DIGITS, _LETTERS) if self._excludes(members, kind))
        return _ANY & ~(found & ~_OTHERS | whole)

    def _excludes(self, members: Sequence[tuple[Any, Any]], kind: int) -> bool:
        """Whether a class holds all characters of a kind beyond Latin-1: by a category, as ``\\s`` does."""
        return any(str(name) == "CATEGORY" and self._category(str(value)) & kind for name, value in members)

    def _category(self, name: str) -> int:
        test, others = _CATEGORIES[name.rpartition("_")[2]]
        if self._flags & re.ASCII:
            others = 0
        codes = range(128 if self._flags & re.ASCII else 256)
        inside = _united(1 << code for code in codes if test(chr(code))) | others
        return _ANY & ~inside if "_NOT_" in name else inside

    def _cased(self, characters: int) -> int:
        """With every character that is the same without regard to case, where the flags say so."""
        if not self._flags & re.IGNORECASE:
            return characters
        if characters & _LETTERS:
            characters |= _united(map(_one, map(ord, _OTHER_CASE)))
        own = [chr(code) for code in range(256) if characters >> code & 1]
        turned = (ord(other) for c in own for case in (c.lower(), c.upper()) for other in case)
        beyond = _LETTERS if any(c in _OTHER_CASE for c in own) else 0
        return characters | beyond | _united(map(_one, turned))


_SINGLE: Final = ("LITERAL", "NOT_LITERAL", "IN", "ANY")
_CATEGORIES: Final[dict[str, tuple[Callable[[str], bool], int]]] = {
    "DIGIT": (str.isdecimal, _DIGITS),
    "SPACE": (str.isspace, _SPACES),
    "WORD": (lambda character: character.isalnum() or character == "_", _DIGITS | _LETTERS),
}


def _one(code: int) -> int:
    """The set of one character."""
    if code < 256:
        return 1 << code
    character = chr(code)
    kinds = ((str.isspace, _SPACES), (str.isdecimal, _DIGITS), (str.isalnum, _LETTERS))
    return next((kind for test, kind in kinds if test(character)), _REST)


def _united(sets: Iterable[int]) -> int:
    found = 0
    for one in sets:
        found |= one
    return found
