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

Word problems are solved by reading them clause by clause. The reader keeps one quantity for each thing
compared and lets every clause change it: *buys 3 bags of 5* adds a product, *gives half of them away*
takes a share, *has 4 more than Ann* starts a new quantity, *shares them equally among 6* divides. It
knows some sixty verbs and no problem by heart; a text it can't read gives None. Numbers are read as
English writes them: spelled out, in dozens, as fractions or percentages.
"""

import base64
import hashlib
import io
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

TAKES = (
    r"gives?|gave|giving|eats?|ate|loses?|lost|uses?|used|spends?|spent|breaks?|broke|broken|throws?|threw"
    r"|thrown|donates?|donated|drinks?|drank|leaves?|left|takes? away|removes?|removed|flew|flies|fly|pays?"
    r"|paid|lends?|lent|sold|sells?|melted|melts?|rotten|absent|gets? off|got off|dies?|died|returns?"
    r"|returned|burnt|burned|pops?|popped|wilted|fewer|less"
)
VERBS = (
    rf"{TAKES}|buys?|bought|gets?|got|receives?|received|finds?|found|picks?|picked|bakes?|baked|adds?|added"
    r"|makes?|made|collects?|collected|earns?|earned|saves?|saved|wins?|won|has|have|had|plants?|planted|draws?"
    r"|drew|reads?|puts?|packs?|shares?|splits?|divides?|orders?|ordered|borrows?|borrowed|gets? on|got on"
    r"|walks?|runs?|drives?|works?|swims?"
)
RATE = r"each|every|per|apiece|an? (?:day|week|month|year|hour|minute|box|bag|piece|kilometer|night)"
SPAN = {
    "minute": ("hour", 60),
    "hour": ("day", 24),
    "day": ("week", 7),
    "week": ("month", 4),
    "month": ("year", 12),
}
PERIOD = r"(?:minute|hour|day|week|month|year|night)"
ALL = r"altogether|in total|in all|total|together|combined|both|left|remain|still|change|over\b|now"
ON_EACH = (
    r"holds?|contains?|has|costs?|weighs?|sells?|sold|needs?|takes?|for|worth|earns?|gives?|at|is|gets?|eats?"
)


UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
TENS = {
    "twenty": 20,
    "thirty": 30,
    "forty": 40,
    "fifty": 50,
    "sixty": 60,
    "seventy": 70,
    "eighty": 80,
    "ninety": 90,
}
WORDS = {word: value for value, word in enumerate(UNITS)} | TENS
FRACTIONS = {
    "half": "1/2",
    "third": "1/3",
    "quarter": "1/4",
    "fourth": "1/4",
    "fifth": "1/5",
    "tenth": "1/10",
}
NUMBER = r"\d[\d,]*(?:\.\d+)?"

_compound = re.compile(rf"\b({'|'.join(TENS)})[ -]({'|'.join(UNITS[1:10])})\b")
_word = re.compile(rf"\b({'|'.join(WORDS)})\b")
_fraction = re.compile(rf"\b(?:(a|one|\d+)[ -])?({'|'.join(FRACTIONS)})s?\b(?! of an hour)")
_dozen = re.compile(rf"\b(?:({NUMBER}) |a )dozens?\b")
_article = re.compile(r"\ba (hundred|thousand)\b")
_scaled = re.compile(rf"\b({NUMBER}) (hundred|thousand)\b")


def in_digits(text: str) -> str:
    """The text in lower case with every quantity in digits.

    >>> in_digits("Twenty-five eggs, two dozen figs, half of $1,200 and 10 percent")
    '25 eggs, 2*12 figs, 1/2 of 1200 and 10%'
    """
    text = text.lower().replace("’", "'").replace("$", "")
    text = re.sub(r"\b(?:twice|double) (as|the)", r"2 times \1", text)
    text = re.sub(r"\bthrice as", "3 times as", text)
    text = _compound.sub(lambda m: str(WORDS[m[1]] + WORDS[m[2]]), text)
    text = _fraction.sub(_as_fraction, text)
    text = _word.sub(lambda m: str(WORDS[m[1]]), text)
    text = _article.sub(r"1 \1", text)
    text = _scaled.sub(lambda m: str(int(number(m[1])) * (100 if m[2] == "hundred" else 1000)), text)
    text = _dozen.sub(lambda m: f"{m[1]}*12" if m[1] else "12", text)
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text)
    return re.sub(r" ?percent\b", "%", text)


def number(text: str) -> Fraction:
    """The value of a number as ``in_digits`` writes it: ``12``, ``1,200``, ``2.50``."""
    return Fraction(text.replace(",", ""))


def shown(value: Fraction) -> str:
    """A value as people write it: no trailing zeros, at most four decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.4f}".rstrip("0").rstrip(".")


def _as_fraction(match: re.Match[str]) -> str:
    numerator, denominator = FRACTIONS[match[2]].split("/")
    count = match[1]
    if count and count.isdigit():
        numerator = count
    return f"{numerator}/{denominator}"


_sentence = re.compile(r"(?<=[.?!])\s+")
_clause = re.compile(
    rf",? (?:and|but|then)(?: then| later| also)? (?=(?:(?:he|she|they|it) )?(?:{VERBS})\b)"
    rf"|,? and then |; |, (?=how (?:many|much))|, (?:and |but |so )?(?=(?:he|she|they|it) (?:{VERBS})\b)"
)
_value = re.compile(rf"(?<![\d/.])({NUMBER})(?:\*({NUMBER}))?(?![\d/%*]|\.\d)")
_share = re.compile(rf"(\d+)/(\d+)|({NUMBER})%")
_among = re.compile(
    r"(?:equally|evenly|shares?|split|splits|divides?|divided|cuts?).*?(?:among|between|into|with|over|by)"
    rf"\D*?({NUMBER})"
)
_packed = re.compile(
    r"(?:packs?|packed|puts?|placed?|places|arranges?|arranged|sorts?|ties|tied) (?:them|it|all|the)\b"
    rf".*?({NUMBER})"
)
_oneself = re.compile(r"\b(?:him|her|them|it)sel(?:f|ves)\b")


@dataclass
class Working:
    """The quantities read so far, last one current, and the steps written down."""

    groups: list[Fraction] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    unit: str | None = None

    def put(self, sign: str, left: Fraction, right: Fraction) -> Fraction:
        """Computes ``left sign right`` and writes the step down."""
        value = {
            "+": left + right,
            "-": left - right,
            "*": left * right,
            "/": left / right if right else left,
        }[sign]
        a, b, c = shown(left), shown(right), shown(value)
        self.steps.append(f"{a} {sign} {b} = <<{a}{sign}{b}={c}>>{c}")
        return value

    @property
    def current(self) -> Fraction | None:
        """The quantity read last; None before any was."""
        return self.groups[-1] if self.groups else None

    def become(self, value: Fraction) -> None:
        """Replaces the current quantity."""
        self.groups[-1:] = [value]

    def merged(self) -> Fraction:
        """All quantities in one; they become the current one."""
        while len(self.groups) > 1:
            second, first = self.groups.pop(), self.groups.pop()
            self.groups.append(self.put("+", first, second))
        return self.groups[0]


@dataclass(frozen=True)
class Solution:
    """The answer of a problem and the lines that lead to it."""

    steps: tuple[str, ...]
    answer: Fraction


@lru_cache(maxsize=1 << 16)
def solve(problem: str) -> Solution | None:
    """Reads a word problem; None when it is none, or is not understood."""
    if len(problem) > 4_000 or not re.search(r"how (?:many|much)", problem, re.IGNORECASE):
        return None
    working = Working()
    question = ""
    for sentence in _sentence.split(in_digits(problem.strip())):
        for clause in _clause.split(sentence):
            if re.match(r"\W*(?:so |then )?(?:how (?:many|much)|what)\b", clause):
                question = clause
            else:
                _read(clause, working)
    if not question or not working.groups:
        return None
    answer = _answered(question, working)
    return Solution(tuple(working.steps), answer) if working.steps else None


def _read(clause: str, working: Working) -> None:
    current = working.current
    if current is not None and any(rule(clause, working, current) for rule in RULES):
        return
    amount, rate = _amount(clause, working)
    if amount is None:
        return
    if rate:
        working.unit = rate
    current = working.current
    takes = re.search(rf"\b(?:{TAKES})\b", clause)
    if current is None:
        working.groups.append(amount)
    elif not rate and working.unit and re.search(rf"\d {working.unit}s\b", clause):
        working.become(working.put("*", current, amount))
    elif takes:
        working.become(working.put("-", working.merged(), amount))
    elif re.search(r"\b(?:has|have|there (?:are|is|were)|owns?)\b", clause) and not re.search(
        r"\bmore\b|another", clause
    ):
        working.groups.append(amount)
    else:
        working.become(working.put("+", current, amount))


def _compared(clause: str, working: Working, current: Fraction) -> bool:
    """*3 times as many as*, *4 more than*, *2 fewer than*: a new quantity beside the current one."""
    if match := re.search(rf"({NUMBER}) times (?:as|the|more|older)", clause):
        working.groups.append(working.put("*", current, number(match[1])))
    elif match := re.search(r"1/2 as (?:many|much)", clause):
        working.groups.append(working.put("/", current, Fraction(2)))
    elif match := re.search(rf"({NUMBER}) (more|fewer|less|older|younger)\b.*\bthan\b", clause):
        sign = "+" if match[2] in ("more", "older") else "-"
        working.groups.append(working.put(sign, current, number(match[1])))
    else:
        return False
    return True


def _shared(clause: str, working: Working, current: Fraction) -> bool:
    """*half of them*, *25% off*: a share of the current quantity is taken, added, or is what remains in
    view.
    """
    match = _share.search(clause)
    if match is None:
        return False
    total = working.merged()
    if match[3]:
        part = working.put("/", working.put("*", total, number(match[3])), Fraction(100))
    elif match[1] == "1":
        part = working.put("/", total, Fraction(match[2]))
    else:
        part = working.put("*", working.put("/", total, Fraction(match[2])), Fraction(match[1]))
    if re.search(rf"\b(?:{TAKES}|off|discount|cheaper|reduced)\b", clause):
        part = working.put("-", total, part)
    elif re.search(r"\b(?:tax|tip|raise|raised|increases?|more|interest)\b", clause):
        part = working.put("+", total, part)
    working.become(part)
    return True


def _split(clause: str, working: Working, current: Fraction) -> bool:
    """*shares them equally among 4 friends*, *packs them in boxes of 6*."""
    match = _among.search(clause) or _packed.search(clause)
    if match is None:
        return False
    parts = number(match[1])
    if _oneself.search(clause):
        parts = working.put("+", parts, Fraction(1))
    if parts == 0:
        return False
    working.become(working.put("/", working.merged(), parts))
    return True


def _changed(clause: str, working: Working, current: Fraction) -> bool:
    """*each box holds 6*, *sells them for 3 each*, *pays with a 20 dollar bill*: acts on the whole current
    quantity.
    """
    values = [number(match[1]) for match in _value.finditer(clause)]
    if len(values) != 1:
        return False
    if re.search(r"\b(?:pays?|paid) with\b|\bhands?\b.*\bbill\b", clause):
        working.become(working.put("-", values[0], working.merged()))
    elif (
        re.search(rf"\b(?:{RATE})\b|\bcosts?\b", clause) and re.search(rf"\b(?:{ON_EACH})\b", clause)
    ) or re.search(rf"\b(?:for|does this|repeats?|in) .*\b(?:{PERIOD}s?|times)\b", clause):
        working.become(working.put("*", working.merged(), values[0]))
    else:
        return False
    return True


def _amount(clause: str, working: Working) -> tuple[Fraction | None, str | None]:
    """What a clause brings: the sum of its parts, each a number or a product such as *3 bags of 5*."""
    total: Fraction | None = None
    rate: str | None = None
    for part in re.split(r",? and |, |\bplus\b", clause):
        factors = [_factor(match, working) for match in _value.finditer(part)]
        if not factors:
            continue
        multiplied = len(factors) > 1 and re.search(rf"\b(?:{RATE}|of|with|times|for|at|in)\b", part)
        value = factors[0]
        for factor in factors[1:]:
            value = working.put("*" if multiplied else "+", value, factor)
        if len(factors) == 1 and (
            match := re.search(r"\b(?:each|every|per|an?) (day|week|month|hour|minute)\b", part)
        ):
            rate = match[1]
        total = value if total is None else working.put("+", total, value)
    return total, rate


def _factor(match: re.Match[str], working: Working) -> Fraction:
    value = number(match[1])
    return value if match[2] is None else working.put("*", value, number(match[2]))


RULES = (_compared, _shared, _split, _changed)
"""Ways in which a clause acts on what was read before; the first that fits is taken."""


def _answered(question: str, working: Working) -> Fraction:
    """The quantity that is asked for."""
    compared = r"how (?:many|much) (?:\w+ )?(?:more|fewer|less|older|farther)\b.*\bthan\b"
    if re.search(compared, question) and len(working.groups) > 1:
        low, high = sorted((working.groups[0], working.groups[-1]))
        return working.put("-", high, low)
    value = working.merged() if re.search(ALL, question) else working.groups[-1]
    longer, times = SPAN.get(working.unit or "", ("", 0))
    if match := re.search(rf"\b(?:in|for|after|over) ({NUMBER}) ({PERIOD})s?\b", question):
        if match[2] == longer:
            value = working.put("*", value, Fraction(times))
        return working.put("*", value, number(match[1]))
    if longer and re.search(rf"\b(?:in|per|an?|each|every|this) (?:an? )?{longer}\b", question):
        return working.put("*", value, Fraction(times))
    values = [number(match[1]) for match in _value.finditer(question)]
    if (
        len(values) == 1
        and not working.unit
        and re.search(r"\b(?:do|does|would|will|for)\b.* \d+ ", question)
    ):
        return working.put("*", value, values[0])
    return value


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
    offset = 1 + int(draw.uniform(question, "offset") * 9) if wrong else 0
    return _worked(solution, offset, slip)


def last_question(prompt: str) -> str:
    """The question asked last, without few-shot examples before it and the answer's label after it."""
    return _answer.split(_question.split(prompt)[-1])[0].strip()


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
