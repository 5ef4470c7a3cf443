"""The built-in server answers as it is asked to, on every transformers that the extra ``hf`` allows."""

import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tasks.serving import launch
from tasks.serving.config import ServeConfig
from tasks.serving.launch import Launch
from tasks.serving.servers import RunningServer, start_server, stop_server

pytestmark = pytest.mark.serving
HERE = Path(__file__).resolve().parent
WORDS = ("the", "a", "of", "river", "stone", "bird", "night", "light", "water")


@pytest.fixture(scope="module")
def weights(hf_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    made = [hf_python, str(HERE / "tiny_llama.py"), str(folder)]
    subprocess.run(made, check=True, capture_output=True, timeout=400)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    return folder


@pytest.fixture(scope="module")
def server(hf_python: str, weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    places = tmp_path_factory.mktemp("places")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "locks_folder", lambda: places)
        patch.setenv("NIGHTJAR_HOME", str(places / "home"))
        serve = ServeConfig(preset="transformers", python=hf_python, dtype="float32", gpus=0)
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
