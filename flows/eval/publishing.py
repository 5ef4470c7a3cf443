"""What is published when a run ends, the manifest, whatever worked, and why the rest did not; and what a
finished evaluation is to programs and notebooks: its folder, read when it is asked for.

``publish_run`` gathers the task runs, hands them to the stage publish and sums the run up in a sentence;
it decides whether the run counts as complete.
"""

import json
import logging
import platform
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from prefect.runtime import flow_run

from flows.config.files import kept_outputs
from flows.config.schema import Phase
from flows.eval.run import Future, Run, finished, reason_of
from flows.eval.start import git_revision
from flows.graph.grid import GridResponses
from flows.graph.stages import MethodVerdicts, PairResults, PairStatistics
from flows.plan.build import scored_by
from flows.plan.steps import Cell, StopPlan
from metrics.errors import DataError, NightjarError
from metrics.metric import installed_version
from tasks.benchmarks.open import open_benchmark
from tasks.comparison.stopping import stopped_sentence
from tasks.decide import answers_as
from tasks.infer import InferSetup, check_errors
from tasks.models.config import ErrorBudget
from tasks.models.identity import model_identity
from tasks.models.providers.recordings import recorded_counts
from tasks.models.tally import RequestTally
from tasks.processes.workers import workers
from tasks.publish import (
    LostPair,
    PairNumbers,
    Publication,
    Published,
    export,
    is_lacking,
    publish,
    publish_to,
    run_assets,
)
from tasks.reporting.exports import RunInfo
from tasks.reporting.overview import shows_store
from tasks.reporting.view import CellArtifacts, failures, result_rows
from tasks.store.home import PROJECT, results_folder, write_json
from tasks.store.keys import Accounts, Step, digest
from tasks.store.outputs import MANIFEST
from tasks.store.schemas import ABSENT
from tasks.store.storage import ArtifactRef, Store

if TYPE_CHECKING:
    import pandas as pd


logger = logging.getLogger(__name__)

LIBRARIES = ("prefect", "numpy", "pyarrow", "openai", "aiohttp", "sacrebleu", "rouge-score")


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: in a sentence, and whether all that was asked for is there."""

    ok: bool
    summary: str


@dataclass
class TaskRuns:
    """All task runs of a run, by what they make, as far as it got."""

    grid: GridResponses
    predictions: Mapping[tuple[Cell, str], Future] = field(default_factory=dict)
    statistics: Sequence[PairStatistics] = ()
    verdicts: Sequence[MethodVerdicts] = ()
    numbers: Mapping[str, PairResults] = field(default_factory=dict)
    verdict_numbers: Mapping[str, PairResults] = field(default_factory=dict)
    ratings: Sequence[Future] = ()
    inspected: Sequence[Future] = ()
    items: Future | None = None
    decision: Mapping[int, Future] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "TaskRuns":
        """From what the stages gave."""
        return cls(**{entry.name: given[entry.name] for entry in fields(cls) if entry.name in given})


def publish_run(run: Run, task_runs: TaskRuns) -> RunOutcome:
    """Publishes whatever worked, and says what did not."""
    over_budget = _over_budget(run)
    info = run_info(run, task_runs.grid, stopped_at(run, task_runs))
    every = [*task_runs.numbers.values(), *task_runs.verdict_numbers.values()]
    publication = Publication(
        run=info,
        manifest=run_manifest(run, info, task_runs.grid, over_budget),
        output=str(run.options.output),
        facets=run.plan.facets(),
        methods=run.plan.config.evaluation_methods,
        cells=tuple(_artifacts(run, task_runs)),
        results=tuple(_numbers(task_runs.numbers.values())),
        counted=_results_of(entry.results for entry in task_runs.verdict_numbers.values()),
        items=_results_of(entry.items for entry in every if entry.items is not None),
        index=_index_folder(str(run.options.output), run.workspace.open()),
        kept=kept_outputs(run.plan.config, Path(str(run.options.output))),
        ratings=_results_of(task_runs.ratings),
        inspected=_results_of(task_runs.inspected),
        lost=(*_lost_pairs(run, task_runs), *_lost_metrics(run, task_runs)),
    )
    made = publish.with_options(assets=run_assets(info.run_id, info.benchmark, publication.output))
    published: Published = made.submit(publication, workspace=run.workspace).result()
    outcome = _outcome(run, published, over_budget, info.stopped)
    said = [outcome.summary, *_lost_numbers(task_runs), *_send(run, publication, published.results)]
    return replace(outcome, summary="; ".join(said))


def _lost_numbers(task_runs: TaskRuns) -> Iterator[str]:
    """That Inspect's own metrics gave no numbers, and why: ours stand without them."""
    for future in task_runs.inspected:
        if not finished(future).is_completed():
            yield f"Inspect's own numbers are missing: {reason_of(finished(future))}"


def _send(run: Run, publication: Publication, results: pa.Table) -> Iterator[str]:
    """Sends the numbers to each destination, writes the forms of other programs, and says what went wrong:
    those steps are red, and the numbers stand. Where they are stands in the manifest."""
    folder, config = Path(publication.output), run.plan.config
    futures = {entry.name: publish_to.submit(entry, str(folder)) for entry in config.publish}
    whole = replace(publication, lost=())
    futures |= {form: export.submit(form, whole, results, run.workspace) for form in config.export}
    sent: dict[str, dict[str, Any]] = {}
    for name, future in futures.items():
        done = finished(future)
        places = list(future.result()) if done.is_completed() else []
        sent[name] = {"places": places, "error": None if done.is_completed() else reason_of(done)}
        if not done.is_completed():
            yield f"not published to {name}: {sent[name]['error']}"
    if not sent:
        return
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        write_json(folder / MANIFEST, manifest | {"published": sent})
    except (NightjarError, OSError) as error:
        told = f"where it was published could not be written into {MANIFEST}: {error}"
        logger.warning("%s", told)
        yield told


def _index_folder(output: str, store: Store) -> str | None:
    """The folder of results, if the run's own is in it or it has a page of the runs of this store."""
    folder = results_folder().resolve()
    own = Path(output).resolve().is_relative_to(folder)
    return str(folder) if own or shows_store(folder, store) else None


def _numbers(every: Iterable[PairResults]) -> Iterator[PairNumbers]:
    """Each pair's numbers, what there is of them."""
    for entry in every:
        (own,), overall = _results_of([entry.results]) or (None,), entry.overall
        whole = _results_of([overall]) if overall is not None else ()
        yield PairNumbers(own, whole[0] if whole else None)


def _results_of(futures: Iterable[Future]) -> tuple[ArtifactRef, ...]:
    return tuple(future.result() for future in futures if finished(future).is_completed())


def _lost_pairs(run: Run, task_runs: TaskRuns) -> Iterator[LostPair]:
    """Pairs without numbers, and why: the step that failed, in words."""
    for entry in task_runs.statistics:
        numbers, cells = task_runs.numbers.get(entry.pair.name), list(entry.statistics)
        if numbers is not None and finished(numbers.results).is_completed():
            if numbers.overall is not None and not finished(numbers.overall).is_completed():
                failed = tuple(run.failed_parts(cells, [numbers.overall] * len(cells)))
                yield LostPair(entry.pair.identity, failed, ())
            continue
        broken = [numbers.results] * len(cells) if numbers is not None else list(entry.statistics.values())
        failed = tuple(run.failed_parts(cells, broken))
        yield LostPair(entry.pair.identity, failed, run.plan.config.facets)


def _lost_metrics(run: Run, task_runs: TaskRuns) -> Iterator[LostPair]:
    """Metrics over evaluation results without numbers, and why."""
    cells = list(task_runs.grid.cells)
    verdicts = [future for entry in task_runs.verdicts for future in entry.verdicts.values()]
    for metric in run.plan.metrics if task_runs.verdicts else ():
        numbers = task_runs.verdict_numbers.get(metric.name)
        if numbers is not None and finished(numbers.results).is_completed():
            continue
        if numbers is not None:
            failed = run.failed_parts(cells, [numbers.results] * len(cells))
        else:
            judged = [cell for entry in task_runs.verdicts for cell in entry.verdicts]
            failed = run.failed_parts(judged, verdicts)
        yield LostPair(metric.identity, tuple(failed), metric.facets, over_results=True)


def _artifacts(run: Run, task_runs: TaskRuns) -> Iterator[CellArtifacts]:
    """What there is at each cell that was answered."""
    for cell in task_runs.grid.cells:
        requests, responses = task_runs.grid.at(cell)
        if not finished(responses).is_completed():
            continue
        yield CellArtifacts(
            origin=run.plan.origin(cell),
            requests=requests.result(),
            responses=responses.result().responses,
            predictions=_present(
                {name: future for (at, name), future in task_runs.predictions.items() if at == cell}
            ),
            statistics=_present(
                {
                    entry.pair.name: entry.statistics[cell]
                    for entry in task_runs.statistics
                    if cell in entry.statistics  # a baseline has no win rate against itself
                }
            ),
            verdicts=_present({entry.method.name: entry.verdicts[cell] for entry in task_runs.verdicts}),
        )


def _present(futures: Mapping[str, Future]) -> dict[str, ArtifactRef]:
    return {name: future.result() for name, future in futures.items() if finished(future).is_completed()}


def _over_budget(run: Run) -> dict[str, str]:
    """Model → sentence, for each model with more failed requests than allowed; their tasks are the red ones
    in the UI."""
    tallies: dict[str, RequestTally] = {}
    given = ((role, part) for role in ("model", "judge") for part in run.answered(role))
    for role, (model, answered, _) in given:
        counts = RequestTally.from_dict(answered.accounts.tally)
        if role == "judge":  # a model that was to grade, and refused, did not
            counts = replace(counts, failed=counts.failed + counts.refused)
        tallies[model] = tallies[model].merged(counts) if model in tallies else counts
    found = {}
    for model, counts in tallies.items():
        counts = _missed(run, counts)
        if not counts.failed:
            continue
        step: Step[ErrorBudget] = Step(name=f"errors {model}", identity={}, setup=run.plan.config.errors)
        state = finished(check_errors.submit(step, Accounts(tally=counts.as_dict())))
        if not state.is_completed():
            found[model] = str(state.message or "").rpartition("BudgetExceeded: ")[2]
    return found


def _missed(run: Run, counts: RequestTally) -> RequestTally:
    """Without what a recording does not hold: metrics over evaluation results alone do not miss it."""
    return counts if run.plan.pairs() else counts.without_absent()


def _outcome(
    run: Run, published: Published, over_budget: Mapping[str, str], stopped: Mapping[str, Any] | None
) -> RunOutcome:
    whole, groups = failures(result_rows(published.results))
    failed = [(f"{row.metric},{row.filter}", row.error) for row in whole]
    failed += [(f"{row.result_name},{row.filter} of {row.group}", row.error) for row in groups]
    if run.options.phase is Phase.INFER:
        sentences = [f"responses of {', '.join(run.plan.models)}"]
    else:
        pairs = len(run.plan.pairs()) + len(run.plan.metrics)
        sentences = [f"{pairs - len(whole)} of {pairs} pairs computed"]
    sentences += [f"failed: {name} ({reason})" for name, reason in failed]
    sentences += [f"{model}: {reason}" for model, reason in over_budget.items()]
    sentences += published.fatal
    if failed or over_budget:
        # Of a suite Prefect retries the whole alone, and of a run without a deployment nothing.
        retried = ", or retry this run," if run.options.night == str(flow_run.id) else ""
        sentences.append(f"run it again{retried} to compute only what is missing; {published.report}")
    if stopped is not None:
        sentences.append(stopped_sentence(stopped))
    return RunOutcome(ok=published.ok, summary="; ".join(sentences))


def stopped_at(run: Run, task_runs: TaskRuns) -> dict[str, Any] | None:
    """After how many items of how many the run stopped asking, and why; None if it did not."""
    looks = task_runs.decision
    if not run.is_decided(looks):
        return None
    items = run.rows(task_runs.items) if task_runs.items is not None else None
    return {"asked_items": max(looks), "of_items": items, "why": DECIDED}


DECIDED = "decided"
"""Why a run stopped: every pair of its gate passed or is a regression."""


def run_info(run: Run, grid: GridResponses, stopped: Mapping[str, Any] | None = None) -> RunInfo:
    """What the exports say about the run."""
    config, plan = run.plan.config, run.plan
    items = max((cell.stop for cell in grid.cells), default=0)
    to_ask = items if stopped is None else int(stopped["of_items"])
    tallies = [*_inference(run, "model").values(), *_inference(run, "judge").values()]
    total = _total([_missed(run, tally) for tally in tallies])
    if run.options.selection().chooses:  # some of all that there are
        to_ask = sum(1 for _ in open_benchmark(plan.load.setup.benchmark).items())
    asked_again = sum(report.asked for report in run.canaries.values())
    return RunInfo(
        run_id=str(run.options.run_id),
        benchmark=config.name,
        models=tuple(plan.models),
        prompts=tuple(plan.prompts),
        date=run.started,
        n_items=to_ask,
        n_used=items,
        stopped=stopped,
        config=config.model_dump(mode="json"),
        num_fewshot=config.fewshot.count() if config.fewshot is not None else 0,
        output_type=config.output_type,
        versions=_versions(),
        requests={
            "sent": total.sent,
            "cached": total.cached,
            "failed": total.failed,
            **({"refused": total.refused} if total.refused else {}),
            **({"same_night": total.same_night} if total.same_night else {}),
            **({"batched": total.batched} if total.batched else {}),
            **({"canaries": asked_again} if asked_again else {}),
        },
        git_revision=git_revision(str(PROJECT)),
    )


def run_manifest(
    run: Run, info: RunInfo, grid: GridResponses, over_budget: Mapping[str, str]
) -> dict[str, Any]:
    """The manifest as a JSON object. No key is in it: a config holds only the names of keys."""
    plan, config = run.plan, run.plan.config
    inference, judging = _inference(run, "model"), _inference(run, "judge")
    judges = _judges(run)
    total = _total([*inference.values(), *judging.values()])
    artifacts = run.artifacts()
    return {
        **run.about(str(flow_run.id)),
        "wall_seconds": round(run.wall_seconds, 3),
        "steps": run.steps(),
        "requests": dict(info.requests),
        "night": run.options.night,
        "canaries": {
            name: asdict(found) | {"said": found.sentence, "finds": found.finds}
            for name, found in run.canaries.items()
        },
        "tokens": {
            "prompt": total.prompt_tokens,
            "completion": total.completion_tokens,
            "cached": total.cached_tokens,
            "reasoning": total.reasoning_tokens,
            "total": total.total_tokens,
        },
        "cost": total.cost,
        "currency": config.prices.currency,
        "saved": {
            "tokens": total.saved_tokens,
            "cost": total.saved_cost,
            "seconds": total.saved_seconds,
            "prompt_cache_cost": total.cache_saved,
        },
        "models": {
            name: _model(plan.models[name].setup, run.served.get(name), tally)
            for name, tally in inference.items()
        },
        "judges": {
            name: _model(judges[name], run.served.get(name), tally) for name, tally in judging.items()
        },
        "recordings": _recordings(run, grid),
        "over_budget": dict(over_budget),
        "config": info.config,
        "config_digest": digest(info.config),
        "scored_by": scored_by(info.config),
        "dataset_digest": plan.load.identity["dataset"],
        "seeds": _seeds(run),
        "task_runs": run.task_runs(),
        **({"edited": edited} if (edited := run.edited()) else {}),
        "artifacts": artifacts,
        "store": run.options.store,
        "output": run.options.output,
        "limit": run.options.limit,
        "samples": run.options.samples,
        "shuffle": run.options.shuffle,
        **({"stopping": _stopping(plan.stopping)} if plan.stopping is not None else {}),
        **({"stopped": dict(info.stopped)} if info.stopped is not None else {}),
        **_same_answers(run, artifacts, info),
        "command": shlex.split(run.options.command) if run.options.command else None,
        "versions": dict(info.versions),
        "git_revision": info.git_revision,
    }


def _stopping(plan: StopPlan) -> dict[str, Any]:
    """How a run asked that could stop: from this a comparison knows what was to be asked, and in which
    order."""
    setup = plan.decide.setup
    baseline = [list(night) for night in setup.baseline]
    return {"seed": setup.seed, "blocks": plan.blocks, "least": plan.least, "baseline": baseline}


def _same_answers(
    run: Run, artifacts: Mapping[str, Sequence[Mapping[str, Any]]], info: RunInfo
) -> dict[str, list[str]]:
    """Of a run that asked all in blocks: the digests of the baseline's answers, if its own are the same."""
    plan = run.plan.stopping
    if plan is None or info.stopped is not None:
        return {}
    same = answers_as(plan.decide.setup, artifacts.get("filter", ()), run.workspace.open())
    return {} if same is None else {"answers_as": same}


def _recordings(run: Run, grid: GridResponses) -> list[dict[str, Any]]:
    """Each file of recorded responses: its rows, those that the run used, and those of models that the config
    does not have, by model."""
    by_path: defaultdict[Path, list[str]] = defaultdict(list)
    for name, step in run.plan.models.items():
        if (recording := step.setup.provider.recording) is not None:
            by_path[recording].append(name)
    found = []
    store = run.workspace.open()
    for path, names in by_path.items():
        used: set[int] = set()
        absent: list[tuple[str, str]] = []
        for cell, future in grid.responses.items():
            if cell.model in names and finished(future).is_completed():
                table = store.table(future.result().responses, ["sample_id", "recorded_row", "error"])
                used.update(table.column("recorded_row").drop_null().unique().to_pylist())
                lacking = table.filter(pc.equal(table.column("recorded_row"), ABSENT))
                columns = (lacking.column(name).to_pylist() for name in ("sample_id", "error"))
                absent += zip(*columns, strict=True)
        try:
            # Where the responses were looked up, the file's index is available.
            rows, models = workers().offer(recorded_counts, path).result()
        except DataError:  # gone or changed since it was read: what was read is in the store
            continue
        others = {name: count for name, count in sorted(models.items()) if name not in names}
        entry = {"path": str(path), "rows": rows, "used": len(used - {ABSENT}), "other_models": others}
        first, error = absent[0] if absent else (None, None)
        found.append(entry | {"absent": len(absent), "first_absent": first, "absent_error": error})
    return found


def _inference(run: Run, role: str) -> dict[str, RequestTally]:
    """What each model's requests took in this run: of what the cache served, only that it was served."""
    names = run.plan.models if role == "model" else _judges(run)
    tallies = {name: RequestTally() for name in names}
    for model, answered, cached in run.answered(role):
        counts = RequestTally.from_dict(answered.accounts.tally)
        of_this_night = answered.accounts.night == run.options.night
        if cached:
            counts = RequestTally(
                requests=counts.requests,
                cached=counts.requests,
                same_night=counts.sent + counts.same_night if of_this_night else 0,
                refused=counts.refused,
                served=counts.served,
                fingerprints=counts.fingerprints,
                saved_tokens=counts.total_tokens + counts.saved_tokens,
                saved_cost=counts.cost + counts.saved_cost,
                saved_seconds=counts.seconds + counts.saved_seconds,
            )
        tallies[model] = tallies[model].merged(counts)
    for model, counts in run.spent(role):
        tallies[model] = tallies[model].merged(counts)
    return tallies


def _judges(run: Run) -> dict[str, InferSetup]:
    """The models that are asked about answers, and those that speak for a conversation's user."""
    users = [turn.user for turn in run.plan.turns if turn.user is not None]
    setups = [*(model.infer.setup for model in run.plan.asked), *(user.setup for user in users)]
    return {setup.model.name: setup for setup in setups}


def _total(tallies: list[RequestTally]) -> RequestTally:
    total = RequestTally()
    for tally in tallies:
        total = total.merged(tally)
    return total


def _model(setup: InferSetup, served: Any, tally: RequestTally) -> dict[str, Any]:
    counts = tally.as_dict()
    counts["answered_by"] = counts.pop("served")
    return {
        "identity": model_identity(setup.model, Path(setup.base_dir)),
        "served": served,
        "sampling": setup.sampling.model_dump(mode="json", exclude_none=True),
        **counts,
    }


def _seeds(run: Run) -> dict[str, Any]:
    config = run.plan.config
    return {
        "sampling": {name: step.identity["seed"] for name, step in run.plan.models.items()},
        "fewshot": config.fewshot.seed if config.fewshot is not None else None,
        "statistics": config.statistics.seed,
    }


def _versions() -> dict[str, str]:
    found = {name: installed_version(name) for name in ("nightjar", *LIBRARIES)}
    return found | {"python": platform.python_version()}


@dataclass(frozen=True)
class Evaluation:
    """A run's folder: numbers as Arrow or pandas, provenance, and where its files are."""

    output: str

    @property
    def folder(self) -> Path:
        """Where the run's files are."""
        return Path(self.output)

    @property
    def report(self) -> Path:
        """The page that people look through."""
        return self.folder / "report.html"

    @cached_property
    def results(self) -> pa.Table:
        """One row a metric × filter × reduction × facet group; raises DataError where the run was not
        published."""
        try:
            return _read(self.folder / "results.parquet")
        except FileNotFoundError as error:
            raise DataError(
                f"{self.folder} holds no results.parquet: the run ended before it was written"
            ) from error

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What was run, on what, and what it took."""
        try:
            document: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DataError(
                f"{self.folder} holds no manifest.json: the run ended before it was written"
            ) from error
        return document

    def is_whole_of(self, flow_run_id: str) -> bool:
        """Whether the run of that id was published here and nothing of it is missing: a finding may fail it
        all the same."""
        try:
            return self.manifest.get("flow_run_id") == flow_run_id and not is_lacking(
                self.manifest, self.results
            )
        except DataError:
            return False

    def items(self) -> pa.Table:
        """One row a pair × reduction × item × facet group."""
        return _read(self.folder / "items.parquet")

    def to_pandas(self) -> "pd.DataFrame":
        """The results as a data frame (needs pandas)."""
        return self.results.to_pandas()

    def document(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        manifest = self.manifest
        names = (
            "run_id",
            "flow_run_id",
            "benchmark",
            "steps",
            "requests",
            "tokens",
            "cost",
            "currency",
            "wall_seconds",
            "diagnostics",
        )
        rows = self.results.to_pylist()
        for row in rows:
            row["facets"] = json.loads(row["facets"])
        return {
            **{name: manifest.get(name) for name in names},
            "output": self.output,
            "report": str(self.report),
            "results": rows,
        }


def _read(path: Path) -> pa.Table:
    with pq.ParquetFile(path) as file:  # read_table imports pyarrow's datasets first, for many files
        return file.read()
