"""Groups of results that a failed step took numbers from."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.reduction.facets import facets_text
from tasks.reduction.paths import UNKNOWN, locate, resolve
from tasks.reduction.records import FailedPart, Origin, PairIdentity
from tasks.reduction.rows import Row, base_row


def origin_facets(origin: Origin, facets: Sequence[str]) -> dict[str, Any]:
    """The values of those facets that all samples of the origin share; the others are left out."""
    values: dict[str, Any] = {}
    for facet in facets:
        source, path = locate(facet)
        if source == "origin":
            values[facet] = getattr(origin, path)
        elif source == "metadata" and (value := resolve(origin.shared_metadata, path)) is not None:
            values[facet] = value
    return values


def failure_of(values: Mapping[str, Any], label: str | None, failed: Sequence[FailedPart]) -> str | None:
    """The error of the first failed part whose samples could have stood in the group of these values."""
    for part in failed:
        shared = origin_facets(part.origin, list(values))
        its_label = part.label is None or part.label == label
        if its_label and all(values[facet] == value for facet, value in shared.items()):
            return part.error
    return None


def rows_of_failures(
    pair: PairIdentity, failed: Sequence[FailedPart], facets: Sequence[str], present: Sequence[Row]
) -> list[Row]:
    """Rows of RESULTS for failed parts of whose groups nothing is left: one a reduction × group × label.

    ``present`` are the rows of the groups of which something is left.
    """
    grouped = [facet for facet in facets if facet != "label"]
    known = {(row["facets"], label) for row in present for label in (row["label"], None)}
    rows: dict[tuple[str, str, str | None], Row] = {}
    for part in failed:
        values = dict.fromkeys(grouped, UNKNOWN) | origin_facets(part.origin, grouped)
        text = facets_text(values)
        if (text, part.label) in known:
            continue
        for reduction in pair.metric.reductions:
            row = base_row(pair, reduction.name, part.label, text) | _NOTHING | {"error": part.error}
            rows.setdefault((reduction.name, text, part.label), row)
    return list(rows.values())


_NOTHING = {
    "stderr_method": "none",
    "n_items": 0,
    "n_samples": 0,
    "n_scored": 0,
    "n_unscored": 0,
    "status": "failed",
}
