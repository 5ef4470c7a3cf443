"""Which kept answers serve: the newest, those of this night, or those that are young enough."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from flows.config.load import load_config
from metrics.errors import ConfigError
from tasks.infer import infer
from tasks.models.answers.segments import ModelAnswers
from tasks.models.demo.options import DemoOptions
from tasks.models.demo.server import Serving, serve
from tasks.models.respond import Inference
from tasks.store.durations import seconds_of
from tasks.store.errors import StoreError, StoreUnavailable


@pytest.fixture
def served() -> Iterator[Callable[..., Serving]]:
    """Starts embedded servers, which count what comes in."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(serve(DemoOptions(**options)))


def received(serving: Serving) -> int:
    return int(serving.stats()["received"])


def said(ran: Any) -> list[str]:
    """The responses of a run, in order."""
    lines = (Path(ran.document["output"]) / "responses.jsonl").read_text().splitlines()
    return [json.loads(line)["response"] for line in lines]


@pytest.fixture
def sums(tmp_path: Path) -> Callable[..., Path]:
    """Writes a benchmark of some sums on a server."""

    def write(serving: Serving, name: str = "sums", items: int = 6, **keys: Any) -> Path:
        rows = [
            {"question": f"Tom has {n} apples and buys {n + 1} more. How many apples does Tom have?",
             "answer": str(2 * n + 1)}
            for n in range(items)
        ]  # fmt: skip
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {
            "name": name, "output_type": "generate_until", "dataset": f"{name}.jsonl", "target": "{{answer}}",
            "prompt_template": "Question: {{question}}\nAnswer:", "sample_params": {"max_tokens": 32},
            "metric_list": ["exact_match"],
            "models": [{"name": "own", "config": {"base_url": serving.base_url, "model": "demo"}}],
            **keys,
        }  # fmt: skip
        (tmp_path / f"{name}.yaml").write_text(json.dumps(config))
        return tmp_path / f"{name}.yaml"

    return write


def test_a_fresh_run_asks_anew_and_computes_nothing_where_the_answers_are_equal(
    evaluate: Any, served: Any, sums: Any
) -> None:
    server = served()
    path = sums(server, answers="fresh")
    first, second = evaluate(path, "--json"), evaluate(path, "--json")
    assert (first.code, second.code, received(server)) == (0, 0, 12)
    assert second.document["requests"] == {"sent": 6, "cached": 0, "failed": 0}
    assert (second.steps("infer"), second.steps("filter"), second.steps("score")) == ((1, 0), (0, 1), (0, 1))
    shown = evaluate(path)
    assert "asked 6, reused 0" in shown.out
    results = json.loads((Path(second.document["output"]) / "results.json").read_text())
    assert results["requests"]["sent"] == 6


def test_reusing_takes_the_newest_answers_and_a_record_of_older_ones_does_not_serve(
    evaluate: Any, served: Any, sums: Any
) -> None:
    good, bad = served(error_rate=0.0), served(error_rate=1.0)
    moved = {"identity": "the model", "name": "own"}

    def at(serving: Serving) -> list[dict[str, Any]]:
        return [{**moved, "config": {"base_url": serving.base_url, "model": "demo"}}]

    old = said(evaluate(sums(good, models=at(good)), "--json"))
    new = said(evaluate(sums(bad, models=at(bad), answers="fresh"), "--json"))
    assert new != old
    again = evaluate(sums(good, models=at(good)), "--json")
    assert again.document["requests"] == {"sent": 0, "cached": 6, "failed": 0}
    assert said(again) == new
    assert (received(good), received(bad)) == (6, 6)


def test_answers_that_are_too_old_are_asked_for_again(evaluate: Any, served: Any, sums: Any) -> None:
    server = served()
    evaluate(sums(server))
    young = evaluate(sums(server, answers={"max_age": "20h"}), "--json")
    assert young.document["requests"]["cached"] == 6
    old = evaluate(sums(server, answers={"max_age": 0.001}), "--json")
    assert old.document["requests"]["sent"] == 6
    assert received(server) == 12


def test_a_fresh_run_that_did_not_end_goes_on_and_one_that_did_does_not(
    evaluate: Any, served: Any, sums: Any
) -> None:
    server = served()
    path = sums(server, answers="fresh", metric_list=[{"metric": "own", "function": "own.py:own"}])
    (path.parent / "own.py").write_text(
        "def own(references, predictions):\n    raise RuntimeError('broken')\n"
    )
    failed = evaluate(path, "--json", "--force")
    assert failed.code == 1
    (path.parent / "own.py").write_text("def own(references, predictions):\n    return 1.0\n")
    planned = evaluate(path, "--dry-run", "--json")
    assert planned.document["requests"] == {"to_send": 0, "cached": 6}
    done = evaluate(path, "--json")
    assert (done.code, received(server)) == (0, 6)
    assert done.document["requests"] == {"sent": 0, "cached": 6, "same_night": 6, "failed": 0}
    assert "asked 6, reused 0" in (Path(done.document["output"]) / "report.html").read_text()
    planned = evaluate(path, "--dry-run", "--json")
    assert planned.document["requests"] == {"to_send": 6, "cached": 0}


def test_scoring_alone_takes_the_newest_answers(
    evaluate: Any, served: Any, sums: Any, tmp_path: Path
) -> None:
    server = served()
    path = sums(server, answers="fresh")
    assert evaluate(path, "--phase", "infer").code == 0
    scored = evaluate(path, "--phase", "score", "--output", tmp_path / "another", "--json")
    assert (scored.code, received(server)) == (0, 6)
    assert scored.document["requests"] == {"sent": 0, "cached": 6, "failed": 0}


@pytest.fixture
def moving(served: Any, sums: Any) -> Callable[..., Path]:
    """The benchmark on a model that keeps its identity and moves to another server."""

    def at(serving: Serving, **keys: Any) -> Path:
        model = {"name": "own", "identity": "it", "config": {"base_url": serving.base_url, "model": "demo"}}
        return Path(sums(serving, models=[model], **keys))

    return at


GREEDY = {"max_tokens": 64, "temperature": 0}


def test_canaries_notice_a_swapped_model_that_reuse_would_not(
    evaluate: Any, served: Any, moving: Any
) -> None:
    good, bad = served(error_rate=0.0), served(error_rate=1.0)
    evaluate(moving(good, sample_params=GREEDY))
    same = evaluate(moving(good, sample_params=GREEDY, canaries=5), "--json").document
    assert same["requests"] == {"sent": 0, "cached": 6, "failed": 0, "canaries": 5}
    swapped = evaluate(moving(bad, sample_params=GREEDY, canaries=5), "--json").document
    assert swapped["requests"] == {"sent": 0, "cached": 6, "failed": 0, "canaries": 5}
    manifest = json.loads((Path(swapped["output"]) / "manifest.json").read_text())
    assert manifest["canaries"]["own"]["differing"] >= 2
    assert "of 5 canaries were answered otherwise" in manifest["canaries"]["own"]["said"]
    assert manifest["canaries"]["own"]["finds"] == pytest.approx(0.49, abs=0.01)
    assert (received(good), received(bad)) == (11, 5)


def test_answers_of_an_age_are_refused_where_canaries_say_another_model_answers(
    evaluate: Any, served: Any, moving: Any
) -> None:
    good, bad = served(error_rate=0.0), served(error_rate=1.0)
    keys = {"sample_params": GREEDY, "canaries": 5, "answers": {"max_age": "20h"}}
    old = said(evaluate(moving(good, **keys), "--json"))
    kept = evaluate(moving(good, **keys), "--json")
    assert (kept.document["requests"]["sent"], said(kept)) == (0, old)
    new = evaluate(moving(bad, **keys), "--json")
    assert new.document["requests"] == {"sent": 6, "cached": 0, "failed": 0, "canaries": 5}
    assert said(new) != old


def test_an_answer_that_goes_between_lookup_and_reading_is_asked_for_in_the_same_run(
    evaluate: Any, served: Any, sums: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = served()
    keys = {"answers": {"max_age": "20h"}}
    evaluate(sums(server, items=6, **keys))
    old = list((tmp_path / "store" / "answers").glob("*/*.parquet"))
    looked_up = Inference.rows

    def rows(self: Inference, *arguments: Any) -> Any:
        found = looked_up(self, *arguments)
        while old:  # a rule of the bucket, or a pruning that takes this run for dead
            old.pop().unlink()
        return found

    monkeypatch.setattr(Inference, "rows", rows)
    ran = evaluate(sums(server, items=7, **keys), "--json")
    assert (ran.code, received(server)) == (0, 6 + 7)
    assert ran.document["requests"] == {"sent": 7, "cached": 0, "failed": 0}
    assert None not in said(ran)


@pytest.mark.parametrize("error", [StoreError, StoreUnavailable])
def test_what_was_asked_counts_in_the_run_that_asked_whatever_became_of_the_answers(
    evaluate: Any, served: Any, sums: Any, monkeypatch: pytest.MonkeyPatch, error: type[StoreError]
) -> None:
    """A store that can't be written fails the inference; the answers wait in the journal for the next run."""
    monkeypatch.setattr(infer, "retry_delay_seconds", 0)
    server = served()
    path = sums(server, prices={"own": {"prompt": 1, "completion": 1}})
    with monkeypatch.context() as patched:

        def write(*_: Any) -> None:
            raise error("can't write answers: the disk is full")

        patched.setattr(ModelAnswers, "write", write)
        failed = evaluate(path, "--json")
    assert (failed.code, received(server)) == (1, 6)
    assert failed.document["requests"]["sent"] == 6
    models = json.loads((Path(failed.document["output"]) / "manifest.json").read_text())["models"]
    assert models["own"]["total_tokens"] > 0
    assert models["own"]["cost"] > 0
    again = evaluate(path, "--json")
    assert (again.code, received(server)) == (0, 6)
    assert again.document["requests"] == {"sent": 0, "cached": 6, "failed": 0}


@pytest.mark.parametrize("ahead", [1_200, -1_200])
def test_a_run_takes_what_it_was_just_given_whatever_its_clock_says(
    evaluate: Any, served: Any, sums: Any, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    server = served()
    path = sums(server)
    ask, now = Inference.ask, time.time

    def ask_by_another_clock(*asked: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: now() + ahead)
            return ask(*asked)

    monkeypatch.setattr(Inference, "ask", ask_by_another_clock)
    for times in (1, 2):
        ran = evaluate(path, "--json", "--refresh", "infer")
        assert (ran.code, received(server)) == (0, 6 * times)
        assert ran.document["requests"] == {"sent": 6, "cached": 0, "failed": 0}


def test_sampled_answers_give_no_canary(evaluate: Any, served: Any, moving: Any) -> None:
    server = served()
    keys = {"sample_params": {"max_tokens": 64, "temperature": 0.7}, "canaries": 5}
    evaluate(moving(server, **keys))
    again = evaluate(moving(server, **keys), "--json")
    assert again.document["requests"] == {"sent": 0, "cached": 6, "failed": 0}


@pytest.mark.parametrize("said", ["often", {"max_age": "20 weeks"}, {"max_age": 0}, {"max_agee": "20h"}])
def test_a_freshness_that_means_nothing_is_refused(served: Any, sums: Any, said: Any) -> None:
    path = sums(served(), answers=said)
    with pytest.raises(ConfigError, match="answers"):
        load_config(path)


def test_lengths_of_time_are_read_in_their_units() -> None:
    assert [seconds_of(text) for text in ("45s", "30m", "20h", "1.5d", 7)] == [45, 1800, 72000, 129600, 7]
