"""How a model's thought is told from its answer in one text: by the marks ``<think>`` and ``</think>``.

Chat templates of several families open the thought themselves, so that the text holds its end alone, or
nothing of it where the tokens were used up before. ``generation`` reads replies with it.
"""

from typing import Literal

OPENING, CLOSING = "<think>", "</think>"

Opened = bool | Literal["auto"]
"""Whether the chat template opens the thought: then a text without any mark is a thought that never ended.
"auto": the text's own marks say it."""


def split_thought(text: str, opened: Opened = "auto") -> tuple[str | None, str | None]:
    """The answer and the thought before it; None for what is not there.

    >>> split_thought("<think>2 + 2</think>\\n4"), split_thought("2 + 2</think>4"), split_thought("4")
    (('4', '2 + 2'), ('4', '2 + 2'), ('4', None))
    >>> split_thought("<think>2 +"), split_thought("2 +", opened=True)
    ((None, '2 +'), (None, '2 +'))
    """
    begins = text.lstrip()
    marked = begins.startswith(OPENING)
    thought, closed, answer = (begins.removeprefix(OPENING) if marked else text).partition(CLOSING)
    if closed and (marked or opened is not False):
        return answer.lstrip("\n"), thought.strip()
    if marked or opened is True:
        return None, thought.strip()
    return text, None
