"""The letters A and I in a sentence: choices and labels, or English words."""

import re
from typing import Final

_GOES_ON: Final = re.compile(r"[ \t]+([a-z][\w'’]*)")
_NO_NOUN: Final = re.compile(
    r"(?:is|was|has|had|does|did|will|would|can|could|should|won|because|since|as|for|by|over|than|and|or|but|with"
    r"|in|on|at|from|to|due|when|while|where|if|although|though|rather|despite|whereas|against|here|also|only"
    r"|[a-z]+[^siu\W]s)\Z"
)
"""What no article stands before: a preposition, a conjunction, an auxiliary, or a word that ends as
plurals and verbs of the third person do."""


def next_word(text: str, end: int) -> str | None:
    """The small word that follows on the same line; None: none does."""
    found = _GOES_ON.match(text, end)
    return found[1] if found else None


def may_be_word(letter: str, text: str, end: int) -> bool:
    """Whether a letter that ends at ``end`` may be the article or the pronoun, by the word behind it.

    >>> [may_be_word("A", text, 1) for text in ("A dog", "A is right", "A.", "A outperforms B")]
    [True, False, False, False]
    """
    word = next_word(text, end) if letter in ("A", "a", "I") else None
    return word is not None and (letter == "I" or not _NO_NOUN.match(word))
