"""Where each sample's item, label and facet values come from: the join behind a reduction.

Statistics are joined with requests by document and with responses by document and sample index; items
that several models answered are kept once. ``load`` gives ``reduce`` the samples of all parts of a pair.
In memory they are flat arrays of the columns needed, read batch by batch.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from metrics.errors import NightjarError
from tasks.reduction.facets import Codes, FacetGroups, Vocabulary, group, integers
from tasks.rows.parts import UNKNOWN, Part, item_field, locate, resolve, resolve_detail_json, resolve_json
from tasks.store.keys import text_value
from tasks.store.schemas import OUTCOMES, REQUESTS

_ARRAYS = ("doc_id", "part", "sample_index", "label", "scored", "outcome", "score", "code")
_NUMBERS = ("doc_id", "sample_index", "label", "scored", "outcome", "code")


@dataclass(frozen=True)
class SampleTable:
    """m samples: arrays (m,), statistics (m, k), JSON values of kind "values", and codes (m,) of facets.

    ``part`` numbers the part a sample is from, which orders the repeats of an item that come from several
    models; ``label`` numbers the label, −1 for none; ``outcome`` is the place in OUTCOMES, −1 for
    none.
    """

    doc_id: Codes
    part: Codes
    sample_index: Codes
    label: Codes
    scored: NDArray[np.bool_]
    outcome: Codes
    score: NDArray[np.float64]
    code: Codes
    statistics: NDArray[np.float64] | None = None
    values: list[Any] | None = None
    facets: Mapping[str, Codes] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.doc_id)

    def take(self, rows: Codes) -> "SampleTable":
        """The samples at ``rows``, in that order, without their facets."""
        arrays = {
            entry.name: value[rows]
            for entry in fields(self)
            if isinstance(value := getattr(self, entry.name), np.ndarray)
        }
        values = None if self.values is None else [self.values[row] for row in rows.tolist()]
        return replace(self, **arrays, values=values, facets={})


@dataclass(frozen=True)
class StatisticsLayout:
    """What is read of the statistics: the facets' paths, the kind of statistics, the column of the scores.

    ``passed`` as score makes 0 and 1 of verdicts, for metrics over evaluation results; a sample that has no
    number in that column is unscored for the metric.
    """

    facets: Sequence[str]
    kind: Literal["sums", "values", "score"] = "score"
    score: Literal["score", "passed"] = "score"
    references: bool = False  # a user's reduction looks at them


def read_statistics(
    part: Part,
    number: int,
    layout: StatisticsLayout,
    labels: Vocabulary,
    vocabularies: Mapping[str, Vocabulary],
) -> SampleTable:
    """The statistics of part ``number``, with the codes of the facets that are read from them."""
    located = {facet: locate(facet) for facet in layout.facets}
    own = {facet: name for facet, (source, name) in located.items() if source == "statistic"}
    details = {facet: name for facet, (source, name) in located.items() if source == "details"}
    columns = [*_NUMBERS, *_score_columns(layout), *own.values(), *(["details_json"] if details else [])]
    tables = []
    for batch in part.statistics(list(dict.fromkeys(columns))):
        codes = {facet: vocabularies[facet].encode(batch.column(name)) for facet, name in own.items()}
        for facet, path in details.items():
            codes[facet] = vocabularies[facet].encode(
                batch.column("details_json"), partial(resolve_detail_json, path=path)
            )
        tables.append(replace(_numbers(batch, number, layout, labels), facets=codes))
    return concatenate(tables) if tables else empty_table([*own, *details])


def concatenate(tables: Sequence[SampleTable]) -> SampleTable:
    """All samples of several tables (at least one), which carry the same facets."""
    arrays = {name: np.concatenate([getattr(table, name) for table in tables]) for name in _ARRAYS}
    facets = {facet: np.concatenate([table.facets[facet] for table in tables]) for facet in tables[0].facets}
    return SampleTable(**arrays, statistics=_statistics(tables), values=_values(tables), facets=facets)


def empty_table(facets: Sequence[str]) -> SampleTable:
    """No samples."""
    none = np.empty(0, dtype=np.int64)
    return SampleTable(
        doc_id=none,
        part=none,
        sample_index=none,
        label=none,
        scored=none.astype(bool),
        outcome=none,
        score=none.astype(float),
        code=none,
        facets=dict.fromkeys(facets, none),
    )


def _statistics(tables: Sequence[SampleTable]) -> NDArray[np.float64] | None:
    """One matrix; zeros for a table without any scored sample, which has none."""
    widths = {table.statistics.shape[1] for table in tables if table.statistics is not None}
    if not widths:
        return None
    width = max(widths)
    return np.concatenate(
        [np.zeros((len(table), width)) if table.statistics is None else table.statistics for table in tables]
    )


def _values(tables: Sequence[SampleTable]) -> list[Any] | None:
    """One list; the scores stand in for the values of a table that has none."""
    if all(table.values is None for table in tables):
        return None
    return [value for table in tables for value in (table.values or table.score.tolist())]


def _score_columns(layout: StatisticsLayout) -> list[str]:
    extra = {"sums": ["statistics"], "values": ["value_json"], "score": []}[layout.kind]
    return [layout.score, *extra]


def _numbers(batch: pa.RecordBatch, number: int, layout: StatisticsLayout, labels: Vocabulary) -> SampleTable:
    score = batch.column(layout.score).cast(pa.float64()).fill_null(np.nan).to_numpy(zero_copy_only=False)
    scored = batch.column("scored").to_numpy(zero_copy_only=False)
    if layout.kind == "score":
        scored = scored & np.isfinite(score)
    values = batch.column("value_json") if layout.kind == "values" else None
    return SampleTable(
        doc_id=integers(batch, "doc_id"),
        part=np.full(len(batch), number),
        sample_index=integers(batch, "sample_index"),
        label=labels.encode_known(batch.column("label")),
        scored=scored,
        outcome=_outcomes(batch.column("outcome")),
        score=score,
        code=integers(batch, "code"),
        statistics=_vectors(batch.column("statistics")) if layout.kind == "sums" else None,
        values=None if values is None or values.null_count == len(values) else _objects(values, score),
    )


def _outcomes(column: pa.Array) -> Codes:
    places = pc.index_in(column.cast(pa.string()), value_set=pa.array(OUTCOMES, pa.string()))
    return np.asarray(places.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _vectors(column: pa.Array) -> NDArray[np.float64] | None:
    """A column of lists of one length as a matrix (rows, k), zeros where it is null; None where all are."""
    present = column.is_valid().to_numpy(zero_copy_only=False)
    if not present.any():
        return None
    flat = column.drop_null().flatten().to_numpy(zero_copy_only=False)
    width, rest = divmod(len(flat), int(present.sum()))
    if rest:
        raise NightjarError("the statistics of a pair differ in width; run again with --refresh score")
    matrix = np.zeros((len(column), width))
    matrix[present] = flat.reshape(-1, width)
    return matrix


def _objects(column: pa.Array, score: NDArray[np.float64]) -> list[Any]:
    texts = column.to_pylist()
    return [
        number if text is None else text_value(text)
        for text, number in zip(texts, score.tolist(), strict=True)
    ]


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
    tables = [empty_table([facet for facet in layout.facets if facet not in of_items])]
    for number, part in enumerate(parts):
        table = read_statistics(part, number, layout, labels, vocabularies)
        tables.append(replace(table, facets=_facets(part, table, layout, vocabularies)))
    samples = concatenate(tables)
    lacking = [facet for facet, codes in samples.facets.items() if item_field(facet) and (codes < 0).any()]
    carried = ["item_id", "item_digest", "cluster", *(["references_json"] if layout.references else [])]
    items = ItemCollector([*of_items, *lacking], vocabularies, carried)
    for part, table in zip(parts, tables[1:], strict=True):
        items.add(part, np.unique(table.doc_id))
    found = items.finish()
    columns = _columns(samples, found, vocabularies)
    _warn(columns, vocabularies)
    groups = group(columns, vocabularies, len(samples))
    rows, label = _spread_unlabelled(samples, [part.method for part in parts], labels)
    return Loaded(
        samples=replace(samples.take(rows), label=label),
        items=found,
        groups=replace(groups, code=groups.code[rows]),
        labels=labels.values,
    )


def _columns(
    samples: SampleTable, items: "ItemTable", vocabularies: Mapping[str, Vocabulary]
) -> dict[str, Codes]:
    """Codes (m,) of all facets: of the samples, and of their items where those have none (−1)."""
    columns = dict(samples.facets)
    positions = items.positions(samples.doc_id)
    for facet, codes in items.codes.items():
        own = columns.get(facet)
        columns[facet] = codes[positions] if own is None else np.where(own < 0, codes[positions], own)
    for facet, codes in columns.items():
        if (codes < 0).any():
            columns[facet] = np.where(codes < 0, vocabularies[facet].code(None), codes)
    return columns


def read_response_facets(
    part: Part, table: SampleTable, layout: StatisticsLayout, vocabularies: Mapping[str, Vocabulary]
) -> dict[str, Codes]:
    """Codes (rows of ``table``) of the facets that are read from the part's responses; −1: it has none."""
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
        keys.append(sample_keys(integers(batch, "doc_id"), integers(batch, "sample_index")))
        for facet, name in columns.items():
            codes[facet].append(vocabularies[facet].encode_known(batch.column(name)))
        for facet, path in paths.items():
            codes[facet].append(_metadata(batch.column("metadata_json"), path, part, vocabularies[facet]))
    return _aligned(table, keys, codes)


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
        needed = ["doc_json" if item_field(facet) else locate(facet)[1] for facet in self.facets]
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
        paths = {facet: path for facet in self.facets if (path := item_field(facet)) is not None}
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
                "facet %s is missing from %d of %d samples, or has that text; they form the group '%s'",
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

    return vocabulary.encode_known(column, read)


def sample_keys(doc_id: Codes, sample_index: Codes) -> Codes:
    """One number a sample: sixteen million samples an item, half a trillion items."""
    return (doc_id << 24) | sample_index


def _aligned(
    table: SampleTable,
    keys: list[Codes],
    codes: Mapping[str, list[Codes]],
) -> dict[str, Codes]:
    """The responses' codes in the order of the statistics; −1 where a sample has no response."""
    keys_of_table = sample_keys(table.doc_id, table.sample_index)
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
        aligned[facet] = column
    return aligned
