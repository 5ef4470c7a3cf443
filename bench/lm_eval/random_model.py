"""A small transformer with random weights, and a tokenizer of its own: both from a seed, built offline.

Needs torch and transformers, so it runs in the peer's Python. Random weights with wide logits make
log-likelihoods that depend on every token, and greedy texts that differ from prompt to prompt: what two
programs read out of one server's answers can agree only if they asked the same and counted the same tokens.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VOCABULARY = 700
END = "<|end|>"
BEGIN = "<s>"
BYTE_NAMES = [f"<0x{byte:02X}>" for byte in range(256)]


def build_tokenizer(folder: Path, corpus: Sequence[Path], kind: str) -> None:
    """Trains a tokenizer of a kind of ``KINDS`` on the corpus and saves it as transformers reads it."""
    files = [str(path) for path in corpus]
    tokenizer = KINDS[kind](files)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    begins = tokenizer.token_to_id(BEGIN) is not None
    names = {"eos_token": END, **({"bos_token": BEGIN} if begins else {})}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1_000_000, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def of_bytes(files: list[str]) -> Any:
    """As GPT-2's: BPE over bytes, an end and nothing for the beginning."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train(
        files,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        ),
    )
    return tokenizer


def of_words(files: list[str]) -> Any:
    """As Llama's: words begin with a mark, characters that were never seen are spelt in bytes, and a text
    gets a beginning unless special tokens are declined.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=False))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps)
    specials = [BEGIN, END, *BYTE_NAMES]
    size = VOCABULARY + len(specials)
    tokenizer.train(files, trainers.BpeTrainer(vocab_size=size, special_tokens=specials, show_progress=False))
    # Training takes the bytes' names as special tokens, which would be found in texts; they are not.
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = [one for one in document["added_tokens"] if one["content"] in (BEGIN, END)]
    tokenizer = Tokenizer.from_str(json.dumps(document))
    begin = [(BEGIN, tokenizer.token_to_id(BEGIN))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A", special_tokens=begin)
    return tokenizer


def of_pieces(files: list[str]) -> Any:
    """As T5's: pieces of a unigram model, a space put before every text, and unknown characters lost."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=VOCABULARY, special_tokens=["<unk>", END], unk_token="<unk>", show_progress=False
    )
    tokenizer.train(files, trainer)
    return tokenizer


KINDS = {"bytes": of_bytes, "words": of_words, "pieces": of_pieces}


@dataclass(frozen=True)
class Token:
    """A token of a scored text: its id, its log-probability (None: it is the first), the likeliest in its
    place, and its rank among them.
    """

    id: int
    logprob: float | None
    top: Sequence[tuple[int, float]]
    rank: int


class RandomModel:
    """A Llama of two layers whose weights are drawn from ``seed``; ``context`` tokens at most."""

    def __init__(self, folder: Path, seed: int, context: int) -> None:
        import torch
        from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(str(folder))
        self.context = context
        self.end: int = self.tokenizer.eos_token_id
        shape = LlamaConfig(
            vocab_size=len(self.tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=context + 1, initializer_range=0.15,
            bos_token_id=self.tokenizer.bos_token_id, eos_token_id=self.end,
        )  # fmt: skip
        self._torch = torch
        self._model = LlamaForCausalLM(shape).eval()

    def encoded(self, text: str, special: bool) -> list[int]:
        """The ids of a text; ``special``: with what the tokenizer puts before it."""
        return list(self.tokenizer(text, add_special_tokens=special)["input_ids"])

    def decoded(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    def scored(self, ids: Sequence[int], top: int) -> list[Token]:
        """Every token with its log-probability and the ``top`` likeliest in its place."""
        torch = self._torch
        with torch.no_grad():
            logits = self._model(torch.tensor([list(ids)])).logits[0].double()
        table = torch.log_softmax(logits, dim=-1)
        tokens = [Token(ids[0], None, (), 0)]
        for place, token in enumerate(ids[1:]):
            row = table[place]
            values, names = row.topk(max(top, 1))
            rank = int((row > row[token]).sum()) + 1
            best = list(zip(names.tolist(), values.tolist(), strict=True))
            tokens.append(Token(token, float(row[token]), best, rank))
        return tokens

    def generated(self, ids: Sequence[int], limit: int, stops: Sequence[str]) -> tuple[list[int], str, str]:
        """The greedy continuation: its ids, its text up to the first stop sequence, and why it ended."""
        torch = self._torch
        made: list[int] = []
        with torch.no_grad():
            out = self._model(torch.tensor([list(ids)]), use_cache=True)
            while len(made) < limit:
                token = int(out.logits[0, -1].argmax())
                if token == self.end:
                    return made, self.decoded(made), "stop"
                made.append(token)
                text = self.decoded(made)
                found = [text.find(stop) for stop in stops if stop in text]
                if found:
                    return made, text[: min(found)], "stop"
                out = self._model(
                    torch.tensor([[token]]), past_key_values=out.past_key_values, use_cache=True
                )
        return made, self.decoded(made), "length"
