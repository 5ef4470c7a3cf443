"""``python -m flows.compare BASE CANDIDATE [--gate GATE.yaml]``: compares two runs without a Prefect server.

The exit code is the gate's verdict. The flow that does the same on a worker is ``flows.compare.compare``.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.command_line import App, examples, print_json
from flows.compare.runs import (
    PAGE,
    compare_opened,
    comparison_document,
    exit_code,
    load_gate,
    write_comparison,
)
from metrics.errors import ConfigError
from tasks.comparison.compare import ComparedRuns
from tasks.comparison.runs import open_run
from tasks.store.home import default_store
from tasks.store.storage import Store

app = App()


@app.command(
    epilog=examples(
        "python -m flows.compare results/BASE results/CANDIDATE",
        "python -m flows.compare BASE CANDIDATE --gate deployments/suites/gate.yaml",
    )
)
def compare_command(
    base: Annotated[str, typer.Argument(help="output folder or run id of the baseline")],
    candidate: Annotated[
        str | None, typer.Argument(help="output folder or run id that is compared with it")
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="gate file: exit 1 for a regression, 3 if it can't tell")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
    output: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="folder for comparison.json and comparison.html"),
    ] = None,
    store: Annotated[str | None, typer.Option(help="URI of the store that run ids are looked up in")] = None,
    across: Annotated[
        str | None, typer.Option(help="facet: every two of its values within the run BASE")
    ] = None,
    unpaired: Annotated[
        bool, typer.Option("--unpaired", help="compare as two samples: items are not joined")
    ] = False,
    flips: Annotated[int, typer.Option(min=0, help="flipped items named for each pair")] = 5,
) -> None:
    """Compares two runs item by item, and says which differences could be chance."""
    if (across is None) == (candidate is None):
        raise ConfigError("expected BASE and CANDIDATE, or BASE and --across FACET")
    terms = load_gate(gate) if gate is not None else None
    place = Store(store or default_store())
    place.check_readable()
    first = open_run(base, place)
    second = open_run(candidate, place) if candidate is not None else first
    compared = compare_opened(first, second, terms, across, unpaired=unpaired)
    document = comparison_document(compared)
    if output is not None:
        write_comparison(output, compared, document)
        page = output / PAGE if (output / PAGE).is_file() else output / "comparison.json"
        print(f"comparison: {page}", file=sys.stderr)
    if as_json:
        print_json(document)
    else:
        _show(compared, flips)
    raise typer.Exit(exit_code(compared.verdict, terms))


def _show(compared: ComparedRuns, flips: int) -> None:
    from flows.compare.runs import ComparisonTable
    from tasks.reporting.terminal import console

    console().print(ComparisonTable(compared, flips))


main = app.main

if __name__ == "__main__":
    main()
