"""Seeded inputs of the size that people have: documents, labels, choices, repeats."""

import random
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from metrics.types import ChoiceBatch


@dataclass(frozen=True)
class Documents:
    """Texts of words from a Zipf vocabulary, a quarter of the words changed against the reference."""

    references: list[list[str]]
    texts: list[str]


def documents(n: int, seed: int = 3, length: tuple[int, int] = (60, 200)) -> Documents:
    """Texts of ``length`` words: from the first number to the second."""
    rng = random.Random(seed)
    vocabulary = _vocabulary(rng, 8000)
    totals = list(accumulate(1 / (rank + 2) for rank in range(len(vocabulary))))
    references, texts = [], []
    for _ in range(n):
        words = rng.choices(vocabulary, cum_weights=totals, k=rng.randint(*length))
        changed = [
            word if rng.random() < 0.75 else rng.choices(vocabulary, cum_weights=totals)[0] for word in words
        ]
        references.append([_written(words)])
        texts.append(_written(changed))
    return Documents(references, texts)


def _vocabulary(rng: random.Random, size: int) -> list[str]:
    syllables = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"] + ["ing", "ed", "tion", "ness", "s"]
    return list(dict.fromkeys("".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(size)))


def _written(words: list[str]) -> str:
    """Sentences of twelve words."""
    sentences = [words[start : start + 12] for start in range(0, len(words), 12)]
    return " ".join(" ".join(sentence).capitalize() + "." for sentence in sentences)


def labels(n: int, seed: int = 4) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    gold = (rng.random(n) < 0.3).astype(int)
    predicted = np.where(rng.random(n) < 0.85, gold, 1 - gold)
    return list(zip(gold.tolist(), predicted.tolist(), strict=True))


def answers(n: int, seed: int = 5) -> tuple[list[list[str]], list[str]]:
    """Numbers that hardly occur twice: a third of the answers right as they stand, a third once normalised, a
    third wrong."""
    rng = random.Random(seed)
    gold = [f"{rng.randrange(10_000_000):,}" for _ in range(n)]
    written = [rng.choice((text, f"${text}.", f"{rng.randrange(10_000_000):,}")) for text in gold]
    return [[text] for text in gold], written


def choices(n: int, seed: int = 6) -> ChoiceBatch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, 4 * n).astype(np.int32)
    return ChoiceBatch(
        lls=rng.uniform(-60, -1, 4 * n),
        is_greedy=rng.random(4 * n) < 0.1,
        offsets=np.arange(n + 1) * 4,
        gold=rng.integers(0, 4, n).astype(np.int32),
        gold_offsets=np.arange(n + 1),
        chars=lengths,
        bytes=lengths,
        words=lengths,
    )


def repeats(items: int, mixed: bool, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of repeats and of right ones."""
    rng = np.random.default_rng(seed)
    n = rng.integers(8, 65, items) if mixed else np.full(items, 64)
    return n, rng.binomial(n, rng.random(items))
