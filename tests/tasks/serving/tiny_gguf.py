"""Makes a GGUF file with a tiny Llama of random weights: ``python tiny_gguf.py FILE``, below 2 MB.

Runs in the environment of llama-cpp-python, with numpy and gguf.
"""

import sys

import gguf
import numpy as np

WORDS = ("the", "river", "stone", "bird", "night", "light", "water", "of", "and", "is")
CONTEXT, WIDTH, HIDDEN, LAYERS, HEADS = 256, 64, 128, 2, 4


def main(file: str) -> None:
    draw = np.random.default_rng(3)
    special = ["<unk>", "<s>", "</s>"]
    letters = [chr(code) for code in range(ord("!"), ord("~") + 1)]
    pieces = ["▁", *letters, *(f"▁{word}" for word in WORDS)]
    octets = [f"<0x{octet:02X}>" for octet in range(256)]
    tokens = [*special, *octets, *pieces]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * len(octets) + [gguf.TokenType.NORMAL] * len(pieces)

    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(place) for place in range(len(tokens))])
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def random(*shape: int) -> np.ndarray:
        return draw.normal(0, 0.2, shape).astype(np.float32)

    writer.add_tensor("token_embd.weight", random(len(tokens), WIDTH))
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", np.ones(WIDTH, np.float32))
        writer.add_tensor(f"{block}.ffn_norm.weight", np.ones(WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{block}.{name}.weight", random(WIDTH, WIDTH))
        for name, shape in (("gate", (HIDDEN, WIDTH)), ("up", (HIDDEN, WIDTH)), ("down", (WIDTH, HIDDEN))):
            writer.add_tensor(f"{block}.ffn_{name}.weight", random(*shape))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output.weight", random(len(tokens), WIDTH))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(sys.argv[1])
