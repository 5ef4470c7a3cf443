"""Runs that ask by batches."""

import io
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import flows.eval.flow as flow
from flows.config.load import load_config
from flows.eval import batches
from metrics.errors import ConfigError
from tasks.models.control import controlled
from tasks.models.jobs import Waiting
from tasks.reporting.progress import ProgressBoard, open_board
from tests.flows.conftest import arguments_of, own
from tests.tasks.models.batch_servers import provider_servers, said
from tests.tasks.models.test_batch_files import run_batch

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def started() -> Iterator[Callable[..., tuple[Any, str]]]:
    """Starts servers of a kind; gives the server and its address."""
    with provider_servers() as start:
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


def test_a_dry_run_says_that_requests_go_in_batches(started: Any, evaluate: Any, tmp_path: Path):
    server, url = started("openai")
    ran = evaluate(config(tmp_path, "openai", url, {"wait": "24h"}), "--dry-run")
    assert ran.code == 0, ran.err
    assert "m: 9 requests in batches" in ran.out
    assert not server.jobs
    alone = evaluate(config(tmp_path, "openai", url), "--dry-run")
    assert "m: 9 requests, " in alone.out


REFUSED = {
    "a type without batches": (
        {"models": [{"name": "m", "type": "demo", "config": {"batch": {"wait": "1h"}}}]},
        r"type demo has no batches; leave it out, or ask one of anthropic, gemini, openai, openai_responses",
    ),
    "recorded answers": (
        {"models": [{"name": "m", "type": "replay", "config": {"path": "r.jsonl", "batch": {}}}]},
        r"type replay has no batches; leave it out",
    ),
    "weights that are served here": (
        {"models": [{"name": "m", "path": "weights", "config": {"batch": {}}}]},
        r"weights that are served here answer single requests; leave it out",
    ),
    "a stream": (
        {"models": [{"name": "m", "config": {"batch": {}, "stream": True}}]},
        r"answers of a batch come all at once; leave stream or batch out",
    ),
    "a time to wait that is none": (
        {"models": [{"name": "m", "config": {"batch": {"wait": "soon"}}}]},
        r"batch.wait: expected a number with s, m, h, d or w, such as 20h or 90d, got 'soon'",
    ),
    "turns": (
        {"models": [{"name": "m", "config": {"batch": {}}}], "turns": ["and then?"]},
        r"models.0.config.batch: the turns of a conversation wait for each other.*leave batch out",
    ),
    "log-likelihoods": (
        {
            "models": [{"name": "m", "config": {"batch": {}}}],
            "output_type": "multiple_choice",
            "choices": ["1", "2"],
            "metric_list": ["acc"],
        },
        r"models.0.config.batch: log-likelihoods are asked by single requests; leave batch out",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_asked_by_batches_is_refused_when_the_config_is_loaded(name: str, tmp_path: Path):
    said, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        load_config(config(tmp_path, "openai", "http://127.0.0.1:9/v1", **said))


def run_of(path: Path, folder: Path, home: Path) -> "subprocess.Popen[str]":
    """A run in a process of its own, with the store of the others."""
    return subprocess.Popen(
        [sys.executable, "-m", "flows.eval", *arguments_of(folder, (path, "--json"))],
        cwd=PROJECT, env=own(home), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_while_it_waits_leaves_its_batch_to_the_next(
    number: int, started: Any, evaluate: Any, home: Path, tmp_path: Path
):
    looked = threading.Event()

    def before(_number: int, exchange: str) -> None:
        if exchange == "GET /v1/batches/job-0":
            looked.set()

    server, url = started("openai", looks=10**6, before=before)
    path = config(tmp_path, "openai", url, {"wait": "24h"})
    with run_of(path, tmp_path, home) as process:
        try:
            assert looked.wait(120), process.stderr
            process.send_signal(number)
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode in (130, -signal.SIGKILL)
    server.looks = 0
    ran = evaluate(path, "--json")
    assert ran.code == 0, ran.err
    assert ran.value("exact_match,none") == 1.0
    assert len(server.jobs) == 1
    assert not server.single


def test_what_goes_wrong_in_a_look_is_told_on_the_terminal_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(batches, "get_run_logger", logging.getLogger)
    with open_board(ProgressBoard(io.StringIO())):
        for _ in range(2):
            batches._tell("m", Waiting(names=("job",), requests=5, open=1, said="the last look failed: 502"))
    assert capsys.readouterr().err == "warning: m (batches): the last look failed: 502\n"


def test_waiting_for_batches_does_not_count_towards_the_time_out(monkeypatch: pytest.MonkeyPatch):
    class Away:
        """A server that does not answer."""

        def read_flow_run(self, _id: Any) -> Any:
            raise httpx.ConnectError("away")

    monkeypatch.setattr(flow, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(flow, "get_client", lambda **_: nullcontext(Away()))
    timeout = 2.0
    with (
        controlled("suite") as suite,
        flow.under_control("run", "00000000-0000-0000-0000-000000000000", timeout) as control,
    ):
        with control.waiting():
            time.sleep(1.5 * timeout)
            assert control.stopped is None
        assert suite.waited >= control.waited
        until = time.monotonic() + 60
        while control.stopped is None:
            assert time.monotonic() < until
            time.sleep(0.02)
    assert control.own_stop is not None
    assert control.own_stop.kind == "timed out"


def test_a_judge_is_asked_by_batches_too(started: Any, evaluate: Any, tmp_path: Path):
    def judged(body: dict[str, Any]) -> dict[str, Any]:
        return said("openai", "yes")

    server, url = started("openai")
    judge, judge_url = started("openai", reply=judged)
    asked = {"model": "m", "base_url": judge_url, "batch": {"wait": "24h"}}
    scorer = {
        "type": "llm_judge",
        "judges": [{"name": "strict", "config": asked}],
        "prompt": "{{ question }} Said: {{ response }}",
        "parse": {"type": "choice", "choices": {"yes": 1, "no": 0}},
    }
    path = config(tmp_path, "openai", url, scorer=scorer)
    ran = evaluate(path, "--json")
    assert ran.code == 0, ran.err
    assert ran.value("llm_judge,none") == 1.0
    assert len(judge.jobs) == 1
    assert len(judge.jobs["job-0"].requests) == 9
    assert not judge.single
    assert len(server.single) == 9
    assert not list((tmp_path / "store" / "batches").rglob("*.json"))


def test_a_batch_that_fails_as_a_whole_fails_its_model_and_no_other(
    started: Any, evaluate: Any, tmp_path: Path
):
    server, url = started("openai", fails="the model m takes no batches")
    good, good_url = started("openai")
    models = [
        {"name": "bad", "config": {"model": "m", "base_url": url, "batch": {}}},
        {"name": "good", "config": {"model": "m", "base_url": good_url, "batch": {}}},
    ]
    ran = evaluate(config(tmp_path, "openai", url, models=models), "--json")
    assert ran.code == 1
    assert ran.value("exact_match,none", "good") == 1.0
    assert "the model m takes no batches" in json.dumps(ran.document)
    assert not server.single
    assert len(good.jobs) == 1


def test_a_night_waits_for_its_batches_and_says_so(started: Any, suite_night: Any, tmp_path: Path):
    server, url = started("openai", looks=2)
    config(tmp_path, "openai", url, {"wait": "24h"})
    suite = {"name": "night", "benchmarks": ["config.yaml"], "answers": "fresh", "gate": {"margin": 0.1}}
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(suite))
    first, second = suite_night(path), suite_night(path)
    assert first.code == 0, first.err
    assert second.code == 0, second.err
    assert len(server.jobs) == 2
    assert not server.single
    assert "asked 9 (9 by batch), reused 0" in second.document["headline"]
    assert second.document["outcome"] == "pass"


def test_a_run_says_the_command_for_its_file_and_the_next_reads_the_results(evaluate: Any, tmp_path: Path):
    path = config(tmp_path, "openai", "http://127.0.0.1:9/v1", {"files": "jobs"})
    first = evaluate(path, "--json")
    assert first.code == 1
    (command,) = set(re.findall(r"vllm run-batch -i .*?--model m(?=`)", json.dumps(first.document)))
    assert len(run_batch(command)) == 9
    second = evaluate(path, "--json")
    assert second.code == 0, second.err
    assert second.value("exact_match,none") == 1.0
    assert second.document["requests"]["batched"] == 9
    assert len(list((tmp_path / "jobs").iterdir())) == 2
    assert not list((tmp_path / "store" / "batches").rglob("*.json"))


def test_what_a_limit_leaves_out_of_a_batch_is_not_asked_and_the_next_run_goes_on(
    started: Any, evaluate: Any, tmp_path: Path
):
    server, url = started("openai")
    limited = {"limits": {"max_tokens": 600}, "sample_params": {"max_tokens": 100}}
    path = config(tmp_path, "openai", url, {"wait": "24h"}, **limited)
    first = evaluate(path, "--json")
    assert first.code == 1
    assert "limits.max_tokens of 600 allows no more in a batch" in json.dumps(first.document)
    asked = first.document["requests"]["batched"]
    assert 0 < asked < 9
    assert not server.single
    second = evaluate(path, "--json")
    assert second.document["requests"]["cached"] == asked
    assert second.document["requests"]["batched"] > 0
    assert sum(len(job.requests) for job in server.jobs.values()) <= 9
