"""Where in a response a prediction stands: pages mark it, and the diagnostics put the reference there."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metrics.patterns import bounded

TextSpan = tuple[int, int]
"""Start and end in a text, in characters."""


@dataclass(frozen=True)
class Pattern:
    """The regular expression of a filter's first step, and which of its matches it takes (-1: the last)."""

    regex: re.Pattern[str]
    group_select: int = 0

    def matches(self, text: str) -> list[TextSpan]:
        """Spans of what each match captured: its first non-empty group, else the whole match. None where
        looking for them might take for ever: nothing could stop it here."""
        if not bounded(self.regex.pattern, [text]):
            return []
        return [_captured(match) for match in self.regex.finditer(text)]

    def span(self, text: str) -> TextSpan | None:
        """The span that the filter takes, None if there is no such match."""
        spans = self.matches(text)
        try:
            return spans[self.group_select]
        except IndexError:
            return None


def patterns(config: Mapping[str, Any]) -> dict[str, Pattern]:
    """Filter name → pattern, for the filters of a config (``filter_list``) whose first step is a regular
    expression.

    A pattern that does not compile is left out: where it matters, the run has said so already.
    """
    found = {}
    for entry in _mappings(config.get("filter_list")):
        steps = _mappings(entry.get("filter"))
        if steps and steps[0].get("function") == "regex" and isinstance(steps[0].get("regex_pattern"), str):
            try:
                regex = re.compile(steps[0]["regex_pattern"])
            except re.error:
                continue
            found[str(entry.get("name"))] = Pattern(regex, int(steps[0].get("group_select") or 0))
    return found


def find_span(text: str, prediction: Any, pattern: Pattern | None = None) -> TextSpan | None:
    """Start and end of the prediction in the response, in characters; None where it does not stand there.

    The pattern's own match wins if it holds the prediction. Without one it is the last place where the
    prediction stands as words of its own, since answers come last; then the last place at all, in any case. A
    prediction that is the whole response, or no text, has no span.
    """
    if not isinstance(prediction, str) or not prediction.strip() or prediction.strip() == text.strip():
        return None
    if pattern is not None:
        span = pattern.span(text)
        if span and _bare(text[slice(*span)]) == _bare(prediction):
            return span
    answer = prediction.strip()
    whole_words = rf"(?<!\w){re.escape(answer)}(?!\w)"
    places = list(re.finditer(whole_words, text))
    if places:
        return places[-1].span()
    start = text.lower().rfind(answer.lower())
    return (start, start + len(answer)) if start >= 0 and len(text.lower()) == len(text) else None


def utf16(text: str, span: TextSpan) -> TextSpan:
    """The span in UTF-16 units, in which JavaScript counts."""
    start, end = span
    if text.isascii():
        return span
    before = start + _astral(text[:start])
    return before, before + (end - start) + _astral(text[start:end])


def _captured(match: re.Match[str]) -> TextSpan:
    for group, captured in enumerate(match.groups(), start=1):
        if captured:
            return match.span(group)
    return match.span()


def _astral(text: str) -> int:
    return sum(ord(character) > 0xFFFF for character in text)


def _bare(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    """The mappings of a list; configs come from files, so that nothing is taken for granted."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return []
    return [entry for entry in value if isinstance(entry, Mapping)]
