"""Seeded data for the benchmarks under ``random``: in scripts and shapes that trip programs up."""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

WORDS = (
    "the", "nightjar", "sleeps", "by", "day", "and", "flies", "at", "dusk", "over", "heath", "moth", "silent",
    "score", "sample", "filter", "metric", "12", "3.5", "7%", "don't", "co-operate", "Müller", "naïve",
)  # fmt: skip
SCRIPTS = (
    "夜鹰白天睡觉", "よたかは夜に飛ぶ", "козодой спит", "νυκτοβάτης", "🦉🌙",
    "👩\u200d👧\u200d👦", "e\u0301te\u0301", "ไทยแลนด์", "שלום", "한국어", "𝔘𝔫𝔦", "\u00a0gap", "a\u200bb", "½",
)  # fmt: skip
ENDS = ("", "", "", " ", "  ", "\n", "\t", "\u3000")


class Writer:
    """Draws texts from one generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def words(self, least: int, most: int) -> str:
        """A few words, now and then of another script."""
        count = self.random.randint(least, most)
        return " ".join(
            self.random.choice(SCRIPTS if self.random.random() < 0.15 else WORDS) for _ in range(count)
        )

    def choices(self, least: int, most: int) -> list[str]:
        """Different texts of different lengths."""
        found: dict[str, None] = {}
        while len(found) < least:
            found.update(
                dict.fromkeys(self.words(1, 3) for _ in range(self.random.randint(1, most - len(found))))
            )
        return list(found)

    def question(self) -> dict[str, Any]:
        """A row of multiple choice, with its answer in every form."""
        choices = self.choices(2, 5)
        label = self.random.randrange(len(choices))
        others = [index for index in range(len(choices)) if self.random.random() < 0.3]
        return {
            "question": self.words(3, 12) + self.random.choice(ENDS),
            "choices": choices,
            "label": label,
            "labels": sorted({label, *others}),
            "answer": choices[label],
            "topic": self.random.choice(("birds", "düsk", "")),
            "four": [*choices, *(["none"] * 4)][:4],
            "right": min(label, 3),
            "yes": self.random.randrange(2),
        }

    def blank(self) -> dict[str, Any]:
        """A sentence with a gap and two words for it."""
        one, other = self.choices(2, 2)[:2]
        return {
            "before": self.words(2, 5),
            "after": self.words(2, 5),
            "options": [one, other],
            "label": self.random.randrange(2),
        }

    def ending(self) -> dict[str, Any]:
        """A text and what it goes on with."""
        return {
            "text": self.words(2, 9) + self.random.choice(ENDS),
            "next": self.random.choice((" ", "", "\n", ", ")) + self.words(1, 4),
        }

    def page(self, least: int, most: int) -> dict[str, Any]:
        """A document of some paragraphs."""
        parts = (self.words(4, 20) for _ in range(self.random.randint(least, most)))
        return {"text": self.random.choice(("\n\n", " \t ", "\n")).join(parts), "title": self.words(0, 2)}

    def problem(self) -> dict[str, Any]:
        """A question whose answer is a text, or one of several."""
        a, b = self.random.randrange(99), self.random.randrange(99)
        return {
            "question": f"{self.words(2, 6)}: {a} + {b}?",
            "answer": str(a + b),
            "answers": [self.words(1, 2) for _ in range(self.random.randint(1, 3))],
            "reference": self.words(4, 12),
            "options": ["yes", "no", "maybe"],
            "option": self.random.randrange(3),
        }


def write_data(folder: Path, seed: int, size: int, complete: Callable[[str], str] = lambda _: "") -> None:
    """Writes every data file, ``size`` rows each, into ``folder``.

    ``complete`` is the model's own continuation of a text: every other row has it for its answer, where it is
    not empty.
    """
    writer = Writer(seed)
    folder.mkdir(parents=True, exist_ok=True)
    questions = [writer.question() for _ in range(size)]
    # The first row decides about shapes, so that oddities stand behind it.
    questions[0] |= {"question": "Which bird flies at dusk", "labels": [0], "topic": "birds"}
    _lines(folder / "questions.jsonl", questions)
    _lines(folder / "examples.jsonl", [writer.question() for _ in range(12)])
    _lines(folder / "empties.jsonl", [_with_empty(row, at) for at, row in enumerate(questions)])
    _lines(folder / "outside.jsonl", [_outside(row, at) for at, row in enumerate(questions)])
    _lines(folder / "blanks.jsonl", [writer.blank() for _ in range(size)])
    endings = [writer.ending() for _ in range(size)]
    for row in endings[::2]:
        row["next"] = complete(row["text"]) or row["next"]
    _lines(folder / "endings.jsonl", endings)
    pages = [writer.page(1, 4) for _ in range(size // 3)] + [writer.page(25, 60) for _ in range(3)]
    _lines(folder / "pages.jsonl", [*pages, {"text": "", "title": "nothing"}, {"text": " ", "title": ""}])
    problems = [writer.problem() for _ in range(size)]
    for row in problems[::2]:
        own = complete(f"Question: {row['question']}\nAnswer:")
        row |= {"answer": own or row["answer"], "answers": [*row["answers"], own or "none"]}
    _lines(folder / "problems.jsonl", problems)
    _lines(folder / "long.jsonl", [{"text": writer.words(300, 500), "answer": "x"} for _ in range(4)])


def _with_empty(row: Mapping[str, Any], at: int) -> dict[str, Any]:
    choices = ["", *row["choices"][1:]] if at % 3 == 2 else row["choices"]
    return {**row, "choices": choices, "answer": choices[row["label"]]}


def _outside(row: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Answers that no choice is: an index beyond, and a text that is not there."""
    label = len(row["choices"]) + 1 if at % 4 == 3 else row["label"]
    answer = "something else" if at % 4 == 2 else row["answer"]
    labels = [*row["labels"], 9] if at % 5 == 4 else row["labels"]
    return {**row, "label": label, "answer": answer, "labels": labels}


def _lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
