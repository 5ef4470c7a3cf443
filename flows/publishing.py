"""The end of a run: what it made is gathered, published, and summed up in a sentence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flows.manifest import manifest_of, run_info
from flows.pairs import Numbers, Responses, Scored
from flows.plan import Cell
from flows.run import Future, Run, finished
from tasks.answered import Accounts
from tasks.infer import check_errors
from tasks.models.tally import Tally
from tasks.publish import LostPair, Publication, Published, publish
from tasks.rows.views import CellArtifacts
from tasks.steps import Step
from tasks.store.refs import ArtifactRef


@dataclass(frozen=True)
class Outcome:
    """How a run ended: in a sentence, and whether all that was asked for is there."""

    ok: bool
    summary: str


async def publish_run(
    run: Run,
    responses: Responses,
    predictions: Mapping[tuple[Cell, str], Future],
    scored: Sequence[Scored],
    numbers: Mapping[str, Numbers],
) -> Outcome:
    """Publishes whatever worked, and says what did not."""
    over_budget = _over_budget(run)
    info = run_info(run, responses)
    publication = Publication(
        run=info,
        manifest=manifest_of(run, info, over_budget),
        output=str(run.options.output),
        facets=run.plan.config.facets,
        cells=tuple(_artifacts(run, responses, predictions, scored)),
        results=_results_of(entry.results for entry in numbers.values()),
        items=_results_of(entry.items for entry in numbers.values()),
        lost=tuple(_lost(run, scored, numbers)),
    )
    published: Published = publish.submit(publication, workspace=run.workspace).result()
    return _outcome(run, published, over_budget)


def _results_of(futures: Iterator[Future]) -> tuple[ArtifactRef, ...]:
    return tuple(future.result() for future in futures if finished(future).is_completed())


def _lost(run: Run, scored: Sequence[Scored], numbers: Mapping[str, Numbers]) -> Iterator[LostPair]:
    """Pairs without numbers, and why: the step that failed, in words."""
    for entry in scored:
        made = numbers.get(entry.pair.name)
        if made is not None and finished(made.results).is_completed():
            continue
        cells = list(entry.statistics)
        broken = [made.results] * len(cells) if made is not None else list(entry.statistics.values())
        yield LostPair(identity=entry.pair.identity, failed=tuple(run.failed_parts(cells, broken)))


def _artifacts(
    run: Run,
    responses: Responses,
    predictions: Mapping[tuple[Cell, str], Future],
    scored: Sequence[Scored],
) -> Iterator[CellArtifacts]:
    """What there is at each cell that was answered."""
    for cell in responses.cells:
        asked, answered = responses.at(cell)
        if not finished(answered).is_completed():
            continue
        filtered = {name: future for (place, name), future in predictions.items() if place == cell}
        statistics = {entry.pair.name: entry.statistics[cell] for entry in scored}
        yield CellArtifacts(
            origin=run.origin(cell),
            requests=asked.result(),
            responses=answered.result().responses,
            predictions={name: future.result() for name, future in filtered.items() if finished(future).is_completed()},
            statistics={name: future.result() for name, future in statistics.items() if finished(future).is_completed()},
        )


def _over_budget(run: Run) -> dict[str, str]:
    """Model → sentence, for each model with more failed requests than allowed; their tasks are the red ones in the UI."""
    tallies: dict[str, Tally] = {}
    for model, answered, _ in run.answered():
        counts = Tally.from_dict(answered.accounts.tally)
        tallies[model] = tallies[model].merged(counts) if model in tallies else counts
    found = {}
    for model, counts in tallies.items():
        if not counts.failed and not counts.model_errors:
            continue
        step = Step(name=f"errors {model}", identity={}, setup=run.plan.models[model].setup.errors)
        state = finished(check_errors.submit(step, Accounts(tally=counts.as_dict())))
        if not state.is_completed():
            found[model] = str(state.message or "").rpartition("BudgetExceeded: ")[2]
    return found


def _outcome(run: Run, published: Published, over_budget: Mapping[str, str]) -> Outcome:
    rows = published.results.select(["metric", "filter", "status", "error"]).to_pylist()
    failed = {f"{row['metric']},{row['filter']}": row["error"] for row in rows if row["status"] == "failed"}
    pairs = len(run.plan.pairs())
    said = [f"{pairs - len(failed)} of {pairs} pairs computed"]
    said += [f"failed: {name} ({reason})" for name, reason in failed.items()]
    said += [f"{model}: {reason}" for model, reason in over_budget.items()]
    if failed or over_budget:
        said.append(f"run the same command again, or retry this run, to compute only what is missing; {published.report}")
    return Outcome(ok=not failed and not over_budget, summary="; ".join(said))
