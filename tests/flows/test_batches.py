"""Runs that ask by batches."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tasks.models.batch_servers import provider_server, serving

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[Any, str]]]:
    """Starts servers of a kind; gives the server and its address."""
    with ExitStack() as stack:

        def start(kind: str, **fields: Any) -> tuple[Any, str]:
            server = provider_server(kind, **fields)
            return server, stack.enter_context(serving(server))

        yield start


def config(folder: Path, kind: str, url: str, batch: Any = None, **said: Any) -> Path:
    """A benchmark of nine items, whose answers end as their questions do."""
    items = [{"id": str(n), "question": f"say {n}?", "answer": f"{len(f'say {n}?')} {n}?"} for n in range(9)]
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    asked = {"model": "m", "base_url": url, **({} if batch is None else {"batch": batch})}
    document = {
        "name": "echo",
        "output_type": "generate_until",
        "dataset": "items.jsonl",
        "prompt_template": "{{question}}",
        "target": "{{answer}}",
        "models": [{"name": "m", "type": kind, "config": asked}],
        "metric_list": ["exact_match"],
        **said,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
def test_a_run_asks_by_one_batch_and_scores_as_by_single_requests(
    kind: str, started: Any, evaluate: Any, tmp_path: Path
):
    server, url = started(kind, looks=2)
    prices = {"m": {"prompt": 1.0, "completion": 10.0, "batch": 0.5}}
    path = config(tmp_path, kind, url, {"wait": "24h"}, prices=prices)
    ran = evaluate(path, "--json")
    assert ran.code == 0, ran.err
    assert ran.value("exact_match,none") == 1.0
    assert len(server.jobs) == 1
    assert not server.single
    requests = ran.document["requests"]
    assert requests["sent"] == requests["batched"] == 9
    assert ran.document["cost"] == pytest.approx(9 * 0.002 / 2)
    assert not list((tmp_path / "store" / "batches").rglob("*.json"))
    # Without a batch the answers that are kept serve.
    again = evaluate(config(tmp_path, kind, url), "--json")
    assert again.code == 0
    assert again.document["requests"]["sent"] == 0
    assert not server.single
    assert again.value("exact_match,none") == 1.0
