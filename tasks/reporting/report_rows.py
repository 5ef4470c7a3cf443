"""Rows of the RESULTS table with the names by which people call them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

ARROWS = {True: "↑", False: "↓", None: ""}
MEANING = {True: "higher is better", False: "lower is better", None: ""}
OWN_FACETS = ("model_name", "prompt_template")


@dataclass(frozen=True)
class ResultRow:
    """One number of a run: a (filter, metric) pair, reduced and aggregated within one facet group.

    Fields are those of the RESULTS schema; ``facets`` is decoded.
    """

    benchmark: str
    model_name: str | None
    prompt_template: str | None
    filter: str
    metric: str
    reduction: str
    label: str | None
    facets: Mapping[str, Any]
    value: float | None
    stderr: float | None
    stderr_method: str | None
    ci_low: float | None
    ci_high: float | None
    n_items: int
    n_samples: int
    n_scored: int
    n_unscored: int
    higher_is_better: bool | None
    status: str
    error: str | None
    signature: str | None

    @property
    def pair(self) -> str:
        """``"metric,filter"``: what is scheduled, cached and retried as one."""
        return f"{self.metric},{self.filter}"

    @property
    def metric_key(self) -> str:
        """``"exact_match"`` for the mean over repeats, ``"pass@8(exact_match)"`` for other reductions."""
        return self.metric if self.reduction in ("", "mean") else f"{self.reduction}({self.metric})"

    @property
    def arrow(self) -> str:
        """Which way is better: ↑, ↓ or nothing."""
        return ARROWS[self.higher_is_better]

    @cached_property
    def other_facets(self) -> dict[str, Any]:
        """Facets beside model and prompt, which have columns of their own."""
        return {name: value for name, value in self.facets.items() if name not in OWN_FACETS}

    @property
    def group(self) -> str:
        """The facet group in words: ``"gpt · plain · subject=algebra"``."""
        parts = (text if name in OWN_FACETS else f"{name}={text}" for name, text in self.group_parts.items())
        return " · ".join(parts) or "all"

    @cached_property
    def group_parts(self) -> dict[str, str]:
        """The facet group's values by facet, as text."""
        own = {"model_name": self.model_name, "prompt_template": self.prompt_template}
        others = {name: facet_text(value) for name, value in self.other_facets.items()}
        return {name: value for name, value in own.items() if value} | others


def result_rows(results: pa.Table) -> list[ResultRow]:
    """Rows of a RESULTS table in order, failed pairs last."""
    names = [name for name in ResultRow.__dataclass_fields__ if name != "facets"]
    rows = [
        ResultRow(facets=json.loads(row["facets"] or "{}"), **{name: row[name] for name in names})
        for row in results.to_pylist()
    ]
    return sorted(rows, key=lambda row: row.status == "failed")


def facet_names(rows: Sequence[ResultRow]) -> list[str]:
    """Names of the facets beside model and prompt, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row.other_facets))


def facet_text(value: Any) -> str:
    """A facet's value as text; JSON for anything but strings."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
