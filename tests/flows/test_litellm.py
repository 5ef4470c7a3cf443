"""LiteLLM's proxy between a run and its endpoint. ``NIGHTJAR_LITELLM`` names the proxy's command, which has
an environment of its own: ``pip install "litellm[proxy]"``."""

import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tasks.models.demo.options import DemoOptions
from tasks.models.demo.server import serve
from tests.flows.operations.conftest import free_port

LITELLM = os.environ.get("NIGHTJAR_LITELLM", "")
KEY = "sk-of-the-proxy-9f8e7d6c5b4a3210"
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not LITELLM, reason="NIGHTJAR_LITELLM names no command of LiteLLM's proxy"),
]


def _answers(port: int) -> bool:
    try:
        models = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers={"Authorization": f"Bearer {KEY}"})
        return models.status_code == 200
    except httpx.HTTPError:
        return False


def test_a_proxy_gives_the_answers_of_the_endpoint_behind_it(
    evaluate: Callable[..., Any], tmp_path: Path
) -> None:
    question = "Question: Tom has {} apples. He buys 3 bags with 6 apples each. How many has he now?\nAnswer:"
    items = [{"question": question.format(number), "answer": str(number + 18)} for number in range(20)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    port = free_port()
    with serve(DemoOptions()) as serving:
        behind = {"model": "openai/demo", "api_base": serving.base_url, "api_key": "none"}
        models = {"model_list": [{"model_name": "demo", "litellm_params": behind}]}
        (tmp_path / "proxy.yaml").write_text(yaml.safe_dump(models))
        command = [
            LITELLM,
            "--config",
            str(tmp_path / "proxy.yaml"),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        env = {**os.environ, "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        with (tmp_path / "proxy.log").open("wb") as log:
            proxy = subprocess.Popen(command, env=env, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not _answers(port):
                assert proxy.poll() is None, (tmp_path / "proxy.log").read_text()
                assert time.monotonic() < deadline, (tmp_path / "proxy.log").read_text()
                time.sleep(0.5)
            proxied = {"model": "demo", "base_url": f"http://127.0.0.1:{port}/v1", "api_key_env": "A_KEY"}
            entries = {
                "direct": {"model": "demo", "base_url": serving.base_url},
                "proxied": proxied,
                "streamed": {**proxied, "stream": True},
                "official": {**proxied, "client": "openai"},
            }
            benchmark = {
                "name": "sums", "dataset": "items.jsonl", "prompt_template": "{{question}}",
                "target": "{{answer}}", "metric_list": ["exact_match"],
                "models": [{"name": n, "identity": n, "config": config} for n, config in entries.items()],
            }  # fmt: skip
            (tmp_path / "sums.yaml").write_text(yaml.safe_dump(benchmark))
            ran = evaluate(tmp_path / "sums.yaml", "--json", env={"A_KEY": KEY})
        finally:
            proxy.terminate()
            proxy.wait()
    assert ran.code == 0, ran.err
    answers: dict[str, set[Any]] = defaultdict(set)
    for line in (tmp_path / "out" / "responses.jsonl").read_text().splitlines():
        row = json.loads(line)
        answers[row["item_id"]].add((row["status"], row["response"]))
    assert len(answers) == 20
    assert all(len(said) == 1 for said in answers.values())
    assert ran.document["requests"] == {"sent": 80, "cached": 0, "failed": 0}
