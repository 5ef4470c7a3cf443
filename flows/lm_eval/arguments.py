"""The flags of lm-evaluation-harness's ``run``, its config file beneath them, and what they hold together.

A value is read as there: ``true`` and ``false``, numbers, Python literals, else text. A flag beats the key of
the same name in ``--config``, unless it is empty or false. An empty path is refused.
"""

import argparse
import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from flows.command_line import EMPTY
from flows.config.source import read_yaml
from metrics.aliases import nearest
from metrics.errors import ConfigError

SEEDS: Final = (0, 1234, 1234, 1234)
"""Of Python's generator, numpy's, torch's, and of few-shot examples."""
Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class HarnessArguments:
    """What a command line and its config file ask for; the names are the harness's."""

    model: str = "hf"
    model_args: Arguments = field(default_factory=dict)
    tasks: tuple[str, ...] = ()
    include_path: str | None = None
    num_fewshot: int | None = None
    batch_size: int | str = 1
    max_batch_size: int | None = None
    device: str | None = None
    limit: float | None = None
    samples: Mapping[str, Sequence[int]] = field(default_factory=dict)
    gen_kwargs: Arguments = field(default_factory=dict)
    output_path: str | None = None
    log_samples: bool = False
    predict_only: bool = False
    system_instruction: str | None = None
    apply_chat_template: bool | str = False
    fewshot_as_multiturn: bool | None = None
    seed: tuple[int | None, ...] = SEEDS
    metadata: Arguments = field(default_factory=dict)
    confirm_run_unsafe_code: bool = False
    trust_remote_code: bool = False
    write_out: bool = False
    show_config: bool = False
    use_cache: str | None = None
    cache_requests: str | None = None
    check_integrity: bool = False
    verbosity: str | None = None
    wandb_args: Arguments = field(default_factory=dict)
    wandb_config_args: Arguments = field(default_factory=dict)
    trackio_args: Arguments = field(default_factory=dict)
    hf_hub_log_args: Arguments = field(default_factory=dict)
    force: bool = False
    """Not the harness's: run what can be run of several benchmarks."""

    @property
    def chat(self) -> bool:
        """Whether models are asked by messages."""
        return bool(self.apply_chat_template)

    @property
    def multiturn(self) -> bool:
        """Whether few-shot examples are turns of a chat."""
        return self.chat if self.fewshot_as_multiturn is None else self.fewshot_as_multiturn


class HarnessParser(argparse.ArgumentParser):
    """One that refuses, and ends after ``--help``, as the other commands do."""

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raises typer.Exit."""
        raise typer.Exit(status)

    def error(self, message: str) -> NoReturn:
        """Raises ConfigError."""
        raise ConfigError(f"{message} ({self.prog} --help lists the flags)")


def path_given(text: str) -> str:
    """The path that a flag names; raises ArgumentTypeError where it is empty."""
    if not text:
        raise argparse.ArgumentTypeError(EMPTY)
    return text


def run_parser() -> argparse.ArgumentParser:
    """The flags of ``run``; none has a default, so that a config file shows beneath them."""
    parser = HarnessParser(
        prog="python -m flows.lm_eval run", argument_default=argparse.SUPPRESS,
        description="Evaluates a model on benchmarks of lm-evaluation-harness, by its flags.",
    )  # fmt: skip
    flag = parser.add_argument
    flag(
        "--config",
        "-C",
        type=path_given,
        metavar="FILE",
        help="YAML file of these flags; what is given here beats it",
    )
    flag("--model", "-M", help="local-completions, local-chat-completions, hf, vllm, …")
    flag("--model_args", "-a", nargs="+", metavar="K=V", help="arguments of the model: k=v,k=v or JSON")
    flag("--tasks", "-t", nargs="+", metavar="NAME", help="benchmarks, groups, tags, patterns, YAML files")
    flag("--include_path", type=path_given, metavar="DIR", help="folder of more definitions")
    flag("--num_fewshot", "-f", type=int, metavar="N", help="few-shot examples")
    flag("--batch_size", "-b", metavar="N", help="log-likelihood prompts in a request")
    flag("--max_batch_size", type=int, metavar="N", help="needs nothing: see --batch_size")
    flag("--device", help="of weights that are served here: cpu, cuda:0")
    flag("--limit", "-L", type=float, metavar="N|SHARE", help="first documents, or a share below 1 of them")
    flag("--samples", "-E", metavar="JSON", help='documents by number: {"task": [0, 1]}, or a file')
    flag("--gen_kwargs", nargs="+", metavar="K=V", help="over each benchmark's generation_kwargs")
    flag(
        "--output_path", "-o", type=path_given, metavar="PATH", help="folder of the results, or a file .json"
    )  # fmt: skip
    flag("--log_samples", "-s", action="store_true", help="write samples_<task>_<time>.jsonl, too")
    flag("--predict_only", "-x", action="store_true", help="write answers, compute no metric")
    flag("--system_instruction", metavar="TEXT", help="stands before the description")
    flag("--apply_chat_template", nargs="?", const=True, metavar="NAME", help="ask by messages")
    flag("--fewshot_as_multiturn", nargs="?", const=True, metavar="BOOL", help="examples as turns")
    flag("--seed", metavar="N[,N,N,N]", help="python, numpy, torch, few-shot; default 0,1234,1234,1234")
    flag("--metadata", nargs="+", metavar="K=V", help="given to functions that make documents")
    flag("--confirm_run_unsafe_code", action="store_true", help="run programs that models write")
    flag("--trust_remote_code", action="store_true", help="code of a hub's model, where weights are served")
    flag("--write_out", "-w", action="store_true", help="print the first prompt of each benchmark")
    flag("--show_config", action="store_true", help="print the whole results document")
    flag("--use_cache", "-c", type=path_given, metavar="PATH", help="needs nothing: answers are kept anyway")
    flag(
        "--cache_requests", nargs="?", const="true", metavar="true|refresh|delete",
        help="refresh: make prompts again",
    )  # fmt: skip
    flag("--wandb_args", nargs="+", metavar="K=V", help="publish to Weights & Biases: project=…")
    for name in ("--wandb_config_args", "--trackio_args", "--hf_hub_log_args"):
        flag(name, nargs="+", metavar="K=V", help=argparse.SUPPRESS)
    flag("--check_integrity", action="store_true", help=argparse.SUPPRESS)
    flag("--verbosity", "-v", help=argparse.SUPPRESS)
    flag("--force", action="store_true", help="of several benchmarks, run those that can be run")
    return parser


def read_arguments(words: Sequence[str]) -> HarnessArguments:
    """What the words after ``run`` ask for; raises ConfigError."""
    given = vars(run_parser().parse_args(list(words)))
    found = _of_file(Path(given.pop("config"))) if given.get("config") else {}
    found |= {name: value for name, value in given.items() if value or value == 0}
    return _checked(_read(found))


MAPPINGS: Final = (
    "model_args", "gen_kwargs", "metadata", "wandb_args", "wandb_config_args", "trackio_args",
    "hf_hub_log_args",
)  # fmt: skip


def _of_file(path: Path) -> dict[str, Any]:
    source = read_yaml(path)
    known = [one.name for one in fields(HarnessArguments)]
    for key in source.data:
        if key not in known:
            raise ConfigError(f"{source.where((key,))}: --config has no key '{key}'{nearest(key, known)}")
    return {key: value for key, value in source.data.items() if value is not None}


def _read(found: dict[str, Any]) -> HarnessArguments:
    read = dict(found)
    for name in MAPPINGS:
        if name in read:
            read[name] = mapping_of(read[name], f"--{name}")
    read["tasks"] = names_of(read.get("tasks", ()))
    read["samples"] = _samples(read["samples"]) if "samples" in read else {}
    if "seed" in read:
        read["seed"] = _seeds(read["seed"])
    if isinstance(read.get("fewshot_as_multiturn"), str):
        read["fewshot_as_multiturn"] = read["fewshot_as_multiturn"].lower() in ("true", "1", "yes")
    if isinstance(read.get("cache_requests"), dict):
        raise ConfigError("cache_requests takes true, refresh or delete")
    return HarnessArguments(**read)


def names_of(value: str | Sequence[Any]) -> tuple[str, ...]:
    """Names that blanks or commas divide, each once."""
    listed = [value] if isinstance(value, str) else [str(entry) for entry in value]
    return tuple(dict.fromkeys(name.strip() for entry in listed for name in entry.split(",") if name.strip()))


def _checked(arguments: HarnessArguments) -> HarnessArguments:
    if not arguments.tasks:
        raise ConfigError("--tasks is missing: names of benchmarks, groups or tags, or YAML files")
    if arguments.samples and arguments.limit is not None:
        raise ConfigError("--samples and --limit both choose documents; give one of them")
    if (arguments.log_samples or arguments.predict_only) and not arguments.output_path:
        flag = "--predict_only" if arguments.predict_only else "--log_samples"
        raise ConfigError(f"{flag} needs --output_path: the folder that samples are written to")
    if arguments.fewshot_as_multiturn and not arguments.chat:
        raise ConfigError("--fewshot_as_multiturn makes turns of a chat; add --apply_chat_template")
    if arguments.limit is not None and arguments.limit <= 0:
        raise ConfigError(
            f"--limit {arguments.limit:g}: expected a number of documents, or a share above 0 and below 1"
        )
    if arguments.cache_requests not in (None, True, "true", "refresh", "delete"):
        raise ConfigError(f"--cache_requests {arguments.cache_requests}: expected true, refresh or delete")
    return arguments


def mapping_of(value: Any, flag: str) -> dict[str, Any]:
    """The mapping that a flag's words stand for: one JSON object, or ``k=v`` joined by commas or blanks."""
    if isinstance(value, Mapping):
        return dict(value)
    words = [value] if isinstance(value, str) else [str(word) for word in value]
    if words and words[0].lstrip().startswith("{"):
        return _json_object(words[0], flag)
    found: dict[str, Any] = {}
    for word in words:
        for part in _top_level(word):
            key, equals, text = part.partition("=")
            if not equals:
                raise ConfigError(f"{flag}: expected key=value, got '{part}'")
            found[key] = value_of(text)
    return found


def _json_object(text: str, flag: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{flag}: not valid JSON: {error}; texts stand in double quotes") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{flag}: expected a JSON object, got {type(found).__name__}")
    return found


_CLOSING: Final = {"[": "]", "{": "}", "(": ")"}


def _top_level(text: str) -> Iterable[str]:
    """The parts between commas that stand in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _CLOSING:
            depth += 1
        elif letter in _CLOSING.values():
            depth = max(0, depth - 1)
        elif letter == "," and not depth:
            parts.append("")
            continue
        parts[-1] += letter
    return [part for part in parts if part]


def value_of(text: str) -> Any:
    """A value of ``k=v``.

    >>> [value_of(text) for text in ("True", "8", "0.5", "['a', 1]", "gpt2")]
    [True, 8, 0.5, ['a', 1], 'gpt2']
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (_whole, float, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError):
            continue
    return text


def _whole(text: str) -> int:
    if not text.isnumeric():
        raise ValueError(text)
    return int(text)


def _samples(value: Any) -> dict[str, list[int]]:
    """Documents by benchmark: a mapping, its JSON, or a file of that."""
    if isinstance(value, str):
        text = value
        if "{" not in value:
            try:
                text = Path(value).expanduser().read_text(encoding="utf-8")
            except OSError as error:
                raise ConfigError(f"--samples {value}: {error.strerror or error}") from error
        value = _json_object(text, "--samples")
    for name, numbers in value.items():
        whole = isinstance(numbers, list) and all(type(one) is int and one >= 0 for one in numbers)
        if not whole:
            raise ConfigError(
                f"--samples: '{name}': expected a list of documents' numbers from 0, got {numbers!r:.80}"
            )
    return {str(name): sorted(set(numbers)) for name, numbers in value.items() if numbers}


def _seeds(value: Any) -> tuple[int | None, ...]:
    entries = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
    try:
        seeds = [_seed(entry) for entry in entries]
    except ValueError as error:
        raise ConfigError(f"--seed {value}: expected whole numbers or None") from error
    if len(seeds) == 1:
        seeds *= len(SEEDS)
    if len(seeds) not in (len(SEEDS) - 1, len(SEEDS)):
        raise ConfigError(f"--seed {value}: expected one number, or four: python,numpy,torch,few-shot")
    return (*seeds, *SEEDS[len(seeds) :])


def _seed(entry: Any) -> int | None:
    text = str(entry).strip().lower()
    return None if text == "none" else int(text)
