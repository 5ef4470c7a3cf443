"""Reads the harness's sample logs, ``samples_<task>_<time>.jsonl``, and the ``results_<time>.json`` beside
them.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from metrics.errors import ConfigError
from tasks.datasets.config import DatasetError

NAME: Final = re.compile(r"samples_(?P<task>.+)_(?P<time>\d{4}-\d{2}-\d{2}T[\d.\-]+)\.jsonl")
RESULTS: Final = "results_{time}.json"
LogRow = dict[str, Any]


@dataclass(frozen=True)
class SampleLog:
    """One benchmark's log: where it is, and what the results file says about the run it belongs to."""

    task: str
    time: str
    path: Path
    model_name: str
    config: Mapping[str, Any]
    higher_is_better: Mapping[str, bool]

    def first_filter(self) -> Iterator[LogRow]:
        """The rows of the log's first filter in its order, one a document: what other filters made of it is
        in theirs."""
        name: Any = None
        for number, row in enumerate(self.rows()):
            name = row.get("filter") if number == 0 else name
            if row.get("filter") == name:
                yield row

    def rows(self) -> Iterator[LogRow]:
        """All rows; raises DataError naming file and line for one that is not the harness's."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                row = _parsed(line, f"{self.path.name}:{number}")
                missing = sorted({"doc_id", "doc", "arguments", "resps"} - set(row))
                if missing:
                    raise DatasetError(
                        f"{self.path.name}:{number}: has no '{missing[0]}', as the harness's logs do"
                    )
                yield row


def find_logs(folder: Path) -> list[SampleLog]:
    """The logs in a folder (and the folders of models in it), the latest of each benchmark and model.

    Raises ConfigError for a folder without any.
    """
    latest: dict[tuple[Path, str], tuple[str, Path]] = {}
    for path in sorted(folder.rglob("samples_*.jsonl")) if folder.is_dir() else []:
        match = NAME.fullmatch(path.name)
        if match:
            key = (path.parent, match["task"])
            latest[key] = max(latest.get(key, ("", path)), (match["time"], path))
    if not latest:
        raise ConfigError(
            f"{folder} holds no sample logs of lm-evaluation-harness (samples_<task>_<time>.jsonl)"
        )
    return [_log(task, time, path) for (_, task), (time, path) in sorted(latest.items())]


def requests_of(row: LogRow) -> list[list[Any]]:
    """The arguments of a row's requests, in their order."""
    arguments = row["arguments"]
    if isinstance(arguments, Mapping):
        groups = sorted(arguments.items(), key=lambda entry: _number(entry[0]))
        return [
            [value for _, value in sorted(group.items(), key=lambda one: _number(one[0]))]
            for _, group in groups
        ]
    return [list(group) if isinstance(group, list) else [group] for group in arguments]


def likelihoods_of(row: LogRow) -> tuple[list[float], list[bool]]:
    """Log-likelihoods and greediness of a row's requests, from the first repeat; logs hold both as text."""
    lls, greedy = [], []
    for answers in row["resps"]:
        answer = answers[0] if isinstance(answers, list) and answers else answers
        values = answer if isinstance(answer, list) else [answer, False]
        lls.append(float(values[0]))
        greedy.append(str(values[1]) == "True")
    return lls, greedy


def target_of(row: LogRow) -> Any:
    """The target as the benchmark gave it: logs hold its text, from which indices and lists can be told."""
    target = row.get("target")
    if isinstance(target, str) and re.fullmatch(r"-?\d+|\[.*\]", target, re.DOTALL):
        try:
            return ast.literal_eval(target)
        except (SyntaxError, ValueError):
            return target
    return target


def _log(task: str, time: str, path: Path) -> SampleLog:
    results = path.with_name(RESULTS.format(time=time))
    document = _document(results) if results.is_file() else {}
    configs = document.get("configs") or {}
    name = (
        task
        if task in configs
        else next((known for known in configs if re.sub(r"\W", "_", known) == task), task)
    )
    model = document.get("model_name") or path.parent.name
    better = (document.get("higher_is_better") or {}).get(name) or {}
    return SampleLog(name, time, path, str(model), configs.get(name) or {}, better)


def _document(path: Path) -> LogRow:
    document = _parsed(path.read_bytes(), path.name)
    return document if isinstance(document, dict) else {}


def _parsed(text: bytes, where: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)  # the harness writes NaN and Infinity, which are Python's and not JSON
    except ValueError as error:
        raise DatasetError(f"{where}: malformed JSON: {error}") from error


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else 0
