"""Patterns for many texts at once: the same matches in texts joined by a separator as in each text alone.

A match may not cross the separator, and what looks at a text's ends must take the separator for one. So a
pattern is rewritten piece by piece: none of them may consume the separator, and ``^``, ``$``, ``\\A`` and
``\\Z`` become looks at it. A pattern with a piece that is not listed here is not rewritten at all.
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial

SEPARATOR = "\x01"
"""Between, before and after the texts; no letter, no space, and nothing that lower case looks through."""

_LEADING_FLAGS = re.compile(r"\(\?[aimsu]+\)")
_PIECE = re.compile(
    r"""
      (?P<own_class> \[ \^? \]? (?: [^]\\] | \\. )* \] )
    | (?P<group> \( (?! \? ) | \( \? (?: : | <?[=!] ) )
    | (?P<escaped> \\ . )
    | (?P<one> [^\\\[(] )
    """,
    re.VERBOSE | re.DOTALL,
)
_LITERAL = re.compile(r"(?:[^\\\[\](){}.^$*+?|]|\\[^\w\s])*")
_AS_IT_IS = frozenset("dwsbBntrfva")  # escapes that match no separator, or look at word characters only
_REWRITTEN = {
    r"\D": r"[^\d\x01]",
    r"\W": r"[^\w\x01]",
    r"\S": r"[^\s\x01]",
    r"\A": r"(?<=\x01)",
    r"\Z": r"(?=\x01)",
}


@lru_cache(maxsize=256)
def joined_removal(pattern: str) -> Callable[[str], str] | None:
    """What takes out of joined texts the matches that ``pattern`` has in each; None if no way is known.

    For texts without ``SEPARATOR``, joined by it, with one before the first and after the last.
    """
    flags = re.compile(pattern).flags
    if flags & re.VERBOSE or SEPARATOR in pattern:
        return None
    if _LITERAL.fullmatch(pattern):
        literal = re.sub(r"\\(.)", r"\1", pattern)
        return lambda whole: whole.replace(literal, "")
    rewritten = _rewritten(pattern, flags)
    return None if rewritten is None else partial(re.compile(rewritten, flags).sub, "")


def _rewritten(pattern: str, flags: int) -> str | None:
    leading = _LEADING_FLAGS.match(pattern)
    place, pieces = leading.end() if leading else 0, []
    while place < len(pattern):
        piece = _PIECE.match(pattern, place)
        rewritten = None if piece is None else _rewritten_piece(piece, flags)
        if piece is None or rewritten is None:
            return None
        pieces.append(rewritten)
        place = piece.end()
    return "".join(pieces)


def _rewritten_piece(piece: re.Match[str], flags: int) -> str | None:
    text = piece.group()
    match piece.lastgroup:
        case "own_class":
            return _rewritten_class(text, flags)
        case "escaped":
            plain = text[1] in _AS_IT_IS or (text.isascii() and not text[1].isalnum())
            return text if plain else _REWRITTEN.get(text)
        case "one":
            return _rewritten_sign(text, flags)
    return text


def _rewritten_class(text: str, flags: int) -> str | None:
    if re.fullmatch(text, SEPARATOR, flags) is None:
        return text
    # "]" and "-" mean something else where they are not the first
    return r"[^\x01" + text[2:] if text.startswith("[^") and text[2] not in "]-" else None


def _rewritten_sign(sign: str, flags: int) -> str:
    lines = bool(flags & re.MULTILINE)
    match sign:
        case ".":
            return r"[^\x01]" if flags & re.DOTALL else r"[^\n\x01]"
        case "^":
            return r"(?<=[\n\x01])" if lines else r"(?<=\x01)"
        case "$":
            return r"(?=[\n\x01])" if lines else r"(?=\n?\x01)"
    return sign
