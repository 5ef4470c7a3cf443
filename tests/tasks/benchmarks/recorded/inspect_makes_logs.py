"""Writes 20 logs of each of Inspect's formats into the folder that is the argument. Runs where inspect_ai is.

A scripted model, seeded answers; one to three epochs; scorers with words, numbers and dictionaries.
"""

import random
import sys
from typing import Any

import tiktoken


class Counted:
    """Stands for encodings that Inspect would fetch, to count the tokens of scripted answers."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [0] * (len(text) // 4 + 1)

    encode_ordinary = encode


tiktoken.get_encoding = tiktoken.encoding_for_model = lambda _: Counted()

from inspect_ai import Task, eval  # noqa: E402
from inspect_ai.dataset import Sample  # noqa: E402
from inspect_ai.model import ModelOutput, get_model  # noqa: E402
from inspect_ai.scorer import Score, accuracy, f1, includes, match, mean, scorer, stderr  # noqa: E402
from inspect_ai.solver import generate  # noqa: E402


@scorer(metrics={"length": [mean(), stderr()], "even": [accuracy()]})
def parts() -> Any:
    async def score(state: Any, target: Any) -> Score:
        text = state.output.completion
        return Score(value={"length": len(text), "even": "C" if len(text) % 2 == 0 else "P"}, explanation="…")

    return score


def main() -> None:
    for number in range(20):
        draw = random.Random(number)
        count, epochs = draw.randint(3, 12), draw.randint(1, 3)
        samples = [Sample(id=f"s{n}", input=f"What is {n}+1?", target=str(n + 1)) for n in range(count)]
        chosen = draw.sample([match(), includes(), f1(), parts()], draw.randint(1, 4))
        answers = [f"It is {draw.randint(1, count)}" for _ in range(count * epochs)]
        for kind in ("eval", "json"):
            outputs = [ModelOutput.from_content("mockllm/model", answer) for answer in answers]
            task = Task(
                dataset=samples, solver=generate(), scorer=chosen, epochs=epochs, name=f"made-{number}"
            )
            model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
            eval(task, model=model, log_dir=sys.argv[1], log_format=kind, display="none", max_samples=1)


if __name__ == "__main__":
    main()
