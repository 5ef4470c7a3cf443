"""What judges are asked, attempt by attempt, and how their calibration is judged."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from metrics.errors import ConfigError
from scorers.base import Batch, ModelReply
from scorers.config import ScoringConfig
from scorers.grading import GradingPrompt
from scorers.judge.scorer import LLMJudgeScorer
from tasks.ask import AskSetup, asked_rows, replies_of, sampling_text, score_calibration
from tasks.caching import Workspace
from tasks.rows.limited import LimitedScorer
from tasks.rows.parts import PairSetup, calibrated_scorer, pending
from tasks.store.keys import Accounts, Answered, Step
from tasks.store.schemas import REQUESTS, RESPONSES
from tasks.store.storage import Store

PEOPLE = [
    {"human": True, "response": "4"},
    {"human": False, "response": "5"},
    {"human": True, "response": "4"},
]
SAMPLING = {"temperature": 0.5}


def scoring(**judge):
    fields = {
        "type": "llm_judge",
        "judges": ["one", "two"],
        "prompt": "Grade {{ response }}",
        "sample_params": SAMPLING,
        "parse": {"type": "choice", "choices": {"yes": 1, "no": 0}},
    }
    return ScoringConfig(scorer=fields | judge, metric_list=())


def setup(judge="one", attempt=0, metric="llm_judge", **fields):
    return AskSetup(
        benchmark="b",
        scoring=scoring(**fields),
        filter="none",
        metric=metric,
        base_dir=".",
        judge=judge,
        sampling=sampling_text(SAMPLING),
        attempt=attempt,
    )


def batch_of(*responses, first=0):
    n = len(responses)
    return Batch(
        item_ids=[f"item-{first + row}" for row in range(n)],
        sample_index=np.zeros(n, dtype=np.int32),
        scored=np.array([response is not None for response in responses], dtype=np.bool_),
        predictions=list(responses),
        references=[[]] * n,
        docs=[{}] * n,
        responses=list(responses),
    )


def rows_of(batches):
    return [row for batch in batches for row in batch.to_pylist()]


def said(*texts):
    """Replies by place; None: not answered, and False: failed."""
    return {
        place: ModelReply(text or None, None if text else "HTTP 500")
        for place, text in enumerate(texts)
        if text is not None
    }


def test_first_attempt_asks_each_judge_about_every_scored_row():
    batches = [batch_of("a", None, "b"), batch_of("c", first=3)]
    one, two = (rows_of(asked_rows(setup(judge), batches, {})) for judge in ("one", "two"))
    assert [row["prompts"] for row in one] == [["Grade a"], ["Grade b"], ["Grade c"]]
    assert [row["doc_id"] for row in one] == [0, 2, 4]
    assert [row["doc_id"] for row in two] == [1, 3, 5]
    assert {row["first_sample"] for row in one} == {0}
    assert len({row["item_id"] for row in one + two}) == 6


def test_requests_of_another_sampling_are_another_model_s():
    other = setup().model_copy(update={"sampling": sampling_text({})})
    assert rows_of(asked_rows(other, [batch_of("a")], {})) == []


def test_second_attempt_asks_what_could_not_be_read_and_nothing_that_failed():
    batches = [batch_of("a", "b"), batch_of("c", first=2)]
    replies = said("yes", "who knows", "who knows", False, None, "no")
    again = rows_of(asked_rows(setup("one", attempt=1), batches, replies))
    assert [(row["doc_id"], row["first_sample"]) for row in again] == [(2, 1)]
    again = rows_of(asked_rows(setup("two", attempt=1), batches, replies))
    assert [(row["doc_id"], row["first_sample"]) for row in again] == [(1, 1)]


def test_prompts_are_rendered_only_to_be_sent(monkeypatch):
    rendered = []
    render = GradingPrompt.render
    monkeypatch.setattr(GradingPrompt, "render", lambda *given: rendered.append(given[-1]) or render(*given))
    batches = [batch_of("a", None, "b"), batch_of("c", first=3)]
    assert len(rows_of(asked_rows(setup("one"), batches, {}))) == 3
    assert len(rendered) == 3
    replies = said(*["yes"] * 6)
    assert rows_of(asked_rows(setup("one", attempt=1), batches, replies)) == []
    with LimitedScorer(setup()) as scorer:
        counts = [scorer.requests(batch) for batch in batches]
        scored = scorer.score(batches[0], list(replies.values())[:4])
    assert (counts, scored.scored.tolist(), len(rendered)) == ([4, 2], [True, False, True], 3)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"repeats": 3},
        {"pairwise": {"baseline": "b"}, "prompt": "{{ answer_a }} or {{ answer_b }}"},
        {"pairwise": {"baseline": "b", "swap": False}, "prompt": "{{ answer_a }} or {{ answer_b }}"},
    ],
)
def test_requests_are_counted_as_they_are_made(fields):
    pair = setup(**fields)
    scorer, metric = pair.built()
    batch = batch_of("a", None, "b", "c")
    batch = replace(batch, predictions=["a", None, None, "c"], lacking=[None, None, "refused", None])
    requests = scorer.requests(batch, metric)
    assert scorer.count_requests(batch, metric) == len(requests) > 0
    score = scorer.score(batch, metric, [ModelReply("yes")] * len(requests))
    assert score.scores.score[[0, 3]].tolist() == (
        [0.5] * 2 if fields.get("pairwise") == {"baseline": "b"} else [1] * 2
    )


def test_each_attempt_has_a_sample_index_of_its_own():
    replies = said("who knows", "yes")
    indices = [
        rows_of(asked_rows(setup("one", attempt, repeats=1), [batch_of("a")], replies))[0]["first_sample"]
        for attempt in range(4)
    ]
    assert indices == [0, 1, 2, 3]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def replied(store, name, *rows, finish="stop"):
    """An answered inference of (place, text or None)."""
    full = [
        {field.name: None for field in RESPONSES}
        | {
            "item_id": str(place),
            "doc_id": place,
            "sample_id": f"{place}_sample_0",
            "sample_index": 0,
            "request_key": f"{name[0]}{place}",
            "prompt": "Grade",
            "attempts": 1,
            "status": "ok" if text is not None else "infra_error",
            "response": text,
            "finish_reason": finish,
            "error": None if text is not None else "HTTP 500",
        }
        for place, text in rows
    ]
    ref = store.write("infer", name, RESPONSES, [pa.RecordBatch.from_pylist(full, schema=RESPONSES)])
    return Answered(responses=ref, accounts=Accounts(tally={}))


def asked(store, name):
    return store.write("ask", name, REQUESTS, [])


@pytest.mark.parametrize("finish", ["length", "max_tokens"])
def test_reply_that_was_cut_off_is_known_as_such(store, finish):
    attempts = [
        replied(store, "a" * 64, (0, "yes, but"), finish=finish),
        replied(store, "b" * 64, (1, "yes")),
    ]
    found = replies_of(store, [asked(store, "c" * 64)] * 2, attempts)
    assert {place: reply.cut for place, reply in found.items()} == {0: True, 1: False}


def test_later_attempt_replaces_an_answer_but_its_failure_takes_nothing_back(store):
    attempts = [
        replied(store, "a" * 64, (0, "who knows"), (1, None), (2, "yes")),
        replied(store, "b" * 64, (0, "no"), (1, "yes"), (2, None)),
    ]
    found = replies_of(store, [asked(store, "c" * 64)] * 2, attempts)
    assert {place: reply.text for place, reply in found.items()} == {0: "no", 1: "yes", 2: "yes"}


def test_calibration_is_judged_and_unreadable_rows_do_not_count(store):
    pair = PairSetup(
        benchmark="b",
        scoring=scoring(judges=["one"], calibration=PEOPLE),
        filter="none",
        metric="llm_judge",
        base_dir=".",
    )
    workspace = Workspace(store=store.uri, journal_dir="unused")
    answers = [replied(store, "d" * 64, (0, "yes"), (1, "no"), (2, "who knows"))]
    judged = score_calibration.fn(
        Step(name="score the calibration", identity={}, setup=pair),
        [asked(store, "e" * 64)],
        answers,
        workspace=workspace,
    )
    assert judged.rows == 3
    scorer = calibrated_scorer(pair, store, judged)
    assert isinstance(scorer, LLMJudgeScorer)
    assert scorer.calibration is not None
    assert (scorer.calibration.right, scorer.calibration.found) == (1, 1)
    assert (scorer.calibration.wrong, scorer.calibration.rejected) == (1, 1)

    silent = [replied(store, "f" * 64, (0, None), (1, "no"), (2, "who knows"))]
    nothing = score_calibration.fn(
        Step(name="score the calibration", identity={}, setup=pair),
        [asked(store, "e" * 64)],
        silent,
        workspace=workspace,
    )
    with pytest.raises(ConfigError, match="people called 0 answers right"):
        calibrated_scorer(pair, store, nothing)


def test_verdicts_that_are_given_leave_nothing_to_ask():
    given = setup(calibration=[{"human": True, "judge": True}, {"human": False, "judge": True}])
    assert pending(given.scorer()) is None
    assert pending(setup(calibration=PEOPLE).scorer()) is not None
    assert (
        pending(
            PairSetup(benchmark="b", scoring=ScoringConfig(), filter="none", metric="", base_dir=".").scorer()
        )
        is None
    )
