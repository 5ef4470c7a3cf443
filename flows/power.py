"""``python -m flows.power CONFIG [--margin .02] [--power .8]``: what a gate takes to decide: items ×
samples, requests, tokens and cost, from history or assumed.

An item's difference between two runs spreads as it did between the last two runs of the benchmark that
the history holds and that asked for their answers each: a rerun from kept answers is the same run once more,
and items that rest on a shared answer are left out. Of one run, its repeats tell, or its share of right
answers, as if both runs were unrelated. Without any, a share of items is assumed to differ. What of that more
samples take away is measured by repeats; where it was not, the numbers are a range: from all of it to none.
``--dry-run`` and suites' checks say the same numbers.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from flows.command_line import App, examples, print_json
from flows.config.schema import EvalConfig
from flows.plan.build import scoring_config
from flows.plan.fields import benchmark_fields
from metrics.aggregation import build_aggregation
from metrics.config import StatisticsConfig
from metrics.errors import ConfigError, NightjarError
from metrics.statistics.clusters import FEW_NUMBERS, numbered
from metrics.statistics.comparison import range_of
from metrics.statistics.formulas import Sampled, influences
from metrics.statistics.gate import PairSpread
from metrics.statistics.power import POWER
from scorers.factory import build_scorer
from tasks.benchmarks.open import open_benchmark
from tasks.comparison.matching import DEFAULT_REDUCTION, join, match_runs, result_key, shared_clusters
from tasks.comparison.runs import ComparedRun, recorded_run
from tasks.comparison.sharing import Shared, SharedAnswers
from tasks.comparison.stopping import stopped_sentence
from tasks.history.query import query
from tasks.models.limits.spending import cost_of
from tasks.reporting import numbers
from tasks.store.home import default_store
from tasks.store.storage import Store
from tasks.usercode.load import resolver

Bounds = tuple[float, float]
SHARES: Bounds = (0.0, 1.0)
SAMPLES = (1, 2, 4, 8, 16)
ASSUMED = 0.1
"""Share of right-or-wrong items that differ between two runs, where nothing tells."""
ASSUMES = "assumed"
LAST_RUNS = 10
"""Runs of a benchmark on a model that are looked through for two with answers of their own."""
OWN_ITEMS = 0.5
"""Share of the items of two runs that has to rest on answers of their own in both."""


@dataclass(frozen=True)
class Asked:
    """What is to be decided. ``differ`` is the share of items that is assumed to differ, instead of what the
    history says; ``items`` counts the dataset's."""

    items: int
    margin: float = 0.01
    alpha: float = 0.05
    power: float = POWER
    differ: float | None = None


@dataclass(frozen=True)
class Cost:
    """Requests of a model, and what they take as far as an earlier run tells; None: nothing tells."""

    requests: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None


@dataclass(frozen=True)
class Design:
    """So many samples of so many items decide; ``items`` is None where no number of them does, ``fits``
    whether the dataset has them. ``fewest`` would do if samples took away all that items differ by, where
    that was not measured; else it is ``items``."""

    samples: int
    items: int | None
    fits: bool
    cost: Cost | None
    fewest: int | None = None


@dataclass(frozen=True)
class PairPower:
    """A pair on a model: which margin its items decide now, which loss beyond the one asked for they call a
    regression, and the designs that decide that one. None: no loss that the metric can have."""

    pair: str
    model: str
    source: str
    items: int
    samples: int
    margin: float
    decides: float | None
    finds: float | None
    assumed: bool
    designs: tuple[Design, ...]
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def pair_powers(config: EvalConfig, history: "History", asked: Asked) -> list[PairPower]:
    """Every pair whose number is a mean of items, on every model; others have no spread an item."""
    return [
        power
        for model in config.models
        for name, ends in _mean_pairs(config)
        if (power := _pair_power(config, (model.name, name, ends), history, asked)) is not None
    ]


def _pair_power(
    config: EvalConfig, of: tuple[str, str, Bounds], history: "History", asked: Asked
) -> PairPower | None:
    name, pair, ends = of
    shares = ends == SHARES
    model = next(entry for entry in config.models if entry.name == name)
    sampling = config.sampling(model)
    samples, greedy = sampling.num_samples, sampling.temperature == 0
    known = history.spread(config.name, name, pair, ends) if asked.differ is None else None
    if known is None:
        if not shares:
            return None
        share = ASSUMED if asked.differ is None else asked.differ
        known = _Known.of_total(share, 1, 1.0, f"{ASSUMES}: {share:.0%} of the items differ")
    spreads = known.greedy(samples) if greedy else known.spreads
    if not (all(map(math.isfinite, ends)) or history.right_or_wrong(config.name, name, pair)):
        spreads = tuple(replace(one, least=FEW_NUMBERS) for one in spreads)
    answers = 1 if greedy else samples
    decides = max(one.margin(asked.items, answers, asked.alpha, asked.power) for one in spreads)
    finds = max(
        one.loss_found(asked.margin, asked.items, answers, asked.alpha, asked.power) for one in spreads
    )
    source = known.source
    each = _cost_each(config, name, history) if asked.differ is None else _Each()
    designs = tuple(
        _design(spreads, (count, 1 if greedy else count), asked, each)
        for count in sorted({*SAMPLES, samples})
    )
    return PairPower(
        pair=pair,
        model=name,
        source=source,
        items=asked.items,
        samples=samples,
        margin=asked.margin,
        decides=_possible(decides, ends),
        finds=_possible(finds, ends),
        assumed=source.startswith(ASSUMES),
        designs=designs,
        warning=_same_request(samples) if greedy and samples > 1 else None,
    )


def _possible(loss: float, ends: Bounds) -> float | None:
    """None for a loss that is unknown, or larger than any of a metric with these bounds."""
    return loss if loss <= ends[1] - ends[0] else None


def _same_request(samples: int) -> str:
    return f"{samples} samples at temperature 0 are {samples} times the same request: they say what one says"


def _design(spreads: Sequence[PairSpread], counts: tuple[int, int], asked: Asked, each: "_Each") -> Design:
    """Of so many samples, and so many answers of their own among them."""
    samples, answers = counts
    found = [one.items_for(asked.margin, answers, asked.alpha, asked.power) for one in spreads]
    known = [items for items in found if items is not None]
    fewest = min(known, default=None)
    if len(known) < len(found):
        return Design(samples, None, False, None, fewest)
    items = max(known)
    return Design(samples, items, items <= asked.items, each.of(items * samples), fewest)


@dataclass(frozen=True)
class _Known:
    """What is known of an item's difference, from where: one spread, or two between which it lies."""

    spreads: tuple[PairSpread, ...]
    source: str

    @classmethod
    def of_total(cls, variance: float, samples: float, width: float, source: str) -> "_Known":
        """Of a variance at so many samples of which nothing says what more of them take away."""
        kept, taken = PairSpread(variance, 0.0, width), PairSpread(0.0, variance * samples, width)
        return cls((kept, taken), source)

    def greedy(self, samples: int) -> tuple[PairSpread, ...]:
        """The same where each sample is the same answer: more of them take nothing away."""
        return tuple({PairSpread(one.variance(samples), 0.0, one.width): None for one in self.spreads})


@dataclass(frozen=True)
class _Each:
    """What one sample takes: requests, and tokens where an earlier run counted them."""

    requests: float = 1.0
    prompt: float | None = None
    completion: float | None = None
    price: Any = None

    def of(self, samples: int) -> Cost:
        requests = math.ceil(samples * self.requests)
        if self.prompt is None or self.completion is None:
            return Cost(requests, None, None, None)
        prompt, completion = round(requests * self.prompt), round(requests * self.completion)
        cost = None if self.price is None else cost_of(prompt, completion, 0, self.price)
        return Cost(requests, prompt, completion, cost)


def _cost_each(config: EvalConfig, model: str, history: "History") -> _Each:
    price = config.prices.of(model)
    for run in history.runs(config.name, model):
        tally: Mapping[str, Any] = (run.manifest.get("models") or {}).get(model) or {}
        samples = max(
            (row["n_samples"] for row in run.results if row["model_name"] in (model, None)), default=0
        )
        if not tally.get("requests") or not samples:
            continue
        requests, sent = tally["requests"] / samples, tally.get("sent") or 0
        if sent:
            return _Each(requests, tally["prompt_tokens"] / sent, tally["completion_tokens"] / sent, price)
    return _Each()


def _mean_pairs(config: EvalConfig) -> Iterator[tuple[str, Bounds]]:
    """The pairs whose number is a mean of items, as "metric,filter", and the bounds of that number."""
    scorer = build_scorer(scoring_config(config), resolver(config.base_dir))
    for entry in config.filters():
        for metric in scorer.get_metrics(entry.name):
            reduced = any(one.name == DEFAULT_REDUCTION for one in metric.reductions)
            if reduced and metric.aggregation.averages:
                yield f"{metric.name},{entry.name}", metric.aggregation.bounds


class History:
    """The last runs of some benchmarks in a store, those of each model apart, newest first.

    The store is looked through once, however many benchmarks and models are asked for.
    """

    def __init__(self, store: Store, benchmarks: Iterable[str]) -> None:
        self._store = store
        self._shared = SharedAnswers(store)
        self._ids = _last_runs(store, sorted(set(benchmarks)))
        self._opened: tuple[str, dict[str, ComparedRun | None]] = ("", {})

    def runs(self, benchmark: str, model: str) -> Iterator[ComparedRun]:
        """The last runs of a benchmark that a model is in, as far as they can be read; each is read when it
        comes, and kept until another benchmark is asked for."""
        if self._opened[0] != benchmark:
            self._opened = (benchmark, {})
        opened = self._opened[1]
        for run_id in self._ids.get((benchmark, model), ()):
            if run_id not in opened:
                opened[run_id] = self._open(run_id)
            if (run := opened[run_id]) is not None:
                yield run

    def _open(self, run_id: str) -> ComparedRun | None:
        try:
            return recorded_run(run_id, self._store)
        except NightjarError:
            return None

    def spread(self, benchmark: str, model: str, pair: str, ends: Bounds) -> _Known | None:
        """The spread that the runs tell, and how; None where they don't. ``ends`` are the metric's: items
        that hardly differ hide others that may, by as much as the range."""
        found = self._rows(benchmark, model, pair)
        run, newest = next(found, (None, None))
        if run is None or newest is None or not newest["n_items"] or newest["stderr"] is None:
            return None
        shares, width = ends == SHARES, ends[1] - ends[0]
        items, name = newest["n_items"], run.name
        stopped = run.manifest.get("stopped")
        early = f" ({stopped_sentence(stopped)})" if stopped else ""
        samples, sampling = _samples_each(newest), _sampling(newest)
        second = self._second(run, newest, (base for base, _ in found))
        if second is not None:
            base, variance, own = second
            source = f"from {own:,} items of {base.name} and {name}{early}"
            if (other := _row(base, model, pair)) is not None:
                # Each run adds what its own samples leave: half of the sampling over its count.
                samples = 2 / (1 / samples + 1 / _samples_each(other))
                sampling = _sampling(other) if sampling is None else sampling
            if sampling is None:
                return _Known.of_total(variance, samples, width, source)
            sampling = min(sampling, variance * samples)
            return _Known((PairSpread(variance - sampling / samples, sampling, width),), source)
        if sampling:
            return _Known((PairSpread(0.0, sampling, width),), f"from the repeats of {name}{early}")
        if sampling == 0 and shares:  # repeats that are all the same say nothing of another run
            kept = PairSpread(ASSUMED, 0.0, width)
            return _Known((kept,), f"{ASSUMES}: {ASSUMED:.0%} of the items differ; {name}'s repeats do not")
        source = f"from {name}{early}, taking two runs as unrelated"
        unrelated = 2 * items * newest["stderr"] ** 2
        if not shares:
            return _Known((PairSpread(unrelated, 0.0, width),), source)
        return _Known.of_total(unrelated, samples, width, source)

    def _rows(self, benchmark: str, model: str, pair: str) -> Iterator[tuple[ComparedRun, Mapping[str, Any]]]:
        """The model's last runs that have the pair, with its row."""
        return ((run, row) for run in self.runs(benchmark, model) if (row := _row(run, model, pair)))

    def right_or_wrong(self, benchmark: str, model: str, pair: str) -> bool:
        """Whether the numbers of the last run are 0 and 1, which a gate takes for their range."""
        found = self._rows(benchmark, model, pair)
        run, newest = next(found, (None, None))
        if run is None or newest is None or (group := run.groups.get(result_key(newest))) is None:
            return False
        values = group.value
        return len(values) > 0 and math.isfinite(range_of(build_aggregation("mean"), values, values)[0])

    def _second(
        self, candidate: ComparedRun, newest: Mapping[str, Any], earlier: Iterator[ComparedRun]
    ) -> tuple[ComparedRun, float, int] | None:
        """The last run before with answers of its own, the variance of an item's difference to it, and of how
        many items."""
        for base in earlier:
            place = newest["model_name"], newest["prompt_template"]
            shared = self._shared.items(base.manifest, candidate.manifest, *place)
            if (paired := _paired(base, candidate, newest, shared)) is not None:
                return base, *paired
        return None


def _last_runs(store: Store, benchmarks: Sequence[str]) -> dict[tuple[str, str], list[str]]:
    """The ids of the last runs by benchmark and model, newest first; empty where there is no history."""
    if not benchmarks:
        return {}
    names = ", ".join("'" + name.replace("'", "''") + "'" for name in benchmarks)
    try:
        rows = query(
            store,
            f"""
            WITH asked AS (
                SELECT benchmark, run_id, started, unnest(json_keys(manifest, '$.models')) AS model
                FROM runs WHERE benchmark IN ({names})
            )
            SELECT benchmark, model, run_id FROM asked
            QUALIFY row_number() OVER (PARTITION BY benchmark, model ORDER BY started DESC) <= {LAST_RUNS}
            ORDER BY started DESC
            """,
        ).rows
    except NightjarError:
        return {}
    found: dict[tuple[str, str], list[str]] = {}
    for benchmark, model, run_id in rows:
        found.setdefault((benchmark, model), []).append(run_id)
    return found


def _row(run: ComparedRun, model: str, pair: str) -> Mapping[str, Any] | None:
    """The model's result row of the pair, without labels or facets of the user's."""
    for row in run.results:
        key = result_key(row)
        if (
            key.pair == pair
            and row["status"] == "ok"
            and row["label"] is None
            and row["model_name"] in (model, None)
        ):
            return row
    return None


def _samples_each(row: Mapping[str, Any]) -> float:
    """How often a run asked each item of a row, on average."""
    return max((row["n_samples"] or 0) / (row["n_items"] or 1), 1.0)


def _sampling(row: Mapping[str, Any]) -> float | None:
    """What one sample adds to the variance of an item's difference between two runs, as the row's repeats
    tell; None where it has none."""
    measured = row["stderr_sampling"]
    return None if measured is None else float(2 * _samples_each(row) * (row["n_items"] or 0) * measured**2)


def _paired(
    base: ComparedRun, candidate: ComparedRun, row: Mapping[str, Any], shared: Shared
) -> tuple[float, int] | None:
    """The variance of an item's difference between two runs, clusters allowed for, and how many items it is
    of; None where too few rest on answers of their own in both."""
    wanted = result_key(row)
    for match in match_runs(base.groups, candidate.groups):
        if match.candidate != wanted or match.base is None:
            continue
        before, after = base.groups[match.base], candidate.groups[wanted]
        joined = join(before, after)
        own = np.array([item not in shared for item in after.item_ids[joined.candidate]], dtype=np.bool_)
        if own.sum() < max(2, OWN_ITEMS * len(own)):
            return None
        rows, later = joined.base[own], joined.candidate[own]
        moved = after.value[later] - before.value[rows]
        groups = numbered(shared_clusters((before, rows), (after, later)))
        sampled = Sampled.of(build_aggregation("mean"), moved.reshape(-1, 1), groups, StatisticsConfig())
        influence = influences(sampled)
        if influence is None or sampled.independent < 2:
            return None
        return sampled.spread(influence)[0] ** 2 * len(rows), len(rows)
    return None


def said_to_decide(items: int, samples: int, decides: float | None) -> str:
    """What a run decides, in words."""
    taken = f"{numbers.plural(items, 'item')} × {numbers.plural(samples, 'sample')}"
    what = "no loss" if decides is None else f"losses over {decides:.2g}"
    return f"{taken} can rule out {what}"


app = App()


@app.command(
    epilog=examples(
        "python -m flows.power my_benchmark.yaml --margin 0.02",
    )
)
def power_command(
    config: Annotated[Path, typer.Argument(help="YAML file of the evaluation")],
    margin: Annotated[
        float, typer.Option(min=0, help="loss that a gate accepts, in the metric's units")
    ] = 0.02,
    power: Annotated[float, typer.Option(min=0.5, max=0.999, help="chance that the gate decides")] = 0.8,
    alpha: Annotated[float, typer.Option(min=0.0001, max=0.5, help="level of the gate")] = 0.05,
    differ: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="share of items that differ between two runs; default: the history's"
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="only the first items")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="KEY=VALUE, over the config")] = None,
    store: Annotated[str | None, typer.Option(help="URI of the artifact store")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False,
) -> None:
    """Says what decides a gate: items × samples, requests, tokens and cost.

    A margin is decided where a candidate as good as the baseline passes with the power asked for.
    """
    from flows.config.load import load_configs

    if not math.isfinite(margin):
        raise ConfigError(f"--margin {margin}: expected a finite number")
    place = Store(store or default_store())
    place.check_readable()
    documents = []
    configs = load_configs(config, tuple(overrides or ()))
    history = History(place, () if differ is not None else [loaded.name for loaded in configs])
    for loaded in configs:
        items = islice(open_benchmark(benchmark_fields(loaded)).items(), limit)
        asked = Asked(sum(1 for _ in items), margin, alpha, power, differ)
        pairs = pair_powers(loaded, history, asked)
        documents.append(
            {
                "benchmark": loaded.name,
                "margin": margin,
                "alpha": alpha,
                "power": power,
                "currency": loaded.prices.currency,
                "pairs": [pair.as_dict() for pair in pairs],
            }
        )
        if not as_json:
            _show(loaded.name, pairs, loaded.prices.currency)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else {"benchmarks": documents})


def _show(benchmark: str, pairs: Sequence[object], currency: str | None) -> None:
    from tasks.reporting.tables import Column, FittedTable
    from tasks.reporting.terminal import console

    out = console()
    if not pairs:
        out.print(f"{benchmark}: no pair whose number is a mean of items, or nothing says how they spread")
    for pair in pairs:
        assert isinstance(pair, PairPower)
        out.print(f"{benchmark}, {pair.pair}, {pair.model}: {pair.source}")
        finds = "" if pair.finds is None else f", and call a loss of {pair.finds:.2g} a regression"
        out.print(
            f"  {said_to_decide(pair.items, pair.samples, pair.decides)}{finds}; to rule out {pair.margin:g}:"
        )
        if pair.warning:
            out.print(f"  {pair.warning}")
        cost = f"Cost ({currency})" if currency else "Cost"
        names = ("Samples", "Items", "Requests", "Prompt tokens", "Completion tokens", cost, "Note")
        rows = [_design_cells(design) for design in pair.designs]
        columns = [Column(name, right=name != "Note", second=name == "Note") for name in names]
        out.print(FittedTable(columns, rows))


def _design_cells(design: Design) -> list[str]:
    taken = design.cost
    return [
        str(design.samples),
        _items(design),
        numbers.count(taken.requests if taken else None),
        numbers.count(taken.prompt_tokens if taken else None),
        numbers.count(taken.completion_tokens if taken else None),
        numbers.money(taken.cost if taken else None),
        "" if design.fits or design.items is None else "more than the dataset has",
    ]


def _items(design: Design) -> str:
    """How many items decide; from the fewest to the most, where nothing says what samples take away."""
    if design.items is None:
        return "no number"
    most = numbers.count(design.items)
    if design.fewest in (None, design.items):
        return most
    return f"{numbers.count(design.fewest)} to {most}"


main = app.main

if __name__ == "__main__":
    main()
