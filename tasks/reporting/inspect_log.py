"""``export: [inspect]``: a log of Inspect for each model (and prompt, where there are several).

Its viewer and its extension for VS Code open such logs; ``inspect_ai.log.read_eval_log`` reads them. A log
is a zip archive (``.eval``, version 2): ``header.json`` with the evaluation and its numbers, a file for each
sample × epoch, and a summary of all. A sample of ours is an epoch there. A pair is a scorer: ``exact_match``,
or ``exact_match/FILTER``. What is unscored has no score, and the sample's metadata say why.
"""

import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from tasks.messages.calls import call_arguments
from tasks.messages.endings import Ending, ending
from tasks.reporting.view import LabelView, ResponseView, SampleView
from tasks.store.home import whole_file
from tasks.store.outputs import INSPECT_LOGS

VERSION: Final = 2
REASONS: Final[Mapping[Ending | None, str]] = {
    "whole": "stop",
    "limit": "max_tokens",
    "call": "tool_calls",
    "filtered": "content_filter",
}
"""Why an answer ended → Inspect's word; anything else is unknown there."""


@dataclass(frozen=True)
class LoggedRun:
    """What a log says about the run: its manifest, the rows of its numbers, and the names of its prompts."""

    manifest: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    prompts: Sequence[str]

    def numbers(self, model: str, prompt: str) -> Iterator[Mapping[str, Any]]:
        """The rows about all items of a model with a prompt."""
        for row in self.results:
            apart = {
                name for name in json.loads(row["facets"]) if name not in ("model_name", "prompt_template")
            }
            own = row["model_name"] in (model, None) and row["prompt_template"] in (prompt, None)
            if own and not apart and row["value"] is not None and math.isfinite(row["value"]):
                yield row


@dataclass
class _Counted:
    """What the header says of the samples, as they are written."""

    ids: list[str] = field(default_factory=list)
    summaries: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    epochs: int = 1


def write_inspect_log(
    folder: Path, run: LoggedRun, model: str, prompt: str, samples: Iterable[SampleView]
) -> Path:
    """Writes the log of a model with a prompt, whole or not at all; returns its path."""
    name = "_".join([run.manifest["benchmark"], model, *([prompt] if len(run.prompts) > 1 else [])])
    path = folder / INSPECT_LOGS / f"{_file_part(name)}.eval"
    path.parent.mkdir(parents=True, exist_ok=True)
    counted = _Counted()
    started = _moment(run.manifest["started"])
    spec = _Spec(run.manifest, model, prompt)
    with (
        whole_file(path) as unfinished,
        zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for sample in samples:
            counted.ids.append(sample.item_id)
            for epoch, response in enumerate(sample.responses, 1):
                written = _sample(sample, response, epoch, model)
                _write_sample(archive, written | {"events": _events(written, model, started)}, counted)
        header = _header(run, spec, counted)
        start = {"version": VERSION, "eval": header["eval"], "plan": header["plan"]}
        _put(archive, "_journal/start.json", start)
        _put(archive, "summaries.json", counted.summaries)
        _put(archive, "header.json", header)
    return path


def _write_sample(archive: zipfile.ZipFile, sample: Mapping[str, Any], counted: _Counted) -> None:
    counted.epochs = max(counted.epochs, sample["epoch"])
    for usage in sample["model_usage"].values():
        for name, tokens in usage.items():
            counted.usage[name] = counted.usage.get(name, 0) + tokens
    counted.summaries.append(_summary(sample))
    _put(archive, f"samples/{sample['id']}_epoch_{sample['epoch']}.json", sample)


@dataclass(frozen=True)
class _Spec:
    """The evaluation as Inspect describes one. Its ids follow from the run's."""

    manifest: Mapping[str, Any]
    model: str
    prompt: str

    def document(self, counted: _Counted, pairs: Sequence[str]) -> dict[str, Any]:
        manifest, benchmark = self.manifest, str(self.manifest["benchmark"])
        facts = manifest["models"][self.model]
        return {
            "eval_id": self._mark("eval"),
            "run_id": str(manifest["run_id"]),
            "created": _moment(manifest["started"]),
            "task": benchmark,
            "task_id": self._mark("task"),
            "task_version": 0,
            "dataset": {
                "name": benchmark,
                "samples": len(counted.ids),
                "sample_ids": counted.ids,
                "shuffled": bool(manifest.get("shuffle")),
            },
            "model": self.model,
            "model_generate_config": _generate_config(facts.get("sampling") or {}),
            "model_base_url": (facts.get("identity") or {}).get("base_url"),
            "config": {"epochs": counted.epochs, "epochs_reducer": ["mean"]},
            "packages": {"nightjar": manifest["versions"]["nightjar"]},
            "scorers": [{"name": name} for name in pairs],
            "metadata": {"prompt_template": self.prompt, "nightjar_run": str(manifest["run_id"])},
        }

    def _mark(self, what: str) -> str:
        parts = (str(self.manifest["run_id"]), self.model, self.prompt, what)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:22]


def _header(run: LoggedRun, spec: _Spec, counted: _Counted) -> dict[str, Any]:
    rows = list(run.numbers(spec.model, spec.prompt))
    pairs = list(dict.fromkeys(_pair_of(row["metric"], row["filter"]) for row in rows))
    started = float(run.manifest["started"])
    finished = sum(1 for summary in counted.summaries if summary.get("error") is None)
    return {
        "version": VERSION,
        "status": "success",
        "eval": spec.document(counted, pairs),
        "plan": {"name": "plan", "steps": [{"solver": "generate", "params": {}}], "config": {}},
        "results": {
            "total_samples": len(counted.summaries),
            "completed_samples": finished,
            "scores": [_score_of(row) for row in rows],
        },
        "stats": {
            "started_at": _moment(started),
            "completed_at": _moment(started + float(run.manifest["wall_seconds"])),
            "model_usage": {spec.model: counted.usage} if counted.usage else {},
        },
    }


def _score_of(row: Mapping[str, Any]) -> dict[str, Any]:
    name = _pair_of(row["metric"], row["filter"])
    shown = {row["reduction"]: row["value"]} | {end: row[end] for end in ("stderr", "ci_low", "ci_high")}
    return {
        "name": name if row["label"] is None else f"{name}/{row['label']}",
        "scorer": name,
        "reducer": row["reduction"],
        "scored_samples": row["n_scored"],
        "unscored_samples": row["n_unscored"],
        "metrics": {
            metric: {"name": metric, "value": value}
            for metric, value in shown.items()
            if value is not None and math.isfinite(value)
        },
        "metadata": {"signature": row["signature"]},
    }


def _sample(sample: SampleView, response: ResponseView, epoch: int, model: str) -> dict[str, Any]:
    scores, reasons = _scores(sample, epoch - 1)
    messages = _messages(response.transcript or sample.prompt, sample.chat or response.transcript is not None)
    answer = _answer(sample, response)
    usage = _usage(response)
    choice = {"message": answer, "stop_reason": REASONS.get(ending(response.finish_reason), "unknown")}
    return {
        "id": sample.item_id,
        "epoch": epoch,
        "input": messages if sample.chat else sample.prompt,
        **({"choices": list(sample.choices)} if sample.choices else {}),
        "target": _target(sample),
        "messages": [*messages, answer],
        "output": {
            "model": model,
            "choices": [] if response.failed else [choice],
            "completion": _text_of(answer),
            **({"usage": usage} if usage else {}),
            **({"time": response.seconds} if response.seconds is not None else {}),
        },
        "scores": scores,
        "metadata": {**dict(sample.facets), **({"unscored": reasons} if reasons else {})},
        "model_usage": {model: usage} if usage else {},
        **({"total_time": response.seconds} if response.seconds is not None else {}),
        **(_failure(response) if response.failed else {}),
    }


def _events(sample: Mapping[str, Any], model: str, moment: str) -> list[dict[str, Any]]:
    """What happened, as the viewer's transcript shows it: the sample, the tools that were called, what the
    model was asked and said, the scores."""
    *before, _ = sample["messages"]
    results = {one["tool_call_id"]: one["content"] for one in before if one.get("tool_call_id")}
    calls = [call for one in before for call in one.get("tool_calls", ())]
    asked = {"model": model, "input": before, "tools": [], "tool_choice": "auto", "config": {}}
    found: list[dict[str, Any]] = [
        {
            "event": "sample_init",
            "sample": {name: sample[name] for name in ("input", "choices", "target", "id") if name in sample},
            "state": {},
        },
        *(
            {"event": "tool", "type": "function", **call, "result": results.get(call["id"], ""), "events": []}
            for call in calls
        ),
        {"event": "model", **asked, "output": sample["output"]},
        *({"event": "error", "error": sample[name]} for name in ("error",) if name in sample),
        *(
            {
                "event": "score",
                "score": score,
                "target": sample["target"],
                "scorer": scorer,
                "intermediate": False,
            }
            for scorer, score in sample["scores"].items()
        ),
    ]
    place = f"{sample['id']}\0{sample['epoch']}\0"
    return [
        {
            **event,
            "uuid": hashlib.sha256(f"{place}{number}".encode()).hexdigest()[:22],
            "timestamp": moment,
            "working_start": 0.0,
        }
        for number, event in enumerate(found)
    ]


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    names = ("id", "epoch", "input", "choices", "target", "scores", "model_usage", "total_time")
    failed = {"error": sample["error"]["message"]} if "error" in sample else {}
    found = {name: sample[name] for name in names if name in sample}
    return {**found, **failed, "completed": True, "message_count": len(sample["messages"])}


def _scores(sample: SampleView, place: int) -> tuple[dict[str, Any], dict[str, str]]:
    """What each pair and each evaluation method says of one of an item's samples; why others say nothing."""
    found: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for key, values in sample.scores.items():
        if place >= len(values):
            continue  # a filter that keeps fewer repeats
        metric, _, filter_name = key.rpartition(",")
        name, value = _pair_of(metric, filter_name), values[place]
        if value is None or not math.isfinite(value):
            reasons[name] = _at(sample.reasons.get(key), place) or "no score for a single sample"
            continue
        prediction = _at(sample.filters.get(filter_name), place)
        details = _at(sample.details.get(key), place)
        found[name] = {
            "value": value,
            **({"answer": _plain(prediction)} if prediction is not None else {}),
            **({"explanation": _plain(details)} if details else {}),
        }
    for label in sample.labels:
        if label.sample_index == place:
            found |= _label(label)
    return found, reasons


def _label(label: LabelView) -> dict[str, Any]:
    value = label.score if label.score is not None else label.passed
    explained = {"explanation": _plain(label.details)} if label.details else {}
    return {} if value is None else {label.label or "verdict": {"value": value, **explained}}


def _at(values: Sequence[Any] | None, place: int) -> Any:
    return values[place] if values is not None and place < len(values) else None


def _answer(sample: SampleView, response: ResponseView) -> dict[str, Any]:
    """The model's message: its text, or the choice that it found most likely."""
    text = response.text
    if text is None and response.lls and len(response.lls) == len(sample.choices):
        text = sample.choices[max(range(len(response.lls)), key=response.lls.__getitem__)]
    content: Any = text or ""
    if response.reasoning:
        content = [{"type": "reasoning", "reasoning": response.reasoning}, {"type": "text", "text": content}]
    return {"role": "assistant", "content": content, "source": "generate", **_calls(response.tool_calls)}


def _calls(calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [_call(call, place) for place, call in enumerate(calls)]} if calls else {}


def _call(call: Mapping[str, Any], place: int) -> dict[str, Any]:
    given = call.get("arguments")
    arguments = call_arguments(given) if isinstance(given, str) else given
    known = arguments if isinstance(arguments, dict) else {"arguments": given}
    return {"id": str(call.get("id") or place), "function": str(call.get("name")), "arguments": known}


def _messages(prompt: str, chat: bool) -> list[dict[str, Any]]:
    if not chat:
        return [{"role": "user", "content": prompt, "source": "input"}]
    return [_message(message) for message in orjson.loads(prompt)]


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    known = role if role in ("system", "user", "assistant", "tool") else "system"
    content = message.get("content")
    shown = content if isinstance(content, str) else [_part(part) for part in content or ()]
    called = [
        {"id": call.get("id"), **(call.get("function") or call)} for call in message.get("tool_calls") or ()
    ]
    told = {"tool_call_id": message["tool_call_id"]} if message.get("tool_call_id") else {}
    return {"role": known, "content": shown, **(_calls(called) if known == "assistant" else {}), **told}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, Mapping) and part.get("type") == "text":
        return {"type": "text", "text": str(part.get("text"))}
    given = part.get("image_url") if isinstance(part, Mapping) else None
    address = given.get("url") if isinstance(given, Mapping) else given
    if isinstance(address, str) and address.startswith(("http://", "https://", "data:")):
        return {"type": "image", "image": address}
    return {"type": "text", "text": _plain(part)}


def _text_of(message: Mapping[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else str(content[-1]["text"])


def _target(sample: SampleView) -> str | list[str]:
    if sample.choices and sample.gold:
        return [sample.choices[place] for place in sample.gold if 0 <= place < len(sample.choices)]
    texts = [_plain(reference) for reference in sample.references]
    return texts[0] if len(texts) == 1 else texts


def _usage(response: ResponseView) -> dict[str, int]:
    asked, written = response.prompt_tokens, response.completion_tokens
    if asked is None and written is None:
        return {}
    found = {"input_tokens": asked or 0, "output_tokens": written or 0}
    found["total_tokens"] = sum(found.values())
    thought = response.reasoning_tokens
    return found | ({"reasoning_tokens": thought} if thought is not None else {})


def _failure(response: ResponseView) -> dict[str, Any]:
    told = response.error or "the request failed"
    return {"error": {"message": told, "traceback": told, "traceback_ansi": told}}


def _generate_config(sampling: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_tokens": "max_tokens",
        "max_completion_tokens": "max_tokens", "seed": "seed", "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
    }  # fmt: skip
    found = {names[name]: value for name, value in sampling.items() if name in names}
    stop = sampling.get("stop")
    return found | ({"stop_seqs": [stop] if isinstance(stop, str) else list(stop)} if stop else {})


def _pair_of(metric: str, filter_name: str) -> str:
    return metric if filter_name == "none" else f"{metric}/{filter_name}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _put(archive: zipfile.ZipFile, name: str, document: Any) -> None:
    archive.writestr(name, orjson.dumps(document, option=orjson.OPT_NON_STR_KEYS, default=str))


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _file_part(name: str) -> str:
    """A name as a file that every file system takes; one that had to be changed gets a mark."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:150]
    mark = hashlib.sha256(name.encode()).hexdigest()[:8]
    return clean if clean == name else f"{clean}_{mark}"
