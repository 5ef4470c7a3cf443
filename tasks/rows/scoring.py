"""What a scorer is given, and what its scores are stored as.

``joined_batches`` puts the requests, predictions and responses of the same items side by side, one batch in
memory at a time; ``statistics_batch`` turns the scores of such a batch into STATISTICS rows. Every stage that
scores uses both.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, overload

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrics.types import Answer, ChoiceBatch, CutOff
from scorers.base import Batch, SampleScores
from scorers.choices import ChoiceColumns, choice_batch
from tasks.messages.calls import parsed_calls, said_calls
from tasks.messages.chat import chat_of
from tasks.rows.outcomes import LACKING
from tasks.store.keys import json_bytes, value_text
from tasks.store.schemas import PROCESSED, STATISTICS, TEXT
from tasks.store.storage import ArtifactRef, Store

PROMPT_COLUMNS = (
    *("item_id", "doc_id", "kind", "references_json", "doc_json"),
    *("gold", "choices", "continuations", "unconditional", "orders"),
)
PREDICTION_COLUMNS = (
    *("item_id", "doc_id", "sample_index", "scored", "outcome", "prediction", "is_json", "reading_json"),
    *("lls", "is_greedy", "unconditional_lls", "unconditional_greedy", "token_lengths", "error"),
)

WHOLE_COLUMNS = ("prompt", "tool_calls_json", "metadata_json")
"""Columns of RESPONSES that a whole answer is made of, beside its text."""
T = TypeVar("T")


@dataclass(frozen=True)
class ScorerInput:
    """Some items' samples: the predictions' own columns, and the batch that a scorer looks at, row for
    row."""

    samples: pa.Table
    batch: Batch


def joined_batches(
    store: Store,
    requests: ArtifactRef,
    predictions: ArtifactRef,
    responses: ArtifactRef,
    cut_off: CutOff = "wrong",
    whole: bool = False,
) -> Iterator[ScorerInput]:
    """What scorers look at, for one model, prompt and partition, in the order of the items; ``cut_off`` says
    whether a sample is scored that was cut off, ``whole`` whether the metric looks at whole answers.

    A request batch without a sample gives an empty batch, so that the streams of several filters keep step.
    """
    columns = ("doc_id", "sample_index", "response", *(WHOLE_COLUMNS if whole else ()))
    return _joined(
        rows_of_requests(
            store.batches(requests, PROMPT_COLUMNS), store.batches(predictions, PREDICTION_COLUMNS)
        ),
        rows_of_requests(store.batches(requests, ("doc_id",)), store.batches(responses, columns)),
        cut_off,
        whole,
    )


def joined_rows(
    requests: Sequence[pa.RecordBatch],
    predictions: Sequence[pa.RecordBatch],
    responses: Sequence[pa.RecordBatch],
    cut_off: CutOff = "wrong",
    whole: bool = False,
) -> Iterator[ScorerInput]:
    """As ``joined_batches``, of rows in memory."""
    sources = rows_of_requests(requests, predictions), rows_of_requests(requests, responses)
    return _joined(*sources, cut_off, whole)


def _joined(
    filtered: Iterator[tuple[pa.Table, pa.Table]],
    unfiltered: Iterator[tuple[pa.Table, pa.Table]],
    cut_off: CutOff,
    whole: bool,
) -> Iterator[ScorerInput]:
    for (items, samples), (_, texts) in zip(filtered, unfiltered, strict=True):
        samples = _decided(items, samples, cut_off)
        batch = scorer_batch(items, samples, _beside(samples, texts, texts.column("response").to_pylist()))
        yield ScorerInput(samples, replace(batch, answers=_answers(samples, texts)) if whole else batch)


def _decided(items: pa.Table, samples: pa.Table, cut_off: CutOff) -> pa.Table:
    """The samples, ``scored`` where they were cut off or not, and where they were refused; the empty text of
    the harness always is. Log-likelihoods that were refused are not there, and so unscored."""
    counted = ["refused"] if cut_off == "unscored" else ["cut_off", "refused"]
    lacking = _is_among(samples, counted) & _is_text(items)
    if not lacking.any():
        return samples
    given_up = pc.is_valid(samples.column("error")).to_numpy()
    scored = samples.column("scored").to_numpy() | (lacking & ~given_up)
    return samples.set_column(samples.schema.get_field_index("scored"), "scored", pa.array(scored))


def _is_among(samples: pa.Table, outcomes: Sequence[str]) -> NDArray[np.bool_]:
    found = pc.is_in(samples.column("outcome").cast(pa.string()), pa.array(outcomes))
    return np.asarray(found.to_numpy(), dtype=np.bool_)


def _is_text(items: pa.Table) -> NDArray[np.bool_]:
    return np.asarray(pc.equal(items.column("kind"), "generate").to_numpy(), dtype=np.bool_)


def _lacking(samples: pa.Table) -> list[str | None] | None:
    """Beside each sample why it holds no answer; None: each does."""
    if not _is_among(samples, sorted(LACKING)).any():
        return None
    outcomes = samples.column("outcome").cast(pa.string()).to_pylist()
    return [outcome if outcome in LACKING else None for outcome in outcomes]


def statistics_batch(samples: pa.Table, scored: SampleScores) -> pa.RecordBatch:
    """STATISTICS rows of a batch; ``samples`` has its item_id, doc_id, sample_index and outcome."""
    scores, n = scored.scores, len(scored)
    absent = pa.nulls(n, pa.string())
    columns = {
        "item_id": samples.column("item_id").combine_chunks(),
        "doc_id": samples.column("doc_id").combine_chunks(),
        "sample_index": samples.column("sample_index").combine_chunks(),
        "label": pa.nulls(n, pa.string()).dictionary_encode().cast(TEXT),
        "scored": pa.array(scored.scored),
        "outcome": samples.column("outcome").combine_chunks().cast(TEXT),
        "score": pa.array(scores.score, mask=~scored.scored | np.isnan(scores.score)),
        "statistics": _vectors(scored),
        "value_json": absent
        if scores.values is None
        else pa.array(_texts(scores.values, scored, value_text), pa.string()),
        "code": pa.array(scored.codes, pa.int64()),
        "passed": pa.nulls(n, pa.bool_()),
        "details_json": absent
        if scores.details is None
        # Those of an unscored sample say why it is: how it was read, what the sandbox said.
        else pa.array(
            [None if one is None else json_bytes(one).decode() for one in scores.details], pa.string()
        ),
        "error": _reasons(samples, scored),
        "evaluation_time": pa.nulls(n, pa.float64()),
        "evaluated_at": pa.nulls(n, pa.float64()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in STATISTICS.names], schema=STATISTICS)


def processed_batch(
    samples: pa.Table,
    results: Sequence[dict[str, Any] | None],
    errors: Sequence[str | None] | None = None,
) -> pa.RecordBatch:
    """PROCESSED rows: what ``process_results`` made of each sample; ``errors`` say why it was not called."""
    texts = [None if row is None else value_text(row) for row in results]
    names = ("item_id", "doc_id", "sample_index", "scored")
    columns = [samples.column(name).combine_chunks() for name in names]
    said = pa.nulls(len(texts), pa.string()) if errors is None else pa.array(list(errors), pa.string())
    return pa.RecordBatch.from_arrays([*columns, pa.array(texts, pa.string()), said], schema=PROCESSED)


def _reasons(samples: pa.Table, scored: SampleScores) -> pa.Array:
    """Why each sample is unscored: by the scorer, else because its filter gave it up."""
    own = pa.array(list(scored.errors), pa.string())
    if "error" not in samples.column_names:
        return own
    return pc.coalesce(own, samples.column("error").combine_chunks())


def rows_of_requests(
    requests: Iterable[pa.RecordBatch], rows: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Pairs each request batch that has rows with them: both tables have a row a sample."""
    for batch, part in samples_of_requests(requests, rows):
        if part is not None:
            doc_ids = _integers(batch.column("doc_id"))
            positions = np.searchsorted(doc_ids, _integers(part.column("doc_id")))
            yield pa.Table.from_batches([batch]).take(pa.array(positions)), part


def samples_of_requests(
    requests: Iterable[pa.RecordBatch], rows: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, pa.Table | None]]:
    """Pairs each request batch with the rows of its items; None: there are no more.

    Both come in the order of the items (``doc_id`` rises), so that one batch of each is in memory.
    """
    waiting = iter(rows)
    held: list[pa.RecordBatch] = []
    for batch in requests:
        doc_ids = _integers(batch.column("doc_id"))
        if not len(doc_ids):
            continue
        while not held or _last(held[-1]) <= doc_ids[-1]:
            following = next(waiting, None)
            if following is None:
                break
            if following.num_rows:
                held.append(following)
        if not held:
            yield batch, None
            continue
        table = pa.Table.from_batches(held)
        here = int(np.searchsorted(_integers(table.column("doc_id")), doc_ids[-1], side="right"))
        part, rest = table.slice(0, here), table.slice(here)
        held = rest.to_batches() if rest.num_rows else []
        yield batch, part
    if held:
        raise ValueError("predictions of items that are not among the requests")


def scorer_batch(
    requests: pa.Table, predictions: pa.Table, responses: Sequence[str | None] | None = None
) -> Batch:
    """One batch for a scorer, from tables that stand beside each other."""
    kind = requests.column("kind")[0].as_py() if requests.num_rows else "generate"
    with_choices = kind != "generate"
    lettered = requests.column("orders").null_count < requests.num_rows
    return Batch(
        item_ids=requests.column("item_id").to_pylist(),
        sample_index=predictions.column("sample_index").to_numpy(),
        scored=predictions.column("scored").to_numpy(),
        predictions=[None] * predictions.num_rows if with_choices else _predictions(predictions),
        references=JsonColumn(_one_array(requests.column("references_json"))),
        docs=JsonColumn(_one_array(requests.column("doc_json"))),
        responses=responses if responses is not None else [None] * predictions.num_rows,
        choices=_choices(requests, predictions, kind) if with_choices else None,
        gold=requests.column("gold").to_pylist() if lettered else None,
        readings=_readings(predictions) if lettered else None,
        lacking=None if with_choices else _lacking(predictions),
    )


def _answers(predictions: pa.Table, responses: pa.Table) -> list[Answer | None]:
    """The whole answer beside each prediction, of the same sample where there is one."""
    columns = [responses.column(name).to_pylist() for name in ("response", *WHOLE_COLUMNS)]
    return _beside(predictions, responses, [whole_answer(*row) for row in zip(*columns, strict=True)])


def whole_answer(
    response: str | None, prompt: str, calls: str | None = None, metadata: str | None = None
) -> Answer:
    """A response with its prompt, calls and metadata, as metrics see them."""
    chat = chat_of(prompt)
    said: dict[str, Any] = {"role": "assistant", "content": response}
    if calls is not None:
        said["tool_calls"] = said_calls(calls)
    beside = {} if metadata is None else orjson.loads(metadata)
    return Answer(response, parsed_calls(calls), [*chat["messages"], said], chat.get("tools") or [], beside)


def _beside(predictions: pa.Table, responses: pa.Table, values: Sequence[T]) -> list[T | None]:
    """The values of the responses, one beside each prediction of the same sample."""
    samples = (
        zip(table.column("doc_id").to_pylist(), table.column("sample_index").to_pylist(), strict=True)
        for table in (responses, predictions)
    )
    found = dict(zip(next(samples), values, strict=True))
    return [found.get(key) for key in next(samples)]


class JsonColumn(Sequence[Any]):
    """A column of JSON texts, each read when it is looked at."""

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        return orjson.loads(self._texts[index].as_py())

    def __iter__(self) -> Iterator[Any]:
        return (orjson.loads(text) for text in self._texts.to_pylist())


def _choices(requests: pa.Table, predictions: pa.Table, kind: str) -> ChoiceBatch:
    columns = ChoiceColumns(
        item_ids=requests.column("item_id").to_pylist(),
        scored=predictions.column("scored").to_numpy(),
        lls=predictions.column("lls"),
        is_greedy=predictions.column("is_greedy"),
        gold=requests.column("gold"),
        continuations=requests.column("continuations"),
        choices=requests.column("choices"),
        unconditional=requests.column("unconditional"),
        unconditional_lls=predictions.column("unconditional_lls"),
        unconditional_greedy=predictions.column("unconditional_greedy"),
        token_lengths=predictions.column("token_lengths"),
    )
    return choice_batch(columns, rolling=kind == "rolling")


def _predictions(table: pa.Table) -> list[Any]:
    values: list[Any] = table.column("prediction").to_pylist()
    for row in np.flatnonzero(table.column("is_json").to_numpy()):
        values[row] = orjson.loads(values[row])
    return values


def _readings(table: pa.Table) -> list[dict[str, Any] | None]:
    texts = table.column("reading_json").to_pylist()
    return [None if text is None else orjson.loads(text) for text in texts]


def _integers(column: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(column.to_numpy(), dtype=np.int64)


def _last(batch: pa.RecordBatch) -> int:
    return int(batch.column("doc_id")[-1].as_py())


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pc.cast(combined, pa.string())


def _vectors(scored: SampleScores) -> pa.Array:
    """The statistics as lists; null where a sample is unscored or the metric keeps values."""
    statistics, n = scored.scores.statistics, len(scored)
    if statistics is None:
        return pa.nulls(n, pa.list_(pa.float64()))
    width = statistics.shape[1]
    present = np.asarray(scored.scored, dtype=bool)
    offsets = np.concatenate([[0], np.cumsum(present * width)]).astype(np.int32)
    flat = pa.array(np.ascontiguousarray(statistics[present]).ravel(), pa.float64())
    mask = None if present.all() else pa.array(~present)
    return pa.ListArray.from_arrays(pa.array(offsets), flat, mask=mask)


def _texts(values: Any, scored: SampleScores, write: Callable[[Any], str]) -> list[str | None]:
    return [
        write(value) if value is not None and present else None
        for value, present in zip(values, scored.scored, strict=True)
    ]
