"""Answers of the built-in server beside plain passes, for a tiny random model of each architecture.

    PYTHON tiny_models.py FOLDER NAME…

PYTHON is an environment of the servers: torch, transformers, tokenizers. Each model is written to a folder
and loaded as the server loads it; the requests are those of an evaluation. Prints a line of JSON for each
model: how far log-probabilities are away, and the texts of both. What is expected comes from one pass over
each sequence alone, token by token.
"""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_llama import WORDS, tiny_tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[2] / "tasks" / "serving"))
from transformers_server import http_server, loading  # noqa: E402
from transformers_server import service as server  # noqa: E402

SHAPE = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 1,
    "pad_token_id": 1, "head_dim": 16,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MAMBA = {"mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 16}
GEMMA = {"sliding_window": 8, "query_pre_attn_scalar": 16}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 256},
    "gpt_neox": {},
    "bloom": {"n_layer": 2, "n_head": 2},
    "mistral": {"sliding_window": 8},
    "gemma2": GEMMA,
    "gemma3_text": {**GEMMA, "num_hidden_layers": 6},
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "mamba": {"state_size": 8},
    "mamba2": {"num_heads": 4, "expand": 2, "state_size": 8, "n_groups": 2, "chunk_size": 16},
    "rwkv": {"context_length": 256, "attention_hidden_size": 32},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_ff_dim": 48},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 32, "mamba_n_heads": 2},
    "granitemoehybrid": {
        **EXPERTS, **MAMBA, "layer_types": ["mamba", "attention"], "mamba_n_heads": 4, "mamba_expand": 2,
        "shared_intermediate_size": 16,
    },
    "qwen3_next": {
        **EXPERTS, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
        "shared_expert_intermediate_size": 16,
    },
}  # fmt: skip
CONTEXT = " ".join(WORDS)
CHOICES = (*WORDS[:3], "water of the night")
SCORED = [*(f"{CONTEXT} {choice}" for choice in CHOICES), "a", "the river", f"{CONTEXT} " * 4]
"""Choices that stand behind one question, short texts, and one as long as several windows."""
ASKED = ["the river", CONTEXT, "a bird of", f"{CONTEXT} {CONTEXT}"]
NEW, TEMPERATURE, SEED = 10, 1.5, 3


def make(name: str, folder: Path) -> None:
    """Writes a model whose answers hang on all that it reads."""
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**SHAPE, **ARCHITECTURES[name]}, vocab_size=len(tokenizer))
    model = AutoModelForCausalLM.from_config(config).float()
    for weights in model.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=0.2)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Plain:
    """The same model, asked for one sequence at a time, with an adapter if one is named."""

    def __init__(self, folder: Path, adapter: Path | None = None) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
        if adapter is not None:
            from peft import PeftModel

            self.model = PeftModel.from_pretrained(self.model, adapter).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])

    def logits(self, ids: list[int]) -> torch.Tensor:
        return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()

    def scored(self, text: str) -> list[float]:
        ids = self.ids(text)
        found = self.logits(ids).log_softmax(-1)
        return [float(found[at, token]) for at, token in enumerate(ids[1:])]

    def answer(self, text: str, temperature: float) -> str:
        ids, new = self.ids(text), list[int]()
        draw = torch.Generator().manual_seed(SEED)
        while len(new) < NEW and (not new or new[-1] != self.tokenizer.eos_token_id):
            logits = self.logits(ids + new)[-1]
            if temperature:
                shares = torch.softmax(logits / temperature, dim=-1)
                new.append(int(torch.multinomial(shares, 1, generator=draw)))
            else:
                new.append(int(logits.argmax()))
        return str(self.tokenizer.decode(new, skip_special_tokens=True))


def served(folder: Path, *told: str) -> Any:
    """The server's own parts, as its ``main`` puts them together by what it is told; its thread has begun."""
    words = http_server._parser().parse_args(["--model", str(folder), *told])
    worker = server.Worker(*loading.load(words, "cpu", torch.float32), 1 << 22, 64)
    with torch.inference_mode():
        worker.passes.compare()
    threading.Thread(target=worker.run, daemon=True).start()
    return server.Service(worker, "tiny")


def compared(folder: Path, *told: str, adapter: Path | None = None) -> dict[str, Any]:
    """What the server says of one model, and what plain passes do."""
    service, plain = served(folder, *told), Plain(folder, adapter)
    echoed = service.completions({"prompt": SCORED, "max_tokens": 0, "echo": True, "logprobs": 1})["choices"]
    own = [choice["logprobs"]["token_logprobs"][1:] for choice in echoed]
    alone = [plain.scored(text) for text in SCORED]
    rounds = {"greedy": 0.0, "sampled": TEMPERATURE}
    texts = {}
    for kind, temperature in rounds.items():
        body = {"prompt": ASKED, "max_tokens": NEW, "temperature": temperature, "seed": SEED}
        texts[kind] = [choice["text"] for choice in service.completions(body)["choices"]]
        texts[f"{kind}, plain"] = [plain.answer(text, temperature) for text in ASKED]
    messages = [{"role": "user", "content": CONTEXT}]
    said = service.chat({"messages": messages, "max_tokens": NEW, "temperature": 0})["choices"][0]
    rendered = plain.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    pairs = [pair for both in zip(own, alone, strict=True) for pair in zip(*both, strict=True)]
    return {
        "away": max(abs(one - other) for one, other in pairs),
        "rolling": [sum(own[-1]), sum(alone[-1])],
        "chat": [said["message"]["content"], plain.answer(rendered, 0.0)],
        "keeps": service.worker.passes.keeps,
        "why_not": service.worker.passes.why_not,
        "scores": own,
        **texts,
        **faulty(service),
    }


def faulty(service: Any) -> dict[str, Any]:
    """What a request is told whose pass fails by a mistake of the program, and what the next one is."""
    passes = service.worker.passes
    sound = passes.whole

    def broken(_rows: Any) -> Any:
        raise AttributeError("no such layer")

    passes.whole = broken
    try:
        service.completions({"prompt": "a bird", "max_tokens": 0, "echo": True, "logprobs": 1})
        told = "nothing"
    except server.Refused as refused:
        told = str(refused)
    passes.whole = sound
    body = {"prompt": ASKED, "max_tokens": NEW, "temperature": 0.0}
    return {"fault": told, "after the fault": [one["text"] for one in service.completions(body)["choices"]]}


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in names:
        try:
            AutoConfig.for_model(name)
        except ValueError:
            found: dict[str, Any] = {"absent": transformers.__version__}
        else:
            with torch.inference_mode():
                make(name, folder / name)
                found = compared(folder / name)
        print(json.dumps({"name": name, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(ARCHITECTURES))
