"""Tokens laid along the text that they came from, by what a server says their texts are.

A token's text alone often does not show its bytes: a character that is spread over several tokens is in each
of them a replacement character, which may stand for one byte of it or three. What stands around it decides.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

REPLACEMENT = "\ufffd"
LONGEST_PART = 3
"""Bytes of a character that one replacement character stands for at most: all four would be the character."""
LONGEST_UNKNOWN = 256
_spelt = re.compile(r"bytes:((?:\\x[0-9a-fA-F]{2})+)")
Places = frozenset[int]


@dataclass(frozen=True)
class Alignment:
    """Where each token may begin, in bytes of the text: ``begins[i]`` for token i, and the text's length for
    ``end``, the first token behind the text.
    """

    text: str
    begins: tuple[Places, ...]

    @classmethod
    def of(cls, tokens: Sequence[str | None], text: str, generated: int) -> "Alignment | None":
        """Lays the tokens along the text: all but the last ``generated`` ones, or all where those are not
        listed. The first may be a BOS and no part of the text, and its own text may be unknown (None).

        None: they don't spell it.
        """
        data = text.encode("utf-8", "surrogatepass")
        reached = _reached(data, tokens)
        ends = (len(tokens) - generated, len(tokens))
        end = next((end for end in ends if 0 < end < len(reached) and len(data) in reached[end]), None)
        if end is None:
            return None
        begins = [frozenset((len(data),))]
        for index in range(end - 1, -1, -1):
            following = begins[-1]
            begins.append(
                frozenset(
                    start
                    for start in reached[index]
                    if not following.isdisjoint(_ends(data, start, tokens[index], index == 0))
                )
            )
        return cls(text, tuple(reversed(begins)))

    @property
    def end(self) -> int:
        """The index of the first token behind the text."""
        return len(self.begins) - 1

    def tokens_at(self, position: int) -> list[int]:
        """The tokens that may begin at a character of the text; of those without text none."""
        place = self._place(position)
        return [
            index
            for index in range(self.end)
            if place in self.begins[index] and self.begins[index + 1] != frozenset((place,))
        ]

    def first_after(self, position: int) -> int:
        """The first token that begins at that character or behind it, whatever its own text was."""
        return bisect_left(self.begins, self._place(position), key=min)

    def _place(self, position: int) -> int:
        return len(self.text[:position].encode("utf-8", "surrogatepass"))


def _reached(data: bytes, tokens: Sequence[str | None]) -> list[Places]:
    """Where the text may be after none, one, two … tokens, as far as they spell it."""
    reached = [frozenset((0,))]
    for index, token in enumerate(tokens):
        places = frozenset(end for start in reached[-1] for end in _ends(data, start, token, index == 0))
        if not places:
            break
        reached.append(places)
    return reached


def _ends(data: bytes, start: int, token: str | None, first: bool) -> set[int]:
    """Where a token that begins at a byte may end."""
    if token is None:
        return set(range(start, min(len(data), start + LONGEST_UNKNOWN) + 1))
    ends = {start}
    for part in _parts(token):
        if part is None:
            sizes = range(1, LONGEST_PART + 1)
            ends = {end + size for end in ends for size in sizes if _inside(data[end : end + size], size)}
        else:
            ends = {end + len(part) for end in ends if data.startswith(part, end)}
    return ends | {start} if first else ends


def _inside(part: bytes, size: int) -> bool:
    return len(part) == size and min(part) >= 0x80


@lru_cache(maxsize=1 << 14)
def _parts(token: str) -> tuple[bytes | None, ...]:
    """A token's bytes; None for a replacement character."""
    spelt = _spelt.fullmatch(token)
    if spelt:
        return (bytes.fromhex(spelt[1].replace("\\x", "")),)
    pieces = (piece for piece in re.split(f"({REPLACEMENT})", token) if piece)
    return tuple(None if piece == REPLACEMENT else piece.encode("utf-8", "surrogatepass") for piece in pieces)
