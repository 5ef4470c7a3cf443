"""What the harness's results files say of a run beside its numbers: model, tokenizer, chat, machine, time."""

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from tasks.store.home import named_path

Section = dict[str, Any]
FORM: Final = "0.4.13"
"""The version of the harness whose form the files have."""


@dataclass(frozen=True)
class HarnessCommand:
    """What a command line of the harness said that its files repeat."""

    source: str
    """``--model``"""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The section of that name."""
    log_samples: bool = True
    """Whether sample logs are written."""


def folder_name(model: str) -> str:
    """A model's name as a folder.

    >>> folder_name("org/m:1")
    'org__m__1'
    """
    return re.sub(r"[\"<>:/|\\?*\[\]]+", "__", model)


def about_run(
    configs: Sequence[Mapping[str, Any]], seconds: float, model: str, command: HarnessCommand | None
) -> Section:
    """The sections of one model; ``configs`` are those of its runs, which took so many seconds together."""
    entry = next(one for config in configs for one in config["models"] if one["name"] == model)
    harness = configs[0]["harness"]
    chat = bool(harness.get("apply_chat_template"))
    system = harness.get("system_instruction")
    return {
        "pretty_env_info": f"{platform.platform()}; Python {platform.python_version()}",
        "transformers_version": _version("transformers") or "N/A",
        "lm_eval_version": f"{FORM} (nightjar {_version('nightjar')})",
        "upper_git_hash": _commit(Path.cwd().parent),
        **_about_tokenizer(entry, Path(configs[0]["base_dir"])),
        "model_source": command.source if command is not None else _source(entry),
        "model_name": model,
        "model_name_sanitized": folder_name(model),
        "system_instruction": system,
        "system_instruction_sha": _sha(system),
        "fewshot_as_multiturn": bool(harness.get("fewshot_as_multiturn", True)) if chat else None,
        "chat_template": "" if chat else None,  # the server's own, which it keeps to itself
        "chat_template_sha": None,
        "total_evaluation_time_seconds": str(seconds),
    }


def _source(entry: Mapping[str, Any]) -> str:
    """What the harness calls an endpoint of OpenAI's protocol; else the model's type here."""
    kind = str(entry.get("type", "openai"))
    if kind != "openai" or entry.get("path"):
        return kind if kind != "openai" else "hf"
    completions = (entry.get("config") or {}).get("api") == "completions"
    return "local-completions" if completions else "local-chat-completions"


def _about_tokenizer(entry: Mapping[str, Any], base_dir: Path) -> Section:
    """Its special tokens, each with its number, and what the model takes in; nothing where none is known."""
    if entry.get("tokenizer") is None:
        return {}
    folder = named_path(base_dir, str(entry["tokenizer"]))
    settings, numbers = _read(folder / "tokenizer_config.json"), _numbers(folder / "tokenizer.json")

    def token(kind: str) -> list[Any]:
        text = settings.get(f"{kind}_token")
        text = text.get("content") if isinstance(text, dict) else text
        return [text, str(numbers.get(text))]

    length = entry.get("max_length")
    return {
        "tokenizer_pad_token": token("pad"),
        "tokenizer_eos_token": token("eos"),
        "tokenizer_bos_token": token("bos"),
        "eot_token_id": numbers.get(token("eos")[0]),
        "max_length": None if length is None else int(length) - 1,  # one is for what is generated
    }


def _read(path: Path) -> Section:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(path: Path) -> dict[Any, int]:
    """Tokens of a tokenizer.json and their numbers, those that were added last."""
    document = _read(path)
    vocabulary = (document.get("model") or {}).get("vocab")
    known: dict[Any, int] = dict(vocabulary) if isinstance(vocabulary, dict) else {}
    return known | {one["content"]: one["id"] for one in document.get("added_tokens") or ()}


def _sha(text: str | None) -> str | None:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit(folder: Path) -> str | None:
    """The commit of the repository that the folder is the root of."""
    head = folder / ".git" / "HEAD"
    try:
        name = head.read_text(encoding="utf-8").split()[-1]
        place = head.parent / name
        return place.read_text(encoding="utf-8").strip() if place.is_file() else None
    except (OSError, IndexError):
        return None
