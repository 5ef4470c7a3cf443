"""Steps for answers that are numbers."""

import re

from scorers.filters.registry import Docs, Responses, filter_step
from scorers.filters.text import each_text

# A minus after a digit, letter or closing bracket is an operator ("5-3"), not a sign.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]])[-\u2212])?"  # sign
    r"\$?"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))"  # 1,234 | 1234 | nothing before .5
    r"(?:\.[0-9]+)?"
)


@filter_step("last_number", keeps="all", source="this project")
def last_number(resps: Responses, docs: Docs, fallback: str | None = None) -> list[list[str | None]]:
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
def normalize_number(resps: Responses, docs: Docs) -> list[list[str | None]]:
    """A number without thousands separators, dollar signs, surrounding space and a trailing period.

    >>> normalize_number([["$1,234.", " -5 ", "\\u22123.50"]], [{}])
    [['1234', '-5', '-3.50']]
    """
    return each_text(resps, "normalize_number", _normalized)


def _normalized(text: str) -> str:
    text = text.replace(",", "").replace("$", "").replace("\u2212", "-").strip()
    return text.rstrip(".").rstrip()
