"""How a run's output folder becomes a ``RunView``: comparing needs neither the store nor the run itself.

``responses.jsonl`` holds one line a sample, ``samples_<benchmark>.jsonl`` one line an item × filter, both in
stretches of lines of one model, prompt template and partition. A first pass notes where these stretches
begin; then the files are read in as many places at once as there are filters, so that one item at a time is
in memory.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow.parquet as pq

from metrics.errors import DataError
from tasks.reporting.view import ResponseView, RunView, SampleView

JsonObject = dict[str, Any]
SamplePlace = tuple[str | None, str | None, str | None]  # model, prompt template, filter
Segments = dict[SamplePlace, list[tuple[int, int]]]  # byte ranges, in order
RESPONSES: Final = "responses.jsonl"


def folder_view(folder: str | Path) -> RunView:
    """The run that was exported to ``folder``.

    Raises DataError where results.parquet, manifest.json or responses.jsonl is missing or a line is no JSON
    object.
    """
    folder = Path(folder)
    missing = [
        name for name in ("results.parquet", "manifest.json", RESPONSES) if not (folder / name).is_file()
    ]
    if missing:
        raise DataError(f"{folder} is not the folder of a published run: it lacks {', '.join(missing)}")
    return RunView(
        manifest=json.loads((folder / "manifest.json").read_text(encoding="utf-8")),
        results=pq.read_table(folder / "results.parquet"),
        samples=partial(_samples, folder),
    )


def _samples(folder: Path) -> Iterator[SampleView]:
    responses = folder / RESPONSES
    logs = {path: _segments(path) for path in sorted(folder.glob("samples_*.jsonl"))}
    for (model, prompt, _), ranges in _segments(responses).items():
        filters: defaultdict[str, list[Iterator[JsonObject]]] = defaultdict(list)
        for path, segments in logs.items():
            for (own_model, own_prompt, name), places in segments.items():
                if own_model in (model, None) and own_prompt in (prompt, None):
                    filters[name or "none"].append(_lines(path, places))
        streams = {name: _LinesByItem(chain.from_iterable(sources)) for name, sources in filters.items()}
        for item_id, rows in groupby(_lines(responses, ranges), key=lambda row: row["item_id"]):
            yield _sample(list(rows), {name: stream.take(item_id) for name, stream in streams.items()})


def _segments(path: Path) -> Segments:
    """Byte ranges of the lines of each place, neighbours joined."""
    found: Segments = {}
    for start, end, line in _positions(path):
        place = (line.get("model_name"), line.get("prompt_template"), line.get("filter"))
        ranges = found.setdefault(place, [])
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((start, end))
    return found


def _positions(path: Path) -> Iterator[tuple[int, int, JsonObject]]:
    start = 0
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = orjson.loads(text)
            except orjson.JSONDecodeError as error:
                raise DataError(f"{path}:{number}: no JSON object: {error}; export the run again") from error
            yield start, start + len(text), line
            start += len(text)


def _lines(path: Path, ranges: list[tuple[int, int]]) -> Iterator[JsonObject]:
    with path.open("rb") as file:
        for start, end in ranges:
            file.seek(start)
            while file.tell() < end:
                yield orjson.loads(file.readline())


class _LinesByItem:
    """Lines in the order of the items, handed out by item; an item that a filter lacks takes nothing."""

    def __init__(self, lines: Iterator[JsonObject]) -> None:
        self._lines = lines
        self._next = next(lines, None)

    def take(self, item_id: str) -> JsonObject | None:
        line = self._next
        if line is None or line["item_id"] != item_id:
            return None
        self._next = next(self._lines, None)
        return line


def _sample(rows: list[JsonObject], logged: Mapping[str, JsonObject | None]) -> SampleView:
    first = rows[0]
    lines = {name: line for name, line in logged.items() if line is not None}
    line: JsonObject = next(iter(lines.values()), {})
    target, prompt = line.get("target"), first["prompt"]
    likelihoods = _likelihoods(line, len(rows))
    return SampleView(
        item_id=first["item_id"],
        model_name=first["model_name"],
        prompt_template=first["prompt_template"],
        prompt=prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False),
        chat=not isinstance(prompt, str),
        references=target if isinstance(target, list) else [] if target is None else [target],
        responses=[_response(row, lls) for row, lls in zip(rows, likelihoods, strict=True)],
        filters={name: _predictions(line["filtered_resps"]) for name, line in lines.items()},
        scores={
            f"{metric},{name}": line.get(f"{metric}_repeats", [line.get(metric)])
            for name, line in lines.items()
            for metric in line["metrics"]
        },
        choices=[_choice(arguments) for arguments in (line.get("arguments") or {}).values()]
        if any(likelihoods)
        else [],
        item_digest=line.get("doc_hash"),
        doc_id=line["doc_id"] if isinstance(line.get("doc_id"), int) else None,
    )


def _response(row: JsonObject, likelihoods: list[float]) -> ResponseView:
    return ResponseView(
        text=row["response"],
        status=row["status"],
        error=row["error"],
        finish_reason=(row.get("metadata") or {}).get("finish_reason"),
        prompt_tokens=row.get("prompt_tokens"),
        completion_tokens=row.get("completion_tokens"),
        seconds=row.get("inference_time"),
        lls=likelihoods,
    )


def _likelihoods(line: JsonObject, n: int) -> list[list[float]]:
    """Log-likelihoods of each of n samples, one a choice; empty lists where responses are texts."""
    requests = line.get("resps") or []
    texts = any(not isinstance(answer, list) for request in requests for answer in request)
    if texts or not requests:
        return [[] for _ in range(n)]
    return [[float(request[sample][0]) for request in requests] for sample in range(n)]


def _predictions(filtered: list[Any]) -> list[Any]:
    """``filtered_resps`` as one prediction a sample: several samples are one list in a list."""
    return filtered[0] if len(filtered) == 1 and isinstance(filtered[0], list) else filtered


def _choice(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("arg_1", arguments.get("arg_0", ""))).strip()
