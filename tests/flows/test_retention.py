"""Retention beside runs that go on: what a run is about to take stays until it has ended."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.config.schema import RunOptions
from flows.eval.start import with_defaults
from tasks.history.prune import EVERYTHING, AnswerRetention, prune
from tasks.models.demo.options import DemoOptions
from tasks.models.demo.server import Serving, serve
from tasks.store.storage import Store

OWN = '''
from pathlib import Path

from metrics.errors import NightjarError
from tasks.history.prune import prune
from tasks.history.prune import EVERYTHING
from tasks.store.storage import Store


def own(references, predictions):
    """Prunes in the middle of the run that calls it."""
    try:
        prune(Store(STORE), EVERYTHING)
        said = "pruned"
    except NightjarError as error:
        said = str(error)
    Path(__file__).with_name("said").write_text(said)
    return 1.0
'''


@pytest.fixture
def server() -> Iterator[Serving]:
    with ExitStack() as stack:
        yield stack.enter_context(serve(DemoOptions()))


@pytest.fixture
def sums(tmp_path: Path, server: Serving) -> Callable[..., Path]:
    def write(items: int = 5, **keys: Any) -> Path:
        rows = [
            {"question": f"Tom has {n} apples and buys 2 more.", "answer": str(n + 2)} for n in range(items)
        ]
        (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {
            "name": "sums", "output_type": "generate_until", "dataset": "sums.jsonl", "target": "{{answer}}",
            "prompt_template": "Question: {{question}}\nAnswer:", "metric_list": ["exact_match"],
            "models": [{"name": "own", "config": {"base_url": server.base_url, "model": "demo"}}], **keys,
        }  # fmt: skip
        (tmp_path / "sums.yaml").write_text(json.dumps(config))
        return tmp_path / "sums.yaml"

    return write


def test_a_pruning_in_the_middle_of_a_run_is_refused_and_one_after_it_is_not(
    evaluate: Any, sums: Any, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("STORE", repr(str(tmp_path / "store"))))
    path = sums(metric_list=["exact_match", {"metric": "own", "function": "own.py:own"}])
    ran = evaluate(path, "--json")
    assert ran.code == 0, ran.err
    assert "is in progress: prune when it has ended" in (tmp_path / "said").read_text()
    assert prune(Store(str(tmp_path / "store"))).artifacts == ()


@pytest.mark.services
def test_answers_that_nights_reuse_stay_and_those_that_went_are_asked_for_again(
    evaluate: Any, sums: Any, server: Serving, tmp_path: Path
) -> None:
    store = Store(str(tmp_path / "store"))
    path = sums(answers={"max_age": "20h"})

    def sent() -> int:
        ran = evaluate(path, "--json")
        assert ran.code == 0, ran.err
        return int(ran.document["requests"]["sent"])

    def pruned(days: float, **limits: Any) -> int:
        kept = AnswerRetention(**{"unused": None, "age": None, **limits})
        retention = EVERYTHING.model_copy(update={"answers": kept})
        return len(prune(store, retention, datetime.now(UTC) + timedelta(days=days)).answers)

    assert sent() == 5
    assert pruned(89, unused="90d") == 0
    assert sent() == 0
    assert pruned(89, age="90d") == 0
    # The night looks at what is kept for so long, whatever its steps are cached for.
    assert pruned(92, unused="90d") == 1
    assert sent() == 5
    assert pruned(92, age="90d") == 1
    assert (sent(), server.stats()["received"]) == (5, 15)


def test_runs_write_to_the_folder_of_results_that_the_environment_names(
    sums: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.config.load import load_config
    from flows.suite.plan import SuiteOptions, load_suite, plan_night

    config = load_config(sums())
    suite = tmp_path / "suite.yaml"
    suite.write_text("name: night\nbenchmarks: [sums.yaml]\n")
    monkeypatch.chdir(tmp_path)
    assert with_defaults(config, RunOptions(run_id="x"), "1").output == str(tmp_path / "results" / "x")
    monkeypatch.setenv("NIGHTJAR_RESULTS", str(tmp_path / "volume"))
    assert with_defaults(config, RunOptions(run_id="x"), "1").output == str(tmp_path / "volume" / "x")
    night = plan_night(load_suite(suite), SuiteOptions(), "1")
    assert Path(night.output).parent == tmp_path / "volume"
    named = RunOptions(run_id="x", output=str(tmp_path / "mine"))
    assert with_defaults(config, named, "1").output == str(tmp_path / "mine")
