"""Stage "preflight": what would fail after hours of inference fails in the first seconds.

Imports every metric, filter and user function, renders the first real item with every prompt and takes it
through every pair, and asks the endpoints of models that something is missing from what they serve.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from prefect import get_run_logger, task
from pydantic import Field

from metrics.errors import ConfigError, DataError, NightjarError
from metrics.user_results import warn_once
from scorers.arena import ArenaScorer, contest, is_arena
from scorers.base import ALL_FILTERS, Batch
from scorers.execution import ExecutionScorer, is_executed
from tasks.benchmarks.config import BenchmarkFields
from tasks.benchmarks.open import open_benchmark
from tasks.datasets.item import Item, Rendered
from tasks.filter import FilterSetup
from tasks.infer import InferSetup, probe_model
from tasks.rows.execution import asked_by_row
from tasks.rows.parts import PairSetup
from tasks.rows.scoring import whole_answer
from tasks.sandboxes.run import SandboxError, chosen_sandbox
from tasks.serve import launch_of
from tasks.serving.launch import check_launch
from tasks.store.keys import Unkeyed
from tasks.usercode.evaluate import asks_about_programs


class Checks(Unkeyed):
    """What a run is going to do, as far as it can be tried beforehand."""

    benchmark: BenchmarkFields
    filters: tuple[FilterSetup, ...]
    pairs: tuple[PairSetup, ...]
    endpoints: tuple[InferSetup, ...]
    """Models that have to be asked for something."""
    judges: tuple[InferSetup, ...] = ()
    """Models that scorers ask, for text whatever the benchmark asks for."""
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

    What the command line has just tried in this process is not tried again.
    """
    found = _tried.pop(checks.model_dump_json(), None) or check(checks)
    for sentence in [*found.failures, *found.warnings]:
        get_run_logger().warning(sentence)
    return found


_tried: dict[str, Preflight] = {}
"""What the command line tried for a run that is about to start: taken once, so that a retry tries again."""


def check_ahead(checks: Checks) -> Preflight:
    """``check`` for the command line: the run that follows in this process need not do it again."""
    _tried[checks.model_dump_json()] = found = check(checks)
    return found


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
    failures = _try_pairs(checks, rendered[0])
    served: dict[str, Any] = {}
    warned: list[str] = []
    refused: list[str] = []
    if checks.programs:
        try:
            chosen_sandbox()
        except SandboxError as error:
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
    return Preflight(warnings=warned, served=served, failures=failures, refused=refused)


def try_item(checks: Checks, item: Item, where: str) -> list[str]:
    """Sentences about the pairs that raise on an item, which stands at ``where``."""
    benchmark = open_benchmark(checks.benchmark)
    return _try_pairs(checks, next(iter(benchmark.render(benchmark.prompt_names()[0], [item]))), where)


def _try_pairs(checks: Checks, item: Rendered, where: str = "the first item") -> list[str]:
    """Sentences about filters and metrics that raise on the item; what can't even be built is refused."""
    doubts: list[str] = []
    pipelines = {setup.config.name: setup.pipeline() for setup in checks.filters}
    if item.kind != "generate":
        for pair in checks.pairs:
            pair.metric_record()
        return doubts
    # The first reference stands for a response: no model has been asked yet.
    text: Any = next((reference for reference in item.references if isinstance(reference, str)), "")
    if item.orders:
        text = next(iter(item.gold), None)  # choices asked for by letters are read before filters
    predictions: dict[str, Any] = {}
    for name, pipeline in pipelines.items():
        try:
            if all(step.bounded([text]) for step in pipeline.steps):  # else it is not tried
                predictions[name] = next(iter(pipeline.apply([[text]], [item.doc])[0]), None)
        except Exception as error:
            doubts.append(f"filter '{name}' raises on {where}: {type(error).__name__}: {error}")
    for pair in checks.pairs:
        doubts += [
            f"{pair.filter} × {pair.metric} raises on {where}: {reason}"
            for reason in _try_pair(pair, item, text, predictions)
        ]
    warn_once.cache_clear()  # what was said here nobody heard
    return doubts


def _try_pair(pair: PairSetup, item: Rendered, text: Any, predictions: Mapping[str, Any]) -> Sequence[str]:
    scorer, metric = pair.scorer(), pair.metric_record()
    if pair.filter == ALL_FILTERS or pair.filter not in predictions:
        return ()
    batch = Batch(
        item_ids=[item.item.item_id],
        sample_index=np.zeros(1, dtype=np.int32),
        scored=np.ones(1, dtype=np.bool_),
        predictions=[predictions[pair.filter]],
        references=[list(item.references)],
        docs=[dict(item.doc)],
        responses=[text if isinstance(text, str) else None],
        answers=[whole_answer(str(text), item.prompts[0])] if metric.takes_answer else None,
        gold=[list(item.gold)] if item.orders else None,
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if isinstance(scorer, ExecutionScorer) and is_executed(metric):
                scorer.programs(batch)
            elif isinstance(scorer, ArenaScorer) and is_arena(metric):
                other = replace(batch, predictions=[f"{text} (another answer)"])
                scorer.requests(contest(batch, other), metric)
            elif any(map(asks_about_programs, (*scorer.code(), metric.function))):
                asked_by_row(scorer, metric, batch)
            elif not scorer.requests(batch, metric) and scorer.bounded(batch, metric):
                scorer.score(batch, metric)
    except ConfigError:
        raise
    except Exception as error:
        return (str(error),)
    return ()
