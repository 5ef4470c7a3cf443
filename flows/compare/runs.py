"""How two open runs are compared by the config they ran with, and which files a comparison leaves.

The command line, the flow and suites compare with it, so that all three say the same. Needs no Prefect.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from flows.config.errors import read_yaml, validated
from metrics.aggregations.aggregation import Aggregation
from metrics.errors import ConfigError, DataError, NightjarError
from tasks.comparison.compare import (
    ASKED_OTHERWISE,
    ComparedRuns,
    ComparisonRules,
    Gate,
    asked_otherwise,
    compare_runs,
)
from tasks.comparison.matching import GroupKey, PairName, aggregations, match_across, match_runs
from tasks.comparison.runs import ComparedRun, key_over_facets, over_facets
from tasks.store.home import private_folder

PAGE = "comparison.html"
STATE_NAMES: Mapping[str | None, str] = {"inconclusive": "Inconclusive", "worse": "Worse"}
"""Names of the Completed states of runs whose gate did not say pass; automations listen to them."""


def compare_opened(
    base: ComparedRun,
    candidate: ComparedRun,
    gate: Gate | None = None,
    across: str | None = None,
    reused: frozenset[GroupKey] = frozenset(),
    *,
    unpaired: bool = False,
) -> ComparedRuns:
    """Compares two runs, or, with ``across``, every two values of a facet within ``base``; ``unpaired``: as
    two samples of items, whichever they share.

    ``reused`` are the candidate's groups whose model was asked nothing: in a suite they decide nothing.
    Raises ConfigError for runs or a gate that do not fit together.
    """
    if gate is not None and (overall := gate.overall):
        parts: dict[GroupKey, set[GroupKey]] = {}
        for key in candidate.groups:
            parts.setdefault(key_over_facets(key, overall), set()).add(key)
        reused = frozenset(whole for whole, keys in parts.items() if keys <= reused)
        one = base is candidate
        base = over_facets(base, overall)
        candidate = base if one else over_facets(candidate, overall)
    matches = (
        match_across(base.groups, across) if across is not None else match_runs(base.groups, candidate.groups)
    )
    if not any(match.base and match.candidate for match in matches):
        raise ConfigError(
            f"'{base.name}' and '{candidate.name}' have no pair in common: {_pairs(base, candidate)}"
        )
    known: dict[PairName, Aggregation] = {}
    for manifest in (*base.manifests, *candidate.manifests):
        known |= configured_aggregations(manifest)
    rules = ComparisonRules(
        aggregations(known, [*base.results, *candidate.results]),
        gate=gate,
        reused=reused,
        method="unpaired" if unpaired else "auto",
    )
    return compare_runs(base, candidate, matches, rules)


def configured_aggregations(manifest: Mapping[str, Any]) -> dict[PairName, Aggregation]:
    """The aggregation of each pair, built anew from the config that a run's manifest holds.

    Empty where it can't be: the config's own functions may have moved since. Result rows name the aggregation
    too.
    """
    if not manifest.get("config"):
        return {}

    from flows.config.schema import EvalConfig
    from scorers.factory import build_scorer
    from tasks.reduction.verdict_metrics import FILTER, build_evaluation_metric
    from tasks.usercode.load import resolver

    try:
        config = EvalConfig.model_validate(manifest["config"])
        resolve = resolver(config.base_dir)
        scorer = build_scorer(config.scoring(), resolve)
        names = [entry.name for entry in config.filters()]
        known = {
            (config.name, name, metric.name): metric.aggregation
            for name in names
            for metric in scorer.get_metrics(name)
        }
        for entry in config.metrics:
            built = build_evaluation_metric(entry, resolve, config.facets)
            known[config.name, FILTER, entry.name] = built.metric.aggregation
        return known
    except (NightjarError, ValidationError, OSError):
        return {}


def _pairs(*runs: ComparedRun) -> str:
    said = [f"{run.name} has {', '.join(sorted({key.pair for key in run.groups})) or 'none'}" for run in runs]
    metrics = [{key.metric for key in run.groups} for run in runs]
    return "; ".join([*said, *([ASKED_OTHERWISE] if asked_otherwise(*metrics) else [])])


def write_comparison(folder: Path, compared: ComparedRuns, document: Mapping[str, Any]) -> None:
    """Writes comparison.json and, where both runs are folders, comparison.html; stderr says why not.

    A page of an earlier comparison does not stay beside numbers that are not its own. Raises ConfigError
    where ``folder`` can't be written.
    """
    page = folder / PAGE
    try:
        private_folder(folder)
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
    from tasks.reporting.compare import compared_pairs, folder_view, run_names, write_compare_report

    views = folder_view(base), folder_view(candidate)
    pairs, names = compared_pairs(compared), run_names(*views, folders=(base, candidate))
    write_compare_report(*views, pairs, page, verdict=compared.verdict, names=names)


def load_gate(path: Path) -> Gate:
    """Reads a gate file; raises ConfigError with file and line."""
    source = read_yaml(path)
    return validated(Gate, source, source.data)
