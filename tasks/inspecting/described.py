"""What of a task of Inspect becomes native keys: its samples are items, its scorers metrics, its epochs
samples of an item.

A task is asked about itself each time that a config is read: what it is made of may have changed.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.recorded.inspect_log import text_of
from tasks.benchmarks.recorded.inspect_runs import REDUCTIONS
from tasks.benchmarks.recorded.run import FIELD, pair_name
from tasks.datasets.config import DatasetError
from tasks.inspecting.config import InspectFound, InspectTask
from tasks.inspecting.interpreter import call_inspect
from tasks.inspecting.models import CLIENTS
from tasks.store.home import private_folder, write_lines
from tasks.usercode.sources import named_files

OWN_KEYS: Final = (
    *BenchmarkFields.ASKED, "gen_prefix", "choices_by", "output_type", "scorer", "metric_list",
    "filter_list", "process_results", "harness", "benchmark", "limits", "inspected",
)  # fmt: skip
"""Keys that say what the task says; ``limits`` are those of ``inspect``."""
BOUNDED: Final = frozenset({"accuracy"})
"""Metrics of Inspect that are of verdicts, between 0 and 1."""


def inspect_keys(task: InspectTask, base_dir: Path, workspace: Path) -> dict[str, Any]:
    """The native keys of the task; its items are written below ``workspace``. Raises NightjarError."""
    mark = hashlib.sha256(f"{base_dir}\0{task.model_dump_json()}".encode()).hexdigest()[:16]
    place = private_folder(workspace / f"inspect_{mark}")
    request = {"task": task.task, "args": task.args, "clients": CLIENTS}
    asking = Path(tempfile.mkdtemp(dir=place))  # another run may ask at the same time
    said = call_inspect("describe", request, asking, base_dir)
    shutil.rmtree(asking, ignore_errors=True)
    if not said["samples"]:
        raise DatasetError(f"inspect.task: '{task.task}' has no samples")
    content = hashlib.sha256(json.dumps(said["samples"], sort_keys=True).encode()).hexdigest()[:16]
    items = place / f"items_{content}.jsonl"
    write_lines(items, map(_item, said["samples"]))
    metrics = list(_metrics(task, said))
    names = [metric["alias"] for metric in metrics]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"inspect.task: two of its scores would be called '{twice}'; rename one of its scorers"
        )
    files = {**said["files"], **named_files(task.depends_on, base_dir)}
    found = InspectFound(
        files=files,
        packages=said["packages"],
        absent=said["absent"],
        pairs=names,
        notes=list(_notes(said)),
    )
    return {
        "output_type": "generate_until",
        "dataset": str(items.resolve()),
        "prompt_template": "{{input}}",
        "target": "{{target}}",
        "sample_params": {"num_samples": said["epochs"]},
        "scorer": {"type": "recorded"},
        "metric_list": metrics,
        "inspected": found.model_dump(mode="json"),
    }


def _item(sample: Mapping[str, Any]) -> dict[str, Any]:
    """All that a sample says is in its item, and so in the keys of its answers."""
    given = sample["input"]
    text = given if isinstance(given, str) else "\n\n".join(
        f"{one.get('role')}: {text_of(one.get('content'))}" for one in given
    )  # fmt: skip
    # Inspect makes new ids of messages each time: they are none of an item's.
    said = [{name: value for name, value in one.items() if name != "id"} for one in _messages(given)]
    return {**sample, "id": str(sample["id"]), "input": text, **({"messages": said} if said else {})}


def _messages(given: Any) -> list[dict[str, Any]]:
    return [] if isinstance(given, str) else list(given)


def _metrics(task: InspectTask, said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One metric for each scorer, or for each key of one that gives dictionaries."""
    names = [scorer["name"] for scorer in said["scorers"]]
    if not names:
        raise ConfigError(f"inspect.task: '{task.task}' has no scorer")
    if unknown := next((name for name in task.values if name not in names), None):
        raise ConfigError(f"inspect.values: '{unknown}' is no scorer of the task; it has {', '.join(names)}")
    reducer = next(iter(said["reducers"]), "mean")
    for scorer in said["scorers"]:
        named = {key: own for key, own in scorer["keys"].items() if not set("*?[") & set(key)}
        keys = dict.fromkeys(task.values.get(scorer["name"], ()), scorer["metrics"]) or named
        parts = {f"{scorer['name']}/{key}": own for key, own in keys.items()}
        for name, metrics in (parts or {scorer["name"]: scorer["metrics"]}).items():
            alias = pair_name(name)
            yield {
                "metric": "recorded",
                "alias": alias,
                "field": f"{FIELD}.{alias}",
                **({"range": [0, 1]} if BOUNDED & set(metrics) else {}),
                **({"reduction": REDUCTIONS[reducer]} if reducer in REDUCTIONS else {}),
            }


def _notes(said: Mapping[str, Any]) -> Iterator[str]:
    reducers = said["reducers"] or ["mean"]
    if said["epochs"] > 1 and (len(reducers) > 1 or REDUCTIONS.get(reducers[0]) != reducers[0]):
        yield (
            f"inspect: Inspect reduces the task's epochs by {', '.join(map(repr, reducers))}; the pairs here "
            f"have their {REDUCTIONS.get(reducers[0], 'mean')}"
        )
