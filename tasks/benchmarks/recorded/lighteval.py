"""``--from-lighteval``: each file of details of lighteval is a run.

lighteval writes ``details/MODEL/DATE/details_TASK_DATE.parquet``, a row a sample. From 0.10 on the columns
are ``doc``, ``model_response`` and ``metric``; before, they were flat (``example``, ``predictions``,
``metrics`` …), and texts where a row could not be stored otherwise. A sample's id is ``doc.id``. Earlier
versions left it out: there it is the row's number. A second split counts from 0 again: ``0@2``. A document
that was asked for texts and for likelihoods has a row for each way, and is one sample here.
"""

import ast
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from metrics.errors import ConfigError
from tasks.benchmarks.recorded.lighteval_results import NAME, LightevalResults, lighteval_results
from tasks.benchmarks.recorded.run import FIELD, RecordedRun, pair_name, same_number
from tasks.datasets.config import DatasetError

MEAN: Final = "mean"
"""How a function is called that lighteval takes for a mean: its name has this."""


def lighteval_runs(path: Path) -> Iterator[RecordedRun]:
    """The run of a file of details (of a folder: of each that it holds). Raises ConfigError where there is
    none, and DatasetError for one that can't be read."""
    files = sorted(path.rglob("details_*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ConfigError(
            f"--from-lighteval {path}: expected details of lighteval (details_TASK_DATE.parquet), "
            "or a folder of them"
        )
    for file in files:
        yield _run(file)


def _run(file: Path) -> RecordedRun:
    rows = _rows(file)
    each = (_sample(row, place, f"{file}: row {place + 1}") for place, row in enumerate(rows))
    samples = list(_distinct(_asked_once(each)))
    names = list(dict.fromkeys(name for sample in samples for name in sample["scores"]))
    numbers = {name: [_number(sample["scores"].get(name)) for sample in samples] for name in names}
    columns = {name: column for name, column in numbers.items() if any(one is not None for one in column)}
    results = lighteval_results(file)
    means = [_mean(name, column, columns, results) for name, column in columns.items()]
    kept = [mean for mean in means if mean.pair]
    notes = [f"'{name}' has no number for a sample, only for all of them: it is left out"
             for name in names if name not in columns]  # fmt: skip
    notes += [mean.note for mean in means if mean.note]
    if not results.found:
        notes.append("there is no results_….json of it: whether lighteval's numbers are means is not known")
    again = [pair for pair, count in Counter(mean.pair for mean in kept).items() if count > 1]
    if again:
        raise DatasetError(f"{file}: two metrics would be called '{again[0]}'; rename one of them")
    return RecordedRun(
        source=file,
        task=_task(file),
        model=_model(file),
        items=[{name: sample[name] for name in ("id", "input", "target")} for sample in samples],
        responses=[
            _response(sample, {mean.pair: mean.column[place] for mean in kept})
            for place, sample in enumerate(samples)
        ],
        pairs={mean.pair: all(one in (0, 1, None) for one in mean.column) for mean in kept},
        lower_is_better=frozenset(mean.pair for mean in kept if mean.name in results.lower),
        notes=tuple(f"{file}: {note}" for note in notes),
    )


@dataclass(frozen=True)
class _Mean:
    """A metric of lighteval's whose samples have numbers, and the pair that their mean becomes."""

    name: str
    column: Sequence[float | None]
    pair: str
    """Empty where it can't be one."""
    note: str = ""


def _mean(
    name: str, column: Sequence[float | None], others: Mapping[str, Any], results: LightevalResults
) -> _Mean:
    """The pair of a metric: under its own name only where lighteval's number is the mean."""
    values = [one for one in column if one is not None]
    function, theirs = results.functions.get(name, MEAN), _number(results.numbers.get(name))
    mean = statistics.fmean(values)
    if MEAN in function:
        if name not in results.numbers or (theirs is not None and same_number(theirs, mean)):
            return _Mean(name, column, pair_name(name))
        if theirs is None and len(values) < len(column):
            unscored = f"{len(column) - len(values)} of {len(column)} samples have none"
            note = f"lighteval has no '{name}', as {unscored}; here it is the mean of the others"
            return _Mean(name, column, pair_name(name), note)
    said = f"lighteval's '{name}' is {results.numbers.get(name)} by '{function}', and {mean:.6g} the mean"
    pair = f"{name}_mean"
    if pair in others:
        return _Mean(name, column, "", f"{said} of its samples: it is left out")
    return _Mean(name, column, pair_name(pair), f"{said}, which is '{pair_name(pair)}' here")


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        rows: list[dict[str, Any]] = pq.read_table(file, partitioning=None).to_pylist()
    except (OSError, pa.ArrowInvalid) as error:
        raise DatasetError(f"{file}: can't be read as details of lighteval: {error}") from error
    if rows and not {"metric", "metrics"} & set(rows[0]):
        raise DatasetError(f"{file}: has no column 'metric' or 'metrics', as details of lighteval have")
    return rows


def _asked_once(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The samples: rows of one document that was asked in two ways, whose scores are others, are one."""
    samples = list[dict[str, Any]]()
    known: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        alike = known.setdefault(row["id"], [])
        first = next((one for one in alike if _is_other_way(one, row)), None)
        if first is None:
            samples.append(row)
            alike.append(row)
            continue
        first["scores"] = {**first["scores"], **{name: row["scores"][name] for name in _scored(row)}}
        for name in ("answers", "likelihoods"):
            first[name] = first[name] or row[name]
    return samples


def _is_other_way(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows are one document that was asked in two ways."""
    return one["input"] == other["input"] and not _scored(one) & _scored(other)


def _scored(sample: Mapping[str, Any]) -> set[str]:
    """The metrics that say something of a sample; those of the other way of asking are None."""
    return {name for name, value in sample["scores"].items() if value is not None}


def _distinct(samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The samples, each id once: lighteval begins with 0 in each split that a task is evaluated on."""
    seen: Counter[str] = Counter()
    for sample in samples:
        seen[sample["id"]] += 1
        again = seen[sample["id"]]
        yield sample if again == 1 else {**sample, "id": f"{sample['id']}@{again}"}


def _sample(row: Mapping[str, Any], place: int, where: str) -> dict[str, Any]:
    if "metric" not in row:
        return _flat_sample({name: _parsed(value, name, where) for name, value in row.items()}, place)
    doc, response = row.get("doc") or {}, row.get("model_response") or {}
    answers = response.get("text_post_processed") or response.get("text") or []
    return {
        "id": str(doc.get("id") or place),
        "input": str(doc.get("query") or ""),
        "target": _golds(doc.get("choices"), doc.get("gold_index")),
        "answers": answers,
        "likelihoods": response.get("logprobs") or [],
        "choices": doc.get("choices") or [],
        "scores": row["metric"] or {},
    }


def _flat_sample(row: Mapping[str, Any], place: int) -> dict[str, Any]:
    """A sample of a version before 0.10."""
    gold = row.get("gold")
    answers = row.get("predictions") or []
    are_texts = all(isinstance(one, str) for one in answers)
    return {
        "id": str(place),
        "input": str(row.get("full_prompt") or row.get("example") or ""),
        "target": gold if gold else _golds(row.get("choices"), row.get("gold_index")),
        "answers": answers if are_texts else [],
        "likelihoods": [] if are_texts else answers,
        "choices": row.get("choices") or [],
        "scores": row["metrics"] or {},
    }


def _parsed(value: Any, name: str, where: str) -> Any:
    """A column's value; lists and mappings that were stored as Python's text are read again."""
    if not isinstance(value, str) or name in ("example", "instruction", "full_prompt"):
        return value
    try:
        return ast.literal_eval(value)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        if name == "metrics":
            raise DatasetError(f"{where}: its metrics can't be read: {value[:80]!r}") from None
        return None


def _golds(choices: Sequence[Any] | None, index: Any) -> list[str]:
    places = index if isinstance(index, list) else [index]
    known = choices or []
    return [str(known[one]) for one in places if isinstance(one, int) and 0 <= one < len(known)]


def _number(value: Any) -> float | None:
    """A score that is a number; metrics of a whole corpus have something else for each sample."""
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None


def _response(sample: Mapping[str, Any], numbers: Mapping[str, float | None]) -> dict[str, Any]:
    scores = {
        pair: {"score": number}
        | ({} if number is not None else {"error": "lighteval has no number for this sample"})
        for pair, number in numbers.items()
    }
    others = {"answers": sample["answers"]} if len(sample["answers"]) > 1 else {}
    return {
        "item_id": sample["id"],
        "sample_index": 0,
        "response": _answer(sample),
        "status": "ok",
        "metadata": {FIELD: scores, **others},
    }


def _answer(sample: Mapping[str, Any]) -> str:
    """The first answer; where likelihoods were asked for, the choice with the highest."""
    if sample["answers"]:
        return str(sample["answers"][0])
    likelihoods, choices = sample["likelihoods"], sample["choices"]
    if len(likelihoods) != len(choices) or not all(_number(one) is not None for one in likelihoods):
        return ""
    return str(choices[max(range(len(choices)), key=likelihoods.__getitem__)]) if choices else ""


def _task(file: Path) -> str:
    """The task as the file is called: ``gsm8k|5``, with dashes for what can't be in a name of ours."""
    found = NAME.fullmatch(file.stem)
    return re.sub(r"[|/\\\\:]+", "-", found["task"] if found else file.stem)


def _model(file: Path) -> str:
    """The model as the folders are called: those between ``details`` and the date's."""
    found, folders = NAME.fullmatch(file.stem), list(file.resolve().parent.parts)
    if found and folders[-1] == found["date"]:
        folders.pop()
    if "details" in folders:
        after = folders[len(folders) - folders[::-1].index("details") :]
        if after:
            return "/".join(after)
    return folders[-1].removeprefix("details_").replace("__", "/") or "model"
