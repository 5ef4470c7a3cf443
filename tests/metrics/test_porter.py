"""The stemmer against NLTK's, which rouge-score uses."""

import random
import string

import pytest
from nltk.stem.porter import PorterStemmer

from metrics.text.rouge import stem

SUFFIXES = [
    "ational",
    "tional",
    "enci",
    "anci",
    "izer",
    "bli",
    "alli",
    "entli",
    "eli",
    "ousli",
    "ization",
    "ation",
    "ator",
    "alism",
    "iveness",
    "fulness",
    "ousness",
    "aliti",
    "iviti",
    "biliti",
    "fulli",
    "logi",
    "icate",
    "ative",
    "alize",
    "iciti",
    "ical",
    "ful",
    "ness",
    "al",
    "ance",
    "ence",
    "er",
    "ic",
    "able",
    "ible",
    "ant",
    "ement",
    "ment",
    "ent",
    "ion",
    "ou",
    "ism",
    "ate",
    "iti",
    "ous",
    "ive",
    "ize",
    "ed",
    "ing",
    "eed",
    "ied",
    "ies",
    "s",
    "ss",
    "sses",
    "y",
    "e",
    "ll",
    "at",
    "bl",
    "iz",
]


def test_stems_of_made_up_words_are_nltks() -> None:
    rng, oracle = random.Random(1), PorterStemmer()
    for _ in range(20_000):
        root = "".join(rng.choices("aeiouybcdlstwxz", k=rng.randint(0, 5)))
        word = root + "".join(rng.choices(SUFFIXES, k=rng.randint(0, 3)))
        assert stem(word) == oracle.stem(word), word


def test_stems_of_any_letters_and_digits_are_nltks() -> None:
    rng, oracle = random.Random(2), PorterStemmer()
    for _ in range(10_000):
        word = "".join(rng.choices(string.ascii_lowercase + string.digits, k=rng.randint(1, 12)))
        assert stem(word) == oracle.stem(word), word


@pytest.mark.parametrize("word", sorted(PorterStemmer().pool))
def test_irregular_words_have_nltks_stems(word: str) -> None:
    assert stem(word) == PorterStemmer().stem(word)
