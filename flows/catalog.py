"""``python -m flows.catalog [KIND]``: every name that a config may use, and what it means."""

import json
import sys
from dataclasses import asdict
from typing import Annotated, Final

import typer

from flows.catalog_entries import LISTINGS, Entry, catalog
from metrics.errors import nearest

WIDTH: Final = 150  # columns where the output is no terminal
_ALIASES: Final = {"model_types": "models", "model_type": "models"}


def _print_table(kind: str, entries: list[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    table = Table(
        title=kind.replace("_", " "), title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    table.add_column("name", no_wrap=True)
    columns = ["range", "direction", "meaning", "default", "applies_to", "source"]
    columns = [name for name in columns if any(getattr(entry, name) for entry in entries)]
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=column in ("range", "direction"), overflow="fold")
    for entry in entries:
        # As Text: brackets of a default are no markup.
        table.add_row(Text(entry.name), *(Text(getattr(entry, column)) for column in columns))
    console.print(table)
    console.print()


def main(
    kind: Annotated[
        str | None, typer.Argument(help=f"One of {', '.join(LISTINGS)}; without it all of them")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document")] = False,
) -> None:
    """List the names that a config may use."""
    asked = kind.lower().replace("-", "_").replace(" ", "_") if kind is not None else None
    asked = _ALIASES.get(asked or "", asked)
    if asked is not None and asked not in LISTINGS:
        asked = asked + "s" if asked + "s" in LISTINGS else asked
    if asked is not None and asked not in LISTINGS:
        typer.echo(
            f"kind '{kind}' is not known{nearest(asked, LISTINGS)} (known: {', '.join(LISTINGS)})", err=True
        )
        raise typer.Exit(2)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in catalog(asked)], ensure_ascii=False, indent=2))
        return
    for name in LISTINGS if asked is None else [asked]:
        _print_table(name, catalog(name))


if __name__ == "__main__":
    typer.run(main)
