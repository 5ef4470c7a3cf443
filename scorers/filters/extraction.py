"""Steps that find an answer inside a response: by a pattern, or a program by its fence."""

import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from metrics.text.fences import fenced_blocks
from scorers.base import FilterError
from scorers.filters.pipeline import Docs, ItemResponses, each_text, filter_step, match_text

_ALSO = {"python": ("py", "python3")}
"""Other names that a fence gives a language."""


@filter_step("code_block", keeps="all", source="this project")
def code_block(
    resps: ItemResponses, docs: Docs, language: str = "python", which: str = "last"
) -> list[list[str | None]]:
    """The ``which`` (first or last) block between ``` or ~~~ that names ``language``; without one a block
    that names none, else of any. An answer without blocks is taken whole, one whose last block was not closed
    to its end.

    >>> code_block([["So:\\n```python\\nx = 1\\n```\\nDone."]], [{}])
    [['x = 1\\n']]
    >>> code_block([["x = 2"]], [{}])
    [['x = 2']]
    """
    if which not in ("first", "last"):
        raise ValueError(f"which is first or last, not {which!r}")
    names = (language.lower(), *_ALSO.get(language.lower(), ()))

    def found(text: str) -> str:
        blocks = fenced_blocks(text)
        own = (
            [block for block in blocks if block.language in names]
            or [block for block in blocks if not block.language]
            or blocks
        )
        return own[0 if which == "first" else -1].text if own else text

    return each_text(resps, "code_block", found)


GSM8K_ANSWER = r"#### (\-?[0-9\.\,]+)"
_TAGGED_TOKEN = re.compile(r"\('([^']*)', '([^']*)'\)")
_HARNESS = "lm-evaluation-harness 0.4.13, lm_eval/filters/extraction.py"


@filter_step("regex", keeps="all", source=_HARNESS, patterns=("regex_pattern",))
def regex(
    resps: ItemResponses,
    docs: Docs,
    regex_pattern: str = GSM8K_ANSWER,
    group_select: int = 0,
    fallback: str | None = None,
) -> list[list[str | None]]:
    """The match number ``group_select`` (-1: the last) of a regular expression, stripped.

    A pattern with several groups gives the first that is not empty. Without a match the prediction is
    ``fallback``; None, the default, means no prediction, which scores as wrong (lm-evaluation-harness:
    ``[invalid]``).

    >>> regex([["2 + 2 #### 4", "four"]], [{}])
    [['4', None]]
    """
    pattern = re.compile(regex_pattern)

    def find(text: str) -> str | None:
        found = _select(pattern.findall(text), group_select)
        return fallback if found is None else found

    return _with_fallback(each_text(resps, "regex", find), fallback)


@filter_step(
    "multi_choice_regex", keeps="all", source=_HARNESS, patterns=("regex_pattern", "regexes_to_ignore")
)
def multi_choice_regex(
    resps: ItemResponses,
    docs: Docs,
    regex_pattern: str = GSM8K_ANSWER,
    group_select: int = 0,
    fallback: str | None = None,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    regexes_to_ignore: list[str] | None = None,
) -> list[list[str | None]]:
    """The letter, as ``(A)``, of the choice that a response names.

    Tried in turn: ``regex_pattern``; the text of one of the document's ``choices`` (both cleaned by the
    ``ignore`` arguments), longest first; a bare letter after a colon. A pattern's own match comes back as it
    is.

    >>> multi_choice_regex([["It is blue.", "Answer: B", "?"]], [{"choices": ["red", "blue"]}], r"\\((.)\\)")
    [['(B)', '(B)', None]]
    """
    pattern = re.compile(regex_pattern)
    ignored = tuple(re.compile(ignore) for ignore in regexes_to_ignore or ())

    def clean(text: str) -> str:
        for ignore in ignored:
            text = ignore.sub("", text)
        text = text.lower() if ignore_case else text
        return text.translate(_punctuation()) if ignore_punctuation else text

    def find_for(doc: Mapping[str, Any], position: int) -> Any:
        choices = tuple(clean(choice.strip()) for choice in _choices(doc, position))
        texts, letters = _choice_patterns(choices)
        by_text = {choice: f"({_letter(index)})" for index, choice in enumerate(choices)}

        def find(text: str) -> str | None:
            own = _select(pattern.findall(text), group_select)
            if own:
                return own
            named = _select(texts.findall(clean(text)), group_select)
            if named:
                return by_text.get(named, named)
            letter = _select(letters.findall(text), group_select)
            return f"({letter})" if letter else fallback

        return find

    found = [
        each_text([item], "multi_choice_regex", find_for(doc, position))[0]
        for position, (item, doc) in enumerate(zip(resps, docs, strict=True))
    ]
    return _with_fallback(found, fallback)


@filter_step("regex_pos", keeps="all", source=_HARNESS)
def regex_pos(
    resps: ItemResponses,
    docs: Docs,
    regex_pattern: str = r"\['(.*?)'\]",
    group_select: int = 0,
    fallback: list[str] | None = None,
) -> list[list[list[str] | None]]:
    """The tags of all ``('token', 'TAG')`` pairs in a response, as a list.

    ``regex_pattern`` and ``group_select`` are there because lm-evaluation-harness has them; it does not use
    them either. A response without a pair gives ``fallback`` (there: ``["invalid"]``).

    >>> regex_pos([["[('I', 'PRON'), ('run', 'VERB')]"]], [{}])
    [[['PRON', 'VERB']]]
    """
    re.compile(regex_pattern)

    def tags(text: str) -> list[str] | None:
        return [tag for _, tag in _TAGGED_TOKEN.findall(text)] or fallback

    return _with_fallback(each_text(resps, "regex_pos", tags), fallback)


def _select(matches: Sequence[Any], index: int) -> str | None:
    if not -len(matches) <= index < len(matches):
        return None
    return match_text(matches[index])


def _with_fallback(found: list[list[Any]], fallback: Any) -> list[list[Any]]:
    """No prediction from an earlier step takes the fallback too."""
    if fallback is None:
        return found
    return [[fallback if prediction is None else prediction for prediction in item] for item in found]


def _choices(doc: Mapping[str, Any], position: int) -> Sequence[str]:
    choices = doc.get("choices")
    if not isinstance(choices, list | tuple) or not all(isinstance(choice, str) for choice in choices):
        raise FilterError(
            "filter 'multi_choice_regex' needs a list of texts in the field 'choices' of every item; item "
            f"{position} of the batch has {choices!r:.80} (fields: {', '.join(map(str, doc))})"
        )
    return choices


@lru_cache(maxsize=4096)  # benchmarks repeat their choices: yes/no, the same four labels
def _choice_patterns(choices: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    # Longest first: alternation takes the leftmost branch, and "Guilty" must not win inside "Guilty of
    # Romance".
    texts = sorted((re.escape(choice) for choice in choices), key=len, reverse=True)
    letters = "|".join(re.escape(_letter(index)) for index in range(len(choices)))
    return re.compile("|".join(texts)), re.compile(rf":[\s]*({letters})")


def _letter(index: int) -> str:
    return chr(ord("A") + index)


@lru_cache(maxsize=1)
def _punctuation() -> dict[int, None]:
    """Every Unicode code point of the categories P*, for ``str.translate``; takes 0.2 s to collect."""
    return dict.fromkeys(i for i in range(sys.maxunicode) if unicodedata.category(chr(i)).startswith("P"))
