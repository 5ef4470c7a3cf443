"""What is done around the requests and kept for no other run: "preflight", "serve" and "release" of a
model's server, "canaries". What a server was in an earlier run, or what a model answered then, is of no
use in this one.

``preflight``: what would fail after hours of inference fails in the first seconds. It imports every
metric, filter and user function, renders the first real item with every prompt and takes it through every
pair, and asks the endpoints of models that something is missing from what they serve.

``canaries`` asks kept requests again before a suite reuses their answers. A server is no child of the
task's thread but of a supervisor, which ends it with the process of the flow.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from prefect import get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from pydantic import Field

from metrics.errors import ConfigError, DataError, NightjarError, printable
from metrics.metric import Metric
from metrics.user_results import warn_once
from scorers.arena import ArenaScorer, is_arena, matchup
from scorers.base import ALL_FILTERS, Batch, Scorer
from scorers.execution import ExecutionScorer, is_executed
from scorers.filters import FilterPipeline
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.native import NativeBenchmark
from tasks.benchmarks.open import open_benchmark
from tasks.caching import Workspace
from tasks.datasets.item import Benchmark, Item, Rendered
from tasks.datasets.selection import Selection
from tasks.infer import InferSetup, Served, probe_model
from tasks.limits import hold
from tasks.messages.markdown import as_block, as_code, as_text
from tasks.models.answers.segments import AnswerStore
from tasks.models.canaries import CanaryReport, ask_canaries, note_statement
from tasks.models.control import check_interrupted
from tasks.models.identity import EXPANDED
from tasks.models.providers.recordings import recording_file
from tasks.models.statements import Statement
from tasks.patience import if_possible
from tasks.rows.execution import asked_by_row
from tasks.rows.parts import PairSetup
from tasks.rows.predictions import FilterSetup
from tasks.rows.references import Referenced, reference_warnings
from tasks.rows.scoring import whole_answer
from tasks.sandboxes.interpreters import SandboxError
from tasks.sandboxes.run import chosen_sandbox
from tasks.serving.launch import Launch, check_launch
from tasks.serving.records import log_text
from tasks.serving.servers import ServerFailed, forget_server, start_server, stop_server
from tasks.store.home import plain_name, ui_key, whole_text
from tasks.store.keys import Step, Unkeyed
from tasks.store.outputs import SERVER_LOGS
from tasks.store.storage import ArtifactRef
from tasks.usercode.evaluate import asks_about_programs

LOOK_SECONDS = 1.0
"""That a run takes to look through its prompts."""
SHOWN = 4_000
"""Characters of a log's end on the run's page."""


class ServeSetup(Unkeyed):
    """The model, where its log goes, and the run and the process that its server is for."""

    infer: InferSetup
    output: str
    run_id: str
    owner: int


def launch_of(setup: InferSetup) -> Launch:
    """What starts the server of a model that is served here."""
    model, server = setup.model, setup.model.server
    if server is None or model.path is None:
        raise ValueError(f"model {model.name!r} is not served here")
    place, known = setup.base_dir, model.weights
    return Launch(model.name, model.served_name, server, model.path, place, model.peft, known)


@task(name="serve", task_run_name="{step.run_name}", persist_result=False)
def serve(step: Step[ServeSetup]) -> Served:
    """Starts the model's server and returns once it is ready; waits while others hold the GPUs.

    Raises ServerFailed with the end of the server's log.
    """
    setup, launch = step.setup, launch_of(step.setup.infer)

    def admit(folder: Path) -> None:
        if launch.serve.concurrency_limit is not None:
            hold(launch.serve.concurrency_limit, max(1, launch.gpus), folder.is_dir, check_interrupted)

    try:
        running = start_server(launch, setup.owner, check_interrupted, setup.run_id, admit)
    except ServerFailed as failed:
        if failed.folder is not None:
            _keep_log(setup, failed.folder)
            forget_server(failed.folder)
        raise
    get_run_logger().info("%s answers at %s", running.model, running.base_url)
    return Served(server=running)


@task(name="release", task_run_name="{step.run_name}", persist_result=False)
def release(step: Step[ServeSetup], server: Served) -> None:
    """Ends the model's server, and keeps its log."""
    if server.server is None:
        return
    folder = Path(server.server.folder)
    stop_server(folder)
    _keep_log(step.setup, folder)
    forget_server(folder)


def log_file(output: str, model: str) -> Path:
    """Where the log of a model's server is kept in a run's folder."""
    return Path(output) / SERVER_LOGS / f"{plain_name(model)}.log"


def _keep_log(setup: ServeSetup, folder: Path) -> None:
    """The server's log among the run's files, and its end on the run's page."""
    text = log_text(folder)
    file = log_file(setup.output, setup.infer.model.name)
    file.parent.mkdir(parents=True, exist_ok=True)
    with whole_text(file) as written:
        written.write(text)
    name = setup.infer.model.name
    page = f"The end of {as_code(str(file))}:\n\n{as_block(printable(text[-SHOWN:]))}"
    key = f"server-{ui_key(name)}"
    said = f"Log of the server of {as_text(name)}"
    if_possible(lambda: create_markdown_artifact(page, key=key, description=said))


@task(name="canaries", task_run_name="{step.run_name}", persist_result=False)
def canaries(
    step: Step[InferSetup], requests: Sequence[ArtifactRef], count: int, workspace: Workspace
) -> CanaryReport:
    """Whether the model still answers some of these requests as it did; the log says what
    speaks against it."""
    store, setup = workspace.open(), step.setup
    batches = chain.from_iterable(store.batches(ref, list(EXPANDED)) for ref in requests)
    found = ask_canaries(setup.model, batches, AnswerStore(store), setup.options(workspace), count)
    if found.sentence is not None:
        get_run_logger().warning("%s: %s", setup.model.name, found.sentence)
    return found


def note_said(setup: InferSetup, says: Statement, workspace: Workspace) -> None:
    """Keeps what a model's endpoint says of itself: later runs hold it against what it says then."""
    note_statement(setup.model, AnswerStore(workspace.open()), setup.options(workspace), says)


class Checks(Unkeyed):
    """What a run is going to do, as far as it can be tried beforehand."""

    benchmark: BenchmarkFields
    filters: tuple[FilterSetup, ...]
    pairs: tuple[PairSetup, ...]
    endpoints: tuple[InferSetup, ...]
    """Models that have to be asked for something."""
    judges: tuple[InferSetup, ...] = ()
    """Models that scorers ask, for text whatever the benchmark asks for."""
    selection: Selection = Selection()
    """The items that the run takes."""
    references: tuple[PairSetup, ...] = ()
    """Pairs whose metrics are tried on every reference."""
    prepared: tuple[PairSetup, ...] = ()
    """Pairs that make a program or a question of each item: tried on every one."""
    samples: tuple[int, ...] = (1,)
    """How many responses an item has: one number for each that any model gives."""
    recordings: tuple[Path, ...] = ()
    """Files that answers to be scored are looked up in."""
    programs: bool = False
    """Whether programs will be run, which takes a sandbox."""
    served: tuple[InferSetup, ...] = ()
    """Models among both that are served here: nothing answers for them yet."""

    @property
    def need_secrets(self) -> bool:
        """Whether the Prefect server holds a key of what will be asked."""
        models = (setup.model for setup in (*self.endpoints, *self.judges))
        return any(getattr(model.config, "api_key_secret", None) is not None for model in models)


class Preflight(Unkeyed):
    """What was found: warnings in words, pairs that will fail, and what each endpoint says it serves.

    ``refused`` are sentences about what can't work at all, which ``check`` raises. All are lists, since there
    is only one empty tuple: Prefect tells by identity which task made an input, and would draw an edge from
    here to every task that is given one.
    """

    warnings: list[str]
    served: Mapping[str, Any]
    failures: list[str] = Field(default_factory=list)
    refused: list[str] = Field(default_factory=list)


@task(name="preflight", task_run_name="preflight", persist_result=False)
def preflight(checks: Checks) -> Preflight:
    """The checks as a task of the flow; its log holds the warnings.

    What the command line has just tried in this process is not tried again; another process tries where it
    is, and with what it has.
    """
    found = take_tried(checks) or check(checks)
    for sentence in [*found.failures, *found.warnings]:
        get_run_logger().warning(sentence)
    return found


_tried: dict[str, Preflight] = {}
"""What the command line tried for a run that is about to start: taken once, so that a retry tries again."""


def check_ahead(checks: Checks) -> Preflight:
    """``check`` for the command line: the run that follows in this process need not do it again."""
    _tried[checks.model_dump_json()] = found = check(checks)
    return found


def take_tried(checks: Checks) -> Preflight | None:
    """What ``check_ahead`` has just found in this process, once. The task calls this by name: a global that
    it named itself would go with it to another process."""
    return _tried.pop(checks.model_dump_json(), None)


def check(checks: Checks) -> Preflight:
    """Tries everything once; raises NightjarError for what can't work, and gathers what only may not."""
    found = survey(checks)
    if found.refused:
        raise ConfigError("\n".join(found.refused))
    return found


def survey(checks: Checks) -> Preflight:
    """As ``check``, with everything that was found beside each other; raises only where there is no item."""
    benchmark = open_benchmark(checks.benchmark)
    first = list(islice(benchmark.items(), 1))
    if not first:
        raise DataError(
            f"the dataset of benchmark '{checks.benchmark.name}' is empty: expected at least one item"
        )
    rendered = [entry for prompt in benchmark.prompt_names() for entry in benchmark.render(prompt, first)]
    failures = _Trial(checks).of(rendered[0], "the first item") or unfit_item(checks)
    served: dict[str, Any] = {}
    warned: list[str] = []
    refused: list[str] = []
    if checks.programs:
        try:
            chosen_sandbox()
        except SandboxError as error:
            refused.append(str(error))
    for recording in checks.recordings:
        try:
            recording_file(recording)
        except NightjarError as error:
            refused.append(str(error))
    for setup in checks.served:
        try:
            check_launch(launch_of(setup))
        except NightjarError as error:
            refused.append(str(error))
    asked = [(setup, rendered[0].kind) for setup in checks.endpoints]
    asked += [(setup, "generate") for setup in checks.judges]
    for setup, kind in asked:
        try:
            identity, warning = probe_model(setup, kind)
        except NightjarError as error:
            refused.append(str(error))
            continue
        served[setup.model.name] = identity
        warned += [warning] if warning else []
    if rendered[0].kind == "generate":
        warned += reference_warnings(checks.references, _referenced(benchmark, checks.selection))
    if isinstance(benchmark, NativeBenchmark):
        warned += benchmark.prompt_warnings(checks.selection.of(benchmark.items()), LOOK_SECONDS)
    return Preflight(warnings=warned, served=served, failures=failures, refused=refused)


def _referenced(benchmark: Benchmark, selection: Selection) -> Iterator[Referenced]:
    """The items with what is right for them."""
    items = selection.of(benchmark.items())
    if isinstance(benchmark, NativeBenchmark):  # its references need no prompt
        yield from (Referenced(item.item_id, benchmark.references(item), item.data) for item in items)
    else:
        rendered = benchmark.render(benchmark.prompt_names()[0], items)
        yield from (Referenced(one.item.item_id, one.references, one.doc) for one in rendered)


def try_item(checks: Checks, item: Item, where: str) -> list[str]:
    """Sentences about the pairs that raise on an item, which stands at ``where``."""
    benchmark = open_benchmark(checks.benchmark)
    rendered = next(iter(benchmark.render(benchmark.prompt_names()[0], [item])))
    return _Trial(checks).of(rendered, where)


def unfit_item(checks: Checks) -> list[str]:
    """Sentences about the pairs that can't make a program or a question of some item, the first such one."""
    if not checks.prepared:
        return []
    benchmark = open_benchmark(checks.benchmark)
    filters = [setup for setup in checks.filters if any(_reads(pair, setup) for pair in checks.prepared)]
    trial = _Trial(checks.model_copy(update={"pairs": checks.prepared, "filters": filters}))
    for one in benchmark.render(benchmark.prompt_names()[0], checks.selection.of(benchmark.items())):
        if one.kind != "generate":
            break
        if trial.of(one, ""):
            place = benchmark.place(one.item) if isinstance(benchmark, NativeBenchmark) else ""
            return trial.of(one, place or f"item '{one.item.item_id}'")
    return []


class _Trial:
    """Pairs that are tried on items, with the filters that they read; each is built once."""

    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    @cached_property
    def _built(self) -> list[tuple[PairSetup, Scorer, Metric]]:
        return [(pair, *pair.built()) for pair in self._checks.pairs]

    @cached_property
    def _pipelines(self) -> list[tuple[FilterSetup, FilterPipeline]]:
        return [(setup, setup.pipeline()) for setup in self._checks.filters]

    def of(self, item: Rendered, where: str) -> list[str]:
        """Sentences about filters and metrics that raise on the item; what can't even be built is refused."""
        if item.kind != "generate":
            for pair in self._checks.pairs:
                pair.metric_record()
            return []
        # The first reference stands for a response: no model has been asked yet.
        text: Any = next((reference for reference in item.references if isinstance(reference, str)), "")
        if item.orders:
            text = next(iter(item.gold), None)  # choices asked for by letters are read before filters
        doubts: list[str] = []
        predictions: dict[str, list[Any]] = {}
        for setup, pipeline in self._pipelines:
            doubt = _try_filter(pipeline, (text, item.doc), self._checks.samples, predictions)
            if doubt is not None:
                pairs = ", ".join(
                    f"{pair.filter} × {pair.metric}" for pair in self._checks.pairs if _reads(pair, setup)
                )
                doubts.append(f"filter '{setup.config.name}' ({pairs}) raises on {where}{doubt}")
        for pair, scorer, metric in self._built:
            doubts += [
                f"{pair.filter} × {pair.metric} raises on {where}: {reason}"
                for reason in _try_pair(scorer, metric, item, text, predictions.get(pair.filter))
            ]
        warn_once.cache_clear()  # what was said here nobody heard
        return doubts


def _reads(pair: PairSetup, setup: FilterSetup) -> bool:
    return pair.filter in (setup.config.name, ALL_FILTERS)


def _try_filter(
    pipeline: FilterPipeline,
    given: tuple[Any, Mapping[str, Any]],
    samples: Sequence[int],
    predictions: dict[str, list[Any]],
) -> str | None:
    """Notes what the pipeline makes of an item whose responses are all ``given``, as many as each model
    gives; what it raises, in words."""
    text, doc = given
    if not all(step.bounded([text]) for step in pipeline.steps):
        return None  # it may run away, and is not tried
    for count in samples:
        try:
            predictions[pipeline.name] = pipeline.apply([[text] * count], [doc])[0]
        except Exception as error:
            predictions.pop(pipeline.name, None)
            repeats = f" with {count} responses" if max(samples) > 1 else ""
            return f"{repeats}: {type(error).__name__}: {error}"
    return None


def _try_pair(
    scorer: Scorer, metric: Metric, item: Rendered, text: Any, predictions: Sequence[Any] | None
) -> Sequence[str]:
    if not predictions:  # of all filters together, or of one that raised
        return ()
    batch = Batch(
        item_ids=[item.item.item_id],
        sample_index=np.zeros(1, dtype=np.int32),
        scored=np.ones(1, dtype=np.bool_),
        predictions=[predictions[0]],  # samples are scored one by one
        references=[list(item.references)],
        docs=[dict(item.doc)],
        responses=[text if isinstance(text, str) else None],
        answers=[whole_answer(str(text), item.prompts[0])] if scorer.takes_answer(metric) else None,
        gold=[list(item.gold)] if item.orders else None,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(scorer, ExecutionScorer) and is_executed(metric):
                scorer.programs(batch)
            elif isinstance(scorer, ArenaScorer) and is_arena(metric):
                other = replace(batch, predictions=[f"{text} (another answer)"])
                scorer.requests(matchup(batch, other), metric)
            elif any(map(asks_about_programs, (*scorer.code(), metric.function))):
                asked_by_row(scorer, metric, batch)
            elif not scorer.requests(batch, metric) and scorer.bounded(batch, metric):
                scorer.score(batch, metric)
    except ConfigError:
        raise
    except Exception as error:
        return (str(error),)
    return ()
