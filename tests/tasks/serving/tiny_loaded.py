"""Answers of the built-in server beside plain passes, for a tiny model that is more than a folder of weights:
one with an adapter over it, one that is quantised, one that a device map lays out.

    PYTHON tiny_loaded.py FOLDER

PYTHON is an environment of the servers: torch, transformers, tokenizers, peft, accelerate,
compressed-tensors. Prints a line of JSON for each.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tiny_models import SCORED, Plain, compared, make
from transformers import AutoModelForCausalLM

BITS = 8
SCHEME = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": BITS, "type": "int", "symmetric": True, "strategy": "channel"},
        }
    },
}  # fmt: skip


def make_adapter(base: Path, folder: Path, seed: int = 1) -> None:
    """Writes a LoRA of random weights over the base."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(base)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(folder)


def make_prompt_adapter(base: Path, folder: Path) -> None:
    """Writes an adapter that is no layer: a learned prompt."""
    from peft import PromptTuningConfig, get_peft_model

    model = AutoModelForCausalLM.from_pretrained(base)
    config = PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(folder)


def quantise(folder: Path) -> None:
    """Rounds a folder's layers to numbers of eight bits, four of them in a word, as llm-compressor does."""
    found: dict[str, torch.Tensor] = {}
    for name, weights in load_file(folder / "model.safetensors").items():
        if weights.dim() != 2 or "proj" not in name:
            found[name] = weights
            continue
        scale = weights.abs().amax(1, keepdim=True) / (2 ** (BITS - 1) - 1)
        whole = (weights / scale).round().to(torch.int32) + 2 ** (BITS - 1)
        packed = torch.zeros(len(whole), whole.shape[1] * BITS // 32, dtype=torch.int32)
        for place in range(32 // BITS):
            packed |= whole[:, place :: 32 // BITS] << (BITS * place)
        found |= {
            f"{name}_packed": packed,
            f"{name}_scale": scale,
            f"{name}_shape": torch.tensor(weights.shape),
        }
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": SCHEME}))


def away(one: list[list[float]], other: list[list[float]]) -> float:
    """The largest difference of two log-probabilities."""
    pairs = [pair for both in zip(one, other, strict=True) for pair in zip(*both, strict=True)]
    return max(abs(first - second) for first, second in pairs)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    base, adapter, rounded = folder / "base", folder / "adapter", folder / "rounded"
    make("llama", base)
    make_adapter(base, adapter)
    make_prompt_adapter(base, folder / "prompt")
    make("llama", rounded)
    quantise(rounded)
    cases: dict[str, tuple[Path, list[str], Path | None]] = {
        "adapter": (base, ["--peft", str(adapter)], adapter),
        "quantised": (rounded, [], None),
        "laid out": (base, ["--device-map", "auto"], None),
    }
    with torch.inference_mode():
        plain = Plain(base)
        of_base = [plain.scored(text) for text in SCORED]
        for name, (weights, told, over) in cases.items():
            found: dict[str, Any] = compared(weights, *told, adapter=over)
            found["away from the base"] = away(found.pop("scores"), of_base)
            print(json.dumps({"name": name, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
