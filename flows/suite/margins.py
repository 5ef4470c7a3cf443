"""Which margins of a suite's gate its items are too few to decide: told before anything is asked.

``check_margins`` serves the command line and the flow. Where the store has runs of the benchmark, these tell
how its items spread. Else it can speak of metrics between 0 and 1 with one sample an item, whose spread at
best is known without an answer; of others only whether a test can reach its level.
"""

from collections.abc import Iterator
from itertools import islice

from flows.config.schema import EvalConfig
from flows.plan.build import benchmark_fields
from flows.plan.power import Asked, pair_powers, said_to_decide
from flows.suite.plan import PlannedEvaluation, PlannedNight
from metrics.errors import ConfigError, NightjarError
from metrics.metric import Metric
from metrics.statistics.power import items_needed, units_needed
from scorers.factory import build_scorer
from tasks.benchmarks.open import open_benchmark
from tasks.comparison.compare import Gate, GateTerms
from tasks.comparison.items import DEFAULT_REDUCTION
from tasks.store.storage import Store
from tasks.usercode.load import resolver

_ALL = 1 << 40


def check_margins(night: PlannedNight) -> list[str]:
    """A sentence for each gated margin that the items can't decide, with the number of items that would do.

    Raises ConfigError with them instead, where the gate says ``undecidable: refuse``.
    """
    gate = night.suite.gate
    if gate is None:
        return []
    found = (line for entry in night.evaluations for line in _undecidable(entry, gate))
    sentences = list(dict.fromkeys(found))
    if sentences and gate.undecidable == "refuse":
        raise ConfigError(
            "\n".join([*sentences[:2], "take more items or wider margins, or undecidable: warn"])
        )
    return sentences


def _undecidable(planned: PlannedEvaluation, gate: Gate) -> Iterator[str]:
    if planned.config is None:
        return
    needs = [
        (name, terms, needed)
        for name, terms, repeats in _gated(planned.config, gate)
        if (needed := _needed(terms, repeats)) is None or needed > 1
    ]
    most = max((needed or 1 for *_, needed in needs), default=0)
    items = _count(planned, most) if needs else 0
    known = _from_history(planned, gate)
    yield from known.values()
    needs = [entry for entry in needs if entry[0] not in known]
    for name, terms, needed in needs:
        said = f"gate: {name} of {planned.config.name}:"
        if needed is None:
            yield f"{said} no number of items decides a margin of {terms.margin:g}"
        elif items < needed:
            yield f"{said} {items} items can't decide a margin of {terms.margin:g}; {needed} would do"


def _from_history(planned: PlannedEvaluation, gate: Gate) -> dict[str, str]:
    """Sentences for the pairs whose spread the store's last runs tell, as ``python -m flows.power`` does."""
    assert planned.config is not None
    found: dict[str, str] = {}
    if planned.options.store is None:
        return found
    store = Store(planned.options.store)
    for name, terms, _ in _gated(planned.config, gate):
        items = _count(planned, _ALL)
        for power in pair_powers(planned.config, store, Asked(items, terms.margin, terms.alpha)):
            if power.pair != name or power.assumed or power.decides is None or power.decides <= terms.margin:
                continue
            would = next(design.items for design in power.designs if design.samples == power.samples)
            said = said_to_decide(power.items, power.samples, power.decides)
            found[name] = (
                f"gate: {name} of {planned.config.name}: {said} ({power.source}), and it is "
                f"{terms.margin:g}; {'no number' if would is None else would} would do"
            )
    return found


def _gated(config: EvalConfig, gate: Gate) -> Iterator[tuple[str, GateTerms, bool]]:
    """The gated pairs with their terms, and whether an item is simply right or wrong."""
    scorer = build_scorer(config.scoring(), resolver(config.base_dir))
    once = all(config.sampling(model).num_samples == 1 for model in config.models)
    once = once and len(open_benchmark(benchmark_fields(config)).prompt_names()) == 1
    for entry in config.filters():
        for metric in scorer.get_metrics(entry.name):
            name = f"{metric.name},{entry.name}"
            if gate.covers(name) and any(one.name == DEFAULT_REDUCTION for one in metric.reductions):
                yield name, gate.for_pair(name), once and _right_or_wrong(metric)


def _right_or_wrong(metric: Metric) -> bool:
    return metric.aggregation.rule == "mean" and metric.aggregation.bounds == (0.0, 1.0)


def _needed(terms: GateTerms, right_or_wrong: bool) -> int | None:
    if right_or_wrong:
        return items_needed(terms.margin, terms.alpha)
    return units_needed(terms.alpha) if terms.margin > 0 else None


def _count(planned: PlannedEvaluation, most: int) -> int:
    """The evaluation's items, counted up to ``most``; that many where they can't be read: it fails by
    itself."""
    assert planned.config is not None
    limit = planned.options.limit
    try:
        items = open_benchmark(benchmark_fields(planned.config)).items()
        return sum(1 for _ in islice(items, most if limit is None else min(most, limit)))
    except NightjarError:
        return most
