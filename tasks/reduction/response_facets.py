"""Facets that stand in the responses: aligned with the statistics by document and sample index."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.reduction.facets import Codes, Vocabulary, integers
from tasks.reduction.paths import locate, resolve, resolve_json
from tasks.reduction.reading import Layout
from tasks.reduction.records import Part
from tasks.reduction.table import Table


def read_response_facets(
    part: Part, table: Table, layout: Layout, vocabularies: Mapping[str, Vocabulary]
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
    table: Table, keys: list[Codes], codes: Mapping[str, list[Codes]], vocabularies: Mapping[str, Vocabulary]
) -> dict[str, Codes]:
    """The responses' codes in the order of the statistics; unknown where a sample has no response."""
    wanted = _sample_keys(table.doc_id, table.sample_index)
    known = np.concatenate(keys) if keys else wanted[:0]
    order = np.argsort(known, kind="stable")
    places = np.searchsorted(known[order], wanted)
    inside = np.minimum(places, max(len(known) - 1, 0))
    found = known[order][inside] == wanted if len(known) else np.zeros(len(wanted), dtype=bool)
    aligned: dict[str, Codes] = {}
    for facet, blocks in codes.items():
        column = np.full(len(wanted), -1, dtype=np.int64)
        if len(known):
            column[found] = np.concatenate(blocks)[order][inside][found]
        if not found.all():
            column[~found] = vocabularies[facet].code(None)
        aligned[facet] = column
    return aligned
