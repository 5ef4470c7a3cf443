"""From the README alone to a benchmark of one's own with a judge and two models: its file, its commands."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.loopback import answering

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## A benchmark of your own")[2].partition("\n## ")[0]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", SECTION, re.DOTALL | re.MULTILINE)
QUESTIONS = [{"question": f"What is {number} + {number}?", "answer": str(2 * number)} for number in range(30)]


class Endpoint(BaseHTTPRequestHandler):
    """Adds up numbers, one model better than the other, and judges by comparing."""

    def do_GET(self) -> None:
        models = ("Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "gpt-4o-mini")
        self.answer({"object": "list", "data": [{"id": name, "object": "model"} for name in models]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = body["messages"][-1]["content"]
        if "Reply yes or no." in text:
            right = re.search(r"Right: (\d+)", text)
            said = re.search(r"Answer: .*?(\d+)$", text, re.MULTILINE)
            content = "yes" if right and said and right[1] == said[1] else "no"
        else:
            one, other = map(int, re.findall(r"\d+", text)[-2:])
            wrong = body["model"] == "Qwen/Qwen3-8B" and one % 3 == 0
            content = f"That makes {one + other + wrong}"
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
        self.answer({"id": "x", "object": "chat.completion", "model": body["model"], "choices": [choice],
                     "usage": usage})  # fmt: skip

    def answer(self, document: dict[str, Any]) -> None:
        content = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    with answering(server):
        yield f"http://127.0.0.1:{server.server_port}/v1"


def commands() -> list[str]:
    """The commands of the section, as a reader copies them."""
    (block,) = (text for language, text in BLOCKS if language == "")
    return [line.partition(" #")[0].strip() for line in block.splitlines() if line.strip()]


@pytest.mark.services
def test_a_newcomer_gets_there_by_the_readme_alone(endpoint: str, tmp_path: Path) -> None:
    (config,) = (text for language, text in BLOCKS if language == "yaml")
    for address in ("http://localhost:8000/v1", "https://api.openai.com/v1"):
        assert address in config
        config = config.replace(address, endpoint)  # the reader's own endpoints
    (tmp_path / "my_benchmark.yaml").write_text(config, encoding="utf-8")
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    environment = {
        **os.environ,
        "NIGHTJAR_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "OPENAI_API_KEY": "a-key",
    }
    for name in ("PREFECT_API_URL", "NIGHTJAR_RESULTS", "NIGHTJAR_STORE"):
        environment.pop(name, None)

    def call(line: str) -> subprocess.CompletedProcess[str]:
        python, *rest = shlex.split(line)
        assert python == "python"
        return subprocess.run(
            [sys.executable, *rest],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    dry, some, other, history = commands()
    try:
        planned = call(dry)
        assert planned.returncode == 0, planned.stderr
        assert "Question: What is 0 + 0?" in planned.stdout
        assert "USD" in planned.stdout
        tried = call(some)
        assert tried.returncode == 0, tried.stderr
        assert re.search(r"^qwen .*exact_match", tried.stdout, re.MULTILINE)
        assert re.search(r"^gpt .*llm_judge", tried.stdout, re.MULTILINE)
        changed = call(other)
        assert changed.returncode == 0, changed.stderr
        assert "Qwen/Qwen3-14B" in changed.stdout
        listed = call(history)
        assert listed.returncode == 0, listed.stderr
        assert "models: Qwen/Qwen3-14B" in listed.stdout
        assert "Qwen/Qwen3-14B: exact_match,last-number 1.0000" in listed.stdout
        assert (tmp_path / "results" / "index.html").is_file()
    finally:
        subprocess.run(
            [sys.executable, "-m", "flows.server", "stop"],
            cwd=tmp_path, env=environment, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
