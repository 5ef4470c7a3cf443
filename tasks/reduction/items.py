"""The items behind the samples: identifier, digest, cluster and facet values, one row an item."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from metrics.errors import NightjarError
from tasks.reduction.facets import Codes, Vocabulary, integers
from tasks.reduction.paths import locate, resolve
from tasks.reduction.records import Part
from tasks.store.schemas import REQUESTS


@dataclass
class ItemTable:
    """Collects the items of all parts; items that several models answered are kept once.

    ``facets`` are the facet paths that are read from an item (its document or its own columns), ``carried``
    the request columns that the finished table holds.
    """

    facets: Sequence[str]
    vocabularies: Mapping[str, Vocabulary]
    carried: Sequence[str] = ("item_id", "item_digest", "cluster")
    _doc_ids: list[Codes] = field(default_factory=list)
    _rows: list[pa.RecordBatch] = field(default_factory=list)
    _codes: dict[str, list[Codes]] = field(default_factory=dict)
    _known: Codes = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, part: Part, doc_ids: Codes) -> None:
        """Takes in those of ``doc_ids`` (ascending) that are not known yet, from the part's requests."""
        wanted = doc_ids[~_contains(self._known, doc_ids)]
        if not len(wanted):
            return
        found = [self._take(batch, wanted) for batch in part.requests(self._columns())]
        arrived = np.concatenate(found) if found else wanted[:0]
        lost = np.setdiff1d(wanted, arrived)
        if len(lost):
            raise NightjarError(
                f"{len(lost)} scored items are not among the requests of {part.origin.model_name} "
                f"({part.origin.prompt_template}), the first at position {lost[0]} of the dataset; "
                "the artifacts do not belong together, run again with --refresh render"
            )
        self._known = np.union1d(self._known, arrived)

    def _columns(self) -> list[str]:
        read = {"document": "doc_json"}
        needed = [read.get(source, name) for source, name in map(locate, self.facets)]
        return list(dict.fromkeys(["doc_id", *self.carried, *needed]))

    def _take(self, batch: pa.RecordBatch, wanted: Codes) -> Codes:
        doc_ids = integers(batch, "doc_id")
        mask = _contains(wanted, doc_ids)
        kept = batch if mask.all() else batch.filter(pa.array(mask))
        self._doc_ids.append(doc_ids[mask])
        self._rows.append(kept.select(list(self.carried)))
        for facet, codes in self._encode(kept).items():
            self._codes.setdefault(facet, []).append(codes)
        return doc_ids[mask]

    def _encode(self, batch: pa.RecordBatch) -> dict[str, Codes]:
        located = {facet: locate(facet) for facet in self.facets}
        codes = {
            facet: self.vocabularies[facet].encode(batch.column(name))
            for facet, (source, name) in located.items()
            if source == "request"
        }
        paths = {facet: name for facet, (source, name) in located.items() if source == "document"}
        return codes | self._encode_documents(batch, paths)

    def _encode_documents(self, batch: pa.RecordBatch, paths: Mapping[str, str]) -> dict[str, Codes]:
        if not paths:
            return {}
        rows = [
            tuple(self.vocabularies[facet].code(resolve(document, path)) for facet, path in paths.items())
            for document in map(orjson.loads, batch.column("doc_json").to_pylist())
        ]
        table = np.array(rows, dtype=np.int64).reshape(len(rows), len(paths))
        return dict(zip(paths, table.T, strict=True))

    def finish(self) -> "Items":
        """All items collected, in the order of their position in the dataset."""
        doc_ids = np.concatenate(self._doc_ids) if self._doc_ids else self._known
        order = np.argsort(doc_ids, kind="stable")
        schema = pa.schema([REQUESTS.field(name) for name in self.carried])
        columns = pa.Table.from_batches(self._rows, schema=schema).take(pa.array(order))
        codes = {facet: np.concatenate(self._codes.get(facet, [doc_ids]))[order] for facet in self.facets}
        return Items(doc_ids=doc_ids[order], columns=columns, codes=codes)


@dataclass(frozen=True)
class Items:
    """n items in dataset order: ``doc_ids`` and facet codes (n,), a table of their other columns."""

    doc_ids: Codes
    columns: pa.Table
    codes: Mapping[str, Codes]

    def positions(self, doc_ids: Codes) -> Codes:
        """The row of each document; all of them are there."""
        return np.searchsorted(self.doc_ids, doc_ids)


def _contains(ordered: Codes, values: Codes) -> NDArray[np.bool_]:
    """Which of ``values`` stand in ``ordered`` (ascending)."""
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[places] == values)
