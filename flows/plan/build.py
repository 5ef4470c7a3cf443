"""From a config to the steps of its flow run: every task's identity is decided here, before anything starts.

An identity holds what can change the step's answer and nothing else. Display names, folders, time-outs and
limits stay outside, so that renaming a model or moving a checkout serves what is there already.
"""

import inspect
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from flows.config.schema import FAILED_REQUESTS, EvalConfig, Phase, RunOptions
from flows.plan.fields import benchmark_fields
from flows.plan.pairs import (
    filter_plan,
    filters_of,
    method_plan,
    metric_plan,
    read_calibrations,
    running_score,
)
from flows.plan.steps import AskedModel, Plan, StopPlan, TurnPlan
from flows.plan.stopping import stop_plan
from metrics.aliases import nearest
from metrics.errors import ConfigError, NightjarError
from scorers.config import GradingModel, ScoringConfig, grading_models
from scorers.factory import build_scorer
from tasks.ask import sampling_text
from tasks.benchmarks.config import BenchmarkFields, SimulatedUser, TurnTemplate
from tasks.benchmarks.open import open_benchmark
from tasks.datasets.item import Benchmark
from tasks.datasets.selection import Selection
from tasks.filter import filter_responses
from tasks.infer import InferSetup
from tasks.inspecting import InspectFound, InspectRun
from tasks.load import LoadSetup
from tasks.models.config import ModelConfig, SampleParams
from tasks.models.identity import model_identity, settled_weights
from tasks.models.providers.provider import provider_class
from tasks.models.records import Lookup
from tasks.models.registry import is_reference
from tasks.reduce import aggregate, reduce
from tasks.render import RenderSetup
from tasks.rows.running import RunningScore
from tasks.score import score
from tasks.store.fingerprint import stage_code
from tasks.store.keys import Step, digest
from tasks.turns import TurnSetup
from tasks.usercode.load import resolver
from tasks.usercode.sources import Sources, sources_named, sources_of


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run, which a retry follows with one of its own: when the run began (seconds since
    1970), and the name of the account that it spends from."""

    began: float
    account: str = field(default_factory=lambda: uuid.uuid4().hex)


def make_plan(config: EvalConfig, options: RunOptions, began: float = 0.0) -> Plan:
    """The steps of an evaluation that began at ``began`` (seconds since 1970).

    Raises NightjarError for user code, files or models that can't be used.
    """
    resolve = resolver(config.base_dir)
    fields = benchmark_fields(config)
    benchmark = open_benchmark(fields)
    scoring = scoring_config(config)
    scorer = build_scorer(scoring, resolve)
    executed = began if "execute" in options.refresh else 0.0
    filters = tuple(
        filter_plan(config, entry, scoring, scorer, resolve, executed) for entry in filters_of(config, scorer)
    )
    running = running_score(config, filters, resolve)
    attempt = Attempt(began)
    stopping = stop_plan(config, filters, options)
    return Plan(
        config=config,
        load=_load(fields, benchmark, _selection(options, stopping)),
        prompts={name: _render(fields, benchmark, name) for name in benchmark.prompt_names()},
        models={
            model.name: _watched(_by_inspect(config, _infer(config, model, options, attempt)), running)
            for model in config.models
        },
        filters=filters,
        methods=tuple(method_plan(config, entry, resolve) for entry in config.evaluation_methods),
        metrics=tuple(metric_plan(config, entry, resolve) for entry in config.metrics),
        asked=tuple(_asked(config, entry, options, attempt) for entry in grading_models(config.scorer)),
        turns=tuple(_turns(config, options, attempt)),
        stopping=stopping,
    )


def scored_by(document: Mapping[str, Any]) -> str | None:
    """A digest of all that makes numbers of the answers to a config, given as its run's manifest has it: its
    filters and metrics, users' code, and the program behind them. None where that can't be told."""
    try:
        config = EvalConfig.model_validate(document)
        resolve, scoring = resolver(config.base_dir), scoring_config(config)
        scorer = build_scorer(scoring, resolve)
        entries = filters_of(config, scorer)
        filters = [filter_plan(config, entry, scoring, scorer, resolve, 0.0) for entry in entries]
    except (NightjarError, ValidationError, OSError):
        return None
    steps = [entry.step.identity for entry in filters]
    pairs = [pair for entry in filters for pair in entry.pairs]
    steps += [identity for pair in pairs for identity in (pair.score.identity, pair.aggregate.identity)]
    code = [stage_code(inspect.unwrap(stage.fn)) for stage in (filter_responses, score, reduce, aggregate)]
    return digest(
        {
            "code": [[dict(entry.packages), dict(entry.libraries)] for entry in code],
            "steps": steps,
        }
    )


def _watched(step: Step[InferSetup], running: RunningScore | None) -> Step[InferSetup]:
    return step.model_copy(update={"setup": step.setup.model_copy(update={"running": running})})


def _by_inspect(config: EvalConfig, step: Step[InferSetup]) -> Step[InferSetup]:
    """The step with the task of Inspect that asks the model, where one does; raises ConfigError."""
    if config.inspect is None:
        return step
    if config.inspected is None:
        raise ConfigError(
            "inspect: nothing was found out of the task yet; read the config by load_config, from its file"
        )
    run = InspectRun(task=config.inspect, found=InspectFound.model_validate(config.inspected))
    identity = step.identity | {"inspect": run.found.identity(run.task)}
    setup = step.setup.model_copy(update={"inspect": run})
    return step.model_copy(update={"identity": identity, "setup": setup})


def scoring_config(config: EvalConfig) -> ScoringConfig:
    """The part of the config that scorers are built from."""
    return ScoringConfig(
        output_type=config.output_type,
        filter_list=config.filters(),
        # Each filter has its own list by now; process_results names the metrics of all filters in the
        # common one.
        metric_list=config.metric_list if config.process_results is not None else (),
        process_results=config.process_results,
        scorer=read_calibrations(config.scorer, config.base_dir),
        letters=config.letters,
        cut_off=config.cut_off_as(),
        players=tuple(model.name for model in config.models),
        item_timeout=config.item_timeout,
    )


def _selection(options: RunOptions, stopping: StopPlan | None) -> Selection:
    """The items that a run takes, in random blocks where it may stop."""
    own = {} if stopping is None else {"order": stopping.decide.setup.seed, "blocks": stopping.blocks}
    return options.selection().model_copy(update=own)


def _load(fields: BenchmarkFields, benchmark: Benchmark, selection: Selection) -> Step[LoadSetup]:
    identity = {
        "dataset": benchmark.dataset_digest(),
        "cluster": fields.cluster,
        **selection.identity(),
    }
    setup = LoadSetup(benchmark=fields, selection=selection)
    return Step(name=f"load {fields.name}", identity=identity, setup=setup)


def _render(fields: BenchmarkFields, benchmark: Benchmark, prompt: str) -> Step[RenderSetup]:
    identity = {
        **benchmark.render_identity(prompt),
        "name": prompt,
    }
    return Step(
        name=f"render {prompt}", identity=identity, setup=RenderSetup(benchmark=fields, prompt=prompt)
    )


def _provider_sources(kind: str, base_dir: str | Path) -> Sources:
    return sources_named([kind], base_dir) if is_reference(kind) else sources_of(provider_class(kind))


def _infer(config: EvalConfig, model: ModelConfig, options: RunOptions, attempt: Attempt) -> Step[InferSetup]:
    # Once for all keys of the run: a trainer may write into the folder while the run goes on.
    model = settled_weights(model, Path(config.base_dir))
    sampling = config.sampling(model)
    identity = {
        "model": model_identity(model, Path(config.base_dir)),
        "sampling": sampling.sent(),
        "samples": sampling.num_samples,
        "seed": sampling.seed,
        "n": sampling.n,
        "provider": _provider_sources(model.type, config.base_dir),
    }
    setup = InferSetup(
        model=model,
        sampling=sampling,
        errors=config.errors,
        limits=config.limits,
        prices=config.prices,
        base_dir=config.base_dir,
        run_id=options.run_id,
        account=attempt.account,
        lookup=kept_answers(config, options, attempt.began),
        night=options.night,
    )
    return Step(name=f"infer {model.name}", identity=identity, setup=setup)


def _turns(config: EvalConfig, options: RunOptions, attempt: Attempt) -> Iterator[TurnPlan]:
    """The turns after the first; each conversation is a sample of its own from there on."""
    said, user = config.turns, None
    if said is None:
        return
    if isinstance(said, SimulatedUser):
        user = _asked(config, said.asked, options, attempt).infer
        if user.setup.model.server is not None:
            raise ConfigError(
                f"turns: no server of weights is started for '{said.asked.name}', which speaks for the user; "
                "start it yourself and name its base_url"
            )
        turns: list[str | TurnTemplate] = [said.prompt] * (said.max_turns - 1)
    else:
        turns = list(said)
    models = {model.name: _one_sample(_infer(config, model, options, attempt)) for model in config.models}
    for number, turn in enumerate(turns, start=2):
        content, role = (turn, "user") if isinstance(turn, str) else (turn.content, turn.role)
        setup = TurnSetup(
            turn=number,
            role=role,
            template=content,
            stop=said.stop if isinstance(said, SimulatedUser) else "",
        )
        spoken = {"turn": number, "template": content}
        yield TurnPlan(
            number,
            Step(
                name=f"turn {number}",
                identity={"stop": setup.stop} if user else {**spoken, "role": role},
                setup=setup,
            ),
            {
                name: step.model_copy(update={"name": f"{step.name} turn {number}"})
                for name, step in models.items()
            },
            None
            if user is None
            else Step(name=f"ask user turn {number}", identity={**spoken, "asks": True}, setup=setup),
            None if user is None else user.model_copy(update={"name": f"{user.name} for turn {number}"}),
        )


def _one_sample(step: Step[InferSetup]) -> Step[InferSetup]:
    """The inference of one sample to each request, with the seed of the sample that the request is of."""
    sampling = step.setup.sampling.model_copy(update={"num_samples": 1, "n": None})
    setup = step.setup.model_copy(update={"sampling": sampling})
    return step.model_copy(update={"identity": step.identity | {"samples": 1, "n": None}, "setup": setup})


def kept_answers(config: EvalConfig, options: RunOptions, began: float) -> Lookup:
    """Which kept answers of the models evaluated serve a run that began at ``began`` (seconds since 1970).

    Scoring alone asks no model, and takes the newest.
    """
    found = kept_replies(options, began)
    if options.phase is Phase.SCORE or config.answers == "reuse":
        return found
    if config.answers == "fresh":
        return replace(found, night=options.night or "")
    return replace(found, not_before=max(found.not_before, began - config.answers.max_age))


def kept_replies(options: RunOptions, began: float) -> Lookup:
    """Which kept replies of judges serve: what they say depends on what they are shown, and that is in their
    requests, so the night adds nothing."""
    # A run may be given the id of an earlier one, and its retries are the same run.
    return Lookup(
        run=digest({"run": options.run_id, "began": began})[:32],
        not_before=began if "infer" in options.refresh else 0.0,
        failed_before=began if FAILED_REQUESTS in options.refresh else 0.0,
    )


def _asked(config: EvalConfig, grader: GradingModel, options: RunOptions, attempt: Attempt) -> AskedModel:
    """A judge or reward model: one of ``models:`` by name, or an entry of its own."""
    known = {model.name: model for model in config.models}
    if not grader.entry and grader.name not in known:
        raise ConfigError(
            f"scorer: '{grader.name}' is no entry of models{nearest(grader.name, known)}; name one, or give "
            "the judge a type and config of its own"
        )
    model = (
        ModelConfig.model_validate({"name": grader.name, **grader.entry})
        if grader.entry
        else known[grader.name]
    )
    single = {**model.sample_params.model_dump(exclude_unset=True), **grader.sampling, "num_samples": 1}
    step = _infer(config, model.model_copy(update={"sample_params": SampleParams()}), options, attempt)
    sampling = SampleParams.model_validate(single)
    identity = step.identity | {
        "sampling": sampling.sent(),
        "samples": 1,
        "seed": sampling.seed,
        "n": sampling.n,
    }
    setup = step.setup.model_copy(
        update={
            "model": model,
            "sampling": sampling,
            "role": "judge",
            "lookup": kept_replies(options, attempt.began),
        }
    )
    return AskedModel(
        Step(name=f"infer {model.name}", identity=identity, setup=setup), sampling_text(grader.sampling)
    )
