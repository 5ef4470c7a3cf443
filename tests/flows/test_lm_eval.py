"""The command line of lm-evaluation-harness: what its flags become, and which are refused with what to do."""

import json
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flows.lm_eval.arguments import HarnessArguments, read_arguments, run_parser
from flows.lm_eval.models import MODELS, NOT_HERE, asked_model
from metrics.errors import ConfigError
from tasks.models.config import ModelConfig

TASKS = Path(__file__).parents[1] / "fixtures" / "lm_eval_commands" / "tasks"
URL = "http://127.0.0.1:9/v1"


def completions(url: str) -> list[str]:
    """The words that name a model at an address."""
    return ["--model", "local-completions", "--model_args", f"model=m,base_url={url}/completions"]


COMPLETIONS = completions(URL)
CHAT = ("--model", "local-chat-completions", "--model_args", f"model=m,base_url={URL}/chat/completions")
FLAGS = (
    "--apply_chat_template", "--batch_size", "--cache_requests", "--check_integrity", "--config",
    "--confirm_run_unsafe_code", "--device", "--fewshot_as_multiturn", "--gen_kwargs", "--hf_hub_log_args",
    "--include_path", "--limit", "--log_samples", "--max_batch_size", "--metadata", "--model", "--model_args",
    "--num_fewshot", "--output_path", "--predict_only", "--samples", "--seed", "--show_config",
    "--system_instruction", "--tasks", "--trackio_args", "--trust_remote_code", "--use_cache", "--verbosity",
    "--wandb_args", "--wandb_config_args", "--write_out",
)  # fmt: skip
"""Those of ``lm-eval run`` 0.4.13."""


def read(*words: str) -> HarnessArguments:
    return read_arguments(["--tasks", "a", *words])


def entry(model: str, arguments: str, *words: str) -> dict[str, Any]:
    """The entry of a model, which a config takes."""
    asked = asked_model(read("--model", model, "--model_args", arguments, *words))
    ModelConfig.model_validate(asked.entry)
    return asked.entry


def test_every_flag_of_the_harness_is_known_and_every_key_of_its_config_file() -> None:
    known = {option for action in run_parser()._actions for option in action.option_strings}
    assert set(FLAGS) <= known
    keys = {one.name for one in fields(HarnessArguments)}
    assert {flag.removeprefix("--") for flag in FLAGS} - {"config"} <= keys


def test_values_are_read_as_the_harness_reads_them() -> None:
    arguments = read(
        "--model_args", "pretrained=gpt2,dtype=float", "max_length=64,parallelize=True",
        "--gen_kwargs", "temperature=0.5,until=['a,b', \"c\"],do_sample=true",
        "--metadata", '{"lengths": [1, 2]}', "-L", "0.25", "--seed", "0,None,8,52", "-t", "b,c", "a",
    )  # fmt: skip
    assert arguments.tasks == ("b", "c", "a")  # the last flag of a name counts
    assert arguments.model_args == {
        "pretrained": "gpt2", "dtype": "float", "max_length": 64, "parallelize": True,
    }  # fmt: skip
    assert arguments.gen_kwargs == {"temperature": 0.5, "until": ["a,b", "c"], "do_sample": True}
    assert (arguments.metadata, arguments.limit) == ({"lengths": [1, 2]}, 0.25)
    assert arguments.seed == (0, None, 8, 52)
    assert read("--seed", "42").seed == (42, 42, 42, 42)
    assert read("--seed", "1,2,3").seed == (1, 2, 3, 1234)


def test_a_flag_beats_the_config_file_unless_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("model: vllm\nmodel_args: pretrained=x\ntasks: [a, b]\nnum_fewshot: 3\nseed: 7\n")
    arguments = read_arguments(["--config", str(path), "--num_fewshot", "0", "--model_args", "pretrained=y"])
    assert (arguments.model, arguments.tasks, arguments.num_fewshot) == ("vllm", ("a", "b"), 0)
    assert (arguments.model_args, arguments.seed) == ({"pretrained": "y"}, (7, 7, 7, 7))


def test_an_unknown_key_of_the_config_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("tasks: [a]\nnum_fewshots: 3\n")
    with pytest.raises(ConfigError, match=r"c\.yaml:2: .*'num_fewshots'; did you mean 'num_fewshot'"):
        read_arguments(["--config", str(path)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--tasks is missing"),
        (("--tasks", "a", "--limit", "2", "--samples", '{"a": [0]}'), "give one of them"),
        (("--tasks", "a", "--limit", "0"), "expected a number of documents"),
        (("--tasks", "a", "--log_samples"), "--log_samples needs --output_path"),
        (("--tasks", "a", "--predict_only"), "--predict_only needs --output_path"),
        (("--tasks", "a", "--fewshot_as_multiturn"), "add --apply_chat_template"),
        (("--tasks", "a", "--samples", "nowhere.json"), "nowhere.json"),
        (("--tasks", "a", "--samples", '{"a": [-1]}'), "'a': expected a list of documents' numbers"),
        (("--tasks", "a", "--gen_kwargs", "temperature"), "expected key=value, got 'temperature'"),
        (("--tasks", "a", "--gen_kwargs", "{'a': 1}"), "--gen_kwargs: not valid JSON"),
        (("--tasks", "a", "--seed", "1,2"), "expected one number, or four"),
        (("--tasks", "a", "--seed", "x"), "expected whole numbers or None"),
        (("--tasks", "a", "--cache_requests", "maybe"), "expected true, refresh or delete"),
        (("--tasks", "a", "--nowhere"), "unrecognized arguments: --nowhere"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_arguments(words)


def test_endpoints_become_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    arguments = f"model=org/m,base_url={URL}/completions,tokenizer=bytes,num_concurrent=4,max_retries=3"
    assert entry("local-completions", f"{arguments},batch_size=8,seed=5,timeout=9") == {
        "name": "org/m",
        "config": {
            "api": "completions", "base_url": URL, "model": "org/m", "batch_size": 8, "max_concurrency": 4,
            "timeout": 9, "max_retries": 2,
        },
        "tokenizer": "bytes", "max_length": 2048, "sample_params": {"seed": 5},
    }  # fmt: skip
    official = entry("openai-chat-completions", "model=gpt-4o", "--apply_chat_template")
    assert official["config"] == {
        "api": "chat", "base_url": "https://api.openai.com/v1", "model": "gpt-4o",
        "api_key_env": "OPENAI_API_KEY",
    }  # fmt: skip
    thinking = f"model=m,base_url={URL}/chat/completions,enable_thinking=True,think_end_token=</done>"
    assert entry("local-chat-completions", thinking, "--apply_chat_template")["reasoning"] == {
        "marks": ["<done>", "</done>"], "template_kwargs": {"enable_thinking": True},
    }  # fmt: skip
    claude = entry("anthropic-chat-completions", "model=claude", "--apply_chat_template")
    assert (claude["type"], claude["config"]["api_key_env"]) == ("anthropic", "ANTHROPIC_API_KEY")


def test_weights_are_served() -> None:
    arguments = "pretrained=org/m,revision=step1,dtype=float,peft=adapter,parallelize=True,max_length=512"
    served = entry("hf", arguments, "--device", "cuda:0", "--trust_remote_code", "--seed", "3")
    assert served == {
        "name": "adapter", "path": "org/m@step1", "peft": "adapter", "max_length": 512,
        "config": {"api": "completions", "max_concurrency": 256}, "sample_params": {"seed": 3},
        "serve": {
            "preset": "transformers", "dtype": "float32", "device_map": "auto",
            "args": ["--device", "cuda:0", "--trust-remote-code"],
        },
    }  # fmt: skip
    engine = entry("vllm", "pretrained=m,tensor_parallel_size=2,gpu_memory_utilization=0.8,max_length=99")
    assert engine["serve"] == {
        "preset": "vllm", "gpus": 2, "args": ["--max-model-len", "99", "--gpu-memory-utilization", "0.8"],
    }  # fmt: skip
    assert entry("gguf", f"base_url={URL.removesuffix('/v1')}")["config"]["base_url"] == URL
    assert entry("gguf", "pretrained=m.gguf")["serve"] == {"preset": "llama.cpp"}


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("local-completions", "model=m", "needs its address"),
        ("local-completions", f"base_url={URL}/completions", "names no model"),
        ("local-completions", f"model=m,base_url={URL}", "expected an address that ends with /completions"),
        ("local-completions", f"model=m,base_url={URL}/completions,bass=1", "takes no such argument"),
        ("local-completions", f"model=m,base_url={URL}/completions,header={{}}", None),
        ("local-completions", f"model=m,base_url={URL}/completions,header={{'a':'b'}}", "put a proxy"),
        (
            "local-completions",
            f"model=m,base_url={URL}/completions,verify_certificate=False",
            "SSL_CERT_FILE",
        ),
        ("local-chat-completions", f"model=m,base_url={URL}/chat/completions", "add --apply_chat_template"),
        ("hf", "dtype=float", "names no model"),
        ("hf", "pretrained=m,load_in_4bit=True", "start a server of the weights"),
        ("hf", "pretrained=m,delta=d", "start a server of the weights"),
        ("hf", "pretrained=m,pretrain=x", "did you mean 'pretrained'"),
        ("local-completion", "model=m", "did you mean 'local-completions'"),
    ],
)
def test_arguments_of_models_are_used_or_refused(model: str, arguments: str, said: str | None) -> None:
    if said is None:
        entry(model, arguments)
        return
    with pytest.raises(ConfigError, match=said):
        entry(model, arguments)


@pytest.mark.parametrize("model", NOT_HERE)
def test_a_model_that_is_not_here_is_refused_with_what_to_use(model: str) -> None:
    assert model not in MODELS
    with pytest.raises(ConfigError, match=r"use|asks nothing"):
        entry(model, "pretrained=m")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--check_integrity",), "validate --tasks"),
        (("--trackio_args", "project=p"), "use --wandb_args"),
        (("--wandb_config_args", "a=1"), "leave it out"),
        (("--wandb_args", "name=n"), "project=NAME is missing"),
        (("--wandb_args", "project=p,group=g"), "--wandb_args group"),
        (("--hf_hub_log_args", "push_results_to_hub=True"), "hf upload"),
        (("--apply_chat_template", "tool_use"), "the server applies its own template"),
        (("--apply_chat_template",), "use --model local-chat-completions"),
        (("--show_config",), "add --output_path"),
        (("--seed", "0,1,2,None"), "None for few-shot examples"),
        (("--samples", '{"gsm9k": [0]}'), "selects no benchmark 'gsm9k'; did you mean 'gsm8k'"),
    ],
)
def test_a_flag_without_a_counterpart_says_what_to_do(
    lm_eval: Callable[..., Any], words: tuple[str, ...], said: str
) -> None:
    ran = lm_eval(*COMPLETIONS, "--tasks", "gsm8k", "--include_path", TASKS, *words)
    assert ran.code == 2
    assert said in ran.err


def test_a_benchmark_of_log_likelihoods_is_refused_for_a_chat(lm_eval: Callable[..., Any]) -> None:
    ran = lm_eval(*CHAT, "--apply_chat_template", "--tasks", "arc_easy", "--include_path", TASKS)
    assert (ran.code, "arc_easy asks for log-likelihoods" in ran.err) == (2, True)


def test_programs_that_models_write_need_the_flag(lm_eval: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(f"include: {TASKS / 'gsm8k.yaml'}\ntask: p\nunsafe_code: true\n")
    ran = lm_eval(*COMPLETIONS, "--tasks", "p", "--include_path", tmp_path)
    assert (ran.code, "add --confirm_run_unsafe_code" in ran.err) == (2, True)


@pytest.mark.parametrize("key", ["formats: mcqa", "scorer: first_token"])
@pytest.mark.parametrize("included", [False, True])
def test_formats_and_scorers_of_the_next_version_are_refused_by_file_and_line(
    lm_eval: Callable[..., Any], tmp_path: Path, key: str, included: bool
) -> None:
    text = (TASKS / "gsm8k.yaml").read_text().replace("task: gsm8k\n", "")
    (tmp_path / "base").write_text(f"{text}{key}\n" if included else text)
    own = "" if included else f"{key}\n"
    (tmp_path / "n.yaml").write_text(f"include: base\ntask: n\n{own}")
    ran = lm_eval(*COMPLETIONS, "--tasks", "n", "--include_path", tmp_path)
    place = f"base:{len(text.splitlines()) + 1}" if included else "n.yaml:3"
    assert ran.code == 2
    assert f"{place}: '{key.partition(':')[0]}' chooses" in ran.err


def test_a_format_behind_a_name_is_refused(lm_eval: Callable[..., Any]) -> None:
    ran = lm_eval(*COMPLETIONS, "--tasks", "arc_easy@cloze", "--include_path", TASKS)
    assert (ran.code, "belong to version 0.5 of the harness" in ran.err) == (2, True)


@pytest.mark.parametrize("command", ["run", "ls", "validate"])
def test_the_help_of_each_command_is_no_failure(lm_eval: Callable[..., Any], command: str) -> None:
    ran = lm_eval(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "--include_path" in ran.out


def test_definitions_are_listed_and_validated(lm_eval: Callable[..., Any]) -> None:
    groups = lm_eval("ls", "groups", "--include_path", TASKS)
    assert [line.split()[:2] for line in groups.out.splitlines()] == [["mmlu", "group"]]
    tags = lm_eval("ls", "tags", "--include_path", TASKS)
    assert {line.split()[0] for line in tags.out.splitlines()} == {"ai2_arc", "lambada", "math_word_problems"}
    subtasks = lm_eval("ls", "subtasks", "--include_path", TASKS)
    assert "mmlu_anatomy" in subtasks.out
    assert "math_word_problems" not in subtasks.out
    sound = lm_eval("validate", "--tasks", "gsm8k,mmlu", "--include_path", TASKS)
    assert (sound.code, sound.out.count("ok ")) == (0, 3)
    assert lm_eval("validate", "--tasks", "gsm9k", "--include_path", TASKS).code == 2


def test_one_bad_benchmark_of_a_list_costs_itself_only_under_force(
    lm_eval: Callable[..., Any], base_url: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.yaml").write_text(f"include: {TASKS / 'gsm8k.yaml'}\ntask: bad\nscorer: x\n")
    (tmp_path / "gone.yaml").write_text(
        f"include: {TASKS / 'gsm8k.yaml'}\ntask: gone\ndataset_kwargs: {{data_files: {{test: gone.jsonl}}}}\n"
        "num_fewshot: 0\nfewshot_split: null\ntraining_split: null\n"
    )
    (tmp_path / "both.yaml").write_text(
        "group: both\ntask: [good, bad]\naggregate_metric_list: [{metric: exact_match}]\n"
    )
    good = (TASKS / "gsm8k.yaml").read_text().replace("task: gsm8k", "task: good")
    (tmp_path / "good.yaml").write_text(good.replace("data/", f"{TASKS}/data/"))
    words = completions(base_url)
    words += ["--tasks", "both,gone,nowhere", "--limit", "2", "--include_path", str(tmp_path)]
    words += ["--output_path", str(tmp_path / "out")]
    refused = lm_eval(*words)
    assert (refused.code, (tmp_path / "out").exists()) == (2, False)
    ran = lm_eval(*words, "--force")
    assert ran.code == 1, ran.err
    for name in ("bad", "gone", "nowhere"):
        assert f"error: {name} is left out: " in ran.err
    [results] = (tmp_path / "out").rglob("results_*.json")
    found = json.loads(results.read_text())["results"]
    assert found["good"]["sample_len"] == 2
    assert found["both"]["exact_match,strict-match"] is None  # the mean of one would be another benchmark's
    alone = lm_eval(*words[:4], "--tasks", "bad", *words[6:], "--force")
    assert alone.code == 2


@pytest.fixture
def base_url() -> Any:
    from tasks.models.demo.server import serve

    with serve() as server:
        yield server.base_url


def test_what_needs_no_flag_is_said_and_the_first_prompt_is_shown(
    lm_eval: Callable[..., Any], base_url: str, tmp_path: Path
) -> None:
    words = ["run", *completions(base_url)]
    words += ["--tasks", "gsm8k_cot", "--include_path", str(TASKS), "--limit", "2", "--write_out"]
    words += ["--use_cache", "x", "--cache_requests", "--verbosity", "INFO", "--device", "cuda:0"]
    ran = lm_eval(*words, "--output_path", tmp_path / "out", "--show_config")
    assert ran.code == 0, ran.err
    for flag in ("--use_cache needs nothing", "--cache_requests needs nothing", "--verbosity has no effect"):
        assert flag in ran.err
    assert ran.out.startswith("gsm8k_cot, item ")
    assert "Q: Bo has 55 moths" in ran.out
    assert '"model_source": "local-completions"' in ran.out
    assert list((tmp_path / "out").rglob("samples_*")) == []  # they were not asked for


def test_a_failed_run_advises_the_command_that_was_called(
    lm_eval: Callable[..., Any], base_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a b"}\n')
    (tmp_path / "a.yaml").write_text(
        "task: a\noutput_type: loglikelihood_rolling\ndataset_path: json\ntest_split: test\n"
        "dataset_kwargs: {data_files: {test: a.jsonl}}\ndoc_to_text: ''\ndoc_to_target: text\n"
    )
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec("flows.lm_eval.__main__", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    words = ["run", *completions(base_url)]
    ran = lm_eval(*words, "--tasks", "a", "--include_path", tmp_path)
    assert ran.code == 1, ran.err
    assert "This computes only what is missing: python -m flows.lm_eval run --model" in ran.out
