"""Results and sample logs in lm-evaluation-harness's own files, for benchmarks that are its own."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.selection import Chosen


def write_harness_files(
    chosen: Chosen, documents: Sequence[Mapping[str, Any]], output: str | None
) -> list[Path]:
    """Writes them for the evaluations that were published, below ``output`` or else the last run's folder.

    Groups are aggregated over the benchmarks of this command. Returns the results files.
    """
    pairs = [
        (config, document)
        for config, document in zip(chosen.configs, documents, strict=True)
        if config.harness is not None and document["results"]
    ]
    if not pairs:
        return []
    from tasks.benchmarks.lm_eval.logs import results as harness_results

    runs = [
        harness_results.FinishedRun(config.model_dump(mode="json"), Path(document["output"]))
        for config, document in pairs
    ]
    folder = Path(output) if output is not None else runs[-1].folder
    return harness_results.write_harness_files(runs, chosen.groups, folder, datetime.now())
