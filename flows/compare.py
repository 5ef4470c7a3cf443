"""Two runs on the same items: ``python -m flows.compare BASE CANDIDATE [--gate GATE.yaml]``.

Needs no Prefect server; the flow that does the same on a worker is ``flows.compare_flow``.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from flows.suite_config import load_gate
from metrics.aggregations.aggregation import Aggregation
from metrics.errors import ConfigError, DataError, NightjarError
from tasks.comparison.compare import ComparedRuns, Comparing, Gate, compare_runs
from tasks.comparison.items import Place, aggregations
from tasks.comparison.matching import match_across, match_runs
from tasks.comparison.runs import ComparedRun, open_run
from tasks.comparison.show import comparison_document
from tasks.store.home import default_store
from tasks.store.storage import Store

EXIT_CODES = {None: 0, "pass": 0, "regression": 1, "inconclusive": 3}
REFUSED = 2
PAGE = "comparison.html"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def compare_command(
    base: Annotated[str, typer.Argument(help="output folder or run id of the baseline")],
    candidate: Annotated[
        str | None, typer.Argument(help="output folder or run id that is held against it")
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="gate file: exit 1 for a regression, 3 if it can't tell")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
    output: Annotated[
        Path | None, typer.Option(help="folder for comparison.json and comparison.html")
    ] = None,
    store: Annotated[str | None, typer.Option(help="URI of the store that run ids are looked up in")] = None,
    across: Annotated[
        str | None, typer.Option(help="facet: every two of its values within the run BASE")
    ] = None,
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
    compared = compare_opened(first, second, terms, across)
    document = comparison_document(compared)
    if output is not None:
        write_comparison(output, compared, document)
    if as_json:
        sys.stdout.write(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        _show(compared, flips)
    raise typer.Exit(EXIT_CODES[compared.verdict])


def compare_opened(
    base: ComparedRun, candidate: ComparedRun, gate: Gate | None = None, across: str | None = None
) -> ComparedRuns:
    """Compares two runs, or, with ``across``, every two values of a facet within ``base``.

    Raises ConfigError for runs or a gate that do not fit together.
    """
    matches = (
        match_across(base.groups, across) if across is not None else match_runs(base.groups, candidate.groups)
    )
    if not any(match.base and match.candidate for match in matches):
        raise ConfigError(
            f"'{base.name}' and '{candidate.name}' have no pair in common: {_pairs(base, candidate)}"
        )
    known: dict[Place, Aggregation] = {}
    for manifest in (*base.manifests, *candidate.manifests):
        known |= configured(manifest)
    comparing = Comparing(aggregations(known, [*base.results, *candidate.results]), gate=gate)
    return compare_runs(base, candidate, matches, comparing)


def configured(manifest: Mapping[str, Any]) -> dict[Place, Aggregation]:
    """The aggregation of each pair, built anew from the config that a run's manifest holds.

    Empty where it can't be: the config's own functions may have moved since. Result rows name the aggregation
    too.
    """
    if not manifest.get("config"):
        return {}
    from pydantic import ValidationError

    from flows.config import EvalConfig
    from scorers.factory import build_scorer
    from tasks.usercode import resolver

    try:
        config = EvalConfig.model_validate(manifest["config"])
        scorer = build_scorer(config.scoring(), resolver(config.base_dir))
        names = [entry.name for entry in config.filters()]
        return {
            (config.name, name, metric.name): metric.aggregation
            for name in names
            for metric in scorer.get_metrics(name)
        }
    except (NightjarError, ValidationError, OSError):
        return {}


def _pairs(*runs: ComparedRun) -> str:
    return "; ".join(
        f"{run.name} has {', '.join(sorted({key.pair for key in run.groups})) or 'none'}" for run in runs
    )


def write_comparison(folder: Path, compared: ComparedRuns, document: Mapping[str, Any]) -> None:
    """Writes comparison.json and, where both runs are folders, comparison.html; stderr says why not.

    A page of an earlier comparison does not stay beside numbers that are not its own. Raises ConfigError
    where ``folder`` can't be written.
    """
    page = folder / PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "comparison.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
        page.unlink(missing_ok=True)
        try:
            _write_page(page, compared)
        except DataError as error:
            print(f"no {PAGE}: {error}", file=sys.stderr)
    except OSError as error:
        raise ConfigError(f"--output {folder}: can't be written: {error.strerror or error}") from error


def _write_page(page: Path, compared: ComparedRuns) -> None:
    """Raises DataError for runs whose samples are not in folders."""
    base, candidate = compared.base, compared.candidate
    if base == candidate:
        raise DataError("it shows the samples of two runs side by side, and this is one")
    absent = [name for name in (base, candidate) if not Path(name).is_dir()]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        raise DataError(
            f"it needs the output folders of both runs, and {' and '.join(absent)} {verb} known by id only"
        )
    from tasks.reporting.compare.folder import folder_view
    from tasks.reporting.compare.write import compared_pairs, write_compare_report

    views = folder_view(base), folder_view(candidate)
    pairs, names = compared_pairs(compared), (base, candidate)
    write_compare_report(*views, pairs, page, verdict=compared.verdict, names=names)


def _show(compared: ComparedRuns, flips: int) -> None:
    from tasks.comparison.show import ComparisonTable
    from tasks.reporting.terminal import console

    console().print(ComparisonTable(compared, flips))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command; what the user can mend is one line on stderr and exit code 2, never a traceback."""
    try:
        app(arguments)
    except NightjarError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(REFUSED) from None


if __name__ == "__main__":
    main()
