"""Reads kept replies: what an answer says is read when it is used, by the codec of today, and so a corrected
one reaches answers of any age without a request.

Answers of stores from before replies were kept stay as they were read then.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from metrics.errors import named, users_code
from tasks.datasets.item import RequestKind
from tasks.models.answers.segments import ANSWERS, read_columns
from tasks.models.errors import RequestError, shortened
from tasks.models.records import STATUS_BEFORE, Answer, Codec, Request, answer_in
from tasks.store.keys import text_value

CodecOf = Callable[[RequestKind], Codec]
"""The codec of requests of a kind, as the config alone says it."""


def read_replies(codec_of: CodecOf, requests: Sequence[Request], table: pa.Table) -> pa.Table:
    """The answers of ANSWERS, one a request, with what their replies say; rows without a reply stay as they
    are."""
    table = _as_named_today(table)
    replies = table.column("reply_json").to_pylist()
    kinds = {request.kind for request, reply in zip(requests, replies, strict=True) if reply is not None}
    if not kinds:
        return table
    codecs = {kind: codec_of(kind) for kind in kinds}
    read = [
        None if reply is None else _read(codecs[request.kind], request, reply)
        for request, reply in zip(requests, replies, strict=True)
    ]
    columns = read_columns(read)
    for name in ("status", "error"):
        columns[name] = [None if answer is None else getattr(answer, name) for answer in read]
    stay = pa.array([answer is None for answer in read])
    for name, values in columns.items():
        made = pa.array(values, ANSWERS.field(name).type)
        at = table.schema.get_field_index(name)
        if None in replies:
            made = pc.if_else(stay, table.column(name).cast(_plain(made.type)), made.cast(_plain(made.type)))
            made = made.cast(ANSWERS.field(name).type)
        table = table.set_column(at, ANSWERS.field(name), made)
    return table


def _as_named_today(table: pa.Table) -> pa.Table:
    """The answers with their status by its name of today."""
    status = table.column("status")
    before = pc.equal(status.cast(pa.string()), STATUS_BEFORE)
    if not pc.any(before).as_py():
        return table
    named = pc.if_else(before, "refused", status.cast(pa.string())).cast(status.type)
    return table.set_column(table.schema.get_field_index("status"), "status", named)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _read(codec: Codec, request: Request, reply: str) -> Answer:
    try:
        with users_code():
            return answer_in(codec, request, text_value(reply))
    except RequestError as error:
        said = str(error)
    except Exception as error:  # as the engine takes it: one answer, and not the run
        said = named(error)
    remedy = "--refresh infer asks again"
    return Answer("infra_error", error=f"the kept reply can't be read: {shortened(said)}; {remedy}")
