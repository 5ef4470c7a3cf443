"""vLLM in this process, with a scripted package in vLLM's place: it takes the arguments that ``vllm.LLM``,
``LLM.chat``, ``LLM.generate`` and ``SamplingParams`` take, and no others."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tasks.models.config import ModelConfig
from tasks.models.connection import probe
from tasks.models.errors import ModelError
from tasks.models.identity import settled_weights
from tasks.models.providers import vllm_offline
from tasks.models.providers.provider import provider_of
from tests.tasks.models.conftest import word_problem

PACKAGE = """
from dataclasses import dataclass, field
from typing import Any

LOADED = []


@dataclass(kw_only=True)
class SamplingParams:
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: Any = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    logit_bias: dict | None = None
    structured_outputs: Any = None
    thinking_token_budget: int | None = None


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    index: int
    text: str
    token_ids: list
    cumulative_logprob: float | None = None
    logprobs: Any = None
    finish_reason: str | None = "stop"


@dataclass
class RequestOutput:
    request_id: str
    prompt: str | None
    prompt_token_ids: list
    outputs: list
    num_cached_tokens: int | None = 3


class LLM:
    script = staticmethod(lambda text, params, index: ("an answer", "stop"))

    def __init__(
        self, model, *, revision=None, tokenizer_revision=None, tensor_parallel_size=1, dtype="auto"
    ):
        if "broken" in model:
            raise RuntimeError("no such weights")
        LOADED.append((model, revision, tensor_parallel_size))
        self.asked = []

    def get_default_sampling_params(self):
        return SamplingParams(top_p=0.9)

    def generate(self, prompts, sampling_params=None, *, use_tqdm=True, lora_request=None):
        assert use_tqdm is False
        return self._answer(list(prompts), sampling_params, {})

    def chat(self, messages, sampling_params=None, use_tqdm=True, lora_request=None, chat_template=None,
             chat_template_content_format="auto", add_generation_prompt=True, continue_final_message=False,
             tools=None, chat_template_kwargs=None, mm_processor_kwargs=None):
        assert use_tqdm is False
        texts = [conversation[-1]["content"] for conversation in messages]
        return self._answer(texts, sampling_params, chat_template_kwargs or {})

    def _answer(self, texts, params, kwargs):
        assert len(texts) == len(params)
        self.asked.append((texts, params, kwargs))
        if any("long" in text for text in texts):
            raise ValueError("The decoder prompt (length 9) is longer than the maximum model length of 4.")
        if any("dies" in text for text in texts):
            raise RuntimeError("EngineCore encountered an issue")
        return [self._output(text, one) for text, one in zip(texts, params)]

    def _output(self, text, params):
        outputs = []
        for index in range(params.n):
            said, finish = self.script(text, params, index)
            ids = list(range(len(said.split())))
            logprobs = None
            if params.logprobs is not None:
                logprobs = [{at: Logprob(-0.5, 1, word), 99: Logprob(-0.1, 1, "other")}
                            for at, word in enumerate(said.split())]
            outputs.append(CompletionOutput(index, said, ids, None, logprobs, finish))
        return RequestOutput("0", text, [1] * len(text.split()), outputs)
"""
STRUCTURED = """
from dataclasses import dataclass
from typing import Any

@dataclass
class StructuredOutputsParams:
    json: Any = None
    json_object: bool | None = None
"""


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The scripted package, and no model loaded before or after."""
    folder = tmp_path / "site" / "vllm"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "sampling_params.py").write_text(STRUCTURED)
    monkeypatch.syspath_prepend(str(folder.parent))
    for name in ("vllm", "vllm.sampling_params"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import vllm

    monkeypatch.setattr(vllm_offline, "_loaded", None)
    yield vllm
    for name in ("vllm", "vllm.sampling_params"):
        sys.modules.pop(name, None)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def model(weights: Path, config: dict[str, Any] | None = None, **fields: Any) -> ModelConfig:
    told = {"model": str(weights), **(config or {})}
    return ModelConfig.model_validate({"name": "a", "type": "vllm_offline", "config": told, **fields})


def scripted(vllm: ModuleType, script: Callable[[str, Any, int], tuple[str, str]]) -> None:
    vllm.LLM.script = staticmethod(script)


def asked(vllm: ModuleType) -> list[tuple[list[str], list[Any], dict[str, Any]]]:
    assert vllm_offline._loaded is not None
    calls: list[tuple[list[str], list[Any], dict[str, Any]]] = vllm_offline._loaded.llm.asked
    return calls


def test_requests_that_wait_go_to_vllm_together_and_the_weights_are_loaded_once(
    vllm: ModuleType, weights: Path, bench: Any, problems: Any
):
    scripted(vllm, lambda text, params, index: (f"{len(text)}", "stop"))
    outcome = bench.ask(model(weights), problems(40))
    assert outcome.column("status") == ["ok"] * 40
    prompt = word_problem(0)
    assert outcome.rows[0]["response"] == str(len(prompt))
    assert outcome.rows[0]["prompt_tokens"] == len(prompt.split())
    assert outcome.rows[0]["cached_tokens"] == 3
    assert max(len(texts) for texts, _, _ in asked(vllm)) > 1
    assert sum(len(texts) for texts, _, _ in asked(vllm)) == 40
    bench.ask(model(weights), problems(45))
    assert [(str(weights), None, 1)] == vllm.LOADED
    assert sum(len(texts) for texts, _, _ in asked(vllm)) == 45


def test_weights_that_replaced_those_that_are_loaded_are_loaded_themselves(
    vllm: ModuleType, weights: Path, bench: Any, problems: Any
):
    bench.ask(model(weights), problems(1))
    (weights / "model.safetensors").write_bytes(b"others")
    assert bench.ask(model(weights), problems(1)).tally.sent == 1
    assert [path for path, _, _ in vllm.LOADED] == [str(weights)] * 2


def test_weights_that_are_replaced_while_they_are_loaded_answer_nothing(
    vllm: ModuleType, weights: Path, bench: Any, problems: Any, monkeypatch: pytest.MonkeyPatch
):
    load = vllm.LLM.__init__

    def slow(*arguments: Any, **more: Any) -> None:
        load(*arguments, **more)
        (weights / "model.safetensors").write_bytes(b"others")

    monkeypatch.setattr(vllm.LLM, "__init__", slow)
    with pytest.raises(ModelError, match="were replaced after the run had begun"):
        bench.ask(settled_weights(model(weights), Path()), problems(1))
    assert vllm_offline._loaded is None


def test_sampling_parameters_are_vllms_own_and_the_models_defaults_hold(
    vllm: ModuleType, weights: Path, bench: Any, problems: Any
):
    schema = {"type": "object"}
    sampling = {
        "temperature": 0.5,
        "max_tokens": 9,
        "stop": ["x"],
        "seed": 4,
        "logit_bias": {"7": 1.0},
        "logprobs": True,
        "top_logprobs": 1,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    }
    thinks = {"budget_tokens": 64, "template_kwargs": {"enable_thinking": True}}
    outcome = bench.ask(model(weights, reasoning=thinks), problems(1), sampling=sampling)
    ((_, (params,), kwargs),) = asked(vllm)
    assert kwargs == {"enable_thinking": True}
    assert (params.temperature, params.top_p, params.max_tokens, params.seed) == (0.5, 0.9, 9, 4)
    assert (params.stop, params.logit_bias, params.logprobs) == (["x"], {7: 1.0}, 1)
    assert params.structured_outputs.json == schema
    assert params.thinking_token_budget == 64
    (row,) = outcome.rows
    first = json.loads(row["logprobs_json"])["content"][0]
    assert (first["token"], first["logprob"]) == ("an", -0.5)
    assert [top["token"] for top in first["top_logprobs"]] == ["other", "an"]


def test_without_a_limit_an_answer_has_the_room_that_is_left(
    vllm: ModuleType, weights: Path, bench: Any, problems: Any
):
    bench.ask(model(weights), problems(1))
    assert asked(vllm)[0][1][0].max_tokens is None


def test_answers_are_read_as_a_servers_are(vllm: ModuleType, weights: Path, bench: Any, batch_of: Any):
    said = {
        "text": ("Four.", "stop"),
        "thought": ("<think>2 + 2</think>4", "stop"),
        "cut off": ("<think>hm", "length"),
    }
    scripted(vllm, lambda text, params, index: said[text])
    outcome = bench.ask(model(weights), batch_of([{"prompts": [text]} for text in said]))
    assert outcome.column("status") == ["ok", "ok", "cut_off"]
    assert outcome.column("response") == ["Four.", "4", None]
    assert outcome.column("reasoning") == [None, "2 + 2", "hm"]


def test_samples_of_one_call_come_apart(vllm: ModuleType, weights: Path, bench: Any, problems: Any):
    scripted(vllm, lambda text, params, index: (f"{index} of {params.n}", "stop"))
    sampling = {"num_samples": 4, "n": 2, "temperature": 1.0}
    outcome = bench.ask(model(weights), problems(1), sampling=sampling)
    assert sorted(outcome.column("response")) == ["0 of 2"] * 2 + ["1 of 2"] * 2


def test_texts_go_to_generate_by_completions(vllm: ModuleType, weights: Path, bench: Any, problems: Any):
    scripted(vllm, lambda text, params, index: (text[-7:], "stop"))
    config = {"api": "completions", "engine": {"tensor_parallel_size": 2}}
    outcome = bench.ask(model(weights, config), problems(2), sampling={"logprobs": True})
    assert outcome.column("response") == ["Answer:"] * 2
    assert vllm.LOADED[-1][2] == 2


def test_one_request_that_vllm_refuses_fails_alone(
    vllm: ModuleType, weights: Path, bench: Any, batch_of: Any
):
    outcome = bench.ask(model(weights), batch_of([{"prompts": [text]} for text in ("a", "too long", "b")]))
    assert outcome.column("status") == ["ok", "infra_error", "ok"]
    assert "longer than the maximum model length" in outcome.rows[1]["error"]
    assert outcome.tally.errors == {"ContextTooLong": 1}


def test_an_engine_that_died_ends_the_asking(vllm: ModuleType, weights: Path, bench: Any, batch_of: Any):
    outcome = bench.ask(
        model(weights, {"max_concurrency": 1}), batch_of([{"prompts": [f"dies {n}"]} for n in range(9)])
    )
    assert outcome.column("status") == ["infra_error"] * 9
    assert "vLLM failed (RuntimeError: EngineCore encountered an issue)" in outcome.rows[0]["error"]
    assert outcome.tally.attempts == 1


def test_calls_of_tools_are_refused_naming_what_reads_them(
    vllm: ModuleType, weights: Path, bench: Any, batch_of: Any
):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    chat = json.dumps({"messages": [{"role": "user", "content": "q"}], "tools": [tool]})
    outcome = bench.ask(model(weights), batch_of([{"chat": True, "prompts": [chat]}]))
    assert outcome.rows[0]["error"] == (
        "type vllm_offline reads no calls of tools; ask a server of vLLM by type openai"
    )


def test_another_model_waits_until_nobody_asks_the_first(
    vllm: ModuleType, weights: Path, tmp_path: Path, bench: Any, problems: Any
):
    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"others")
    reached, go_on = threading.Event(), threading.Event()

    def script(text: str, params: Any, index: int) -> tuple[str, str]:
        reached.set()
        assert go_on.wait(60)
        return "yes", "stop"

    scripted(vllm, script)
    first = threading.Thread(target=lambda: bench.ask(model(weights), problems(1)))
    first.start()
    assert reached.wait(60)
    second = threading.Thread(target=lambda: bench.ask(model(other), problems(1)))
    second.start()
    second.join(0.3)
    assert [path for path, _, _ in vllm.LOADED] == [str(weights)]
    go_on.set()
    first.join(60)
    second.join(60)
    assert [path for path, _, _ in vllm.LOADED] == [str(weights), str(other)]


def test_entries_of_the_same_weights_are_each_asked_in_their_own_way(
    vllm: ModuleType, weights: Path, bench: Any, batch_of: Any
):
    reached, go_on = threading.Event(), threading.Event()

    def script(text: str, params: Any, index: int) -> tuple[str, str]:
        reached.set()
        assert go_on.wait(60)
        return "yes", "stop"

    scripted(vllm, script)
    ways: dict[str, dict[str, Any]] = {
        "first": {},
        "thinks": {"reasoning": {"template_kwargs": {"enable_thinking": True}}},
        "does not": {"reasoning": {"template_kwargs": {"enable_thinking": False}}},
        "text": {"config": {"api": "completions"}},
    }
    asking = {
        text: threading.Thread(
            target=lambda text=text, way=way: bench.ask(
                model(weights, **way), batch_of([{"prompts": [text]}])
            )
        )
        for text, way in ways.items()
    }
    asking["first"].start()
    assert reached.wait(60)
    for text in ("thinks", "does not", "text"):
        asking[text].start()
    loaded = vllm_offline._loaded
    assert loaded is not None
    for _ in range(600):
        if len(loaded.waiting) == 3:
            break
        time.sleep(0.1)
    go_on.set()
    for thread in asking.values():
        thread.join(60)
    told = {text: kwargs for texts, _, kwargs in asked(vllm) for text in texts}
    assert told == {
        "first": {},
        "thinks": {"enable_thinking": True},
        "does not": {"enable_thinking": False},
        "text": {},
    }
    assert len(vllm.LOADED) == 1


def test_weights_that_cannot_be_loaded_are_one_sentence(
    vllm: ModuleType, tmp_path: Path, bench: Any, problems: Any
):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"vLLM can't load .*broken \(RuntimeError: no such weights\)"):
        bench.ask(model(broken), problems(1))


def test_a_hubs_name_is_loaded_at_its_revision(vllm: ModuleType, bench: Any, problems: Any):
    commit = "0" * 40
    bench.ask(model(Path(f"org/name@{commit}")), problems(1))
    assert [("org/name", commit, 1)] == vllm.LOADED


def test_without_vllm_it_says_what_to_install_before_anything_is_asked(
    weights: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ModelError, match=r"needs vLLM in this environment.*\.\[vllm\].*type openai"):
        probe(model(weights))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sample_params": {"tool_choice": "auto"}}, "sample_params.tool_choice"),
        ({"sample_params": {"reasoning_effort": "low"}}, "sample_params.reasoning_effort"),
    ],
)
def test_what_vllm_has_no_argument_for_is_refused(
    fields: dict[str, Any], said: str, vllm: ModuleType, weights: Path
):
    with pytest.raises(ModelError, match=said):
        probe(model(weights, **fields))
    with pytest.raises(ValueError, match="template_kwargs"):
        model(weights, reasoning={"effort": "low"})


def test_log_likelihoods_are_refused_naming_what_gives_them(vllm: ModuleType, weights: Path):
    with pytest.raises(ModelError, match=r"no log-likelihoods of a text; ask one of type .*openai"):
        probe(model(weights), "loglikelihood")


def test_keys_hold_the_weights_and_what_they_are_loaded_with(vllm: ModuleType, weights: Path):
    facts = [
        provider_of(model(weights, config)).identity()
        for config in ({}, {"max_concurrency": 3}, {"engine": {"dtype": "float16"}})
    ]
    assert facts[0] == facts[1] != facts[2]
    (weights / "model.safetensors").write_bytes(b"others")
    assert provider_of(model(weights)).identity() != facts[0]
