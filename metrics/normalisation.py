"""Texts made comparable, many at once: matches of patterns removed, lower case, some characters removed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from metrics.joined_patterns import SEPARATOR, joined_removal

_ODD = re.compile(f"[\0{SEPARATOR}]")


@dataclass(frozen=True)
class Normalisation:
    """What is done to a text: ``patterns`` removed, then lower case, then ``deleted`` characters removed.

    Trailing NULs go after every step, since the reference implementation compares numpy string arrays, which
    cannot hold them. ``deleted`` is ASCII.
    """

    patterns: Sequence[re.Pattern[str]] = ()
    lower: bool = False
    deleted: str = ""

    def of_text(self, text: str) -> str:
        """One text, step by step: what the normalisation of many must give."""
        for pattern in self.patterns:
            text = pattern.sub("", text).rstrip("\0")
        if self.lower:
            text = text.lower()
        if self.deleted:
            text = text.translate(dict.fromkeys(map(ord, self.deleted)))
        return text.rstrip("\0")

    def of_texts(self, texts: list[str]) -> list[str]:
        """Each text normalised.

        All are joined and go through each step as one long text, where that is known to be the same; else
        each distinct text alone.
        """
        removals = [joined_removal(pattern.pattern) for pattern in self.patterns]
        known = [removal for removal in removals if removal is not None]
        if len(known) < len(removals):
            return self._each(texts)
        whole = SEPARATOR.join(["", *texts, ""])
        if "\0" in whole or whole.count(SEPARATOR) > len(texts) + 1:
            plain = self.of_texts(["" if _ODD.search(text) else text for text in texts])
            return [
                self.of_text(text) if _ODD.search(text) else done
                for text, done in zip(texts, plain, strict=True)
            ]
        for remove in known:
            whole = remove(whole)
        return self._finished(whole).split(SEPARATOR)[1:-1]

    def _each(self, texts: list[str]) -> list[str]:
        done = {text: self.of_text(text) for text in set(texts)}
        return [done[text] for text in texts]

    def _finished(self, whole: str) -> str:
        if self.lower:
            whole = whole.lower()
        if whole.isascii():
            return whole.translate(dict.fromkeys(map(ord, self.deleted))) if self.deleted else whole
        for character in self.deleted:  # faster than to look up every character of a text that is not ASCII
            whole = whole.replace(character, "")
        return whole
