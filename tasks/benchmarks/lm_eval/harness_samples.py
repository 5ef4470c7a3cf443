"""``samples_<task>_<time>.jsonl`` as the harness writes it, from a run's own sample file."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from tasks.benchmarks.lm_eval.fields import Fields
from tasks.benchmarks.lm_eval.functions import decoded
from tasks.reporting.exports_lines import write_lines

Row = dict[str, Any]
OURS: Final = ("item_id", "model_name", "prompt_template")


def write_samples(
    source: Path, target: Path, harness: Mapping[str, Any], base_dir: str, model: str | None = None
) -> str:
    """Writes the rows of ``model`` (None: all) and returns the benchmark's hash over them, as the harness
    computes it.

    Targets are worked out anew, because the run's own file shows which answers are accepted and not what the
    definition called the target.
    """
    total = hashlib.sha256()

    def lines() -> Iterator[Row]:
        for row in _rows(source, model):
            line = _line(row, harness, base_dir)
            total.update((line["doc_hash"] + line["prompt_hash"] + line["target_hash"]).encode())
            yield line

    write_lines(target, lines())
    return total.hexdigest()


def _rows(source: Path, model: str | None) -> Iterator[Row]:
    with source.open("rb") as file:
        for line in file:
            row: Row = orjson.loads(line)
            if model is None or row.get("model_name", model) == model:
                yield row


def _line(row: Row, harness: Mapping[str, Any], base_dir: str) -> Row:
    config = decoded(harness["config"])
    target = row["target"]
    if "samples" not in harness and config.get("doc_to_target") is not None:
        target = Fields(config, row["doc"].keys(), Path(base_dir), str(harness["task"])).target(row["doc"])
    generation = config.get("generation_kwargs")
    arguments = row["arguments"]
    if generation is not None and config.get("output_type", "generate_until") == "generate_until":
        arguments = {name: {**group, "arg_1": generation} for name, group in arguments.items()}
    resps = row["resps"]
    if config.get("output_type", "generate_until") != "generate_until":
        # A log-likelihood is asked once, however often it is to be repeated: it is what it is.
        resps = [answers * (config.get("repeats") or 1) for answers in resps]
    first = arguments.get("gen_args_0", {}).get("arg_0", "")
    kept = {key: value for key, value in row.items() if key not in OURS}
    return {
        **kept,
        "resps": resps,
        "target": str(target),
        "arguments": arguments,
        "doc_hash": text_hash(json.dumps(row["doc"], indent=2, ensure_ascii=False)),
        "prompt_hash": text_hash(_as_hashed(first, bool(harness.get("apply_chat_template")))),
        "target_hash": text_hash(str(target)),
    }


def _as_hashed(prompt: Any, chat: bool) -> str:
    """A prompt as the harness hashes it: a chat as JSON with a space behind commas and colons."""
    if isinstance(prompt, str) and not chat:
        return prompt
    return json.dumps(json.loads(prompt) if isinstance(prompt, str) else prompt, ensure_ascii=False)


def text_hash(text: str) -> str:
    """SHA-256 of a text, hexadecimal: the harness's hash of documents, prompts and targets."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
