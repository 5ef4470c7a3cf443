"""Limits hold for one attempt at a run: the next one, of whatever process and name, has all of them."""

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.config.schema import EvalConfig, RunOptions
from flows.eval.flow import evaluate as evaluate_flow
from flows.server import serving
from tasks.models.demo.options import DemoOptions
from tasks.models.demo.server import serve
from tasks.store.errors import StoreError
from tasks.store.storage import Store
from tests.flows.conftest import as_new_process, own

ITEMS = 6


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    questions = [f"Tom has {n} apples. He buys 2 more. How many has he?" for n in range(ITEMS)]
    (tmp_path / "items.jsonl").write_text(
        "".join(f'{{"q": "{question}", "ground_truth": "1"}}\n' for question in questions)
    )
    return {
        "name": "limited",
        "dataset": "items.jsonl",
        "prompt_template": "{{q}}",
        "base_dir": str(tmp_path),
        "metric_list": ["exact_match"],
    }


def _config(config: dict[str, Any], base_url: str, **limits: Any) -> EvalConfig:
    endpoint = {"base_url": base_url, "model": "demo", "max_concurrency": 1}
    return EvalConfig.model_validate(
        {**config, "models": [{"name": "demo", "config": endpoint}], "limits": limits}
    )


def _options(tmp_path: Path) -> RunOptions:
    return RunOptions(run_id="nightly", store=str(tmp_path / "store"), output=str(tmp_path / "out"))


def run(config: EvalConfig, options: RunOptions) -> State[Any]:
    """The state that the flow ends in."""
    ended: State[Any] = asyncio.run(evaluate_flow(config, options, return_state=True))  # type: ignore[arg-type]
    return ended


@pytest.mark.parametrize(
    ("first", "then"),
    [({"max_tokens": 1}, {"max_tokens": 100_000}), ({"max_seconds": 0.001}, {"max_seconds": 3_600})],
    ids=["tokens", "seconds"],
)
def test_a_second_run_of_the_same_id_has_limits_of_its_own(
    home: Path, tmp_path: Path, config: dict[str, Any], first: dict[str, Any], then: dict[str, Any]
) -> None:
    with serve(DemoOptions()) as endpoint, as_new_process(own(home), ["test"]), serving():
        states = [
            run(_config(config, endpoint.base_url, **limits), _options(tmp_path)) for limits in (first, then)
        ]
        stats = endpoint.stats()
    assert [state.name for state in states] == ["Failed", "Completed"], states[1].message
    assert f"limits.{next(iter(first))}" in str(states[0].message)
    assert stats["answered"] == stats["distinct"] == ITEMS


def test_a_retry_spends_as_much_as_the_attempt_before(
    home: Path, tmp_path: Path, config: dict[str, Any]
) -> None:
    """As a suite's retries do, in the process and under the id of the first attempt."""
    answered = [0]
    with serve(DemoOptions(error_rate=0)) as endpoint, as_new_process(own(home), ["test"]), serving():
        for _ in range(2):
            run(_config(config, endpoint.base_url, max_tokens=60), _options(tmp_path))
            answered.append(endpoint.stats()["answered"])
        assert endpoint.stats()["distinct"] == answered[-1]
    first, second = (after - before for before, after in pairwise(answered))
    assert 1 < first < ITEMS
    assert second == min(first, ITEMS - first)


def test_what_a_failed_attempt_was_answered_counts_in_the_retry_that_publishes_to_its_place(
    home: Path, tmp_path: Path, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store takes no responses the first time; the answers themselves are kept."""
    write, full = Store.write, [True]

    def write_but_once(store: Store, stage: str, *rest: Any) -> Any:
        if stage == "infer" and full and full.pop():
            raise StoreError("can't write: the disk is full")
        return write(store, stage, *rest)

    def account() -> list[Any]:
        manifest = json.loads((tmp_path / "out/manifest.json").read_text())
        counts = manifest["models"]["demo"]
        names = ("sent", "cached", "same_night", "total_tokens", "seconds")
        return [manifest["cost"], manifest["saved"], *(counts[name] for name in names)]

    monkeypatch.setattr(Store, "write", write_but_once)
    prices = {"demo": {"prompt": 1_000, "completion": 1_000}}
    with serve(DemoOptions()) as endpoint, as_new_process(own(home), ["test"]), serving():
        accounts, states = [], []
        for _ in range(2):
            states.append(run(_config(config | {"prices": prices}, endpoint.base_url), _options(tmp_path)))
            accounts.append(account())
        stats = endpoint.stats()
    assert [state.name for state in states] == ["Failed", "Completed"], states[1].message
    assert stats["answered"] == ITEMS
    assert accounts[0][0] > 0
    assert accounts[1] == accounts[0]
