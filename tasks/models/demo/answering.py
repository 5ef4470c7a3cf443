"""What the embedded model says: worked arithmetic, a grade where a grade is asked for, or a plain sentence.

Everything it says is a function of (prompt, seed, temperature, choice index); ``error_rate`` of the problems
come out wrong, and one in ten answers lacks the final ``####`` line, as real models forget it.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from tasks.models.demo.solver import Solution, shown, solve

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
