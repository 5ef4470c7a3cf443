"""Groups of results that a failed step took numbers from."""

from collections.abc import Collection, Mapping, Sequence
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


def failure_of(values: Mapping[str, Any], failed: Sequence[FailedPart]) -> str | None:
    """The error of the first failed part whose samples could have stood in this group of facet values."""
    for part in failed:
        shared = origin_facets(part.origin, list(values))
        if all(values[facet] == value for facet, value in shared.items()):
            return part.error
    return None


def rows_of_failures(
    pair: PairIdentity,
    failed: Sequence[FailedPart],
    facets: Sequence[str],
    present: Collection[tuple[str, str]],
) -> list[Row]:
    """Rows of RESULTS for failed parts of whose groups nothing is left: one a reduction × group."""
    known, grouped = {text for _, text in present}, [facet for facet in facets if facet != "label"]
    rows: dict[tuple[str, str], Row] = {}
    for part in failed:
        values = dict.fromkeys(grouped, UNKNOWN) | origin_facets(part.origin, grouped)
        text = facets_text(values)
        if text in known:
            continue
        for reduction in pair.metric.reductions:
            row = base_row(pair, reduction.name, None, text) | _NOTHING | {"error": part.error}
            rows.setdefault((reduction.name, text), row)
    return list(rows.values())


_NOTHING = {
    "stderr_method": "none",
    "n_items": 0,
    "n_samples": 0,
    "n_scored": 0,
    "n_unscored": 0,
    "status": "failed",
}
