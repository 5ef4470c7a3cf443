"""The programs whose evaluations can be read: each a function from a path to its runs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tasks.benchmarks.recorded.inspect_runs import inspect_runs
from tasks.benchmarks.recorded.lighteval import lighteval_runs
from tasks.benchmarks.recorded.opencompass import opencompass_runs
from tasks.benchmarks.recorded.run import RecordedRun, written_config

PROGRAMS: Final[Mapping[str, Callable[[Path], Iterator[RecordedRun]]]] = {
    "inspect": inspect_runs,
    "lighteval": lighteval_runs,
    "opencompass": opencompass_runs,
}


def recorded_configs(
    program: str, paths: Sequence[Path], workspace: Path
) -> tuple[list[dict[str, Any]], list[str]]:
    """A native config for each run that the paths hold, and what is to be told of them.

    Items and responses are written below ``workspace``. A run without scores of samples is left out and named
    where there are others. Raises ConfigError where there is no file of the program, and DatasetError for one
    that can't be read, or where no run has scores.
    """
    runs = [run for path in paths for run in PROGRAMS[program](path)]
    usable = [run for run in runs if not run.refusal]
    notes = [note for run in runs for note in run.notes]
    notes += [f"{run.refusal}; it is left out" for run in runs if usable and run.refusal]
    return [written_config(run, workspace) for run in usable or runs], notes
