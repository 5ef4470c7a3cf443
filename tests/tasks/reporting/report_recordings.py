"""Runs to look at: the GSM8K recordings (four models, 1,319 items), and generated ones of any size."""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.reporting.view import LabelView, ResponseView, RunView, SampleView
from tasks.store.schemas import RESULTS

RECORDINGS = Path(__file__).parents[4] / "shared" / "data" / "gsm8k" / "example_model_solutions.jsonl"
MODELS = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
ANSWER = r"A: (\-?[0-9\.\,]+)"
NUMBER = r"(-?[$0-9.,]{2,})|(-?[0-9]+)"
CONFIG = {
    "filter_list": [
        {"name": "strict-match", "filter": [{"function": "regex", "regex_pattern": ANSWER}]},
        {
            "name": "flexible-extract",
            "filter": [{"function": "regex", "regex_pattern": NUMBER, "group_select": -1}],
        },
    ]
}
HOSTILE = '<script>document.title = "owned"</script><img src=x onerror="document.title=\'owned\'">'


def gsm8k(limit: int | None = None, hostile: str | None = None) -> RunView:
    """The recordings as a run; ``hostile`` is appended to the first response of every model."""
    if not RECORDINGS.exists():
        pytest.skip(f"the GSM8K recordings are not at {RECORDINGS}")
    rows = [json.loads(line) for line in RECORDINGS.read_text().splitlines()][:limit]

    def samples() -> Iterator[SampleView]:
        for model in MODELS:
            for number, row in enumerate(rows):
                text = row[model]["solution"]
                yield recorded(str(number), model, row, text + hostile if hostile and number == 0 else text)

    return run_of(samples, {"benchmark": "gsm8k", "run_id": "recorded", "config": CONFIG})


def recorded(item_id: str, model: str, row: dict[str, Any], text: str) -> SampleView:
    """One recorded solution with two filters and exact_match on either."""
    reference = first(ANSWER, row["ground_truth"]) or ""
    predictions = {"strict-match": first(ANSWER, text), "flexible-extract": last(NUMBER, text)}
    return SampleView(
        item_id=item_id,
        model_name=model,
        prompt_template="default",
        prompt=f"Question: {row['question']}\nAnswer:",
        references=[reference],
        responses=[
            ResponseView(text, finish_reason="stop", completion_tokens=len(text.split()), seconds=0.5)
        ],
        filters={name: [prediction] for name, prediction in predictions.items()},
        scores={
            f"exact_match,{name}": [float(prediction == reference)]
            for name, prediction in predictions.items()
        },
    )


def generated(items: int, size: int = 2000, repeats: int = 1, seed: int = 7) -> RunView:
    """A run of words drawn at random, ``size`` characters a sample, with failures, labels and a facet."""

    def samples() -> Iterator[SampleView]:
        words = random.Random(seed)
        lexicon = [
            "".join(words.choices("abcdefghijklmnopqrstuvwxyz", k=words.randint(2, 9))) for _ in range(20_000)
        ]
        for number in range(items):
            draw = random.Random(seed * 1_000_003 + number)
            texts = [" ".join(draw.choices(lexicon, k=size // 8)) for _ in range(repeats)]
            failed = number % 97 == 5
            yield generated_sample(number, lexicon, draw, texts, failed)

    return run_of(samples, {"benchmark": "generated", "run_id": "generated"})


def generated_sample(
    number: int, lexicon: list[str], draw: random.Random, texts: list[str], failed: bool
) -> SampleView:
    """One sample; every 97th failed."""
    responses = [
        ResponseView(None, "infra_error", "HTTP 503 after 6 attempts")
        if failed
        else ResponseView(text, finish_reason="stop")
        for text in texts
    ]
    scores: list[float | None] = [None if failed else float(draw.random() < 0.6) for _ in texts]
    return SampleView(
        item_id=f"item-{number}",
        model_name="generator",
        prompt_template="plain",
        prompt=" ".join(draw.choices(lexicon, k=60)),
        references=["reference"],
        responses=responses,
        filters={"none": [response.text for response in responses]},
        scores={"exact_match,none": scores},
        facets={"item.subject": ("algebra", "geometry")[number % 2]},
        labels=[
            LabelView(
                "quality",
                index,
                None if score is None else score > 0,
                score,
                "ok" if score is not None else "error",
            )
            for index, score in enumerate(scores)
        ],
    )


def run_of(samples: Any, manifest: dict[str, Any], extra: list[dict[str, Any]] | None = None) -> RunView:
    """A run with the result rows that its samples give."""
    sums: dict[tuple[str, str, str], list[float]] = {}
    unscored: dict[tuple[str, str, str], int] = {}
    for sample in samples():
        for pair, scores in sample.scores.items():
            key = (sample.model_name, sample.prompt_template, pair)
            sums.setdefault(key, []).extend(score for score in scores if score is not None)
            unscored[key] = unscored.get(key, 0) + sum(score is None for score in scores)
    rows = [result(manifest["benchmark"], *key, values, unscored[key]) for key, values in sums.items()]
    manifest = {"requests": {"sent": 0, "cached": len(rows), "failed": 0}, "wall_time": 4.2, **manifest}
    return RunView(manifest, pa.Table.from_pylist(rows + (extra or []), schema=RESULTS), samples)


def result(
    benchmark: str, model: str, prompt: str, pair: str, values: list[float], unscored: int
) -> dict[str, Any]:
    """One result row: the mean of 0/1 scores with its standard error."""
    metric, name = pair.split(",", 1)
    mean = sum(values) / len(values) if values else None
    stderr = (mean * (1 - mean) / len(values)) ** 0.5 if mean is not None else None
    return {
        "run_id": "recorded",
        "benchmark": benchmark,
        "model_name": model,
        "prompt_template": prompt,
        "filter": name,
        "metric": metric,
        "reduction": "mean",
        "facets": json.dumps({"model_name": model, "prompt_template": prompt}),
        "value": mean,
        "stderr": stderr,
        "stderr_method": "closed form",
        "ci_low": None if mean is None or stderr is None else max(0.0, mean - 1.96 * stderr),
        "ci_high": None if mean is None or stderr is None else min(1.0, mean + 1.96 * stderr),
        "n_items": len(values) + unscored,
        "n_samples": len(values) + unscored,
        "n_scored": len(values),
        "n_unscored": unscored,
        "higher_is_better": True,
        "status": "ok" if values else "unscored",
    }


def first(pattern: str, text: str) -> str | None:
    """What the first match captured."""
    found = re.search(pattern, text)
    return found[1].rstrip(".,") if found else None


def last(pattern: str, text: str) -> str | None:
    """What the last match captured."""
    found = list(re.finditer(pattern, text))
    return next((group for group in found[-1].groups() if group), None) if found else None
