"""What a store and the folders beside it are kept down to: one pruning for the command line and the flow.

Imports nothing of Prefect: the command line ``python -m flows.history --prune`` starts in a second.
"""

from dataclasses import dataclass
from pathlib import Path

from tasks.history.leftovers import Leftovers, find_leftovers, remove_leftovers
from tasks.history.prune import Pruning, plan_pruning, prune
from tasks.history.retention import EVERYTHING as KEEP_ALL
from tasks.history.retention import Retention
from tasks.store.home import home, results_folder
from tasks.store.storage import Store

__all__ = ["KEEP_ALL", "Pruned", "load_retention", "prune_all"]


@dataclass(frozen=True)
class Pruned:
    """What a pruning removed of the store and beside it, or would remove."""

    pruning: Pruning
    leftovers: Leftovers

    @property
    def bytes(self) -> int:
        """Bytes that this frees."""
        return self.pruning.bytes + self.leftovers.bytes

    @property
    def summary(self) -> str:
        """In one line."""
        said = [f"{len(self.pruning.artifacts)} artifacts"]
        for things, noun in (
            (self.pruning.answers, "segments of answers"),
            (self.pruning.torn, "files of killed runs"),
            (self.leftovers.folders, "output folders"),
            (self.leftovers.logs, "logs"),
        ):
            said += [f"{len(things)} {noun}"] if things else []
        return (
            f"{', '.join(said)}, {self.bytes:,} bytes; {self.pruning.kept} artifacts are in use by kept runs"
        )


def load_retention(path: Path) -> Retention:
    """Reads a retention file; raises ConfigError, one line for each thing that is wrong."""
    from flows.config.errors import validated
    from flows.config.yaml import read_yaml

    source = read_yaml(path)
    return validated(Retention, source, source.data)


def prune_all(store: Store, retention: Retention, dry_run: bool = False) -> Pruned:
    """Removes what the retention does not keep, of the store, the folder of results and the logs of the
    project's home; with ``dry_run`` only finds it.

    Raises HistoryError while a run is in progress.
    """
    found = plan_pruning(store, retention) if dry_run else prune(store, retention)
    leftovers = find_leftovers(results_folder(), home(), retention)
    if not dry_run:
        remove_leftovers(leftovers)
    return Pruned(found, leftovers)
