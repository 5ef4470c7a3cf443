"""What lighteval's file of results says of a benchmark: its numbers, and how they were made of the samples'.

Details have the samples' scores alone, and not every metric of lighteval is their mean: of ``drop`` it takes
the best sample. The results are beside them: ``results/MODEL/results_DATE.json`` next to
``details/MODEL/DATE/``, or one folder up in a data set of the hub.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tasks.datasets.config import DatasetError, parsed_json

NAME: Final = re.compile(r"details_(?P<task>.+)_(?P<date>\d+-\d+-\d+T.*)")
"""How a file of details is called."""


@dataclass(frozen=True)
class LightevalResults:
    """The results of one benchmark; empty where there is no file of them."""

    found: bool = False
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Each metric's number, and under its name and ``_stderr`` the error."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """What made each number of its samples' values: ``mean``, ``max`` …"""
    lower: frozenset[str] = frozenset()
    """Metrics of which less is better."""


def lighteval_results(details: Path) -> LightevalResults:
    """The results beside a file of details; raises DatasetError for some that can't be read."""
    named = NAME.fullmatch(details.stem)
    if not named:
        return LightevalResults()
    for path in _places(details.resolve(), named["date"]):
        try:
            document = parsed_json(path.read_bytes(), str(path))
        except OSError as error:
            raise DatasetError(f"{path}: can't be read: {error}") from error
        found = _results(document, named["task"])
        if found:
            return found
    return LightevalResults()


def _places(details: Path, date: str) -> Iterator[Path]:
    """The files of results that may belong to the details."""
    name = f"results_{date}.json"
    yield from filter(Path.is_file, (details.parent / name, details.parent.parent / name))
    for folder in details.parents:
        if folder.name == "details":
            yield from sorted((folder.parent / "results").rglob(name))
            return


def _results(document: Any, task: str) -> LightevalResults | None:
    if not isinstance(document, Mapping):
        return None
    numbers = (document.get("results") or {}).get(task)
    if not isinstance(numbers, Mapping):
        return None
    configs = document.get("config_tasks") or {}
    config = configs.get(task) or configs.get(task.rpartition("|")[0]) or {}
    functions: dict[str, str] = {}
    lower = set[str]()
    for metric in config.get("metrics") or config.get("metric") or ():
        if not isinstance(metric, Mapping):
            continue
        names = metric.get("metric_name")
        for name in names if isinstance(names, list) else [names]:
            function = _of(metric.get("corpus_level_fn"), name)
            if isinstance(function, str):
                functions[str(name)] = function
            if _of(metric.get("higher_is_better"), name) is False:
                lower.add(str(name))
    return LightevalResults(True, numbers, functions, frozenset(lower))


def _of(said: Any, name: Any) -> Any:
    """What is said of one metric of a group: of each by its name, or of all."""
    return said.get(name) if isinstance(said, Mapping) else said
