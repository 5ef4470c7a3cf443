"""How two open runs are compared by the config they ran with, which files a comparison leaves, and how it
is shown: as a table with sentences for people, and as one JSON document for programs.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from flows.command_line import FAILED, UNDECIDED
from flows.compare.flips import FlippedItems, flips, with_item_names
from flows.config.errors import validated
from flows.config.source import read_yaml
from metrics.aggregation import Aggregation
from metrics.errors import ConfigError, DataError, NightjarError
from metrics.statistics.comparison import Comparison
from metrics.statistics.gate import ORDER, Verdict
from tasks.comparison.compare import (
    ASKED_OTHERWISE,
    ComparedPair,
    ComparedRuns,
    ComparisonRules,
    Gate,
    asked_otherwise,
    compare_runs,
)
from tasks.comparison.matching import GroupKey, JoinedItems, PairName, aggregations, match_across
from tasks.comparison.runs import (
    Change,
    ComparedRun,
    CostChange,
    OutcomeChange,
    key_over_facets,
    match_groups,
    over_facets,
)
from tasks.reduction.facets import facet_words
from tasks.reporting import numbers
from tasks.reporting.tables import Column, FittedTable, one_line
from tasks.store.home import FileUnwritable, finite, write_json

PAGE = "comparison.html"
TOLD_FLIPS = 10
"""Items that a notification names of each pair, at most."""
STATE_NAMES: Mapping[str | None, str] = {"inconclusive": "Inconclusive", "worse": "Worse"}
"""Names of the Completed states of runs whose gate did not say pass; automations listen to them."""


def compare_opened(
    base: ComparedRun,
    candidate: ComparedRun,
    gate: Gate | None = None,
    across: str | None = None,
    *,
    unpaired: bool = False,
) -> ComparedRuns:
    """Compares two runs, or, with ``across``, every two values of a facet within ``base``; ``unpaired``: as
    two samples of items, whichever they share.

    Raises ConfigError for runs or a gate that do not fit together: it names a pair that neither has, or they
    have none in common, and not because one failed.
    """
    if gate is not None and across is None:
        check_baseline(base)
    if gate is not None:
        check_pairs(gate, base, candidate)
    compared = _compared(base, candidate, gate, across, unpaired=unpaired)
    common = any(pair.match.base and pair.match.candidate for pair in compared.pairs)
    if not (common or base.failures or candidate.failures):
        raise ConfigError(
            f"'{base.name}' and '{candidate.name}' have no pair in common: {_pairs(base, candidate)}"
        )
    return compared


def compare_night(
    base: ComparedRun,
    night: ComparedRun,
    gate: Gate | None,
    reused: frozenset[GroupKey],
    muted: Mapping[str, str],
) -> ComparedRuns:
    """Compares a night with its baseline, however little the two have in common: what is missing is
    inconclusive.

    ``reused`` are the night's groups whose model was asked nothing, which decide nothing. ``muted`` names
    pairs that decide nothing, with until when and why. Raises ConfigError for a baseline that stopped.
    """
    if gate is not None:
        check_baseline(base)
    return _compared(base, night, gate, None, reused=reused, muted=muted)


def _compared(
    base: ComparedRun,
    candidate: ComparedRun,
    gate: Gate | None,
    across: str | None,
    *,
    unpaired: bool = False,
    reused: frozenset[GroupKey] = frozenset(),
    muted: Mapping[str, str] = MappingProxyType({}),
) -> ComparedRuns:
    if gate is not None and (overall := gate.overall):
        parts: dict[GroupKey, set[GroupKey]] = {}
        for key in candidate.groups:
            parts.setdefault(key_over_facets(key, overall), set()).add(key)
        reused = frozenset(whole for whole, keys in parts.items() if keys <= reused)
        one = base is candidate
        base = over_facets(base, overall)
        candidate = base if one else over_facets(candidate, overall)
    matches = match_across(base.groups, across) if across is not None else match_groups(base, candidate)
    known: dict[PairName, Aggregation] = {}
    for manifest in (*base.manifests, *candidate.manifests):
        known |= configured_aggregations(manifest)
    rules = ComparisonRules(
        aggregations(known, [*base.results, *candidate.results]),
        gate=gate,
        reused=reused,
        method="unpaired" if unpaired else "auto",
        muted=muted,
    )
    compared = with_item_names(compare_runs(base, candidate, matches, rules), (candidate, base))
    return replace(compared, begun=(_begun(base), _begun(candidate)))


def check_pairs(gate: Gate, *runs: ComparedRun) -> None:
    """Raises ConfigError for a gated pair that none of the runs has, not even failed."""
    gate.check_pairs([key for run in runs for key in (*run.groups, *run.failures)])


def _begun(run: ComparedRun) -> str | None:
    return numbers.moment(run.manifest.get("started"))


def check_baseline(base: ComparedRun) -> None:
    """Raises ConfigError for a run that can't be a baseline: one that stopped before it had asked all."""
    if base.stopped is not None:
        raise ConfigError(f"baseline '{base.name}': {base.stopped.sentence}; name a run that asked all items")


def fails(verdict: str | None, gate: Gate | None) -> bool:
    """Whether a gate fails what it judged so."""
    return verdict == "regression" or (verdict == "worse" and gate is not None and gate.fail_on == "worse")


def exit_code(verdict: Verdict | None, gate: Gate | None) -> int:
    """The exit code of a command that a gate judged."""
    return FAILED if fails(verdict, gate) else UNDECIDED if verdict == "inconclusive" else 0


def configured_aggregations(manifest: Mapping[str, Any]) -> dict[PairName, Aggregation]:
    """The aggregation of each pair, built again from the config that a run's manifest holds.

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

    A page of an earlier comparison does not stay beside numbers that are not its own. Raises
    FileUnwritable.
    """
    page = folder / PAGE
    try:
        page.unlink(missing_ok=True)
    except OSError as error:
        raise FileUnwritable(f"can't remove {page}: {error.strerror or error}") from error
    write_json(folder / "comparison.json", document)
    try:
        _write_page(page, compared)
    except (DataError, OSError) as error:
        print(f"no {PAGE}: {error}", file=sys.stderr)


def _write_page(page: Path, compared: ComparedRuns) -> None:
    """Raises DataError for runs whose samples are not in folders."""
    base, candidate = compared.base, compared.candidate
    if base == candidate:
        raise DataError("it shows the samples of two runs side by side, and there is one run")
    absent = [name for name in (base, candidate) if not Path(name).is_dir()]
    if absent:
        verb = "is" if len(absent) == 1 else "are"
        raise DataError(
            f"it needs the output folders of both runs, and {' and '.join(absent)} {verb} known by id only"
        )
    from tasks.reporting.compare import (
        compared_pairs,
        folder_view,
        pass_rates,
        run_names,
        write_compare_report,
    )

    views = folder_view(base), folder_view(candidate)
    pairs = compared_pairs(compared, pass_rates(*views))
    names = run_names(*views, folders=(base, candidate))
    write_compare_report(*views, pairs, page, verdict=compared.verdict, names=names)


def load_gate(path: Path) -> Gate:
    """Reads a gate file; raises ConfigError with file and line."""
    source = read_yaml(path)
    return validated(Gate, source, source.data)


STYLES = {"regression": "bold red", "inconclusive": "yellow", "worse": "yellow", "pass": "green"}
DOUBT = ("model identity", "dataset", "scoring")
"""Changes that a difference may come from instead of the model."""


class ComparisonTable:
    """A rich renderable; ``flips`` is how many flipped items are named for each pair."""

    def __init__(self, compared: ComparedRuns, flips: int = 5) -> None:
        self.compared = compared
        self.flips = flips

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table first, then words."""
        compared = self.compared
        yield _line(heading(compared), "bold")
        yield _table(
            [pair for pair in compared.pairs if pair.comparison is not None], compared.gate is not None
        )
        yield Group(*_sentences(compared, self.flips))
        if compared.verdict is not None:
            yield Text(f"gate: {compared.verdict}", style=STYLES[compared.verdict])


def heading(compared: ComparedRuns) -> str:
    """What is compared: its models where the two sides have different ones, and when each began."""
    models = tuple(sorted(own) for own in models_of(compared))
    told = models if models[0] != models[1] else ([], [])
    begun = compared.begun if all(compared.begun) else (None, None)
    sides = zip((compared.base, compared.candidate), told, begun, strict=True)
    said = [
        f"{name} ({', '.join(beside)})" if (beside := [*own, *filter(None, [when])]) else name
        for name, own, when in sides
    ]
    return f"base: {said[0]}; candidate: {said[1]}"


def models_of(compared: ComparedRuns) -> tuple[set[str], set[str]]:
    """The models of each side, as far as the pairs' facets hold them."""
    matches = [pair.match for pair in compared.pairs]
    base, candidate = (
        {model for key in keys if key is not None and (model := key.facet("model_name")) is not None}
        for keys in ([match.base for match in matches], [match.candidate for match in matches])
    )
    return base, candidate


def comparison_document(compared: ComparedRuns) -> dict[str, Any]:
    """Everything that a comparison found, JSON-able; NaN becomes null."""
    return {
        "base": compared.base,
        "candidate": compared.candidate,
        "verdict": compared.verdict,
        "gate": compared.gate.model_dump(mode="json") if compared.gate is not None else None,
        "pairs": [_pair(pair) for pair in compared.pairs],
        "changes": [asdict(change) for change in compared.changes],
        "outcomes": [_outcome(change) for change in compared.outcomes],
        "costs": [asdict(change) for change in compared.costs],
    }


def told_pairs(pairs: Sequence[tuple[str, ComparedPair]]) -> list[dict[str, Any]]:
    """What a notification says of each pair that did not pass, worst first: its numbers, verdict and reason.

    ``pairs`` stand beside the name of what they are compared with.
    """
    loud = [(base, pair) for base, pair in pairs if pair.muted is None]
    told = [_told(base, pair) for base, pair in loud if pair.verdict not in (None, "pass")]
    return sorted(told, key=lambda entry: ORDER.index(entry["verdict"]))


def _told(base: str, pair: ComparedPair) -> dict[str, Any]:
    found = pair.comparison
    names = ("base", "candidate", "difference", "ci_low", "ci_high")
    values = {} if found is None else {name: finite(getattr(found, name)) for name in names}
    said = {"benchmark": pair.key.benchmark, "pair": name_of(pair), "against": base, "verdict": pair.verdict}
    return {**said, **values, "reason": pair.reason, "flipped": flips(pair)[:TOLD_FLIPS]}


def change_line(change: Change) -> str:
    """A change in words."""
    before, after = (value if value is not None else "not said" for value in (change.base, change.candidate))
    return f"{change.kind} changed: {change.what}: {before} → {after}"


def cost_line(change: CostChange) -> str:
    """What a model cost in both runs, in words.

    >>> cost_line(CostChange("qwen", "answering", 0.5, 0.75, "USD"))
    'cost of qwen answering: 0.5 → 0.75 USD'
    """
    before, after = (
        "not asked" if cost is None else f"{cost:.4g}" for cost in (change.base, change.candidate)
    )
    currency = f" {change.currency}" if change.currency else ""
    return f"cost of {change.model} {change.stage}: {before} → {after}{currency}"


def outcome_line(change: OutcomeChange) -> str:
    """How often answers came to an outcome before and now, in words."""
    where = ", ".join(change.key.facet_words) or change.key.benchmark
    p = "" if math.isnan(change.p_value) else f", p = {change.p_value:.2g}"
    shares = f"{_per_cent(change.base)} → {_per_cent(change.candidate)}"
    return f"answers {change.outcome.replace('_', ' ')}, {where}: {shares} of {change.n_items} items{p}"


def _per_cent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.3g} %"


def _outcome(change: OutcomeChange) -> dict[str, Any]:
    facets = dict(change.key.facets)
    own = {name: getattr(change, name) for name in ("outcome", "n_items", "risen")}
    shares = {name: finite(getattr(change, name)) for name in ("base", "candidate", "p_value")}
    return {"benchmark": change.key.benchmark, "facets": facets, **own, **shares}


def name_of(pair: ComparedPair) -> str:
    """The pair with what tells it from others of its name."""
    key = pair.key
    own = group_of(pair)
    return f"{key.pair} ({', '.join(own)})" if own else key.pair


def group_of(pair: ComparedPair) -> list[str]:
    """The values of the facets and the label; where the runs differ in one, both of its values."""
    after = dict(pair.match.candidate.facets) if pair.match.candidate is not None else {}
    facets = [
        facet_words(value)
        if after.get(name, value) == value
        else f"{facet_words(value)} → {facet_words(after[name])}"
        for name, value in pair.key.facets
    ]
    return list(map(one_line, [*facets, *([pair.key.label] if pair.key.label else [])]))


def _sentences(compared: ComparedRuns, flips: int) -> Iterator[Text | FlippedItems]:
    for pair in compared.pairs:
        if pair.comparison is None or pair.reason:
            yield _line(f"{name_of(pair)}: {pair.reason}", "yellow")
    for pair in compared.pairs:
        if pair.flipped and flips:
            yield FlippedItems(name_of(pair), pair, flips)
    for outcome in compared.outcomes:
        yield _line(outcome_line(outcome), "bold yellow" if outcome.risen else "dim")
    for change in compared.changes:
        if change.kind in DOUBT:
            yield _line(change_line(change), "bold yellow" if change.kind == "model identity" else "yellow")
    if minor := [change.what for change in compared.changes if change.kind not in DOUBT]:
        yield _line(f"also different: {', '.join(minor)}")
    for cost in compared.costs:
        yield _line(cost_line(cost), "dim")


def _line(sentence: str, style: str = "") -> Text:
    """A sentence on a line of its own, whatever names and values it quotes."""
    return Text(one_line(sentence), style=style)


NAMES = ("Benchmark", "Group", "Filter", "Metric")
SECOND = ("Interval", "p adj.", "W/L/T", "MDE", "Items", "Coverage")
"""Columns on a line below their row where a terminal is narrow."""


def _table(pairs: Sequence[ComparedPair], gated: bool) -> FittedTable:
    columns = [
        *map(Column, NAMES),
        *(Column(name, right=True) for name in ("Base", "Candidate", "Difference")),
    ]
    columns += [Column(name, right=True, second=True) for name in SECOND]
    return FittedTable([*columns, Column("Gate" if gated else "")], [_row(pair) for pair in pairs])


def _row(pair: ComparedPair) -> list[Text | str]:
    key, found, joined = pair.key, pair.comparison, pair.joined
    assert found is not None
    assert joined is not None
    arrow = "↑" if pair.higher_is_better else "↓"
    metric = key.pair.removesuffix(f",{key.filter}")
    group = " ".join(group_of(pair))
    like = found.base
    return [
        key.benchmark, group, key.filter, f"{metric} {arrow}",
        numbers.number(found.base), numbers.number(found.candidate, like),
        numbers.signed(found.difference, like), numbers.interval(found.ci_low, found.ci_high, like),
        numbers.p_value(pair.p_adjusted), f"{found.wins}/{found.losses}/{found.ties}",
        numbers.number(found.mde, like), str(found.n_items), f"{joined.coverage:.1%}", _verdict_text(pair),
    ]  # fmt: skip


def _verdict_text(pair: ComparedPair) -> Text:
    if pair.verdict is not None:
        return Text(pair.verdict, style=STYLES[pair.verdict])
    return (
        Text("")
        if pair.terms is not None or pair.p_adjusted is None or pair.p_adjusted >= 0.05
        else Text("*")
    )


def _pair(pair: ComparedPair) -> dict[str, Any]:
    key = pair.key
    document = {
        "pair": key.pair,
        "benchmark": key.benchmark,
        "filter": key.filter,
        "metric": key.metric,
        "reduction": key.reduction,
        "label": key.label,
        "facets": dict(key.facets),
        "candidate_benchmark": pair.match.candidate.benchmark if pair.match.candidate is not None else None,
        "candidate_facets": dict(pair.match.candidate.facets) if pair.match.candidate is not None else None,
        "higher_is_better": pair.higher_is_better,
        "verdict": pair.verdict,
        "muted": pair.muted,
        "code": finite(pair.code),
        "reason": pair.reason,
        "p_adjusted": finite(pair.p_adjusted),
        "terms": asdict(pair.terms) if pair.terms is not None else None,
    }
    return document | _numbers(pair.comparison) | _counts(pair.joined) | {
        "flipped": [asdict(item) for item in pair.flipped]
    }  # fmt: skip


def _numbers(comparison: Comparison | None) -> dict[str, Any]:
    names = [field.name for field in fields(Comparison) if field.repr]  # what is shown: numbers and words
    if comparison is None:
        return dict.fromkeys(names)
    values = {name: getattr(comparison, name) for name in names}
    return {name: finite(value) if isinstance(value, float) else value for name, value in values.items()}


def _counts(joined: JoinedItems | None) -> dict[str, Any]:
    names = ("coverage", "n_base", "n_candidate", "missing", "unscored", "unscored_base", "new")
    return {name: None if joined is None else finite(getattr(joined, name)) for name in names}
