"""An adapter over a base: which model the two are, and how each server is told of them."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from metrics.errors import ConfigError
from tasks.models.config import ModelConfig
from tasks.models.identity import model_identity
from tasks.models.providers.openai.templates import _of_tokenizer
from tasks.models.served import at_server
from tasks.serving import launch as launching
from tasks.serving.config import PRESETS, ServeConfig
from tasks.serving.launch import Launch, check_launch, order_for
from tasks.serving.servers import RunningServer, start_server, stop_server
from tasks.serving.weights import lacking, weights_identity, weights_of

FAKE = Path(__file__).with_name("fake_server.py")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr(launching, "locks_folder", lambda: places)
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "config.json").write_text('{"max_position_embeddings": 64}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return an_adapter(tmp_path / "lora" / "step-10", over="../base")


def an_adapter(folder: Path, over: str, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 24, "base_model_name_or_path": over, **config})
    )
    (folder / "adapter_model.safetensors").write_bytes(b"adapter")
    return folder


def with_tokenizer(adapter: Path) -> Path:
    (adapter / "tokenizer_config.json").write_text('{"chat_template": "<think>"}')
    (adapter / "tokenizer.json").write_text("{}")
    return adapter


def test_an_adapter_is_a_model_of_its_own_by_its_bytes_and_those_of_its_base(
    base: Path, adapter: Path
) -> None:
    def identity(peft: Path | None = adapter) -> dict[str, Any]:
        return weights_identity(str(base), base, None if peft is None else str(peft))

    alone, before = identity(None), identity()
    assert before == {**alone, "adapter": before["adapter"]}
    moved = adapter.rename(adapter.with_name("elsewhere"))
    assert identity(moved) == before
    (moved / "adapter_model.safetensors").write_bytes(b"ADAPTER")
    other = identity(moved)
    assert other != before
    assert other["weights"] == before["weights"]
    (base / "model.safetensors").write_bytes(b"WEIGHTS")
    assert identity(moved)["weights"] != before["weights"]


def test_a_path_to_an_adapter_is_it_over_the_base_that_it_names(base: Path, adapter: Path) -> None:
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(base)}))
    assert weights_of(str(adapter), None, base) == weights_of(str(base), str(adapter), base)
    both = weights_identity(str(adapter), base)
    assert both == weights_identity(str(base), base, str(adapter))
    assert lacking(adapter, base) is None


@pytest.mark.parametrize("revision", ["main", "v1"])
def test_an_adapter_over_a_branch_of_a_hub_is_another_once_the_branch_moves(
    base: Path, adapter: Path, tmp_path: Path, revision: str
) -> None:
    an_adapter(adapter.with_name("hub"), "org/base", revision=revision)
    with pytest.raises(ConfigError, match=f"an adapter over 'org/base@{revision}', which is not here"):
        weights_identity(str(adapter.with_name("hub")), base)
    refs = tmp_path / "hub" / "models--org--base" / "refs"
    refs.mkdir(parents=True)
    for commit in ("1" * 40, "2" * 40):
        (refs / revision).write_text(commit)
        found = weights_identity(str(adapter.with_name("hub")), base)
        assert (found["hub"], found["revision"]) == ("org/base", commit)


@pytest.mark.parametrize("over", ["org/base", "/not/there", ""])
def test_an_adapter_whose_base_is_not_here_says_what_to_write(base: Path, tmp_path: Path, over: str) -> None:
    alone = an_adapter(tmp_path / "alone", over)
    with pytest.raises(
        ConfigError, match=f"is an adapter over '{over}', which is not here: name the folder of"
    ):
        weights_identity(str(alone), base)
    assert "name the folder of its base in path, and the adapter in peft" in str(lacking(alone, base))
    assert weights_of(str(base), str(alone), base).adapter == alone  # what is written is what counts


def test_what_is_no_adapter_is_refused(base: Path, adapter: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no adapter: expected a folder with adapter_config\.json"):
        weights_of(str(base), str(base), base)
    with pytest.raises(ConfigError, match="is an adapter itself: name its base in path"):
        weights_of(str(adapter), str(adapter), base)
    with pytest.raises(ValidationError, match="peft needs its base"):
        ModelConfig.model_validate({"name": "m", "peft": str(adapter)})
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"adapter_config\.json: can't be read"):
        weights_of(str(adapter), None, base)


def an_order(base: Path, adapter: Path, preset: str | None, **serve: Any) -> tuple[str, ...]:
    told = {"preset": preset, **serve} if preset is not None else serve
    config = ServeConfig.model_validate(told)
    return order_for(Launch("m", "m", config, str(base), "/", str(adapter)), os.getpid()).command


WORDS: dict[str, tuple[str, ...]] = {
    "transformers": ("--peft", "{adapter}"),
    "vllm": (
        "--enable-lora", "--max-lora-rank", "32", "--lora-modules", '{"name": "m", "path": "{adapter}"}',
        "--tokenizer", "{adapter}",
    ),
    "sglang": ("--enable-lora", "--lora-paths", "lora={adapter}", "--tokenizer-path", "{adapter}"),
}  # fmt: skip


@pytest.mark.parametrize("preset", WORDS)
def test_a_server_is_told_of_the_adapter_and_serves(
    base: Path, adapter: Path, tmp_path: Path, preset: str
) -> None:
    with_tokenizer(adapter)
    # A stand-in for the server's Python: it notes its words, and serves.
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\n''':'\nexec '{sys.executable}' \"$0\" \"$@\"\n'''\n"
        "import json, os, sys\n"
        "if '-c' in sys.argv: print(*['1.0'] * (len(sys.argv) - 3)); sys.exit()\n"
        f"open({str(tmp_path / 'told')!r}, 'w').write(json.dumps(sys.argv[1:]))\n"
        "port = sys.argv[sys.argv.index('--port') + 1]\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, {str(FAKE)!r}, '--path', {str(adapter)!r}, "
        "'--port', port])\n"
    )
    python.chmod(0o755)
    (adapter / "answer.txt").write_text("42")
    serve = ServeConfig(preset=preset, gpus=0, python=str(python), ready="/")
    server = start_server(Launch("m", "m", serve, str(base), "/", str(adapter)))
    try:
        reply = httpx.post(f"{server.base_url}/completions", json={"prompt": "?"}, timeout=60)
        assert reply.json()["choices"][0]["text"] == "42"
    finally:
        stop_server(Path(server.folder))
    words = json.loads((tmp_path / "told").read_text())
    expected = [word.replace("{adapter}", str(adapter)) for word in WORDS[preset]]
    assert words[-len(expected) :] == expected
    assert str(base) in words
    if "--served-model-name" in words:  # the name that is asked is the adapter's
        assert words[words.index("--served-model-name") + 1] == "m-base"


@pytest.mark.parametrize("preset", PRESETS)
def test_without_an_adapter_nothing_is_said_of_one(base: Path, preset: str) -> None:
    if PRESETS[preset].adapter is None:
        pytest.skip("it takes none")
    serve = ServeConfig(preset=preset, gpus=0)
    words = order_for(Launch("m", "m", serve, str(base), "/"), os.getpid()).command
    assert not [word for word in words if "lora" in word or "peft" in word or word == "m-base"]
    assert "m" in words


def test_a_command_of_ones_own_has_the_adapters_folder_in_it(base: Path, adapter: Path) -> None:
    words = an_order(base, adapter, None, command="serve {path} {port} --lora {adapter}")
    assert words[-2:] == ("--lora", str(adapter))
    with pytest.raises(ConfigError, match=r"peft: expected \{adapter\} in serve.command"):
        an_order(base, adapter, None, command="serve {path} {port}")
    (base / "m.gguf").write_bytes(b"x")
    with pytest.raises(
        ConfigError, match=r"llama\.cpp takes no adapter's folder \(transformers, vllm, sglang"
    ):
        an_order(base, adapter, "llama.cpp")


def test_a_container_sees_both_folders(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = an_order(base, adapter, "vllm", container="example/image")
    assert {f"{base}:/model:ro", f"{adapter}:/adapter:ro", '{"name": "m", "path": "/adapter"}'} <= set(words)


def test_the_package_that_is_missing_is_told_with_its_command(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    versions = 'shift 2\nfor one in "$@"; do printf "1.0 "; done\n'
    python.write_text(f'#!/bin/sh\ncase "$*" in *peft*) exit 1;; esac\n{versions}')
    python.chmod(0o755)
    serve = ServeConfig(preset="transformers", gpus=0, python=str(python))
    check_launch(Launch("m", "m", serve, str(base), "/"))
    with pytest.raises(ConfigError, match=r"model 'm': peft is not installed for .* or: pip install peft"):
        check_launch(Launch("m", "m", serve, str(base), "/", str(adapter)))


def a_model(base: Path, adapter: Path, preset: str) -> ModelConfig:
    serve = {"preset": preset, "version": "1"}
    config = {"extra_body": {"top_k": 1}}
    return ModelConfig.model_validate(
        {"name": "m", "path": str(base), "peft": str(adapter), "serve": serve, "config": config}
    )


def test_a_folder_that_is_removed_while_its_server_answers_was_read_before(base: Path, adapter: Path) -> None:
    running = RunningServer("m", "http://127.0.0.1:9/v1", "a server's own")
    first = at_server(a_model(base, adapter, "vllm"), running, base)
    base.rename(base.with_name("moved"))
    second = at_server(a_model(base, adapter, "vllm"), running, base)
    assert (second.tokenizer, second.max_length) == (first.tokenizer, 64)


def test_requests_go_to_the_adapter_with_its_own_tokenizer(base: Path, adapter: Path) -> None:
    running = RunningServer("m", "http://127.0.0.1:9/v1", "")
    sglang = at_server(a_model(base, adapter, "sglang"), running, base)
    assert sglang.config.extra_body == {"lora_path": "lora", "top_k": 1}  # type: ignore[attr-defined]
    vllm = at_server(a_model(base, adapter, "vllm"), running, base)
    assert vllm.config.extra_body == {"top_k": 1}  # type: ignore[attr-defined]
    assert (vllm.tokenizer, vllm.max_length) == (str(base), 64)
    with_tokenizer(adapter)
    again = replace(running, folder="another server's")
    assert at_server(a_model(base, adapter, "vllm"), again, base).tokenizer == str(adapter)
    found = _of_tokenizer(a_model(base, adapter, "vllm"), base)
    assert found is not None
    assert found.opened


def test_a_changed_adapter_has_other_keys(base: Path, adapter: Path) -> None:
    before = [model_identity(a_model(base, adapter, preset), base) for preset in ("vllm", "transformers")]
    (adapter / "adapter_model.safetensors").write_bytes(b"ADAPTER")
    after = [model_identity(a_model(base, adapter, preset), base) for preset in ("vllm", "transformers")]
    assert all(one != other for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("known", [True, False], ids=["in the cache", "under an identity of its own"])
def test_a_hubs_base_is_loaded_in_the_revision_that_its_answers_are_kept_under(
    base: Path, tmp_path: Path, known: bool
) -> None:
    if known:
        refs = tmp_path / "hub" / "models--org--model" / "refs"
        refs.mkdir(parents=True)
        (refs / "v1").write_text("a" * 40)
    for preset in ("transformers", "vllm", "sglang"):
        serve = ServeConfig(preset=preset, gpus=0)
        words = order_for(Launch("m", "m", serve, "org/model@v1", "/"), os.getpid()).command
        assert words[words.index("--revision") + 1] == ("a" * 40 if known else "v1")
        assert "org/model" in words
