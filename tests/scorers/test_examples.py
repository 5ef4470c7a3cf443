"""The example configs of every scorer load, and score the benchmark's own solutions as they should."""

import json
from pathlib import Path

import numpy as np
import pytest

from flows.config.load import load_config
from scorers.base import Batch, ModelReply
from scorers.factory import build_pipelines, build_scorer
from tasks.usercode.load import resolver

FOLDER = Path(__file__).resolve().parents[2] / "deployments" / "benchmarks" / "scorers"
PROBLEMS = [
    json.loads(line) for line in (FOLDER.parent / "demo" / "problems.jsonl").read_text("utf-8").splitlines()
]


def example(name):
    config = load_config(FOLDER / f"{name}.yaml", []).scoring()
    return config, build_scorer(config, resolver(FOLDER))


def solved(config, number_only=False):
    """Each filter's batch of the reference solutions, as if a model had written them."""
    texts = [problem["answer"] for problem in PROBLEMS]
    references = [[text.rpartition("#### ")[2] if number_only else text] for text in texts]
    for pipeline in build_pipelines(config, resolver(FOLDER)):
        yield (
            pipeline.name,
            Batch(
                item_ids=[str(row) for row in range(len(texts))],
                sample_index=np.zeros(len(texts), dtype=np.int32),
                scored=np.ones(len(texts), dtype=np.bool_),
                predictions=[item[0] for item in pipeline.apply([[text] for text in texts], PROBLEMS)],
                references=references,
                docs=PROBLEMS,
                responses=texts,
            ),
        )


def scores_of(scorer, batch, name, filter_name="none", replies=()):
    metric = next(one for one in scorer.get_metrics(filter_name) if one.name == name)
    return scorer.score(batch, metric, replies)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_loads_and_has_metrics(path):
    config, scorer = example(path.stem)
    assert all(scorer.get_metrics(entry.name) for entry in config.filters)


def test_reward_example():
    config, scorer = example("reward_model")
    ((name, batch),) = solved(config)
    rewards = scores_of(scorer, batch, "reward", name).scores.score
    assert ((rewards >= 0) & (rewards <= 1)).all()
    assert len(set(rewards.tolist())) > 1


def test_ensemble_example_is_three_quarters_right_and_a_quarter_short():
    config, scorer = example("ensemble")
    ((name, batch),) = solved(config, number_only=True)
    scores = scores_of(scorer, batch, "ensemble", name).scores
    brevity = np.array([detail["reward"] for detail in scores.details])
    assert all(detail["exact_match"] == 1 for detail in scores.details)
    np.testing.assert_allclose(scores.score, 0.75 + 0.25 * brevity)


def test_agreement_example_is_full_on_clean_answers():
    config, scorer = example("agreement")
    batches = dict(solved(config))
    assert set(batches) == {"strict-match", "flexible-extract"}
    assert scores_of(scorer, scorer.combine(batches), "filter_agreement", "*").scores.score.mean() == 1


def test_user_example_counts_as_many_steps_as_the_solution_has():
    config, scorer = example("user_scorer")
    ((name, batch),) = solved(config)
    assert scores_of(scorer, batch, "as_many_steps", name).scores.score.mean() == 1
    assert scores_of(scorer, batch, "steps", name).scores.score.min() >= 1


def test_judge_example_asks_two_judges_and_corrects_their_rate():
    config, _ = example("llm_judge")
    lines = (FOLDER / "calibration.jsonl").read_text("utf-8").splitlines()
    judge = config.scorer.with_calibration(json.loads(line) for line in lines)
    scorer = build_scorer(config.model_copy(update={"scorer": judge}), resolver(FOLDER))
    ((name, batch),) = solved(config)
    asked = scorer.requests(batch, scorer.get_metrics(name)[-1])
    assert [request.judge for request in asked[:2]] == ["judge-a", "judge-b"]
    assert "Reference: " + PROBLEMS[0]["answer"] in asked[0].prompt[1]["content"]
    replies = [ModelReply("Grade: correct")] * len(asked)
    assert scores_of(scorer, batch, "llm_judge", name, replies).scores.score.mean() == 1
    corrected = next(one for one in scorer.get_metrics(name) if one.name == "llm_judge_corrected")
    assert (scorer.calibration.sensitivity, scorer.calibration.specificity) == (11 / 12, 7 / 8)
    assert corrected.aggregation.value(np.full((4, 1), 0.5), None) == pytest.approx(
        (0.5 + 7 / 8 - 1) / (11 / 12 + 7 / 8 - 1)
    )
