"""Documents as items: values as JSON holds them, and ids that hold whatever the order and the source.

What is stored, hashed, and shown to filters and ``process_results`` is what ``json_document`` gives. An id is
derived from a document's content.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from metrics.errors import ConfigError
from tasks.datasets.config import DatasetError, field_at
from tasks.datasets.item import Item
from tasks.datasets.items import Cluster, content_digest
from tasks.messages.media import MediaError, MediaReader, opened_image
from tasks.store.schemas import cluster_text

ID_DIGITS: Final = 16

Document = Mapping[str, Any]
"""A row of a split after ``process_docs``: its fields by name."""


def json_value(value: Any) -> Any:
    """``value`` with tuples as lists, numpy values as Python's, and what JSON lacks as the text a template
    would show."""
    if value is None or isinstance(value, str | bool):
        return str(value) if isinstance(value, str) and type(value) is not str else value
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if is_picture(value):
        return picture_reference(value)
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    return str(value)


def is_picture(value: Any) -> bool:
    """Whether a value is an image as datasets hold it: a Pillow image, or its bytes beside a path."""
    held = value.get("bytes") if isinstance(value, Mapping) else None
    return isinstance(held, bytes) or (hasattr(value, "save") and hasattr(value, "mode"))


def picture_reference(value: Any) -> str:
    """How a document names an image: by the digest of its bytes; raises DataError for a broken one."""
    try:
        part = MediaReader().part("image", value)
    except MediaError as error:
        raise DatasetError(f"an image of a document can't be shown: {error}") from error
    return str(part["image_url"]["url"])


def with_pictures(row: Mapping[str, Any]) -> dict[str, Any]:
    """A document for functions: images that come as bytes are Pillow images, as the datasets library gives
    them."""
    return {
        key: opened_image(value["bytes"]) if is_picture(value) and isinstance(value, Mapping) else value
        for key, value in row.items()
    }


def json_document(row: Any, where: str) -> dict[str, Any]:
    """A document; raises ConfigError where ``process_docs`` gave something else than a mapping."""
    if not isinstance(row, Mapping):
        raise ConfigError(f"{where}: a document is a mapping of fields, got {type(row).__name__} {row!r:.80}")
    return {str(key): json_value(value) for key, value in row.items()}


def document_items(rows: Iterable[Mapping[str, Any]], cluster: Cluster, where: str) -> Iterator[Item]:
    """Documents as items in order; equal documents are told apart by a number. Raises DataError without
    ``cluster``."""
    seen: Counter[str] = Counter()
    for doc_id, row in enumerate(rows):
        item = Item(item_id="", doc_id=doc_id, data=row)
        try:
            base = content_digest(item)[:ID_DIGITS]
        except TypeError as error:  # half of a character, or nested deeper than JSON's writer goes
            raise DatasetError(f"{where}: document {doc_id + 1} can't be kept as JSON: {error}") from None
        seen[base] += 1
        item_id = base if seen[base] == 1 else f"{base}-{seen[base]}"
        yield replace(item, item_id=item_id, cluster=_cluster_of(row, cluster, where))


def _cluster_of(row: Mapping[str, Any], cluster: Cluster, where: str) -> str | None:
    if cluster is None:
        return None
    texts = []
    for field in [cluster] if isinstance(cluster, str) else cluster:
        try:
            texts.append(str(field_at(row, field)))
        except KeyError:
            raise DatasetError(
                f"{where}: no field '{field}' (cluster); documents have {', '.join(row)}"
            ) from None
    return cluster_text(texts)
