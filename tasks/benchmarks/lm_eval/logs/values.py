"""Samples' values in the harness's logs, for metrics that a whole benchmark's number is made of.

The harness logs what its aggregation is given: ``f1: [gold, chosen]``, ``word_perplexity: [log-likelihood,
words]``, ``bleu: [reference, answer]``. Whoever aggregates its logs again needs these; this program keeps
statistics of them instead, from which they can't be told.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tasks.benchmarks.lm_eval.logs.samples import LogRow, likelihoods_of
from tasks.benchmarks.lm_eval.render.fields import Fields, gold_indices

OF_DOCUMENTS: Final[Mapping[str, Callable[[str], int]]] = {
    "word_perplexity": lambda text: len(re.split(r"\s+", text)),
    "byte_perplexity": lambda text: len(text.encode("utf-8", "surrogatepass")),
    "bits_per_byte": lambda text: len(text.encode("utf-8", "surrogatepass")),
}
OF_CHOICES: Final = ("f1", "mcc", "brier_score", "likelihood")
OF_TEXTS: Final = ("bleu", "chrf", "chrf++", "ter", "f1", "mcc", "brier_score", "likelihood", "perplexity")


def sample_values(row: LogRow, target: Any, fields: Fields) -> dict[str, Any]:
    """The values of a sample's corpus metrics; of others, and where a request failed, none."""
    kind = fields.config.get("output_type", "generate_until")
    named = list(row["metrics"])
    if not _answered(row):
        return {}
    if kind == "multiple_choice":
        return _of_choices([name for name in named if name in OF_CHOICES], row, target, fields)
    if kind == "loglikelihood_rolling":
        (ll, *_), _ = likelihoods_of(row)
        return {name: [ll, OF_DOCUMENTS[name](str(target))] for name in named if name in OF_DOCUMENTS}
    if kind == "loglikelihood":
        (ll, *_), _ = likelihoods_of(row)
        return {name: ll for name in named if name == "perplexity"}
    answer = filtered_responses(row, fields.config)[0] if row["filtered_resps"] else None
    return {name: [_gold(row, target, fields), answer] for name in named if name in OF_TEXTS}


def filtered_responses(row: LogRow, config: Mapping[str, Any]) -> list[Any]:
    """What the filter left of a generation: one answer, or the list of them where no step took the first."""
    found: list[Any] = row["filtered_resps"]
    pipelines = config.get("filter_list") or ()
    steps = next((one.get("filter") or () for one in pipelines if one.get("name") == row["filter"]), None)
    takes_first = steps is None or any(step.get("function") == "take_first" for step in steps)
    return found if takes_first or (len(found) == 1 and isinstance(found[0], list)) else [found]


def _answered(row: LogRow) -> bool:
    return all(answer is not None for answers in row["resps"] for answer in answers) and bool(row["resps"])


def _of_choices(names: Sequence[str], row: LogRow, target: Any, fields: Fields) -> dict[str, Any]:
    if not names:
        return {}
    choices = [str(choice) for choice in fields.choices(row["doc"])]
    lls = np.asarray(likelihoods_of(row)[0][: len(choices)], dtype=np.float64)
    question = fields.text(row["doc"]) if fields.config.get("doc_to_text") is not None else ""
    gold: Any = question if isinstance(question, int) else target
    gold = gold_indices(gold, choices) if isinstance(gold, list) else gold_indices(gold, choices)[0]
    shifted = np.exp(lls - lls.max())
    values: dict[str, Any] = {
        "f1": [gold, int(np.argmax(lls))],
        "mcc": [gold, int(np.argmax(lls))],
        # A numpy array is written as its text there.
        "brier_score": [gold, str(shifted / shifted.sum())],
        "likelihood": [gold, lls.tolist()],
    }
    return {name: values[name] for name in names}


def _gold(row: LogRow, target: Any, fields: Fields) -> Any:
    if fields.config.get("doc_to_choice") is not None and isinstance(target, int):
        return fields.choices(row["doc"])[target]
    return target if isinstance(target, list) else str(target)
