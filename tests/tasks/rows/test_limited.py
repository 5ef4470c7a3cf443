"""Where a pattern runs changes no prediction and no score; only what takes too much has none."""

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from metrics.types import Scores
from scorers.base import Batch, ModelReply, SampleScores
from scorers.config import FilterConfig, ScoringConfig
from scorers.filters import FilterPipeline
from scorers.judge.config import JudgeConfig
from tasks.rows.limited import LimitedProcessing, LimitedScorer, legible
from tasks.rows.parts import PairSetup
from tasks.rows.predictions import LimitedPipeline
from tasks.rows.scoring import statistics_batch
from tasks.sandboxes.killable import ItemTimeout
from tasks.store.schemas import STATISTICS

RUNAWAY = "a" * 40 + "!"
WORDS = [
    "the answer is ",
    "####",
    " ",
    "-",
    "1,234",
    "5.",
    "$7",
    "(A)",
    "B",
    "a",
    "\n",
    "ß",
    "٣",
    ".",
    "boxed{",
    "}",
]
SHIPPED = [
    {"function": "regex", "regex_pattern": r"#### (\-?[0-9\.\,]+)"},
    {"function": "regex", "regex_pattern": r"(-?[$0-9.,]{2,})|(-?[0-9]+)", "group_select": -1},
    {"function": "regex", "regex_pattern": r"(?i)answer is\s*(.*?)(?:\.|$)", "fallback": "[invalid]"},
    {"function": "multi_choice_regex", "regex_pattern": r"(\([A-Z]\))", "regexes_to_ignore": [r"\s+$", ","]},
]


def texts(n: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(WORDS, k=rng.randint(0, 12))) for _ in range(n)]


def no(reference: str) -> Any:
    raise LookupError(reference)


def nowhere_bounded(*_: Any) -> bool:
    return False


@pytest.mark.parametrize("step", SHIPPED, ids=lambda step: step["regex_pattern"])
def test_a_filter_gives_the_same_in_a_process_of_its_own(
    step: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = FilterConfig.model_validate({"name": "one", "filter": [step]})
    pipeline = FilterPipeline.build(config, no)
    items = [[text, text[::-1]] for text in texts(2_000)]
    docs = [{"choices": ["A", "the answer", "5."]}] * len(items)
    expected = pipeline.apply(items, docs)
    with LimitedPipeline(pipeline, config, 5.0) as limited:
        assert limited.apply(items, docs) == expected
        assert limited._processes[0]._process is None  # ordinary patterns need none
        monkeypatch.setattr("scorers.filters.pipeline.bounded", nowhere_bounded)
        assert limited.apply(items, docs) == expected


def test_a_response_is_given_up_alone_unless_its_item_is_looked_at_together() -> None:
    regex = {"function": "regex", "regex_pattern": "((?:a+)+)$"}
    items, docs = [["aa", RUNAWAY], ["b", "a"]], [{}, {}]

    def applied(*more: Any) -> list[Any]:
        config = FilterConfig.model_validate({"name": "one", "filter": [regex, *more]})
        with LimitedPipeline(FilterPipeline.build(config, no), config, 0.3) as limited:
            return limited.apply(items, docs)

    gave_up = ItemTimeout("took more than 0.3 s (item_timeout)")
    assert applied("uppercase") == [["AA", gave_up], [None, "A"]]
    assert applied("majority_vote") == [gave_up, ["a"]]


def scored(setup: PairSetup, batch: Batch) -> SampleScores:
    with LimitedScorer(setup) as scorer:
        return scorer.score(batch)


def batch_of(predictions: list[Any], references: list[str], cut: int | None = None) -> Batch:
    n = len(predictions)
    return Batch(
        item_ids=[f"i{row}" for row in range(n)],
        sample_index=np.zeros(n, dtype=np.int32),
        scored=np.array([row != cut for row in range(n)]),
        predictions=predictions,
        references=[[text] for text in references],
        docs=[{}] * n,
        responses=[None] * n,
    )


def setup_of(seconds: float = 5.0, base_dir: Path | str = ".", **scoring: Any) -> PairSetup:
    config = ScoringConfig.model_validate({"item_timeout": seconds, **scoring})
    probe = PairSetup(benchmark="b", scoring=config, filter="none", metric="", base_dir=str(base_dir))
    name = probe.scorer().get_metrics("none")[0].name
    return probe.model_copy(update={"metric": name})


ENSEMBLE = {
    "type": "ensemble",
    "members": [
        {"metric": {"metric": "exact_match", "regexes_to_ignore": ["(?s).*#### ", r"\s+$"]}, "weight": 1.0},
        {"metric": "length", "weight": 2.0},
    ],
}


@pytest.mark.parametrize(
    "scoring",
    [
        {"metric_list": [{"metric": "exact_match", "regexes_to_ignore": [",", "(?s).*#### ", r"\.$"]}]},
        {"metric_list": [{"metric": "regex_match", "pattern": r"\d+(,\d+)*"}]},
        {"scorer": ENSEMBLE, "metric_list": []},
    ],
    ids=["exact_match", "regex_match", "ensemble"],
)
def test_scores_are_the_same_row_by_row_in_a_process_of_its_own(
    scoring: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = setup_of(**scoring)
    predictions: list[Any] = [*texts(300), None]
    batch = batch_of(predictions, [*texts(150), *texts(300)[150:], "x"], cut=7)
    here = scored(setup, batch)
    monkeypatch.setattr(sys.modules["metrics.metric"], "bounded", nowhere_bounded)
    there = scored(setup, batch)
    for name in ("score", "statistics"):
        np.testing.assert_array_equal(getattr(here.scores, name), getattr(there.scores, name))
    np.testing.assert_array_equal(here.scored, there.scored)
    np.testing.assert_array_equal(here.codes, there.codes)
    assert (here.scores.details, list(here.errors)) == (there.scores.details, list(there.errors))


@pytest.mark.parametrize("answers", [[RUNAWAY], ["aa", RUNAWAY, "b"]])
def test_a_row_that_takes_too_much_is_unscored_with_the_reason(answers: list[str]) -> None:
    setup = setup_of(0.3, metric_list=[{"metric": "regex_match", "pattern": "^(a+)+$"}])
    found = scored(setup, batch_of(answers, ["x"] * len(answers)))
    lost = answers.index(RUNAWAY)
    assert found.errors[lost] == "took more than 0.3 s (item_timeout)"
    assert found.scored.tolist() == [row != lost for row in range(len(answers))]
    assert [value for value in found.scores.score.tolist() if value == value] == [1.0, 0.0][
        : len(answers) - 1
    ]


def test_a_reply_of_a_judge_that_takes_too_much_to_read_is_an_error() -> None:
    judge = JudgeConfig.model_validate(
        {
            "type": "llm_judge",
            "judges": ["j"],
            "prompt": "{{ prediction }}",
            "parse": {"type": "regex", "pattern": "^((?:a+)+)$", "choices": {"aa": 1.0}},
        }
    )
    replies = {0: ModelReply("aa"), 1: ModelReply(RUNAWAY), 2: ModelReply(None, "refused")}
    found = legible(judge, replies, 0.3)
    assert (found[0], found[2]) == (replies[0], replies[2])
    assert found[1] == ModelReply(None, "reading the reply took more than 0.3 s (item_timeout)")


@pytest.mark.services
def test_a_formula_that_never_ends_is_unscored_and_those_beside_it_have_their_verdicts() -> None:
    setup = setup_of(2.0, metric_list=["math_match"])
    answers = [r"\boxed{9^{9^{9^{9}}}}", "0.5", r"\boxed{((10^{10})!)!}", "(" * 2_000, None]
    found = scored(setup, batch_of(answers, [r"\frac{1}{2}"] * len(answers)))
    assert found.scored.tolist() == [False, True, False, True, True]
    assert found.scores.score[found.scored].tolist() == [1.0, 0.0, 0.0]
    assert [error for error in found.errors if error] == ["took more than 2 s (item_timeout)"] * 2


GRADER = """
import signal

class limit:
    def __enter__(self):
        def ring(*_): raise TimeoutError
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.2)

    def __exit__(self, *_):
        signal.alarm(0)
"""
GRADED = """
import json
import random
from grader import limit

calls = []

def results(doc, results):
    calls.append(1)
    try:
        with limit():
            while results[0] == "loops": sum(range(9))
            verdict = 1.0
    except Exception:
        verdict = 0.0
    if results[0] == "hangs":
        while True: pass
    return {"right": verdict, "calls": len(calls), "draw": random.random(), "untold": 1}
"""


def test_process_results_that_sets_an_alarm_works_outside_the_main_thread_too(tmp_path: Path) -> None:
    """Only a main thread may; elsewhere ``signal.signal`` raises, which files take for a wrong answer."""
    (tmp_path / "grader.py").write_text(GRADER)
    (tmp_path / "graded.py").write_text(GRADED)
    metrics = ["right", "calls", "draw"]
    setup = setup_of(0.1, tmp_path, process_results="graded.py:results", metric_list=metrics)
    said = ["a", "loops", "b", "hangs", "c"]

    def process() -> tuple[list[Any], list[str | None]]:
        with LimitedProcessing(setup) as processing, pytest.warns(UserWarning, match="'untold'"):
            return processing.process(batch_of(said, ["a"] * len(said), cut=2))

    with ThreadPoolExecutor(1) as thread:
        results, errors = thread.submit(process).result()
    assert [row and row["right"] for row in results] == [1.0, 0.0, None, None, 1.0]
    assert [row and row["calls"] for row in results[:2]] == [1, 2], "the module lives as long as the step"
    assert results[0]["draw"] == random.Random(0).random()
    assert [bool(error) for error in errors] == [False, False, False, True, False]
    assert "took more than 1 s" in str(errors[3])


def test_what_a_metric_says_beside_its_number_fails_no_pair() -> None:
    """A number beyond 64 bits, half of a character, and keys that are no names."""
    said = {"parsed": 10**40, "cut": "a\ud800", "places": {(0, 3): "abc"}}
    scores = Scores(np.ones((1, 1)), None, np.ones(1), [said])
    scored = SampleScores(scores, np.array([True]), np.zeros(1, dtype=np.int64), [None])
    ids = {"item_id": ["a"], "doc_id": [0], "sample_index": [0], "outcome": ["answered"]}
    batch = statistics_batch(
        pa.table(ids, schema=pa.schema([STATISTICS.field(name) for name in ids])), scored
    )
    (details,) = batch.column("details_json").to_pylist()
    assert json.loads(details) == {"parsed": str(10**40), "cut": "a?", "places": {"(0, 3)": "abc"}}
