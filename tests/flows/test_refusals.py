"""Bad input is answered in one line with exit code 2, before a flow run or a server exists."""

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.eval.__main__ import main
from tasks.models.demo.options import DemoOptions
from tasks.models.demo.server import serve

Refuse = Callable[..., str]
GOOD = {
    "name": "tiny",
    "dataset": "items.jsonl",
    "prompt_template": "{{q}}",
    "models": [{"name": "demo", "type": "demo"}],
}


@pytest.fixture
def refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Runs a config in this process and returns the error; the call must be refused."""
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "items.jsonl").write_text('{"id": "a", "q": "1 + 1?", "ground_truth": "2"}\n')

    def call(config: dict[str, object] | None, *arguments: str) -> str:
        path = tmp_path / "config.yaml"
        if config is not None:
            path.write_text(json.dumps(config))
        out = () if "--output" in arguments else ("--output", str(tmp_path / "out"))
        monkeypatch.setattr(sys, "argv", ["eval", str(path), *out, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 2, said
        assert "Traceback" not in said.err
        assert not (tmp_path / "home" / "server").exists()
        assert not (tmp_path / "out").exists(), "what is refused leaves no folder among the results"
        return said.err.strip()

    return call


def test_missing_config(refuse: Refuse) -> None:
    assert "config.yaml" in refuse(None)


def test_missing_dataset(refuse: Refuse) -> None:
    assert "absent.jsonl is not there" in refuse({**GOOD, "dataset": "absent.jsonl"})


def test_empty_dataset(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty" in refuse({**GOOD, "dataset": "empty.jsonl"})


def test_malformed_line_is_named(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"q": "1"}\n{"q": \n')
    assert "broken.jsonl:2" in refuse({**GOOD, "dataset": "broken.jsonl"})


def test_a_malformed_line_of_a_recording_is_named(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "said.jsonl").write_text('{"item_id": "a", "response": "2"}\n{"item_id": \n')
    recorded = {"name": "r", "type": "replay", "config": {"path": "said.jsonl"}}
    error = refuse({**GOOD, "models": [recorded], "metric_list": ["exact_match"]})
    assert "said.jsonl: line 2: malformed JSON" in error


def test_duplicate_ids_name_both_lines(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "twice.jsonl").write_text('{"id": 1, "q": "a"}\n{"id": 2, "q": "b"}\n{"id": 1, "q": "c"}\n')
    error = refuse({**GOOD, "dataset": "twice.jsonl"})
    assert "twice.jsonl:3" in error
    assert "line 1" in error or ":1" in error


def test_unknown_template_variable(refuse: Refuse) -> None:
    error = refuse({**GOOD, "prompt_template": "{{question}}"})
    assert "template variable 'question' is in no item" in error
    assert "config.yaml:" in error


def test_unknown_metric_names_the_nearest(refuse: Refuse) -> None:
    error = refuse({**GOOD, "metric_list": ["exactmatch"]})
    assert "'exactmatch' is not known" in error
    assert "did you mean 'exact_match'" in error


def test_unknown_model_type(refuse: Refuse) -> None:
    assert "opneai" in refuse({**GOOD, "models": [{"name": "m", "type": "opneai"}]})


def test_wrong_type(refuse: Refuse) -> None:
    assert "num_samples" in refuse({**GOOD, "sample_params": {"num_samples": "many"}})


def test_reduction_that_needs_more_repeats_than_there_are(refuse: Refuse) -> None:
    metric = {"metric": "exact_match", "reduction": ["pass@8"]}
    assert "pass@8" in refuse({**GOOD, "sample_params": {"num_samples": 4}, "metric_list": [metric]})


def test_output_that_cannot_be_written(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "out"
    said = refuse(GOOD, "--output", str(place))
    assert f"--output (or NIGHTJAR_RESULTS) {place}: can't be written" in said


def test_endpoint_that_is_not_there(refuse: Refuse) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
    error = refuse({**GOOD, "models": [{"name": "m", "config": {"base_url": url, "max_retries": 0}}]})
    assert url in error
    assert "start the server" in error


def test_wrong_key_is_refused_and_not_shown(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-wrong-and-secret")
    with serve(DemoOptions(api_key="sk-right")) as running:
        config = {"base_url": running.base_url, "api_key_env": "A_KEY"}
        error = refuse({**GOOD, "models": [{"name": "demo", "config": config}]})
    assert "refused access" in error
    assert "sk-wrong" not in error


def test_credentials_in_an_address(refuse: Refuse) -> None:
    config = {"base_url": "http://user:hunter2@127.0.0.1:9/v1"}
    error = refuse({**GOOD, "models": [{"name": "m", "config": config}]})
    assert "credentials" in error
    assert "hunter2" not in error


def test_override_is_named(refuse: Refuse) -> None:
    assert "--set" in refuse(GOOD, "--set", "metric_lst=[bleu]")


def test_unknown_option(refuse: Refuse) -> None:
    assert "--limt" in refuse(GOOD, "--limt", "5")


def test_store_that_cannot_be_written(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = refuse(GOOD, "--store", str(tmp_path / "file" / "store"))
    assert str(tmp_path / "file" / "store") in said
    assert "Not a directory" in said
    assert "--repair" not in said, "nothing there is damaged"


def test_refresh_of_something_that_is_not_there(refuse: Refuse) -> None:
    assert "--refresh scroe: no such stage or pair; did you mean 'score'?" in refuse(
        GOOD, "--refresh", "scroe"
    )


def test_refresh_of_a_stage_that_the_phase_does_not_come_to(refuse: Refuse) -> None:
    said = refuse(GOOD, "--phase", "infer", "--refresh", "infer", "--refresh", "score")
    assert "--refresh score: phase infer does not come to it" in said


def test_an_override_that_a_later_one_would_drop(refuse: Refuse) -> None:
    said = refuse(GOOD, "--set", "models.0.sample_params.seed=3", "--set", "models=[{name: a, type: demo}]")
    assert "--set models replaces what --set models.0.sample_params.seed sets before it" in said


def test_all_configs_are_looked_at_before_the_first_runs(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(json.dumps({**GOOD, "name": "other", "dataset": "absent.jsonl"}))
    assert "absent.jsonl is not there" in refuse(GOOD, str(tmp_path / "other.yaml"))


def test_benchmarks_of_one_name_would_overwrite_each_other(refuse: Refuse, tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(json.dumps(GOOD))
    assert "several benchmarks are called 'tiny'" in refuse(GOOD, str(tmp_path / "other.yaml"))


@pytest.mark.parametrize("runner", ["processes", "dask"])
def test_a_store_in_memory_that_other_processes_would_not_see(refuse: Refuse, runner: str) -> None:
    said = refuse(GOOD, "--store", "memory://x", "--task-runner", runner)
    assert "other processes don't see the store memory://x" in said


@pytest.mark.parametrize(
    "limits", [{"limits": {"max_tokens": 9}}, {"limits": {"max_cost": 1}, "prices": {"demo": {"prompt": 1}}}]
)
def test_a_limit_that_each_of_several_processes_would_spend(
    refuse: Refuse, limits: dict[str, object]
) -> None:
    said = refuse(GOOD | limits, "--task-runner", "processes")
    assert "limits.max_tokens and limits.max_cost hold within one process" in said


@pytest.mark.parametrize("arguments", [(), ("--dry-run",), ("--show-prompts", "1")])
def test_a_runner_that_is_not_known(refuse: Refuse, arguments: tuple[str, ...]) -> None:
    said = refuse(GOOD, "--task-runner", "foo", *arguments)
    assert "--task-runner foo: expected threads, processes, dask" in said


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_a_password_in_the_store_s_uri(refuse: Refuse, arguments: tuple[str, ...]) -> None:
    error = refuse(GOOD, "--store", "sftp://me:hunter2@127.0.0.1/x", *arguments)
    assert "store sftp://me@127.0.0.1/x: a password in its URI" in error
    assert "hunter2" not in error


@pytest.mark.parametrize("arguments", [(), ("--dry-run",)])
def test_store_of_an_unknown_kind(refuse: Refuse, arguments: tuple[str, ...]) -> None:
    for store in ("nope://x", "github://owner/name"):
        assert f"store {store}: can't be opened" in refuse(GOOD, "--store", store, *arguments)


def test_prefect_server_that_is_not_there(refuse: Refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    error = refuse(GOOD)
    assert "no Prefect server can be used at http://127.0.0.1:9/api" in error
    assert "unset PREFECT_API_URL" in error


@pytest.mark.parametrize(
    "name",
    [
        "..",
        ".",
        "../../etc",
        "a\\..\\b",
        "n" * 300,
        "ü" * 150,
        "gpj.\u202eexe",
        "\x1b[2J",
        "two\nlines",
        "\u2066x",
    ],
    ids=ascii,
)
@pytest.mark.parametrize("what", ["benchmark", "model", "filter", "prompt"])
def test_a_name_that_is_a_path_too_long_or_not_to_be_shown(refuse: Refuse, what: str, name: str) -> None:
    prompts = {key: value for key, value in GOOD.items() if key != "prompt_template"}
    config = {
        "benchmark": {**GOOD, "name": name},
        "model": {**GOOD, "models": [{"name": name, "type": "demo"}]},
        "filter": {**GOOD, "filter_list": [{"name": name, "filter": [{"function": "take_first"}]}]},
        "prompt": {**prompts, "prompt_templates": [{"name": name, "template": "{{q}}"}]},
    }[what]
    error = refuse(config, "--dry-run")
    assert "name" in error
    assert error.isascii() or "ü" in error, "it is shown escaped"


def test_names_of_models_may_hold_slashes(tmp_path: Path) -> None:
    from tasks.models.config import ModelConfig

    for name in ("Qwen/Qwen3-8B", "/data/models/step-100", "gpt-4o-mini@2024", "モデル ü"):
        assert ModelConfig(name=name).name == name
