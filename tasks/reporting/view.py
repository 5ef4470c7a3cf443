"""What a run consists of for those who show it: provenance, numbers, and samples read one after another.

The report, the comparison of two runs and the diagnostics read these records and nothing else, so that
they know neither the store nor Prefect::

    RunView ─ manifest, results ─ samples() ─► SampleView ─ ResponseView   (one a repeat)
                   └► ResultRow                           └ LabelView      (one an evaluation method's row)

``RunView.samples`` is a function and not a list: every call starts a new pass over the artifacts, so that
a run of a million samples is never in memory at once.

``sample_views`` makes them of a run's artifacts, one item in memory at a time, for the report that
publish writes; ``compare.folder_view`` gives the same records from exported files.
"""

import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from metrics.errors import NightjarError
from tasks.messages.calls import parsed_calls
from tasks.messages.endings import is_at_limit
from tasks.models.records import AnswerStatus
from tasks.reduction.facets import facet_text, facet_texts, facet_words
from tasks.reporting import numbers
from tasks.rows.parts import UNKNOWN, Origin, Row, item_field, locate, resolve
from tasks.store.schemas import ABSENT, plain_values, row_dicts
from tasks.store.storage import ArtifactRef, Store
from tasks.store.thresholds import Threshold

ARROWS = {True: "↑", False: "↓", None: ""}
MEANING = {True: "higher is better", False: "lower is better", None: ""}
OWN_FACETS = ("model_name", "prompt_template")
Place = tuple[tuple[str, str], ...]
"""The values of a facet group, as text by facet."""
_RUN_ID = re.compile(r"(-[0-9a-f]{8})[0-9a-f]{24}$")


def short_run_name(name: str) -> str:
    """A run's name as people tell it from others: of one that ends with a whole id, the first eight digits.

    >>> short_run_name("sums-0123456789abcdef0123456789abcdef")
    'sums-01234567…'
    """
    return _RUN_ID.sub(r"\1…", name)


def shown_arguments(arguments: Any) -> str:
    """The arguments of a call as they are shown: the model's own text where it is no object."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


@dataclass(slots=True)  # not frozen, as SampleView: of one a response that takes three times as long
class ResponseView:
    """One response, or what came instead of it.

    ``text`` is None unless ``status`` is "ok" and text was asked for. ``error`` says in words why a request
    failed. ``tool_calls`` are the calls of tools beside the text, ``transcript`` the chat that it ends, where
    that is not the item's prompt. ``lls`` and ``is_greedy`` stand beside ``SampleView.choices``: one
    log-likelihood (natural logarithm) a choice. Tokens are as the endpoint counted them, ``seconds`` the time
    of the attempt that succeeded; None: not reported.
    """

    text: str | None
    status: AnswerStatus = "ok"
    error: str | None = None
    finish_reason: str | None = None
    reasoning: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    transcript: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    seconds: float | None = None
    lls: Sequence[float] = ()
    is_greedy: Sequence[bool] = ()
    absent: bool = False
    """Whether the recording that was to hold the answer lacks it."""

    @property
    def calls(self) -> list[str]:
        """The calls of tools as they are shown."""
        return [f"{call['name']}({shown_arguments(call['arguments'])})" for call in self.tool_calls]

    @property
    def ok(self) -> bool:
        """Is there an answer?"""
        return self.status == "ok"

    @property
    def cut_off(self) -> bool:
        """Were the tokens used up before the answer began? Then the request succeeded all the same."""
        return self.status == "cut_off"

    @property
    def at_limit(self) -> bool:
        """Did the limit of tokens end it, begun or not?"""
        return is_at_limit(self.finish_reason)

    @property
    def refused(self) -> bool:
        """Did model or provider refuse? That is an answer."""
        return self.status == "refused"

    @property
    def failed(self) -> bool:
        """Did the request fail?"""
        return not (self.ok or self.cut_off or self.refused)


@dataclass(frozen=True)
class LabelView:
    """What an evaluation method said about one response under one label.

    ``score`` is None and ``status`` not "ok" where the method could not judge: then the response stands under
    every label that its ``method`` gave others. ``details`` holds the method's own words (a judge's
    explanation, what was expected and what was found).
    """

    label: str
    sample_index: int
    passed: bool | None = None
    score: float | None = None
    status: str = "ok"
    details: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""

    @property
    def number(self) -> float | None:
        """1 or 0 for passed or not, else the score."""
        return self.score if self.passed is None else float(self.passed)


@dataclass(slots=True)
class SampleView:
    """One item asked of one model with one prompt template, with everything that came of it.

    ``prompt`` is text, or the JSON text of a list of chat messages where ``chat``. ``responses`` are in order
    of the sample index. The mappings hold one entry a repeat, in the same order; a filter that keeps fewer
    repeats (take_first) has fewer. In ``filters`` (filter name → predictions) None says that the filter found
    nothing. In ``scores``, ``details`` and ``reasons`` the key is ``"metric,filter"``; a score of None is
    *unscored*, and ``reasons`` says why although the request succeeded; NaN: the metric has no number for one
    sample. ``choices`` and ``gold`` (indices of
    the right ones) belong to log-likelihood benchmarks. ``facets`` holds what results are grouped by beside
    model and prompt (``item.subject`` …).
    """

    item_id: str
    model_name: str
    prompt_template: str
    prompt: str
    references: Sequence[Any] = ()
    responses: Sequence[ResponseView] = ()
    filters: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    scores: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    details: Mapping[str, Sequence[Mapping[str, Any] | None]] = field(default_factory=dict)
    reasons: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    facets: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[LabelView] = ()
    chat: bool = False
    choices: Sequence[str] = ()
    gold: Sequence[int] = ()
    item_digest: str | None = None
    doc_id: int | None = None
    """Position in the dataset, where it is known."""

    @property
    def counted(self) -> Sequence[ResponseView]:
        """The responses that are samples: one that the recording lacks is none, except to a pair's scores."""
        return self.responses if self.scores else [one for one in self.responses if not one.absent]

    @property
    def places(self) -> dict[str, str]:
        """What the page filters the sample by: model, prompt and facets, as text."""
        own = dict(zip(OWN_FACETS, (self.model_name, self.prompt_template), strict=True))
        return own | {
            name: facet_text(UNKNOWN if value is None else value) for name, value in self.facets.items()
        }

    @property
    def unscored(self) -> dict[tuple[str, str], int]:
        """How many repeats have no score, by ("pair" or "label", its name)."""
        found = {("pair", pair): sum(score is None for score in own) for pair, own in self.scores.items()}
        for label in self.labels:
            place = ("label", label.label)
            found[place] = found.get(place, 0) + (label.number is None)
        return found

    @property
    def label_means(self) -> dict[str, float | None]:
        """The mean over repeats of what each label came to."""
        numbers: dict[str, list[float | None]] = {}
        for label in self.labels:
            numbers.setdefault(label.label, []).append(label.number)
        return {name: mean_of_scored(own) for name, own in numbers.items()}

    @property
    def failed(self) -> bool:
        """Did a request fail, or is a response unscored under any metric or label?"""
        return (
            any(response.failed for response in self.counted)
            or any(score is None for scores in self.scores.values() for score in scores)
            or any(label.status != "ok" for label in self.labels)
        )


@dataclass(frozen=True)
class RunView:
    """One run: provenance, numbers and samples.

    ``manifest`` is the content of ``manifest.json``; ``results`` has the RESULTS schema
    (``tasks/store/schemas.py``), failed pairs included; each call of ``samples`` gives a new pass over all
    samples, in the same order each time. ``picked`` gives the samples at some positions, in their order,
    without making the others; None: they are picked from a whole pass. ``media`` reads an image that a prompt
    names, by its digest.
    """

    manifest: Mapping[str, Any]
    results: pa.Table
    samples: Callable[[], Iterator[SampleView]]
    media: Callable[[str], bytes] | None = None
    picked: Callable[[Collection[int]], Iterator[SampleView]] | None = None

    def at(self, positions: Collection[int] | None) -> Iterator[SampleView]:
        """The samples at these positions (from 0, in the order of ``samples``); None: all of them."""
        if positions is None:
            return self.samples()
        if self.picked is not None:
            return self.picked(positions)
        wanted = frozenset(positions)
        return (sample for position, sample in enumerate(self.samples()) if position in wanted)


@dataclass(frozen=True)
class ResultRow:
    """One number of a run: a (filter, metric) pair, reduced and aggregated within one facet group.

    Fields are those of the RESULTS schema; ``facets`` is decoded.
    """

    benchmark: str
    model_name: str | None
    prompt_template: str | None
    filter: str
    metric: str
    reduction: str
    label: str | None
    facets: Mapping[str, Any]
    value: float | None
    stderr: float | None
    stderr_method: str | None
    ci_low: float | None
    ci_high: float | None
    n_items: int
    n_samples: int
    n_scored: int
    n_unscored: int
    higher_is_better: bool | None
    status: str
    error: str | None
    signature: str | None
    stderr_items: float | None = None
    stderr_sampling: float | None = None
    mde: float | None = None
    n_cut_off: int | None = None
    n_empty: int | None = None
    n_refused: int | None = None

    @property
    def outcome_counts(self) -> dict[str, int]:
        """How many samples have answers that were cut off, empty or refused, where there are any."""
        counts = {"Cut off": self.n_cut_off, "Empty": self.n_empty, "Refused": self.n_refused}
        return {name: count for name, count in counts.items() if count}

    @property
    def pair(self) -> str:
        """``"metric,filter"``: what is scheduled, cached and retried as one."""
        return f"{self.metric},{self.filter}"

    @property
    def metric_key(self) -> str:
        """``"exact_match"`` for the mean over repeats, ``"pass@8(exact_match)"`` for other reductions."""
        return self.metric if self.reduction in ("", "mean") else f"{self.reduction}({self.metric})"

    @property
    def result_name(self) -> str:
        """The metric key, behind the label where there is one: ``"correct: pass@1"``."""
        return f"{self.label}: {self.metric_key}" if self.label else self.metric_key

    @property
    def arrow(self) -> str:
        """Which way is better: ↑, ↓ or nothing."""
        return ARROWS[self.higher_is_better]

    @property
    def doubling(self) -> str | None:
        """What twice the samples or twice the items would make of the standard error; None without repeats
        that tell. Where items have different numbers of samples, their mean is said."""
        if self.stderr is None or self.stderr_items is None or self.stderr_sampling is None:
            return None
        samples, items = self.n_samples / self.n_items, self.n_items
        more = math.hypot(self.stderr_items, self.stderr_sampling / math.sqrt(2))
        now, sampled, widened = (
            numbers.number(error, like=self.value)
            for error in (self.stderr, more, self.stderr / math.sqrt(2))
        )
        return (
            f"{round(samples, 2):g} → {round(2 * samples, 2):g} samples: ± {now} → {sampled}; "
            f"{numbers.count(items)} → {numbers.count(2 * items)} items: → {widened}"
        )

    @cached_property
    def other_facets(self) -> dict[str, Any]:
        """Facets beside model and prompt, which have columns of their own."""
        return {name: value for name, value in self.facets.items() if name not in OWN_FACETS}

    @property
    def place(self) -> Place:
        """What tells the facet group from others; the words of two may be the same."""
        return tuple(self.group_parts.items())

    @property
    def group(self) -> str:
        """The facet group in words: ``"gpt · plain · subject=algebra"``."""
        parts = (
            text if name in OWN_FACETS else f"{name}={facet_words(text)}"
            for name, text in self.group_parts.items()
        )
        return " · ".join(parts) or "all"

    @cached_property
    def group_parts(self) -> dict[str, str]:
        """The facet group's values by facet, as text."""
        own = {"model_name": self.model_name, "prompt_template": self.prompt_template}
        return {name: value for name, value in own.items() if value} | facet_texts(self.other_facets)


def result_rows(results: pa.Table) -> list[ResultRow]:
    """Rows of a RESULTS table in order, failed pairs last."""
    names = [name for name in ResultRow.__dataclass_fields__ if name != "facets"]
    rows = [
        ResultRow(facets=json.loads(row["facets"] or "{}"), **{name: row.get(name) for name in names})
        for row in results.to_pylist()
    ]
    return sorted(rows, key=lambda row: row.status == "failed")


def failures(rows: Iterable[ResultRow]) -> tuple[list[ResultRow], list[ResultRow]]:
    """The first failed row of each pair that has no number at all, and every failed group of the others."""
    rows = list(rows)
    have = {row.pair for row in rows if row.status != "failed"}
    failed = [row for row in rows if row.status == "failed"]
    whole = {row.pair: row for row in reversed(failed) if row.pair not in have}
    return list(reversed(whole.values())), [row for row in failed if row.pair in have]


def facet_names(rows: Sequence[ResultRow]) -> list[str]:
    """Names of the facets beside model and prompt, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.other_facets))


def mean_of_scored(scores: Iterable[float | None]) -> float | None:
    """Mean of the finite scores; None where there is none."""
    scored = [score for score in scores if score is not None and math.isfinite(score)]
    return sum(scored) / len(scored) if scored else None


BATCH = Threshold("rows_viewed", 256)
"""Rows that are Python's own at once: whole prompts and responses are in them."""

_REQUESTS = (
    *("item_id", "doc_id", "item_digest", "kind", "chat", "prompts", "continuations", "references_json"),
    *("gold", "choices"),
)
_SHOWN = (
    *("response", "status", "error", "finish_reason", "reasoning", "tool_calls_json", "prompt"),
    *("prompt_tokens", "completion_tokens", "reasoning_tokens", "inference_time", "lls", "is_greedy"),
    "recorded_row",
)
"""Columns of responses in the order of a ResponseView's fields; the prompt is there for transcripts alone."""
_RESPONSES = ("doc_id", *(name for name in _SHOWN if name != "prompt"))
_PREDICTIONS = ("doc_id", "lls", "is_json", "prediction")
_STATISTICS = ("doc_id", "scored", "score", "details_json", "error")
_VERDICTS = ("doc_id", "label", "sample_index", "passed", "scored", "score", "details_json", "error")


@dataclass(frozen=True)
class CellArtifacts:
    """What a run made at one model × prompt × partition: ``predictions`` by filter, ``statistics`` by
    "metric,filter", ``verdicts`` of evaluation methods by name. What failed is left out. ``labels`` are those
    that each method gave anywhere in the run."""

    origin: Origin
    requests: ArtifactRef
    responses: ArtifactRef
    predictions: Mapping[str, ArtifactRef] = field(default_factory=dict)
    statistics: Mapping[str, ArtifactRef] = field(default_factory=dict)
    verdicts: Mapping[str, ArtifactRef] = field(default_factory=dict)
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)


def sample_views(
    store: Store,
    cells: Sequence[CellArtifacts],
    facets: Sequence[str],
    positions: Collection[int] | None = None,
) -> Iterator[SampleView]:
    """Every item of every cell, in order, with all that came of it; with ``positions`` those at these places
    alone, counted from 0 over all cells."""
    if positions is None:
        for cell in cells:
            yield from _cell_views(store, cell, facets)
        return
    ordered, start = np.sort(np.fromiter(positions, np.int64, len(positions))), 0
    for cell in cells:
        first, last = np.searchsorted(ordered, (start, start + cell.requests.rows))
        if first < last:
            doc_ids = store.table(cell.requests, ["doc_id"]).column("doc_id")
            wanted = doc_ids.take(pa.array(ordered[first:last] - start)).combine_chunks()
            yield from _cell_views(store, cell, facets, wanted)
        start += cell.requests.rows


def _cell_views(
    store: Store, cell: CellArtifacts, facets: Sequence[str], wanted: pa.Array | None = None
) -> Iterator[SampleView]:
    def batches_of(ref: ArtifactRef, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for read in store.batches(ref, columns):
            batch = read if wanted is None else read.filter(pc.is_in(read.column("doc_id"), wanted))
            for start in range(0, batch.num_rows, BATCH):
                yield batch.slice(start, BATCH)

    def rows_of(
        ref: ArtifactRef, columns: Sequence[str], made: Callable[[pa.RecordBatch], list[Any]]
    ) -> RowsByItem:
        return RowsByItem(batches_of(ref, columns), made)

    talked = cell.responses.kind == "transcript"
    responses = rows_of(cell.responses, (*_RESPONSES, "prompt") if talked else _RESPONSES, _responses)
    predictions = {name: rows_of(ref, _PREDICTIONS, _filtered) for name, ref in cell.predictions.items()}
    statistics = {name: rows_of(ref, _STATISTICS, _scores) for name, ref in cell.statistics.items()}
    verdicts = [
        rows_of(ref, _VERDICTS, partial(_labels, method, cell.labels.get(method) or [method]))
        for method, ref in cell.verdicts.items()
    ]
    asked = (*_REQUESTS, "doc_json") if any(map(item_field, facets)) else _REQUESTS
    for batch in batches_of(cell.requests, asked):
        for request in row_dicts(batch):
            doc_id = request["doc_id"]
            scores: dict[str, list[float | None]] = {}
            details: dict[str, list[Any]] = {}
            reasons: dict[str, list[str | None]] = {}
            for name, rows in statistics.items():
                scored = rows.of(doc_id)
                scores[name] = [score for score, _, _ in scored]
                details[name] = [own for _, own, _ in scored]
                reasons[name] = [reason for _, _, reason in scored]
            yield SampleView(
                item_id=request["item_id"],
                model_name=cell.origin.model_name,
                prompt_template=cell.origin.prompt_template,
                prompt=_prompt(request),
                references=orjson.loads(request["references_json"]),
                responses=responses.of(doc_id),
                filters={name: rows.of(doc_id) for name, rows in predictions.items()},
                scores=scores,
                details=details,
                reasons=reasons,
                facets=_facets(request, cell.origin, facets) if facets else {},
                labels=[label for rows in verdicts for said in rows.of(doc_id) for label in said],
                chat=request["chat"],
                choices=request["choices"],
                gold=request["gold"],
                item_digest=request["item_digest"],
                doc_id=doc_id,
            )


class RowsByItem:
    """Rows of an artifact in the order of its items, given out item by item.

    ``made`` turns a batch into the list of what is given out for its rows; default: a mapping each.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        made: Callable[[pa.RecordBatch], list[Any]] = row_dicts,
    ) -> None:
        self._batches = iter(batches)
        self._made = made
        self._rows: list[Any] = []
        self._doc_ids: list[int] = []
        self._next = 0

    def of(self, doc_id: int) -> list[Any]:
        """The rows of ``doc_id``, maybe none; raises NightjarError for rows of an item passed over."""
        at, doc_ids = self._next, self._doc_ids
        if at + 1 < len(doc_ids) and doc_ids[at] == doc_id != doc_ids[at + 1]:  # the only one, as most are
            self._next = at + 1
            return self._rows[at : at + 1]
        found: list[Any] = []
        while self._next < len(self._doc_ids) or self._read():
            start = end = self._next
            while end < len(self._doc_ids) and self._doc_ids[end] == doc_id:
                end += 1
            if start == end:
                if self._doc_ids[start] < doc_id:
                    raise NightjarError(
                        f"rows of item number {self._doc_ids[start]} come after those of item number "
                        f"{doc_id}; the artifacts do not belong together, run again with --refresh infer"
                    )
                break
            found += self._rows[start:end]
            self._next = end
        return found

    def _read(self) -> bool:
        """Reads the next batch that has rows; False where there is none."""
        for batch in self._batches:
            if batch.num_rows:
                self._rows, self._next = self._made(batch), 0
                self._doc_ids = batch.column("doc_id").to_pylist()
                return True
        self._rows, self._doc_ids, self._next = [], [], 0
        return False


def _prompt(request: Row) -> str:
    if request["kind"] == "rolling":
        return "".join(request["continuations"])
    return str(request["prompts"][0]) if request["prompts"] else ""


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The values of some columns row by row; None for those of a column that is not there."""
    known = set(batch.schema.names)
    missing: list[None] = [None] * batch.num_rows
    return zip(
        *(plain_values(batch.column(name)) if name in known else missing for name in names), strict=True
    )


def _responses(batch: pa.RecordBatch) -> list[ResponseView]:
    return [
        ResponseView(
            text, status, error, finish, reasoning, parsed_calls(calls), transcript,
            asked, written, thought, seconds, lls or (), greedy or (), recorded == ABSENT,
        )
        for (
            text, status, error, finish, reasoning, calls, transcript,
            asked, written, thought, seconds, lls, greedy, recorded,
        ) in _columns(batch, _SHOWN)
    ]  # fmt: skip


def _filtered(batch: pa.RecordBatch) -> list[Any]:
    return [
        lls if lls is not None else orjson.loads(text) if is_json else text
        for lls, is_json, text in _columns(batch, ("lls", "is_json", "prediction"))
    ]


def _scores(batch: pa.RecordBatch) -> list[tuple[float | None, Any, str | None]]:
    """Score, details and reason of each row. The score is None where the sample is unscored; not a number
    where the metric has none for a single sample."""
    return [
        (None if not scored else math.nan if score is None else float(score), _json(details), error)
        for scored, score, details, error in _columns(batch, ("scored", "score", "details_json", "error"))
    ]


def _labels(method: str, known: Sequence[str], batch: pa.RecordBatch) -> list[list[LabelView]]:
    """What each row says; one without a label stands under all ``known`` ones of its method."""
    return [
        [_label(method, label, row) for label in (known if row["label"] is None else [row["label"]])]
        for row in row_dicts(batch)
    ]


def _label(method: str, label: str, row: Row) -> LabelView:
    return LabelView(
        label=label,
        sample_index=row["sample_index"],
        passed=row["passed"],
        score=row["score"],
        status="ok" if row["scored"] else "unscored",
        details=(_json(row["details_json"]) or {}) | ({"error": row["error"]} if row["error"] else {}),
        method=method,
    )


def _json(text: str | None) -> Any:
    return None if text is None else orjson.loads(text)


def _facets(request: Row, origin: Origin, facets: Sequence[str]) -> dict[str, Any]:
    named = any(item_field(facet) is not None for facet in facets)
    return item_facets(orjson.loads(request["doc_json"]) if named else {}, origin.shared_metadata, facets)


def item_facets(
    document: Mapping[str, Any], metadata: Mapping[str, Any], facets: Iterable[str]
) -> dict[str, Any]:
    """Facet values that all samples of an item share, beside model and prompt: of the answers' ``metadata``,
    else of the item's ``document``."""
    values: dict[str, Any] = {}
    for facet in facets:
        source, path = locate(facet)
        value = resolve(metadata, path) if source == "metadata" else None
        if value is None and (field := item_field(facet)) is not None:
            value = resolve(document, field)
        if source in ("document", "metadata"):
            values[facet] = value
    return values
