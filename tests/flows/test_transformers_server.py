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

import httpx
import pytest
import yaml

from tasks.serving import launch
from tasks.serving.config import ServeConfig
from tasks.serving.launch import Launch
from tasks.serving.servers import RunningServer, start_server, stop_server

pytestmark = pytest.mark.services
HERE = Path(__file__).resolve().parents[1] / "tasks" / "serving"
PROJECT = HERE.parents[2]
WORDS = ("the", "a", "of", "river", "stone", "bird", "night", "light", "water")


def _python() -> str:
    python = os.environ.get("NIGHTJAR_SERVE_PYTHON")
    if python is None:
        pytest.skip("NIGHTJAR_SERVE_PYTHON names no interpreter with torch and transformers")
    asked = [python, "-c", "import torch, transformers"]
    if subprocess.run(asked, capture_output=True, check=False, timeout=300).returncode:
        pytest.skip(f"NIGHTJAR_SERVE_PYTHON: {python} has no torch or no transformers")
    return python


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    made = [_python(), str(HERE / "tiny_llama.py"), str(folder)]
    subprocess.run(made, check=True, capture_output=True, timeout=400)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    return folder


@pytest.fixture(scope="module")
def server(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    places = tmp_path_factory.mktemp("places")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "locks_folder", lambda: places)
        patch.setenv("NIGHTJAR_HOME", str(places / "home"))
        serve = ServeConfig(preset="transformers", python=_python(), dtype="float32", gpus=0)
        running = start_server(Launch("tiny", "tiny", serve, str(weights), "/"))
        yield running
        stop_server(Path(running.folder))


def asked(server: RunningServer, path: str = "completions", **body: Any) -> httpx.Response:
    return httpx.post(f"{server.base_url}/{path}", json={"model": "tiny", **body}, timeout=120)


def test_one_seed_gives_one_answer_and_another_another(server: RunningServer) -> None:
    def text(seed: int) -> str:
        answer = asked(server, prompt="the river", max_tokens=20, temperature=1.0, seed=seed)
        return str(answer.json()["choices"][0]["text"])

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(6)}) > 3


def test_an_answer_ends_before_its_stop_text(server: RunningServer) -> None:
    whole = asked(server, prompt="the river", max_tokens=24, temperature=0).json()["choices"][0]
    stop = whole["text"][3:5]
    cut = asked(server, prompt="the river", max_tokens=24, temperature=0, stop=[stop]).json()["choices"][0]
    assert cut["text"] == whole["text"][: whole["text"].index(stop)]
    assert cut["finish_reason"] == "stop"


def test_prompts_together_are_answered_as_alone(server: RunningServer) -> None:
    prompts = ["the river", "a", " ".join(WORDS * 6), "water of"]
    together = asked(server, prompt=prompts, max_tokens=12, temperature=0).json()["choices"]
    alone = [asked(server, prompt=p, max_tokens=12, temperature=0).json()["choices"][0] for p in prompts]
    assert [entry["text"] for entry in together] == [entry["text"] for entry in alone]


def test_generated_tokens_have_the_log_probabilities_that_the_prompt_has(server: RunningServer) -> None:
    new = asked(server, prompt="the river", max_tokens=6, temperature=0, logprobs=1).json()["choices"][0]
    ids = asked(server, prompt="the river", max_tokens=6, temperature=0, echo=True, logprobs=1)
    lists = ids.json()["choices"][0]["logprobs"]
    assert lists["token_logprobs"][0] is None
    assert lists["token_logprobs"][-6:] == pytest.approx(new["logprobs"]["token_logprobs"], abs=1e-4)
    shares = asked(server, prompt="the river is", max_tokens=1, temperature=0, prompt_logprobs=1)
    echoed = asked(server, prompt="the river is", max_tokens=0, echo=True, logprobs=1).json()["choices"][0]
    positions = shares.json()["choices"][0]["prompt_logprobs"]
    first = [next(iter(entry.values()))["logprob"] for entry in positions[1:]]
    assert first == pytest.approx(echoed["logprobs"]["token_logprobs"][1:], abs=1e-5)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "a", "tools": []}, "does not take tools"),
        ({"prompt": [[1, 99_999]]}, "token ids of the model's vocabulary"),
        ({"prompt": "the " * 400}, "maximum context length is 256 tokens"),
        ({"prompt": "a", "temperature": "hot"}, "temperature: expected a number"),
        ({}, "prompt: expected a text"),
    ],
)
def test_what_can_not_be_answered_is_refused_in_words(
    server: RunningServer, body: dict[str, Any], said: str
) -> None:
    answer = asked(server, **body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


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
    if subprocess.run([python, "-c", "import lm_eval"], capture_output=True, check=False).returncode:
        pytest.skip(f"NIGHTJAR_SERVE_PYTHON: {python} has no lm_eval")
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
