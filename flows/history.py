"""``python -m flows.history "SELECT …"`` or ``--prune``: SQL over all runs of a store, and pruning it."""

import json
from decimal import Decimal
from typing import Annotated, Any

import orjson
import typer

from metrics.errors import NightjarError
from tasks.history.prune import Pruning, plan_pruning, prune
from tasks.history.query import QueryResult, query
from tasks.store.home import default_store
from tasks.store.storage import Store

HELP = """Answers SQL over all runs of a store, or removes what no run needs.

Views: runs, results, items, scores, samples (DESCRIBE results lists the columns). Read-only.
"""
EXAMPLE = (
    "SELECT started, metric, filter, value, stderr FROM results JOIN runs USING (run_id) ORDER BY started"
)

app = typer.Typer(add_completion=False)


@app.command(help=HELP)
def main(
    sql: Annotated[str | None, typer.Argument(metavar="SQL", help=f'For example "{EXAMPLE}"')] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URI", help="The store; default: the project's own")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output")] = False,
    remove: Annotated[
        bool, typer.Option("--prune", help="Remove artifacts that no kept run refers to")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="With --prune: forget all but the N newest runs of each benchmark"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --prune: say what would go, remove nothing")
    ] = False,
) -> None:
    """Runs the command; exits with 2 for a query or arguments that can't be used."""
    try:
        opened = Store(store or default_store())
        opened.check_readable()
        if remove == (sql is not None):
            raise NightjarError("expected either a SQL query or --prune; for example:\n  " + EXAMPLE)
        if not remove and (keep is not None or dry_run):
            raise NightjarError("--keep and --dry-run belong to --prune")
        if sql is not None:
            show_answer(query(opened, sql), as_json)
        else:
            pruning = plan_pruning(opened, keep)
            if not dry_run:
                prune(opened, pruning)
            show_pruning(pruning, dry_run, as_json)
    except NightjarError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def show_answer(answer: QueryResult, as_json: bool) -> None:
    """Prints the rows: a table, or a JSON list of objects."""
    if as_json:
        rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
        print(orjson.dumps(rows, default=_plain).decode())
        return
    from rich import box
    from rich.table import Table

    from tasks.reporting.terminal import console

    table = Table(*answer.columns, box=box.SIMPLE_HEAD)
    for row in answer.rows:
        table.add_row(*map(_cell, row))
    console().print(table)
    console().print(f"{len(answer.rows)} rows")


def show_pruning(pruning: Pruning, dry_run: bool, as_json: bool) -> None:
    """Says what was removed, or would be."""
    if as_json:
        removed = [{"name": artifact.name, "bytes": artifact.bytes} for artifact in pruning.artifacts]
        document = {"dry_run": dry_run, "forgotten": pruning.runs, "removed": removed, "bytes": pruning.bytes}
        print(json.dumps(document | {"kept": pruning.kept}))
        return
    verb = "would remove" if dry_run else "removed"
    for run_id in pruning.runs:
        print(f"{'would forget' if dry_run else 'forgot'} run {run_id} (its rows stay in the history)")
    for artifact in pruning.artifacts:
        print(f"{verb} {artifact.name} ({artifact.bytes:,} bytes)")
    total = f"{len(pruning.artifacts)} artifacts, {pruning.bytes:,} bytes"
    print(f"{verb} {total}; {pruning.kept} are in use by kept runs")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """What JSON has no word for (orjson itself writes NaN as null and dates as ISO 8601)."""
    return float(value) if isinstance(value, Decimal) else str(value)


if __name__ == "__main__":
    app()
