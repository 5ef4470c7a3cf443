"""The same YAML against the embedded server, by lm-evaluation-harness and by this project.

    python -m bench.lm_eval.served [--peer PYTHON]

``PYTHON`` is an interpreter with ``lm-eval[api]`` and ``transformers`` (the extra ``bench``), else that of
``NIGHTJAR_BENCH_PEER``, else this one. The server is a byte-level language model; the tokenizer that both are
given is made here, one token a byte. Exits 1 where a number differs (see ``comparing.py``).
"""

import argparse
import json
import re
import tempfile
from pathlib import Path

from bench.lm_eval.comparing import compare
from bench.lm_eval.peer import ABSENT, peer_python
from bench.lm_eval.runs import PROJECT, Asked, by_the_harness, by_this_project, home
from tasks.models.demo.server import serve

DEFINITIONS = Path(__file__).resolve().parent / "served"
DATA = PROJECT / "deployments" / "benchmarks" / "demo"
NAMES = ("served_mc", "served_ll", "served_roll", "served_gen")
LIMIT, MAX_LENGTH = 20, 4_096


def byte_tokenizer(folder: Path) -> Path:
    """A tokenizer of 256 bytes and an end token, in the files that transformers reads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    names = {byte: chr(byte) for byte in shown} | {byte: chr(256 + at) for at, byte in enumerate(hidden)}
    vocabulary = {name: byte for byte, name in names.items()} | {"<|end|>": 256}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|end|>",
        "eos_token": "<|end|>",
        "model_max_length": MAX_LENGTH,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def main() -> int:
    """Runs both and prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", help="python with lm-eval[api] and transformers")
    peer = peer_python(parser.parse_args().peer, "transformers")
    if peer is None:
        print(f"skipped: {ABSENT}")
        return 0
    wrong = 0
    with tempfile.TemporaryDirectory() as place, serve() as server, home(Path(place, "home")) as environment:
        folder = Path(place)
        definitions = folder / "definitions"
        definitions.mkdir()
        for path in DEFINITIONS.glob("*.yaml"):
            # The harness takes data files relative to its working folder, so they are made absolute for both.
            text = re.sub(r"\.\./\S*/demo/", f"{DATA}/", path.read_text())
            (definitions / path.name).write_text(text)
        tokenizer = byte_tokenizer(folder / "tokenizer")
        asked = Asked(definitions, NAMES, server.base_url, "demo", tokenizer, MAX_LENGTH, limit=LIMIT)
        theirs = by_the_harness(peer, asked, folder / "peer")
        by_this_project(asked, folder / "own", environment)
        for comparison in compare(theirs, folder / "own", NAMES):
            print(comparison.line())
            wrong += bool(comparison.wrong)
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
