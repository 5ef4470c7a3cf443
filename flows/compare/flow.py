"""The comparison of two runs as a flow: what the deployment ``compare`` runs on a worker."""

from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows.compare.runs import STATE_NAMES, change_line, compare_opened, fails, group_of, told_pairs
from flows.server import own_flow
from metrics.errors import printable, printable_values
from tasks.comparison.compare import ComparedPair, Gate
from tasks.comparison.runs import open_run
from tasks.messages.markdown import as_cells, as_text
from tasks.reporting import numbers
from tasks.run_page import label_verdict
from tasks.store.home import default_store, ui_key
from tasks.store.storage import Store


def compare_run_name() -> str:
    """Name of the flow run: which runs it compares."""
    return f"{flow_run.parameters.get('base')} ↔ {flow_run.parameters.get('candidate')}"


@own_flow(name="compare", flow_run_name=compare_run_name)
def compare(base: str, candidate: str, gate: Gate | None = None, store: str | None = None) -> State[Any]:
    """Compares two runs of the store (or two output folders) item by item.

    Ends Failed if the gate says regression, or worse with ``fail_on: worse``, and else Completed: under the
    name Worse or Inconclusive where it says that. The message gives the verdict.
    """
    place = Store(store or default_store())
    compared = compare_opened(open_run(base, place), open_run(candidate, place), gate)
    sentences = [f"gate: {compared.verdict}"] if compared.verdict is not None else ["no gate"]
    sentences += [change_line(change) for change in compared.changes if change.kind == "model identity"]
    table = [_row(pair) for pair in compared.pairs]
    key = f"compare-{ui_key(candidate)}"
    message = printable("; ".join(sentences))
    create_table_artifact(table=as_cells(printable_values(table)), key=key, description=as_text(message))
    verdict = compared.verdict
    label_verdict(str(flow_run.id), verdict, told_pairs([(compared.base, pair) for pair in compared.pairs]))
    if fails(verdict, gate):
        return Failed(message=message)
    return Completed(message=message, name=STATE_NAMES.get(verdict, "Completed"))


def _row(pair: ComparedPair) -> dict[str, Any]:
    found = pair.comparison
    shown = (
        {}
        if found is None
        else {
            "base": found.base,
            "candidate": found.candidate,
            "difference": found.difference,
            "interval": numbers.interval(found.ci_low, found.ci_high, like=found.base),
            "p adjusted": pair.p_adjusted,
            "wins/losses/ties": f"{found.wins}/{found.losses}/{found.ties}",
            "minimum detectable effect": found.mde,
            "items": found.n_items,
        }
    )
    place = {"benchmark": pair.key.benchmark, "group": " ".join(group_of(pair)), "pair": pair.key.pair}
    return place | numbers.rounded(shown) | {"gate": pair.verdict, "reason": pair.reason}
