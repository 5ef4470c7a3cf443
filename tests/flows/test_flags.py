"""Another model, or other items, by one flag."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config.checks import asked_models
from flows.config.load import CommandInputs, choose_configs, validation_document
from flows.config.models import ModelFlags
from flows.config.schema import EvalConfig
from metrics.errors import ConfigError
from tasks.models.addresses import ADDRESSES, address, answer_to
from tests.loopback import answering

Evaluate = Callable[..., Any]
EXCHANGES = yaml.safe_load((Path(__file__).parent / "provider_exchanges.yaml").read_text(encoding="utf-8"))
BENCH = """\
name: bench
dataset: items.jsonl
prompt_template: "{{question}}"
target: "{{answer}}"
sample_params: {temperature: 0, max_tokens: 16}
models:
  - name: own
    config: {model: served/own, base_url: "http://10.0.0.1:8000/v1", api_key_env: OWN_KEY, max_concurrency: 3}
  - {name: demo, type: demo}
metric_list: [exact_match]
"""


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    (tmp_path / "items.jsonl").write_text('{"question": "Say hello.", "answer": "Hello!"}\n')
    (tmp_path / "bench.yaml").write_text(BENCH)
    return tmp_path / "bench.yaml"


def test_a_config_that_is_named_twice_is_run_once(evaluate: Evaluate, bench: Path) -> None:
    done = evaluate(bench, str(bench), "--no-data", "--dry-run", "--json")
    assert len(done.document["configs"]) == 1


def chosen(bench: Path, *overrides: str, **flags: Any) -> EvalConfig:
    flags["names"] = tuple(flags.get("names", ()))
    (config,) = choose_configs(CommandInputs((bench,), overrides, models=ModelFlags(**flags))).configs
    return config


def test_a_name_of_the_config_keeps_its_entry(bench: Path) -> None:
    (model,) = chosen(bench, names=["demo"]).models
    assert (model.name, model.type) == ("demo", "demo")


def test_another_name_is_asked_at_the_address_of_the_configs_first_endpoint(bench: Path) -> None:
    (model,) = chosen(bench, names=["other/model"]).models
    assert model.served_name == "other/model"
    assert model.config.model_dump(exclude_unset=True) == {
        "base_url": "http://10.0.0.1:8000/v1",
        "api_key_env": "OWN_KEY",
        "max_concurrency": 3,
    }


def test_a_key_is_not_taken_along_to_another_address(bench: Path) -> None:
    (model,) = chosen(bench, names=["other"], base_url="https://else.where/v1").models
    assert model.config.model_dump(exclude_unset=True) == {
        "base_url": "https://else.where/v1",
        "max_concurrency": 3,
    }
    (model,) = chosen(
        bench, names=["other"], base_url="https://else.where/v1", api_key_env="ELSE", api="completions"
    ).models
    assert (model.config.api_key_env, model.config.api) == ("ELSE", "completions")  # type: ignore[union-attr]


def test_several_models_and_what_set_changes_of_them(bench: Path) -> None:
    config = chosen(bench, "models.1.config.timeout=7", names=["own", "other"])
    assert [model.name for model in config.models] == ["own", "other"]
    assert config.models[1].config.timeout == 7  # type: ignore[union-attr]


def test_a_model_that_only_judges_then_keeps_its_entry(bench: Path) -> None:
    judge = 'scorer: {type: llm_judge, prompt: "{{response}}", judges: own, parse: {type: number}}'
    bench.write_text(f"{BENCH}{judge}\n")
    config = chosen(bench, names=["other"])
    assert [model.name for model in config.models] == ["other"]
    (own,) = config.scorer.judges  # type: ignore[union-attr]
    assert (own.name, own.entry["config"]["base_url"]) == ("own", "http://10.0.0.1:8000/v1")
    (kept,) = chosen(bench, names=["own"]).scorer.judges  # type: ignore[union-attr]
    assert (kept.name, kept.entry) == ("own", {})


def test_models_that_members_and_turns_ask_then_keep_their_entries(bench: Path) -> None:
    judge = {"type": "llm_judge", "prompt": "{{response}}", "judges": "own", "parse": {"type": "number"}}
    reward = {"type": "reward_model", "model": "own"}
    asked = {
        "scorer": {"type": "ensemble", "members": [{"scorer": judge}, {"scorer": reward}]},
        "turns": {"model": "own", "prompt": "{{answer}}"},
    }
    bench.write_text(f"{BENCH}{yaml.safe_dump(asked)}")
    found = [one for *_, one in asked_models(chosen(bench, names=["other"]))]
    assert [one.name for one in found] == ["own"] * 3
    assert {one.entry["config"]["base_url"] for one in found} == {"http://10.0.0.1:8000/v1"}


def test_an_address_alone_moves_every_endpoint_of_the_config(bench: Path) -> None:
    own, demo = chosen(bench, base_url="http://10.0.0.2/v1").models
    assert own.config.base_url == "http://10.0.0.2/v1"  # type: ignore[union-attr]
    assert own.served_name == "served/own"
    assert demo.type == "demo"


def test_a_config_without_models_takes_those_of_the_flags(bench: Path) -> None:
    bench.write_text(BENCH.replace(BENCH[BENCH.index("models:") : BENCH.index("metric_list")], ""))
    (model,) = chosen(bench, names=["qwen"]).models
    assert model.config.base_url == "http://localhost:1234/v1"  # type: ignore[union-attr]
    for models in ("", "models: [{name: demo, type: demo}]\n"):
        bench.write_text(BENCH.replace(BENCH[BENCH.index("models:") : BENCH.index("metric_list")], models))
        with pytest.raises(ConfigError, match="add --model NAME"):
            chosen(bench, base_url="http://10.0.0.2/v1")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"names": ["x"], "base_url": "localhost:1"},
            r"^--base-url: expected an http:// or https:// address",
        ),
        ({"names": ["x"], "api": "responses"}, r"^--api: expected one of chat, completions, got 'responses'"),
        ({"names": ["demo"], "api": "chat"}, r"^--model demo: the config has it as demo"),
        (
            {"names": ["anthropic/claude-sonnet-4-5"]},
            "--base-url https://api.anthropic.com/v1 --api-key-env ANTHROPIC_API_KEY",
        ),
        ({"serve": "vllm"}, "--serve belongs to weights: add --model-path DIR"),
        ({"paths": ["w"], "base_url": "http://localhost:1"}, "--model-path serves the weights itself"),
        ({"paths": ["w"], "serve": "vlm"}, "server 'vlm' is not known; did you mean 'vllm'"),
        ({"names": ["bedrock/claude"]}, "--model bedrock/claude --base-url http://localhost:4000/v1"),
    ],
)
def test_flags_that_can_not_work_are_refused_by_their_names(
    bench: Path, flags: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        chosen(bench, **flags)


def test_folders_of_weights_become_models_that_are_served(bench: Path) -> None:
    for folder in ("sft/step-1", "rl/step-1", "rl/last"):
        (bench.parent / folder).mkdir(parents=True)
    paths = [str(bench.parent / name) for name in ("sft/step-1", "rl/step-1", "rl/last", "rl/step-*")]
    models = chosen(bench, paths=paths, serve="vllm").models
    assert [model.name for model in models] == ["sft-step-1", "rl-step-1", "last", "rl"]
    assert {model.serve.preset for model in models if model.serve} == {"vllm"}
    assert getattr(models[0].config, "api", None) == "completions"
    assert models[3].checkpoints is not None


def test_a_plan_without_data_answers_for_each_config(bench: Path) -> None:
    inputs = CommandInputs((bench,), models=ModelFlags(names=("x",), api="responses"))
    document, code = validation_document(inputs)
    assert code == 2
    assert document["configs"][0]["reason"].startswith("--api: ")


@pytest.mark.parametrize("kind", [*ADDRESSES, "Google", "AWS"])
def test_the_entry_that_a_provider_is_answered_with_is_one_that_works(kind: str) -> None:
    told = answer_to(kind, "mine")
    assert told is not None
    assert len(told.splitlines()) == 2
    (entry,) = yaml.safe_load(f"[{told.splitlines()[1].strip()}]")
    config = EvalConfig.model_validate(
        {"name": "x", "dataset": "a.jsonl", "prompt_template": "x", "models": [entry]}
    )
    found = address(kind)
    assert found is not None
    assert config.models[0].served_name == found.model


def test_a_type_that_is_a_providers_name_is_answered_with_file_and_line(bench: Path) -> None:
    bench.write_text(BENCH.replace("type: demo", "type: groq"))
    with pytest.raises(ConfigError) as refused:
        chosen(bench)
    assert str(refused.value).splitlines() == [
        "bench.yaml:9: models.1.type: 'groq' is asked in OpenAI's protocol; write",
        '  {name: demo, config: {model: "llama-3.3-70b-versatile", '
        'base_url: "https://api.groq.com/openai/v1", api_key_env: GROQ_API_KEY}}',
    ]


class Provider:
    """A server on loopback that gives one recorded reply, and keeps what it was asked."""

    def __init__(self, reply: dict[str, Any]) -> None:
        self.reply, self.asked = reply, []  # type: ignore[var-annotated]
        provided = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer(404, b"{}")

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                provided.asked.append((self.path, dict(self.headers), body))
                self.answer(provided.reply["status"], json.dumps(provided.reply["body"]).encode())

            def answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def providing() -> Iterator[Any]:
    with ExitStack() as stack:

        def start(reply: dict[str, Any]) -> Provider:
            provider = Provider(reply)
            stack.enter_context(answering(provider.server))
            return provider

        yield start


@pytest.mark.parametrize("name", EXCHANGES)
def test_a_providers_exchange_comes_to_an_answer_or_to_its_own_words(
    name: str, bench: Path, evaluate: Evaluate, providing: Any
) -> None:
    exchange = EXCHANGES[name]
    found = address(exchange["type"])
    assert found is not None
    served = providing(exchange["reply"])
    path = "/" + found.base_url.split("/", 3)[3]
    key = ["--api-key-env", found.key] if found.key else []
    ran = evaluate(
        bench, "--json", "--model", found.model, "--base-url", served.address + path, *key,
        "--set", "models.0.config.max_retries=0", env={found.key or "UNUSED": "the-key"},
    )  # fmt: skip
    asked, headers, body = served.asked[-1]  # where there is a key, a look ahead went before
    assert asked == exchange["path"]
    assert headers.get("Authorization") == ("Bearer the-key" if found.key else None)
    assert (body["model"], body["messages"]) == (found.model, [{"role": "user", "content": "Say hello."}])
    if exchange["reply"]["status"] == 200:
        assert ran.code == 0
        assert ran.value("exact_match,none") == 1.0
        usage = exchange["reply"]["body"]["usage"]
        assert ran.document["tokens"]["completion"] == usage["completion_tokens"]
    else:
        assert ran.code == 1
        responses = (Path(ran.document["output"]) / "responses.jsonl").read_text(encoding="utf-8")
        assert exchange["says"] in json.loads(responses.splitlines()[0])["error"]


# What is asked does not depend on how many metrics there are.
ONE_METRIC = ("--json", "--set", "filter_list=[{name: none, metric_list: [rouge1]}]")


def test_samples_are_asked_and_named_in_the_manifest(evaluate: Evaluate) -> None:
    ran = evaluate(*ONE_METRIC, "--samples", "3,7,40-41", "--limit", "3")
    assert ran.document["requests"]["sent"] == 3
    folder = Path(ran.document["output"])
    positions = {
        json.loads(line)["doc_id"] for line in (folder / "samples_demo_gsm8k.jsonl").read_text().splitlines()
    }
    assert positions == {3, 7, 40}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["samples"], manifest["limit"]) == ("3,7,40-41", 3)
    again = evaluate(*ONE_METRIC, "--samples", "7,3")
    assert again.document["requests"] == {"sent": 0, "cached": 2, "failed": 0}
    refused = evaluate("--samples", "41,42")
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.strip().endswith("--samples 42: the dataset has 42 items, at positions 0 to 41")


def test_a_shuffled_run_asks_random_items_and_the_whole_asks_for_the_rest(evaluate: Evaluate) -> None:
    few = evaluate(*ONE_METRIC, "--shuffle", "--limit", "10")
    assert few.code == 0
    assert few.document["requests"]["sent"] == 10
    ids = {row["n_items"] for row in few.document["results"]}
    assert ids == {10}
    assert evaluate(*ONE_METRIC).document["requests"] == {"sent": 32, "cached": 10, "failed": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-data"], "--no-data needs --dry-run: add it"),
        (["--no-data", "--show-prompts", "2"], "--no-data needs --dry-run: add it"),
        (["--no-data", "--dry-run", "--show-prompts", "2"], "--show-prompts reads the dataset"),
        (["--shuffle"], "--shuffle needs --limit: add it"),
        (["--tasks", " , ", "--include-path", "."], "--tasks  ,  names no benchmark"),
        (["--tasks", ",", "--include-path", ".", "--dry-run", "--no-data"], "--tasks , names no benchmark"),
        (["--phase", "infer", "--against", "R", "--gate", "g"], "phase infer computes no score that a gate"),
        (["--include-path", "."], "--include-path needs --tasks or --from-samples: add one"),
        (["--include-path", ".", "--dry-run", "--no-data"], "--include-path needs --tasks or --from-samples"),
        (["--from-samples", ".", "--set", "canaries=1"], "--from-samples takes all from the files; leave"),
        (["--from-inspect", ".", "--set", "canaries=1"], "--from-inspect takes all from the files; leave"),
        (["--from-inspect", ".", "--dry-run", "--no-data"], "--no-data looks at configs and --tasks alone"),
    ],
)
def test_an_option_that_changes_nothing_here_is_refused(
    evaluate: Evaluate, arguments: list[str], said: str
) -> None:
    refused = evaluate(*arguments)
    assert (refused.code, refused.out) == (2, "")
    assert refused.err.startswith(f"error: {said}")


def test_a_config_of_two_phases_may_have_the_limit_of_a_shuffle(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "items.jsonl").write_text('{"question": "Say hello.", "answer": "Hello!"}\n')
    (tmp_path / "two.yaml").write_text(
        "name: two\nlimit: 1\ndataset: {type: file, path: items.jsonl}\n"
        "prompt_template: '{{question}}'\nmodels: [{name: demo, type: demo}]\nmetric_list: [exact_match]\n"
    )
    ran = evaluate(tmp_path / "two.yaml", "--shuffle", "--dry-run")
    assert "two: 1 item, 1 request to send" in ran.out
