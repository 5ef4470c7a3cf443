"""Checks on the result table: two filters that disagree about the same metric."""

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa

from tasks.reporting import report_numbers as numbers
from tasks.reporting.diagnostics import Diagnostic, DiagnosticOptions
from tasks.reporting.report_rows import ResultRow, result_rows


def format_gaps(results: pa.Table, options: DiagnosticOptions) -> Iterator[Diagnostic]:
    """Exact matches that a lenient filter sees and a strict one does not: right answers in another format."""
    alike: defaultdict[tuple[str, ...], list[tuple[float, ResultRow]]] = defaultdict(list)
    for row in result_rows(results):
        if row.value is not None and row.metric == "exact_match":
            alike[row.benchmark, row.metric_key, row.group, row.label or ""].append((row.value, row))
    for group in alike.values():
        low, strict = min(group, key=lambda entry: entry[0])
        high, lenient = max(group, key=lambda entry: entry[0])
        if high - low > options.format_gap and strict.n_items >= options.min_samples:
            yield Diagnostic(
                "format_gap",
                "note",
                f"{strict.group}: {strict.metric_key} is {numbers.number(high - low)} higher with "
                f"{lenient.filter} than with {strict.filter}; many answers are right in another format than "
                f"{strict.filter} asks for.",
                round((high - low) * strict.n_items),
            )
