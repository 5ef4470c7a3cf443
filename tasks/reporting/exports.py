"""The files of a run's output directory, each written as a stream and whole at any moment.

``responses.jsonl``            ``write_responses``           every sample's answer
``evaluation_results.jsonl``   ``write_evaluation_results``  every sample × label
``metrics.jsonl``              ``write_metrics``             every metric × label × facet group
``samples_<benchmark>.jsonl``  ``write_samples``             every item × filter, in the harness's shape
``results.json``               ``write_results``             the run's numbers, in the harness's shape
``results.parquet``            ``write_results_table``       the same numbers with everything known about them
``items.parquet``              ``write_items_table``         what the numbers rest on: one row an item

``results.json`` and the samples have the shapes that lm-evaluation-harness writes and its readers know.
The Parquet files have the project's own schemas: SQL, the comparison and the history read them. Publish
makes the records ``RunInfo``, ``AnswerPart`` and ``SamplePart`` from its artifacts; no export knows the
store.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from metrics.reductions.reduction import reduction_key
from tasks.reduction.facets import facet_text, facet_texts, parse_facets
from tasks.reporting.view import OWN_FACETS, RowsByItem
from tasks.rows.parts import BatchSource, Origin, Row
from tasks.rows.scoring import samples_of_requests
from tasks.store.home import finite, whole_file, write_json, write_lines
from tasks.store.keys import digest, sample_hashes, text_value
from tasks.store.rows import write_parquet
from tasks.store.schemas import ITEM_ROWS, LIKELIHOODS, RESULTS, TEXT, row_dicts
from tasks.verdicts.methods import RESPONSE_COLUMNS, response_rows
from tasks.verdicts.rows import JudgedPart, evaluation_rows

_Group = tuple[tuple[str, str], ...]
"""A group's values by facet, as text, in the order in which a key names them."""


@dataclass(frozen=True)
class RunInfo:
    """What results.json says about a run beside its numbers.

    ``models`` and ``prompts`` are the names of all of them; ``n_items`` counts the dataset's items, of which
    ``--limit`` may have left ``n_used``; ``date`` is the start in seconds since 1970, ``config`` the run's
    config and ``versions`` those of the program and its libraries; ``requests`` counts what was asked and
    what was reused. ``version`` is the benchmark's own, ``stopped`` what the manifest says of a run that its
    gate ended early.
    """

    run_id: str
    benchmark: str
    models: Sequence[str]
    prompts: Sequence[str]
    date: float
    n_items: int
    n_used: int
    config: Mapping[str, Any]
    num_fewshot: int = 0
    alias: str | None = None
    version: str | int | float = 1
    output_type: str = "generate_until"
    versions: Mapping[str, str] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    git_revision: str | None = None
    stopped: Mapping[str, Any] | None = None

    @property
    def keeps_apart(self) -> bool:
        """Whether results of several models or prompts stand beside each other."""
        return len(self.models) > 1 or len(self.prompts) > 1


@dataclass(frozen=True)
class AnswerPart:
    """The answers to one partition: sources of REQUESTS and RESPONSES batches."""

    origin: Origin
    requests: BatchSource
    responses: BatchSource


@dataclass(frozen=True)
class SamplePart:
    """One filter's view of one partition: also its PREDICTIONS, and the STATISTICS of each of its metrics.

    A metric that failed is left out of ``statistics``.
    """

    answers: AnswerPart
    filter: str
    predictions: BatchSource
    statistics: Mapping[str, BatchSource]


def write_responses(path: Path, parts: Iterable[AnswerPart]) -> int:
    """Writes all parts in their order and returns the number of lines.

    ``total_samples`` counts the samples of the line's item by the same model and prompt template.
    """
    return write_lines(path, (row for part in parts for row in exported_responses(part)))


def exported_responses(part: AnswerPart) -> Iterator[Row]:
    """The lines of one part; an item's samples follow each other, so only one item's are in memory."""
    for _, samples in groupby(_rows(part), key=itemgetter("item_id")):
        responses = list(samples)
        for row in responses:
            yield _with_total(row, len(responses))


def _rows(part: AnswerPart) -> Iterator[Row]:
    for batch in part.responses(RESPONSE_COLUMNS):
        yield from response_rows(batch, part.origin)


def _with_total(row: Row, total: int) -> Row:
    identity = {name: row[name] for name in ("item_id", "sample_id", "sample_index")}
    return identity | {"total_samples": total} | row


def write_evaluation_results(path: Path, judged: Iterable[JudgedPart]) -> int:
    """Writes one line a sample × label, part after part, and returns the number of lines."""
    return write_lines(path, (row for part in judged for row in evaluation_rows(part)))


def write_metrics(path: Path, batches: Iterable[pa.RecordBatch]) -> int:
    """Writes one line a metric × label × facet group and returns the number of lines.

    ``batches`` are of the schema METRIC_ROWS (metrics over evaluation results) or RESULTS (pairs). The lines
    hold no time, no path and no run id: equal answers give equal bytes.
    """
    return write_lines(path, (metric_line(row) for batch in batches for row in batch.to_pylist()))


def metric_line(row: Mapping[str, Any]) -> Row:
    """One line of metrics.jsonl.

    A pair is called ``metric,filter`` or ``reduction(metric),filter``; a metric over evaluation results by
    its own name. A facet called like a field of the line is ``facet.<name>``. The average counts samples an
    item; an unscored number is null, and ``error`` says why.
    """
    n_items = row["n_items"]
    name = {"metric_name": metric_name(row)}
    counts = {
        "value": finite(row["value"]),
        "stderr": finite(row["stderr"]),
        "stderr_method": row["stderr_method"],
        "ci_low": finite(row["ci_low"]),
        "ci_high": finite(row["ci_high"]),
        "average_sample_count": row["n_samples"] / n_items if n_items else 0.0,
        "total_sample_count": row["n_samples"],
        "total_item_count": n_items,
        "unscored_sample_count": row["n_unscored"],
        "cut_off_sample_count": row["n_cut_off"],
        "refused_sample_count": row["n_refused"],
        "status": row["status"],
        "error": row["error"],
    }
    fields = {"facets", "label", *name, *counts}
    facets = {
        f"facet.{facet}" if facet in fields else facet: value
        for facet, value in parse_facets(row["facets"]).items()
    }
    place = {**name, "facets": list(facets), **facets, "label": row["label"]}
    return {**place, **_beside(_own_values(row), {**place, **counts}), **counts}


def _beside(own: Row, line: Row) -> Row:
    """A metric's own values; one that is called like a field of the line, and differs, is ``returned_…``."""
    return {
        f"returned_{name}" if name in line and line[name] != value else name: value
        for name, value in own.items()
    }


def metric_name(row: Mapping[str, Any]) -> str:
    """The name of a row of METRIC_ROWS or RESULTS."""
    if "values_json" in row:
        return str(row["metric"])
    return f"{reduction_key(row['metric'], row['reduction'])},{row['filter']}"


def _own_values(row: Mapping[str, Any]) -> Row:
    if "values_json" not in row:
        return {reduction_key(row["metric"], row["reduction"]): finite(row["value"])}
    return dict(orjson.loads(row["values_json"])) if row["values_json"] else {}


_REQUESTS = (
    *("doc_id", "item_id", "kind", "chat", "prompts", "continuations", "unconditional"),
    *("references_json", "gold", "doc_json"),
)
_RESPONSES = ("doc_id", "sample_index", "response", "status", *LIKELIHOODS)
_PREDICTIONS = ("doc_id", "sample_index", "scored", "prediction", "is_json", *LIKELIHOODS)
_STATISTICS = ("doc_id", "sample_index", "scored", "score", "value_json")
_WRITTEN_ALIKE = frozenset({str, int, bool, type(None)})


def write_samples(path: Path, parts: Iterable[SamplePart], run: RunInfo) -> int:
    """Writes the lines of all parts in their order and returns their number.

    Lines name their model and prompt template where the run has several.
    """
    return write_lines(path, (row for part in parts for row in sample_lines(part, run)))


def sample_lines(part: SamplePart, run: RunInfo) -> Iterator[Row]:
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
            yield from (_plain_lines if plain else _any_lines)(part, run, batch, tables)


def _has_one_a_text(requests: pa.RecordBatch, rows: pa.Table | None) -> bool:
    """Whether every request of a batch asks for text, and has one row of another artifact."""
    return (
        rows is not None
        and rows.column("doc_id").combine_chunks().equals(requests.column("doc_id"))
        and bool(pc.all(pc.equal(requests.column("kind"), "generate")).as_py())
    )


def _plain_lines(
    part: SamplePart, run: RunInfo, batch: pa.RecordBatch, tables: Sequence[pa.Table]
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
    metrics, fields = list(numbers), _request_fields(part, run)
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
    part: SamplePart, run: RunInfo, batch: pa.RecordBatch, tables: Sequence[pa.Table | None]
) -> Iterator[Row]:
    """The lines of any items, row by row."""
    responses, predictions, *others = (
        RowsByItem([] if table is None else table.to_batches()) for table in tables
    )
    statistics = dict(zip(part.statistics, others, strict=True))
    fields = _request_fields(part, run)
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


def _request_fields(part: SamplePart, run: RunInfo) -> Callable[[Row], Row]:
    """What gives the fields of a line that its request decides."""
    origin, sampling = part.answers.origin, _sent(part.answers.origin)
    names = {"model_name": origin.model_name, "prompt_template": origin.prompt_template}
    harness = run.config.get("harness") is not None

    def fields(request: Row) -> Row:
        target = _target(request, harness)
        return {
            "doc_id": request["doc_id"],
            "item_id": request["item_id"],
            **(names if run.keeps_apart else {}),
            "doc": orjson.loads(request["doc_json"]),
            "target": str(target[0]) if len(target) == 1 else target,
            "arguments": _arguments(request, sampling),
        }

    return fields


def _target(request: Row, harness: bool) -> list[Any]:
    """The right answers. A log-likelihood's of the harness are what the definition calls the target, be it a
    choice's text; elsewhere those of choices are their indices.
    """
    references: list[Any] = orjson.loads(request["references_json"])
    if harness and request["kind"] == "loglikelihood":
        [target] = references
        return target if isinstance(target, list) else [target]
    return request["gold"] or references


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
    told = [
        [str(likelihood), None if flag is None else str(flag)]
        for lls, greedy in (("lls", "is_greedy"), ("unconditional_lls", "unconditional_greedy"))
        for likelihood, flag in zip_longest(row[lls] or (), (row[greedy] or ())[: len(row[lls] or ())])
    ]
    # A record may have less than was asked for.
    return told and [*told, *[None] * (_requests(request) - len(told))]


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
    first = line["arguments"].get("gen_args_0", {}).get("arg_0", "")
    return sample_hashes(_indented(line["doc"]), str(first), str(line["target"]))


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


_BENCHMARK_KEYS = (
    *("dataset", "prompt_template", "prompt_templates", "messages", "target", "choices", "fewshot"),
    *("filter_list", "metric_list", "process_results", "evaluation_methods", "metrics", "facets"),
)
NO_STDERR = "N/A"
"""What the harness writes where a number has no standard error."""


def write_results(
    path: Path, batches: Iterable[pa.RecordBatch], run: RunInfo, besides: Mapping[str, Any]
) -> None:
    """Writes results.json from all rows (RESULTS, or METRIC_ROWS) of the run, and what stands ``besides``
    them."""
    write_json(path, {**results_document(batches, run), **besides})


def write_results_table(path: Path, results: pa.Table) -> int:
    """Writes all results (RESULTS) and returns the number of rows."""
    with whole_file(path) as temporary:
        return write_parquet(temporary, RESULTS, [results])


def write_items_table(path: Path, batches: Iterable[pa.RecordBatch], facets: Sequence[str]) -> int:
    """Writes all item rows (ITEM_ROWS) with one text column a facet; returns their number.

    ``facets`` are those of all pairs together; a row is null in those its own pair does not have. Values are
    texts that tell 1 from "1" (``facet_text``). The JSON object of all facets stays beside them, for pairs
    with facets of their own.
    """
    facets = [facet for facet in facets if facet != "label"]  # which has a column anyway
    schema = items_schema(facets)
    with whole_file(path) as temporary:
        return write_parquet(temporary, schema, (_with_facets(batch, facets) for batch in batches))


def results_document(batches: Iterable[pa.RecordBatch], run: RunInfo) -> dict[str, Any]:
    """The document: ``results`` → benchmark → ``"metric,filter"``, ``"metric_stderr,filter"``, and the rest.

    With several models or prompts each has a key of its own, ``name/model/prompt``; further facets add
    ``/facet=value``. A reduction asked for by name is ``"pass@8(exact_match),strict-match"``, a label stands
    behind a colon: ``"pass@1:correct,none"``. A failed or unscored pair is null, and listed under ``failed``
    or ``unscored``. Names may hold what joins them: of two groups with one key the later one's has a mark,
    ``name/model/prompt_c5dd7a51``.
    """
    named: dict[_Group, str] = {}
    results: dict[str, dict[str, Any]] = {}
    better: dict[str, dict[str, Any]] = {}
    counts: dict[str, dict[str, Any]] = {}
    lost: dict[str, dict[str, str]] = {"failed": {}, "unscored": {}}
    for row in (row for batch in batches for row in batch.to_pylist()):
        group, metric = _group(row, run), row_key(row)
        if group not in named:
            key = benchmark_key(run.benchmark, group)
            named[group] = f"{key}_{digest([key, group])[:8]}" if key in results else key
        key = named[group]
        entry = results.setdefault(key, {"alias": run.alias or key, "sample_len": 0})
        entry["sample_len"] = max(entry["sample_len"], row["n_items"])
        entry[f"{metric},{row['filter']}"] = finite(row["value"])
        stderr = finite(row["stderr"])
        entry[f"{metric}_stderr,{row['filter']}"] = NO_STDERR if stderr is None else stderr
        better.setdefault(key, {})[metric] = row["higher_is_better"]
        counts[key] = {"original": run.n_items, "effective": entry["sample_len"]}
        if row["status"] in lost:
            lost[row["status"]][f"{key}: {metric},{row['filter']}"] = row["error"] or row["status"]
    keys = list(results) or [run.benchmark]
    return {
        "results": results,
        "group_subtasks": {key: [] for key in keys},
        "configs": dict.fromkeys(keys, benchmark_config(run)),
        "versions": dict.fromkeys(keys, run.version),
        "n-shot": dict.fromkeys(keys, run.num_fewshot),
        "higher_is_better": better,
        "n-samples": counts,
        **({"stopped": dict(run.stopped)} if run.stopped is not None else {}),
        "config": run_config(run),
        **{name: pairs for name, pairs in lost.items() if pairs},
        "git_hash": run.git_revision,
        "requests": dict(run.requests),
        "date": run.date,
        "run_id": run.run_id,
        "package_versions": dict(run.versions),
    }


def _group(row: Row, run: RunInfo) -> _Group:
    """What holds a row's group apart from others: model and prompt where there are several, and facets."""
    facets = parse_facets(row["facets"])
    found: list[tuple[str, str]] = []
    if run.keeps_apart:
        # A row over all of the user's facets has none: model and prompt are in columns of their own.
        own = facets or {name: row[name] for name in OWN_FACETS if row[name]}
        found += [(name, str(own[name])) for name in OWN_FACETS if name in own]
    return (*found, *((name, facet_text(facets[name])) for name in facets if name not in OWN_FACETS))


def benchmark_key(benchmark: str, group: _Group) -> str:
    """``name``, or ``name/model/prompt`` and what else the facets hold apart."""
    parts = (text if name in OWN_FACETS else f"{name}={text}" for name, text in group)
    return "/".join([benchmark, *parts])


def row_key(row: Row) -> str:
    """The metric's part of a key, with the reduction and the label."""
    name = reduction_key(row["metric"], row["reduction"])
    return name if row["label"] is None else f"{name}:{row['label']}"


def benchmark_config(run: RunInfo) -> dict[str, Any]:
    """The benchmark's part of ``configs``, under the names that the harness gives them too."""
    named = {name: run.config[name] for name in _BENCHMARK_KEYS if run.config.get(name)}
    return {"task": run.benchmark, "output_type": run.output_type, "num_fewshot": run.num_fewshot, **named}


def run_config(run: RunInfo) -> dict[str, Any]:
    """What the harness calls ``config``: the models and how they were asked.

    A run that its gate ended early had no limit for that: ``stopped`` says it.
    """
    wanted = run.n_used if run.stopped is None else int(run.stopped["of_items"])
    return {
        "model": ",".join(run.models),
        "model_args": run.config.get("models", []),
        "prompt_templates": list(run.prompts),
        "limit": wanted if wanted < run.n_items else None,
        "bootstrap_iters": dict(run.config.get("statistics") or {}).get("bootstrap_iters"),
        "gen_kwargs": run.config.get("sample_params"),
    }


def items_schema(facets: Sequence[str]) -> pa.Schema:
    """ITEM_ROWS with the facets' own columns; a facet called like a column of items keeps out of its way."""
    place = ITEM_ROWS.get_field_index("facets")
    own = list(ITEM_ROWS)
    return pa.schema(
        [*own[:place], *(pa.field(_facet_column(facet), TEXT) for facet in facets), *own[place:]]
    )


def _facet_column(facet: str) -> str:
    return f"facet.{facet}" if facet in ITEM_ROWS.names else facet


def _with_facets(batch: pa.RecordBatch, facets: Sequence[str]) -> pa.Table:
    encoded = batch.column("facets").dictionary_encode()
    groups = [facet_texts(parse_facets(text)) for text in encoded.dictionary.to_pylist()]
    columns = {name: batch.column(name) for name in ITEM_ROWS.names}
    for facet in facets:
        values = pa.array([group.get(facet) for group in groups], pa.string())
        columns[_facet_column(facet)] = values.take(encoded.indices).dictionary_encode()
    return pa.table(columns)
