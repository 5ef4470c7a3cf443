"""A benchmark is the same alone and in company, in whatever order: files of the harness as they are."""

import json
import os
import random
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flows.config.load import load_configs, validate_configs
from flows.config.schema import EvalConfig
from flows.plan.fields import benchmark_fields
from scorers.base import Batch
from scorers.factory import build_pipelines, build_scorer
from scorers.process_results import ProcessResultsScorer
from tasks.benchmarks.lm_eval.shapes import RowMaker
from tasks.benchmarks.lm_eval.trial import try_definition
from tasks.benchmarks.open import open_benchmark
from tasks.usercode.load import resolver
from tasks.usercode.surroundings import Generators

VERBATIM = Path(__file__).parents[3] / "fixtures" / "harness"
FILES = {
    "gpqa_main": "gpqa_n_shot/gpqa_main_n_shot.yaml",
    "gpqa_diamond": "gpqa_n_shot/gpqa_diamond_n_shot.yaml",
    "xcopa_et": "xcopa/default_et.yaml",
    "xcopa_ht": "xcopa/default_ht.yaml",
    "copal_id": "copal_id/standard.yaml",
    "mmlu_pro": "mmlu_pro/mmlu_pro_biology.yaml",
    "eq_bench": "eq_bench/default.yaml",
}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EvalConfig]:
    """The benchmarks with made rows in files of their own."""
    folder = tmp_path_factory.mktemp("made")
    found = {}
    for seed, (name, file) in enumerate(FILES.items()):
        (config,) = load_configs(VERBATIM / file, (), strict=False)
        assert config.harness is not None
        trial = try_definition(config.harness, config.base_dir, config.scoring())
        assert trial.ran, trial.reason
        files = {}
        for split in ("train", "validation", "test"):
            rows = RowMaker(trial.shape, 10 * seed + len(split), trial.guesses).rows(14)
            (folder / f"{name}-{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
            files[split] = str(folder / f"{name}-{split}.jsonl")
        wrapped = {
            "include": str(VERBATIM / file), "task": name, "dataset_path": "json", "dataset_name": None,
            "dataset_kwargs": {"data_files": files},
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(wrapped))
        (found[name],) = load_configs(folder / f"{name}.yaml", ("models=[m]",), strict=True)
    return found


def numbers(config: EvalConfig) -> Any:
    """Everything that is asked, and what the scores of fixed answers are."""
    benchmark = open_benchmark(benchmark_fields(config))
    items = list(benchmark.items())
    asked = [
        (one.prompts, one.continuations, one.references, dict(one.doc))
        for prompt in benchmark.prompt_names()
        for one in benchmark.render(prompt, items)
    ]
    rendered = list(benchmark.render(benchmark.prompt_names()[0], items))
    if rendered[0].kind != "generate":
        return asked
    resolve = resolver(config.base_dir, own=True)
    scorer, scores = build_scorer(config.scoring(), resolve), []
    for pipeline in build_pipelines(config.scoring(), resolve):
        replies = [[f"The answer is ({'ABCD'[at % 4]}) joy: {at} fear: 1"] for at in range(len(rendered))]
        predictions = [own[0] for own in pipeline.apply(replies, [dict(one.doc) for one in rendered])]
        batch = _batch(rendered, predictions)
        for metric in scorer.get_metrics(pipeline.name):
            if isinstance(scorer, ProcessResultsScorer):
                with Generators().drawn_from():
                    processed = scorer.process(batch)
                scored = scorer.column(processed, metric, batch)
            else:
                scored = scorer.score(batch, metric)
            scores.append((pipeline.name, metric.name, scored.scores.score.tolist()))
    return asked, scores


def _batch(rendered: Any, predictions: list[Any]) -> Batch:
    return Batch(
        item_ids=[one.item.item_id for one in rendered],
        sample_index=np.zeros(len(rendered), dtype=np.int32),
        scored=np.ones(len(rendered), dtype=np.bool_),
        predictions=predictions,
        references=[list(one.references) for one in rendered],
        docs=[dict(one.doc) for one in rendered],
        responses=[""] * len(rendered),
    )


def test_order_and_company_change_nothing(configs: dict[str, EvalConfig]) -> None:
    alone = {name: numbers(config) for name, config in configs.items()}
    draw = random.Random(18)
    for _ in range(4):
        names = [*configs, *draw.sample(list(configs), 3)]
        draw.shuffle(names)
        for name in names:
            assert numbers(configs[name]) == alone[name], (name, names)
    with ThreadPoolExecutor(4) as threads:
        names = [*configs] * 2
        draw.shuffle(names)
        together = list(threads.map(lambda name: numbers(configs[name]), names))
    assert all(found == alone[name] for name, found in zip(names, together, strict=True))


def test_the_documents_of_two_openings_are_the_same(configs: dict[str, EvalConfig]) -> None:
    """The steps that load and that render open the benchmark each for itself."""
    first, second = (open_benchmark(benchmark_fields(configs["gpqa_main"])) for _ in range(2))
    items = list(first.items())
    assert items == list(second.items())
    prompts = [one.prompts[0] for one in second.render("default", items)]
    assert all(str(item.data["choice1"]) in prompt for item, prompt in zip(items, prompts, strict=True))
    assert len({item.data["answer"] for item in items}) > 1, "they are shuffled"


def test_harness_files_as_they_are_resolve_import_and_run() -> None:
    entries = validate_configs([VERBATIM / file for file in FILES.values()])
    assert [(entry["status"], entry["reason"], entry["warnings"]) for entry in entries] == [
        ("ok", None, [])
    ] * len(FILES)


DRAWING = """
import random
import numpy as np

own = random.Random(7)

def draw(doc, results):
    return {"module": own.random(), "python": random.random(), "numpy": float(np.random.rand())}
"""


def test_what_process_results_draws_is_the_same_alone_and_in_company(tmp_path: Path) -> None:
    """At the module's level, and from the global generators, which others draw from in between."""
    (tmp_path / "draw.py").write_text(DRAWING)
    setup = {"metric_list": [{"metric": name} for name in ("module", "python", "numpy")]}
    definition = {
        "task": "drawing", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
        "test_split": "test", "doc_to_text": "{{q}}", "doc_to_target": "a", **setup,
    }  # fmt: skip
    (tmp_path / "rows.jsonl").write_text('{"q": "1"}\n{"q": "2"}\n')
    text = yaml.safe_dump(definition) + "process_results: !function draw.draw\n"
    (tmp_path / "drawing.yaml").write_text(text)
    (config,) = load_configs(tmp_path / "drawing.yaml", ("models=[m]",))

    def values(others: int) -> list[Any]:
        """What two batches come to, with so many draws of others before and between them."""
        benchmark = open_benchmark(benchmark_fields(config))
        rendered = list(benchmark.render(benchmark.prompt_names()[0], list(benchmark.items())))
        scorer = build_scorer(config.scoring(), resolver(config.base_dir, own=True))
        assert isinstance(scorer, ProcessResultsScorer)
        generators, found = Generators(), []
        for _ in range(2):
            for _ in range(others):
                random.random(), np.random.rand()
            with generators.drawn_from():
                found.append(scorer.process(_batch(rendered, ["a", "b"])))
        return found

    assert values(0) == values(3) == values(11)
    draws = [row["python"] for batch in values(0) for row in batch]
    assert len(set(draws)) == 4, "the second batch goes on where the first one was"


STATEFUL = """
import os, random, sys
import numpy as np
import helpers
from .constants import NAME

random.seed({seed}); np.random.seed({seed})          # as importing it alone would
rng, calls, seen = random.Random({seed}), [], {{}}
os.environ["WHOSE"] = NAME
random.shared = NAME                                  # on somebody else's module
sys.path.insert(0, os.path.dirname(__file__))

def process_docs(docs):
    order = list(range(len(docs)))
    random.shuffle(order); rng.shuffle(order); np.random.shuffle(order)
    return docs.select(order)

def text(doc):
    calls.append(doc["q"])
    doc["choices"].append(len(calls))                 # a list inside of the row
    doc["q"] = "spoilt"
    return f"{{NAME}} {{helpers.WORD}} {{len(calls)}} {{rng.random()}} {{calls[-1]}}"

def target(doc):
    return f"{{doc['q']}} {{np.random.rand():.6f}} {{len(seen)}}"

def results(doc, results):
    seen[doc["q"]] = True
    return {{"own": rng.random() + len(seen), "all": random.random() + float(np.random.rand())}}
"""
STATEFUL_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: rows.jsonl, train: rows.jsonl}}}}
test_split: test
training_split: train
num_fewshot: 2
process_docs: !function utils.process_docs
doc_to_text: !function utils.text
doc_to_target: !function utils.target
process_results: !function utils.results
metric_list: [{{metric: own}}, {{metric: all}}]
"""


def stateful(folder: Path, seed: int) -> EvalConfig:
    """A benchmark whose files have the names that others' have, and leave traces wherever they can."""
    folder.mkdir()
    name = folder.name
    (folder / "utils.py").write_text(STATEFUL.format(seed=seed))
    (folder / "helpers.py").write_text(f"WORD = 'of {name}'\n")
    (folder / "constants.py").write_text(f"NAME = {name!r}\n")
    rows = [{"q": f"{name} {at}", "choices": [at]} for at in range(6)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / f"{name}.yaml").write_text(STATEFUL_TASK.format(name=name))
    (config,) = load_configs(folder / f"{name}.yaml", ("models=[m]",))
    return config


def test_benchmarks_that_leave_traces_everywhere_change_no_number_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(os.environ, "WHOSE", "nobody's")
    monkeypatch.setattr(random, "shared", "nobody's", raising=False)
    configs = {name: stateful(tmp_path / name, seed) for seed, name in enumerate(("one", "two", "three"))}
    draw, found = random.Random(18), defaultdict[str, list[Any]](list)
    for _ in range(3):
        names = [*configs, *configs]
        draw.shuffle(names)
        for name in names:
            random.seed(draw.random())  # whoever else draws from them
            found[name].append(numbers(configs[name]))
    for name, all_of_it in found.items():
        for one in all_of_it:
            assert one == all_of_it[0], name
        assert f"of {name}" in str(all_of_it[0])
        assert "spoilt" not in str(all_of_it[0])
    assert all(found["one"][0] != found[name][0] for name in ("two", "three"))
