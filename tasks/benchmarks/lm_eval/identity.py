"""Ids of documents: derived from their content, so that they hold whatever the order and the source."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from tasks.benchmarks.records import Item
from tasks.datasets.errors import DataError
from tasks.datasets.items import content_digest
from tasks.paths import field_at

ID_DIGITS: Final = 16


def numbered_items(rows: Iterable[Mapping[str, Any]], cluster: str | None, where: str) -> Iterator[Item]:
    """Documents as items in order; equal documents are told apart by a number. Raises DataError without
    ``cluster``."""
    seen: Counter[str] = Counter()
    for doc_id, row in enumerate(rows):
        item = Item(item_id="", doc_id=doc_id, data=row)
        base = content_digest(item)[:ID_DIGITS]
        seen[base] += 1
        item_id = base if seen[base] == 1 else f"{base}-{seen[base]}"
        yield replace(item, item_id=item_id, cluster=_cluster_of(row, cluster, where))


def _cluster_of(row: Mapping[str, Any], cluster: str | None, where: str) -> str | None:
    if cluster is None:
        return None
    try:
        return str(field_at(row, cluster))
    except KeyError:
        raise DataError(f"{where}: no field '{cluster}' (cluster); documents have {', '.join(row)}") from None
