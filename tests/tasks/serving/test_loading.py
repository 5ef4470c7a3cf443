"""What would help where the built-in server can't load a model."""

import importlib
import subprocess
from pathlib import Path

import pytest

from tasks.serving.config import SERVER_SCRIPT

PROJECT = Path(__file__).resolve().parents[3]
SAID = {
    "The repository ./m contains custom code which must be executed; pass `trust_remote_code=True`.":
        "--trust-remote-code",
    "No module named 'mamba_ssm.ops'": "install mamba_ssm",
    "This modeling file requires the following packages that were not found in your environment: einops. Run "
    "`pip install einops`": "install einops",
    "Using a `device_map` requires `accelerate`. You can install it with `pip install accelerate`":
        "install accelerate",
    "CUDA out of memory. Tried to allocate 2.00 GiB": "dtype: bfloat16",
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes": "dtype: bfloat16",
    "The checkpoint you are trying to load has model type `qwen9` but Transformers does not recognize this "
    "architecture. You can update Transformers with the command `pip install --upgrade transformers`.":
        "newer one",
    "Error no file named model.safetensors, or pytorch_model.bin, found in directory ./m.": "lacks files",
    "something else": None,
}  # fmt: skip


@pytest.mark.parametrize("said", SAID)
def test_an_error_of_loading_says_what_would_help(said: str) -> None:
    loading = importlib.import_module("tasks.serving.transformers_server.loading")
    wanted, told = SAID[said], loading.remedy(ValueError(said))
    assert told is None if wanted is None else wanted in str(told)


CONFIGS = {
    '{"model_type": "nobody_knows_it"}': "install a newer one",
    '{"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "m.M", "AutoConfig": "m.C"}}': None,
    '{"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "num_attention_heads": 1}': "lacks files",
}


@pytest.mark.serving
@pytest.mark.parametrize("config", CONFIGS)
def test_the_last_words_of_a_server_without_a_model_say_what_would_help(
    hf_python: str, tmp_path: Path, config: str
) -> None:
    made = (
        "import pathlib, runpy, sys; here = runpy.run_path(sys.argv[1]); "
        "here['tiny_tokenizer']().save_pretrained(sys.argv[2])"
    )
    script = Path(__file__).with_name("tiny_llama.py")
    subprocess.run([hf_python, "-c", made, str(script), str(tmp_path)], check=True, timeout=300)
    (tmp_path / "config.json").write_text(config)
    command = [hf_python, "-W", "ignore", str(SERVER_SCRIPT), "--model", str(tmp_path), "--port", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"{tmp_path} can't be loaded: ")
    assert (CONFIGS[config] or "can't be loaded") in last
