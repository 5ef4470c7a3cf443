"""Runs in the Python of an installed lm-evaluation-harness: evaluates a made-up model and logs its samples.

    PEER_PYTHON peer_run.py FOLDER OUTPUT NAME…

The model is a function of the prompt: it adds up the numbers of the last question, now and then wrongly, and
measures texts by a digest. Prints the results as JSON.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

ANIMALS = ["otter", "heron", "marten", "lynx", "newt", "shrew", "crane", "viper", "ibex", "tern"]


def number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


class MadeUp(LM):
    """A model whose every answer follows from the prompt."""

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Digests as log-likelihoods; every third continuation is greedy."""
        return [
            (-(number(f"{a}|{b}") % 100_000) / 7_000, number(f"{b}{a}") % 3 == 0)
            for a, b in (r.args for r in requests)
        ]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """The same for whole documents."""
        return [-(number(r.args[0]) % 100_000) / 700 for r in requests]

    def generate_until(self, requests: list[Any]) -> list[str]:
        """Sums of the numbers in the last question, or an animal."""
        self.calls = getattr(self, "calls", 0)
        answers = []
        for request in requests:
            prompt = request.args[0]
            self.calls += 1
            question = prompt.rsplit("Question:", 1)[-1]
            total = sum(map(int, re.findall(r"\d+", question))) + (
                number(f"{prompt}{self.calls % 4}") % 3 == 0
            )
            animal = ANIMALS[number(prompt) % 10]
            answers.append(
                f"So it is {total}.\n#### {total}"
                if "beetles" in prompt or "moths" in prompt
                else f"The {animal}"
            )
        return answers


def main(folder: str, output: str, names: list[str]) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    tracker = EvaluationTracker(output_path=output)
    results = simple_evaluate(
        model=MadeUp(),
        tasks=names,
        evaluation_tracker=tracker,
        bootstrap_iters=1000,
        random_seed=0,
        task_manager=TaskManager(include_path=folder, include_defaults=False),
        fewshot_as_multiturn=False,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=dict(results), samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    Path(output, "peer.json").write_text(json.dumps(results["results"], default=str))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
