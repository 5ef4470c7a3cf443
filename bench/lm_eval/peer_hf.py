"""Runs in a Python with torch and lm-evaluation-harness: makes a model, and times the harness on it.

    PEER_PYTHON peer_hf.py make FOLDER
    PEER_PYTHON peer_hf.py time FOLDER DEFINITIONS BATCH_SIZE… -- NAME…

The first writes a Llama of some 100 million random weights. The second evaluates the benchmarks with the
harness's ``hf`` model, loaded once, at each batch size, and prints as JSON how many seconds its methods took,
on the clock and of CPU time: neither loading nor the making of requests counts.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

LAYERS, HIDDEN, VOCABULARY, CONTEXT, SEED = 11, 768, 32_000, 512, 7


def make(folder: Path) -> None:
    """Writes weights and tokenizer; the outputs of tokens that the tokenizer does not know are 0."""
    import torch
    from random_model import build_tokenizer
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    build_tokenizer(folder, sorted(Path(__file__).parent.glob("*.py")), "bytes")
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    torch.manual_seed(SEED)
    shape = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=2048, num_hidden_layers=LAYERS,
        num_attention_heads=12, max_position_embeddings=CONTEXT, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    with torch.no_grad():
        model.lm_head.weight[len(tokenizer) :] = 0
        model.lm_head.weight[tokenizer.eos_token_id] = 0  # so that every text is as long as it may be
    model.save_pretrained(folder)
    print(sum(weights.numel() for weights in model.parameters()))


def measure(folder: str, definitions: str, batch_sizes: list[int], names: list[str]) -> None:
    """Prints {batch size: {benchmark: [seconds, CPU seconds]}}."""
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    lm: Any = HFLM(pretrained=folder, dtype="float32", device="cpu", batch_size=1)
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
        make(Path(sys.argv[2]))
    else:
        at = sys.argv.index("--")
        measure(sys.argv[2], sys.argv[3], [int(word) for word in sys.argv[4:at]], sys.argv[at + 1 :])
