"""Which patterns may run away: known ones are found, ordinary ones are not suspected, and the bound on a
pattern's steps holds for a matcher that counts them."""

import random
import re
from collections.abc import Callable, Iterator
from re import _parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from metrics.patterns import _cost, bounded

RUNAWAYS = [
    r"(a+)+$", r"(a|a)*b", r"(a|aa)+$", r"(.*a){20}", r"(\w+\s?)*$", r"(x+x+)+y", r"(a*)*b",
    r"(?:a?){30}a{30}",
    "a?" * 30 + "a" * 30, r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(?i)(a|Ab?)+$", r"(?:\d+|\w)+!", r"(a{1,3})+$",
    r"((a+)b?)+$", r"(?:(?:ab?)+c?)+$", r"(?=(a+)+$)a", r"(?<!x)(a+)+$", r"((?i:a)+)+$", r"(a(?=a*))+(a+)+$",
    r"([a-zA-Z0-9])(([\-.]|[_]+)?([a-zA-Z0-9]+))*(@){1}[a-z0-9]+[.]{1}(([a-z]{2,3})|([a-z]{2,3}[.][a-z]))$",
]  # fmt: skip


@pytest.mark.parametrize("pattern", RUNAWAYS)
def test_a_pattern_that_runs_away_is_not_trusted(pattern: str) -> None:
    assert not bounded(pattern, ["a" * 200 + "!"])


def test_what_is_no_pattern_and_what_is_not_known_are_not_trusted() -> None:
    assert not bounded("(", ["a"])
    assert not bounded(r"(a)(?(1)b|c)", ["a"])


ORDINARY = [
    r"#### (\-?[0-9\.\,]+)", r"(-?[$0-9.,]{2,})|(-?[0-9]+)", r"(?s).*#### ", ",", r"\$", r"\.$",
    r"(\([A-Z]\))",
    r"answer is (.*?)\.", r"(?i)(?:the )?answer is\s*(.+?)(?:\.|$)", r"\\boxed\{([^}]*)\}", r"(\w+)$",
    r"^(\w+)", r"\d{1,3}(?:,\d{3})*(?:\.\d+)?", r"<answer>(.*?)</answer>", r"```python\n([\s\S]*?)```",
    r"(?i)\b(?:grade|score)\b[\s*_]*[:=]\s*([0-9.]+)", r"(?<=The best answer is )(.*)(?=.)",
    r"[Tt]he (?:final )?answer(?: is)?:? ?\(?([A-J])\)?", r"the answer is (.*)\.", r"(?i)Answer:\s*([A-D])\b",
    r"\s+", r"[^\w\s]",
]  # fmt: skip


@pytest.mark.parametrize("pattern", ORDINARY)
def test_an_ordinary_pattern_is_trusted_on_answers_of_a_page(pattern: str) -> None:
    answer = "We have 3,000 apples, and then (B) is right.\n" * 60 + "The answer is 42.\n#### 42"
    assert bounded(pattern, [answer, "", "answer"])


def test_a_word_that_is_rare_makes_a_long_text_harmless() -> None:
    text = "We think. " * 20_000
    assert bounded(r"answer is (.*?)\.", [text, text + "The answer is 4."])
    assert not bounded(r"answer is (.*?)\.", ["answer is " * 20_000])
    assert not bounded(r"(?s).*(\d)x", [text])


# A matcher that tries what Python's engine tries, in its order, and counts the characters it looks at.


class TooMany(Exception):
    """More steps than are counted."""


class Counting:
    def __init__(self, text: str, flags: int, limit: int) -> None:
        self.text, self.flags, self.limit, self.steps = text, flags, limit, 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.limit:
            raise TooMany

    def all_matches(self, pieces: list[Any]) -> int:
        start = 0
        while start <= len(self.text):
            end = next(self.ends(pieces, start), None)
            start = start + 1 if end is None or end == start else end
        return self.steps

    def ends(self, pieces: list[Any], at: int) -> Iterator[int]:
        """The places that a match of the pieces can end at."""
        if not pieces:
            yield at
            return
        for end in self.piece(str(pieces[0][0]), pieces[0][1], at):
            yield from self.ends(pieces[1:], end)

    def piece(self, name: str, value: Any, at: int) -> Iterator[int]:
        match name:
            case "AT":
                self.step()
                matched = {"AT_BEGINNING": at == 0, "AT_END": at == len(self.text)}[str(value)]
                yield from [at] if matched else []
            case "SUBPATTERN":
                yield from self.ends(list(value[3]), at)
            case "BRANCH":
                for one in value[1]:
                    yield from self.ends(list(one), at)
            case "MAX_REPEAT" | "MIN_REPEAT":
                yield from self.repeat(name == "MAX_REPEAT", value, at, 0)
            case "ASSERT":
                yield from [at] if next(self.ends(list(value[1]), at), None) is not None else []
            case _:
                self.step()
                yield from [at + 1] if at < len(self.text) and self.fits(name, value, self.text[at]) else []

    def repeat(self, greedy: bool, value: Any, at: int, count: int) -> Iterator[int]:
        least, most, body = int(value[0]), int(value[1]), list(value[2])
        if not greedy and count >= least:
            yield at
        if count < most:
            for end in self.ends(body, at):
                if end > at or count < least:
                    yield from self.repeat(greedy, value, end, count + 1)
        if greedy and count >= least:
            yield at

    def fits(self, name: str, value: Any, character: str) -> bool:
        match name:
            case "LITERAL":
                return ord(character) == value
            case "NOT_LITERAL":
                return ord(character) != value
            case "ANY":
                return character != "\n"
        members = [str(kind) for kind, _ in value]
        codes = [argument for kind, argument in value if str(kind) == "LITERAL"]
        return (ord(character) in codes) != ("NEGATE" in members)


def made_pattern(rng: random.Random, depth: int) -> str:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(["a", "b", "c", "[ab]", "[^a]", ".", "ab", "bc", "[bc]"])
    own: Callable[[], str] = lambda: made_pattern(rng, depth - 1)  # noqa: E731
    match rng.randrange(6):
        case 0 | 1:
            return own() + own()
        case 2:
            return f"(?:{own()}|{own()})"
        case 3:
            return f"(?={own()})"
        case _:
            return f"(?:{own()})" + rng.choice(["*", "+", "?", "*?", "{0,2}", "{2}", "+?"])


@pytest.mark.parametrize("seed", range(4))
def test_no_text_takes_more_steps_than_the_bound_says(seed: int) -> None:
    rng, compared, trusted = random.Random(seed), 0, 0
    for _ in range(400):
        pattern = "".join(made_pattern(rng, 3) for _ in range(rng.randint(1, 3))) + rng.choice(["", "c", "$"])
        piece, end = "".join(rng.choices("abc", k=rng.randint(1, 3))), rng.choice(["", "a", "!", "cc"])
        text = piece * (60 // len(piece)) + end
        bound = _cost(pattern, 0).of(text)
        trusted += bound < 1e8
        if bound > 50_000:
            continue
        tree = _parser.parse(pattern)
        counting = Counting(text, tree.state.flags, int(4 * bound) + 100)
        try:
            counting.all_matches(list(tree))
        except TooMany:
            pytest.fail(f"{pattern!r} took more than 4 × {bound:.0f} steps on {text!r}")
        compared += 1
    assert compared > 100
    assert trusted > 150


def test_the_engine_agrees_with_the_counting_matcher() -> None:
    rng = random.Random(9)
    for _ in range(300):
        pattern = made_pattern(rng, 3)
        if re.search(r"[*?}+]\)+[*+?{]", pattern):
            continue  # of repeats of what may be empty the engine has an opinion of its own
        text = "".join(rng.choices("abc", k=12))
        counting = Counting(text, 0, 200_000)
        try:
            end = next(counting.ends(list(_parser.parse(pattern)), 0), None)
        except TooMany:
            continue
        found = re.match(pattern, text)
        assert (None if found is None else found.end()) == end, (pattern, text)
