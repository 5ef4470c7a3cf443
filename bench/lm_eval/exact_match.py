"""Runs in the Python of an installed lm-evaluation-harness: writes what its exact_match says of random texts.

    PEER_PYTHON bench/lm_eval/exact_match.py

Its function is the port of evaluate's metric, whose own module can only be had from a hub. The file,
``tests/metrics/exact_match_oracle.json``, has rows of a prediction and its references, and for each
combination of options a digit a row: how many of the references the prediction equals.
"""

import json
import random
import string
from itertools import product
from pathlib import Path

TARGET = Path(__file__).resolve().parents[2] / "tests" / "metrics" / "exact_match_oracle.json"
PATTERNS = [
    None,
    [",", r"\$", "(?s).*#### ", r"\.$"],
    ["the ", "yell", "YELL"],
    [r"^\s+|\s+$", r"(?<!\d)0+(?=\d)"],
    [r"(?i)\b(a|an|the)\b", r"[^\w\s]"],
    [r"(.)\1", r"[\s\S]:"],
]
FLAGS = ("ignore_case", "ignore_punctuation", "ignore_numbers")
PARTS = [
    "the ",
    "The ",
    "yell",
    "1,000",
    "$",
    "#### ",
    "007",
    ".",
    ".\n",
    " ",
    "\n",
    "\t",
    "a",
    "B",
    "é",
    "É",
    "İ",
]
PARTS += [
    "ß",
    "Σ",
    "ΑΣ",
    "ſ",
    "e\u0301",
    "漢字",
    "١",
    "½",
    "“",
    "…",
    "\u00a0",
    "\u2028",
    "\x1c",
    "\0",
    "\x01",
    "😀",
    "\ud800",
]


def text(rng: random.Random) -> str:
    """Up to four parts, each now and then any character that there is."""
    return "".join(
        chr(rng.randrange(0x110000)) if rng.random() < 0.15 else rng.choice(PARTS)
        for _ in range(rng.randrange(5))
    )


def changed(rng: random.Random, gold: str) -> str:
    """What a model might write for ``gold``: in another case, with signs or digits between, with a part
    more."""
    place = rng.randrange(len(gold) + 1)
    more = rng.choice([*string.punctuation, *string.digits, *PARTS])
    written = rng.choice([gold, gold.lower(), gold.upper(), gold.swapcase()])
    return rng.choice([written, gold[:place] + more + gold[place:], written + more, more + written])


def rows(n: int) -> list[tuple[str, list[str]]]:
    rng = random.Random(20)
    made = []
    for _ in range(n):
        gold = text(rng)
        made.append((changed(rng, gold), [gold, rng.choice([text(rng), changed(rng, gold)])]))
    return made


def main() -> None:
    from lm_eval.api.metrics import exact_match_hf_evaluate

    cases = rows(400)
    options = [
        {"regexes_to_ignore": patterns, **dict(zip(FLAGS, flags, strict=True))}
        for patterns, *flags in product(PATTERNS, *[(False, True)] * len(FLAGS))
    ]
    outcomes = []
    for chosen in options:
        hits = [
            sum(
                float(
                    exact_match_hf_evaluate(predictions=[answer], references=[gold], **chosen)["exact_match"]
                )
                for gold in golds
            )
            for answer, golds in cases
        ]
        outcomes.append({**chosen, "equal": "".join(f"{hit:.0f}" for hit in hits)})
    record = {"rows": cases, "outcomes": outcomes}
    TARGET.write_text(json.dumps(record, indent=0) + "\n", encoding="ascii")
    print(f"{TARGET}: {len(cases)} rows, {len(options)} combinations of options")


if __name__ == "__main__":
    main()
