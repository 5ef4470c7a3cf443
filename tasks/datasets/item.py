"""The item: one row of a dataset, as every stage knows it, and the kinds of request made about it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

RequestKind = Literal["generate", "loglikelihood", "rolling"]
"""What is asked of a model about an item: a text, a continuation's log-likelihood, or a document's."""


@dataclass(frozen=True)
class Item:
    """One row of a dataset.

    ``data`` holds the row's fields by name, ``ground_truth`` any JSON value (None: there is none),
    ``doc_id`` the position in the dataset from 0, ``cluster`` the text of the cluster field's value,
    ``digest`` that of the content, where it was made already.
    """

    item_id: str
    doc_id: int
    data: Mapping[str, Any]
    ground_truth: Any = None
    cluster: str | None = None
    digest: str | None = field(default=None, compare=False)
