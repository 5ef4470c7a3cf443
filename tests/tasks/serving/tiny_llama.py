"""Makes a folder with a tiny Llama of random weights: ``python tiny_llama.py FOLDER [SEED]``, below 2 MB.

Runs in the environment of the servers: torch, transformers, tokenizers.
"""

import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = (
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "is",
    "was",
    "river",
    "stone",
    "bird",
    "night",
    "light",
    "water",
)
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(vocabulary: int = 400) -> Any:
    """A byte-level tokenizer of the words above, with a chat template."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=12)) + f". {draw.randrange(1000)}\n" for _ in range(300)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    wrapped.chat_template = TEMPLATE
    return wrapped


def main(folder: Path, seed: int, hidden: int = 64, layers: int = 2, vocabulary: int = 400) -> None:
    wrapped = tiny_tokenizer(vocabulary)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(wrapped), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0,
        eos_token_id=1, pad_token_id=1, tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    model.generation_config.do_sample = False
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[2:]]
    main(Path(sys.argv[1]), *(numbers or [0]))
