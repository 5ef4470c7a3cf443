"""``--from-inspect``: each log of Inspect is a run."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.benchmarks.recorded.inspect_log import InspectLog, number_of, text_of
from tasks.benchmarks.recorded.run import FIELD, RecordedRun, pair_name
from tasks.datasets.config import DatasetError
from tasks.messages.chat import chat_text
from tasks.store.home import line

REDUCTIONS: Final[Mapping[str, str]] = {"mean": "mean", "median": "median", "max": "max", "mode": "mean"}
"""What Inspect's reducers of epochs are called here. Of ``mode`` there is none of numbers."""


def inspect_runs(path: Path) -> Iterator[RecordedRun]:
    """The run of each log (of a folder: of each that it holds). Raises ConfigError where there is no log, and
    DatasetError for one that can't be read."""
    logs = sorted(path.rglob("*.eval")) if path.is_dir() else [path]
    if not logs or not logs[0].is_file():
        raise ConfigError(
            f"--from-inspect {path}: expected a log of Inspect (.eval or .json), or a folder of them"
        )
    for log in logs:
        yield _run(InspectLog.open(log))


def _run(log: InspectLog) -> RecordedRun:
    items: dict[str, dict[str, Any]] = {}
    responses, names = list[dict[str, Any]](), dict[str, bool]()
    scored_errors = 0
    seen = set[tuple[str, int]]()
    for sample in log.samples():
        if sample.get("id") is None:
            raise DatasetError(f"{log.path}: a sample has no 'id', as Inspect's have")
        key, epoch = str(sample["id"]), sample.get("epoch") or 1
        if (key, epoch) in seen:
            raise DatasetError(
                f"{log.path}: two samples are '{key}' of epoch {epoch}; one of them is too many"
            )
        seen.add((key, epoch))
        items.setdefault(
            key, {"id": key, "input": _input(sample.get("input")), "target": sample.get("target")}
        )
        scores = _scores(sample)
        scored_errors += bool(sample.get("error") and scores)
        for name, one in scores.items():
            names[name] = names.get(name, True) and _is_verdict(one["value"])
        responses.append(recorded_row(sample, log.model))
    order = {name: place for place, name in enumerate(log.expected)}
    return RecordedRun(
        source=log.path,
        task=log.task,
        model=log.model,
        items=sorted(items.values(), key=lambda item: order.get(item["id"], len(order))),
        responses=responses,
        pairs=names,
        repeats=log.epochs,
        reduction=REDUCTIONS.get(_reducer(log)),
        notes=(*_notes(log, items, len(responses)), *_of_errors(log, scored_errors)),
    )


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


def _of_errors(log: InspectLog, scored: int) -> list[str]:
    told = f"samples with an error and a score: {scored}; the score counts, as in Inspect"
    return [f"{log.path}: {told}"] if scored else []


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
            pair = pair_name(name)
            if pair in found:
                raise DatasetError(
                    f"two scores of a sample would be called '{pair}'; rename one of its scorers"
                )
            found[pair] = {"score": number, "value": one, **said, **reason}
    return found


def _is_verdict(value: Any) -> bool:
    """Whether a value is of those that lie between 0 and 1 by what they are."""
    return isinstance(value, bool) or (isinstance(value, str) and value in ("C", "P", "I", "N"))


def recorded_row(sample: Mapping[str, Any], model: str) -> dict[str, Any]:
    """A sample of a log as a recorded response, with its scores and the conversation before its answer."""
    output, scores = sample.get("output") or {}, _scores(sample)
    choices: list[dict[str, Any]] = output.get("choices") or []
    choice = choices[0] if choices else {}
    text = output.get("completion")
    failed = sample.get("error") if not scores else None
    said = _conversation(sample.get("messages") or ())
    row = {
        "item_id": str(sample["id"]),
        "sample_index": int(sample.get("epoch") or 1) - 1,
        "response": text if text is not None else text_of((choice.get("message") or {}).get("content")),
        "finish_reason": "length" if choice.get("stop_reason") == "max_tokens" else choice.get("stop_reason"),
        "inference_time": sample.get("total_time"),
        "metadata": {FIELD: scores},
        **({"prompt": chat_text(said)} if said else {}),
        **({"served_model": output["model"]} if output.get("model") else {}),
        **_tokens((sample.get("model_usage") or {}).get(model) or {}),
    }
    if not failed:
        return {**row, "status": "ok"}
    message = failed.get("message") if isinstance(failed, Mapping) else failed
    return {**row, "status": "infra_error", "error": f"Inspect: {message}"}


def _conversation(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was said before the last answer, in OpenAI's form; media are named by their type."""
    before = messages[:-1] if messages and messages[-1].get("role") == "assistant" else messages
    return [_message(one) for one in before]


def _message(one: Mapping[str, Any]) -> dict[str, Any]:
    error = (one.get("error") or {}).get("message")
    said = {"role": one.get("role"), "content": text_of(one.get("content")) or error or ""}
    calls = [_call(call) for call in one.get("tool_calls") or ()]
    called = one.get("tool_call_id")
    return said | ({"tool_calls": calls} if calls else {}) | ({"tool_call_id": called} if called else {})


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments")
    text = arguments if isinstance(arguments, str) else line(arguments or {}).decode().strip()
    return {
        "id": call.get("id"), "type": "function",
        "function": {"name": call.get("function"), "arguments": text},
    }  # fmt: skip


def _tokens(usage: Mapping[str, Any]) -> dict[str, int]:
    names = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
    return {name: int(usage[theirs]) for name, theirs in names.items() if usage.get(theirs) is not None}
