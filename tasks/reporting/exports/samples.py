"""``samples_<benchmark>.jsonl``: one record an item × filter, shaped like lm-evaluation-harness's logs."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tasks.reporting.artifacts import RowsByItem
from tasks.reporting.exports.inputs import RunInfo, SamplePart
from tasks.rows.parts import Origin, Row
from tasks.rows.scoring import samples_of_requests
from tasks.store.files import write_lines
from tasks.store.keys import text_value
from tasks.store.schemas import row_dicts

_REQUESTS = (
    *("doc_id", "item_id", "kind", "chat", "prompts", "continuations", "unconditional"),
    *("references_json", "gold", "doc_json"),
)
_LIKELIHOODS = ("lls", "is_greedy", "unconditional_lls", "unconditional_greedy")
_RESPONSES = ("doc_id", "sample_index", "response", "status", *_LIKELIHOODS)
_PREDICTIONS = ("doc_id", "sample_index", "scored", "prediction", "is_json", *_LIKELIHOODS)
_STATISTICS = ("doc_id", "sample_index", "scored", "score", "value_json")
_WRITTEN_ALIKE = frozenset({str, int, bool, type(None)})


def write_samples(path: Path, parts: Iterable[SamplePart], run: RunInfo) -> int:
    """Writes the lines of all parts in their order and returns their number.

    Lines name their model and prompt template where the run has several.
    """
    return write_lines(path, (row for part in parts for row in sample_lines(part, run.keeps_apart)))


def sample_lines(part: SamplePart, named: bool) -> Iterator[Row]:
    """One line an item, in dataset order; the samples of a batch of items are held at a time.

    ``resps`` holds one list a request with one entry a sample, ``filtered_resps`` what the filter left of
    them (null: it found nothing). A metric's value is the mean over its scored samples, null where there is
    none, and ``<metric>_repeats`` the samples' own values where there are several. Where an aggregation takes
    something else than numbers, it is that, the first sample's. Log-likelihoods are texts,
    as in the harness.
    """
    streams = [
        samples_of_requests(part.answers.requests(("doc_id",)), source(columns))
        for source, columns in (
            (part.answers.responses, _RESPONSES),
            (part.predictions, _PREDICTIONS),
            *((source, _STATISTICS) for source in part.statistics.values()),
        )
    ]
    for batch in part.answers.requests(_REQUESTS):
        if batch.num_rows:
            tables = [next(stream)[1] for stream in streams]
            plain = all(_has_one_a_text(batch, table) for table in tables)
            yield from (_plain_lines if plain else _any_lines)(part, named, batch, tables)


def _has_one_a_text(requests: pa.RecordBatch, rows: pa.Table | None) -> bool:
    """Whether every request of a batch asks for text, and has one row of another artifact."""
    return (
        rows is not None
        and rows.column("doc_id").combine_chunks().equals(requests.column("doc_id"))
        and bool(pc.all(pc.equal(requests.column("kind"), "generate")).as_py())
    )


def _plain_lines(
    part: SamplePart, named: bool, batch: pa.RecordBatch, tables: Sequence[pa.Table]
) -> Iterator[Row]:
    """The lines of items that were asked for one text each, from columns."""
    responses, predictions, *statistics = tables
    filtered = predictions.column("prediction").to_pylist()
    for place in np.flatnonzero(predictions.column("is_json").to_numpy()).tolist():
        filtered[place] = None if filtered[place] is None else orjson.loads(filtered[place])
    numbers = {name: _single_scores(table) for name, table in zip(part.statistics, statistics, strict=True)}
    columns = zip(
        row_dicts(batch), responses.column("response").to_pylist(), filtered,
        *numbers.values(), strict=True,
    )  # fmt: skip
    metrics, fields = list(numbers), _request_fields(part, named)
    for request, response, prediction, *scores in columns:
        line = fields(request)
        yield {
            **line,
            "resps": [[response]],
            "filtered_resps": prediction if isinstance(prediction, list) else [prediction],
            "filter": part.filter,
            "metrics": metrics,
            **_hashes(line),
            **dict(zip(metrics, scores, strict=True)),
        }


def _single_scores(statistics: pa.Table) -> list[Any]:
    """What ``_scores`` says of items with one sample each."""
    columns = (statistics.column(name).to_pylist() for name in ("scored", "score", "value_json"))
    if statistics.column("value_json").null_count == statistics.num_rows:
        return [
            score if scored and score is not None and math.isfinite(score) else None
            for scored, score, _ in zip(*columns, strict=True)
        ]
    rows = (
        dict(zip(("scored", "score", "value_json"), row, strict=True)) for row in zip(*columns, strict=True)
    )
    return [_scores("value", [row])["value"] for row in rows]


def _any_lines(
    part: SamplePart, named: bool, batch: pa.RecordBatch, tables: Sequence[pa.Table | None]
) -> Iterator[Row]:
    """The lines of any items, row by row."""
    responses, predictions, *others = (
        RowsByItem([] if table is None else table.to_batches()) for table in tables
    )
    statistics = dict(zip(part.statistics, others, strict=True))
    fields = _request_fields(part, named)
    for request in row_dicts(batch):
        doc_id = request["doc_id"]
        line = fields(request)
        line |= {
            "resps": _transposed([_answer(row, request) for row in responses.of(doc_id)], request),
            "filtered_resps": _filtered([_prediction(row, request) for row in predictions.of(doc_id)]),
            "filter": part.filter,
            "metrics": list(statistics),
            **_hashes(line),
        }
        for name, rows in statistics.items():
            line |= _scores(name, rows.of(doc_id))
        yield line


def _request_fields(part: SamplePart, named: bool) -> Callable[[Row], Row]:
    """What gives the fields of a line that its request decides."""
    origin, sampling = part.answers.origin, _sent(part.answers.origin)
    names = {"model_name": origin.model_name, "prompt_template": origin.prompt_template} if named else {}

    def fields(request: Row) -> Row:
        target = request["gold"] or orjson.loads(request["references_json"])
        return {
            "doc_id": request["doc_id"],
            "item_id": request["item_id"],
            **names,
            "doc": orjson.loads(request["doc_json"]),
            "target": str(target[0]) if len(target) == 1 else target,
            "arguments": _arguments(request, sampling),
        }

    return fields


def _sent(origin: Origin) -> Mapping[str, Any]:
    """The sampling parameters of each request; how many requests there are is not one of them."""
    sampling = origin.metadata.get("sampling") or {}
    return {name: value for name, value in sampling.items() if name != "num_samples"}


def _arguments(request: Row, sampling: Mapping[str, Any]) -> Row:
    """What was asked, under the names that the harness gives to the arguments of its requests."""
    if request["kind"] == "generate":
        pairs: list[tuple[Any, ...]] = [(prompt, sampling) for prompt in request["prompts"]]
    elif request["kind"] == "rolling":
        pairs = [(document,) for document in request["continuations"]]
    else:
        pairs = list(zip(request["prompts"], request["continuations"], strict=True))
        pairs += [("", continuation) for continuation in request["unconditional"]]
    return {
        f"gen_args_{number}": {f"arg_{place}": value for place, value in enumerate(pair)}
        for number, pair in enumerate(pairs)
    }


def _answer(row: Row, request: Row) -> list[Any]:
    """What one sample's requests brought: the text, two texts a choice, one a document; null where a request
    failed.
    """
    if request["kind"] == "generate":
        return [row["response"]]
    return _likelihoods(row, request) or [None] * _requests(request)


def _likelihoods(row: Row, request: Row) -> list[Any]:
    if request["kind"] == "rolling":
        return list(map(str, row["lls"] or ()))
    lls = [*(row["lls"] or ()), *(row["unconditional_lls"] or ())]
    greedy = [*(row["is_greedy"] or ()), *(row["unconditional_greedy"] or ())]
    return [[str(likelihood), str(flag)] for likelihood, flag in zip(lls, greedy, strict=False)]


def _requests(request: Row) -> int:
    return len(request["continuations"]) + len(request["unconditional"])


def _transposed(samples: list[list[Any]], request: Row) -> list[list[Any]]:
    """Samples × requests turned into requests × samples."""
    return [[sample[number] for sample in samples] for number in range(max(_requests(request), 1))]


def _prediction(row: Row, request: Row) -> Any:
    if request["kind"] != "generate":
        return _likelihoods(row, request)
    text = row["prediction"]
    return orjson.loads(text) if row["is_json"] and text is not None else text


def _filtered(predictions: list[Any]) -> list[Any]:
    """One entry a request, as after ``take_first``; a list of them where the filter keeps several samples."""
    if len(predictions) == 1:
        return predictions[0] if isinstance(predictions[0], list) else predictions
    return [predictions]


def _hashes(line: Row) -> Row:
    """Digests by which sample logs are joined: computed as the harness computes them."""
    first = line["arguments"].get("gen_args_0", {}).get("arg_0", "")
    return {
        "doc_hash": _hash(_indented(line["doc"])),
        "prompt_hash": _hash(str(first)),
        "target_hash": _hash(str(line["target"])),
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _indented(doc: Row) -> str:
    """The text of ``json.dumps(doc, indent=2, ensure_ascii=False)``."""
    # orjson writes the same for these types, at a tenth of the time; it refuses numbers beyond 64 bits and
    # lone surrogates.
    if all(type(value) in _WRITTEN_ALIKE for value in doc.values()):
        with suppress(TypeError):
            return orjson.dumps(doc, option=orjson.OPT_INDENT_2).decode()
    return json.dumps(doc, indent=2, ensure_ascii=False)


def _scores(metric: str, rows: list[Row]) -> Row:
    scores = [_value(row) if row["scored"] else None for row in rows]
    known = [score for score in scores if isinstance(score, float) and math.isfinite(score)]
    others = [score for score in scores if score is not None and not isinstance(score, float)]
    value = others[0] if others else _mean(known)
    return {metric: value} | ({f"{metric}_repeats": scores} if len(scores) > 1 else {})


def _mean(scores: list[float]) -> float | None:
    if len(scores) > 1:
        return float(np.mean(scores))
    return scores[0] if scores else None


def _value(row: Row) -> Any:
    """What the sample's value is: a number, or what an aggregation is made of (``[gold, predicted]``)."""
    text = row["value_json"]
    return row["score"] if text is None else text_value(text)
