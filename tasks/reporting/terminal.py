"""How a run's results look in a terminal: the table, findings, failed pairs and what to do about them.

Rich leaves colours out by itself where the output is not a terminal; ``console`` also stops it from folding
the table to 80 columns there, so that a log file or a pipe gets one line a number.
"""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

import pyarrow as pa
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from metrics.errors import ASCII
from tasks.reduction.facets import facet_cell
from tasks.reporting import numbers
from tasks.reporting.diagnostics.findings import SHOWN_OF_A_KIND, Diagnostic, grouped
from tasks.reporting.numbers import RATING_COLUMNS, rating_cells, rating_effects, strongest_first
from tasks.reporting.streams import safe_console
from tasks.reporting.tables import Column, FittedTable, one_line
from tasks.reporting.view import ResultRow, facet_names, failures, result_rows

DOUBLINGS = 4
"""Rows at most that say what twice the samples or items would give; the report says it of all."""
SEVERITY_STYLE = {"error": "bold red", "warning": "yellow", "note": "cyan"}


def console(file: TextIO | None = None) -> Console:
    """A console for ``file`` (standard output): colours on a terminal; elsewhere plain text of any width."""
    file = file or sys.stdout
    if file.isatty():
        return safe_console(file, highlight=False)
    return safe_console(file, highlight=False, force_terminal=False, color_system=None, width=1000)


@dataclass(frozen=True)
class ResultsTable:
    """A rich renderable; see `results_table`."""

    rows: Sequence[ResultRow]
    title: str | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table of numbers, then the failed pairs."""
        computed = [row for row in self.rows if row.status != "failed"]
        if self.title:
            yield Text(self.title, style="bold")
        if computed:
            yield _table(computed)
            yield from _doublings(computed, ascii_only=options.ascii_only)
        yield from _failures(self.rows, ascii_only=options.ascii_only)
        if not self.rows:
            yield Text("No results.", style="yellow")


def results_table(results: pa.Table, *, title: str | None = None) -> ResultsTable:
    """The numbers of a run (RESULTS schema) as a rich renderable, failed pairs last.

    A line holds the direction of the metric (↑ higher is better), value ± standard error, the confidence
    interval, items, samples, how many of them are unscored, and which share of their answers was cut off,
    empty or refused. Columns that would be the same on every line (one prompt, no label) are left out.
    A failed pair is shown with its reason.
    """
    return ResultsTable(result_rows(results), title)


def ratings_tables(ratings: Sequence[Mapping[str, Any]]) -> Iterator[FittedTable | Text]:
    """The strengths of models that an arena compared, a table a prompt and filter, strongest first; below it
    what place and length are worth."""
    for rated in ratings:
        name = f"Strengths, prompt {rated['prompt_template']}, filter {rated['filter']} (log odds)"
        yield Text(name, style="bold")
        columns = [
            Column(header, right=header not in ("Model", "Note"), second=header in SECOND)
            for header in RATING_COLUMNS
        ]
        yield FittedTable(columns, [rating_cells(row) for row in strongest_first(rated)])
        said = [*rating_effects(rated), *([rated["warning"]] if rated["warning"] else [])]
        yield Text("; ".join(said), style="dim")


def diagnostics_text(diagnostics: Sequence[Diagnostic]) -> Text:
    """One paragraph a diagnostic, the gravest first, each with an example; of many of one kind the first few,
    and how many more there are. Empty text without diagnostics."""
    text = Text()
    for group in grouped(diagnostics):
        for diagnostic in group[:SHOWN_OF_A_KIND]:
            text.append(f"{diagnostic.severity}: ", style=SEVERITY_STYLE[diagnostic.severity])
            text.append(f"{one_line(diagnostic.message)}\n")
            for example in diagnostic.examples[:1]:
                where = one_line(", ".join(filter(None, (example.name, example.model_name))))
                asked = f" “{_shortened(example.question)}”" if example.question else ""
                text.append(f"    e.g. {where}{asked}: {_shortened(example.text)}\n", style="dim")
        if (more := len(group) - SHOWN_OF_A_KIND) > 0:
            text.append(f"    and {more} more of this kind, which the report lists\n", style="dim")
    return text


def next_command(manifest: Mapping[str, Any], command: Sequence[str]) -> str:
    """The one shell command that makes up for what failed.

    The same command computes what is missing and asks again what got no answer. Refusals are answers, kept
    like any other: where judges refused and nothing else failed, only ``--refresh failed`` asks them again.
    """
    accounts = [
        account
        for role in ("models", "judges")
        for account in (manifest.get(role) or {}).values()
        if isinstance(account, Mapping)
    ]
    settled = sum(account.get("refused") or account.get("model_errors") or 0 for account in accounts)
    open_ones = sum(account.get("failed") or 0 for account in accounts)
    again = ["--refresh", "failed"] if settled and not open_ones and manifest.get("over_budget") else []
    return shlex.join([*command, *(part for part in again if part not in command)])


def _table(rows: Sequence[ResultRow]) -> FittedTable:
    columns = _columns(rows)
    assert all(len(cells) == len(rows) for cells in columns.values())
    return FittedTable(
        [
            Column(
                name.removeprefix("facet:"),
                right=name not in NAMES_LEFT and not name.startswith("facet:"),
                second=name in SECOND,
            )
            for name in columns
        ],
        list(zip(*columns.values(), strict=True)),
        ["dim" if row.status == "unscored" else None for row in rows],
    )


NAMES_LEFT = frozenset({"Benchmark", "Model", "Prompt", "Filter", "Metric", "Label", "Note", ""})
SECOND = frozenset({"Interval", "Note", "Samples", "Unscored"})
"""Columns on a line below their row where a terminal is narrow."""


def _columns(rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """Header → cells; optional columns only where they tell lines apart."""
    named = {
        "Benchmark": [row.benchmark for row in rows],
        "Model": [row.model_name or "all" for row in rows],
        "Prompt": [row.prompt_template or "all" for row in rows],
        **{
            f"facet:{name}": [facet_cell(row.other_facets, name) for row in rows]
            for name in facet_names(rows)
        },
        "Label": [row.label or numbers.MISSING for row in rows],
    }
    columns = {name: cells for name, cells in named.items() if name == "Model" or len(set(cells)) > 1}
    columns["Filter"] = [row.filter for row in rows]
    columns["Metric"] = [row.metric_key for row in rows]
    columns[""] = [row.arrow for row in rows]
    columns["Value"] = [numbers.number(row.value) for row in rows]
    columns["± Stderr"] = [f"± {_stderr(row)}" if row.stderr is not None else "" for row in rows]
    columns["Interval"] = [numbers.interval(row.ci_low, row.ci_high, like=row.value) for row in rows]
    columns["Items"] = [numbers.count(row.n_items) for row in rows]
    if any(row.n_samples != row.n_items for row in rows):
        columns["Samples"] = [numbers.count(row.n_samples) for row in rows]
    columns["Unscored"] = [numbers.count(row.n_unscored) for row in rows]
    for name in dict.fromkeys(name for row in rows for name in row.outcome_counts):
        counts = [row.outcome_counts.get(name, 0) for row in rows]
        columns[name] = [numbers.share(n, row.n_samples) for n, row in zip(counts, rows, strict=True)]
    if any(row.error for row in rows):
        columns["Note"] = [_shortened(row.error or "") for row in rows]
    return columns


def _stderr(row: ResultRow) -> str:
    return numbers.number(row.stderr, like=row.value)


def _doublings(rows: Sequence[ResultRow], ascii_only: bool) -> RenderResult:
    """What more samples or items would give, for the first rows whose repeats tell."""
    telling = [row for row in rows if row.doubling is not None]
    for row in telling[:DOUBLINGS]:
        group = "" if len(telling) == 1 else f", {row.group}"
        yield Text(
            _plain(f"{row.metric_key}, {row.filter}{one_line(group)}: {row.doubling}", ascii_only),
            style="dim",
        )


def _failures(rows: Sequence[ResultRow], ascii_only: bool) -> RenderResult:
    whole, groups = failures(rows)
    counted = [
        numbers.plural(len(found), name) for found, name in ((whole, "pair"), (groups, "group")) if found
    ]
    if counted:
        yield Text(f"\n{' and '.join(counted)} failed:", style="bold red")
    for row in [*whole, *groups]:
        text = Text("  ")
        name = row.result_name if row in groups else row.metric
        text.append(_plain(f"{row.filter} × {name}", ascii_only), style="bold")
        if row in groups:
            text.append(_plain(f" of {one_line(row.group)}", ascii_only))
        text.append(f": {_shortened(row.error or 'no reason was recorded')}")
        yield text


def _plain(text: str, ascii_only: bool) -> str:
    return text.translate(ASCII) if ascii_only else text


def _shortened(text: str) -> str:
    """Text from elsewhere on one line, without the control characters that a terminal would obey."""
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return line if len(line) <= 200 else f"{line[:199]}…"
