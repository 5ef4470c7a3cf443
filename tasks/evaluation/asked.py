"""The request behind each response: both come in the same order, so one cursor is enough."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from metrics.errors import NightjarError

COLUMNS = ("doc_id", "references_json")
COLUMNS_WITH_DOCUMENTS = (*COLUMNS, "doc_json")


@dataclass(frozen=True)
class Asked:
    """One item as a method sees it: its acceptable answers and, where read, the JSON text of its row."""

    doc_id: int
    references: list[Any]
    document: str | None

    @property
    def ground_truth(self) -> Any:
        """What a user's method is given: the answer, a list of several, None where there is none."""
        return self.references[0] if len(self.references) == 1 else (self.references or None)


class RequestCursor:
    """Walks through a part's requests (REQUESTS batches) beside its responses."""

    def __init__(self, batches: Iterable[pa.RecordBatch]):
        self._asked = _asked(batches)
        self._current: Asked | None = None

    def find(self, doc_id: int) -> Asked:
        """The request of ``doc_id``, the last one found or a later one; NightjarError if it does not come."""
        while self._current is None or self._current.doc_id != doc_id:
            self._current = next(self._asked, None)
            if self._current is None:
                raise NightjarError(
                    f"the response to item number {doc_id} does not follow the order of the requests; "
                    "the artifacts do not belong together, run again with --refresh infer"
                )
        return self._current


def _asked(batches: Iterable[pa.RecordBatch]) -> Iterator[Asked]:
    for batch in batches:
        doc_ids = batch.column("doc_id").to_pylist()
        references = map(orjson.loads, batch.column("references_json").to_pylist())
        known = "doc_json" in batch.schema.names
        documents = batch.column("doc_json").to_pylist() if known else [None] * len(doc_ids)
        yield from map(Asked, doc_ids, references, documents)
