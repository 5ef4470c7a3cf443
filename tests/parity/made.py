"""Files of the two-phase framework, made from a seed: complete, shuffled, incomplete and odd ones.

A file is its rows, the method that judges them and the metrics asked for. ``judge`` is deterministic in the
response, so that whoever computes the numbers can call it.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]
KINDS = ("complete", "shuffled", "incomplete", "odd")
NAMES = ("p0", "p1", "問題 1", "20250510代丽_05", "a b", "Ünï-ço∂é", "x+y", "q/7")
MODELS = (("A", "A-id"), ("Qwen3-1.7B-nothink", "Qwen/Qwen3-1.7B"), ("模型", "模型"), ("B", "A-id"))
PROMPTS = ("template_1", "Löse: {{question}}", "Solve the problem.\n\n{{question}}\nAnswer:", "解けよ {{q}}")
FACETS = (
    "model_name", "metadata.model_id", "metadata.prompt_template", "metadata.sampling.temperature",
    "metadata.tier", "metadata.flag", "metadata.nothing.here", "item_id", "passed",
    "detailed_results.custom_fields.why", "detailed_results.custom_fields.deep.n", "detailed_results.tp",
)  # fmt: skip


@dataclass(frozen=True)
class MadeFile:
    """One file of responses, and what is asked of it. ``apart``: the rows of each model are a file of their
    own, and ``rows`` are those of the first file, then those of the second."""

    seed: int
    kind: str
    rows: list[Row]
    items: list[str]
    models: list[str]
    prompts: list[str | None]
    num_samples: int
    metrics: list[Row]
    apart: bool = False


def made(seed: int) -> MadeFile:
    """The file of a seed; one in four is of each kind."""
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    items = rng.sample(NAMES, rng.randint(1, 5))
    models = rng.sample(MODELS, rng.randint(1, 3))
    prompts: list[str | None] = [*rng.sample(PROMPTS, rng.randint(1, 3))]
    if rng.random() < 0.2:
        prompts = [None]
    num_samples = rng.randint(1, 6)
    rows = [
        _row(rng, item, sample, model, prompt)
        for prompt in prompts
        for model in models
        for item in items
        for sample in range(num_samples)
    ]
    if kind != "complete":
        rng.shuffle(rows)
    if kind in ("incomplete", "odd"):
        share = rng.choice([0.05, 0.2, 0.5])
        rows = [row for row in rows if rng.random() >= share] or rows[:1]
    if kind == "odd":
        rows = list(_odd(rng, rows))
    metrics = [{"name": f"m{place}", **_metric(rng, num_samples)} for place in range(6)]
    there = [prompt for prompt in prompts if any(_prompt(row) == prompt for row in rows)]
    names = [name for name, _ in models]
    apart = len(names) > 1 and seed % 5 == 0
    if apart:
        rows.sort(key=lambda row: names.index(row["model_name"]))
    return MadeFile(seed, kind, rows, items, names, there, num_samples, metrics, apart)


def _prompt(row: Row) -> str | None:
    prompt: str | None = row["metadata"].get("prompt_template")
    return prompt


def _row(rng: random.Random, item: str, sample: int, model: tuple[str, str], prompt: str | None) -> Row:
    metadata: Row = {"model_id": model[1], "finish_reason": "stop", "response_id": f"r{rng.random()}"}
    if prompt is not None:
        metadata["prompt_template"] = prompt
    if rng.random() < 0.9:
        metadata["sampling"] = {"temperature": rng.choice([0, 0.0, 0.7, 1]), "num_samples": 6}
    if rng.random() < 0.8:
        metadata["tier"] = rng.choice(["gold", "", None, "große", 3])
        metadata["flag"] = rng.choice([True, False])
    text = "".join(rng.choice("ynab 好ä") for _ in range(rng.randint(1, 12)))
    return {
        "item_id": item, "sample_id": f"{item}_sample_{sample}", "sample_index": sample,
        "total_samples": 16, "model_name": model[0], "prompt": f"Solve {item}", "response": text,
        "inference_time": rng.random() * 20, "timestamp": 1750440075.5954432 + rng.random(),
        "metadata": metadata, "error": None, "tokens_per_second": rng.random() * 100,
        "total_tokens": 5431, "prompt_tokens": 2929, "completion_tokens": 2502,
    }  # fmt: skip


def _odd(rng: random.Random, rows: list[Row]) -> Iterator[Row]:
    """Rows as other programs left them: fields without a use, times as text, no numbers of samples."""
    unnumbered = rng.random() < 0.5
    for row in rows:
        odd = dict(row)
        if unnumbered:
            del odd["sample_index"]
        if rng.random() < 0.3:
            odd["timestamp"] = "2026-01-01T00:00:00+00:00"
        if rng.random() < 0.2:
            odd |= {"custom_fields": {"mood": "😀"}, "score": 99, "passed": "never", "label": "none"}
        if rng.random() < 0.2:
            del odd["tokens_per_second"], odd["error"], odd["prompt"]
        yield odd


def _metric(rng: random.Random, num_samples: int) -> Row:
    kind = rng.choice(["pass_at_k", "pass_at_k", "classification", "mean", "median", "percentile",
                       "pass_rate", "count", "own"])  # fmt: skip
    params: Row = {}
    if kind == "pass_at_k":
        k = rng.randint(1, num_samples)
        params = {"k": k}
        if rng.random() < 0.7:
            aggregation = rng.choice(["mean", "median", "min", "max"])
            params |= {"num_trials": rng.randint(1, num_samples // k), "aggregation": aggregation}
    elif kind == "classification" and rng.random() < 0.5:
        params = {"num_trials": rng.randint(1, num_samples)}
    elif kind == "percentile" and rng.random() < 0.7:
        params = {"percentile": rng.choice([0, 5, 50, 95, 95.0, 99.5, 100])}
    metric: Row = {"type": kind, "facets": rng.sample(FACETS, rng.randint(0, 3)), "params": params}
    if rng.random() < 0.3:
        chosen = rng.sample(["right", "cells", "bare"], rng.randint(1, 2))
        metric["labels"] = {rng.choice(["include", "exclude"]): chosen}
    return metric


def judge(response: str, ground_truth: Any = None, inference_result: Any = None, **params: Any) -> Row:
    """Three labels: one with custom fields, one with cells of a confusion table that some responses lack, one
    about which some responses say nothing beside passed and score."""
    passed, length = "y" in response, len(response)
    fields = {"why": response[-1], "deep": {"n": length % 3}}
    labels = [
        {
            "label": {"name": "right"},
            "result": {"passed": passed, "score": length / 7, "custom_fields": fields},
        }
    ]
    if length % 5:
        told = {"t" if passed else "f": True}
        cells = {f"{side}{sign}": side in told and (sign == "p") == ("a" in response)
                 for side in "tf" for sign in "pn"}  # fmt: skip
        labels.append(
            {"label": {"name": "cells"}, "result": {"passed": passed, "score": float(passed), **cells}}
        )
    more = {"note": "long"} if length > 6 else {}
    labels.append({"label": {"name": "bare"}, "result": {"passed": not passed, "score": -length / 3, **more}})
    return {"labels": labels, "custom_fields": {"version": 7}}


def own(evaluation_results: list[Row], facets: Any, **params: Any) -> Row:
    """A metric that hangs on the order of the rows."""
    scores = [row["score"] for row in evaluation_results]
    waves = sum(score * (-1) ** place for place, score in enumerate(scores))
    return {"waves": waves, "first": scores[0], "n": len(scores)}
