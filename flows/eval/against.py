"""A run that is compared with another one: what its command line says of that, and how it ends."""

from pathlib import Path
from typing import Any

from flows.compare.runs import (
    ComparisonTable,
    check_baseline,
    compare_opened,
    comparison_document,
    exit_code,
    load_gate,
    write_comparison,
)
from flows.config.schema import Against, EvalConfig, RunOptions
from metrics.errors import ConfigError
from tasks.comparison.runs import open_run
from tasks.reporting.terminal import console
from tasks.store.home import default_store
from tasks.store.storage import Store


def against_run(run: str | None, gate: Path | None, config: EvalConfig, store: str | None) -> Against | None:
    """What ``--against`` and ``--gate`` say. Raises NightjarError for a run or gate that can't be used."""
    if run is None and gate is None:
        return None
    if run is None or gate is None:
        raise ConfigError("--against RUN and --gate GATE.yaml belong together; one of them is not there")
    terms = load_gate(gate)
    place = Store(store or default_store())
    check_baseline(open_run(run, place))
    name = str(Path(run).resolve()) if Path(run).is_dir() else run
    return Against(gate=terms, baseline=((name,),), seed=config.statistics.seed)


def held_against(options: RunOptions, quiet: bool) -> tuple[int, dict[str, Any]]:
    """Compares a run that ended with its baseline, and leaves comparison.json in its folder; returns the exit
    code of the verdict and what ``--json`` adds."""
    against, folder = options.against, str(options.output)
    assert against is not None
    place = Store(str(options.store))
    (names,) = against.baseline
    base = open_run(names[0], place)
    compared = compare_opened(base, open_run(folder, place), against.gate)
    document = comparison_document(compared)
    write_comparison(Path(folder), compared, document)
    if not quiet:
        console().print(ComparisonTable(compared))
    return exit_code(compared.verdict, against.gate), {"comparison": document}
