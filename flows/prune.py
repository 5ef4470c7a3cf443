"""Pruning as a flow: the deployment ``prune`` keeps a store and what is beside it bounded, every week."""

from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from tasks.history.prune import Pruned, Retention, prune_all
from tasks.messages.markdown import as_code
from tasks.patience import if_possible
from tasks.reporting.overview import renew_index
from tasks.store.home import default_store, results_folder
from tasks.store.storage import Store

SHOWN = 100
"""Names on the run's page, at most."""
DEFAULT = Retention()


@flow(name="prune", retries=12, retry_delay_seconds=1800)
async def prune_store(
    retention: Retention = DEFAULT, store: str | None = None, dry_run: bool = False
) -> State[Any]:
    """Removes what the retention does not keep: artifacts of older runs, unused answers, output folders and
    logs.

    ``store`` is a URI; without it, the worker's own. While a run is in progress it fails and tries again, for
    six hours; a run that begins meanwhile waits for it. Result and item rows stay in the history.
    """
    opened = Store(store or default_store())
    opened.check_readable()
    pruned = prune_all(opened, retention, dry_run)
    if not dry_run:
        renew_index(opened, results_folder())
    page = _markdown(pruned, dry_run)
    if_possible(lambda: create_markdown_artifact(page, key="prune", description=pruned.summary))
    return Completed(message=f"{'would remove' if dry_run else 'removed'} {pruned.summary}")


def _markdown(pruned: Pruned, dry_run: bool) -> str:
    pruning, leftovers = pruned.pruning, pruned.leftovers
    lines = [f"# {'Would remove' if dry_run else 'Removed'} {pruned.summary}\n"]
    for title, names in (
        ("Runs whose artifacts go; their rows stay in the history", pruning.runs),
        ("Answers", [entry.name for entry in pruning.answers]),
        ("Output folders", leftovers.folders),
        ("Logs", [*leftovers.logs, *leftovers.cut]),
    ):
        lines += [f"\n## {title}\n", *(f"- {as_code(str(name))}" for name in names[:SHOWN])] if names else []
        lines += [f"- and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return "\n".join(lines)
