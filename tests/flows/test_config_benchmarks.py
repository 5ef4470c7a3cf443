"""The benchmarks of this repository: each loads, fits its items, and says what it promises."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from flows.config.checks import check_templates
from flows.config.load import load_config
from flows.config.schema import EvalConfig
from scorers.base import Batch, SampleScores
from scorers.factory import build_pipelines, build_scorer
from scorers.process_results import ProcessResultsScorer
from tasks.benchmarks.open import open_benchmark
from tasks.datasets.config import field_at
from tasks.datasets.item import Rendered
from tasks.models.demo.answering import Draw, respond
from tasks.usercode.load import resolver

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "deployments" / "benchmarks"
RECORDED = ROOT.parent / "shared" / "data" / "gsm8k" / "example_model_solutions.jsonl"
CORRECT = {"6b_finetuning": 286, "6b_verification": 515, "175b_finetuning": 458, "175b_verification": 742}
NEED_DATA = BENCHMARKS / "gsm8k"
DEMOS = sorted(
    path.relative_to(BENCHMARKS).as_posix() for path in BENCHMARKS.rglob("*.yaml") if path.parent != NEED_DATA
)


def rendered(config: EvalConfig) -> list[Rendered]:
    benchmark = open_benchmark(config)
    return list(benchmark.render(benchmark.prompt_names()[0], benchmark.items()))


def scores(config: EvalConfig, rows: Sequence[Rendered], responses: Sequence[str]) -> dict[str, SampleScores]:
    """Every pair's scores of the responses, as "metric,filter"."""
    resolve = resolver(config.base_dir)
    scorer = build_scorer(config.scoring(), resolve)
    docs = [row.doc for row in rows]
    found: dict[str, SampleScores] = {}
    for pipeline in build_pipelines(config.scoring(), resolve):
        predictions = [kept[0] for kept in pipeline.apply([[response] for response in responses], docs)]
        batch = Batch(
            item_ids=[row.item.item_id for row in rows],
            sample_index=np.zeros(len(rows), dtype=np.int32),
            scored=np.ones(len(rows), dtype=np.bool_),
            predictions=predictions,
            references=[row.references for row in rows],
            docs=docs,
            responses=responses,
        )
        processed = scorer.process(batch) if isinstance(scorer, ProcessResultsScorer) else None
        for metric in scorer.get_metrics(pipeline.name):
            name = metric.name if "," in metric.name else f"{metric.name},{pipeline.name}"
            column = (
                scorer.score(batch, metric) if processed is None else scorer.column(processed, metric, batch)
            )
            found[name] = column
    return found


@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_benchmark_loads_and_renders_every_item(name: str) -> None:
    config = load_config(BENCHMARKS / name)
    benchmark = open_benchmark(config)
    items = list(benchmark.items())
    check_templates(config, items[0])
    for prompt in benchmark.prompt_names():
        assert len(list(benchmark.render(prompt, items))) == len(items)


def test_there_is_a_demo_benchmark_for_each_output_type() -> None:
    types = {load_config(BENCHMARKS / name).output_type for name in DEMOS}
    assert types == {"generate_until", "multiple_choice", "loglikelihood", "loglikelihood_rolling"}


def test_filters_and_process_results_give_the_same_six_numbers() -> None:
    by_filters = load_config(BENCHMARKS / "demo" / "gsm8k.yaml")
    by_function = load_config(BENCHMARKS / "demo" / "gsm8k_process_results.yaml")
    rows = rendered(by_filters)
    responses = [respond(row.prompts[0], Draw(temperature=0), 0.3) for row in rows]
    responses[:3] = ["I don't know.", "It is $1,234.50.", "#### 29.\n#### 30"]
    first, second = scores(by_filters, rows, responses), scores(by_function, rows, responses)
    assert set(first) == set(second)
    assert len(first) == 6
    for name in first:
        np.testing.assert_array_equal(
            first[name].scores.statistics, second[name].scores.statistics, err_msg=name
        )
    strict = first["exact_match,strict-match"].scores.score
    assert strict is not None
    assert 0.3 < strict.mean() < 0.9


@pytest.mark.skipif(not RECORDED.is_file(), reason=f"the recorded solutions are not there: {RECORDED}")
@pytest.mark.parametrize("model", CORRECT)
def test_recorded_solutions_are_scored_sample_for_sample_as_recorded(model: str) -> None:
    config = load_config(BENCHMARKS / "gsm8k" / "recorded.yaml", [f"dataset.path={RECORDED}"])
    (replayed,) = [entry for entry in config.models if entry.name == model]
    rows = rendered(config)
    responses = [field_at(row.item.data, replayed.config.field) for row in rows]
    config = config.model_copy(update={"filter_list": (config.filters()[0],)})
    found = scores(config, rows, responses)["exact_match,final-answer"].scores.score
    recorded = [json.loads(line)[model]["is_correct"] for line in RECORDED.read_text().splitlines()]
    np.testing.assert_array_equal(found, np.array(recorded, dtype=float))
    assert found.sum() == CORRECT[model]
