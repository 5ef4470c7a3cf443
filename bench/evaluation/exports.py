"""How long the exports of a large run take: ``python -m bench.evaluation.exports [RESPONSES]``."""

import argparse
import resource
import tempfile
from functools import partial
from pathlib import Path

from bench.evaluation.scale import answers, items, stream, timed
from tasks.reporting.exports import AnswerPart, write_evaluation_results, write_responses
from tasks.rows.parts import Origin, Part
from tasks.store.schemas import REQUESTS, RESPONSES, STATISTICS
from tasks.store.storage import Store
from tasks.verdicts.config import EvaluationMethodConfig
from tasks.verdicts.methods import build_method
from tasks.verdicts.rows import JudgedPart, evaluate


def main(total: int, folder: Path) -> None:
    store, origin = Store(str(folder)), Origin("model", "plain", {"model_id": "model"})
    asked = partial(store.batches, store.write("render", "0" * 64, REQUESTS, stream(items, 0, total)))
    answered = partial(store.batches, store.write("infer", "0" * 64, RESPONSES, stream(answers, 0, total)))
    method = build_method(EvaluationMethodConfig.model_validate("exact_match"), lambda reference: None)
    verdicts = store.write("score", "0" * 64, STATISTICS, evaluate(method, origin, asked, answered))
    part = Part(origin, partial(store.batches, verdicts), asked, answered, method=method.name)
    responses, results = folder / "responses.jsonl", folder / "evaluation_results.jsonl"
    timed(responses.name, total, lambda: write_responses(responses, [AnswerPart(origin, asked, answered)]))
    timed(results.name, total, lambda: write_evaluation_results(results, [JudgedPart(part, [method.name])]))
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2:.2f} GB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("responses", nargs="?", type=int, default=200_000)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args().responses, Path(folder))
