"""What the embedded model says: worked arithmetic, a grade where a grade is asked for, a call of a tool,
how many shapes it sees, or a plain sentence; and how probable a text is to it.

Everything it says is a function of (prompt, seed, temperature, choice index); ``error_rate`` of the
problems come out wrong, and one in ten answers lacks the final ``####`` line, as real models forget it.
It calls the tool whose words the question has most of, its parameters filled in from the question, in
their order: numbers, values of an ``enum``, names with a capital. A shape is a connected region of pixels
that differ from the picture's upper left corner.

Log-likelihoods are those of a byte-level n-gram language model: small, exact, and the same in every
process. P(byte | context) interpolates orders 0 to ``ORDER`` with Witten-Bell weights, down to the
uniform distribution over the 256 bytes, so that every text has a finite log-likelihood. Its training text
is ``corpus.txt`` beside this file.
"""

import base64
import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from tasks.models.demo.solver import Solution, shown, solve

_words = re.compile(r"[a-z]{3,}")
_numbers = re.compile(r"-?\d+(?:\.\d+)?")
_names = re.compile(r"(?<![.?!] )(?<!^)\b[A-Z][a-z]+(?: [A-Z][a-z]+)*")


def called(question: str, tools: Sequence[Any]) -> list[dict[str, Any]]:
    """The calls in OpenAI's form; none where no tool has a word of the question."""
    functions = [tool["function"] for tool in tools if isinstance(tool, Mapping) and "function" in tool]
    asked = set(_words.findall(question.lower()))
    shared = [len(asked & set(_words.findall(_about(function).lower()))) for function in functions]
    if not shared or not max(shared):
        return []
    function = functions[shared.index(max(shared))]
    text = orjson.dumps(_filled(question, function.get("parameters") or {})).decode()
    return [
        {"id": "call_demo", "type": "function", "function": {"name": function["name"], "arguments": text}}
    ]


def _about(function: Mapping[str, Any]) -> str:
    return f"{function.get('name', '')} {function.get('description') or ''}".replace("_", " ")


def _filled(question: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    numbers, names = _numbers.findall(question), _names.findall(question)
    filled: dict[str, Any] = {}
    for name, schema in (parameters.get("properties") or {}).items():
        value: Any = None
        if "enum" in schema:
            value = next((one for one in schema["enum"] if str(one).lower() in question.lower()), None)
        elif schema.get("type") in ("integer", "number") and numbers:
            number = float(numbers.pop(0))
            value = int(number) if schema["type"] == "integer" else number
        elif schema.get("type") == "string" and names:
            value = names.pop(0)
        if value is not None:
            filled[name] = value
    return filled


SIDE = 256
"""Larger pictures are looked at in this size."""
SMALLEST = 4
"""Pixels of a shape, at least: what is smaller is noise of the picture's compression."""
_COUNT = re.compile(r"\bhow many\b|\bcount\b|\bnumber of\b", re.IGNORECASE)


def images_of(messages: Sequence[Any]) -> list[bytes]:
    """The pictures of the last message that has some; raises ValueError for one that is no base64."""
    for message in reversed(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        parts = content if isinstance(content, list) else []
        urls = [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]
        if urls:
            return [base64.b64decode(url.partition(";base64,")[2], validate=True) for url in urls]
    return []


def described(images: Sequence[bytes], question: str) -> str | None:
    """The answer to a question about pictures; None where there are none."""
    if not images:
        return None
    if not _COUNT.search(question):
        return f"I see {len(images)} picture{'s' if len(images) > 1 else ''}."
    return str(sum(map(shapes, images)))


def shapes(content: bytes) -> int:
    """How many shapes a picture shows; raises ValueError for what is no picture."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            picture = image.convert("RGB")
    except Exception as error:
        raise ValueError(f"the image can't be decoded: {error}") from error
    if max(picture.size) > SIDE:
        picture.thumbnail((SIDE, SIDE), Image.Resampling.NEAREST)
    pixels = np.asarray(picture, dtype=np.int16)
    return _regions(np.abs(pixels - pixels[0, 0]).sum(axis=2) > 150)


def _regions(mask: NDArray[np.bool_]) -> int:
    """Connected regions (up, down, left, right) of a mask."""
    left, count = mask.copy(), 0
    height, width = mask.shape
    for row, column in zip(*np.nonzero(mask), strict=True):
        if not left[row, column]:
            continue
        area = 0
        waiting = [(int(row), int(column))]
        left[row, column] = False
        while waiting:
            y, x = waiting.pop()
            area += 1
            for ny, nx in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
                if 0 <= ny < height and 0 <= nx < width and left[ny, nx]:
                    left[ny, nx] = False
                    waiting.append((ny, nx))
        count += area >= SMALLEST
    return count


ORDER = 6
BOS = 256
"""Token id that stands before the text; all other ids are the bytes' values."""


@lru_cache(maxsize=1)
def _counts() -> dict[bytes, NDArray[np.int64]]:
    """Counts of the bytes that follow each context of up to ``ORDER`` bytes, sparse: (byte, count) pairs."""
    text = b"\n" + (files(__package__) / "corpus.txt").read_bytes()
    counts: dict[bytes, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for end in range(1, len(text)):
        for order in range(min(ORDER, end) + 1):
            counts[text[end - order : end]][text[end]] += 1
    return {context: np.array(sorted(following.items())) for context, following in counts.items()}


@lru_cache(maxsize=1 << 14)
def log_distribution(context: bytes) -> NDArray[np.float64]:
    """Natural-log probabilities (256,) of the byte after ``context``, its last ``ORDER`` bytes."""
    counts = _counts()
    probability = np.full(256, 1 / 256)
    for order in range(len(context) + 1):
        following = counts.get(context[len(context) - order :])
        if following is None:
            break
        total, distinct = following[:, 1].sum(), len(following)
        probability = probability * (distinct / (total + distinct))
        probability[following[:, 0]] += following[:, 1] / (total + distinct)
    result: NDArray[np.float64] = np.log(probability)
    result.flags.writeable = False
    return result


def score(tokens: list[int]) -> list[tuple[float, int, float]]:
    """For each token after the first: its log-probability, the likeliest byte and that byte's
    log-probability.

    ``tokens`` are bytes, BOS (or the start of a text) counting as a line break.
    """
    text = bytes(0x0A if token == BOS else token for token in tokens)
    scored = []
    for position in range(1, len(text)):
        logs = log_distribution(text[max(0, position - ORDER) : position])
        best = int(logs.argmax())
        scored.append((float(logs[text[position]]), best, float(logs[best])))
    return scored


SLIP_RATE = 0.1
"""Share of answers without the final ``####`` line."""
LEADS = ("First, ", "Then ", "Next, ", "After that, ", "So ")

REFERENCE = "reference|correct answer|gold|expected|target"
RESPONSE = "response|submission|candidate|student|model"
"""How a grading prompt names what it compares."""
INSTRUCTION = "grade|rate|answer|reply|respond|score|is|does|decide|judge|say"
"""How the lines begin that say how to grade."""

_question = re.compile(r"(?:^|\n)\s*(?:question|problem|q):\s*", re.IGNORECASE)
_answer = re.compile(r"\n\s*(?:answer|a|solution|response)\s*:", re.IGNORECASE)
_options = re.compile(
    r"(?:one of|with|either|exactly|only)[:\s]+"
    r"((?:[\"'`(\[]?[\w.-]+[\"'`)\]]?(?:, | or |/|, or ))+[\"'`(\[]?[\w.-]+)",
    re.IGNORECASE,
)
_scale = re.compile(r"(?:from|between|of)\s+(\d+)\s*(?:to|and|-|–)\s*(\d+)", re.IGNORECASE)
_number = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_field = re.compile(
    rf"(?im)^\W*({REFERENCE}|{RESPONSE})[^:\n]*:\s*(.*(?:\n(?!\s*$|\W*(?:{REFERENCE}|{RESPONSE}|{INSTRUCTION})\b).*)*)"
)


@dataclass(frozen=True)
class Draw:
    """What decides an answer beside its prompt."""

    seed: int | None = None
    temperature: float | None = None
    index: int = 0

    def uniform(self, prompt: str, purpose: str) -> float:
        """A number in [0, 1) that is the same for the same prompt, draw and purpose."""
        drawn = "" if self.temperature == 0 else f"{self.seed}/{self.temperature}/{self.index}"
        content = f"{purpose}\0{drawn}\0{prompt}".encode("utf-8", "surrogatepass")
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") / 2**64


def respond(prompt: str, draw: Draw, error_rate: float) -> str:
    """The model's answer to the last question of ``prompt``."""
    grade = _grade(prompt)
    if grade is not None:
        return grade
    question = last_question(prompt)
    solution = solve(question)
    if solution is None:
        return "I can't work this out from what is said."
    wrong = draw.uniform(question, "wrong") < error_rate
    slip = draw.uniform(question, "slip") < SLIP_RATE
    return _worked(solution, _offset(question, draw) if wrong else 0, slip)


def last_question(prompt: str) -> str:
    """The question asked last, without few-shot examples before it and the answer's label after it."""
    return _answer.split(_question.split(prompt)[-1])[0].strip()


def _offset(question: str, draw: Draw) -> int:
    return 1 + int(draw.uniform(question, "offset") * 9)


def _worked(solution: Solution, offset: int, slip: bool) -> str:
    lines = [LEADS[min(i, len(LEADS) - 1)] + step + "." for i, step in enumerate(solution.steps)]
    answer = shown(solution.answer)
    if offset:
        answer = shown(solution.answer + offset)
        *before, last = lines
        equation = last.partition("<<")[0]
        lines = [
            *before,
            f"{equation}<<{solution.steps[-1].partition('<<')[2].partition('=')[0]}={answer}>>{answer}.",
        ]
    whole, dot, decimals = answer.partition(".")
    grouped = f"{int(whole):,}{dot}{decimals}"
    lines.append(f"The answer is {grouped}." if slip else f"#### {grouped}")
    return "\n".join(lines)


@lru_cache(maxsize=1 << 12)
def _grade(prompt: str) -> str | None:
    """A judge's verdict, when the prompt shows a reference and a response and says how to grade.

    The two agree when their last numbers do, or, without numbers, when one contains the other.
    """
    fields: dict[str, str] = {}
    for match in _field.finditer(prompt):
        side = "response" if re.fullmatch(RESPONSE, match[1], re.IGNORECASE) else "reference"
        fields[side] = match[2]
    if len(fields) < 2:
        return None
    right = _agree(fields["reference"], fields["response"])
    if options_named := _options.search(prompt):
        options = [option.strip("\"'`()[]., ") for option in re.split(r", or |, | or |/", options_named[1])]
        return _labelled(prompt, options[0] if right else options[-1] if len(options) == 2 else options[1])
    if scale := _scale.search(prompt):
        return _labelled(prompt, scale[2] if right else scale[1])
    return _labelled(prompt, "yes" if right else "no")


def _labelled(prompt: str, verdict: str) -> str:
    if '"' in prompt and (match := re.search(r'\{\s*"(\w+)"\s*:', prompt)):
        return f'{{"{match[1]}": {verdict if verdict.isdigit() else chr(34) + verdict + chr(34)}}}'
    label = re.search(r"(?i)\b(grade|verdict|score|rating|judg(?:e)?ment)\s*:", prompt)
    return f"{label[1]}: {verdict}" if label else verdict


def _agree(reference: str, response: str) -> bool:
    gold, found = _number.findall(reference), _number.findall(response)
    if gold and found:
        return str(gold[-1]).replace(",", "") == str(found[-1]).replace(",", "")
    a, b = reference.strip().lower(), response.strip().lower()
    return bool(a) and bool(b) and (a in b or b in a)
