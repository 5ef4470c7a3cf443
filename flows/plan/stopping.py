"""Whether a run may stop once its gate is decided, and how it then asks; else why all is asked."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flows.config.schema import Against, EvalConfig, Phase, RunOptions
from flows.plan.steps import FilterPlan, PairPlan, Plan, StopPlan
from metrics.errors import ConfigError
from metrics.statistics.sequence import SequenceLevels, expected_share
from tasks.comparison.compare import Gate
from tasks.comparison.matching import DEFAULT_REDUCTION
from tasks.comparison.stopping import APART, CROSSED, never_stops
from tasks.datasets.selection import cut
from tasks.decide import DecideSetup
from tasks.reduction.verdict_metrics import FILTER
from tasks.store.digests import file_digest
from tasks.store.keys import Step


def stop_plan(config: EvalConfig, filters: Sequence[FilterPlan], options: RunOptions) -> StopPlan | None:
    """How a run asks whose gate may end it early; None where all is asked."""
    against = options.against
    if against is None or against.gate.stop is None or options.phase is Phase.INFER:
        return None
    pairs = [pair for entry in filters for pair in entry.pairs]
    gated = [pair for pair in pairs if any(map(against.gate.covers, gate_names(pair)))]
    if not gated or next(all_is_asked(config, filters, against.gate), None) is not None:
        return None
    setup = DecideSetup(
        benchmark=config.name,
        models=tuple(model.name for model in config.models),
        pairs=tuple(pair.reduce.setup for pair in gated),
        gate=against.gate,
        baseline=against.baseline,
        seed=against.seed,
    )
    step: Step[DecideSetup] = Step(
        name=f"decide {config.name}", identity=_identity(against, gated, setup), setup=setup
    )
    stop = against.gate.stop
    return StopPlan(stop.blocks, stop.least, step, tuple(pair.name for pair in gated))


def gate_names(pair: PairPlan) -> list[str]:
    """The names by which a gate may mean a pair: one a reduction."""
    own = (reduction.name for reduction in pair.identity.metric.reductions)
    metric, of = pair.identity.metric.name, pair.identity.filter
    return [f"{metric},{of}" if name == DEFAULT_REDUCTION else f"{name}({metric}),{of}" for name in own]


def all_is_asked(config: EvalConfig, filters: Sequence[FilterPlan], gate: Gate) -> Iterator[str]:
    """Why a gate that stops never ends a run of this config early, a sentence each; nothing where it may."""
    pairs = [pair for entry in filters for pair in entry.pairs]
    for pair in pairs:
        reason, gated = (
            never_stops(pair.identity.metric.aggregation),
            [*filter(gate.covers, gate_names(pair))],
        )
        if reason is None and any(gate.for_pair(name).method == "unpaired" for name in gated):
            reason = APART
        if reason is not None and gated:
            yield _sentence(config, f"'{pair.name}' {reason}")
    for metric in config.metrics:
        if gate.covers(f"{metric.name},{FILTER}"):
            yield _sentence(config, f"'{metric.name}' is over the results of evaluation methods")
    if isinstance(config.cluster, tuple):
        yield _sentence(config, f"it {CROSSED}")
    if any(pair.arena is not None or pair.calibration is not None for pair in pairs):
        yield _sentence(config, "its judge compares models, or has a calibration")
    if served := [model.name for model in config.models if model.server is not None]:
        yield _sentence(config, f"'{served[0]}' is served for one pass over the items")
    if batched := [model.name for model in config.models if model.by_batch]:
        yield _sentence(config, f"'{batched[0]}' is asked by batches, and each may take hours")


def all_asked(plan: Plan, options: RunOptions) -> list[str]:
    """The sentences of ``all_is_asked`` for a run; nothing for one whose gate does not stop."""
    against = options.against
    if against is None or against.gate.stop is None:
        return []
    return list(dict.fromkeys(all_is_asked(plan.config, plan.filters, against.gate)))


ASSUMED = 0.1
"""Share of the items that differ between two runs of which nothing moved, where a plan has to assume one."""


def expected_asked(
    plan: Plan, options: RunOptions, items: int, requests: int | None
) -> dict[str, Any] | None:
    """How many requests a run that may stop is expected to send, by the pair that takes longest: where
    nothing moved, and where the loss is twice the margin. ``requests``: if it asks all ``items``; None where
    nobody knows. None for a run that asks all."""
    stopping, against = plan.stopping, options.against
    if stopping is None or against is None or not items:
        return None
    gate, alike, losing = against.gate, 0.0, 0.0
    for name in {name for pair in _gated(plan, gate) for name in gate_names(pair) if gate.covers(name)}:
        terms = gate.for_pair(name)
        levels = SequenceLevels.of_gate(terms.alpha, len(stopping.pairs) * gate.shares)
        looks = _looks(items, stopping)
        alike = max(alike, expected_share(levels, terms.margin, 0.0, ASSUMED, looks))
        losing = max(losing, expected_share(levels, terms.margin, 2 * terms.margin, ASSUMED, looks))
    shares = {"nothing_moved": alike, "twice_the_margin": losing}
    sent = {name: None if requests is None else round(share * requests) for name, share in shares.items()}
    first, second = (
        f"{share:.0%} of the items" + (f", {sent[name]:,} requests" if requests is not None else "")
        for name, share in shares.items()
    )
    said = (
        f"gate: stop: about {first}, where nothing moved (and {ASSUMED:.0%} of the items differ); {second}, "
        "where the loss is twice the margin"
    )
    return {"shares": shares, "requests": sent, "differ": ASSUMED, "said": said}


def _gated(plan: Plan, gate: Gate) -> list[PairPlan]:
    return [pair for pair in plan.pairs() if any(map(gate.covers, gate_names(pair)))]


def _looks(items: int, stopping: StopPlan) -> list[int]:
    """Items after which there is a look."""
    ends = cut(items, stopping.blocks)[1:]
    return [end for end in ends if end >= stopping.least or end == items]


def _sentence(config: EvalConfig, reason: str) -> str:
    return f"gate: stop: all items of {config.name} are asked: {reason}"


def _identity(against: Against, gated: Sequence[PairPlan], setup: DecideSetup) -> dict[str, object]:
    """What can change a look beside the rows: the gate, the baseline, how the pairs are reduced."""
    return {
        "gate": against.gate.model_dump(mode="json"),
        "baseline": [[_content(name) for name in night] for night in against.baseline],
        "seed": against.seed,
        "models": list(setup.models),
        "pairs": [dict(pair.reduce.identity) for pair in gated],
    }


def _content(name: str) -> str:
    """A run of the baseline: its id, or, of a folder, which may be written again, its item rows."""
    items = Path(name) / "items.parquet"
    if not Path(name).is_dir():
        return name
    if not items.is_file():
        raise ConfigError(f"--against {name}: it holds no items.parquet: expected a run's output folder")
    return file_digest(items)
