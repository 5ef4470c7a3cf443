"""The end of a run: what it made is gathered, published, and summed up in a sentence."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flows.evaluating import JudgedBy
from flows.manifest import manifest_of, run_info
from flows.options import Phase
from flows.pairs import Numbers, Scored
from flows.plan import Cell
from flows.responses import Responses
from flows.run import Future, Run, finished
from tasks.infer import check_errors
from tasks.models.config import ErrorBudget
from tasks.models.options import Tally
from tasks.publish import LostPair, Publication, Published, publish
from tasks.rows.views import CellArtifacts
from tasks.steps import Accounts, Step
from tasks.store.storage import ArtifactRef


@dataclass(frozen=True)
class Outcome:
    """How a run ended: in a sentence, and whether all that was asked for is there."""

    ok: bool
    summary: str


@dataclass
class Made:
    """All task runs of a run, by what they make, as far as it got."""

    responses: Responses
    predictions: Mapping[tuple[Cell, str], Future] = field(default_factory=dict)
    statistics: Sequence[Scored] = ()
    verdicts: Sequence[JudgedBy] = ()
    numbers: Mapping[str, Numbers] = field(default_factory=dict)
    counted: Mapping[str, Numbers] = field(default_factory=dict)


def publish_run(run: Run, made: Made) -> Outcome:
    """Publishes whatever worked, and says what did not."""
    over_budget = _over_budget(run)
    info = run_info(run, made.responses)
    every = [*made.numbers.values(), *made.counted.values()]
    publication = Publication(
        run=info,
        manifest=manifest_of(run, info, over_budget),
        output=str(run.options.output),
        facets=run.plan.facets(),
        methods=run.plan.config.evaluation_methods,
        cells=tuple(_artifacts(run, made)),
        results=_results_of(entry.results for entry in made.numbers.values()),
        counted=_results_of(entry.results for entry in made.counted.values()),
        items=_results_of(entry.items for entry in every if entry.items is not None),
        lost=(*_lost_pairs(run, made), *_lost_metrics(run, made)),
    )
    published: Published = publish.submit(publication, workspace=run.workspace).result()
    return _outcome(run, published, over_budget)


def _results_of(futures: Iterable[Future]) -> tuple[ArtifactRef, ...]:
    return tuple(future.result() for future in futures if finished(future).is_completed())


def _lost_pairs(run: Run, made: Made) -> Iterator[LostPair]:
    """Pairs without numbers, and why: the step that failed, in words."""
    for entry in made.statistics:
        numbers = made.numbers.get(entry.pair.name)
        if numbers is not None and finished(numbers.results).is_completed():
            continue
        cells = list(entry.statistics)
        broken = [numbers.results] * len(cells) if numbers is not None else list(entry.statistics.values())
        failed = tuple(run.failed_parts(cells, broken))
        yield LostPair(entry.pair.identity, failed, run.plan.config.facets)


def _lost_metrics(run: Run, made: Made) -> Iterator[LostPair]:
    """Metrics over evaluation results without numbers, and why."""
    cells = list(made.responses.cells)
    verdicts = [future for entry in made.verdicts for future in entry.verdicts.values()]
    for metric in run.plan.metrics if made.verdicts else ():
        numbers = made.counted.get(metric.name)
        if numbers is not None and finished(numbers.results).is_completed():
            continue
        places = (
            cells if numbers is not None else [cell for entry in made.verdicts for cell in entry.verdicts]
        )
        broken = [numbers.results] * len(cells) if numbers is not None else verdicts
        yield LostPair(metric.identity, tuple(run.failed_parts(places, broken)), metric.facets)


def _artifacts(run: Run, made: Made) -> Iterator[CellArtifacts]:
    """What there is at each cell that was answered."""
    for cell in made.responses.cells:
        asked, answered = made.responses.at(cell)
        if not finished(answered).is_completed():
            continue
        yield CellArtifacts(
            origin=run.origin(cell),
            requests=asked.result(),
            responses=answered.result().responses,
            predictions=_present(
                {name: future for (at, name), future in made.predictions.items() if at == cell}
            ),
            statistics=_present({entry.pair.name: entry.statistics[cell] for entry in made.statistics}),
            verdicts=_present({entry.method.name: entry.verdicts[cell] for entry in made.verdicts}),
        )


def _present(futures: Mapping[str, Future]) -> dict[str, ArtifactRef]:
    return {name: future.result() for name, future in futures.items() if finished(future).is_completed()}


def _over_budget(run: Run) -> dict[str, str]:
    """Model → sentence, for each model with more failed requests than allowed; their tasks are the red ones
    in the UI."""
    tallies: dict[str, Tally] = {}
    for model, answered, _ in [*run.answered("model"), *run.answered("judge")]:
        counts = Tally.from_dict(answered.accounts.tally)
        tallies[model] = tallies[model].merged(counts) if model in tallies else counts
    found = {}
    for model, counts in tallies.items():
        if not counts.failed and not counts.model_errors:
            continue
        step: Step[ErrorBudget] = Step(name=f"errors {model}", identity={}, setup=run.plan.config.errors)
        state = finished(check_errors.submit(step, Accounts(tally=counts.as_dict())))
        if not state.is_completed():
            found[model] = str(state.message or "").rpartition("BudgetExceeded: ")[2]
    return found


def _outcome(run: Run, published: Published, over_budget: Mapping[str, str]) -> Outcome:
    rows = published.results.select(["metric", "filter", "status", "error"]).to_pylist()
    failed = {f"{row['metric']},{row['filter']}": row["error"] for row in rows if row["status"] == "failed"}
    if run.options.phase is Phase.INFER:
        said = [f"responses of {', '.join(run.plan.models)}"]
    else:
        pairs = len(run.plan.pairs()) + len(run.plan.metrics)
        said = [f"{pairs - len(failed)} of {pairs} pairs computed"]
    said += [f"failed: {name} ({reason})" for name, reason in failed.items()]
    said += [f"{model}: {reason}" for model, reason in over_budget.items()]
    if failed or over_budget:
        said.append(f"run it again, or retry this run, to compute only what is missing; {published.report}")
    return Outcome(ok=not failed and not over_budget, summary="; ".join(said))
