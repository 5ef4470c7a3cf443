"""The samples of all parts with their items, labels and facet groups: what a reduction works on."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.reduction.facets import Codes, Groups, Vocabulary, group
from tasks.reduction.items import Items, ItemTable
from tasks.reduction.paths import UNKNOWN, locate
from tasks.reduction.reading import Layout, read_statistics
from tasks.reduction.records import Part
from tasks.reduction.response_facets import read_response_facets
from tasks.reduction.table import Table, concatenate, empty_table

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Loaded:
    """The samples, their items, their facet groups, and the names behind the label codes."""

    samples: Table
    items: Items
    groups: Groups
    labels: list[str]

    def label(self, code: int) -> str | None:
        """The label's name; None for the code −1."""
        return None if code < 0 else self.labels[code]


def load(parts: Sequence[Part], layout: Layout) -> Loaded:
    """Reads all parts once, column by column; raises NightjarError where artifacts do not belong together.

    A facet that some samples lack puts them into a group of its own, ``unknown``, with one warning a facet. A
    sample that was never judged has no label; it counts as unscored under every label that its method gave to
    others.
    """
    labels = Vocabulary()
    vocabularies = {facet: Vocabulary() for facet in layout.facets}
    of_items = [facet for facet in layout.facets if locate(facet)[0] in ("request", "document")]
    carried = ["item_id", "item_digest", "cluster", *(["references_json"] if layout.references else [])]
    items = ItemTable(of_items, vocabularies, carried)
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


def _facets(
    part: Part, table: Table, layout: Layout, vocabularies: Mapping[str, Vocabulary]
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
    samples: Table, methods: Sequence[str | None], labels: Vocabulary
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
