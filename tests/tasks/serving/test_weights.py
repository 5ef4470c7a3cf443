"""Which model a folder holds: told by content, and read once."""

import json
import os
import pickle
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from metrics.errors import ConfigError
from tasks.models.config import ModelConfig
from tasks.models.errors import ModelError
from tasks.models.identity import model_identity, settled_weights
from tasks.serving import weights as module
from tasks.serving.config import CheckpointsConfig, ServeConfig
from tasks.serving.launch import installed_version, server_identity
from tasks.serving.weights import known_weights, one_file, weights_digest, weights_identity
from tasks.store import digests


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTJAR_HOME", str(tmp_path / "home"))
    made = tmp_path / "step-100"
    made.mkdir()
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "tokenizer.json").write_text("{}")
    (made / "config.json").write_text("{}")
    return made


def test_the_same_weights_elsewhere_are_the_same_model(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "best")
    assert weights_digest(Path(copy)) == weights_digest(folder)


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "tokenizer.json",
        "config.json",
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    ],
)
def test_whatever_decides_answers_makes_another_model(folder: Path, name: str) -> None:
    before = weights_digest(folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"WEIGHTS")  # of the same size where it is the weights
    assert weights_digest(folder) != before


@pytest.mark.parametrize(
    "name", ["optimizer.pt", "rng_state_0.pth", "trainer_state.json", "training_args.bin"]
)
def test_what_a_trainer_leaves_is_no_part_of_the_model(folder: Path, name: str) -> None:
    before = weights_digest(folder)
    (folder / name).write_bytes(b"state")
    assert weights_digest(folder) == before


def test_two_files_that_change_names_are_another_model(folder: Path) -> None:
    (folder / "other.safetensors").write_bytes(b"more")
    before = weights_digest(folder)
    (folder / "model.safetensors").rename(folder / "x")
    (folder / "other.safetensors").rename(folder / "model.safetensors")
    (folder / "x").rename(folder / "other.safetensors")
    assert weights_digest(folder) != before


def test_weights_are_read_once_and_again_when_they_change(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    original = digests.file_digest
    monkeypatch.setattr(digests, "file_digest", lambda path: read.append(path) or original(path))
    monkeypatch.setattr(digests, "LARGE", 3)
    for file in folder.iterdir():
        os.utime(file, ns=(0, 0))
    before = weights_digest(folder)
    assert len(read) == 3
    assert weights_digest(folder) == before
    assert len(read) == 3
    monkeypatch.setattr(digests, "_kept", {})  # as in another process, which reads small files again
    assert weights_digest(folder) == before
    assert len(read) == 5
    file = folder / "model.safetensors"
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(0, 1))
    assert weights_digest(folder) != before
    assert len(read) == 6


def test_weights_that_are_written_twice_within_a_tick_of_the_clock_are_read_twice(folder: Path) -> None:
    file, tick = folder / "model.safetensors", time.time() + 60  # not yet over, however slow this is
    os.utime(file, (tick, tick))
    before = weights_digest(folder)
    file.write_bytes(b"WEIGHTS")
    os.utime(file, (tick, tick))
    assert weights_digest(folder) != before


def test_weights_that_change_while_they_are_read_for_minutes_are_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, tick = folder / "model.safetensors", time.time() + 60
    os.utime(file, (tick, tick))
    original, now = digests.file_digest, time.time

    def slow(path: str | Path) -> str:
        monkeypatch.setattr(time, "time", lambda: now() + 600)
        return original(path)

    monkeypatch.setattr(digests, "file_digest", slow)
    before = digests.kept_digest(file)
    file.write_bytes(b"WEIGHTS")
    os.utime(file, (tick, tick))
    assert digests.kept_digest(file) != before


def test_a_file_in_parts_is_all_of_its_parts(folder: Path) -> None:
    first, second = (folder / f"gemma-Q4-0000{number}-of-00002.gguf" for number in (1, 2))
    first.write_bytes(b"first")
    assert "lacks gemma-Q4-00002-of-00002.gguf" in str(module.unfinished(first))
    with pytest.raises(ConfigError, match="lacks gemma-Q4-00002"):
        weights_digest(first)
    second.write_bytes(b"second")
    before, known = weights_digest(first), known_weights(str(first), folder)
    assert module.weights_bytes(first) == len(b"first" + b"second")
    second.write_bytes(b"others")
    assert weights_digest(first) != before
    assert known.overwritten() is not None


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="holds no weights"):
        weights_digest(folder)


def safetensors(size: int) -> bytes:
    header = json.dumps(
        {"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    )
    return len(header).to_bytes(8, "little") + header.encode() + bytes(size)


def test_weights_that_are_still_being_written_are_told(folder: Path) -> None:
    whole, file = safetensors(100), folder / "model.safetensors"
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        told = module.unfinished(folder)
        assert told is None if 0 < length < 9 else "ends before its weights do" in str(told)  # 9: the header
    file.write_bytes(whole)
    assert module.unfinished(folder) is None
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    file.rename(folder / "model-00001-of-00002.safetensors")
    assert "lacks model-00002-of-00002.safetensors, which its index names (1 of 2 files)" in str(
        module.unfinished(folder)
    )
    with pytest.raises(ConfigError, match="lacks model-00002"):
        weights_digest(folder)
    (folder / "model-00002-of-00002.safetensors").write_bytes(whole)
    assert module.unfinished(folder) is None
    shutil.rmtree(folder)
    assert "can't be read" in str(module.unfinished(folder))


@pytest.mark.parametrize("name", ["model-{}.safetensors", "pytorch_model-{}.bin", "gemma-Q4-{}.gguf"])
def test_numbered_parts_are_whole_once_all_are_there_though_no_index_is(folder: Path, name: str) -> None:
    (folder / "model.safetensors").unlink()
    for part in ("00001-of-00003", "00003-of-00003"):
        (folder / name.format(part)).write_bytes(safetensors(10))
        assert module.unfinished(folder) is not None
    lacked = name.format("00002-of-00003")
    assert f"lacks {lacked} (1 of 3 files), as the names of the others say" in str(module.unfinished(folder))
    (folder / lacked).write_bytes(safetensors(10))
    assert module.unfinished(folder) is None


def test_an_index_stands_above_what_names_of_parts_say(folder: Path) -> None:
    whole = "model-00001-of-00001.safetensors"
    (folder / "model.safetensors").rename(folder / whole)
    (folder / "model-00003-of-00004.safetensors").write_bytes(safetensors(10))  # of a former, larger save
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": whole}}))
    assert module.unfinished(folder) is None


def write_index(folder: Path, name: str, *parts: str) -> None:
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": dict(enumerate(parts))}))


OTHERS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")


@pytest.mark.parametrize("names", [["model.safetensors"], ["model-1.safetensors", "model-2.safetensors"]])
def test_an_index_of_a_form_that_was_not_downloaded_is_no_lack(folder: Path, names: list[str]) -> None:
    (folder / "model.safetensors").unlink()
    for name in names:
        (folder / name).write_bytes(safetensors(10))
    if len(names) > 1:
        write_index(folder, "model.safetensors", *names)
    write_index(folder, "pytorch_model.bin", *OTHERS)
    assert module.unfinished(folder) is None
    (folder / OTHERS[0]).write_bytes(b"x")  # a form that is begun spoils no whole one
    assert (module.unfinished(folder) is None) is (len(names) > 1)


def test_of_two_indexes_without_all_their_files_the_fuller_one_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    parts = [f"model-{part}.safetensors" for part in (1, 2, 3)]
    write_index(folder, "model.safetensors", *parts)
    write_index(folder, "pytorch_model.bin", *OTHERS)
    for name in (*parts[:2], OTHERS[1]):
        (folder / name).write_bytes(safetensors(10))
    said = str(module.unfinished(folder))
    assert "lacks model-3.safetensors, which its index names (1 of 3 files)" in said


def test_an_index_that_came_before_its_files_is_a_lack(folder: Path) -> None:
    write_index(folder, "model.safetensors", "model-1.safetensors")
    assert "lacks model-1.safetensors" in str(module.unfinished(folder))


FIRST, SECOND = "1" * 40, "a2" * 20


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Branches and tags of ``org/model`` in the hub's cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    refs = tmp_path / "models--org--model" / "refs"
    (refs / "refs" / "pr").mkdir(parents=True)
    return refs


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
        ("HOME", ".cache/huggingface/hub"),
    ],
)
@pytest.mark.parametrize("by_home", [False, True])
def test_the_hubs_cache_is_where_its_client_has_it(
    variable: str, below: str, by_home: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(variable, "~" if by_home and variable != "HOME" else str(tmp_path))
    refs = tmp_path / below / "models--org--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text(FIRST)
    assert weights_identity("org/model", tmp_path) == {"hub": "org/model", "revision": FIRST}


def test_a_hub_name_counts_by_its_commit(tmp_path: Path, hub: Path) -> None:
    assert weights_identity(f"org/model@{FIRST}", tmp_path) == {"hub": "org/model", "revision": FIRST}
    with pytest.raises(ConfigError, match=r"write org/model@REVISION \(40 hexadecimal digits\)"):
        weights_identity("org/model", tmp_path)
    (hub / "main").write_text(f"{SECOND}\n")
    assert weights_identity("org/model", tmp_path) == {"hub": "org/model", "revision": SECOND}
    with pytest.raises(ConfigError, match="no weights at"):
        weights_identity("./not/there", tmp_path)


def test_weights_in_a_home_of_nobody_are_refused_as_those_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no weights at {tmp_path}/~nobody_of_this_name/w"):
        weights_identity("~nobody_of_this_name/w", tmp_path)


@pytest.mark.parametrize("name", ["main", "v1.0", "refs/pr/1"])
def test_a_branch_that_moves_is_another_model(tmp_path: Path, hub: Path, name: str) -> None:
    found = []
    for commit in (FIRST, SECOND):
        (hub / name).write_text(commit)
        found.append(weights_identity(f"org/model@{name}", tmp_path)["revision"])
    assert found == [FIRST, SECOND]


@pytest.mark.parametrize("name", ["v2", "1234567", "../leads/out", "broken"])
def test_a_revision_that_names_no_commit_here_is_refused(tmp_path: Path, hub: Path, name: str) -> None:
    (hub / "leads").mkdir()
    (hub.parent / "leads").mkdir()
    (hub.parent / "leads" / "out").write_text(FIRST)
    (hub / "broken").write_text("<html>")
    with pytest.raises(ConfigError, match=f"which commit '{name}' is; download it, or write the commit"):
        weights_identity(f"org/model@{name}", tmp_path)


def test_a_gguf_in_parts_is_named_by_its_first(tmp_path: Path) -> None:
    for part in (1, 2):
        (tmp_path / f"m-0000{part}-of-00002.gguf").write_bytes(b"x")
    assert one_file(tmp_path, ".gguf").name == "m-00001-of-00002.gguf"


def test_where_a_server_runs_is_no_part_of_its_identity() -> None:
    said: dict[str, Any] = {"preset": "vllm", "version": "0.11", "dtype": "bfloat16"}
    here = server_identity(ServeConfig(**said))
    there = server_identity(
        ServeConfig(**said, gpus=4, env=("A",), start_timeout="1h", restarts=9, python="/x")
    )
    assert here == there == {"preset": "vllm", "version": "0.11", "dtype": "bfloat16"}
    for other in ({"version": "0.12"}, {"dtype": "float16"}, {"quantization": "fp8"}, {"args": "--seed 2"}):
        assert server_identity(ServeConfig(**{**said, **other})) != here


@pytest.mark.parametrize(
    ("name", "metadata"),
    [
        ("step-1200", {"step": 1200}),
        ("checkpoint-500-hf", {"step": 500}),
        ("final", {}),
        ("sft/step-1200", {"step": 1200, "training": "sft"}),
        ("7/a/step-1200", {"step": 1200, "training": "7/a"}),
        ("step-1200/hf", {"step": 1200}),
        ("sft/final", {}),
    ],
)
def test_a_checkpoint_tells_its_step_and_no_folder_above_does(name: str, metadata: dict[str, Any]) -> None:
    assert CheckpointsConfig(glob="*").metadata_of(f"runs-7/2026-11/{name}", name) == metadata


def test_a_pattern_names_further_metadata() -> None:
    pattern = r"step-(?P<step>\d+)-tokens-(?P<tokens>[\d.e+]+)"
    found = CheckpointsConfig(glob="*", pattern=pattern).metadata_of("x/step-5-tokens-1.5e9", "x")
    assert found == {"step": 5, "tokens": 1.5e9}
    with pytest.raises(ValueError, match="named group"):
        CheckpointsConfig(glob="*", pattern=r"\d+")


def test_what_is_loaded_may_be_removed_and_not_overwritten(tmp_path: Path) -> None:
    folder, link = tmp_path / "step-1", tmp_path / "latest"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(b"weights of " + name.encode())
    link.symlink_to(folder)
    known = known_weights("latest", tmp_path)
    assert (known.replaced(), known.overwritten()) == (None, None)
    (folder / "a.safetensors").unlink()
    assert "not there" not in str(known.replaced())
    assert known.replaced() is not None
    assert known.overwritten() is None
    (folder / "b.safetensors").write_bytes(b"others")
    assert "were replaced after the run had begun" in str(known.overwritten())
    other = tmp_path / "step-2"
    folder.rename(tmp_path / "gone")
    other.mkdir()
    (other / "a.safetensors").write_bytes(b"weights of step 2")
    link.unlink()
    link.symlink_to(other)
    assert "were replaced" in str(known.replaced())
    assert known.overwritten() is None
    link.unlink()
    assert "are not there as they were" in str(known.replaced())


CUDA_BUILD = "ggml_cuda_init: GGML_CUDA_FORCE_MMQ:    no\nggml_cuda_init: found 1 CUDA devices:"


def version_of(program: Path, out: str, err: str = "") -> str:
    program.write_text(f"#!/bin/sh\nprintf '{out}'\nprintf '{err}' >&2\n")
    program.chmod(0o755)
    installed_version.cache_clear()
    return str(server_identity(ServeConfig(preset="llama.cpp"))["version"])


def test_the_version_of_a_program_is_told_apart_from_what_it_prints_besides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    program = tmp_path / "llama-server"
    told = "version: 4589 (eb7cf15a)"
    assert version_of(program, "", f"{told}\\nbuilt with cc") == told
    assert version_of(program, "", f"{CUDA_BUILD}\\n{told}\\nbuilt with cc") == told
    assert version_of(program, "load_backend: loaded CUDA backend\\n", f"{told}\\n") == told
    assert version_of(program, "server 1\\n", "of 2026\\n") == "server 1\nof 2026"
    installed_version.cache_clear()


@pytest.mark.parametrize(
    ("serve", "name"),
    [
        ({"preset": "llama.cpp"}, "LLAMA_ARG_CHAT_TEMPLATE"),
        ({"preset": "llama.cpp"}, "LLAMA_ARG_CACHE_TYPE_K"),
        ({"preset": "vllm"}, "VLLM_USE_V1"),
        ({"command": ["serve", "{path}", "{port}"]}, "SGLANG_X"),
        ({"preset": "transformers", "env": ["CHOICE"]}, "CHOICE"),
        ({"preset": "vllm", "container": "image", "env": ["CHOICE"]}, "CHOICE"),
    ],
)
def test_variables_that_are_options_of_a_server_are_part_of_its_identity(
    serve: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServeConfig(version="1", **serve)
    found = [server_identity(config)]
    for value in ("wrong", "chatml"):
        monkeypatch.setenv(name, value)
        found.append(server_identity(config))
    assert len({json.dumps(one) for one in found}) == 3
    assert "chatml" not in json.dumps(found)


@pytest.mark.parametrize(
    ("serve", "name"),
    [
        ({"preset": "vllm"}, "CUDA_VISIBLE_DEVICES"),
        ({"preset": "vllm"}, "VLLM_HOST_IP"),
        ({"preset": "vllm"}, "VLLM_CACHE_ROOT"),
        ({"preset": "vllm"}, "VLLM_XLA_CACHE_PATH"),
        ({"preset": "vllm"}, "VLLM_RPC_BASE_PATH"),
        ({"preset": "vllm"}, "VLLM_DP_MASTER_IP"),
        ({"preset": "vllm"}, "VLLM_LOGGING_LEVEL"),
        ({"preset": "vllm"}, "VLLM_API_KEY"),
        ({"preset": "vllm", "env": ["HF_TOKEN"]}, "HF_TOKEN"),
        ({"preset": "vllm", "env": ["hf_token"]}, "hf_token"),
        ({"preset": "vllm", "container": "image", "env": ["VLLM_HOST_IP"]}, "VLLM_HOST_IP"),
        ({"preset": "vllm", "container": "image", "env": ["HF_HOME"]}, "HF_HOME"),
        ({"preset": "vllm", "container": "image", "env": ["HTTPS_PROXY"]}, "HTTPS_PROXY"),
        ({"preset": "vllm", "env": ["CUDA_VISIBLE_DEVICES"]}, "CUDA_VISIBLE_DEVICES"),
        ({"preset": "vllm", "container": "image"}, "VLLM_USE_V1"),
        ({"preset": "transformers"}, "VLLM_USE_V1"),
    ],
)
def test_variables_that_say_where_a_server_runs_or_that_it_does_not_read_are_not(
    serve: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServeConfig(version="1", **serve)
    before = server_identity(config)
    monkeypatch.setenv(name, "1")
    assert server_identity(config) == before


@pytest.mark.parametrize("where", ["command", "option", "program", "args", "variable"])
def test_files_that_a_command_names_are_known_by_their_content(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, python = tmp_path / "server.py", tmp_path / "python3.11"
    for made in (file, python):
        made.write_text("one")
    said: dict[str, Any] = {"preset": "vllm", "version": "1"}
    if where == "variable":
        monkeypatch.setenv("VLLM_CHAT_TEMPLATE", str(file))
    elif where == "args":
        said["args"] = f"--chat-template {file}"
    else:
        file = file.rename(tmp_path / "my-server") if where == "program" else file
        words = {"command": [str(python), str(file)], "option": [str(python), f"--x={file}"]}
        said = {"command": [*words.get(where, [str(file)]), "{path}", "--port", "{port}"]}
    config = ServeConfig(**said)
    before = server_identity(config)
    python.write_text("another build")
    assert server_identity(config) == before
    file.write_text("other")
    assert server_identity(config) != before
    log = tmp_path / "server.log"
    log.write_text("written by the server")
    config = ServeConfig(**said | {"args": [str(log), *config.args, f"--log={log}"]})
    before = server_identity(config)
    log.write_text("and once more")
    assert server_identity(config) == before
    inside = ServeConfig(**said, container="image")
    before = server_identity(inside)
    file.write_text("once more")
    assert server_identity(inside) == before  # another file of that name is there


def test_keys_of_a_run_hold_the_servers_files_of_its_beginning_and_no_answer_of_others_is_kept(
    folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "server.py"
    script.write_text("one")
    command = [sys.executable, str(script), "{path}", "{port}"]
    entry = {"name": "m", "path": str(folder), "serve": {"command": command}}
    model = settled_weights(ModelConfig.model_validate(entry), tmp_path)
    before = model_identity(model, tmp_path)
    model.check_weights()
    script.write_text("others")
    assert model_identity(model, tmp_path) == before
    with pytest.raises(ModelError, match="files or variables of its server differ"):
        model.check_weights()


def test_a_worker_with_other_variables_than_those_a_run_began_with_is_named_as_a_reason(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"name": "m", "path": str(folder), "serve": {"preset": "vllm", "version": "1"}}
    sent = pickle.dumps(settled_weights(ModelConfig.model_validate(entry), tmp_path))
    monkeypatch.setenv("VLLM_USE_V1", "0")
    with pytest.raises(ModelError, match="or give this worker the same ones"):
        pickle.loads(sent).check_weights()
