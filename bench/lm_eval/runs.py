"""One evaluation by lm-evaluation-harness and the same by this project: each leaves its files in a folder."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Asked:
    """What is evaluated: benchmarks of a folder, on a model of a name at an address.

    Both are told the tokenizer's folder and ``max_length``; ``limit`` None: all documents. ``chat`` asks for
    messages.
    """

    definitions: Path
    names: Sequence[str]
    base_url: str
    model: str
    tokenizer: Path | None
    max_length: int
    chat: bool = False
    limit: int | None = None

    @property
    def limits(self) -> list[str]:
        """The option of that name, as both have it."""
        return [] if self.limit is None else ["--limit", str(self.limit)]


@contextmanager
def home(folder: Path) -> Iterator[dict[str, str]]:
    """An environment with a home of its own, whose server is stopped at the end."""
    environment = {**os.environ, "NIGHTJAR_HOME": str(folder)}
    environment.pop("PREFECT_API_URL", None)
    try:
        yield environment
    finally:
        stop = [sys.executable, "-m", "flows.server", "stop"]
        subprocess.run(stop, cwd=PROJECT, env=environment, check=False, capture_output=True)


def by_the_harness(peer: str, asked: Asked, output: Path, as_text: bool = False) -> Path:
    """Its run; returns the folder of its files. ``as_text``: prompts go as text instead of as token ids."""
    model = "local-chat-completions" if asked.chat else "local-completions"
    path = "chat/completions" if asked.chat else "completions"
    arguments = {"model": asked.model, "base_url": f"{asked.base_url}/{path}", "max_length": asked.max_length}
    if not asked.chat:
        arguments |= {"tokenizer": str(asked.tokenizer), "tokenized_requests": not as_text}
    command = [peer, str(Path(__file__).with_name("peer_served.py")), str(output), model]
    command += [",".join(f"{name}={value}" for name, value in arguments.items()), *asked.names]
    environment = {**os.environ, **OFFLINE, "PYTHONPATH": str(asked.definitions)}
    run = subprocess.run(
        [*command, *["--chat"] * asked.chat, *asked.limits],
        cwd=asked.definitions, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise SystemExit(f"the peer failed:\n{run.stderr[-3000:]}")
    return output


def by_this_project(
    asked: Asked, output: Path, environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Our run: its files are in ``output``, what it asked and computed beside it."""
    endpoint = {"base_url": asked.base_url, "api": "chat" if asked.chat else "completions"}
    model: dict[str, Any] = {"name": asked.model, "config": endpoint, "max_length": asked.max_length}
    if asked.tokenizer is not None and not asked.chat:
        model["tokenizer"] = str(asked.tokenizer)
    command = [sys.executable, "-m", "flows.eval", "--tasks", ",".join(asked.names), *asked.limits]
    command += ["--include-path", str(asked.definitions), "--set", f"models={json.dumps([model])}"]
    command += ["--set", "harness.apply_chat_template=true"] * asked.chat
    command += ["--store", f"{output}-store", "--output", str(output), "--json"]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
