"""Filter steps that rewrite each response by itself: case, white space, reasoning, spans, numbers."""

import re
from typing import Any

from scorers.filters.pipeline import Docs, ItemResponses, each_text, filter_step

_HARNESS = "lm-evaluation-harness 0.4.13, lm_eval/filters/"

_SPAN_LABELS = {
    "person": "PER",
    "location": "LOC",
    "organization": "ORG",
    "counties": "LOC",
    "places": "LOC",
    "people": "PER",
    "persons": "PER",
    "company": "ORG",
    "country": "LOC",
    "continent": "LOC",
    "time": "DATE",
    "date": "DATE",
    "per": "PER",
    "loc": "LOC",
    "org": "ORG",
}
_SPAN_PATTERNS = [(re.compile(rf"\b{word}\s*:"), f"{label}:") for word, label in _SPAN_LABELS.items()]
_SPAN = re.compile(r"\b(PER|LOC|ORG|DATE):\s*([^$]+)")


@filter_step("lowercase", keeps="all", source=_HARNESS + "transformation.py")
def lowercase(resps: ItemResponses, docs: Docs) -> list[list[str | None]]:
    """The text in lower case (``str.lower``)."""
    return each_text(resps, "lowercase", str.lower)


@filter_step("uppercase", keeps="all", source=_HARNESS + "transformation.py")
def uppercase(resps: ItemResponses, docs: Docs) -> list[list[str | None]]:
    """The text in upper case (``str.upper``)."""
    return each_text(resps, "uppercase", str.upper)


@filter_step("remove_whitespace", keeps="all", source=_HARNESS + "extraction.py")
def remove_whitespace(resps: ItemResponses, docs: Docs) -> list[list[str | None]]:
    """The text without white space around it; what is inside stays, as in lm-evaluation-harness."""
    return each_text(resps, "remove_whitespace", str.strip)


@filter_step("strip", keeps="all", source="this project")
def strip(resps: ItemResponses, docs: Docs, chars: str | None = None) -> list[list[str | None]]:
    """The text without ``chars`` (default: white space) at both ends.

    >>> strip([["**4**"]], [{}], chars="*")
    [['4']]
    """
    return each_text(resps, "strip", lambda text: text.strip(chars))


@filter_step("map", keeps="all", source=_HARNESS + "transformation.py")
def map_values(
    resps: ItemResponses, docs: Docs, mapping_dict: dict[Any, Any] | None = None, default_value: Any = None
) -> list[list[Any]]:
    """Each prediction's entry in ``mapping_dict``; without one, and for no prediction, ``default_value``.

    >>> map_values([["A", "Z"]], [{}], {"A": 0, "B": 1})
    [[0, None]]
    """
    table = mapping_dict or {}

    def look_up(resp: Any) -> Any:
        try:
            return table.get(resp, default_value)
        except TypeError:  # a list or a mapping is no key
            return default_value

    return [[look_up(resp) for resp in item] for item in resps]


@filter_step(
    "strip_think", keeps="all", source="lm-evaluation-harness, main branch, lm_eval/filters/think.py"
)
def strip_think(
    resps: ItemResponses, docs: Docs, think_end_token: str = "</think>"
) -> list[list[str | None]]:
    """The answer after a reasoning section: what follows the first ``think_end_token``, or all without one.

    A response that opens with ``<think>`` and never closes it holds no answer: the empty text.

    >>> strip_think([["<think>hm</think> 4", "4", "<think>hm"]], [{}])
    [['4', '4', '']]
    """

    def answer(text: str) -> str:
        _, closed, rest = text.partition(think_end_token)
        if closed:
            return rest.lstrip()
        return "" if text.lstrip().startswith("<think>") else text

    return each_text(resps, "strip_think", answer)


@filter_step("format_span", keeps="all", source=_HARNESS + "transformation.py")
def format_span(resps: ItemResponses, docs: Docs) -> list[list[str | None]]:
    """Named entities as ``per: ann $ loc: kenya``: labels unified, groups spread out, "none" left out.

    >>> format_span([["person: Ann $$ country: Kenya, Uganda"]], [{}])
    [['per: ann $ loc: kenya $ loc: uganda']]
    """
    return each_text(resps, "format_span", _format_span)


def _format_span(text: str) -> str:
    text = text.lower()
    for pattern, label in _SPAN_PATTERNS:
        text = pattern.sub(label, text)
    text = text.replace("$$", "$").rstrip("$").replace("\n", "$").strip()
    return " $ ".join(
        f"{label.lower()}: {entity.strip()}"
        for label, entities in _SPAN.findall(text)
        for entity in entities.split(",")
        if entity.strip().lower() != "none"
    )


# A minus after a digit, letter or closing bracket is an operator ("5-3"), not a sign.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])[-\u2212][€£¥₹]?)?"  # sign
    r"\$?"
    r"(?:[0-9]{1,3}(?:[,\u00a0\u2009\u202f][0-9]{3})+(?![0-9])"  # 1,234
    r"|[0-9]+|(?=\.[0-9]))"  # 1234, or nothing before .5
    r"(?:\.[0-9]+)?"
)


@filter_step("last_number", keeps="all", source="this project")
def last_number(resps: ItemResponses, docs: Docs, fallback: str | None = None) -> list[list[str | None]]:
    """The last number in the text, as it is written there (``$1,234.50``); none gives ``fallback``.

    >>> last_number([["She pays 3 x $4 = $12.", "nothing"]], [{}])
    [['$12', None]]
    """

    def find(text: str) -> str | None:
        found = _NUMBER.findall(text)
        return found[-1] if found else fallback

    numbers = each_text(resps, "last_number", find)
    return [[fallback if number is None else number for number in item] for item in numbers]


@filter_step("normalize_number", keeps="all", source="this project")
def normalize_number(resps: ItemResponses, docs: Docs) -> list[list[str | None]]:
    """A number without thousands separators, currency signs, surrounding space and a trailing period.

    >>> normalize_number([["$1,234.", " -5 ", "\\u22123.50"]], [{}])
    [['1234', '-5', '-3.50']]
    """
    return each_text(resps, "normalize_number", _normalized)


_PLAINLY = str.maketrans("\u2212", "-", "$€£¥₹")
_SEPARATOR = re.compile(r"(?<=[0-9])[,\u00a0\u2009\u202f](?=[0-9]{3}(?![0-9]))")


def _normalized(text: str) -> str:
    text = _SEPARATOR.sub("", text.translate(_PLAINLY)).strip()
    return text.rstrip(".").rstrip()
