"""What the report's template shows: headline facts, plots, tables and provenance as plain records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from tasks.reporting import report_numbers as numbers
from tasks.reporting.diagnostics import Diagnostic, Example
from tasks.reporting.report_curves import curve_rows, curves
from tasks.reporting.report_plots import forests
from tasks.reporting.report_provenance import accounts, costs, provenance, run_line, steps
from tasks.reporting.report_rows import ResultRow, facet_names, facet_text
from tasks.reporting.report_usage import Usage
from tasks.reporting.terminal import retry_command

PANELS_OPEN: Final = 8  # further plots are folded away


@dataclass(frozen=True)
class Fact:
    """A number at the head of the page; ``link`` leads to the samples it counts."""

    name: str
    value: str
    note: str = ""
    link: str | None = None
    alarming: bool = False


def page_context(
    manifest: Mapping[str, Any],
    rows: Sequence[ResultRow],
    diagnostics: Sequence[Diagnostic],
    usage: Usage,
    statement: str | None,
) -> dict[str, Any]:
    """The template's variables."""
    computed = [row for row in rows if row.status != "failed"]
    failed = {row.pair: row for row in rows if row.status == "failed"}
    on_curves = curve_rows(computed)
    plots = forests([row for row in computed if row not in on_curves])
    folded = plots[PANELS_OPEN:] + forests(on_curves)
    return {
        "title": benchmark_name(manifest, rows),
        "run": run_line(manifest),
        "facts": facts(manifest, rows, usage),
        "rows": rows,
        "failed": list(failed.values()),
        "command": _command(manifest),
        "facet_names": facet_names(rows),
        "facet_text": facet_text,
        "show": _optional_columns(rows),
        "plots": plots[:PANELS_OPEN],
        "more_plots": folded,
        "curves": curves(computed),
        "diagnostics": diagnostics,
        "usage": usage,
        "costs": costs(manifest),
        "accounts": accounts(manifest),
        "steps": steps(manifest),
        "provenance": provenance(manifest),
        "manifest_text": json.dumps(manifest, indent=2, ensure_ascii=False, default=str),
        "statement": statement,
        "unscored_link": unscored_link,
        "example_link": example_link,
        "retry": retry_command,
        "results_json": {
            "rows": [_pivot_record(row) for row in computed],
            "lower_is_better": sorted({row.pair for row in rows if row.higher_is_better is False}),
        },
    }


def benchmark_name(manifest: Mapping[str, Any], rows: Sequence[ResultRow]) -> str:
    """The benchmark's name, or the names of several."""
    names = dict.fromkeys(row.benchmark for row in rows)
    return ", ".join(names) or str(manifest.get("benchmark") or "Evaluation")


def facts(manifest: Mapping[str, Any], rows: Sequence[ResultRow], usage: Usage) -> list[Fact]:
    """The numbers at the head of the page."""
    models = len(usage.models)
    items = max((row.n_items for row in rows), default=0)
    failed_pairs = len({row.pair for row in rows if row.status == "failed"})
    unscored = sum(row.n_unscored for row in rows if row.status != "failed")
    found = [
        Fact("items", numbers.count(items), f"asked of {numbers.plural(models, 'model')}"),
        Fact("samples", numbers.count(usage.samples), link="#samples"),
        Fact(
            "without an answer",
            numbers.count(usage.failed),
            "failed requests" if usage.failed else "every request succeeded",
            _samples_link(outcome="failed") if usage.failed else None,
            usage.failed > 0,
        ),
        Fact(
            "unscored",
            numbers.count(unscored),
            "over all pairs",
            _samples_link(outcome="unscored") if unscored else None,
            unscored > 0,
        ),
        Fact("failed pairs", numbers.count(failed_pairs), link="#failed", alarming=True)
        if failed_pairs
        else None,
        _requests_fact(manifest.get("requests")),
        _wall_fact(manifest),
    ]
    return [fact for fact in found if fact]


def unscored_link(row: ResultRow) -> str:
    """The address, within the page, of a row's unscored samples."""
    return _samples_link(
        pair=row.pair, outcome="unscored", **_facet_query(row.model_name, row.prompt_template)
    )


def example_link(example: Example) -> str:
    """The address, within the page, of one sample."""
    return _samples_link(item=example.item_id, **_facet_query(example.model_name, example.prompt_template))


def _requests_fact(requests: Any) -> Fact | None:
    if not isinstance(requests, Mapping):
        return None
    sent, cached = requests.get("sent") or 0, requests.get("cached") or 0
    return Fact(
        "requests sent", numbers.count(sent), f"{numbers.count(cached) if cached else 'none'} from the cache"
    )


def _wall_fact(manifest: Mapping[str, Any]) -> Fact | None:
    seconds = next(
        (
            manifest[key]
            for key in ("wall_time", "wall_seconds", "seconds")
            if isinstance(manifest.get(key), int | float)
        ),
        None,
    )
    return None if seconds is None else Fact("wall time", numbers.duration(seconds))


def _optional_columns(rows: Sequence[ResultRow]) -> frozenset[str]:
    """Columns that tell rows apart; the others would say the same on every line."""
    told: dict[str, set[Any]] = {
        "benchmark": {row.benchmark for row in rows},
        "prompt_template": {row.prompt_template for row in rows},
        "label": {row.label for row in rows},
        "n_samples": {row.n_samples - row.n_items for row in rows} | {0},
        "note": {row.error for row in rows if row.status != "failed"} | {None},
    }
    return frozenset(name for name, values in told.items() if len(values) > 1)


def _pivot_record(row: ResultRow) -> dict[str, Any]:
    """A row as the facet table of the page reads it."""
    facets = {"Model": row.model_name, "Prompt": row.prompt_template, **row.other_facets}
    return {
        "name": f"{row.label}: {row.metric_key}, {row.filter}"
        if row.label
        else f"{row.metric_key}, {row.filter}",
        "facets": {name: facet_text(value) for name, value in facets.items() if value is not None},
        "value": row.value,
        "text": numbers.value_with_error(row.value, row.stderr),
        "items": row.n_items,
        "higher": row.higher_is_better,
    }


def _command(manifest: Mapping[str, Any]) -> list[str]:
    command = manifest.get("command")
    return list(map(str, command)) if isinstance(command, list) else ["python", "-m", "flows.eval"]


def _facet_query(model: str | None, prompt: str | None) -> dict[str, str]:
    query = {"f.Model": model, "f.Prompt": prompt}
    return {name: value for name, value in query.items() if value}


def _samples_link(**query: str) -> str:
    return f"#samples?{urlencode(query)}"
