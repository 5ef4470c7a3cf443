"""The first items of a partition that are asked, with their answers as they come: what can be said of a model
while it is being asked rests on them.

A bounded sample in the order of the dataset, not the answers that came first: those are of what is quickly
answered. Nothing of it is kept.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from tasks.models.answers.reading import CodecOf
from tasks.models.answers.rows import ResponseRows
from tasks.models.answers.segments import AnswerSnapshot, table_of
from tasks.models.identity import RequestExpansion
from tasks.models.records import KeptAnswer, RequestFailure

FIRST_ITEMS = 200
FIRST_REQUESTS = 1_000
"""Items and requests that are looked at, at most."""
NOT_YET = RequestFailure("not answered yet", 0)


class FirstAnswers:
    """The first items that something is asked for, and what was answered so far; it is added to in one thread
    and read in another.

    ``source`` are REQUESTS batches of which the first is looked at, ``asked`` the keys that are asked for;
    what was kept before is read from ``snapshot``. ``failures`` are those of the run as it goes on.
    """

    def __init__(
        self,
        expansion: RequestExpansion,
        codec_of: CodecOf,
        source: Iterable[pa.RecordBatch],
        asked: Collection[bytes],
        snapshot: Callable[[], AnswerSnapshot],
        failures: Mapping[bytes, RequestFailure],
    ) -> None:
        self._expansion = expansion
        self._codec_of = codec_of
        self._failures = failures
        self._requests, self._keys = _first(expansion, source, asked)
        every = [key for keys in self._keys for key in keys]
        before = [key for key in every if key not in asked]
        self._table, position = snapshot().rows(before) if before else (table_of([]), np.empty(0, np.int64))
        self._kept = {key: int(at) for key, at in zip(before, position, strict=True) if at >= 0}
        self._wanted = frozenset(every)
        self._answers: dict[bytes, KeptAnswer] = {}

    def add(self, answer: KeptAnswer) -> None:
        """Takes an answer, if it is to one of these items."""
        if answer.key in self._wanted:
            self._answers[answer.key] = answer

    def settled(self) -> tuple[pa.RecordBatch, list[pa.RecordBatch]] | None:
        """The items of which every request is answered or has failed, and their RESPONSES; None: there is
        none."""
        given = dict(self._answers)
        known = {*given, *self._kept, *dict(self._failures)}
        rows = [row for row, keys in enumerate(self._keys) if known.issuperset(keys)]
        if not rows or self._requests is None:
            return None
        items = self._requests.take(pa.array(rows))
        table = pa.concat_tables([self._table, table_of(list(given.values()))])
        place = self._kept | {key: len(self._table) + at for at, key in enumerate(given)}
        answers = _Answers(table, place)
        made = ResponseRows(
            self._expansion, self._codec_of, answers, self._failures, NOT_YET, lambda *_: None
        )
        return items, list(made.batches([items]))


class _Answers:
    """A table of answers and where in it each key's is."""

    def __init__(self, table: pa.Table, place: Mapping[bytes, int]) -> None:
        self._table = table
        self._place = place

    def rows(self, keys: Sequence[bytes]) -> tuple[pa.Table, np.ndarray]:
        """As those of a snapshot."""
        return self._table, np.array([self._place.get(key, -1) for key in keys], dtype=np.int64)


def _first(
    expansion: RequestExpansion, source: Iterable[pa.RecordBatch], asked: Collection[bytes]
) -> tuple[pa.RecordBatch | None, list[list[bytes]]]:
    """The first rows with a request that is asked, and the keys of each."""
    batch = next(iter(source), None)
    taken: list[int] = []
    keys: list[list[bytes]] = []
    for row, requests in enumerate(expansion.rows(batch) if batch is not None else ()):
        own = [request.key for request in requests]
        if not any(key in asked for key in own):
            continue
        if len(keys) == FIRST_ITEMS or sum(map(len, keys)) + len(own) > FIRST_REQUESTS:
            break
        taken.append(row)
        keys.append(own)
    return (batch.take(pa.array(taken, pa.int64())) if batch is not None else None), keys
