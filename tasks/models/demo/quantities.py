"""Numbers in English text: spelled out, counted in dozens, written as fractions or percentages."""

import re
from fractions import Fraction

UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
WORDS = {word: value for value, word in enumerate(UNITS)} | TENS
FRACTIONS = {
    "half": "1/2",
    "third": "1/3",
    "quarter": "1/4",
    "fourth": "1/4",
    "fifth": "1/5",
    "tenth": "1/10",
}
NUMBER = r"\d[\d,]*(?:\.\d+)?"

_compound = re.compile(rf"\b({'|'.join(TENS)})[ -]({'|'.join(UNITS[1:10])})\b")
_word = re.compile(rf"\b({'|'.join(WORDS)})\b")
_fraction = re.compile(rf"\b(?:(a|one|\d+)[ -])?({'|'.join(FRACTIONS)})s?\b(?! of an hour)")
_dozen = re.compile(rf"\b(?:({NUMBER}) |a )dozens?\b")
_article = re.compile(r"\ba (hundred|thousand)\b")
_scaled = re.compile(rf"\b({NUMBER}) (hundred|thousand)\b")


def in_digits(text: str) -> str:
    """The text in lower case with every quantity in digits.

    >>> in_digits("Twenty-five eggs, two dozen figs, half of $1,200 and 10 percent")
    '25 eggs, 2*12 figs, 1/2 of 1200 and 10%'
    """
    text = text.lower().replace("’", "'").replace("$", "")
    text = re.sub(r"\b(?:twice|double) (as|the)", r"2 times \1", text)
    text = re.sub(r"\bthrice as", "3 times as", text)
    text = _compound.sub(lambda m: str(WORDS[m[1]] + WORDS[m[2]]), text)
    text = _fraction.sub(_as_fraction, text)
    text = _word.sub(lambda m: str(WORDS[m[1]]), text)
    text = _article.sub(r"1 \1", text)
    text = _scaled.sub(lambda m: str(int(number(m[1])) * (100 if m[2] == "hundred" else 1000)), text)
    text = _dozen.sub(lambda m: f"{m[1]}*12" if m[1] else "12", text)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    return re.sub(r" ?percent\b", "%", text)


def number(text: str) -> Fraction:
    """The value of a number as ``in_digits`` writes it: ``12``, ``1,200``, ``2.50``."""
    return Fraction(text.replace(",", ""))


def shown(value: Fraction) -> str:
    """A value as people write it: no trailing zeros, at most four decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.4f}".rstrip("0").rstrip(".")


def _as_fraction(match: re.Match[str]) -> str:
    numerator, denominator = FRACTIONS[match[2]].split("/")
    count = match[1]
    if count and count.isdigit():
        numerator = count
    return f"{numerator}/{denominator}"
