"""Normalising many texts at once against normalising each alone, with patterns and texts of every sort."""

import re
import string
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from metrics.text.exact_match import SEPARATOR, Normalisation, joined_removal

LETTERS = st.sampled_from([*"aAb1 .,$#\n\r\x1céİΣſ\u0301漢\u2028\ud800😀"])
TEXT = st.one_of(
    st.text(LETTERS, max_size=9),
    st.text(max_size=6),
    st.sampled_from(
        ["", "\0", "a\0", SEPARATOR, f"a{SEPARATOR}b", "ΑΣ", "Σ", "1,000.", "x #### 5\n", "a.\n", "\n"]
    ),
)
TEXTS = st.lists(TEXT, max_size=8)

PLAIN = [*"ab1, #\néΣ.^$"]
ESCAPED = [f"\\{letter}" for letter in "bBsSwWdDAZn.$-1"]
CLASSES = ["[ab]", "[^a]", "[^]a]", "[^-a]", "[]a]", "[!-~]", "[^!-~]"]
CLASSES += [r"[\W]", r"[^\s]", r"[^\n1]", r"[a\]]", r"[^\]a]"]
ATOM = st.sampled_from([*PLAIN, *ESCAPED, *CLASSES, r"\x41"])
GROUP = st.sampled_from(["(", "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?i:", "(?s:", "(?P<name>"])
REPEAT = st.sampled_from(["*", "+", "?", "{1,2}", "*?", "+?", "{2}"])
BODY = st.recursive(
    ATOM,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=2).map("|".join),
        st.tuples(GROUP, inner).map(lambda made: f"{made[0]}{made[1]})"),
        st.tuples(inner, REPEAT).map("".join),
    ),
    max_leaves=6,
)
FLAGS = st.sampled_from(["", "", "", "(?s)", "(?i)", "(?m)", "(?a)", "(?is)", "(?x)"])
PATTERN = st.tuples(FLAGS, BODY).map("".join)


def compiled(*patterns: str) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple(re.compile(pattern) for pattern in patterns)
    except re.error:
        assume(False)
        raise


@settings(max_examples=400)
@given(TEXTS, st.lists(PATTERN, max_size=2), st.booleans(), st.sampled_from(["", "a.", string.punctuation]))
def test_texts_together_are_the_texts_alone(
    texts: list[str], patterns: Any, lower: bool, deleted: str
) -> None:
    normalisation = Normalisation(compiled(*patterns), lower, deleted)
    assert normalisation.of_texts(texts) == [normalisation.of_text(text) for text in texts]


PIECES = [
    "a",
    "A",
    "1",
    r"\.",
    ".",
    "^",
    "$",
    "[^a]",
    "[a.]",
    "[^1]",
    "[^^]",
    r"[\W]",
    "a*",
    ".+",
    ".*?",
    "(a)",
    "(?:)",
]
PIECES += [f"\\{letter}" for letter in "AZbBdDsSwWn"]
PIECES += [f"({look}{seen})" for look in ("?=", "?!", "?<=", "?<!") for seen in ("a", ".", "$", r"\W")]


@pytest.mark.parametrize("flags", ["", "(?s)", "(?m)", "(?i)", "(?a)"])
def test_every_two_pieces_match_in_the_joined_texts_what_they_match_in_each(flags: str) -> None:
    texts = ["".join(letters) for n in range(4) for letters in product("aA\n.1", repeat=n)]
    whole = SEPARATOR.join(["", *texts, ""])
    known = 0
    for pattern in (f"{flags}{first}{second}" for first, second in product(PIECES, PIECES)):
        remove = joined_removal(pattern)
        known += remove is not None
        if remove is not None:
            alone = re.compile(pattern)
            assert remove(whole).split(SEPARATOR)[1:-1] == [alone.sub("", text) for text in texts], pattern
    assert known > len(PIECES) ** 2 * 0.9


@pytest.mark.parametrize(
    "pattern",
    [
        ",",
        r"\$",
        r"(?s).*#### ",
        r"\.$",
        r"^\s+|\s+$",
        r"\b(a|an|the)\b",
        r"[^\w\s]",
        r"(?<!\d)0+(?=\d)",
        r"(?i)answer:\s*",
    ],
)
def test_patterns_of_benchmarks_are_matched_in_the_texts_together(pattern: str) -> None:
    assert joined_removal(pattern) is not None


@pytest.mark.parametrize("pattern", [r"(a)\1", r"[\s\S]*:", "(?x)a b", "(?i:a)", r"\x01", SEPARATOR, "[^-a]"])
def test_what_could_see_beyond_a_text_is_matched_in_each_alone(pattern: str) -> None:
    assert joined_removal(pattern) is None
    texts = ["aa", "Ab:", "", "aa", "a\0"]
    normalisation = Normalisation((re.compile(pattern),))
    assert normalisation.of_texts(texts) == [normalisation.of_text(text) for text in texts]


def test_a_final_sigma_is_one_at_the_end_of_its_own_text() -> None:
    assert Normalisation(lower=True).of_texts(["ΑΣ", "Α", "ΑΣ'", "Σ"]) == ["ας", "α", "ας'", "σ"]
