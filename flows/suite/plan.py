"""A suite: which benchmarks on which models every night, against what the outcome is held, and what of it
is refused before it begins.

.. code-block:: yaml

    name: nightly
    benchmarks:
      - ../benchmarks/demo/gsm8k.yaml
      - {config: ../benchmarks/gsm8k/gsm8k.yaml, limit: 200, set: {statistics.seed: 1}}
    models: [{name: qwen, config: {base_url: "http://localhost:8000/v1"}}]   # without: each benchmark's own
    baseline: last-passed        # last-passed | last | rolling | a suite's or an evaluation's run
    gate: gate.yaml              # or the gate itself
    answers: fresh               # fresh | reuse | {max_age: 20h}; without: what each benchmark says

``plan_night`` decides ids and folders for the flow and its retries alike; ``check_suite`` serves the
command line, which wants to know at once what the flow would let fail alone. ``check_margins`` tells both
which margins of the gate the items are too few to decide. Where the store has runs of the benchmark,
these tell how its items spread. Else it can speak of metrics between 0 and 1 with one sample an item,
whose spread at best is known without an answer; of others only whether a test can reach its level.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator

from flows.compare.runs import load_gate
from flows.config.errors import Problem, problem_of, refusal, schema_problems, validated
from flows.config.files import kept_outputs
from flows.config.load import load_configs
from flows.config.models import with_checkpoints
from flows.config.schema import Against, EvalConfig, RunOptions
from flows.config.source import OVERRIDE, override, read_yaml
from flows.eval.start import is_new_checkpoint, run_id_of
from flows.plan.build import make_plan
from flows.plan.fields import benchmark_fields
from flows.plan.stopping import all_is_asked
from flows.power import Asked, History, pair_powers, said_to_decide
from metrics.aliases import nearest
from metrics.config import WEB, Strict
from metrics.errors import ConfigError, NightjarError
from metrics.metric import Metric
from metrics.names import check_name
from metrics.statistics.power import items_needed, units_needed
from scorers.factory import build_scorer
from tasks.benchmarks.open import open_benchmark
from tasks.comparison.compare import Gate, GateTerms
from tasks.comparison.matching import DEFAULT_REDUCTION
from tasks.history.nights import LAST_PASSED, Night, baseline_nights, past_nights
from tasks.models.config import Answers, ModelConfig
from tasks.rows.parts import tells_samples_apart
from tasks.store.durations import Seconds
from tasks.store.home import default_store, named_path, results_folder, slug, ui_key
from tasks.store.keys import digest
from tasks.store.storage import Store, store_uri
from tasks.usercode.load import check_named, check_trusted, resolver


class SuiteBenchmark(Strict):
    """One benchmark of a suite; a path alone is enough."""

    ALONE = "config"

    config: str = Field(min_length=1, description="Its YAML file, relative to the suite's")
    limit: int | None = Field(None, ge=1, description="Only the first items")
    set: dict[str, Any] = Field(default_factory=dict, description="Overrides, as --set on the command line")


class WatchConfig(Strict):
    """Address of a dead-man's switch for the watch."""

    ping_url: str = Field(
        pattern=WEB,
        description="Called after every look of the watch: a dead-man's switch elsewhere",
    )


class SuiteConfig(Strict):
    """A suite file."""

    name: str = Field(min_length=1, description="Name of the suite in the history")
    benchmarks: tuple[SuiteBenchmark, ...] = Field(min_length=1)
    models: tuple[ModelConfig, ...] = Field(
        (), description="Models for all benchmarks; without: each one's own"
    )
    baseline: str = Field(
        LAST_PASSED, min_length=1, description="last-passed | last | rolling | first | a run's id"
    )
    gate: Gate | None = Field(None, description="The gate, or the name of its file")
    answers: Answers | None = Field(
        None, description="Which kept answers are used, for all benchmarks; default: what each one says"
    )
    canaries: int = Field(
        5,
        ge=0,
        description="Kept requests asked again before answers are reused: has the model changed? "
        "Two must differ: 5 find a change of half of the answers with a chance of .8, 29 one of a tenth",
    )
    nights: int = Field(
        7, ge=2, description="Nights that the rolling baseline and flapping items look back on"
    )
    parallel: int = Field(2, ge=1, description="Evaluations at once")
    retries: int = Field(0, ge=0, description="How often an evaluation that lacks something is tried again")
    retry_delay: float = Field(60.0, ge=0, description="Seconds before it is")
    timeout: Seconds | None = Field(
        None, description="How long a night may take, such as 6h; then it ends under the name TimedOut"
    )
    watch: WatchConfig | None = Field(None, description="Address of a dead-man's switch for the watch")
    seed: int = Field(0, ge=0, description="Seed of the random order of the items, for a gate with stop")
    base_dir: str = Field(".", description="Folder that paths are relative to: the suite file's")

    @field_validator("name", mode="after")
    @classmethod
    def _can_be_shown(cls, name: str) -> str:
        return check_name(name)

    @field_validator("models", mode="after")
    @classmethod
    def _apart(cls, models: tuple[ModelConfig, ...]) -> tuple[ModelConfig, ...]:
        names = [model.name for model in models]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"model '{min(twice)}' is there twice; give each a name of its own")
        return models

    def files(self) -> tuple[Path, ...]:
        """The benchmarks' files."""
        return tuple(Path(self.base_dir) / benchmark.config for benchmark in self.benchmarks)


def load_suite(path: str | Path) -> SuiteConfig:
    """Reads a suite file; raises ConfigError, one line for each thing that is wrong, with file and line."""
    file = Path(path)
    source = read_yaml(file)
    if "dataset" in source.data and "benchmarks" not in source.data:
        raise ConfigError(
            f"{file.name}: holds one benchmark, not a suite; run it: python -m flows.eval {file}"
        )
    home = file.resolve().parent
    data = {"base_dir": str(home)} | source.data
    if "\0" in str(data["base_dir"]):
        raise refusal(source, [Problem(("base_dir",), "holds a NUL, which no path has")])
    if Path(str(data["base_dir"])).resolve() != home:
        check_trusted(home, f"{file.name}, which is about {data['base_dir']},")
    if isinstance(data.get("gate"), str):
        gate = named_path(str(data["base_dir"]), data["gate"])
        if unread := list(problem_of(("gate",), lambda: _read_named(gate, home, data["gate"]))):
            raise refusal(source, unread)
        data["gate"] = load_gate(gate)
    return validated(SuiteConfig, source, data)


def _read_named(file: Path, home: Path, name: str) -> None:
    """Raises ConfigError for a file that the suite's folder may not name, and for one that can't be read."""
    check_named(file, home, name)
    read_yaml(file)


class SuiteOptions(Strict):
    """How one run of a suite goes about it."""

    limit: int | None = Field(None, ge=1, description="Only the first items of every benchmark")
    output: str | None = Field(
        None, min_length=1, description="Folder of the night's files; default: results/<id>"
    )
    store: str | None = Field(None, min_length=1, description="URI of the artifact store")
    baseline: str | None = Field(None, description="Instead of the suite's own")
    night: str | None = Field(None, description="Night that answers are asked for in; default: this flow run")
    only: tuple[str, ...] | None = Field(
        None, description="Names of the evaluations to run, as BENCHMARK × MODEL; default: all"
    )


def suite_of(parameters: Mapping[str, Any]) -> tuple[SuiteConfig, SuiteOptions]:
    """What the flow run, or the deployment, of these parameters evaluates. Raises ConfigError where they are
    no suite's, and as ``load_suite`` does."""
    file = parameters.get("suite")
    if not isinstance(file, str):
        raise ConfigError("there is no parameter 'suite'; give it the suite's file")
    given = parameters.get("options") or {}
    try:
        options = SuiteOptions.model_validate(given)
    except ValidationError as error:
        place, said = schema_problems(error, SuiteOptions, given)[0]
        raise ConfigError(f"{'.'.join(map(str, ('options', *place)))}: {said}") from error
    return load_suite(file), options


@dataclass(frozen=True)
class PlannedEvaluation:
    """One benchmark on one model. ``refusal`` says why it can't be run; it then has no config."""

    name: str
    options: RunOptions
    config: EvalConfig | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class PlannedNight:
    """A suite's evaluations with everything decided: ids, folders, store.

    ``run_id`` is this run's; ``night`` is the night that it asks in, which a run that goes on with an
    unfinished one has from there. ``only`` is None where it leaves out no evaluation of the suite.
    """

    suite: SuiteConfig
    run_id: str
    night: str
    store: str
    output: str
    baseline: str
    evaluations: tuple[PlannedEvaluation, ...]
    limit: int | None = None
    only: tuple[str, ...] | None = None

    @property
    def slug(self) -> str:
        """The suite's name as part of file names and artifact keys."""
        return slug(self.suite.name)

    def nights_called(self, baseline: str, past: Sequence[Night]) -> list[Night]:
        """The nights that ``baseline`` names among past ones. Raises ConfigError for none such."""
        return baseline_nights(Store(self.store), past, baseline, self.suite.nights, self.limit, self.only)

    @property
    def artifact_key(self) -> str:
        """The suite's name as Prefect takes it in keys and resources."""
        return ui_key(self.suite.name)


def plan_night(suite: SuiteConfig, options: SuiteOptions, unique: str) -> PlannedNight:
    """The night's evaluations, benchmarks × models; ``unique`` is the same for a flow run and its retries.

    A benchmark whose config is refused becomes an evaluation that fails: the others are not its hostages.
    Raises ConfigError for a name of ``only`` that no evaluation has.
    """
    run_id = run_id_of(suite.name, unique)
    night = PlannedNight(
        suite=suite,
        run_id=run_id,
        night=options.night or unique,
        store=store_uri(options.store or default_store()),
        output=str(Path(options.output or results_folder() / run_id).resolve()),
        baseline=options.baseline or suite.baseline,
        evaluations=(),
        limit=options.limit,
    )
    planned = tuple(
        evaluation
        for benchmark, file in zip(suite.benchmarks, suite.files(), strict=True)
        for evaluation in _planned(night, benchmark, file, options)
    )
    names = [evaluation.name for evaluation in planned]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"suite '{suite.name}': '{min(twice)}' is there twice; give the benchmarks names of their own"
        )
    folders = _folders(names)
    chosen = planned if options.only is None else _chosen(suite, planned, options.only)
    placed = tuple(_placed(night, entry, folders[entry.name]) for entry in chosen)
    return replace(night, evaluations=placed, only=_named_part(suite, planned, chosen))


def _chosen(
    suite: SuiteConfig, planned: Sequence[PlannedEvaluation], only: Sequence[str]
) -> tuple[PlannedEvaluation, ...]:
    names = [entry.name for entry in planned]
    unknown = next((name for name in only if name not in names), None)
    if unknown is not None and not _checkpoints_come_and_go(suite):
        said = f"suite '{suite.name}': only: there is no evaluation '{unknown}'{nearest(unknown, names)}"
        refusals = (entry.refusal for entry in planned if entry.refusal is not None)
        raise ConfigError("\n".join(dict.fromkeys((said, *refusals))))
    return tuple(entry for entry in planned if entry.name in only)


def _named_part(
    suite: SuiteConfig, planned: Sequence[PlannedEvaluation], chosen: Sequence[PlannedEvaluation]
) -> tuple[str, ...] | None:
    """The names of the chosen evaluations, if others were left out. A checkpoint that is not evaluated in
    this night is in another one, which is as whole."""
    left_out = [entry for entry in planned if entry not in chosen]
    if left_out and _checkpoints_come_and_go(suite):
        left_out = [entry for entry in left_out if not _serves_weights(entry)]
    return tuple(entry.name for entry in chosen) if left_out else None


def _serves_weights(entry: PlannedEvaluation) -> bool:
    models = entry.config.models if entry.config is not None else ()
    return any(model.path is not None or model.peft is not None for model in models)


def _checkpoints_come_and_go(suite: SuiteConfig) -> bool:
    with suppress(NightjarError):  # what can't be read fails by itself
        return bool(watched_models(suite))
    return False


def may_stop(night: PlannedNight, past: Sequence[Night], baseline: Sequence[Night] | None) -> PlannedNight:
    """The night with its evaluations compared with the baseline while they ask, where the gate has ``stop``.

    Every ``full_every`` nights one asks all items, which the next ones are compared with. A night that was
    cancelled or crashed has asked nothing.
    """
    gate = night.suite.gate
    if gate is None or gate.stop is None or not baseline:
        return night
    alike = [entry for entry in past if entry.asks_just(night.limit, night.only)]
    since = sum(1 for _ in takewhile(lambda entry: not entry.asked_all, reversed(alike)))
    if since >= gate.stop.full_every - 1:
        return night
    runs = tuple(tuple(entry.run_id for entry in earlier.evaluations) for earlier in baseline)
    against = Against(gate=gate, baseline=runs, seed=night.suite.seed)
    evaluations = tuple(
        replace(entry, options=entry.options.model_copy(update={"against": against}))
        for entry in night.evaluations
    )
    return replace(night, evaluations=evaluations)


def watched_models(suite: SuiteConfig) -> list[str]:
    """Names of the models of which only new checkpoints are evaluated."""
    configs = [
        config for file in suite.files() for config in load_configs(file, strict=False, suite=suite.base_dir)
    ]
    models = [*suite.models, *(model for config in configs for model in config.models)]
    return [model.name for model in models if model.checkpoints is not None and model.checkpoints.new_only]


def check_suite(suite: SuiteConfig, options: SuiteOptions) -> PlannedNight:
    """A night as it would be planned now. Raises ConfigError for configs that are refused, a gate on pairs
    that no benchmark has, an unknown baseline or anchor.

    The flow itself lets a refused benchmark fail alone; who types the command wants to know at once.
    """
    night = plan_night(suite, options, "check")
    if refusals := [entry.refusal for entry in night.evaluations if entry.refusal is not None]:
        raise ConfigError("\n".join(dict.fromkeys(refusals)))
    if suite.gate is not None and suite.gate.pairs:
        _check_gated(suite.gate, [entry.config for entry in night.evaluations if entry.config is not None])
    store = Store(night.store)
    store.check_readable()
    past = past_nights(store, night.slug, name=suite.name)
    night.nights_called(night.baseline, past)
    if suite.gate is not None and suite.gate.anchor is not None:
        night.nights_called(suite.gate.anchor, past)
    return night


def _check_gated(gate: Gate, configs: Sequence[EvalConfig]) -> None:
    """Raises ConfigError for a pair that no benchmark has, and for one whose items are to be taken together
    although a facet holds samples of an item apart."""
    owners: dict[str, list[EvalConfig]] = {}
    for config in configs:
        for pair in _pairs(config):
            owners.setdefault(pair, []).append(config)
    for name in gate.pairs:
        if _without_reduction(name) not in owners:
            raise ConfigError(
                f"gate: no benchmark of the suite has a pair '{name}'{nearest(name, sorted(owners))}"
            )
        for config in owners[_without_reduction(name)] if name in gate.overall else ():
            apart = next((facet for facet in config.facets if tells_samples_apart(facet)), None)
            if apart is not None and config.samples_taken()[-1] > 1:
                raise ConfigError(
                    f"gate: '{name}' has facets: overall, but the facet '{apart}' of '{config.name}' holds"
                    " samples of one item apart, so that no row has the item's own value; leave the facet out"
                )


def _planned(
    night: PlannedNight, benchmark: SuiteBenchmark, file: Path, options: SuiteOptions
) -> Iterator[PlannedEvaluation]:
    suite, set_here = night.suite, {key.partition(".")[0] for key in benchmark.set}
    overrides = [override(key, value) for key, value in benchmark.set.items()]
    if suite.models:  # before what is set of them
        models = [model.model_dump(mode="json", exclude_unset=True) for model in suite.models]
        overrides.insert(0, override("models", models))
    limit = options.limit or benchmark.limit
    said: dict[str, Any] = {"canaries": suite.canaries, "answers": suite.answers}
    said = {key: value for key, value in said.items() if value is not None and key not in set_here}
    own = RunOptions(limit=limit, store=night.store, night=night.night)
    try:
        if not os.path.isfile(file):
            raise ConfigError(f"benchmark '{benchmark.config}' is not there: {file}")
        configs = load_configs(file, overrides, suite=night.suite.base_dir)
    except NightjarError as error:
        place = f"suite '{night.suite.name}', benchmark '{benchmark.config}': set "
        told = re.sub(rf"(?m)^{OVERRIDE} ", lambda _: place, str(error))
        yield PlannedEvaluation(file.stem, own, refusal=told)
        return
    for config in configs:
        try:
            config = with_checkpoints(config, is_new_checkpoint(config, own))
        except NightjarError as error:
            yield PlannedEvaluation(config.name, own, refusal=str(error))
            continue
        for model in config.models:
            own_number = "canaries" in config.model_fields_set - suite.model_fields_set
            kept = {"canaries": config.canaries} if own_number else {}
            single = config.model_copy(update={"models": (model,), **said, **kept})
            yield PlannedEvaluation(f"{config.name} × {model.name}", own, single)


def _folders(names: Sequence[str]) -> dict[str, str]:
    """A folder's name for each evaluation: of several whose names differ only in what no folder holds, each
    has a digest of its own behind a sign that no slug has."""
    slugs = Counter(map(slug, names))
    return {
        name: slug(name) if slugs[slug(name)] == 1 else f"{slug(name)}_{digest(name)[:8]}" for name in names
    }


def _placed(night: PlannedNight, entry: PlannedEvaluation, folder: str) -> PlannedEvaluation:
    """The evaluation with its folder and id; refused where it would write over what it reads."""
    output = Path(night.output) / folder
    own = {
        "output": str(output),
        "run_name": f"{night.suite.name}: {entry.name}",
        "run_id": f"{night.run_id}-{folder}",
    }
    placed = replace(entry, options=entry.options.model_copy(update=own))
    try:
        if entry.config is not None:
            kept_outputs(entry.config, output)
    except NightjarError as error:
        return replace(placed, config=None, refusal=str(error))
    return placed


def _pairs(config: EvalConfig) -> list[str]:
    """The pairs of a benchmark as "metric,filter"."""
    scorer = build_scorer(config.scoring(), resolver(config.base_dir))
    names = [entry.name for entry in config.filters()]
    return [f"{metric.name},{name}" for name in names for metric in scorer.get_metrics(name)]


def _without_reduction(name: str) -> str:
    """``metric,filter`` of ``reduction(metric),filter``."""
    metric, _, filter_name = name.rpartition(",")
    return f"{metric.partition('(')[2].removesuffix(')') or metric},{filter_name}" if "(" in metric else name


_ALL = 1 << 40


def check_margins(night: PlannedNight) -> list[str]:
    """A sentence for each gated margin that the items can't decide, with the number of items that would do;
    and for each reason why a gate that stops has all items asked.

    Raises ConfigError with them instead, where the gate says ``undecidable: refuse``.
    """
    gate = night.suite.gate
    if gate is None:
        return []
    names = [entry.config.name for entry in night.evaluations if entry.config is not None]
    history = History(Store(night.store), names)
    found = (line for entry in night.evaluations for line in _undecidable(entry, gate, history))
    sentences = list(dict.fromkeys(found))
    if sentences and gate.undecidable == "refuse":
        raise ConfigError(
            "\n".join([*sentences[:2], "take more items or wider margins, or undecidable: warn"])
        )
    never = (line for entry in night.evaluations for line in _never_stops(entry, gate))
    return [*sentences, *dict.fromkeys(never)]


def _never_stops(planned: PlannedEvaluation, gate: Gate) -> Iterator[str]:
    """Why an evaluation is asked whole although the gate stops."""
    if planned.config is None or gate.stop is None:
        return
    with suppress(NightjarError):  # what can't be planned fails by itself
        plan = make_plan(planned.config, planned.options)
        yield from all_is_asked(planned.config, plan.filters, gate)


def _undecidable(planned: PlannedEvaluation, gate: Gate, history: History) -> Iterator[str]:
    if planned.config is None:
        return
    needs = [
        (name, terms, needed)
        for name, terms, repeats in _gated(planned.config, gate)
        if (needed := _needed(terms, repeats)) is None or needed > 1
    ]
    most = max((needed or 1 for *_, needed in needs), default=0)
    items = _count(planned, most) if needs else 0
    known = _from_history(planned, gate, history)
    yield from known.values()
    needs = [entry for entry in needs if entry[0] not in known]
    for name, terms, needed in needs:
        said = f"gate: {name} of {planned.config.name}:"
        if needed is None:
            yield f"{said} no number of items can rule out a loss of {terms.margin:g}"
        elif items < needed:
            yield f"{said} {items} items can't rule out a loss of {terms.margin:g}; {needed} would do"


def _from_history(planned: PlannedEvaluation, gate: Gate, history: History) -> dict[str, str]:
    """Sentences for the pairs whose spread the store's last runs tell, as ``python -m flows.power`` does."""
    assert planned.config is not None
    gated = {name: terms for name, terms, _ in _gated(planned.config, gate)}
    items = _count(planned, _ALL) if gated else 0
    found: dict[str, str] = {}
    for margin, alpha in {(terms.margin, terms.alpha): None for terms in gated.values()}:
        for power in pair_powers(planned.config, history, Asked(items, margin, alpha)):
            terms = gated.get(power.pair)
            if terms is None or (terms.margin, terms.alpha) != (margin, alpha) or power.assumed:
                continue
            if power.decides is not None and power.decides <= margin:
                continue
            would = next(design.items for design in power.designs if design.samples == power.samples)
            said = said_to_decide(power.items, power.samples, power.decides)
            found[power.pair] = (
                f"gate: {power.pair} of {planned.config.name}: {said}, and the margin is {margin:g}; "
                f"{'no number of' if would is None else would} items would do ({power.source})"
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
    return metric.aggregation.averages and metric.aggregation.bounds == (0.0, 1.0)


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
