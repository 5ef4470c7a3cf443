"""How facet values are held: as integer codes, so that grouping by ten thousand values costs what two cost.

``Vocabulary`` numbers values, ``group`` numbers their combinations; ``facets_text`` and ``parse_facets`` are
the JSON form in which ITEM_ROWS and RESULTS keep a group's values, ``facet_text`` is how a value is written
wherever it stands alone.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import getitem
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from numpy.typing import NDArray

from tasks.rows.parts import UNKNOWN
from tasks.store.keys import canonical_json
from tasks.store.schemas import CELL_FACETS

Codes = NDArray[np.int64]
ALL: Final = "all"
"""What stands for the values of a facet where a row is over all of them."""


@dataclass
class Vocabulary:
    """Numbers the distinct values of one facet in order of appearance.

    Values are any JSON values; equal ones (by canonical JSON) share a code. None becomes ``unknown``.
    """

    values: list[Any] = field(default_factory=list)
    _codes: dict[bytes, int] = field(default_factory=dict)

    def code(self, value: Any) -> int:
        """The code of ``value``, a new one where it has not been seen."""
        known = UNKNOWN if value is None else value
        key = canonical_json(known)
        code = self._codes.setdefault(key, len(self.values))
        if code == len(self.values):
            self.values.append(known)
        return code

    def encode(self, column: pa.Array, read: Callable[[Any], Any] = lambda value: value) -> Codes:
        """Codes of a column (rows,), each distinct entry read once with ``read``; null is read as None."""
        return self._encode(column, lambda entry: self.code(read(entry)))

    def encode_known(self, column: pa.Array, read: Callable[[Any], Any] = lambda value: value) -> Codes:
        """``encode``, with −1 where what is read is None."""

        def number(entry: Any) -> int:
            value = read(entry)
            return -1 if value is None else self.code(value)

        return self._encode(column, number)

    def _encode(self, column: pa.Array, number: Callable[[Any], int]) -> Codes:
        encoded = column.dictionary_encode()
        entries = [*encoded.dictionary.to_pylist(), None]
        indices = encoded.indices.fill_null(len(entries) - 1).to_numpy(zero_copy_only=False)
        used, first = np.unique(indices, return_index=True)
        codes = np.empty(len(entries), dtype=np.int64)
        for index in used[
            np.argsort(first)
        ].tolist():  # a dictionary has an order of its own, and unused entries
            codes[index] = number(entries[index])
        return np.asarray(codes[indices])


def integers(batch: pa.RecordBatch, name: str) -> Codes:
    """A column of whole numbers as an array (rows,)."""
    numbers: Codes = batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


@dataclass(frozen=True)
class FacetGroups:
    """The facet groups of all samples.

    ``code`` (m,) numbers each sample's group, ``values`` holds one mapping facet → value a group; groups are
    ordered by the first facet's values in order of appearance, then by the second's, and so on.
    """

    code: Codes
    values: list[dict[str, Any]]

    def texts(self) -> list[str]:
        """The groups' facet values as the ITEM_ROWS schema keeps them."""
        return [facets_text(group) for group in self.values]


def group(columns: Mapping[str, Codes], vocabularies: Mapping[str, Vocabulary], rows: int) -> FacetGroups:
    """Groups ``rows`` samples by their facets' codes, each of shape (rows,)."""
    code = np.zeros(rows, dtype=np.int64)
    picked = np.zeros((1 if rows else 0, 0), dtype=np.int64)
    facets = list(vocabularies)
    for facet in facets:
        width = max(len(vocabularies[facet].values), 1)
        distinct, code = np.unique(code * width + columns[facet], return_inverse=True)
        picked = np.column_stack([picked[distinct // width], distinct % width])
    decoded = [vocabularies[facet].values for facet in facets]
    values = [dict(zip(facets, map(getitem, decoded, row), strict=True)) for row in picked.tolist()]
    return FacetGroups(code=code.astype(np.int64, copy=False), values=values)


def facets_text(values: Mapping[str, Any]) -> str:
    """A group's facet values as a JSON object, facets in the order of the config."""
    return orjson.dumps(values).decode()


def parse_facets(text: str) -> dict[str, Any]:
    """The facet values of a row of ITEM_ROWS or RESULTS."""
    parsed: dict[str, Any] = orjson.loads(text)
    return parsed


def missing_facets(values: Mapping[str, Any]) -> list[str]:
    """The facets for which a group's rows have no value."""
    return [facet for facet, value in values.items() if value == UNKNOWN]


def facet_text(value: Any) -> str:
    """A facet's value as text, which no other value has: JSON, but a text stands as it is unless it reads
    like JSON.

    >>> facet_text(1), facet_text("1"), facet_text("one")
    ('1', '"1"', 'one')
    """
    if isinstance(value, str):
        try:
            orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def facet_words(text: str) -> str:
    """A facet's value, as text, for people: an empty one has a name, and one that reads like nothing, or like
    the word for all groups, has quotes.

    >>> facet_words(""), facet_words("all"), facet_words("algebra")
    ('(empty)', '"all"', 'algebra')
    """
    return json.dumps(text) if text == ALL or text.isspace() else text or "(empty)"


def facet_cell(values: Mapping[str, Any], name: str) -> str:
    """A group's value of a facet for people, in a table that has rows over all values of it, too."""
    return facet_words(facet_text(values[name])) if name in values else ALL


def plain_text(text: str) -> str:
    """What ``facet_text`` made of a value, without the quotes that tell a text from what it reads like.

    >>> plain_text('"1"'), plain_text("1")
    ('1', '1')
    """
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, str) else text


def facet_texts(values: Mapping[str, Any]) -> dict[str, str]:
    """The values of a group as text by facet; one without a value is left out. Names of models and prompts
    are texts always, and stand as they are."""
    return {
        name: str(value) if name in CELL_FACETS else facet_text(value)
        for name, value in values.items()
        if value is not None
    }
