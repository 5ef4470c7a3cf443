"""Runs in a Python with torch and lm-evaluation-harness: makes a model, and times the harness on it.

    PEER_PYTHON peer_hf.py make DEVICE FOLDER
    PEER_PYTHON peer_hf.py time DEVICE FOLDER DEFINITIONS BATCH_SIZE… -- NAME…

The first writes a Llama of random weights of the device's size. The second evaluates the benchmarks with the
harness's ``hf`` model, loaded once, at each batch size, and prints as JSON how many seconds its methods took,
on the clock and of CPU time: neither loading nor the making of requests counts.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

VOCABULARY, CONTEXT, SEED = 32_000, 512, 7
SIZES = {"cpu": (11, 768, "float32"), "cuda": (24, 2048, "bfloat16")}
"""Device → layers, width and type of the weights: some 100 million, and 1.4 billion."""


def make(device: str, folder: Path) -> None:
    """Writes weights and tokenizer; the outputs of tokens that the tokenizer does not know are 0."""
    import torch
    from random_model import build_tokenizer
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    build_tokenizer(folder, sorted(Path(__file__).parent.glob("*.py")), "bytes")
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    torch.manual_seed(SEED)
    layers, width, dtype = SIZES[device]
    shape = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=8 * width // 3, num_hidden_layers=layers,
        num_attention_heads=width // 64, max_position_embeddings=CONTEXT, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(shape).to(getattr(torch, dtype))
    with torch.no_grad():
        model.lm_head.weight[len(tokenizer) :] = 0
        model.lm_head.weight[tokenizer.eos_token_id] = 0  # so that every text is as long as it may be
    model.save_pretrained(folder)
    print(sum(weights.numel() for weights in model.parameters()))


def measure(device: str, folder: str, definitions: str, batch_sizes: list[int], names: list[str]) -> None:
    """Prints {batch size: {benchmark: [seconds, CPU seconds]}}."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    lm: Any = HFLM(pretrained=folder, dtype=SIZES[device][2], device=device, batch_size=1)
    spent: dict[str, tuple[float, float]] = {}

    def timed(method: Any) -> Any:
        def call(requests: list[Any]) -> Any:
            start, used = time.perf_counter(), time.process_time()
            found = method(requests)
            spent[requests[0].task_name] = time.perf_counter() - start, time.process_time() - used
            return found

        return call

    for name in ("loglikelihood", "generate_until"):
        setattr(lm, name, timed(getattr(lm, name)))
    tasks = TaskManager(include_path=definitions, include_defaults=False)
    took = {}
    for size in batch_sizes:
        spent.clear()
        lm.batch_size_per_gpu = size
        for name in names:
            simple_evaluate(model=lm, tasks=[name], task_manager=tasks, bootstrap_iters=0, verbosity="ERROR")
        took[size] = dict(spent)
    print(json.dumps(took))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], Path(sys.argv[3]))
    else:
        at = sys.argv.index("--")
        sizes = [int(word) for word in sys.argv[5:at]]
        measure(sys.argv[2], sys.argv[3], sys.argv[4], sizes, sys.argv[at + 1 :])
