"""Checks on the result table: scores without variance, and two filters that disagree about the same metric."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa

from tasks.reporting import report_numbers as numbers
from tasks.reporting.diagnostics import Diagnostic, DiagnosticOptions
from tasks.reporting.report_rows import ResultRow, result_rows


def result_findings(results: pa.Table, options: DiagnosticOptions) -> list[Diagnostic]:
    """Findings that the numbers alone show."""
    rows = [row for row in result_rows(results) if row.status == "ok" and row.value is not None]
    return [*_zero_variance(rows, options), *_format_gaps(rows, options)]


def _zero_variance(rows: Sequence[ResultRow], options: DiagnosticOptions) -> Iterator[Diagnostic]:
    for row in rows:
        # A Wilson or bootstrap interval has a width at 0 of 20; only the standard error says that nothing varies.
        constant = row.stderr == 0 or row.value in (0.0, 1.0) and row.ci_low in (row.value, None)
        if row.n_items >= options.min_samples and (constant or _all_alike(row)):
            yield Diagnostic(
                "zero_variance",
                "warning",
                f"{row.metric_key},{row.filter}: all {numbers.plural(row.n_items, 'item')} of {row.group} score "
                f"{numbers.number(row.value)}; the benchmark can't tell anything apart here, or the scoring is broken.",
                row.n_items,
            )


def _all_alike(row: ResultRow) -> bool:
    """A share of exactly 0 or 1 leaves no room for two different scores between 0 and 1."""
    shares = row.metric.startswith(("exact_match", "acc", "contains", "regex_match", "pass"))
    return shares and row.value in (0.0, 1.0)


def _format_gaps(rows: Sequence[ResultRow], options: DiagnosticOptions) -> Iterator[Diagnostic]:
    alike: defaultdict[tuple[str, ...], list[ResultRow]] = defaultdict(list)
    for row in rows:
        if row.metric.startswith("exact_match"):
            alike[row.benchmark, row.metric_key, row.group, row.label or ""].append(row)
    for group in alike.values():
        low, high = min(group, key=_value), max(group, key=_value)
        gap = _value(high) - _value(low)
        if gap > options.format_gap and low.n_items >= options.min_samples:
            yield Diagnostic(
                "format_gap",
                "note",
                f"{low.group}: {high.metric_key} is {numbers.number(gap)} higher with {high.filter} than with "
                f"{low.filter}; many answers are right in another format than {low.filter} asks for.",
                round(gap * low.n_items),
            )


def _value(row: ResultRow) -> float:
    return row.value if row.value is not None else float("nan")
