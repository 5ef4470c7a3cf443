"""Every Parquet schema of the pipeline, one comment a field.

Field names are those of the exports (responses.jsonl, results.parquet …), so that a person who knows the
exported files can read the store. Columns named ``*_json`` hold canonical JSON text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

# Prompts repeat (samples of an item, shared few-shot prefixes): dictionary encoding keeps each text once.
TEXT: Final = pa.dictionary(pa.int32(), pa.string())
FLOATS: Final = pa.list_(pa.float64())
STRINGS: Final = pa.list_(pa.string())
_BETWEEN_WAYS: Final = "\x1f"  # unit separator: in no value that anyone types


def cluster_text(values: Sequence[str]) -> str:
    """The column ``cluster`` of an item: the value of its field, or those of two fields that cross."""
    return _BETWEEN_WAYS.join(values)


def cluster_ways(text: str) -> tuple[str, ...]:
    """The values that ``cluster_text`` joined."""
    return tuple(text.split(_BETWEEN_WAYS))


ITEMS: Final = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),  # the dataset's id, else derived from the content
        pa.field("doc_id", pa.int64(), nullable=False),  # position in the dataset, from 0
        pa.field("item_digest", pa.string(), nullable=False),  # of data and ground truth: joins two runs
        pa.field("data_json", pa.string(), nullable=False),  # the row's fields, a JSON object
        pa.field("ground_truth_json", pa.string()),  # any JSON value; null: the item has none
        pa.field("cluster", pa.string()),  # value of the cluster field; of two fields, see cluster_text
    ]
)

REQUESTS: Final = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("item_digest", pa.string(), nullable=False),
        pa.field("cluster", pa.string()),
        pa.field("prompt_template", pa.string(), nullable=False),  # its name
        pa.field("kind", pa.string(), nullable=False),  # generate | loglikelihood | rolling
        pa.field(
            "chat", pa.bool_(), nullable=False
        ),  # prompts are JSON: messages, and tools (tasks.messages.chat)
        pa.field(
            "prompts", STRINGS, nullable=False
        ),  # one a request: multiple choice one a choice; generation 1, or one for each of the orders
        pa.field(
            "continuations", STRINGS, nullable=False
        ),  # beside each prompt; empty strings for generation
        pa.field(
            "unconditional", STRINGS, nullable=False
        ),  # continuations asked without context (mutual information)
        pa.field("references_json", pa.string(), nullable=False),  # JSON list: any of them is right
        pa.field(
            "gold", pa.list_(pa.int32()), nullable=False
        ),  # indices of the right choices; empty for generation
        pa.field("choices", STRINGS, nullable=False),  # the choices' texts, without delimiter
        pa.field(
            "doc_json", pa.string(), nullable=False
        ),  # the row as filters, metrics and process_results see it
        pa.field("first_sample", pa.int32(), nullable=False),  # seeds and keys of samples count from it
        pa.field(
            "orders", pa.list_(pa.list_(pa.int32()))
        ),  # choices asked by letters: which stands at each position, one list a prompt; else null
        pa.field(
            "keeps_space", pa.bool_()
        ),  # white space at a prompt's end is not scored with its continuation; null: it is
        pa.field("ground_truth_json", pa.string()),  # the item's own, any JSON value; null: it has none
        pa.field("error", pa.string()),  # of a turn: why nothing can be asked; null: it can
    ]
)

RESPONSES: Final = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("sample_id", pa.string(), nullable=False),  # "{item_id}_sample_{sample_index}"
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field(
            "request_key", pa.string(), nullable=False
        ),  # of the answer (several requests: digest of their keys)
        pa.field("prompt", TEXT, nullable=False),  # text, or the JSON text of a chat
        pa.field("response", pa.string()),  # null unless status is ok and the kind is generate
        pa.field("reasoning", pa.string()),  # reasoning content, apart from the answer
        pa.field(
            "tool_calls_json", pa.string()
        ),  # list of {name, arguments (text)}; null: no tool was called
        pa.field(
            "thoughts_json", pa.string()
        ),  # list of thoughts that the provider wants back with the next turn; null: none
        pa.field("status", TEXT, nullable=False),  # ok | cut_off | refused | infra_error
        pa.field("error", pa.string()),  # what went wrong, in words
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("finish_reason", TEXT),  # stop | length | content_filter | …
        pa.field("response_id", pa.string()),  # the server's id of the completion
        pa.field("served_model", TEXT),  # the model name that the server answered with
        pa.field("system_fingerprint", TEXT),
        pa.field("inference_time", pa.float64()),  # seconds of the successful attempt
        pa.field("timestamp", pa.string()),  # when the answer arrived, ISO 8601, UTC
        pa.field("prompt_tokens", pa.int64()),
        pa.field("completion_tokens", pa.int64()),
        pa.field("total_tokens", pa.int64()),
        pa.field("cached_tokens", pa.int64()),
        pa.field("reasoning_tokens", pa.int64()),
        pa.field("logprobs_json", pa.string()),  # only if asked for
        pa.field("metadata_json", pa.string()),  # of recorded responses: whatever came with them
        pa.field(
            "recorded_row", pa.int64()
        ),  # of recorded responses: their place in the file, from 1; ABSENT: it has none
        pa.field("lls", FLOATS),  # log-likelihoods, beside the item's prompts; null for generation
        pa.field("is_greedy", pa.list_(pa.bool_())),  # would greedy decoding have produced the continuation
        pa.field("unconditional_lls", FLOATS),  # beside the item's unconditional continuations
        pa.field("unconditional_greedy", pa.list_(pa.bool_())),
        pa.field("token_lengths", pa.list_(pa.int32())),  # tokens of each continuation, as the server cut it
    ]
)

ABSENT: Final = 0
"""``recorded_row`` of a sample that was asked for and that the recording does not hold."""

ANSWERS: Final = (
    "item_id", "doc_id", "sample_index", "response", "tool_calls_json", "status", "error", "finish_reason",
    "lls", "is_greedy", "unconditional_lls", "unconditional_greedy", "token_lengths", "metadata_json",
    "logprobs_json",
)  # fmt: skip
"""Columns of RESPONSES that say what was answered; the others say when, by whom and at what cost."""

LIKELIHOODS: Final = ("lls", "is_greedy", "unconditional_lls", "unconditional_greedy")
"""Columns of answers and predictions that hold log-likelihoods, and whether greedy decoding says the same."""

OUTCOMES: Final = ("answered", "empty", "cut_off", "refused", "failed")
"""What became of an answer: a text or log-likelihoods, a text without a character, nothing because the tokens
were used up, nothing because model or provider refused, nothing because the request failed. A prediction
chosen among several answers is cut_off if one of them was, and empty or refused if all of them were."""

CELL_FACETS: Final = ("model_name", "prompt_template")
"""The facets that say who answered what to which prompt; all others are a run's own."""

COUNTED: Final = ("cut_off", "empty", "refused")
"""The outcomes that are counted beside every score, as n_cut_off and so on."""

PREDICTIONS: Final = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field(
            "scored", pa.bool_(), nullable=False
        ),  # false: there is no answer to score, the request failed or was cut off
        pa.field("prediction", pa.string()),  # text, or JSON where is_json; null: the filter found nothing
        pa.field("outcome", TEXT),  # of the answer it rests on: OUTCOMES; null: not said
        pa.field("reading_json", pa.string()),  # choices asked by letters: how the answer was read
        pa.field("is_json", pa.bool_(), nullable=False),  # the prediction is another JSON value than a string
        pa.field("lls", FLOATS),
        pa.field("is_greedy", pa.list_(pa.bool_())),
        pa.field("unconditional_lls", FLOATS),
        pa.field("unconditional_greedy", pa.list_(pa.bool_())),
        pa.field("token_lengths", pa.list_(pa.int32())),  # tokens of each continuation, as the server cut it
        pa.field("error", pa.string()),  # why there is no prediction to score although there is an answer
    ]
)

EXECUTIONS: Final = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field(
            "verdict", TEXT
        ),  # passed | failed | timeout | memory | output | sandbox_error; null: no program
        pa.field("cases", STRINGS),  # a verdict for each input; empty for a program that tests itself
        pa.field("exit_code", pa.int32()),
        pa.field("signal", pa.int32()),
        pa.field("cpu_seconds", pa.float64()),
        pa.field("wall_seconds", pa.float64()),
        pa.field("stdout", pa.string()),  # cut
        pa.field("stderr", pa.string()),
        pa.field("sandbox", TEXT),  # which kind ran it
        pa.field("error", pa.string()),  # why the sandbox could not
    ]
)

VERDICT_COLUMNS: Final = tuple(name for name in EXECUTIONS.names if not name.endswith("_seconds"))
"""Columns of EXECUTIONS that scores see."""

GAMES: Final = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("repeat", pa.int32(), nullable=False),  # which of the item's samples, by order, from 0
        pa.field("judge", TEXT),  # null: the matchup could not be played, as error says
        pa.field("swapped", pa.bool_()),  # the second model's answer was shown first
        pa.field("asked", pa.bool_(), nullable=False),  # a judge saw the answers
        pa.field("value", pa.float64()),  # the first model's share: 1 won, 0.5 tie, 0 lost; null: no verdict
        pa.field("first_length", pa.int64(), nullable=False),  # characters of the first model's answer
        pa.field("second_length", pa.int64(), nullable=False),
        pa.field("reply", pa.string()),
        pa.field("error", pa.string()),  # why there is no verdict
    ]
)

RATINGS: Final = pa.schema(
    [
        pa.field("prompt_template", pa.string(), nullable=False),
        pa.field("filter", pa.string(), nullable=False),
        pa.field("ratings_json", pa.string(), nullable=False),  # see tasks.arena.ratings
    ]
)

INSPECT_NUMBERS: Final = pa.schema(
    [
        pa.field("model_name", pa.string(), nullable=False),
        pa.field("prompt_template", pa.string(), nullable=False),
        pa.field("scorer", pa.string(), nullable=False),  # as Inspect's log names them, these four
        pa.field("name", pa.string(), nullable=False),
        pa.field("reducer", pa.string()),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("value", pa.float64()),  # null: Inspect's metric gave no number
    ]
)

ASKED: Final = pa.schema(
    [
        pa.field("item_id", pa.string()),  # null: the benchmark's file asks while it is imported
        pa.field("sample_index", pa.int32()),
        pa.field("digest", pa.string(), nullable=False),  # of the program
        *(EXECUTIONS.field(name) for name in EXECUTIONS.names[3:]),
    ]
)
"""Programs that a benchmark's own function asks about, and what came of them."""

ASKED_COLUMNS: Final = tuple(name for name in ASKED.names if not name.endswith("_seconds"))

PROCESSED: Final = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("scored", pa.bool_(), nullable=False),
        pa.field("results_json", pa.string()),  # what process_results returned, metric → value
        pa.field("error", pa.string()),  # why it was not called although the request succeeded
    ]
)

STATISTICS: Final = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("doc_id", pa.int64(), nullable=False),
        pa.field("sample_index", pa.int32(), nullable=False),
        pa.field("label", TEXT),  # what the score is about; null: the metric itself
        pa.field("scored", pa.bool_(), nullable=False),
        pa.field("outcome", TEXT),  # of the answer it rests on: OUTCOMES; null: not said
        pa.field(
            "score", pa.float64()
        ),  # the sample's own number; null where the metric has none or it is unscored
        pa.field(
            "statistics", FLOATS
        ),  # kind "sums": the vector; null for kind "values" and unscored samples
        pa.field("value_json", pa.string()),  # kind "values": the object
        pa.field(
            "code", pa.int64(), nullable=False
        ),  # hash of the prediction, for majorities; -1: no prediction
        pa.field("passed", pa.bool_()),  # of evaluation methods
        pa.field("details_json", pa.string()),  # whatever else the metric, judge or method said
        pa.field("error", pa.string()),  # why a sample is unscored although its request succeeded
        pa.field("evaluation_time", pa.float64()),  # seconds; of evaluation methods
        pa.field("evaluated_at", pa.float64()),  # seconds since 1970; of evaluation methods
    ]
)

ITEM_ROWS: Final = pa.schema(
    [
        pa.field("benchmark", TEXT, nullable=False),
        pa.field("filter", TEXT, nullable=False),
        pa.field("metric", TEXT, nullable=False),
        pa.field("reduction", TEXT, nullable=False),  # "mean", "pass@8", an entry of a user's dictionary …
        pa.field("label", TEXT),
        pa.field("facets", TEXT, nullable=False),  # JSON object facet → value; exports add one column a facet
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("item_digest", pa.string(), nullable=False),
        pa.field("cluster", pa.string()),
        pa.field("value", pa.float64()),  # null: unscored, or the metric has no number an item
        pa.field("statistics", FLOATS),
        pa.field("value_json", pa.string()),  # kind "values" that is not one float
        pa.field("n_samples", pa.int64(), nullable=False),
        pa.field("n_scored", pa.int64(), nullable=False),
        *(pa.field(f"n_{name}", pa.int64()) for name in COUNTED),  # samples by their answers' OUTCOMES
    ]
)

LOOKS: Final = pa.schema(
    [
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("pair", pa.string(), nullable=False),  # as gates name it: "pass@8(exact_match),strict-match"
        pa.field("label", pa.string()),
        pa.field("facets", pa.string(), nullable=False),  # JSON object facet → value
        pa.field("margin", pa.float64(), nullable=False),
        pa.field("verdict", pa.string()),  # pass | worse | regression; null: not decided
        pa.field("reason", pa.string()),  # why the pair is never decided before all is asked
        pa.field("difference", pa.float64()),  # of this and the ends, negative is worse
        pa.field("ci_low", pa.float64()),
        pa.field("ci_high", pa.float64()),
        pa.field("units", pa.int64(), nullable=False),  # items, or clusters, that were asked whole
    ]
)

RESULTS: Final = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("benchmark", pa.string(), nullable=False),
        pa.field("model_name", pa.string()),  # null where the facets do not hold models apart
        pa.field("prompt_template", pa.string()),
        pa.field("filter", pa.string(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("reduction", pa.string(), nullable=False),
        pa.field("label", pa.string()),
        pa.field("facets", pa.string(), nullable=False),  # JSON object facet → value
        pa.field("value", pa.float64()),
        pa.field("stderr", pa.float64()),
        pa.field("stderr_method", pa.string()),
        pa.field("ci_low", pa.float64()),
        pa.field("ci_high", pa.float64()),
        pa.field("n_items", pa.int64(), nullable=False),
        pa.field("n_samples", pa.int64(), nullable=False),
        pa.field("n_scored", pa.int64(), nullable=False),
        pa.field("n_unscored", pa.int64(), nullable=False),
        pa.field("higher_is_better", pa.bool_()),
        pa.field("status", pa.string(), nullable=False),  # ok | failed | unscored
        pa.field("error", pa.string()),  # why the pair failed, or a warning about its error bar
        pa.field("signature", pa.string()),  # says exactly how the number was computed
        pa.field("stderr_items", pa.float64()),  # what endless repeats of these items would leave of stderr
        pa.field("stderr_sampling", pa.float64()),  # what endless other items would not take: the repeats'
        pa.field("mde", pa.float64()),  # true loss that a comparison with another run of the items finds
        pa.field("warning", pa.string()),  # a doubt about the error bar, in words
        *(pa.field(f"n_{name}", pa.int64()) for name in COUNTED),  # samples by their answers' OUTCOMES
    ]
)


COLUMNS_VERSION: Final = 5
"""Version of the columns of sealed files. It rises with a column that is added to the answers or the
history: the column then stands in ``ADDED``."""
ADDED: Final[Mapping[str, int]] = {
    **dict.fromkeys(("asked_at", "night", "tool_calls_json", "ll_tokens"), 1),
    **dict.fromkeys(("stderr_items", "stderr_sampling", "mde", "warning"), 1),
    **dict.fromkeys((f"n_{name}" for name in COUNTED), 1),
    "reply_json": 3,
    "thoughts_json": 4,
    "asker": 5,
}
"""Column of a kept file → the version that it came with; all others were there from the beginning."""


def declared_columns(table: pa.Table, schema: pa.Schema, version: int | None) -> pa.Table:
    """The table in the schema's columns; those that came after its ``version`` are null.

    ``version`` None is that of a file without a seal, 0 or 1. Raises ValueError for a column that is missing
    and for one that is not known; a later version may have columns of its own.
    """
    names = table.schema.names
    known = COLUMNS_VERSION if version is None else version
    if unknown := [name for name in names if name not in schema.names and known <= COLUMNS_VERSION]:
        raise ValueError(f"its column {unknown[0]!r} is not known")
    if len(set(names)) < len(names):
        raise ValueError("a column is there twice")
    last = 0 if version is None else version
    missing = [name for name in schema.names if name not in names]
    if lost := [name for name in missing if ADDED.get(name, 0) <= last]:
        raise ValueError(f"its column {lost[0]!r} is missing")
    if table.schema.equals(schema):
        return table
    columns = [
        table.column(field.name).cast(field.type)
        if field.name in names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def row_dicts(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch.

    >>> row_dicts(pa.RecordBatch.from_pydict({"a": pa.array(["x", None]).dictionary_encode()}))
    [{'a': 'x'}, {'a': None}]
    """
    names = batch.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*map(plain_values, batch), strict=True)]


def plain_values(column: pa.Array) -> list[Any]:
    """The values of a column as Python's own."""
    # pyarrow looks each value of an encoded column up by itself, at a fortieth of the pace.
    encoded = pa.types.is_dictionary(column.type)
    return list((column.dictionary_decode() if encoded else column).to_pylist())


def row_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """The batch of some rows; a column that no row has is null.

    >>> row_batch([{"a": 1}, {}], pa.schema({"a": pa.int64(), "b": pa.string()})).to_pydict()
    {'a': [1, None], 'b': [None, None]}
    """
    given = {name for row in rows for name in row}
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.get(field.name) for row in rows], field.type)
            if field.name in given
            else pa.nulls(len(rows), field.type)
            for field in schema
        ],
        schema=schema,
    )
