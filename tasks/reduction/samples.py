"""Where each sample's item, label and facet values come from: the join behind a reduction.

Statistics are joined with requests by document and with responses by document and sample index; items that
several models answered are kept once. ``load`` gives ``reduce`` the samples of all parts of a pair.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from metrics.errors import NightjarError
from tasks.reduction.columns import SampleTable, StatisticsLayout, concatenate, empty_table, read_statistics
from tasks.reduction.facets import Codes, FacetGroups, Vocabulary, group, integers
from tasks.rows.parts import UNKNOWN, Part, locate, resolve, resolve_json
from tasks.store.schemas import REQUESTS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ItemTable:
    """n items in dataset order: ``doc_ids`` and facet codes (n,), a table of their other columns."""

    doc_ids: Codes
    columns: pa.Table
    codes: Mapping[str, Codes]

    def positions(self, doc_ids: Codes) -> Codes:
        """The row of each document; all of them are there."""
        return np.searchsorted(self.doc_ids, doc_ids)


@dataclass(frozen=True)
class Loaded:
    """The samples, their items, their facet groups, and the names behind the label codes."""

    samples: SampleTable
    items: ItemTable
    groups: FacetGroups
    labels: list[str]

    def label(self, code: int) -> str | None:
        """The label's name; None for the code −1."""
        return None if code < 0 else self.labels[code]


def load(parts: Sequence[Part], layout: StatisticsLayout) -> Loaded:
    """Reads all parts once, column by column; raises NightjarError where artifacts do not belong together.

    A facet that some samples lack puts them into a group of its own, ``unknown``, with one warning a facet. A
    sample that was never judged has no label; it counts as unscored under every label that its method gave to
    others.
    """
    labels = Vocabulary()
    vocabularies = {facet: Vocabulary() for facet in layout.facets}
    of_items = [facet for facet in layout.facets if locate(facet)[0] in ("request", "document")]
    carried = ["item_id", "item_digest", "cluster", *(["references_json"] if layout.references else [])]
    items = ItemCollector(of_items, vocabularies, carried)
    tables = [empty_table([facet for facet in layout.facets if facet not in of_items])]
    for number, part in enumerate(parts):
        table = read_statistics(part, number, layout, labels, vocabularies)
        items.add(part, np.unique(table.doc_id))
        tables.append(replace(table, facets=_facets(part, table, layout, vocabularies)))
    samples, found = concatenate(tables), items.finish()
    columns = {facet: found.codes[facet][found.positions(samples.doc_id)] for facet in found.codes}
    columns |= samples.facets
    _warn(columns, vocabularies)
    groups = group(columns, vocabularies, len(samples))
    rows, label = _spread_unlabelled(samples, [part.method for part in parts], labels)
    return Loaded(
        samples=replace(samples.take(rows), label=label),
        items=found,
        groups=replace(groups, code=groups.code[rows]),
        labels=labels.values,
    )


def read_response_facets(
    part: Part, table: SampleTable, layout: StatisticsLayout, vocabularies: Mapping[str, Vocabulary]
) -> dict[str, Codes]:
    """Codes (rows of ``table``) of the facets that are read from the part's responses."""
    located = {facet: locate(facet) for facet in layout.facets}
    columns = {facet: name for facet, (source, name) in located.items() if source == "response"}
    paths = {facet: name for facet, (source, name) in located.items() if source == "metadata"}
    if not columns and not paths:
        return {}
    names = [
        "doc_id",
        "sample_index",
        *dict.fromkeys(columns.values()),
        *(["metadata_json"] if paths else []),
    ]
    keys: list[Codes] = []
    codes: dict[str, list[Codes]] = {facet: [] for facet in (*columns, *paths)}
    for batch in part.responses(names):
        keys.append(_sample_keys(integers(batch, "doc_id"), integers(batch, "sample_index")))
        for facet, name in columns.items():
            codes[facet].append(vocabularies[facet].encode(batch.column(name)))
        for facet, path in paths.items():
            codes[facet].append(_metadata(batch.column("metadata_json"), path, part, vocabularies[facet]))
    return _aligned(table, keys, codes, vocabularies)


@dataclass
class ItemCollector:
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
        missing = doc_ids[~_contains(self._known, doc_ids)]
        if not len(missing):
            return
        taken = [self._collect(batch, missing) for batch in part.requests(self._columns())]
        arrived = np.concatenate(taken) if taken else missing[:0]
        lost = np.setdiff1d(missing, arrived)
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

    def _collect(self, batch: pa.RecordBatch, missing: Codes) -> Codes:
        doc_ids = integers(batch, "doc_id")
        mask = _contains(missing, doc_ids)
        rows = batch if mask.all() else batch.filter(pa.array(mask))
        self._doc_ids.append(doc_ids[mask])
        self._rows.append(rows.select(list(self.carried)))
        for facet, codes in self._encode(rows).items():
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

    def finish(self) -> "ItemTable":
        """All items collected, in the order of their position in the dataset."""
        doc_ids = np.concatenate(self._doc_ids) if self._doc_ids else self._known
        order = np.argsort(doc_ids, kind="stable")
        schema = pa.schema([REQUESTS.field(name) for name in self.carried])
        columns = pa.Table.from_batches(self._rows, schema=schema).take(pa.array(order))
        codes = {facet: np.concatenate(self._codes.get(facet, [doc_ids]))[order] for facet in self.facets}
        return ItemTable(doc_ids=doc_ids[order], columns=columns, codes=codes)


def _contains(ordered: Codes, values: Codes) -> NDArray[np.bool_]:
    """Which of ``values`` stand in ``ordered`` (ascending)."""
    if not len(ordered):
        return np.zeros(len(values), dtype=bool)
    places = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.asarray(ordered[places] == values)


def _facets(
    part: Part, table: SampleTable, layout: StatisticsLayout, vocabularies: Mapping[str, Vocabulary]
) -> dict[str, Codes]:
    """Codes of the facets that the statistics, the part as a whole or its responses decide."""
    codes = dict(table.facets)
    for facet in layout.facets:
        if locate(facet)[0] == "origin":
            code = vocabularies[facet].code(getattr(part.origin, facet))
            codes[facet] = np.full(len(table), code, dtype=np.int64)
    return codes | read_response_facets(part, table, layout, vocabularies)


def _warn(columns: Mapping[str, Codes], vocabularies: Mapping[str, Vocabulary]) -> None:
    for facet, codes in columns.items():
        values = vocabularies[facet].values
        lacking = int(np.count_nonzero(codes == values.index(UNKNOWN))) if UNKNOWN in values else 0
        if lacking:
            logger.warning(
                "facet %s is missing from %d of %d samples; they form the group '%s'",
                facet, lacking, len(codes), UNKNOWN,
            )  # fmt: skip


def _spread_unlabelled(
    samples: SampleTable, methods: Sequence[str | None], labels: Vocabulary
) -> tuple[Codes, Codes]:
    """Which samples stand under which label: rows of ``samples`` and the label code beside each.

    Samples that have a label stand under it; the others under every label of their method, under the method's
    own name where it gave none, and under no label (−1) where no method is behind them.
    """
    bare = samples.label < 0
    if not bare.any():
        return np.arange(len(samples)), samples.label
    rows, codes = [np.flatnonzero(~bare)], [samples.label[~bare]]
    names = list(dict.fromkeys(methods))
    method = np.array([names.index(name) for name in methods])[samples.part]
    for number, name in enumerate(names):
        lost = np.flatnonzero(bare & (method == number))
        if not len(lost):
            continue
        known = np.unique(samples.label[~bare & (method == number)])
        if not len(known):
            known = np.array([-1 if name is None else labels.code(name)])
        rows.append(np.repeat(lost, len(known)))
        codes.append(np.tile(known, len(lost)))
    return np.concatenate(rows), np.concatenate(codes)


def _metadata(column: pa.Array, path: str, part: Part, vocabulary: Vocabulary) -> Codes:
    """What came with a response wins over what the model's config says of all of them."""
    shared = resolve(part.origin.shared_metadata, path)

    def read(text: str | None) -> Any:
        own = resolve_json(text, path)
        return shared if own is None else own

    return vocabulary.encode(column, read)


def _sample_keys(doc_id: Codes, sample_index: Codes) -> Codes:
    return (doc_id << 24) | sample_index  # sixteen million samples an item, half a trillion items


def _aligned(
    table: SampleTable,
    keys: list[Codes],
    codes: Mapping[str, list[Codes]],
    vocabularies: Mapping[str, Vocabulary],
) -> dict[str, Codes]:
    """The responses' codes in the order of the statistics; unknown where a sample has no response."""
    keys_of_table = _sample_keys(table.doc_id, table.sample_index)
    known = np.concatenate(keys) if keys else keys_of_table[:0]
    order = np.argsort(known, kind="stable")
    places = np.searchsorted(known[order], keys_of_table)
    inside = np.minimum(places, max(len(known) - 1, 0))
    found = known[order][inside] == keys_of_table if len(known) else np.zeros(len(keys_of_table), dtype=bool)
    aligned: dict[str, Codes] = {}
    for facet, blocks in codes.items():
        column = np.full(len(keys_of_table), -1, dtype=np.int64)
        if len(known):
            column[found] = np.concatenate(blocks)[order][inside][found]
        if not found.all():
            column[~found] = vocabularies[facet].code(None)
        aligned[facet] = column
    return aligned
