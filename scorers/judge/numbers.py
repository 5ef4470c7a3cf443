"""The number that a judge's reply settles on, or why it settles on none."""

import math
import re
from collections.abc import Sequence
from typing import Final

from scorers.judge.evidence import (
    FIRST,
    JOINS,
    SAME_LINE,
    SECOND,
    Unsettled,
    begins_as_refusal,
    is_bound,
    is_denied,
    is_denied_announcement,
    numbers_a_list,
)

NUMBER: Final = r"[-+\u2212\u2013]?(?:\d+(?:\.\d+)?|\.\d+)"
_RANGE: Final = r"[-\u2012-\u2015]\d|\s*[-\u2012-\u2015]\s*\d[\d.]*\s*(?:[,.;)\]*]|\Z|\n)"
ENDS: Final = rf"(?![A-Za-z0-9_%/]|[.,]\d|\s*%|{_RANGE})"
"""A number ends here: it is no part of 1,000 or 7,5 or 92.5% or 7-8 or a date, all of which take a guess."""
_OUT_OF: Final = r"(?:\s*\(?\s*(?:/|out of{of})\s*(\d+(?:\.\d+)?))"
_HERE: Final = re.compile(rf"({NUMBER}){_OUT_OF.format(of='|of')}?{ENDS}", re.IGNORECASE)
_BRACKETED: Final = re.compile(rf"\[\[\s*({NUMBER}){_OUT_OF.format(of='|of')}?\s*\]\]", re.IGNORECASE)
_FRACTION: Final = re.compile(rf"(?<![\w.,/])({NUMBER}){_OUT_OF.format(of='')}{ENDS}", re.IGNORECASE)
_BEGINS: Final = r"(?=[-+\u2212\u2013]?\.?\d)"
_ANNOUNCED: Final = tuple(re.compile(heads + _BEGINS, re.IGNORECASE) for heads in (FIRST, SECOND))
_ANY: Final = re.compile(r"(?<![A-Za-z0-9_.,])[-+\u2212\u2013]?\.?\d(?:[\d.,]*\d)?")
_BRIEFLY: Final = r"(?:[ \t]*\([^()\n]{0,20}\))?"
_JOINED: Final = re.compile(
    rf"{_BRIEFLY}{SAME_LINE}(?:(?:{JOINS}|[+×]|[-\u2212\u2013][ \t]*\d[^=\n]{{0,40}}=){SAME_LINE}"
    rf"|(?:,[ \t]*(?!of\b|max)(?:\w+[ \t]+)?|→[ \t]*(?:\w+[ \t]+){{0,2}})"
    rf"(?={SAME_LINE}{NUMBER}{SAME_LINE}(?:[.!;(]|\Z|\n)){SAME_LINE})({NUMBER})(?!\d)",
    re.IGNORECASE,
)
"""Behind a number: another one that it is joined to, in a sum or a list, or corrected to."""
_AROUND_NUMBER: Final = " \t\r\n*_`\"'()[]{}:#<>"
"""What may stand around a number that is alone; a point may be its first sign, as in .5."""


def find_number(text: str, highest: float = math.inf, cut: bool = False) -> float:
    """The number that a reply settles on; raises Unsettled.

    In turn: the whole reply; the last number in double brackets; the last announced (``score: 7``); a
    fraction's upper part (``7/10``); the only number there is. What a fraction is out of has to be the
    ``highest`` grade where that is finite. A number that is joined to another one (``7 or 8``, ``3 + 4 = 7``)
    is none. Of a reply that was ``cut`` the last does not count, nor does one that another digit would leave
    within the range.
    """
    whole = text.strip(_AROUND_NUMBER).rstrip(".")
    if re.fullmatch(NUMBER, whole):
        return _complete_number(_value(whole), highest, cut)
    if bracketed := list(_BRACKETED.finditer(text)):
        _refuse_joined(bracketed[-2:], text)
        return _read(bracketed[-1], text, highest, cut)
    for announcement in _ANNOUNCED:
        if announced := list(announcement.finditer(text)):
            if is_denied_announcement(announced[-1]):
                raise Unsettled("the number is denied or weakened")
            # What is announced and can't be read is not made up for by another number.
            here = _HERE.match(text, announced[-1].end())
            if here and numbers_a_list(text, here.start(1), here.end(1)):
                raise Unsettled("only the number of a list")
            _refuse_joined([here] if here else [], text)
            return _read(here, text, highest, cut)
    fractions = list(_FRACTION.finditer(text))
    if fractions:
        _refuse_joined(fractions, text)
        fitting = [one for one in fractions if float(one[2]) == highest]
        return _read(_undenied((fitting or fractions)[-1]), text, highest, cut)
    numbers = {number[0]: number for number in _ANY.finditer(text)}
    if len(numbers) != 1:
        raise Unsettled("several numbers" if numbers else "no number")
    if cut:
        raise Unsettled("the reply was cut off before a grade")
    if begins_as_refusal(text):
        raise Unsettled("the reply refuses")
    only = _undenied(next(iter(numbers.values())))
    return _read(_HERE.match(text, only.start()), text, highest, cut)


def _refuse_joined(places: "Sequence[re.Match[str]]", text: str) -> None:
    if any(_JOINED.match(text, place.end()) for place in places):
        raise Unsettled("several numbers")


def _undenied(number: "re.Match[str]") -> "re.Match[str]":
    if is_bound(number.string, number.start()):
        raise Unsettled("only a bound")
    if is_denied(number.string, number.start()):
        raise Unsettled("the number is denied or weakened")
    return number


def _read(place: "re.Match[str] | None", text: str, highest: float, cut: bool) -> float:
    if place is None:
        raise Unsettled("no number that can be told without a guess")
    if place[2] is not None and math.isfinite(highest) and float(place[2]) != highest:
        raise Unsettled(f"{place[0].strip('[]( ')} is not out of {highest:g}")
    return _complete_number(_value(place[1]), highest, cut and place.end() == len(text) and place[2] is None)


def _complete_number(value: float, highest: float, cut: bool) -> float:
    """The number, unless the reply ends in it by a limit and another digit may have been to come."""
    if cut and value and 10 * abs(value) <= highest:
        raise Unsettled(f"the reply was cut off behind {value:g}, which may have gone on")
    return value


def _value(text: str) -> float:
    return float(text.replace("\u2212", "-").replace("\u2013", "-"))
