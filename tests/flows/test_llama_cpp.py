"""llama-cpp-python's server answers by its preset, from a GGUF file that the test makes.

Runs where NIGHTJAR_LLAMA_PYTHON, or else NIGHTJAR_SERVE_PYTHON, names an interpreter with
``llama-cpp-python[server]`` and ``gguf``.
"""

import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.serving import launch

pytestmark = pytest.mark.services
SCRIPT = Path(__file__).resolve().parents[1] / "tasks" / "serving" / "tiny_gguf.py"


def _python() -> str:
    python = os.environ.get("NIGHTJAR_LLAMA_PYTHON") or os.environ.get("NIGHTJAR_SERVE_PYTHON")
    if python is None:
        pytest.skip("NIGHTJAR_LLAMA_PYTHON names no interpreter with llama-cpp-python[server] and gguf")
    asked = [python, "-c", "import llama_cpp.server.app, gguf"]
    if subprocess.run(asked, capture_output=True, check=False, timeout=300).returncode:
        pytest.skip(f"{python} has no llama-cpp-python[server] or no gguf")
    return python


def test_a_gguf_file_is_served_by_its_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    python = _python()
    evaluate: Callable[..., Any] = request.getfixturevalue("evaluate")  # not before: it starts a server
    monkeypatch.setattr(launch, "locks_folder", lambda: tmp_path)
    (tmp_path / "weights").mkdir()
    made = [python, str(SCRIPT), str(tmp_path / "weights" / "tiny.gguf")]
    subprocess.run(made, check=True, capture_output=True, timeout=200)
    questions = [f'{{"id": "{n}", "question": "the river {n}", "answer": " stone"}}\n' for n in range(3)]
    (tmp_path / "items.jsonl").write_text("".join(questions))
    benchmark = {
        "name": "tiny", "dataset": "items.jsonl", "prompt_template": "{{question}}", "target": "{{answer}}",
        "models": [{
            "name": "tiny", "path": "weights", "config": {"api": "completions", "max_concurrency": 1},
            "serve": {"preset": "llama-cpp-python", "python": python, "gpus": 0},
        }],
        "sample_params": {"max_tokens": 8, "temperature": 0},
        "metric_list": ["exact_match"],
    }  # fmt: skip
    for output_type, metric in (("generate_until", "exact_match"), ("loglikelihood", "perplexity")):
        file = tmp_path / f"{output_type}.yaml"
        more = {"output_type": output_type, "metric_list": [metric]}
        file.write_text(yaml.safe_dump(benchmark | more))
        ran = evaluate(file, "--json")
        assert ran.code == 0, ran.err + ran.out
        (row,) = ran.document["results"]
        assert ran.document["requests"]["sent"] == 3
        assert math.isfinite(row["value"])
    assert row["value"] > 1  # a perplexity of weights that know nothing
