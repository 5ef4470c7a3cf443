"""Runs in the Python of an installed OpenCompass 0.5.4: writes its predictions and results of made datasets.

    PEER_PYTHON peer_opencompass.py FOLDER

``FOLDER`` gets ``predictions/`` and ``results/`` as OpenCompass's command line writes them, of two models
that answer from seeded tables. Its evaluators, inferencers and partitioners are its own.
"""

import contextlib
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from opencompass.cli.main import main as command_line
from opencompass.datasets import (
    BBHDataset,
    BBHEvaluator,
    GSM8KDataset,
    Gsm8kEvaluator,
    TriviaQADatasetV2,
    TriviaQAEvaluator,
    gsm8k_dataset_postprocess,
    gsm8k_postprocess,
)
from opencompass.datasets.bbh import BBHEvaluator_mcq
from opencompass.datasets.custom import (
    CircularCustomDataset,
    CircularOptionSimAccEvaluator,
    CustomDataset,
    OptionSimAccEvaluator,
)
from opencompass.datasets.needlebench.origin import NeedleBenchOriginEvaluator
from opencompass.models.base import BaseModel
from opencompass.openicl.icl_evaluator import (
    AccEvaluator,
    AccwithDetailsEvaluator,
    EMEvaluator,
    JiebaRougeEvaluator,
    RougeEvaluator,
)
from opencompass.openicl.icl_inferencer import GenInferencer, LLInferencer, PPLInferencer
from opencompass.openicl.icl_prompt_template import PromptTemplate
from opencompass.openicl.icl_retriever import ZeroRetriever
from opencompass.partitioners import NaivePartitioner, SizePartitioner
from opencompass.registry import MODELS
from opencompass.runners import LocalRunner
from opencompass.tasks import OpenICLEvalTask, OpenICLInferTask

ODD = (" {}", "{}\n", "The answer is {}.", "It is {}, I think.", "{}é\r\n", "\t{} ≠ \U0001f642", "")


@MODELS.register_module(name="Seeded")
class _Seeded(BaseModel):
    """Answers by a generator that the model's name, the prompt and how often it was asked before seed. Its
    prompts hold what is right between ⟦ and ⟧, so that some answers are."""

    def __init__(self, path: str, **more: Any) -> None:
        super().__init__(path, **more)
        self.asked: dict[str, int] = {}

    def drawn(self, prompt: str) -> random.Random:
        self.asked[prompt] = self.asked.get(prompt, 0) + 1
        return random.Random(f"{self.path}/{prompt}/{self.asked[prompt]}")

    def generate(self, inputs: list[Any], max_out_len: int, **_: Any) -> list[str]:
        return [self._answer(str(prompt)) for prompt in inputs]

    def _answer(self, prompt: str) -> str:
        draw = self.drawn(prompt)
        right = prompt.rpartition("⟦")[2].partition("⟧")[0]
        said = right if draw.random() < 0.6 else draw.choice(["A", "B", "C", "D", "7", "yes", "no"])
        return said if draw.random() < 0.5 else draw.choice(ODD).format(said)

    def get_ppl(self, inputs: list[Any], mask_length: Any = None) -> Any:
        return np.array([1 + 9 * self.drawn(str(prompt)).random() for prompt in inputs])

    def get_loglikelihood(self, inputs: list[Any], conts: list[str]) -> Any:
        return -self.get_ppl(inputs)

    def get_token_len(self, prompt: str) -> int:
        return len(prompt.split())


def write_data(folder: Path) -> None:
    """The data sets, seeded by their names."""

    def lines(name: str, count: int, row: Any) -> None:
        draw = random.Random(name)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row(draw, n), ensure_ascii=False) + "\n" for n in range(count)))

    def choice(draw: random.Random, number: int) -> dict[str, Any]:
        options = {letter: f"w{draw.randint(1, 99)}" for letter in "ABCD"}
        right = draw.choice("ABCD")
        return {"question": f"Which, {number}? ⟦{right}⟧", **options, "answer": right}

    def verdict(draw: random.Random, number: int) -> dict[str, Any]:
        right = draw.choice(["yes", "no"])
        return {"question": f"Is {number}? ⟦{right}⟧", "answer": right, "cont": right}

    def sums(draw: random.Random, number: int) -> dict[str, Any]:
        one, other = draw.randint(1, 49), draw.randint(1, 49)
        return {
            "question": f"{one} + {other}? ⟦{one + other}⟧",
            "answer": f"{one} + {other} = #### {one + other}",
        }

    def several(draw: random.Random, number: int) -> dict[str, Any]:
        word = f"w{draw.randint(1, 99)}"
        return {"question": f"Who, {number}? ⟦{word}⟧", "answer": [word, f"the {word}"]}

    def needle(draw: random.Random, number: int) -> dict[str, Any]:
        word = draw.choice(["attic", "barn", "cellar"])
        return {"question": f"Where is {number}? ⟦the {word}⟧", "answer": f"in the {word}*the {word}"}

    lines("needles.jsonl", 8, needle)
    lines("choices.jsonl", 8, choice)
    lines("more_choices.jsonl", 6, choice)
    lines("verdicts.jsonl", 9, verdict)
    lines("several.jsonl", 9, several)
    for split, count in (("train", 3), ("test", 10)):
        lines(f"gsm8k/{split}.jsonl", count, sums)
    for split, count in (("train", 3), ("validation", 9)):
        lines(f"triviaqa/triviaqa-{split}.jsonl", count, lambda draw, number: {
            **several(draw, number), "answer": several(draw, number)["answer"]
        })  # fmt: skip
    judged = [verdict(random.Random(number), number) for number in range(7)]
    examples = [{"input": one["question"], "target": one["answer"]} for one in judged]
    (folder / "bbh").mkdir()
    (folder / "bbh" / "judged.json").write_text(json.dumps({"examples": examples}, ensure_ascii=False))


OPTIONS = ["A", "B", "C", "D"]


def generated(
    abbr,
    evaluator,
    path,
    inputs=("question",),
    output="answer",
    kind=CustomDataset,
    template=None,
    post=None,
    reader=None,
    **more,
):
    template = template or {
        "round": [{"role": "HUMAN", "prompt": "{question}"}, {"role": "BOT", "prompt": ""}]
    }
    return dict(
        abbr=abbr,
        type=kind,
        path=path,
        reader_cfg=dict(input_columns=list(inputs), output_column=output, **(reader or {})),
        infer_cfg={
            "prompt_template": {"type": PromptTemplate, "template": template},
            "retriever": {"type": ZeroRetriever},
            "inferencer": {"type": GenInferencer},
        },
        eval_cfg=dict(evaluator=evaluator, pred_role="BOT", **(post or {})),
        **more,
    )


def scored(abbr, evaluator, path, labels, inferencer, inputs=("question",), **more):
    template = {
        label: {"round": [{"role": "HUMAN", "prompt": "{question}"}, {"role": "BOT", "prompt": label}]}
        for label in labels
    }
    if inferencer is LLInferencer:
        template = {label: "{question}" + f" {label}" for label in labels}
    return dict(
        abbr=abbr,
        type=CustomDataset,
        path=path,
        reader_cfg={"input_columns": list(inputs), "output_column": "answer"},
        infer_cfg={
            "prompt_template": {"type": PromptTemplate, "template": template},
            "retriever": {"type": ZeroRetriever},
            "inferencer": {"type": inferencer},
        },
        eval_cfg={"evaluator": evaluator},
        **more,
    )


similar = {"type": OptionSimAccEvaluator, "options": OPTIONS}
letters = ["question", *OPTIONS]
asked = "{question}\nA. {A}\nB. {B}\nC. {C}\nD. {D}"
chosen = {"round": [{"role": "HUMAN", "prompt": asked}, {"role": "BOT", "prompt": "Answer: {answer}"}]}
number = {
    "pred_postprocessor": {"type": gsm8k_postprocess},
    "dataset_postprocessor": {"type": gsm8k_dataset_postprocess},
}

DATASETS = [
    generated("options", similar, "choices.jsonl", letters, template=chosen),
    generated("options_of_more", similar, "more_choices.jsonl", letters, template=chosen),
    generated("options_twice", similar, "choices.jsonl", letters, template=chosen, n=2),
    generated(
        "options_circular",
        {"type": CircularOptionSimAccEvaluator, "options": OPTIONS},
        "more_choices.jsonl",
        letters,
        template=chosen,
        kind=CircularCustomDataset,
        option_keys=OPTIONS,
        answer_key="answer",
    ),
    generated("detailed", {"type": AccwithDetailsEvaluator}, "verdicts.jsonl"),
    generated("detailed_thrice", {"type": AccwithDetailsEvaluator}, "verdicts.jsonl", n=3),
    generated("matched", {"type": EMEvaluator}, "several.jsonl"),
    generated("matched_four_times", {"type": EMEvaluator}, "several.jsonl", n=4),
    generated("matched_g_pass", {"type": EMEvaluator}, "several.jsonl", n=4, k=[2, 4]),
    generated("gsm8k", {"type": Gsm8kEvaluator}, "gsm8k", kind=GSM8KDataset, post=number),
    generated(
        "gsm8k_five_times", {"type": Gsm8kEvaluator}, "gsm8k", kind=GSM8KDataset, post=number, n=5, k=3
    ),
    generated(
        "triviaqa",
        {"type": TriviaQAEvaluator},
        "triviaqa",
        kind=TriviaQADatasetV2,
        reader={"train_split": "train", "test_split": "validation"},
    ),
    generated(
        "bbh",
        {"type": BBHEvaluator},
        "bbh",
        ("input",),
        "target",
        kind=BBHDataset,
        name="judged",
        template={"round": [{"role": "HUMAN", "prompt": "{input}"}]},
    ),
    generated(
        "bbh_letters",
        {"type": BBHEvaluator_mcq},
        "bbh",
        ("input",),
        "target",
        kind=BBHDataset,
        name="judged",
        template={"round": [{"role": "HUMAN", "prompt": "{input}"}]},
    ),
    generated("needles", {"type": NeedleBenchOriginEvaluator}, "needles.jsonl"),
    generated("needles_thrice", {"type": NeedleBenchOriginEvaluator}, "needles.jsonl", n=3),
    generated("accuracy", {"type": AccEvaluator}, "verdicts.jsonl"),
    generated("accuracy_twice", {"type": AccEvaluator}, "verdicts.jsonl", n=2),
    generated("rouge", {"type": JiebaRougeEvaluator}, "verdicts.jsonl"),
    scored("perplexity", {"type": AccEvaluator}, "verdicts.jsonl", ["yes", "no"], PPLInferencer),
    scored("perplexity_of_options", {"type": AccEvaluator}, "choices.jsonl", OPTIONS, PPLInferencer, letters),
    scored("perplexity_twice", {"type": AccEvaluator}, "verdicts.jsonl", ["yes", "no"], PPLInferencer, n=2),
    scored("perplexity_rouge", {"type": RougeEvaluator}, "verdicts.jsonl", ["yes", "no"], PPLInferencer),
    scored("likelihood", {"type": AccEvaluator}, "verdicts.jsonl", ["yes", "no"], LLInferencer),
]

PARTED = ("options", "matched", "detailed_thrice", "triviaqa", "perplexity", "perplexity_of_options")
"""Those that a run asks in parts."""


def settings(data: Path, model: str, partitioner: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The configuration of a run of a model on the data sets of these names."""
    return {
        "datasets": [{**one, "path": str(data / one["path"])} for one in DATASETS if one["abbr"] in names],
        "models": [{"type": "Seeded", "abbr": model, "path": model, "max_out_len": 16, "batch_size": 4,
                    "run_cfg": {"num_gpus": 0}}],
        "infer": {"partitioner": partitioner,
                  "runner": {"type": LocalRunner, "task": {"type": OpenICLInferTask}}},
        "eval": {"partitioner": {"type": NaivePartitioner},
                 "runner": {"type": LocalRunner, "task": {"type": OpenICLEvalTask, "dump_details": True}}},
    }  # fmt: skip


def named(value: Any) -> Any:
    """The settings with classes and functions by their names, as a file has them."""
    if isinstance(value, dict):
        return {key: named(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [named(one) for one in value]
    return f"{value.__module__}.{value.__name__}" if callable(value) else value


def main(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        data = Path(temporary, "data")
        write_data(data)
        runs = {
            "even": ({"type": NaivePartitioner}, {one["abbr"] for one in DATASETS}),
            "parted": ({"type": SizePartitioner, "max_task_size": 20, "gen_task_coef": 5}, PARTED),
        }
        for model, (partitioner, names) in runs.items():
            config = Path(temporary, f"{model}.py")
            Config(named(settings(data, model, partitioner, names))).dump(config)
            sys.argv = ["opencompass", str(config), "--work-dir", f"{temporary}/{model}", "--debug"]
            command_line()
            (written,) = Path(temporary, model).iterdir()
            for part in ("predictions", "results"):
                shutil.copytree(written / part, folder / part, dirs_exist_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
