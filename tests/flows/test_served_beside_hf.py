"""The built-in server and lm-evaluation-harness's ``hf`` model give the same numbers on the same weights.

Runs where NIGHTJAR_SERVE_PYTHON names an interpreter with torch, transformers and lm_eval.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.services
PROJECT = Path(__file__).resolve().parents[2]
WORDS = ("the", "a", "of", "river", "stone", "bird", "night", "light", "water")


def _python() -> str:
    python = os.environ.get("NIGHTJAR_SERVE_PYTHON")
    if python is None:
        pytest.skip("NIGHTJAR_SERVE_PYTHON names no interpreter with torch, transformers and lm_eval")
    asked = [python, "-c", "import torch, transformers, lm_eval"]
    if subprocess.run(asked, capture_output=True, check=False, timeout=300).returncode:
        pytest.skip(f"NIGHTJAR_SERVE_PYTHON: {python} has no torch, no transformers or no lm_eval")
    return python


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    made = [_python(), str(PROJECT / "tests" / "tasks" / "serving" / "tiny_llama.py"), str(folder)]
    subprocess.run(made, check=True, capture_output=True, timeout=400)
    return folder


TASKS: dict[str, dict[str, Any]] = {
    "tiny_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "num_fewshot": 2,
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "tiny_ll": {
        "output_type": "loglikelihood",
        "doc_to_text": "{{question}}",
        "doc_to_target": " {{answer}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "tiny_rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{document}}",
        "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}],
    },
    "tiny_generate": {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "num_fewshot": 1,
        "generation_kwargs": {"until": ["\n", " 7"], "max_gen_toks": 16, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four benchmarks of the harness over documents of all lengths, beyond what the model takes in too."""
    folder = tmp_path_factory.mktemp("tasks")
    documents = []
    for number in range(24):
        words = [
            WORDS[(number * 7 + place * (place % 5 + 1)) % len(WORDS)] for place in range(3 + 4 * number)
        ]
        document = {
            "question": " ".join(words[: 2 + number]),
            "choices": [f" {WORDS[number % 9]}", f" {WORDS[(number + 3) % 9]} bird", " of the night"],
            "gold": number % 3,
            "answer": words[-1],
            "document": " ".join(words * (1 + number // 6)),
        }
        documents.append(document)
    (folder / "data.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    for name, keys in TASKS.items():
        about = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / "data.jsonl")}},
            "test_split": "test",
            **({"fewshot_split": "test"} if "num_fewshot" in keys else {}),
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**about, **keys}, sort_keys=False))
    return folder


@pytest.mark.parametrize("chat", [False, True], ids=["text", "chat"])
def test_numbers_and_samples_are_those_of_the_harness(
    weights: Path, tasks: Path, tmp_path: Path, own_environment: dict[str, str], chat: bool
) -> None:
    python = _python()
    names = ["tiny_generate"] if chat else list(TASKS)
    peer = [
        python, "-m", "lm_eval", "--model", "hf",
        "--model_args", f"pretrained={weights},dtype=float32",
        "--tasks", ",".join(names), "--include_path", str(tasks), "--device", "cpu", "--batch_size", "4",
        "--log_samples", "--output_path", str(tmp_path / "peer"),
        *(["--apply_chat_template"] if chat else []),
    ]  # fmt: skip
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        peer, env={**os.environ, **offline}, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ours = [
        sys.executable, "-m", "flows.eval", "--tasks", ",".join(names), "--include-path", str(tasks),
        "--model-path", str(weights), "--api", "chat" if chat else "completions",
        "--store", str(tmp_path / "store"), "--output", str(tmp_path / "ours"), "--json",
    ]  # fmt: skip
    environment = {**own_environment, "NIGHTJAR_SERVE_PYTHON": python, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        ours, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=500
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    compared = 0
    for name in names:
        theirs, mine = _samples(tmp_path / "peer", name), _samples(tmp_path / "ours", name)
        assert theirs.keys() == mine.keys()
        for document, responses in theirs.items():
            for first, second in zip(responses, mine[document], strict=True):
                compared += 1
                if TASKS[name]["output_type"] == "generate_until":
                    assert first == second
                    continue
                (ll, *greedy), (own, *others) = _likelihood(first), _likelihood(second)
                assert math.isclose(ll, own, abs_tol=1e-4, rel_tol=2e-7), (name, document)
                assert greedy == others
        assert _numbers(tmp_path / "ours", name) == pytest.approx(
            _numbers(tmp_path / "peer", name), rel=1e-6, abs=1e-6
        )
    assert compared >= (24 if chat else 120)


def _likelihood(response: Any) -> list[Any]:
    """A response of a sample log: a number, or a pair with whether it is greedy; both may be text."""
    parts = response if isinstance(response, list) else [response]
    return [float(parts[0]), *(str(part) for part in parts[1:2])]


def _samples(folder: Path, name: str) -> dict[int, list[Any]]:
    (file,) = sorted(folder.rglob(f"samples_{name}_*.jsonl"))[-1:]
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["doc_id"]: [response[0] for response in row["resps"]] for row in rows}


def _numbers(folder: Path, name: str) -> dict[str, float]:
    (file,) = sorted(folder.rglob("results_*.json"))[-1:]
    found = json.loads(file.read_text())["results"][name]
    return {key: value for key, value in found.items() if isinstance(value, float) and "stderr" not in key}
