"""``python -m flows.history "SELECT …"``, ``--prune`` or ``--compact``: SQL over all runs of a store, and its
upkeep."""

import csv
import math
import os
import sys
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from flows.command_line import App, examples, print_json, warn
from metrics.errors import ConfigError
from metrics.json_values import with_leaves
from tasks.history.layout import Skipped
from tasks.history.query import QueryResult, compact, query
from tasks.store.home import default_store
from tasks.store.storage import Store

HELP = """Lists the latest runs, answers SQL over all runs of a store, or removes what no run needs.

Views: runs, results, items, scores, samples (DESCRIBE results lists the columns). Read-only.
"""
EXAMPLE = (
    "SELECT started, metric, filter, value, stderr FROM results JOIN runs USING (run_id) ORDER BY started"
)

if TYPE_CHECKING:
    from tasks.history.prune import Pruned, Retention
    from tasks.reporting.overview import Glance

LATEST: Final = 20
"""Runs that are listed, unless another number is asked for."""
MOST_MODELS: Final = 12
MODELS_NAMED: Final = 5
"""Models of a run that are listed where it has more than MOST_MODELS."""
app = App()


@app.command(
    help=HELP,
    epilog=examples(
        "python -m flows.history",
        'python -m flows.history "SELECT run_id, metric, value FROM results"',
        "python -m flows.history --prune --keep 3 --dry-run",
    ),
)
def history_command(
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help=f'For example "{EXAMPLE}"')] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URI", help="The store; default: the project's own")
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help=f"Without SQL: how many of the latest runs are listed; default: {LATEST}"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="With SQL: the rows as CSV on stdout")] = False,
    remove: Annotated[
        bool, typer.Option("--prune", help="Remove artifacts that no kept run refers to")
    ] = False,
    anew: Annotated[
        bool, typer.Option("--compact", help="Write the history's few files again from its records")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="With --prune: forget all but the N newest runs of each benchmark × model"),
    ] = None,
    retention: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --prune: a YAML file with keep, results, answers, logs"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --prune: say what would go, remove nothing")
    ] = False,
) -> None:
    """Answers a query or prunes; raises NightjarError for a query or arguments that can't be used."""
    opened = Store(store or default_store())
    opened.check_readable()
    if [remove, anew, sql is not None].count(True) > 1:
        raise ConfigError("expected either a SQL query or --prune or --compact; for example:\n  " + EXAMPLE)
    if not remove and (keep is not None or retention is not None or dry_run):
        raise ConfigError("--keep, --retention and --dry-run need --prune: add it")
    if keep is not None and retention is not None:
        raise ConfigError(
            "--keep and --retention were both given; name one of them, a retention file has keep"
        )
    if as_csv and as_json:
        raise ConfigError("--csv and --json were both given; name one of them")
    if as_csv and sql is None:
        raise ConfigError("--csv needs a SQL query; for example:\n  " + EXAMPLE)
    if limit is not None and (sql is not None or remove or anew):
        instead = "leave it out" if sql is None else f"write LIMIT {limit} into the query"
        raise ConfigError(f"--limit is of the latest runs; {instead}")
    if sql is not None:
        found = query(opened, sql)
        warn_of(found.skipped)
        print_csv(found) if as_csv else print_rows(found, as_json)
        return
    if not remove and not anew:
        from tasks.reporting.overview import glances

        latest = glances(opened, limit or LATEST)
        warn_of(latest.skipped)
        print_latest(latest.runs, as_json)
        return
    if anew:
        runs, skipped = compact(opened, anew=True)
        warn_of(skipped)
        print_json({"runs": runs}) if as_json else print(f"{runs} runs compacted")
        return
    from tasks.history.prune import EVERYTHING, prune_all
    from tasks.reporting.overview import renew_index
    from tasks.store.home import results_folder

    kept = (
        load_retention(retention) if retention is not None else EVERYTHING.model_copy(update={"keep": keep})
    )
    pruned = prune_all(opened, kept, dry_run)
    if not dry_run:
        renew_index(opened, results_folder())
    print_pruning(pruned, dry_run, as_json)


def load_retention(path: Path) -> "Retention":
    """Reads a retention file; raises ConfigError, one line for each thing that is wrong."""
    from flows.config.errors import validated
    from flows.config.source import read_yaml
    from tasks.history.prune import Retention

    source = read_yaml(path)
    return validated(Retention, source, source.data)


def warn_of(skipped: Iterable[Skipped]) -> None:
    """Names on stderr the records that nobody can read."""
    for record in skipped:
        warn(str(record))


def print_latest(runs: Sequence["Glance"], as_json: bool) -> None:
    """Prints the runs, the newest first: when, name, headline numbers, what was changed, where they are."""
    if as_json:
        print_json([with_leaves(run.as_dict(), _told_apart, str) for run in runs])
        return
    from rich.padding import Padding
    from rich.text import Text

    from tasks.reporting.numbers import moment
    from tasks.reporting.terminal import console

    out = console()
    if not runs:
        out.print("no run yet: python -m flows.eval CONFIG makes one")
    for run in runs:
        status = "" if run.status == "ok" else f"  {run.status}"
        out.print(Text.assemble((moment(run.started) or "", "dim"), "  ", (run.name, "bold"), status))
        told = _numbers_of(run)
        told += [run.stopped] if run.stopped else []
        told += [f"changed: {', '.join(run.changed)}"] if run.changed else []
        if run.costs:
            paid = ", ".join(f"{place} {cost:.4g}" for place, cost in run.costs.items())
            told.append(f"cost: {paid}" + (f" {run.currency}" if run.currency else ""))
        if run.unpriced:
            told.append(f"unpriced: {', '.join(run.unpriced)}")
        told += [_path_of(run)] if run.output else []
        for line in told:
            out.print(Padding(Text(line, overflow="fold"), (0, 0, 0, 4), expand=False))


def _numbers_of(run: "Glance") -> list[str]:
    """A line a model, and a prompt where there are several; of many the best ones."""
    scores = list(run.scores)
    if len(scores) > MOST_MODELS:
        lower = scores[0].higher_is_better is False
        scores = sorted(scores, key=lambda score: score.value, reverse=not lower)[:MODELS_NAMED]
    several = len({score.prompt for score in run.scores}) > 1
    told = [
        f"{score.model}{f' · {score.prompt}' if several else ''}: {score.pair} {score.text} "
        f"({', '.join(filter(None, (f'{score.n_items} items', score.scored)))})"
        for score in scores
    ]
    left_out = len(run.scores) - len(scores)
    return told + ([f"and {left_out} more; these are the best"] if left_out else [])


def _path_of(run: "Glance") -> str:
    """Where the run's report is, from here where that is shorter."""
    report = Path(str(run.output)) / "report.html"
    near = os.path.relpath(report)
    return near if len(near) < len(str(report)) else str(report)


def print_rows(found: QueryResult, as_json: bool) -> None:
    """Prints the rows: a table, or a JSON list of objects."""
    if as_json:
        rows = (dict(zip(found.columns, row, strict=True)) for row in found.rows)
        print_json(with_leaves(list(rows), _told_apart, str), default=_json_value)
        return
    from tasks.reporting.numbers import plural
    from tasks.reporting.tables import Column, FittedTable
    from tasks.reporting.terminal import console

    console().print(FittedTable([*map(Column, found.columns)], [[*map(_cell, row)] for row in found.rows]))
    console().print(plural(len(found.rows), "row"))


def print_csv(found: QueryResult) -> None:
    """Prints the rows as CSV. A text that a spreadsheet would run as a formula begins with an apostrophe."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(map(_no_formula, found.columns))
    writer.writerows(map(_no_formula, row) for row in found.rows)


def _no_formula(value: Any) -> Any:
    """What a cell of CSV holds.

    >>> _no_formula("=1+1"), _no_formula("-x"), _no_formula(-1.5), _no_formula(None)
    ("'=1+1", "'-x", -1.5, None)
    """
    is_formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if is_formula else value


def print_pruning(pruned: "Pruned", dry_run: bool, as_json: bool) -> None:
    """Says what was removed, or would be."""
    pruning, leftovers = pruned.pruning, pruned.leftovers
    files = [(entry.name, entry.bytes) for entry in pruning.artifacts]
    files += [(entry.name, entry.bytes) for entry in pruning.answers]
    paths = [str(path) for path in (*leftovers.folders, *leftovers.logs)]
    if as_json:
        removed = [{"name": name, "bytes": size} for name, size in files]
        document = {"dry_run": dry_run, "forgotten": pruning.runs, "removed": removed, "bytes": pruned.bytes}
        print_json(document | {"kept": pruning.kept, "folders": paths, "cut": list(map(str, leftovers.cut))})
        return
    verb = "would remove" if dry_run else "removed"
    for run_id in pruning.runs:
        print(f"{'would forget' if dry_run else 'forgot'} run {run_id} (its rows stay in the history)")
    for name, size in files:
        print(f"{verb} {name} ({size:,} bytes)")
    for path in paths:
        print(f"{verb} {path}")
    for log in leftovers.cut:
        print(f"{'would cut' if dry_run else 'cut'} {log}")
    print(f"{verb} {pruned.summary}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _told_apart(value: Any) -> Any:
    """A number that JSON has no word for as its text; null stays null."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _json_value(value: Any) -> Any:
    """What JSON has no word for (orjson itself writes NaN as null and dates as ISO 8601)."""
    return float(value) if isinstance(value, Decimal) else str(value)


main = app.main

if __name__ == "__main__":
    main()
