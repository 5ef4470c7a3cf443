"""How a pair of two runs is compared on the items they share, and by what terms a gate judges it.

``compare_runs`` gives the whole comparison: numbers, corrected p-values, verdicts and flipped items. ``Gate``
is the schema of gate files.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from metrics.aggregation import Aggregation, build_aggregation
from metrics.aliases import nearest
from metrics.config import StatisticsConfig, Strict
from metrics.errors import ConfigError, NightjarError
from metrics.statistics.comparison import Comparison, Method, compare_items
from metrics.statistics.differences import ItemColumn
from metrics.statistics.gate import Verdict, adjust, decide, p_regression, spent_over, worst_of
from metrics.statistics.sequence import SequenceLook, left_for_the_last
from metrics.statistics.unpaired import UNPAIRED, compare_unpaired
from scorers.judge.contrast import Correction as JudgeCorrection
from scorers.judge.contrast import compare_corrected
from tasks.comparison.matching import (
    AggregationOf,
    Flipped,
    GroupKey,
    ItemGroup,
    JoinedItems,
    Match,
    apart,
    clusters_of,
    column_of,
    flipped_items,
    join,
    result_key,
    shared_clusters,
)
from tasks.comparison.runs import (
    Change,
    ComparedRun,
    CostChange,
    OutcomeChange,
    changes,
    cost_changes,
    outcome_changes,
)
from tasks.comparison.stopping import PairAsked, Stopping, StopRule, asked_part
from tasks.rows.parts import UNKNOWN
from tasks.store.schemas import CELL_FACETS

Correction = Literal["holm", "bh", "none"]
Level = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Clusters = NDArray[np.int64] | None
Margin = Annotated[float, Field(ge=0)]
REUSED = "asked nothing: all answers are kept ones, and say nothing of the model as it is now"


class PairGate(Strict):
    """A gate's settings for one pair; a key that is not given is the gate's own."""

    margin: Margin | None = Field(
        None, description="A loss up to this is acceptable, in the metric's own units"
    )
    alpha: Level | None = Field(None, description="Level of the test, after correction over all gated pairs")
    method: Method | None = Field(
        None, description="Test of the difference; auto chooses by the kind of metric; unpaired: other items"
    )
    coverage: Share | None = Field(
        None, description="Share of the baseline's items to be scored in the candidate"
    )
    facets: Literal["each", "overall"] = Field(
        "each", description="overall: all items together, over the run's own facets; else every group of them"
    )


class AlphaOver(Strict):
    """The nights that share one alpha."""

    nights: int = Field(ge=2, le=1000, description="Nights together that cry regression wrongly at alpha")


class Stop(Strict):
    """When a night stops asking: as soon as every gated pair is decided."""

    ALONE = "when"

    when: Literal["decided"] = Field("decided", description="Every gated pair passed or is a regression")
    blocks: int = Field(20, ge=2, le=64, description="Parts that items are asked in; a look follows on each")
    least: int = Field(50, ge=1, description="Items before the first look")
    full_every: int = Field(7, ge=1, description="In a suite, every so many nights ask all items")
    population: Literal["items", "benchmark"] = Field(
        "items",
        description="What the verdict is about: items like these, or benchmark: what all of these would say",
    )


@dataclass(frozen=True)
class GateTerms:
    """The terms that one pair has to meet; the fields are those of a gate."""

    margin: float
    alpha: float
    method: Method
    coverage: float


class Gate(Strict):
    """A gate file (``compare --gate``, ``gate:`` of a suite)."""

    alpha: Level = Field(0.05, description="Level of the tests, after correction over all gated pairs")
    correction: Correction = Field("holm", description="holm | bh | none")
    coverage: Share = Field(
        0.99, description="Share of the baseline's items that must be scored in the candidate"
    )
    margin: Margin = Field(0.01, description="A loss up to this is acceptable, in the metric's own units")
    method: Method = Field(
        "auto",
        description="Test of the difference; auto chooses by the kind of metric; unpaired: other items",
    )
    fail_on: Literal["regression", "worse"] = Field(
        "regression", description="worse: a loss within the margin ends with exit code 1 too"
    )
    outcomes: Literal["tell", "fail"] = Field(
        "tell",
        description="fail: significantly more cut-off, empty or refused answers are a regression; tell: they "
        "are said beside the pairs",
    )
    reused: Literal["inconclusive", "allow"] = Field(
        "inconclusive",
        description="In a suite, of a model that was asked nothing; allow: kept answers decide, too",
    )
    undecidable: Literal["warn", "refuse"] = Field(
        "warn", description="In a suite, of a margin that its items are too few to decide"
    )
    anchor: str | None = Field(
        None,
        min_length=1,
        description="In a suite, a run that stays the second baseline, so that small losses can't add up; "
        "first: the suite's first night that passed",
    )
    inconclusive_nights: int = Field(
        3, ge=1, description="In a suite, so many inconclusive nights in a row end Failed"
    )
    alpha_over: AlphaOver | None = Field(
        None,
        description="In a suite, nights that share alpha, each a regression at its part; else each has all",
    )
    confirm: Literal[0, 1] = Field(
        0,
        description="In a suite, 1: what regressed is asked again before it is told; a look has half alpha",
    )
    stop: Stop | None = Field(
        None, description="decided: stop asking once every pair is; without it, all items are asked"
    )
    pairs: dict[str, PairGate] = Field(
        default_factory=dict,
        description='"metric,filter" or "reduction(metric),filter"; without any, all pairs',
    )

    @model_validator(mode="after")
    def _can_stop(self) -> Self:
        if self.stop is not None and self.fail_on == "worse":
            raise ValueError(
                "stop: a pair is decided once it passes, whether it is worse or not, and fail_on: worse "
                "asks for that; leave one of them out"
            )
        return self

    def for_pair(self, name: str) -> "GateTerms":
        """The pair's terms: its own settings, completed with the gate's."""
        own = self.pairs.get(name, PairGate())
        return GateTerms(
            margin=self.margin if own.margin is None else own.margin,
            alpha=self.alpha if own.alpha is None else own.alpha,
            method=self.method if own.method is None else own.method,
            coverage=self.coverage if own.coverage is None else own.coverage,
        )

    @property
    def shares(self) -> int:
        """In how many parts nights take alpha."""
        return 1 if self.alpha_over is None else self.alpha_over.nights

    @property
    def looks(self) -> int:
        """How often a night may look at a regression; they share its alpha."""
        return 1 + self.confirm

    def covers(self, name: str) -> bool:
        """Whether the pair decides: named in ``pairs``, or no pair is."""
        return not self.pairs or name in self.pairs

    @property
    def overall(self) -> frozenset[str]:
        """The pairs that the gate judges over all their items together."""
        return frozenset(name for name, own in self.pairs.items() if own.facets == "overall")

    def check_pairs(self, keys: "Collection[GroupKey]") -> None:
        """Raises ConfigError for a gated pair that is not among those of the runs, with the nearest name: a
        typo gates nothing."""
        known = sorted({key.pair for key in keys})
        for name in self.pairs:
            if name not in known:
                hint = nearest(name, known) or f" (there are {', '.join(known) or 'none'})"
                raise ConfigError(f"gate: neither run has a pair '{name}'{hint}")


@dataclass(frozen=True)
class ComparedPair:
    """One group of the baseline against its counterpart.

    ``comparison`` is None where nothing can be compared, and ``reason`` says why. ``gate`` is what judges the
    pair, None for pairs that do not decide; ``verdict`` then is None too.
    """

    match: Match
    joined: JoinedItems | None = None
    comparison: Comparison | None = None
    paired: bool = True  # the comparison is of the items of both runs, and not of two samples of items
    higher_is_better: bool = True
    p_adjusted: float | None = None
    terms: GateTerms | None = None
    verdict: Verdict | None = None
    reason: str | None = None
    flipped: tuple[Flipped, ...] = ()
    identical: bool = False  # every item's answers, score and signature are those of the baseline
    reused: bool = False  # the candidate's model was asked nothing, and the gate does not allow that
    code: float | None = None  # how far other code moved the baseline's number, on the same answers
    muted: str | None = None  # until when, and why, its verdict counts for nothing
    stopping: Stopping | None = (
        None  # how the candidate's items were asked, where they need not all have been
    )
    look: SequenceLook | None = None  # what the gate's confidence sequence says of them
    rule: StopRule | None = None  # by what it was looked at before all was asked; the last look allows for it

    @property
    def key(self) -> GroupKey:
        """The group's key, the baseline's where it has one."""
        return self.match.key

    @property
    def items_better_up(self) -> bool:
        """Whether an item is better when its own number is higher: perplexity is better when lower, and an
        item's number there is its log-likelihood."""
        return self.higher_is_better != (self.comparison is not None and self.comparison.falls)


@dataclass(frozen=True)
class ComparedRuns:
    """The whole comparison; ``verdict`` is None without a gate."""

    base: str
    candidate: str
    pairs: tuple[ComparedPair, ...]
    changes: tuple[Change, ...]
    gate: Gate | None = None
    verdict: Verdict | None = None
    outcomes: tuple[OutcomeChange, ...] = ()
    costs: tuple[CostChange, ...] = ()
    begun: tuple[str | None, str | None] = (None, None)
    """When each run began, for people."""


@dataclass(frozen=True)
class ComparisonRules:
    """By what two runs are compared: aggregations, error bars, gate.

    ``reused`` are the candidate's groups whose model was asked nothing: they say nothing of it as it is now.
    ``method`` is the test of what the gate does not name one for. ``muted`` says of pairs ("metric,filter",
    or "benchmark metric,filter") until when and why their verdict is shown and decides nothing.
    """

    aggregation: AggregationOf
    statistics: StatisticsConfig = field(default_factory=StatisticsConfig)
    gate: Gate | None = None
    reused: frozenset[GroupKey] = frozenset()
    method: Method = "auto"
    muted: Mapping[str, str] = field(default_factory=dict)

    def why_muted(self, match: Match) -> str | None:
        """Until when and why a pair decides nothing; None: it decides. A benchmark may have another name in
        either run."""
        keys = [key for key in (match.candidate, match.base) if key is not None]
        names = [*(f"{key.benchmark} {key.pair}" for key in keys), match.key.pair]
        return next((self.muted[name] for name in names if name in self.muted), None)


def compare_runs(
    base: ComparedRun, candidate: ComparedRun, matches: Sequence[Match], rules: ComparisonRules
) -> ComparedRuns:
    """Compares every matched group; p-values are corrected over the pairs that decide, without a gate over
    all."""
    gate = rules.gate
    full, base = base, _asked_alone(base, candidate, matches)
    pairs = [_looked_at(_compare(base, candidate, match, rules), full, candidate, rules) for match in matches]
    deciding = [
        pair for pair in pairs if pair.comparison is not None and (gate is None or pair.terms is not None)
    ]
    correction = gate.correction if gate is not None else "holm"
    different = _adjusted(
        [pair.comparison.p_value if pair.comparison else math.nan for pair in deciding], correction
    )
    beyond = _adjusted([_p_regression(pair) for pair in deciding], correction)
    shares = gate.shares * gate.looks if gate is not None else 1
    beyond = [float(p) for p in spent_over(beyond, shares)]
    corrected = {id(pair): both for pair, *both in zip(deciding, beyond, different, strict=True)}
    judged = tuple(_judged(pair, *corrected.get(id(pair), (None, None))) for pair in pairs)
    level = gate.alpha / shares if gate is not None else 1 - rules.statistics.ci_level
    outcomes = outcome_changes(base.groups, candidate.groups, matches, rules.statistics, level)
    return ComparedRuns(
        base=base.name,
        candidate=candidate.name,
        pairs=judged,
        changes=tuple(changes(base.manifest, candidate.manifest)) if base is not candidate else (),
        gate=gate,
        verdict=verdict_of(judged, gate, outcomes),
        outcomes=outcomes,
        costs=tuple(cost_changes(base.manifest, candidate.manifest)) if base is not candidate else (),
    )


def verdict_of(
    pairs: Sequence[ComparedPair], gate: Gate | None, outcomes: Sequence[OutcomeChange]
) -> Verdict | None:
    """What the pairs that decide come to together; None without a gate."""
    if gate is None:
        return None
    verdicts = [pair.verdict for pair in pairs if pair.verdict is not None and pair.muted is None]
    if not verdicts and any(pair.muted for pair in pairs):
        verdicts.append("pass")  # nobody wants to hear of what is left
    if gate.outcomes == "fail" and any(change.risen for change in outcomes):
        verdicts.append("regression")
    return worst_of(verdicts)


def _asked_alone(base: ComparedRun, candidate: ComparedRun, matches: Sequence[Match]) -> ComparedRun:
    """The baseline without what a candidate that stopped was not asked: that is no item of the run."""
    groups = dict(base.groups)
    for match in matches:
        own = candidate.stopping.get(match.candidate) if match.candidate is not None else None
        if match.base is not None and match.candidate is not None and own is not None and own.early:
            groups[match.base] = asked_part(
                base.groups[match.base], candidate.groups[match.candidate], own.seed
            )
    return base if candidate.stopped is None else replace(base, groups=groups)


def stop_rule(gate: Gate, base: ComparedRun, seed: int) -> StopRule | None:
    """By what the pairs of a gate that stops are looked at, against this baseline; None for other gates."""
    if gate.stop is None:
        return None
    gated = sum(gate.covers(key.pair) for key in base.groups)
    parts = (1 if gate.correction == "none" else max(gated, 1)) * gate.shares * gate.looks
    return StopRule(seed, gate.stop.population == "benchmark", parts)


def _looked_at(
    pair: ComparedPair, base: ComparedRun, candidate: ComparedRun, rules: ComparisonRules
) -> ComparedPair:
    """The pair with what the gate's sequence says of it, where the candidate could stop."""
    match, gate, terms = pair.match, rules.gate, pair.terms
    own = candidate.stopping.get(match.candidate) if match.candidate is not None else None
    if own is None or pair.comparison is None or terms is None or gate is None:
        return pair
    pair = replace(pair, stopping=own, identical=pair.identical and not own.early)
    rule = stop_rule(gate, base, own.seed)
    if rule is None:
        return pair
    asked = pair_asked(base, candidate, match, rules.aggregation, pair.higher_is_better)
    look = rule.look(asked, terms.margin, terms.alpha) if terms.method != "unpaired" else ""
    return replace(pair, rule=rule, look=None if isinstance(look, str) else look)


def pair_asked(
    base: ComparedRun,
    candidate: ComparedRun,
    match: Match,
    aggregation: AggregationOf,
    higher_is_better: bool | None = None,
) -> PairAsked:
    """A match's rows, for a look; both sides are there."""
    assert match.base is not None
    assert match.candidate is not None
    before, after = base.groups[match.base], candidate.groups[match.candidate]
    higher = _higher_is_better(base, candidate, match) if higher_is_better is None else higher_is_better
    corrected = JudgeCorrection.read(_signature(base, match.base)) is not None
    found = build_aggregation("mean") if corrected else aggregation(match.key, before)
    return PairAsked(before, after, join(before, after), found, higher)


def _compare(base: ComparedRun, candidate: ComparedRun, match: Match, rules: ComparisonRules) -> ComparedPair:
    gate = rules.gate
    # What the baseline does not know has nothing to fall behind: what is new decides nothing.
    known = match.base is not None or _unread(base, candidate, match) is not None
    gated = gate is not None and known and gate.covers(match.key.pair)
    terms = gate.for_pair(match.key.pair) if gate is not None and gated else None
    muted = rules.why_muted(match) if terms is not None else None
    better = _higher_is_better(base, candidate, match)
    pair = ComparedPair(match, terms=terms, higher_is_better=better, muted=muted)
    if match.base is None or match.candidate is None:
        return replace(pair, reason=_why_missing(base, candidate, match))
    if two_things := _two_things(_signature(base, match.base), _signature(candidate, match.candidate)):
        return replace(pair, reason=two_things)
    before, after = base.groups[match.base], candidate.groups[match.candidate]
    method = terms.method if terms is not None and terms.method != "auto" else rules.method
    joined = apart(before, after) if method == "unpaired" else join(before, after)
    pair = replace(pair, joined=joined, flipped=flipped_items(before, after, joined) if joined.paired else ())
    if joined.paired and not len(joined):
        separate = apart(before, after)
        if not len(separate.base) or not len(separate.candidate):
            return replace(pair, reason="the runs have no scored item in common")
        joined = separate  # what they share decides the coverage; what can be said is said of both
    try:
        comparison = _compared(_Sides(base, candidate, match, joined), method, rules, pair)
    except NightjarError as error:
        return replace(pair, reason=str(error))
    reused = gate is not None and gate.reused != "allow" and match.candidate in rules.reused
    if not joined.paired:
        return replace(pair, comparison=comparison, paired=False, reason=UNPAIRED, reused=reused)
    same = base is not candidate and _identical((base, candidate), (match.base, match.candidate), joined)
    return replace(pair, comparison=comparison, identical=same, reused=reused)


@dataclass(frozen=True)
class _Sides:
    """The groups of a match with the rows that are compared."""

    base: ComparedRun
    candidate: ComparedRun
    match: Match
    joined: JoinedItems

    @property
    def groups(self) -> tuple[ItemGroup, ItemGroup]:
        assert self.match.base is not None
        assert self.match.candidate is not None
        return self.base.groups[self.match.base], self.candidate.groups[self.match.candidate]

    def columns(self, aggregation: Aggregation) -> tuple[ItemColumn, ItemColumn]:
        before, after = self.groups
        return (
            column_of(before, self.joined.base, aggregation),
            column_of(after, self.joined.candidate, aggregation),
        )

    def clusters(self) -> tuple[Clusters, Clusters]:
        """The clusters of either run's rows; of paired ones, which are the same items, the same ones."""
        before, after = zip(self.groups, (self.joined.base, self.joined.candidate), strict=True)
        if self.joined.paired:
            return (shared_clusters(before, after),) * 2
        return clusters_of(*before), clusters_of(*after)

    def corrections(self) -> tuple[JudgeCorrection, JudgeCorrection] | None:
        """What both rates are corrected by, which the items' rows do not hold; None for other metrics."""
        keys = ((self.base, self.match.base), (self.candidate, self.match.candidate))
        first, second = (JudgeCorrection.read(_signature(run, key)) if key else None for run, key in keys)
        return None if first is None or second is None else (first, second)


def _compared(sides: _Sides, method: Method, rules: ComparisonRules, pair: ComparedPair) -> Comparison:
    options, higher = _options(rules.statistics, pair.terms), pair.higher_is_better
    own, others = sides.clusters()
    corrections = sides.corrections()
    if corrections is not None:
        if not sides.joined.paired:
            raise NightjarError("corrected rates are compared on items that both runs have; they share none")
        columns = sides.columns(build_aggregation("mean"))
        return compare_corrected(columns, corrections, own, options, method=method, higher_is_better=higher)
    aggregation = rules.aggregation(pair.key, sides.groups[0])
    columns = sides.columns(aggregation)
    if sides.joined.paired:
        return compare_items(aggregation, *columns, own, options, method=method, higher_is_better=higher)
    return compare_unpaired(aggregation, columns, (own, others), options, higher_is_better=higher)


def _identical(
    runs: tuple[ComparedRun, ComparedRun], keys: tuple[GroupKey, GroupKey], joined: JoinedItems
) -> bool:
    """Whether nothing at all differs: the items, the answers after the filters (by the digests that both
    manifests have), each score and its statistics, and how they were computed."""
    first, second = (run.groups[key] for run, key in zip(runs, keys, strict=True))
    if not len(joined) == len(first) == len(second):
        return False
    if not _same_answers(runs, keys):
        return False
    signatures = [_signature(run, key) for run, key in zip(runs, keys, strict=True)]
    if signatures[0] is None or signatures[0] != signatures[1]:
        return False
    columns = ((first.value, second.value), (first.statistics, second.statistics))
    return first.objects is None and all(
        (a is None and b is None)
        or (
            a is not None
            and b is not None
            and bool(np.array_equal(a[joined.base], b[joined.candidate], equal_nan=True))
        )
        for a, b in columns
    )


def _same_answers(runs: tuple[ComparedRun, ComparedRun], keys: tuple[GroupKey, GroupKey]) -> bool:
    """Whether a pair rests on the same answers in both runs.

    Evaluations that asked in blocks say whether all their answers are those of the baseline: then all are
    compared, whichever the pair rests on.
    """
    evaluations = [
        [manifest for manifest in run.manifests if _refs(manifest, key)]
        for run, key in zip(runs, keys, strict=True)
    ]
    whole = any(manifest.get("answers_as") for own in evaluations for manifest in own)
    first, second = (
        sorted(digest for manifest in own for digest in _digests(manifest, None if whole else key))
        for own, key in zip(evaluations, keys, strict=True)
    )
    return bool(first) and first == second


def _digests(manifest: Mapping[str, Any], key: GroupKey | None) -> Sequence[str]:
    """Digests of the answers after the filters that a pair rests on; None: of all."""
    return manifest.get("answers_as") or [ref["digest"] for ref in _refs(manifest, key)]


def _refs(manifest: Mapping[str, Any], key: GroupKey | None) -> Sequence[Mapping[str, Any]]:
    """The answers after the filters of a pair's benchmark, model and prompt: behind its own filter, or all
    where a metric is of several."""
    refs: Sequence[Mapping[str, Any]] = (manifest.get("artifacts") or {}).get("filter", ())
    if key is None:
        return refs
    if manifest.get("benchmark", key.benchmark) != key.benchmark:
        return ()
    place = {name: value for name in CELL_FACETS if (value := key.facet(name)) is not None}
    refs = [ref for ref in refs if all(ref.get(name, value) == value for name, value in place.items())]
    return [ref for ref in refs if ref.get("filter", key.filter) == key.filter] or refs


def _signature(run: ComparedRun, key: GroupKey) -> str | None:
    own = (row for row in run.results if (row["filter"], row["metric"]) == (key.filter, key.metric))
    return next(
        (row["signature"] for row in own if row.get("signature") and key.holds(result_key(row))), None
    )


def _two_things(base: str | None, candidate: str | None) -> str | None:
    """Why two metrics of one name are different numbers, by their signatures; None: they are not."""
    own, other = (_argument(signature, "opponents") for signature in (base, candidate))
    if own != other:
        return f"games against {own} and against {other} are two things"
    own, other = (_argument(signature, "choices_by") for signature in (base, candidate))
    if own != other:
        return f"choices_by: {own} and choices_by: {other} are two things, and are not compared"
    names = [_argument(signature, "scorer") for signature in (base, candidate)]
    if names[0] != names[1]:
        own, other = ("the metric itself" if name is None else f"the scorer {name}" for name in names)
        return f"numbers of {own} and of {other} are two things, and are not compared"
    return None


def _argument(signature: str | None, name: str) -> str | None:
    """A metric's argument as its signature has it; None for a metric that has none of this name."""
    parts = (signature or "").split("|")
    return next((part[len(name) + 1 :] for part in parts if part.startswith(f"{name}:")), None)


def _options(statistics: StatisticsConfig, terms: GateTerms | None) -> StatisticsConfig:
    """A pair that decides has the interval that its level asks for."""
    return statistics if terms is None else statistics.model_copy(update={"ci_level": 1 - terms.alpha})


def _adjusted(p_values: Sequence[float], correction: Correction) -> list[float]:
    return [float(p) for p in adjust(p_values, correction)]


def _p_regression(pair: ComparedPair) -> float:
    if pair.comparison is None:
        return math.nan
    margin = pair.terms.margin if pair.terms is not None else 0.0
    return p_regression(pair.comparison, margin, pair.higher_is_better)


def _judged(pair: ComparedPair, beyond: float | None, different: float | None) -> ComparedPair:
    """The pair with the gate's answer, given its corrected p-values of a loss beyond the margin and of a
    difference; what can't be compared, covers too little, or was not asked for again is inconclusive."""
    pair, terms = replace(pair, p_adjusted=different), pair.terms
    if terms is None:
        return pair
    if pair.comparison is None or pair.joined is None or beyond is None or different is None:
        return replace(pair, verdict="inconclusive")
    if pair.joined.coverage < terms.coverage:
        reason = f"coverage {pair.joined.coverage:.4g} is below the {terms.coverage:.4g} asked for"
        return replace(pair, verdict="inconclusive", reason=reason)
    if pair.reused:
        return replace(pair, verdict="inconclusive", reason=REUSED)
    if pair.identical:
        return replace(pair, verdict="pass", reason="every item has the same answer and the same score")
    if pair.look is not None and pair.look.verdict is not None:
        return _decided_early(pair, pair.look.verdict, pair.look)
    if pair.stopping is not None and pair.stopping.early:
        return replace(pair, verdict="inconclusive", reason=f"{pair.stopping.sentence}; {STOPPED}")
    alpha = terms.alpha if pair.rule is None else left_for_the_last(terms.alpha)
    found = decide(pair.comparison, terms.margin, alpha, (beyond, different), pair.higher_is_better)
    shown = replace(pair.comparison, ci_low=found.ci_low, ci_high=found.ci_high)
    return replace(
        pair,
        comparison=shown,
        p_adjusted=beyond if found.verdict == "regression" else different,
        verdict=found.verdict,
        reason=_why(shown, found.verdict, terms),
    )


WHOLE: Final = "of what all items of this benchmark would say, and of no others (population: benchmark)"
STOPPED: Final = "a verdict on a part of the items takes the gate with stop: decided that it stopped by"


def _decided_early(pair: ComparedPair, verdict: Verdict, look: SequenceLook) -> ComparedPair:
    """The pair as its confidence sequence decided it, with the interval that did."""
    assert pair.comparison is not None
    ends = (look.ci_low, look.ci_high) if pair.higher_is_better else (-look.ci_high, -look.ci_low)
    shown = replace(pair.comparison, ci_low=ends[0], ci_high=ends[1])
    said = [pair.stopping.sentence] if pair.stopping is not None and pair.stopping.early else []
    said += [WHOLE] if pair.rule is not None and pair.rule.whole else []
    return replace(pair, comparison=shown, verdict=verdict, reason="; ".join(said) or None)


def _why(comparison: Comparison, found: Verdict, terms: GateTerms) -> str | None:
    """What an inconclusive pair lacks."""
    if found != "inconclusive":
        return None
    if comparison.too_few is not None:
        return comparison.too_few
    remedy = comparison.remedy(terms.margin, terms.alpha) if comparison.remedy is not None else None
    if math.isnan(comparison.p_value) or math.isnan(comparison.mde):
        return "; ".join(filter(None, (comparison.warning, remedy))) or None
    found_from = f"{comparison.n_items} items find differences from {comparison.mde:.4g} on"
    return "; ".join(filter(None, (found_from, f"the margin is {terms.margin:.4g}", remedy)))


LIKELIHOODS: Final = frozenset({"acc", "acc_norm", "acc_bytes", "acc_mutual_info"})
"""Accuracies of choices whose likelihoods were asked for."""
ASKED_OTHERWISE: Final = (
    "the runs asked for choices in different ways (choices_by): acc_letter is another number than acc, and "
    "the two are not compared"
)


def asked_otherwise(one: Collection[str], other: Collection[str]) -> bool:
    """Whether one run's metrics are of letters where the other's are of likelihoods."""
    return any("acc_letter" in a and not LIKELIHOODS.isdisjoint(b) for a, b in ((one, other), (other, one)))


def _unread(base: ComparedRun, candidate: ComparedRun, match: Match) -> str | None:
    """Why the baseline's rows of what the candidate alone has can't be read; None where it has none."""
    if match.base is not None or match.candidate is None:
        return None
    return base.unread.get(candidate.evaluation_of(match.candidate) or "")


def _why_missing(base: ComparedRun, candidate: ComparedRun, match: Match) -> str:
    if (unread := _unread(base, candidate, match)) is not None:
        return unread
    lacking = candidate if match.candidate is None else base
    if asked_otherwise([match.key.metric], {key.metric for key in lacking.groups}):
        return ASKED_OTHERWISE
    place = "candidate" if match.candidate is None else "baseline"
    telling = base.varying | candidate.varying
    failed = (error for key, error in lacking.failures.items() if _is_of(match.key, key, telling))
    return next((f"failed in the {place}: {error}" for error in failed), f"not in the {place}")


def _is_of(key: GroupKey, failed: GroupKey, telling: Collection[str]) -> bool:
    """Whether what failed in one run is the other run's group; ``telling`` is what tells groups apart."""
    if (failed.filter, failed.metric) != (key.filter, key.metric):
        return False
    place = {**dict(key.facets), "benchmark": key.benchmark}
    own = (*failed.facets, ("benchmark", failed.benchmark))
    return all(value in (place.get(name, value), UNKNOWN) or name not in telling for name, value in own)


def _higher_is_better(base: ComparedRun, candidate: ComparedRun, match: Match) -> bool:
    """The metric's direction, as the result rows of either run have it; up where they do not say."""
    sides = ((candidate, match.candidate), (base, match.base))
    directions = (
        row["higher_is_better"]
        for run, key in sides
        if key is not None
        for row in run.results
        if (row["benchmark"], row["filter"], row["metric"]) == (key.benchmark, key.filter, key.metric)
    )
    return next((bool(better) for better in directions if better is not None), True)
