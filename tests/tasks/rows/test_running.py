"""How a model does while it is being asked: the first items that are settled, and one metric over them."""

import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flows.config.schema import EvalConfig, RunOptions
from flows.plan.build import make_plan
from metrics.errors import ConfigError
from tasks.models.answers.first import FIRST_ITEMS, FIRST_REQUESTS, FirstAnswers
from tasks.models.answers.segments import AnswerStore
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.identity import RequestExpansion
from tasks.models.progress import Progress, RunningFigure
from tasks.models.providers.provider import provider_of
from tasks.models.records import KeptAnswer, RequestFailure
from tasks.rows.running import RunningScore
from tasks.store.schemas import REQUESTS
from tasks.store.storage import Store

MODEL = ModelConfig(name="m")
STARTED = Progress(0, 10)


def requests(count: int) -> list[pa.RecordBatch]:
    rows = [
        {
            "item_id": f"item-{n}", "doc_id": n, "item_digest": "d", "prompt_template": "plain",
            "kind": "generate", "chat": False, "prompts": [f"{n}?"], "continuations": [""],
            "unconditional": [], "references_json": f'["{n}"]', "gold": [], "choices": [],
            "doc_json": "{}", "first_sample": 0,
        }
        for n in range(count)
    ]  # fmt: skip
    return [pa.RecordBatch.from_pylist(rows, schema=REQUESTS)]


class Asked:
    """What is asked of a model, and answers to it."""

    def __init__(self, folder: Path, items: int, samples: int = 1) -> None:
        sampling = SampleParams(num_samples=samples, temperature=1.0, seed=1)
        self.expansion = RequestExpansion.of(MODEL, sampling, folder)
        self.codec_of = lambda kind: provider_of(MODEL, folder).codec(kind, sampling)
        self.source = requests(items)
        self.kept = AnswerStore(Store(str(folder / "store"))).of_model(self.expansion.identity)
        self.keys = [[request.key for request in row] for row in self.expansion.rows(self.source[0])]
        self.failures: dict[bytes, RequestFailure] = {}

    def first(self, asked: set[bytes] | None = None) -> FirstAnswers:
        every = set(itertools.chain(*self.keys)) if asked is None else asked
        return FirstAnswers(
            self.expansion, self.codec_of, self.source, every, self.kept.snapshot, self.failures
        )

    def answer(self, item: int, sample: int = 0, text: str | None = None) -> KeptAnswer:
        said = str(item) if text is None else text
        return KeptAnswer(status="ok", key=self.keys[item][sample], response=said, attempts=1, arrived=1.0)


def settled(first: FirstAnswers) -> dict[str, list[Any]]:
    found = first.settled()
    rows = [] if found is None else [row for batch in found[1] for row in batch.to_pylist()]
    return {
        name: [row["response"] if row["status"] == "ok" else row["error"] for row in own]
        for name, own in itertools.groupby(rows, key=lambda row: row["item_id"])
    }


def test_an_item_is_settled_once_all_of_its_requests_are(tmp_path: Path) -> None:
    asked = Asked(tmp_path, items=3, samples=2)
    first = asked.first()
    assert first.settled() is None
    first.add(asked.answer(1, 0))
    first.add(asked.answer(2, 0))
    assert settled(first) == {}
    first.add(asked.answer(2, 1, "no"))
    asked.failures[asked.keys[1][1]] = RequestFailure("HTTP 503", 6)
    assert settled(first) == {"item-1": ["1", "HTTP 503"], "item-2": ["2", "no"]}


def test_what_was_kept_before_counts_where_the_rest_of_its_item_is_asked(tmp_path: Path) -> None:
    asked = Asked(tmp_path, items=3, samples=2)
    asked.kept.write([asked.answer(0, 0), asked.answer(0, 1), asked.answer(1, 0, "kept")])
    first = asked.first({asked.keys[1][1], *asked.keys[2]})
    first.add(asked.answer(1, 1))
    assert settled(first) == {"item-1": ["kept", "1"]}


@pytest.mark.parametrize(("items", "samples"), [(2 * FIRST_ITEMS, 1), (FIRST_ITEMS, 10)])
def test_so_many_items_and_requests_are_looked_at_and_no_more(
    tmp_path: Path, items: int, samples: int
) -> None:
    asked = Asked(tmp_path, items, samples)
    first = asked.first()
    for item, sample in itertools.product(range(items), range(samples)):
        first.add(asked.answer(item, sample))
    seen = settled(first)
    assert len(seen) == min(FIRST_ITEMS, FIRST_REQUESTS // samples)
    assert list(seen) == [f"item-{n}" for n in range(len(seen))]


def config(folder: Path, **fields: Any) -> EvalConfig:
    (folder / "items.jsonl").write_text('{"question": "0?", "answer": "0"}\n')
    given = {
        "name": "sums", "dataset": {"path": "items.jsonl"}, "prompt_template": "{{question}}",
        "target": "{{answer}}", "models": [{"name": "m"}], "metric_list": ["exact_match"],
        "base_dir": str(folder),
    }  # fmt: skip
    return EvalConfig.model_validate(given | fields)


def watched(folder: Path, **fields: Any) -> RunningScore | None:
    plan = make_plan(config(folder, **fields), RunOptions(store=str(folder / "store")))
    return plan.models["m"].setup.running


JUDGE = {
    "type": "llm_judge",
    "prompt": "{{response}}?",
    "judges": ["m"],
    "parse": {"type": "choice", "choices": {"yes": 1, "no": 0}},
}
STRICT = {"name": "strict", "filter": [{"function": "regex", "regex_pattern": r"(\d+)"}]}


def test_the_first_pair_that_is_a_mean_of_items_is_watched(tmp_path: Path) -> None:
    score = watched(tmp_path, metric_list=["bleu", "exact_match", "rougeL"])
    assert score is not None
    assert (score.pair.filter, score.pair.metric) == ("none", "exact_match")


@pytest.mark.parametrize(
    "fields", [{"metric_list": ["bleu"]}, {"metric_list": ["math_match"]}, {"scorer": JUDGE}]
)
def test_what_is_no_mean_may_not_end_or_asks_a_model_is_not_watched(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    assert watched(tmp_path, **fields) is None


def test_functions_of_users_are_not_called_for_it(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "def exact(references, predictions):\n    return 1.0\ndef first(resps, docs):\n    return resps\n"
    )
    assert watched(tmp_path, metric_list=["own.py:exact"]) is None
    own = {"name": "own", "filter": [{"function": "own.py:first"}], "metric_list": ["exact_match"]}
    assert watched(tmp_path, metric_list=[], filter_list=[own]) is None


def test_what_is_watched_is_in_no_key(tmp_path: Path) -> None:
    options = RunOptions(store=str(tmp_path / "store"))
    one = make_plan(config(tmp_path), options).models["m"]
    other = make_plan(config(tmp_path, metric_list=["bleu"]), options).models["m"]
    assert one.setup.running is not None
    assert other.setup.running is None
    assert one.identity == other.identity


def figure_of(items: int, report: Callable[[Progress], None], told: list[Progress], now: Progress) -> Any:
    """The figure that is told with a report once it is of so many items."""
    pause = threading.Event()
    for _ in range(2000):
        report(now)
        found = told[-1].running
        if found is not None and found.items == items:
            return found
        pause.wait(0.01)
    raise AssertionError(f"never of {items} items: {told[-1].running}")


def test_the_figure_is_the_mean_of_the_items_settled_so_far(tmp_path: Path) -> None:
    score = watched(tmp_path, metric_list=[], filter_list=[{**STRICT, "metric_list": ["exact_match"]}])
    assert score is not None
    asked = Asked(tmp_path, items=4, samples=2)
    first = asked.first()
    told: list[Progress] = []
    now = replace(STARTED, first=first.settled)
    with score.watching(told.append, seconds=0.01) as report:
        for answer in (asked.answer(0), asked.answer(0, 1, "no"), asked.answer(1), asked.answer(1, 1)):
            first.add(answer)
        assert figure_of(2, report, told, now) == RunningFigure("exact_match", 1.5, 2)
        first.add(asked.answer(2, 0, "about 3"))
        first.add(asked.answer(2, 1, "3"))
        asked.failures |= dict.fromkeys(asked.keys[3], RequestFailure("HTTP 503", 6))
        # What failed is unscored, never 0.
        assert figure_of(3, report, told, now) == RunningFigure("exact_match", 1.5, 3)


def test_what_goes_wrong_costs_the_figure_alone(tmp_path: Path) -> None:
    score = watched(tmp_path)
    assert score is not None
    told: list[Progress] = []
    asked_for = threading.Event()

    def broken() -> None:
        asked_for.set()
        raise ConfigError("no")

    with score.watching(told.append, seconds=0.01) as report:
        report(replace(STARTED, first=broken))  # type: ignore[arg-type]
        assert asked_for.wait(20)
        report(replace(STARTED, done=5))
    assert [(progress.done, progress.running) for progress in told] == [(0, None), (5, None)]


def test_a_look_that_failed_is_taken_again(tmp_path: Path) -> None:
    score = watched(tmp_path, metric_list=[], filter_list=[{**STRICT, "metric_list": ["exact_match"]}])
    assert score is not None
    asked = Asked(tmp_path, items=4, samples=1)
    first = asked.first()
    told: list[Progress] = []
    troubles = [SystemError("parsing"), RuntimeError("a dictionary changed")]

    def troubled() -> Any:
        if troubles:
            raise troubles.pop()
        return first.settled()

    with score.watching(told.append, seconds=0.01) as report:
        first.add(asked.answer(0))
        now = replace(STARTED, first=troubled)
        assert figure_of(1, report, told, now) == RunningFigure("exact_match", 1.0, 1)
    assert not troubles
