"""How a run begins: with every default decided, a plan, a name and tags, and what its phase allows.

The flow and the command line decide by the same functions, so that both find the same run.
"""

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from prefect import get_client, get_run_logger
from prefect.context import FlowRunContext, TagsContext
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run

from flows.config.files import kept_outputs
from flows.config.models import IsNew, with_checkpoints
from flows.config.recorded_prompts import with_recorded_prompts
from flows.config.schema import EvalConfig, Phase, RunOptions
from flows.eval.run import Run
from flows.plan.build import make_plan
from flows.plan.steps import Plan
from flows.plan.stopping import all_asked
from metrics.errors import ASCII, ConfigError, NightjarError
from tasks.caching import Workspace
from tasks.history.layout import find_manifest
from tasks.models.config import ModelConfig, leaves_thought_open
from tasks.models.identity import model_identity
from tasks.models.providers.provider import provider_of
from tasks.models.providers.replay import ReplayConfig
from tasks.processes.endings import interrupted
from tasks.secrets import secret
from tasks.serving.weights import local_path
from tasks.store.errors import FileDamaged, FileMissing
from tasks.store.home import default_store, home, results_folder, slug
from tasks.store.keys import digest
from tasks.store.outputs import RESPONSES
from tasks.store.storage import store_uri


async def start_run(config: EvalConfig, options: RunOptions) -> Run:
    """A run of the flow that is under way; its tags say benchmark, models and git revision."""
    context, clock = FlowRunContext.get(), time.monotonic()
    if context is None or context.flow_run is None:
        raise RuntimeError("start_run is called inside the flow")
    # A retry of the flow run keeps its id and its start, so that it publishes to the same place and asks
    # nothing twice.
    began = (context.flow_run.start_time or context.flow_run.created or datetime.now(UTC)).timestamp()
    # Whatever runs inside a suite, or a flow of the user's own, is in the night of the whole.
    night = options.night or str(flow_run.root_flow_run_id or context.flow_run.id)
    complete = with_defaults(config, options.model_copy(update={"night": night}), str(context.flow_run.id))
    decided = await asyncio.to_thread(settled_models, config_for_phase(config, complete))
    kept_outputs(decided, Path(str(complete.output)))
    plan = make_plan(decided, complete, began)
    for sentence in all_asked(plan, complete):
        get_run_logger().warning(sentence)
    await _tag(plan, sorted(TagsContext.get().current_tags | set(context.flow_run.tags)))
    # Of an attempt in another process only the calendar tells, which may have been set back since.
    earlier = max(0.0, time.time() - began) if context.flow_run.run_count > 1 else 0.0
    place = workspace(complete, config.name)
    started = await asyncio.to_thread(first_start, complete, began)
    return Run(
        plan=plan, options=complete, workspace=place, started=started, began=clock, earlier_seconds=earlier
    )


def first_start(options: RunOptions, began: float) -> float:
    """When the first attempt at the run began, in seconds since 1970: the retry of a night evaluates in flow
    runs of its own, and the numbers stay where they were in the history."""
    try:
        known = find_manifest(workspace(options).open(), str(options.run_id))
    except NightjarError:  # there is none
        return began
    started = known.get("started") if known.get("night") == options.night else None
    return min(began, started) if isinstance(started, int | float) else began


def with_defaults(config: EvalConfig, options: RunOptions, unique: str) -> RunOptions:
    """The options with every default decided: store, run id, output folder, night.

    The id of a flow run's retries is the same, so that they publish to the same place.
    """
    run_id = options.run_id or run_id_of(options.run_name or config.name, unique)
    return options.model_copy(
        update={
            "run_id": run_id,
            "night": options.night or unique,
            "store": store_uri(options.store or default_store()),
            "output": str(Path(options.output or results_folder() / run_id).resolve()),
        }
    )


def workspace(options: RunOptions, benchmark: str = "") -> Workspace:
    """Where a run of a benchmark, its options complete, keeps artifacts, and answers on their way there.

    Each store has journals of its own: a process that finds one that a killed run left moves its answers to
    the store, and that has to be the store where the next run looks for them.
    """
    assert options.store is not None, "with_defaults() decides the store"
    uri = store_uri(options.store)
    place = uri if "://" in uri else str(Path(uri).resolve())
    return Workspace(
        store=uri,
        journal_dir=str(home() / "journal" / digest(place)[:16]),
        benchmark=benchmark,
        run_id=options.run_id or "",
    )


def config_for_phase(config: EvalConfig, options: RunOptions) -> EvalConfig:
    """The config of the phase, with a model for each checkpoint: scoring a folder that holds responses
    replays them, whatever model they came from.

    The recorded responses keep the names of their models, so that results and caches are the same as if
    they were asked for now.
    """
    config = with_checkpoints(config, is_new_checkpoint(config, options))
    if options.phase is Phase.SCORE and options.output is not None:
        recorded = Path(options.output) / RESPONSES
        if recorded.is_file():
            place = Path(config.base_dir)
            models = tuple(
                replayed(model, recorded.resolve()) if provider_of(model, place).asks else model
                for model in config.models
            )
            config = config.model_copy(update={"models": models})
    return with_recorded_prompts(config)


def settled_models(config: EvalConfig, ask: bool = True) -> EvalConfig:
    """The config with what has to be known of its models before their answers have keys: whether a chat
    template opens the thought. Not ``ask``: as far as this machine knows. Raises NightjarError."""
    if config.asked_type != "generate_until" or not any(
        leaves_thought_open(model) for model in config.models
    ):
        return config
    place = Path(config.base_dir)
    models = tuple(provider_of(model, place).settled(secret, ask) for model in config.models)
    return config.model_copy(update={"models": models})


def is_new_checkpoint(config: EvalConfig, options: RunOptions) -> IsNew:
    """Whether no run has evaluated a model completely on the config's benchmark, all of it or the part that
    the options ask for, as the store knows; what this night itself has evaluated is new, so that a retry goes
    on with all of it."""

    def is_noted(mark: str) -> bool:
        try:
            return bool(json.loads(workspace(options).open().document(mark))["night"] != options.night)
        except (FileMissing, FileDamaged):  # evaluated again, which is never wrong
            return False

    def is_new(model: ModelConfig) -> bool:
        served = _as_served(model, Path(config.base_dir))
        return not any(is_noted(_mark(config.name, served, part)) for part in (WHOLE, _part(options)))

    return is_new


def remember_checkpoints(plan: Plan, options: RunOptions) -> None:
    """Notes that the plan's checkpoints were evaluated completely on what the options ask for; nothing of
    ``samples``, whose file may say others next time."""
    base_dir, noted = Path(plan.config.base_dir), options.phase is Phase.ALL and options.samples is None
    for step in plan.models.values() if noted else ():
        model, known = step.setup.model, step.setup.model.weights
        here = known.places if known is not None else model.path and local_path(model.path, base_dir)
        if model.server is not None and here:  # else a hub's
            mark = _mark(plan.config.name, _as_served(model, base_dir), _part(options))
            workspace(options).open().put_document(mark, json.dumps({"night": options.night}).encode())


WHOLE: Final = (None, None, False)
"""The part of a benchmark that is all of it."""


def _part(options: RunOptions) -> tuple[int | None, str | None, bool]:
    """Which of the items are asked."""
    return options.limit, options.samples, options.shuffle and options.limit is not None


def _as_served(model: ModelConfig, base_dir: Path) -> dict[str, Any]:
    """What tells evaluated models apart: one of the same weights that is served otherwise is another. Not
    whether its template opens the thought, which is known only when it is asked, and not a name that the
    config gives for all weights."""
    reasoning = model.reasoning.model_copy(update={"opened": "auto"})
    plain = model.model_copy(update={"reasoning": reasoning, "identity": None})
    return model_identity(plain, base_dir)


def _mark(benchmark: str, served: dict[str, Any], part: tuple[int | None, str | None, bool]) -> str:
    """The object of a store that says that a benchmark, or a part, was evaluated completely on a model."""
    return f"checkpoints/{digest(benchmark)[:16]}/{digest([served, *part])}.json"


def refuse_unanswered(options: RunOptions, unanswered: list[str]) -> None:
    """Raises ConfigError where the scoring phase would need a model."""
    if options.phase is Phase.SCORE and unanswered:
        raise ConfigError(
            f"--phase score asks no model, and {', '.join(unanswered)} has requests without an answer: run "
            f"--phase infer first, name a folder with {RESPONSES} by --output, or give the model type replay"
        )


@contextmanager
def asking_stops_on_termination() -> Iterator[None]:
    """A block of a flow in which no more is asked once Prefect ends the run (SIGTERM).

    Prefect takes that signal for itself and then waits for tasks that run: an inference may have hours to go.
    """
    try:
        yield
    except TerminationSignal:
        interrupted.set()
        raise


def flow_run_name() -> str:
    """Name of a flow run: as asked for, else the benchmark and the time it began. In ASCII, as the graph of
    a night can show it."""
    parameters = flow_run.parameters
    options, config = parameters.get("options"), parameters.get("config")
    name = getattr(options, "run_name", None) or (
        options.get("run_name") if isinstance(options, dict) else None
    )
    benchmark = getattr(config, "name", None) or (
        config.get("name") if isinstance(config, dict) else "evaluation"
    )
    return str(name or f"{benchmark} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}").translate(ASCII)


def run_id_of(name: str, unique: str) -> str:
    """The id of a run called ``name``, for its folder and records: the name and the whole id ``unique``.

    No part of the id would do: Prefect's scheduler makes several runs ahead whose ids begin with the same
    time.

    >>> run_id_of("nightly", "0199c0de-0000-7000-8000-000000000001")
    'nightly-0199c0de000070008000000000000001'
    """
    return f"{slug(name)}-{unique.replace('-', '')}"


@lru_cache(maxsize=8)
def git_revision(folder: str) -> str | None:
    """The commit that ``folder`` is at, with ``-dirty`` where files differ from it; None outside a
    checkout."""
    try:
        revision = _git(folder, "rev-parse", "--short=12", "HEAD")
        dirty = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{revision}-dirty" if dirty else revision


def _git(folder: str, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()


async def _tag(plan: Plan, present: list[str]) -> None:
    revision = git_revision(str(Path(__file__).resolve().parent))
    tags = [f"benchmark:{plan.config.name}", *(f"model:{name}" for name in plan.models)]
    tags += [f"git:{revision}"] if revision else []
    async with get_client() as client:
        await client.update_flow_run(flow_run.id, tags=sorted({*present, *tags}))


def replayed(model: ModelConfig, recorded: Path) -> ModelConfig:
    """The model, whose answers are those in a file of recorded responses."""
    return model.model_copy(
        update={"type": "replay", "config": ReplayConfig(path=str(recorded)), "path": None, "serve": None}
    )
