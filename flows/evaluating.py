"""The second kind of scores: evaluation methods judge every response, and metrics count over their
verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flows.pairs import Numbers
from flows.plan import Cell, MethodPlan, MetricPlan
from flows.responses import Responses
from flows.run import Future, Run, completed
from tasks.judge import aggregate_verdicts, call_user_metric, judge_responses, reduce_verdicts


@dataclass(frozen=True)
class JudgedBy:
    """A method's verdicts, cell by cell."""

    method: MethodPlan
    verdicts: Mapping[Cell, Future]


def judge_all(run: Run, responses: Responses) -> list[JudgedBy]:
    """Verdicts of every evaluation method at every cell."""
    judged = []
    for method in run.plan.methods:
        verdicts = {
            cell: run.submit(
                judge_responses,
                method.of(run.origin(cell)).at(cell.suffix, **cell.about),
                *responses.at(cell),
            )
            for cell in responses.cells
        }
        judged.append(JudgedBy(method, verdicts))
    return judged


def count_all(run: Run, responses: Responses, judged: Sequence[JudgedBy]) -> dict[str, Numbers]:
    """Item rows and results of every metric over the verdicts of all methods."""
    places = [
        (entry.method.name, cell, future) for entry in judged for cell, future in entry.verdicts.items()
    ]
    done = completed([future for *_, future in places])
    worked = [place for place, there in zip(places, done, strict=True) if there]
    broken = [place for place, there in zip(places, done, strict=True) if not there]
    # A built-in method has one label, its name: what it lost is lost for that label alone.
    labels = {entry.method.name: None if entry.method.knows_model else entry.method.name for entry in judged}
    failed = [
        replace(part, label=labels[name])
        for name, cell, future in broken
        for part in run.failed_parts([cell], [future])
    ]
    if not worked:
        return {}
    inputs = (
        [(name, run.origin(cell)) for name, cell, _ in worked],
        [future for *_, future in worked],
        [responses.requests[cell.place] for _, cell, _ in worked],
        [responses.answers[cell] for _, cell, _ in worked],
    )
    return {entry.name: _count(run, entry, inputs, failed) for entry in run.plan.metrics}


def _count(run: Run, entry: MetricPlan, inputs: tuple[object, ...], failed: Sequence[object]) -> Numbers:
    if entry.is_users:
        return Numbers(None, run.submit(call_user_metric, entry.aggregate, *inputs, failed))
    items = run.submit(reduce_verdicts, entry.reduce, *inputs)
    return Numbers(items, run.submit(aggregate_verdicts, entry.aggregate, items, failed))
