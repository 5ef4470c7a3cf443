"""Runs in the Python of an installed lighteval 0.13: writes its details and results of made benchmarks.

    PEER_PYTHON peer_lighteval.py FOLDER

``FOLDER`` gets ``results/`` and ``details/`` as lighteval writes them, of two models that answer from seeded
tables. Nothing of lighteval is changed but the loader of its own 900 tasks, one of which downloads a file
when it is imported.
"""

import json
import logging
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import nltk
import numpy as np
from lighteval.logging.evaluation_tracker import EvaluationTracker
from lighteval.metrics.metrics import Metrics
from lighteval.metrics.metrics_sample import ExactMatches, F1_score, LoglikelihoodAcc, Probability
from lighteval.metrics.normalizations import (
    LogProbCharNorm,
    LogProbTokenNorm,
    gsm8k_normalizer,
    helm_normalizer,
)
from lighteval.metrics.utils.metric_utils import SampleLevelMetric
from lighteval.models.abstract_model import LightevalModel, ModelConfig
from lighteval.models.model_output import ModelResponse
from lighteval.pipeline import ParallelismManager, Pipeline, PipelineParameters
from lighteval.tasks.lighteval_task import LightevalTaskConfig
from lighteval.tasks.registry import Registry
from lighteval.tasks.requests import Doc, SamplingMethod
from lighteval.utils.cache_management import SampleCache

COUNTS = {"train": 4, "validation": 5, "test": 9}
ODD = (" {}", "{}\n", "It is {}.", "<think>of {}?</think>{}", "{}é\r\n", "\t{} ≠ \U0001f642", "", "{}{}")
"""How an answer may look around what is asked for."""


def question(line: dict[str, Any], name: str) -> Doc:
    return Doc(query=f"{line['a']} + {line['b']} =", choices=[str(line["a"] + line["b"])], gold_index=0)


def question_of_two_answers(line: dict[str, Any], name: str) -> Doc:
    total = line["a"] + line["b"]
    return Doc(query=f"{line['a']} + {line['b']} =", choices=[str(total), f"{total}.0"], gold_index=[0, 1])


def choice(line: dict[str, Any], name: str) -> Doc:
    total = line["a"] + line["b"]
    options = [f" {total + one - line['gold']}" for one in range(4)]
    return Doc(query=f"{line['a']} + {line['b']} =", choices=options, gold_index=line["gold"])


def verdict(line: dict[str, Any], name: str) -> Doc:
    return Doc(
        query=f"{line['a']} + {line['b']} = 50?", choices=[" no", " yes"], gold_index=int(line["gold"] > 1)
    )


def several_right(line: dict[str, Any], name: str) -> Doc:
    return Doc(
        query=f"{line['a']} …",
        choices=[" x", " y", " zz", " x", " vv", " w"],
        gold_index=[0, 3, 4],
        specific={"len_mc1": 3},
    )


def sentence(line: dict[str, Any], name: str) -> Doc:
    text = f"The sum of {line['a']} and {line['b']} is {line['a'] + line['b']}, that is all."
    return Doc(query=f"Write on {line['a']} and {line['b']}:", choices=[text], gold_index=0)


def drop_answers(line: dict[str, Any], name: str) -> Doc:
    total = str(line["a"] + line["b"])
    return Doc(
        query=f"{line['a']} + {line['b']} =",
        choices=[total],
        gold_index=0,
        specific={"golds_no_preprocessing": [[total], ["sum", total]]},
    )


def own(name: str, how: Any, **more: Any) -> Any:
    """A metric of one's own: an exact match whose corpus function is ``how``."""
    return SampleLevelMetric(
        metric_name=name,
        sample_level_fn=more.get("sample", ExactMatches(strip_strings=True)),
        category=more.get("category", SamplingMethod.GENERATIVE),
        corpus_level_fn=how,
        higher_is_better=True,
    )


def third(values: list[float]) -> float:
    """An aggregation that no other program knows."""
    return float(sorted(values)[len(values) // 3])


def named_mean_and_is_none(values: list[float]) -> float:
    """lighteval gives it the error of a mean, by its name."""
    return float(np.mean(values) ** 2)


class _SometimesNothing(ExactMatches):
    """A score that is no number for some samples."""

    def compute(self, doc: Doc, model_response: ModelResponse, **_: Any) -> float:
        return float("nan") if int(doc.id) % 4 == 1 else super().compute(doc, model_response)


def matches(name: str, **how: Any) -> Any:
    return own(name, np.mean, sample=ExactMatches(**how))


def accuracy(name: str, how: Any) -> Any:
    return own(
        name, np.mean, sample=LoglikelihoodAcc(logprob_normalization=how), category=SamplingMethod.LOGPROBS
    )


GENERATED = SamplingMethod.GENERATIVE
ROUGE = [Metrics.rouge1, Metrics.rouge2, Metrics.rougeL]
BENCHMARKS: dict[str, tuple[Any, list[Any]]] = {
    "sums:small": (question, [Metrics.exact_match, Metrics.f1_score]),
    "sums:large": (question, [Metrics.exact_match, Metrics.f1_score]),
    "sums:two_splits": (question, [Metrics.exact_match, Metrics.f1_score]),
    "variants": (question, [
        matches("em_prefix", type_exact_match="prefix", strip_strings=True),
        matches("em_suffix", type_exact_match="suffix"),
        matches("em.helm", normalize_gold=helm_normalizer, normalize_pred=helm_normalizer),
        matches("em,gsm8k", normalize_gold=gsm8k_normalizer, normalize_pred=gsm8k_normalizer),
    ]),
    "two_golds": (question_of_two_answers, [
        Metrics.exact_match,
        own("f1_mean", np.mean, sample=F1_score(aggregation_function=np.mean)),
    ]),
    "extracted": (question, [Metrics.expr_gold_metric]),
    "rouge": (sentence, ROUGE),
    "translated": (sentence, [Metrics.bleu, Metrics.chrf, Metrics.ter, Metrics.rouge1]),
    "only_corpus": (sentence, [Metrics.bleu, Metrics.chrf_plus]),
    "copied": (sentence, [Metrics.copyright]),
    "drop": (drop_answers, [Metrics.drop]),
    "aggregated": (question, [
        own("em_median", np.median), own("em_third", third), own("em_mean", np.mean), own("em_best", max),
        own("em_named", named_mean_and_is_none),
    ]),
    "unscored": (question, [
        own("em", np.mean, sample=_SometimesNothing(strip_strings=True)), Metrics.f1_score,
    ]),
    "passed": (question, [
        Metrics.pass_at_k(sample_params={"k": 1, "n": 4}),
    ]),
    "passed_of_many": (question, [
        Metrics.pass_at_k_math(sample_params={"k": 2, "n": 6}),
        Metrics.maj_at_n(sample_params={"n": 5}),
        Metrics.avg_at_n(sample_params={"n": 6}),
    ]),
    "g_passed": (question, [Metrics.g_pass_at_k(sample_params={"k": 2, "n": 4})]),
    "chosen": (choice, [
        Metrics.loglikelihood_acc, accuracy("acc_chars", LogProbCharNorm()),
        accuracy("acc_tokens", LogProbTokenNorm()), Metrics.mrr,
        Metrics.recall_at_k(sample_params={"k": 2}),
    ]),
    "chosen_by_probability": (choice, [
        own("prob", np.mean, sample=Probability(), category=SamplingMethod.LOGPROBS),
    ]),
    "verdicts": (verdict, [Metrics.acc_golds_likelihood, Metrics.mcc, Metrics.loglikelihood_f1]),
    "truthful": (several_right, [Metrics.truthfulqa_mc_metrics]),
    "both_ways": (choice, [Metrics.loglikelihood_acc, Metrics.exact_match, Metrics.f1_score]),
    "perplexed": (sentence, [Metrics.word_perplexity, Metrics.byte_perplexity, Metrics.bits_per_byte]),
    "macro": (verdict, [Metrics.f1_score_macro]),
}  # fmt: skip


def write_data(folder: Path) -> None:
    """The examples of each benchmark, seeded by its name."""
    for name in BENCHMARKS:
        draw = random.Random(name)
        place = folder / name.replace(":", "_")
        place.mkdir(parents=True)
        for split, count in COUNTS.items():
            lines = [{"a": draw.randint(1, 49), "b": draw.randint(1, 49), "gold": draw.randrange(4)}
                     for _ in range(count)]  # fmt: skip
            (place / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def tasks(folder: Path) -> list[LightevalTaskConfig]:
    return [
        LightevalTaskConfig(
            name=name,
            prompt_function=prompt,
            hf_repo=str(folder / name.replace(":", "_")),
            hf_subset="default",
            metrics=metrics,
            evaluation_splits=["validation", "test"] if name == "sums:two_splits" else ["test"],
            few_shots_split="train",
            generation_size=32,
            stop_sequence=["\n\n"],
        )
        for name, (prompt, metrics) in BENCHMARKS.items()
    ]


class _Seeded(LightevalModel):
    """Answers by a generator that the model's name and the prompt seed."""

    tokenizer = add_special_tokens = None  # type: ignore[assignment]
    max_length = 2048

    def __init__(self, name: str, cache: str) -> None:
        self.config = ModelConfig(model_name=name, cache_dir=cache)
        self._cache = SampleCache(self.config)

    def drawn(self, doc: Doc, of: str) -> random.Random:
        return random.Random(f"{self.config.model_name}/{of}/{doc.task_name}/{doc.query}")

    def greedy_until(self, docs: list[Doc]) -> list[ModelResponse]:
        return [self._answered(doc) for doc in docs]

    def _answered(self, doc: Doc) -> ModelResponse:
        draw = self.drawn(doc, "text")
        texts = []
        for _ in range(doc.num_samples):
            gold = doc.get_golds()[0]
            words = gold.split(" ")
            if draw.random() < 0.4:
                draw.shuffle(words)
            said = " ".join(words) if draw.random() < 0.7 else str(draw.randint(1, 99))
            texts.append(said if draw.random() < 0.5 else draw.choice(ODD).format(said, said))
        return ModelResponse(input=doc.query, text=texts, input_tokens=[1] * len(doc.query.split()))

    def loglikelihood(self, docs: list[Doc]) -> list[ModelResponse]:
        return [self._judged(doc) for doc in docs]

    def _judged(self, doc: Doc) -> ModelResponse:
        draw = self.drawn(doc, "likelihood")
        numbers = [-draw.random() * len(one) for one in doc.choices]
        greedy = numbers.index(max(numbers))
        return ModelResponse(
            input=doc.query,
            logprobs=numbers,
            argmax_logits_eq_gold=[place == greedy for place in range(len(numbers))],
            output_tokens=[[1] * (draw.randint(1, 3)) for _ in numbers],
        )

    def loglikelihood_rolling(self, docs: list[Doc]) -> list[ModelResponse]:
        return [
            ModelResponse(input=doc.query, logprobs=[-9 * self.drawn(doc, "rolled").random()]) for doc in docs
        ]


def main(folder: Path) -> None:
    logging.disable(logging.WARNING)
    nltk.download = lambda *_, **__: False
    Registry._load_from_files = Registry._load_from_subdirs = staticmethod(lambda *_: {})
    with tempfile.TemporaryDirectory() as temporary:
        here = sys.modules[__name__]
        write_data(Path(temporary, "data"))
        here.TASKS_TABLE = tasks(Path(temporary, "data"))  # type: ignore[attr-defined]
        runs = {
            "org/even": [f"{name}|0" for name in BENCHMARKS],
            "alone": ["sums:small|2", "sums:large|0", "both_ways|1"],
        }
        for name, wanted in runs.items():
            pipeline = Pipeline(
                tasks=",".join(wanted),
                pipeline_parameters=PipelineParameters(
                    launcher_type=ParallelismManager.NONE, custom_tasks_directory=here, bootstrap_iters=20
                ),
                evaluation_tracker=EvaluationTracker(output_dir=str(folder), save_details=True),
                model=_Seeded(name, f"{temporary}/cache"),
            )
            pipeline.evaluate()
            pipeline.save_and_push_results()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
