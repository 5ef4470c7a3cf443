"""How a model's thought is told from its answer in one text: by the marks of the model's family.

Chat templates of several families open the thought themselves, so that the text holds its end alone, or
nothing of it where the tokens were used up before. ``generation`` reads replies with it, ``opening`` looks
for the marks at the end of a rendered prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Opened = bool | Literal["auto"]
"""Whether the chat template opens the thought: then a text without any mark is a thought that never ended.
"auto": the text's own marks say it."""


@dataclass(frozen=True)
class Marks:
    """What stands before and after a thought.

    ``ends`` are texts that the family puts behind the thought or the answer beside that; ``wrapper`` stands
    around its answers.
    """

    opening: str
    closing: str
    ends: tuple[str, ...] = ()
    wrapper: tuple[str, str] | None = None

    def bare(self, text: str) -> str:
        """The text without what the family puts behind it."""
        stripped = text.strip()
        for end in self.ends:
            stripped = stripped.removesuffix(end).rstrip()
        return stripped

    def answer(self, text: str) -> str:
        """What stands behind a thought, without the family's own marks."""
        behind = self.bare(text) if any(end in text for end in self.ends) else text.lstrip("\n")
        if self.wrapper is None or not behind.strip().startswith(self.wrapper[0]):
            return behind
        return behind.strip().removeprefix(self.wrapper[0]).removesuffix(self.wrapper[1]).strip("\n")


THINK: Final = Marks("<think>", "</think>")
FAMILIES: Final[Mapping[str, Marks]] = {
    "think": THINK,
    "mistral": Marks("[THINK]", "[/THINK]"),
    "seed": Marks("<seed:think>", "</seed:think>"),
    "harmony": Marks(
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
        ("<|return|>", "<|start|>assistant", "<|end|>"),
    ),
    "kimi": Marks("◁think▷", "◁/think▷"),
    "cohere": Marks(
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        ("<|END_RESPONSE|>",),
        ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "apertus": Marks("<|inner_prefix|>", "<|inner_suffix|>"),
    "thought": Marks("<thought>", "</thought>"),
    "reasoning": Marks("<reasoning>", "</reasoning>"),
    "granite": Marks("Here is my thought process:", "Here is my response:"),
    "hunyuan": Marks("<think>", "</think>", wrapper=("<answer>", "</answer>")),
    "ernie": Marks("<think>", "</think>", wrapper=("<response>", "</response>")),
}
"""The marks of families by name: DeepSeek, Qwen, GLM, MiniMax and others (think), Magistral (mistral),
Seed-OSS, gpt-oss (harmony), Kimi-VL, Command A Reasoning (cohere), Apertus, EXAONE Deep (thought), Reka Flash
(reasoning), Granite 3.2, Hunyuan A13B, ERNIE 4.5."""
UNMISTAKABLE: Final = ("think", "mistral", "seed", "harmony", "kimi", "cohere", "apertus")
"""Families whose marks no answer begins with: what "auto" looks for. ``<reasoning>`` and ``<thought>`` are
often asked for by prompts, and then are part of the answer."""


def marks_of(named: str | tuple[str, str]) -> tuple[Marks, ...]:
    """The marks that a config names: a family's, two texts, or "auto"."""
    if isinstance(named, tuple):
        return (Marks(*named),)
    return tuple(FAMILIES[name] for name in (UNMISTAKABLE if named == "auto" else (named,)))


ANY: Final = marks_of("auto")


def split_thought(
    text: str, opened: Opened = "auto", known: Sequence[Marks] = ANY
) -> tuple[str | None, str | None]:
    """The answer and the thought before it; None for what is not there.

    >>> split_thought("<think>2 + 2</think>\\n4"), split_thought("2 + 2</think>4"), split_thought("4")
    (('4', '2 + 2'), ('4', '2 + 2'), ('4', None))
    >>> split_thought("<think>2 +"), split_thought("2 +", opened=True)
    ((None, '2 +'), (None, '2 +'))
    """
    begins = text.lstrip()
    marks = next((marks for marks in known if begins.startswith((marks.opening, marks.closing))), None)
    if marks is None:
        if opened is False:
            return text, None
        closed = [marks for marks in known if marks.closing in text]
        if not closed:
            return (None, text.strip()) if opened is True else (text, None)
        marks = min(closed, key=lambda marks: text.index(marks.closing))
        begins = text
    thought, closing, answer = begins.removeprefix(marks.opening).partition(marks.closing)
    return (marks.answer(answer) if closing else None), marks.bare(thought)
