"""A night's scores as a terminal shows them: every number with its interval, the baseline's number, and the
gate's verdict."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.text import Text

from flows.compare.runs import DOUBT, STYLES, change_line
from flows.suite.names import is_several, risen_outcomes
from tasks.comparison.matching import GroupKey, result_key
from tasks.comparison.runs import Change, ComparedRun, OutcomeChange, key_with_model
from tasks.reduction.facets import facet_words
from tasks.reporting import numbers
from tasks.reporting.tables import Column, FittedTable, one_line

COLUMNS = (
    *map(Column, ("Benchmark", "Group", "Filter", "Metric")),
    Column("Value", right=True),
    Column("Interval", right=True, second=True),
    Column("Baseline", right=True),
    Column("Difference", right=True),
    Column("Its interval", right=True, second=True),
    Column("Verdict"),
)
NOTHING: Final[Mapping[str, Any]] = {"pairs": (), "changes": (), "outcomes": ()}
"""The comparison of a night without a baseline."""


def scores_table(runs: Sequence[ComparedRun], pairs: Sequence[Mapping[str, Any]]) -> FittedTable:
    """The result rows of a night's runs, each beside its pair of the comparison, if it is in one.

    ``pairs`` are those of `comparison_document`. A pair that failed says so in the place of its verdict.
    """
    compared = {key_of(pair): pair for pair in pairs if pair["candidate_facets"] is not None}
    found = [(key_with_model(result_key(row), run), row) for run in runs for row in run.results]
    return FittedTable(COLUMNS, [_cells(key, row, compared.get(key, {})) for key, row in found])


def night_sentences(runs: Sequence[ComparedRun], comparison: Mapping[str, Any]) -> Iterator[str]:
    """Why pairs failed or did not pass, and what changed besides the scores; a line each."""
    return map(one_line, _sentences(runs, comparison))


def _sentences(runs: Sequence[ComparedRun], comparison: Mapping[str, Any]) -> Iterator[str]:
    pairs, rows = comparison["pairs"], (row for run in runs for row in run.results)
    several = is_several(row["benchmark"] for row in rows) or is_several(pair["benchmark"] for pair in pairs)
    for run in runs:
        of = f"{run.results[0]['benchmark']} " if several and run.results else ""
        models = ", ".join(run.manifest.get("models") or ()) if len(runs) > 1 else ""
        whose = f" of {models}" if models else ""
        yield from (
            f"failed: {of}{name} × {metric}{whose}: {why}"
            for (name, metric), why in run.failed_pairs().items()
        )
    for pair in pairs:
        if pair["reason"]:
            of = f"{pair['benchmark']} " if several else ""
            yield f"{of}{pair['pair']}{_in_brackets(pair['facets'])}: {pair['reason']}"
    yield from risen_outcomes(map(_outcome_change, comparison["outcomes"]), several)
    yield from (change_line(Change(**change)) for change in comparison["changes"] if change["kind"] in DOUBT)


def _outcome_change(told: Mapping[str, Any]) -> OutcomeChange:
    """A change of outcomes as `comparison_document` has it."""
    key = GroupKey(told["benchmark"], "", "", "", None, tuple(told["facets"].items()))
    names = ("outcome", "base", "candidate", "n_items", "p_value", "risen")
    own: dict[str, Any] = {name: math.nan if told[name] is None else told[name] for name in names}
    return OutcomeChange(key=key, **own)


def _in_brackets(facets: Mapping[str, str]) -> str:
    return f" ({', '.join(map(facet_words, facets.values()))})" if facets else ""


def key_of(pair: Mapping[str, Any]) -> GroupKey:
    """The candidate's group in a pair of `comparison_document`."""
    facets = tuple(sorted(pair["candidate_facets"].items()))
    return GroupKey(
        pair["candidate_benchmark"], pair["filter"], pair["metric"], pair["reduction"], pair["label"], facets
    )


def _cells(key: GroupKey, row: Mapping[str, Any], pair: Mapping[str, Any]) -> list[Text | str]:
    value, verdict = row["value"], pair.get("verdict") or ""
    failed = row["status"] == "failed"
    return [
        key.benchmark,
        " ".join(key.facet_words + ([key.label] if key.label else [])),
        key.filter,
        key.pair.removesuffix(f",{key.filter}"),
        numbers.number(value),
        numbers.interval(row["ci_low"], row["ci_high"], like=value),
        numbers.number(pair.get("base"), like=value),
        numbers.signed(pair.get("difference"), like=value),
        numbers.interval(pair.get("ci_low"), pair.get("ci_high"), like=value),
        Text("failed", style="bold red") if failed else Text(verdict, style=STYLES.get(verdict, "")),
    ]
