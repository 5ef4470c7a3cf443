"""Edits between two sequences: of characters, of words."""

from collections.abc import Hashable, Sequence


def levenshtein(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Least number of insertions, deletions and substitutions that make one sequence of the other.

    A column of the table is the bits of an integer: Myers 1999 in the form of Hyyrö 2003.

    >>> levenshtein("kitten", "sitting"), levenshtein(["the", "cat"], ["a", "cat"])
    (3, 1)
    """
    if first == second:
        return 0
    if not first or not second:
        return len(first) or len(second)
    places: dict[Hashable, int] = {}
    for place, sign in enumerate(first):
        places[sign] = places.get(sign, 0) | (1 << place)
    full, last = (1 << len(first)) - 1, 1 << (len(first) - 1)
    positive, negative, distance = full, 0, len(first)
    for sign in second:
        equal = places.get(sign, 0)
        diagonal = (((equal & positive) + positive) ^ positive) | equal | negative
        up, down = negative | (full & ~(diagonal | positive)), positive & diagonal
        distance += bool(up & last) - bool(down & last)
        up, down = ((up << 1) | 1) & full, (down << 1) & full
        positive, negative = down | (full & ~(diagonal | up)), up & diagonal
    return distance
