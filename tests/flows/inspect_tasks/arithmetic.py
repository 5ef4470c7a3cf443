"""Three tasks of Inspect. Runs where inspect_ai is: the tests copy it beside a config."""

from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, accuracy, includes, match, mean, scorer, stderr
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash


def sums(count: int) -> MemoryDataset:
    return MemoryDataset(
        [
            Sample(
                input=f"What is {number} + {number}?",
                target=str(2 * number),
                id=f"sum-{number}",
                metadata={"parity": "odd" if number % 2 else "even"},
            )
            for number in range(1, count + 1)
        ]
    )


@task
def plain(count: int = 6) -> Task:
    return Task(dataset=sums(count), solver=generate(), scorer=match())


@task
def tools() -> Task:
    return Task(
        dataset=sums(4), solver=[use_tools(bash(timeout=60)), generate()], scorer=includes(), sandbox="local"
    )


@scorer(metrics={"length": [mean(), stderr()], "right": [accuracy(), stderr()]})
def style():
    async def score(state, target):
        text = state.output.completion
        # An eighth is exact: the order in which epochs end is not to be seen in the last digit.
        value = {"length": len(text) / 8, "right": "C" if target.text in text else "I"}
        return Score(value=value, answer=text, explanation=f"{len(text)} characters")

    return score


@task
def repeated() -> Task:
    return Task(dataset=sums(5), solver=generate(), scorer=[includes(), style()], epochs=Epochs(3, "mean"))
