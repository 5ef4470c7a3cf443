"""A million responses of 1 KB: three built-in methods, grouped by two facets, in bounded memory.

``python -m bench.evaluation.scale [RESPONSES]`` prints responses a second (CPU seconds, one core), the
time of the grouping with few and with ten thousand facet values, and the peak of resident memory.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from metrics.config import StatisticsConfig
from tasks.reduction.verdict_metrics import aggregate_metric, build_evaluation_metric, reduce_metric
from tasks.rows.parts import Origin, Part
from tasks.store.schemas import ITEM_ROWS, REQUESTS, RESPONSES, STATISTICS
from tasks.store.storage import ArtifactRef, Store
from tasks.verdicts.config import EvaluationMethodConfig, EvaluationMetricConfig
from tasks.verdicts.methods import build_method
from tasks.verdicts.rows import evaluate

MODELS = ("first", "second")
PARTITION = 50_000
BATCH = 4_096
SHORT = {"name": "short", "type": "length_check", "params": {"max_length": 2000}}
METHODS = ("exact_match", "contains", SHORT)
LIMIT_GB, LIMIT_RATE = 1.5, 50_000


def items(start: int, stop: int) -> pa.RecordBatch:
    """Requests whose documents have a subject of ten values and a topic of ten thousand."""
    numbers = range(start, stop)
    columns = {
        "item_id": [f"item-{n}" for n in numbers],
        "doc_id": list(numbers),
        "item_digest": [f"{n:064x}" for n in numbers],
        "cluster": pa.nulls(stop - start, pa.string()),
        "references_json": [f'["{n}"]' for n in numbers],
        "doc_json": [f'{{"question":"{n}","subject":"s{n % 10}","topic":"t{n % 10_000}"}}' for n in numbers],
    }
    fixed = {
        "prompt_template": "plain", "kind": "generate", "chat": False, "prompts": [""], "continuations": [""],
        "unconditional": [], "gold": [], "choices": [], "first_sample": 0,
    }  # fmt: skip
    return _batch(columns, fixed, stop - start, REQUESTS)


def answers(start: int, stop: int) -> pa.RecordBatch:
    """Responses of 1 KB, four of five of which are right but for the white space around them."""
    numbers = range(start, stop)
    texts = [f"{n}" + " " * 1017 if n % 5 else f"{n:>7} " + "x" * 1016 for n in numbers]
    columns = {
        "item_id": [f"item-{n}" for n in numbers],
        "doc_id": list(numbers),
        "sample_id": [f"item-{n}_sample_0" for n in numbers],
        "sample_index": np.zeros(stop - start, dtype=np.int32),
        "request_key": [f"{n:064x}" for n in numbers],
        "response": texts,
    }
    fixed = {"prompt": "?", "status": "ok", "attempts": 1}
    return _batch(columns, fixed, stop - start, RESPONSES)


def _batch(columns: dict, fixed: dict, rows: int, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        values = columns.get(field.name, [fixed.get(field.name)] * rows)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        arrays.append(pa.array(values, plain).cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def stream(make: Callable[[int, int], pa.RecordBatch], start: int, stop: int) -> Iterator[pa.RecordBatch]:
    for first in range(start, stop, BATCH):
        yield make(first, min(first + BATCH, stop))


def timed(name: str, rows: int, work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    seconds = time.process_time() - started
    print(f"{name:<46} {seconds:8.2f} s {rows / seconds:12,.0f} responses/s")
    return rows / seconds


def main(total: int, folder: Path) -> None:
    store = Store(str(folder))
    per_model = total // len(MODELS)
    bounds = [(start, min(start + PARTITION, per_model)) for start in range(0, per_model, PARTITION)]
    requests = [store.write("render", f"{s:064d}", REQUESTS, stream(items, s, e)) for s, e in bounds]
    responses = [store.write("infer", f"{s:064d}", RESPONSES, stream(answers, s, e)) for s, e in bounds]
    print(f"{total:,} responses of 1 KB, {len(MODELS)} models, {len(bounds)} partitions each")
    parts: list[Part] = []
    rates = {}
    for entry in METHODS:
        method = build_method(EvaluationMethodConfig.model_validate(entry), lambda reference: None)

        def score(method=method) -> None:
            for model in MODELS:
                for number, (asked, answered) in enumerate(zip(requests, responses, strict=True)):
                    origin = Origin(model, "plain", {"model_id": model})
                    sources = partial(store.batches, asked), partial(store.batches, answered)
                    key = f"{method.name}{model}{number}"
                    ref = store.write("score", key, STATISTICS, evaluate(method, origin, *sources))
                    parts.append(Part(origin, partial(store.batches, ref), *sources, method=method.name))

        rates[method.name] = timed(f"score {method.name}", total, score)
    for facet in ("item.subject", "item.topic"):
        config = EvaluationMetricConfig(name="mean", type="mean", facets=("metadata.model_id", facet))
        metric = build_evaluation_metric(config, lambda reference: None, ())
        refs: list[ArtifactRef] = []

        def reduce(metric=metric, refs=refs, facet=facet) -> None:
            refs.append(store.write("reduce", facet, ITEM_ROWS, reduce_metric(metric, "bench", parts)))

        def aggregate(metric=metric, refs=refs) -> None:
            list(aggregate_metric(metric, "bench", store.batches(refs[0]), StatisticsConfig()))

        timed(f"reduce by model and {facet}", total * len(METHODS), reduce)
        timed(f"aggregate by model and {facet}", total * len(METHODS), aggregate)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    print(f"peak resident memory {peak:.2f} GB (limit {LIMIT_GB} GB)")
    met = peak < LIMIT_GB and rates["exact_match"] >= LIMIT_RATE
    print("met" if met else "NOT met", f"(exact_match at least {LIMIT_RATE:,} responses/s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("responses", nargs="?", type=int, default=1_000_000)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args().responses, Path(folder))
