"""The same YAML against the same server, by lm-evaluation-harness and by this project.

    python -m bench.lm_eval.served --peer PYTHON

``PYTHON`` is an interpreter with ``lm-eval[api]`` and ``transformers`` (the extra ``bench``). The server is
the embedded one, a byte-level language model; the tokenizer that both are given is made here, one token a
byte. Prints every metric of both, and the largest difference of a sample's log-likelihood; exits 1 where
one exceeds 1e-4, or a metric 1e-6.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tasks.models.demo.serving import serve

PROJECT = Path(__file__).resolve().parents[2]
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


def by_the_harness(peer: str, url: str, folder: Path) -> Path:
    """Its run; returns the folder of its files."""
    arguments = (
        f"model=demo,base_url={url}/completions,tokenizer={folder / 'tokenizer'},max_length={MAX_LENGTH}"
    )
    command = [
        peer,
        "-m",
        "lm_eval",
        "--model",
        "local-completions",
        "--model_args",
        arguments,
        "--log_samples",
    ]
    command += [
        "--tasks",
        ",".join(NAMES),
        "--include_path",
        str(folder / "definitions"),
        "--limit",
        str(LIMIT),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    subprocess.run(
        [*command, "--output_path", str(folder / "peer")], env=environment, check=True, capture_output=True
    )
    return folder / "peer"


def by_this_project(url: str, folder: Path) -> Path:
    """Our run of the same definitions; returns the folder of its files."""
    endpoint = {"base_url": url, "api": "completions"}
    model = {
        "name": "demo",
        "config": endpoint,
        "tokenizer": str(folder / "tokenizer"),
        "max_length": MAX_LENGTH,
    }
    command = [sys.executable, "-m", "flows.eval", "--tasks", ",".join(NAMES), "--limit", str(LIMIT)]
    command += ["--include-path", str(folder / "definitions"), "--set", f"models={json.dumps([model])}"]
    command += ["--store", str(folder / "store"), "--output", str(folder / "own"), "--json"]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)
    return folder / "own"


def metrics(folder: Path) -> dict[str, dict[str, Any]]:
    """Benchmark → "metric,filter" → value."""
    document = json.loads(max(folder.rglob("results_*.json")).read_text())
    return {
        name: {key: value for key, value in entry.items() if "," in key and "_stderr" not in key}
        for name, entry in document["results"].items()
    }


def log_likelihoods(folder: Path, name: str) -> list[list[float]]:
    """The log-likelihoods of each item of a benchmark, as its sample log has them."""
    lines = max(folder.rglob(f"samples_{name}_*.jsonl")).read_text().splitlines()
    answers = [[answer[0] for answer in json.loads(line)["resps"]] for line in lines]
    return [[float(entry[0] if isinstance(entry, list) else entry) for entry in item] for item in answers]


def main() -> int:
    """Runs both and prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", required=True, help="python with lm-eval[api] and transformers")
    peer = parser.parse_args().peer
    worst_metric = worst_likelihood = 0.0
    with tempfile.TemporaryDirectory() as place, serve() as server:
        folder = Path(place)
        byte_tokenizer(folder / "tokenizer")
        (folder / "definitions").mkdir()
        for path in DEFINITIONS.glob("*.yaml"):
            # The harness takes data files relative to its working folder, so they are made absolute for both.
            text = re.sub(r"\.\./\S*/demo/", f"{DATA}/", path.read_text())
            (folder / "definitions" / path.name).write_text(text)
        theirs, ours = by_the_harness(peer, server.base_url, folder), by_this_project(server.base_url, folder)
        own = metrics(ours)
        for name, values in metrics(theirs).items():
            for key, value in values.items():
                worst_metric = max(worst_metric, abs(value - own[name][key]))
                print(f"{name:12} {key:24} {value:14.8f} {own[name][key]:14.8f}")
        for name in NAMES[:3]:
            items = zip(log_likelihoods(theirs, name), log_likelihoods(ours, name), strict=True)
            # Theirs list the unconditional ones behind the choices, ours leave them out.
            pairs = [pair for one, other in items for pair in zip(one, other, strict=False)]
            worst_likelihood = max([worst_likelihood, *(abs(a - b) for a, b in pairs)])
    print(f"largest difference: metric {worst_metric:.2e}, log-likelihood {worst_likelihood:.2e}")
    return int(worst_metric > 1e-6 or worst_likelihood > 1e-4)


if __name__ == "__main__":
    raise SystemExit(main())
