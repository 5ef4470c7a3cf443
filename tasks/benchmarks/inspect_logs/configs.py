"""``--from-inspect``: a config for each log, its model a replay of what was answered and scored."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.inspect_logs.log import InspectLog, number_of, text_of
from tasks.datasets.config import DatasetError
from tasks.store.home import write_lines

REDUCTIONS: Final[Mapping[str, str]] = {"mean": "mean", "median": "median", "max": "max", "mode": "mean"}
"""What Inspect's reducers of epochs are called here. Of ``mode`` there is none of numbers."""
FIELD: Final = "scores"
"""Where a response's metadata have what the log's scorers said."""


def logged_configs(paths: Sequence[Path], workspace: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """A native config for each log (of folders: for each that they hold) and what is to be told of them.

    Items and responses are written below ``workspace``. Raises ConfigError where there is no log, and
    DatasetError for one that can't be read.
    """
    found = [_config(InspectLog.open(path), workspace) for path in _logs(paths)]
    return [config for config, _ in found], [note for _, notes in found for note in notes]


def _logs(paths: Sequence[Path]) -> list[Path]:
    logs: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob("*.eval")) if path.is_dir() else [path]
        if not inside or not inside[0].is_file():
            raise ConfigError(
                f"--from-inspect {path}: expected a log of Inspect (.eval or .json), or a folder of them"
            )
        logs += inside
    return logs


def _config(log: InspectLog, workspace: Path) -> tuple[dict[str, Any], list[str]]:
    # Named by the log's place: two models' logs of a task are two files, and the same log is one.
    mark = hashlib.sha256(str(log.path.resolve()).encode()).hexdigest()[:12]
    folder = workspace / f"{log.path.stem}_{mark}"
    folder.mkdir(parents=True, exist_ok=True)
    items: dict[str, dict[str, Any]] = {}
    responses, names = list[dict[str, Any]](), dict[str, bool]()
    for sample in log.samples():
        if not isinstance(sample, dict) or sample.get("id") is None:
            raise DatasetError(f"{log.path}: a sample has no 'id', as Inspect's have")
        key = str(sample["id"])
        items.setdefault(
            key, {"id": key, "input": _input(sample.get("input")), "target": sample.get("target")}
        )
        scores = _scores(sample)
        for name, one in scores.items():
            names[name] = names.get(name, True) and _is_verdict(one["value"])
        responses.append(_response(key, sample, scores, log.model))
    if not responses:
        raise DatasetError(f"{log.path}: holds no samples; was it written with --no-log-samples?")
    if not names:
        raise DatasetError(f"{log.path}: none of its samples has a score")
    order = {name: place for place, name in enumerate(log.expected)}
    write_lines(
        folder / "items.jsonl", sorted(items.values(), key=lambda item: order.get(item["id"], len(order)))
    )
    write_lines(folder / "responses.jsonl", responses)
    return _native(log, folder, names), _notes(log, items, len(responses))


def _native(log: InspectLog, folder: Path, names: Mapping[str, bool]) -> dict[str, Any]:
    reducer = _reducer(log)
    metrics = [
        {
            "metric": "recorded",
            "alias": name,
            "field": f"{FIELD}.{name}",
            **({"range": [0, 1]} if verdicts else {}),
            **({"reduction": REDUCTIONS[reducer]} if reducer in REDUCTIONS else {}),
        }
        for name, verdicts in names.items()
    ]
    replay = {"path": str((folder / "responses.jsonl").resolve())}
    return {
        "name": log.task,
        "output_type": "generate_until",
        "dataset": str((folder / "items.jsonl").resolve()),
        "prompt_template": "{{input}}",
        "target": "{{target}}",
        "models": [{"name": log.model, "type": "replay", "config": replay}],
        "sample_params": {"num_samples": log.epochs},
        "scorer": {"type": "recorded"},
        "metric_list": metrics,
    }


def _notes(log: InspectLog, items: Mapping[str, Any], runs: int) -> list[str]:
    notes = []
    status = log.header.get("status", "started")
    if status != "success":
        due = len(log.expected) * log.epochs
        notes.append(f"{log.path}: the evaluation ended as '{status}'; {runs} of {due} sample runs are there")
    missing = [name for name in log.expected if name not in items]
    if missing and status == "success":
        notes.append(f"{log.path}: {len(missing)} samples are not in the log, '{missing[0]}' among them")
    reducer = _reducer(log)
    if log.epochs > 1 and REDUCTIONS.get(reducer) != reducer:
        notes.append(f"{log.path}: its epochs were reduced by '{reducer}'; here their mean counts")
    return notes


def _reducer(log: InspectLog) -> str:
    named = (log.header["eval"].get("config") or {}).get("epochs_reducer") or ["mean"]
    return str(named[0] if isinstance(named, list) else named)


def _input(value: Any) -> str:
    """The sample's input as text; of messages each with its role."""
    if isinstance(value, str):
        return value
    return "\n\n".join(f"{one.get('role')}: {text_of(one.get('content'))}" for one in value or ())


def _scores(sample: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The sample's scores under the names of pairs; a scorer of several values has one for each."""
    found: dict[str, dict[str, Any]] = {}
    for scorer, given in (sample.get("scores") or {}).items():
        value = given.get("value")
        values = (
            {f"{scorer}/{key}": one for key, one in value.items()}
            if isinstance(value, dict)
            else {scorer: value}
        )
        for name, one in values.items():
            number = number_of(one)
            said = {key: given[key] for key in ("answer", "explanation") if given.get(key) is not None}
            reason = (
                {} if number is not None else {"error": f"Inspect's value is {str(one)[:80]!r}, no number"}
            )
            pair = name.replace(".", "_")  # a dot leads into a field
            if pair in found:
                raise DatasetError(
                    f"two scores of a sample would be called '{pair}'; rename one of its scorers"
                )
            found[pair] = {"score": number, "value": one, **said, **reason}
    return found


def _is_verdict(value: Any) -> bool:
    """Whether a value is of those that lie between 0 and 1 by what they are."""
    return isinstance(value, bool) or (isinstance(value, str) and value in ("C", "P", "I", "N"))


def _response(key: str, sample: Mapping[str, Any], scores: Mapping[str, Any], model: str) -> dict[str, Any]:
    output = sample.get("output") or {}
    choices: list[dict[str, Any]] = output.get("choices") or []
    choice = choices[0] if choices else {}
    text = output.get("completion")
    failed = sample.get("error") if not scores else None
    row = {
        "item_id": key,
        "sample_index": int(sample.get("epoch") or 1) - 1,
        "response": text if text is not None else text_of((choice.get("message") or {}).get("content")),
        "finish_reason": "length" if choice.get("stop_reason") == "max_tokens" else choice.get("stop_reason"),
        "inference_time": sample.get("total_time"),
        "metadata": {FIELD: dict(scores)},
        **_tokens((sample.get("model_usage") or {}).get(model) or {}),
    }
    if not failed:
        return {**row, "status": "ok"}
    message = failed.get("message") if isinstance(failed, Mapping) else failed
    return {**row, "status": "infra_error", "error": f"Inspect: {message}"}


def _tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    return {name: int(usage[theirs]) for name, theirs in names.items() if usage.get(theirs) is not None}
